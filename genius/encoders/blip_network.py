"""The network of BLIP with feature-level fusion (UniIR's BLIP-FF): an image with a text -> one vector.

A vision transformer reads the image. A BERT reads the text and attends to the image in every layer; its first position
is the result. The names of all weights are those of the published checkpoint.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genius.errors import BadModel

HEAD = 64  # width of a head in all published sizes


@dataclass(frozen=True)
class BlipConfig:
    """Shape of the network. The defaults are those of the published `blip_ff_large.pth`."""

    image_size: int = 224
    patch: int = 16
    image_width: int = 1024
    image_layers: int = 24
    image_heads: int = 16
    image_hidden: int = 4096
    words: int = 30524
    positions: int = 512
    text_width: int = 768
    text_layers: int = 12
    text_heads: int = 12
    text_hidden: int = 3072

    @classmethod
    def inferred(cls, weights: Mapping[str, Tensor]) -> "BlipConfig":
        """Infer the shape from the weights of a published checkpoint, by name.

        Raises:
            BadModel: A weight is missing, or has another number of dimensions.
        """

        def shape(name: str, dimensions: int) -> tuple[int, ...]:
            if name not in weights or weights[name].ndim != dimensions:
                raise BadModel(f"These are not the weights of UniIR's BLIP-FF: {name} is missing or of another shape.")
            return tuple(weights[name].shape)

        def layers(pattern: str) -> int:
            return len({found[1] for found in (re.match(pattern, name) for name in weights) if found})

        image_width, _, patch, _ = shape("visual_encoder.patch_embed.proj.weight", 4)
        tokens = shape("visual_encoder.pos_embed", 3)[1]
        words, text_width = shape("text_encoder.embeddings.word_embeddings.weight", 2)
        return cls(
            image_size=round((tokens - 1) ** 0.5) * patch,
            patch=patch,
            image_width=image_width,
            image_layers=layers(r"visual_encoder\.blocks\.(\d+)\."),
            image_heads=max(1, image_width // HEAD),
            image_hidden=shape("visual_encoder.blocks.0.mlp.fc1.weight", 2)[0],
            words=words,
            positions=shape("text_encoder.embeddings.position_embeddings.weight", 2)[0],
            text_width=text_width,
            text_layers=layers(r"text_encoder\.encoder\.layer\.(\d+)\."),
            text_heads=max(1, text_width // HEAD),
            text_hidden=shape("text_encoder.encoder.layer.0.intermediate.dense.weight", 2)[0],
        )

    def to_dict(self) -> dict[str, Any]:
        """The fields, as stored in a model's configuration."""
        return asdict(self)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Scaled dot-product attention of (n, heads, length, d) each -> (n, length, heads * d)."""
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def _heads(x: Tensor, heads: int) -> Tensor:
    """(n, length, width) -> (n, heads, length, width / heads)."""
    return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)


# Image


class VisionBlock(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, config: BlipConfig) -> None:
        super().__init__()
        width, hidden = config.image_width, config.image_hidden
        self.heads = config.image_heads
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attn = nn.ModuleDict({"qkv": nn.Linear(width, 3 * width), "proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, hidden), "fc2": nn.Linear(hidden, width)})

    def forward(self, x: Tensor) -> Tensor:
        """x: (n, tokens, width) -> the same."""
        q, k, v = (_heads(part, self.heads) for part in self.attn["qkv"](self.norm1(x)).chunk(3, dim=-1))
        x = x + self.attn["proj"](_attend(q, k, v))
        out: Tensor = x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x))))
        return out


class VisionTransformer(nn.Module):
    """Pixels (n, 3, size, size) -> image tokens (n, 1 + patches, width), the class token first."""

    def __init__(self, config: BlipConfig) -> None:
        super().__init__()
        width, patches = config.image_width, (config.image_size // config.patch) ** 2
        self.cls_token = nn.Parameter(torch.empty(1, 1, width))
        self.pos_embed = nn.Parameter(torch.empty(1, 1 + patches, width))
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, config.patch, config.patch)})
        self.blocks = nn.ModuleList(VisionBlock(config) for _ in range(config.image_layers))
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, pixels: Tensor) -> Tensor:
        """See the class."""
        patches = self.patch_embed["proj"](pixels).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(pixels), -1, -1), patches], dim=1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.norm(x)
        return out


# Text


class Memory(NamedTuple):
    """Keys and values that attention reads, each (m, heads, tokens, width / heads)."""

    keys: Tensor
    values: Tensor

    def take(self, rows: Tensor) -> "Memory":
        """The memory of some of the m inputs, by number."""
        return Memory(self.keys[rows], self.values[rows])


class TextAttention(nn.Module):
    """Attention with its output layer, residual and post-norm. source: width of the tokens that it reads."""

    def __init__(self, width: int, heads: int, source: int) -> None:
        super().__init__()
        self.heads = heads
        self.self = nn.ModuleDict(
            {"query": nn.Linear(width, width), "key": nn.Linear(source, width), "value": nn.Linear(source, width)}
        )
        self.output = nn.ModuleDict({"dense": nn.Linear(width, width), "LayerNorm": nn.LayerNorm(width, eps=1e-12)})

    def memory(self, tokens: Tensor) -> Memory:
        """Keys and values of tokens (m, tokens, source)."""
        return Memory(_heads(self.self["key"](tokens), self.heads), _heads(self.self["value"](tokens), self.heads))

    def forward(self, x: Tensor, memory: Memory) -> Tensor:
        """x: (n, length, width) -> the same."""
        attended = _attend(_heads(self.self["query"](x), self.heads), *memory)
        out: Tensor = self.output["LayerNorm"](self.output["dense"](attended) + x)
        return out


class TextLayer(nn.Module):
    """A post-norm layer: attention to the text, attention to the image, feed-forward."""

    def __init__(self, config: BlipConfig) -> None:
        super().__init__()
        width, hidden = config.text_width, config.text_hidden
        self.attention = TextAttention(width, config.text_heads, width)
        self.crossattention = TextAttention(width, config.text_heads, config.image_width)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(width, hidden)})
        self.output = nn.ModuleDict({"dense": nn.Linear(hidden, width), "LayerNorm": nn.LayerNorm(width, eps=1e-12)})

    def forward(self, x: Tensor, image: Memory) -> Tensor:
        """x: (n, length, width) -> the same. image: of n images."""
        x = self.attention(x, self.attention.memory(x))
        x = self.crossattention(x, image)
        out: Tensor = self.output["LayerNorm"](self.output["dense"](F.gelu(self.intermediate["dense"](x))) + x)
        return out


class TextEmbeddings(nn.Module):
    """Words and positions; BLIP's BERT has no token types."""

    def __init__(self, config: BlipConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.words, config.text_width)
        self.position_embeddings = nn.Embedding(config.positions, config.text_width)
        self.LayerNorm = nn.LayerNorm(config.text_width, eps=1e-12)

    def forward(self, ids: Tensor) -> Tensor:
        """ids: (n, length) -> (n, length, width)."""
        out: Tensor = self.LayerNorm(self.word_embeddings(ids) + self.position_embeddings.weight[: ids.shape[1]])
        return out


