"""The heads of the `mini` encoder, which stage 1 trains. `genius.encoders.mini_heads` runs them."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genius.encoders.base import equal_length_batches
from genius.encoders.efficientnet import CHANNELS, CLASSES, GRID, POOLED
from genius.encoders.mini import MiniEncoder
from genius.encoders.mini_heads import HeadsConfig
from genius.encoders.minilm import WIDTH, TokenStates
from genius.errors import BadModel

TOKENS_A_BATCH = 8192


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

    @classmethod
    def of(cls, encoder: MiniEncoder) -> "Heads":
        """The heads of an encoder, in evaluation mode."""
        heads = cls(encoder.heads_config)
        heads.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in encoder.heads.items()})
        return heads.eval().requires_grad_(False)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.classes.weight.device

    def encoder(self) -> MiniEncoder:
        """The encoder with these heads; the weights are copied."""
        return MiniEncoder(self.config, {name: value.cpu().numpy().copy() for name, value in self.state_dict().items()})

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


def padded(states: TokenStates, rows: np.ndarray) -> tuple[Tensor, Tensor | None]:
    """The arguments of `Heads.encode_text` for some texts."""
    x, mask = states.padded(rows)
    return torch.from_numpy(x), None if mask is None else torch.from_numpy(mask)


@torch.inference_mode()
def encode_states(heads: Heads, states: TokenStates) -> np.ndarray:
    """Text vectors (n, dim) of packed token states."""
    out = np.empty((len(states), heads.config.dim), dtype=np.float32)
    for rows in equal_length_batches(states.lengths, TOKENS_A_BATCH):
        x, mask = padded(states, rows)
        given = x.to(heads.device), None if mask is None else mask.to(heads.device)
        out[rows] = heads.encode_text(*given).cpu().numpy()
    if not np.isfinite(out).all():
        raise BadModel("The text head returned NaN or infinity. Train stage 1 at a lower rate.")
    return out
