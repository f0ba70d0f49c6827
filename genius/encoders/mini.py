"""The `mini` encoder: frozen EfficientNet-Lite2 and MiniLM backbones with small trained heads, one space for both.

Knows how features become vectors. Knows nothing of items, codes or losses. It is not CLIP: the backbones never met
before the heads were trained, on some ten thousand captioned pictures.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from rich.progress import Progress
from torch import Tensor, nn

from genius.encoders import Prepared, Vectors
from genius.encoders.efficientnet import CHANNELS, CLASSES, GRID, POOLED, EfficientNetLite2, to_pixels
from genius.encoders.minilm import LAYERS, WIDTH, BertLayer, MiniLM, TokenStates, published_layer
from genius.errors import BadModel

BLOCK = 64  # pictures whose feature maps are held at once
TOKENS_A_BATCH = 8192


@dataclass(frozen=True)
class HeadsConfig:
    """Shape of the heads. dim: of the vectors; hidden: of the residual layers; glances: learned queries over the map."""

    dim: int = 256
    hidden: int = 1024
    glances: int = 8
    glance_width: int = 256
    dropout: float = 0.3


class Projection(nn.Module):
    """Norm, then a linear map plus a hidden layer that starts at zero."""

    def __init__(self, inputs: int, hidden: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(inputs)
        self.linear = nn.Linear(inputs, outputs)
        self.up = nn.Linear(inputs, hidden)
        self.down = nn.Linear(hidden, outputs)
        self.dropout = nn.Dropout(dropout)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(self.norm(x))
        out: Tensor = self.linear(x) + self.down(self.dropout(F.gelu(self.up(x))))
        return out


class Glances(nn.Module):
    """Attention pooling: each of a few learned queries looks at the feature map in its own way."""

    def __init__(self, config: HeadsConfig) -> None:
        super().__init__()
        width = config.glance_width
        self.norm = nn.LayerNorm(CHANNELS)
        self.place = nn.Parameter(torch.zeros(GRID, CHANNELS))
        self.queries = nn.Parameter(torch.randn(config.glances, width) * width**-0.5)
        self.keys = nn.Linear(CHANNELS, width)
        self.values = nn.Linear(CHANNELS, width)
        self.out = nn.Linear(config.glances * width, config.dim)
        self.dropout = config.dropout
        nn.init.normal_(self.out.weight, std=0.005)

    def forward(self, grid: Tensor) -> Tensor:
        """grid: (n, 352, 49) -> (n, dim)."""
        x = F.dropout(self.norm(grid.transpose(1, 2)) + self.place, self.dropout / 2, self.training)
        keys, values = self.keys(x), self.values(x)
        looks = torch.softmax(self.queries @ keys.transpose(1, 2) * keys.shape[-1] ** -0.5, dim=-1)  # (n, glances, 49)
        seen = (looks @ values).flatten(1)
        out: Tensor = self.out(F.dropout(seen, self.dropout, self.training))
        return out


class Heads(nn.Module):
    """What stage 1 trains. The class probabilities tie pictures to words: ImageNet's classes have names."""

    def __init__(self, config: HeadsConfig) -> None:
        super().__init__()
        self.config = config
        self.pooled = Projection(POOLED, config.hidden, config.dim, config.dropout)
        self.classes = nn.Linear(CLASSES, config.dim, bias=False)
        self.glances = Glances(config)
        self.text_layer = BertLayer()
        self.text = Projection(WIDTH, config.hidden, config.dim, config.dropout)

    def start_from_published(self) -> None:
        """Begin the trained text layer as MiniLM's own last layer."""
        self.text_layer.load_state_dict(published_layer(LAYERS - 1).state_dict())

    def encode_image(self, grid: Tensor, pooled: Tensor, logits: Tensor) -> Tensor:
        """grid: (n, 352, 49), pooled: (n, 1280), logits: (n, 1000) -> (n, dim)."""
        likely = F.dropout(torch.softmax(logits, dim=-1).sqrt(), self.config.dropout, self.training)
        out: Tensor = self.pooled(pooled) + self.classes(likely) + self.glances(grid)
        return out

    def encode_text(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """states: (n, tokens, 384), mask: (n, tokens) bool or None -> (n, dim)."""
        states = self.text_layer(states, mask, dropout=0.1)
        if mask is None:
            mean = states.mean(dim=1)
        else:
            mean = (states * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        # MiniLM's sentence vectors are compared by direction alone.
        out: Tensor = self.text(F.normalize(mean, dim=1) * WIDTH**0.5)
        return out


class MiniEncoder:
    """Heads on the two frozen backbones, each of which is loaded when first needed."""

    kind = "mini"

    def __init__(self, heads: Heads) -> None:
        self.heads = heads.eval().requires_grad_(False)
        self.dim = heads.config.dim
        self.threads = min(torch.get_num_threads(), os.cpu_count() or 1)

    @classmethod
    def from_state(cls, config: dict[str, Any], state: dict[str, Tensor]) -> "MiniEncoder":
        heads = Heads(HeadsConfig(**{k: v for k, v in config.items() if k != "kind"}))
        heads.load_state_dict(state)
        return cls(heads)

    def config(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self.heads.config)}

    def state(self) -> dict[str, Tensor]:
        return self.heads.state_dict()

    @cached_property
    def _pictures(self) -> EfficientNetLite2:
        return EfficientNetLite2(self.threads)

    @cached_property
    def _words(self) -> MiniLM:
        return MiniLM(LAYERS - 1)

    def pixels(self, image: Image.Image) -> np.ndarray:
        return to_pixels(image)

    @torch.inference_mode()
    def encode(self, inputs: Sequence[Prepared], progress: bool = False) -> Vectors:
        image = np.zeros((len(inputs), self.dim), dtype=np.float32)
        text = np.zeros((len(inputs), self.dim), dtype=np.float32)
        with_image = [i for i, given in enumerate(inputs) if given.pixels is not None]
        with_text = [i for i, given in enumerate(inputs) if given.text]
        with Progress(disable=not progress, transient=True) as bars:
            bar = bars.add_task("encoding", total=len(with_image) + len(with_text))
            for start in range(0, len(with_image), BLOCK):
                rows = with_image[start : start + BLOCK]
                image[rows] = self._encode_images([inputs[i].pixels for i in rows])
                bars.advance(bar, len(rows))
            if with_text:
                states = self._words.states([inputs[i].text for i in with_text], lambda n: bars.advance(bar, n))
                text[with_text] = encode_states(self.heads, states)
        return Vectors(image, text)

    def _encode_images(self, pixels: Sequence[np.ndarray | None]) -> np.ndarray:
        features = self._pictures.features(np.stack([p for p in pixels if p is not None]))
        out: np.ndarray = self.heads.encode_image(*(torch.from_numpy(f) for f in features)).numpy()
        return out


@torch.inference_mode()
def encode_states(heads: Heads, states: TokenStates) -> np.ndarray:
    """Text vectors (n, dim) of packed token states; texts of one length go together, so that none is padded."""
    out = np.empty((len(states), heads.config.dim), dtype=np.float32)
    for length in np.unique(states.lengths):
        same = np.flatnonzero(states.lengths == length)
        for rows in np.array_split(same, -(-len(same) * int(length) // TOKENS_A_BATCH)):
            out[rows] = heads.encode_text(*states.padded(rows)).numpy()
    if not np.isfinite(out).all():
        raise BadModel("The text head gave vectors that are not numbers. The model folder may be damaged.")
    return out