class TextEncoder(nn.Module):
    """A BERT that attends to an image. It has no mask: texts of a batch have the same number of tokens."""

    def __init__(self, config: BlipConfig) -> None:
        super().__init__()
        self.embeddings = TextEmbeddings(config)
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(TextLayer(config) for _ in range(config.text_layers))})
        self.pooler = nn.ModuleDict({"dense": nn.Linear(config.text_width, config.text_width)})

    @property
    def layers(self) -> list[TextLayer]:
        """All layers, in order."""
        return cast(list[TextLayer], list(cast(nn.ModuleList, self.encoder["layer"])))

    def forward(self, ids: Tensor, images: list[Memory]) -> Tensor:
        """ids: (n, length), images: of n images, for each layer -> (n, width)."""
        x = self.embeddings(ids)
        for layer, image in zip(self.layers, images, strict=True):
            x = layer(x, image)
        return torch.tanh(self.pooler["dense"](x[:, 0]))


class BlipNetwork(nn.Module):
    """Images with texts -> vectors (n, text_width), not normalised.

    An image is read once into its memory for each layer of the text encoder, which any number of texts can be read
    with. There is no other path for a text or an image alone: they come with an empty image or an empty text.
    """

    def __init__(self, config: BlipConfig) -> None:
        super().__init__()
        self.config = config
        self.visual_encoder = VisionTransformer(config)
        self.text_encoder = TextEncoder(config)

    @classmethod
    def with_weights(cls, config: BlipConfig, weights: Mapping[str, Tensor]) -> "BlipNetwork":
        """The network with these weights, which are not copied."""
        with torch.device("meta"):
            network = cls(config)
        try:
            network.load_state_dict(weights, assign=True)
        except RuntimeError as error:
            problem = str(error).replace("\n\t", " ").partition(". ")[0]
            raise BadModel(f"The weights do not fit the network: {problem}. Convert the model again.") from error
        return network.eval().requires_grad_(False)

    def read_images(self, pixels: Tensor) -> list[Memory]:
        """The memory of images (m, 3, size, size), for each layer of the text encoder."""
        tokens = self.visual_encoder(pixels)
        return [layer.crossattention.memory(tokens) for layer in self.text_encoder.layers]

    def forward(self, ids: Tensor, images: list[Memory], which: Tensor) -> Tensor:
        """Vectors of texts with images.

        Args:
            ids: (n, length) tokens of n texts of the same length.
            images: The memory of m images, from `read_images`.
            which: (n,) the image of each text, by number.
        """
        out: Tensor = self.text_encoder(ids, [memory.take(which) for memory in images])
        return out
