"""The `mini` encoder: frozen EfficientNet-Lite2 and MiniLM backbones with small trained heads, one space for both.

Knows how features become vectors. Knows nothing of items, codes or losses. It is not CLIP: the backbones never met
before the heads were trained, on some ten thousand captioned images.
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

from genius.encoders.base import Prepared, Vectors
from genius.encoders.efficientnet import CHANNELS, CLASSES, GRID, POOLED, EfficientNetLite2, to_pixels
from genius.encoders.minilm import WIDTH, MiniLM, TokenStates
from genius.errors import BadModel

BLOCK = 64  # images whose feature maps are held at once
TEXT_BLOCK = 4096  # texts whose token states are held at once
TOKENS_A_BATCH = 8192


@dataclass(frozen=True)
class HeadsConfig:
    """Shape of the heads. dim: of the vectors; hidden: of residual layers; *_glances: learned queries of a tower."""

    dim: int = 256
    hidden: int = 1024
    image_glances: int = 8
    text_glances: int = 8
    dropout: float = 0.3


class Projection(nn.Module):
    """Norm, then a linear map plus a hidden layer that starts at zero."""

    def __init__(self, inputs: int, hidden: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(inputs)
        self.linear = nn.Linear(inputs, outputs)
        self.up = nn.Linear(inputs, hidden)
        self.down = nn.Linear(hidden, outputs)
        self.dropout = dropout
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.norm(x), self.dropout, self.training)
        out: Tensor = self.linear(x) + self.down(F.dropout(F.gelu(self.up(x)), self.dropout, self.training))
        return out


class AttentionPool(nn.Module):
    """Attention pooling: each of a few learned queries takes its own weighted mean of a tower's places.

    Keys and values are the frozen states themselves: a linear map of either would only repeat `queries` or `out`.
    """

    def __init__(self, width: int, glances: int, outputs: int, dropout: float, places: int = 0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.queries = nn.Parameter(torch.randn(glances, width) * 0.02)
        self.place = nn.Parameter(torch.zeros(places, glances))
        self.out = nn.Linear(glances * width, outputs)
        self.dropout = dropout
        nn.init.normal_(self.out.weight, std=0.005)

    def forward(self, states: Tensor, mask: Tensor | None = None) -> Tensor:
        """states: (n, places, width), mask: (n, places) bool or None -> (n, outputs)."""
        states = self.norm(states)
        weights = states @ self.queries.T  # (n, places, glances)
        if len(self.place):
            weights = weights + self.place
        if mask is not None:
            weights = weights.masked_fill(~mask[..., None], -torch.inf)
        seen = torch.softmax(weights, dim=1).transpose(1, 2) @ states
        out: Tensor = self.out(F.dropout(seen.flatten(1), self.dropout, self.training))
        return out


class Heads(nn.Module):
    """What stage 1 trains. The class probabilities tie images to words: ImageNet's classes have names."""

    def __init__(self, config: HeadsConfig) -> None:
        super().__init__()
        self.config = config
        dim, dropout = config.dim, config.dropout
        self.image = Projection(POOLED, config.hidden, dim, dropout)
        self.image_glances = AttentionPool(CHANNELS, config.image_glances, dim, dropout, GRID)
        self.classes = nn.Linear(CLASSES, dim, bias=False)
        self.text = Projection(WIDTH, config.hidden, dim, dropout)
        self.text_glances = AttentionPool(WIDTH, config.text_glances, dim, dropout)

    def encode_image(self, grid: Tensor, pooled: Tensor, logits: Tensor) -> Tensor:
        """grid: (n, 352, 49), pooled: (n, 1280), logits: (n, 1000) -> (n, dim)."""
        likely = F.dropout(torch.softmax(logits, dim=-1).sqrt(), self.config.dropout, self.training)
        out: Tensor = self.image(pooled) + self.classes(likely) + self.image_glances(grid.transpose(1, 2))
        return out

    def encode_text(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """states: (n, tokens, 384), mask: (n, tokens) bool or None -> (n, dim)."""
        if mask is None:
            mean = states.mean(dim=1)
        else:
            mean = (states * mask[..., None]).sum(dim=1) / mask.sum(dim=1, keepdim=True)
        out: Tensor = self.text(mean) + self.text_glances(states, mask)
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
    def _images(self) -> EfficientNetLite2:
        return EfficientNetLite2(self.threads)

    @cached_property
    def _words(self) -> MiniLM:
        return MiniLM()

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
    """Text vectors (n, dim) of packed token states; texts of one length go together, so that none is padded."""
    out = np.empty((len(states), heads.config.dim), dtype=np.float32)
    for length in np.unique(states.lengths):
        same = np.flatnonzero(states.lengths == length)
        for rows in np.array_split(same, -(-len(same) * int(length) // TOKENS_A_BATCH)):
            out[rows] = heads.encode_text(*states.padded(rows)).numpy()
    if not np.isfinite(out).all():
        raise BadModel("The text head gave vectors that are not numbers. The model folder may be damaged.")
    return out
