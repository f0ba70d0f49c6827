"""The `mini` encoder: frozen EfficientNet-Lite2 and MiniLM backbones with small trained heads, one space for both.

It is not CLIP: the backbones were trained separately, and the heads on about ten thousand captioned images.
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

from genius.encoders.base import Prepared, Vectors, equal_length_batches
from genius.encoders.efficientnet import CHANNELS, CLASSES, GRID, POOLED, EfficientNetLite2, to_pixels
from genius.encoders.minilm import WIDTH, MiniLM, TokenStates
from genius.errors import BadModel

BLOCK = 64  # images whose feature maps are in memory at once
TEXT_BLOCK = 4096  # texts whose token states are in memory at once
TOKENS_A_BATCH = 8192
STORED_KEYS = {"image_pool_queries": "image_glances", "text_pool_queries": "text_glances"}
"""Fields of `HeadsConfig` that have another key in a model folder. Keys are part of every model's fingerprint."""


@dataclass(frozen=True)
class HeadsConfig:
    """Shape of the heads."""

    dim: int = 256  # of the vectors
    hidden: int = 1024  # width of the hidden layers
    image_pool_queries: int = 8  # learned queries of the image's attention pool
    text_pool_queries: int = 8
    dropout: float = 0.3


class Projection(nn.Module):
    """Layer norm, then a linear map plus a residual MLP that starts at zero."""

    def __init__(self, inputs: int, hidden: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(inputs)
        self.linear = nn.Linear(inputs, outputs)
        self.up = nn.Linear(inputs, hidden)
        self.down = nn.Linear(hidden, outputs)
        self.dropout = dropout
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        """x: (n, inputs) -> (n, outputs)."""
        x = F.dropout(self.norm(x), self.dropout, self.training)
        out: Tensor = self.linear(x) + self.down(F.dropout(F.gelu(self.up(x)), self.dropout, self.training))
        return out


class AttentionPool(nn.Module):
    """Attention pooling by learned queries, each of which takes its own weighted mean of the positions.

    Keys and values are the frozen states: linear maps of them would be redundant with `queries` and `out`. Each
    of `positions` positions has a learned bias; 0: no bias.
    """

    def __init__(self, width: int, queries: int, outputs: int, dropout: float, positions: int = 0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.queries = nn.Parameter(torch.randn(queries, width) * 0.02)
        self.place = nn.Parameter(torch.zeros(positions, queries))  # position bias; the name is in stored weights
        self.out = nn.Linear(queries * width, outputs)
        self.dropout = dropout
        nn.init.normal_(self.out.weight, std=0.005)

    def forward(self, states: Tensor, mask: Tensor | None = None) -> Tensor:
        """states: (n, positions, width), mask: (n, positions) bool or None -> (n, outputs)."""
        states = self.norm(states)
        weights = states @ self.queries.T  # (n, positions, queries)
        if len(self.place):
            weights = weights + self.place
        if mask is not None:
            weights = weights.masked_fill(~mask[..., None], -torch.inf)
        pooled = torch.softmax(weights, dim=1).transpose(1, 2) @ states  # (n, queries, width)
        out: Tensor = self.out(F.dropout(pooled.flatten(1), self.dropout, self.training))
        return out


class Heads(nn.Module):
    """The part that stage 1 trains. Class probabilities relate images to words, since ImageNet's classes have names."""

    def __init__(self, config: HeadsConfig) -> None:
        super().__init__()
        self.config = config
        dim, dropout = config.dim, config.dropout
        self.image = Projection(POOLED, config.hidden, dim, dropout)
        self.image_pool = AttentionPool(CHANNELS, config.image_pool_queries, dim, dropout, GRID)
        self.classes = nn.Linear(CLASSES, dim, bias=False)
        self.text = Projection(WIDTH, config.hidden, dim, dropout)
        self.text_pool = AttentionPool(WIDTH, config.text_pool_queries, dim, dropout)

    def encode_image(self, grid: Tensor, pooled: Tensor, logits: Tensor) -> Tensor:
        """grid: (n, 352, 49), pooled: (n, 1280), logits: (n, 1000) -> (n, dim)."""
        likely = F.dropout(torch.softmax(logits, dim=-1).sqrt(), self.config.dropout, self.training)
        out: Tensor = self.image(pooled) + self.classes(likely) + self.image_pool(grid.transpose(1, 2))
        return out

    def encode_text(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """states: (n, tokens, 384), mask: (n, tokens) bool or None -> (n, dim)."""
        if mask is None:
            mean = states.mean(dim=1)
        else:
            mean = (states * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        out: Tensor = self.text(mean) + self.text_pool(states, mask)
        return out


class MiniEncoder:
    """Heads on two frozen backbones, each loaded when it is first needed."""

    kind = "mini"
    joint = False

    def __init__(self, heads: Heads) -> None:
        self.heads = heads.eval().requires_grad_(False)
        self.dim = heads.config.dim
        self.threads = min(torch.get_num_threads(), os.cpu_count() or 1)

    @classmethod
    def from_state(cls, config: dict[str, Any], state: dict[str, Tensor], device: str = "cpu") -> "MiniEncoder":
        """Restore from a stored configuration and weights. The device is always the CPU."""
        fields = {stored: name for name, stored in STORED_KEYS.items()}
        heads = Heads(HeadsConfig(**{fields.get(k, k): v for k, v in config.items() if k != "kind"}))
        heads.load_state_dict({name.replace("_glances.", "_pool."): value for name, value in state.items()})
        return cls(heads)

    def config(self) -> dict[str, Any]:
        """See `Encoder.config`."""
        fields = asdict(self.heads.config)
        return {"kind": self.kind} | {STORED_KEYS.get(name, name): value for name, value in fields.items()}

    def state(self) -> dict[str, Tensor]:
        """The weights of the heads, by the names in a model folder."""
        return {name.replace("_pool.", "_glances."): value for name, value in self.heads.state_dict().items()}

    @cached_property
    def _images(self) -> EfficientNetLite2:
        return EfficientNetLite2(self.threads)

    @cached_property
    def _words(self) -> MiniLM:
        return MiniLM()

    def pixels(self, image: Image.Image) -> np.ndarray:
        """Convert an RGB image to (224, 224, 3) uint8."""
        return to_pixels(image)

    @torch.inference_mode()
    def encode(self, inputs: Sequence[Prepared], progress: bool = False) -> Vectors:
        """See `Encoder.encode`."""
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
            for start in range(0, len(with_text), TEXT_BLOCK):
                rows = with_text[start : start + TEXT_BLOCK]
                states = self._words.states([inputs[i].text for i in rows], lambda n: bars.advance(bar, n))
                text[rows] = encode_states(self.heads, states)
        return Vectors(image, text)

    def _encode_images(self, pixels: Sequence[np.ndarray | None]) -> np.ndarray:
        features = self._images.features(np.stack([p for p in pixels if p is not None]))
        out: np.ndarray = self.heads.encode_image(*(torch.from_numpy(f) for f in features)).numpy()
        return out


@torch.inference_mode()
def encode_states(heads: Heads, states: TokenStates) -> np.ndarray:
    """Text vectors (n, dim) of packed token states."""
    out = np.empty((len(states), heads.config.dim), dtype=np.float32)
    for rows in equal_length_batches(states.lengths, TOKENS_A_BATCH):
        out[rows] = heads.encode_text(*states.padded(rows)).numpy()
    if not np.isfinite(out).all():
        raise BadModel("The text head returned NaN or infinity. The model folder may be damaged.")
    return out
