"""The autoregressive decoder (Sec. 4.3): log-probabilities of the codes of an ID, given a query vector.

A T5 decoder (RMS norm, relative position bias, no biases, unscaled dot products, ReLU feed-forward) that attends to
`prefix` embeddings made from the query vector (Eq. 9). This module scores whole IDs by teacher forcing, as training
needs it; `decoder_runtime` decodes level by level.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genius.errors import BadModel

SPECIALS = 3  # table rows before the first code: 0 pad (also the start of every ID), 1 end, 2 unknown, as in T5
POSITION_BUCKETS = 32
POSITION_MAX_DISTANCE = 128

FIELD_OF_KEY = {key: key for key in ("dim", "sizes", "d_model", "layers", "heads", "d_kv", "d_ff", "prefix")}
FIELD_OF_KEY |= {"prefix_hidden": "", "dropout": "dropout", "tied": "", "whole_vocabulary": "whole_vocabulary"}
FIELD_OF_KEY |= {"skip": "linear_head", "written": "decoder_levels"}
"""Keys of a stored configuration -> fields. Keys and their order are part of every model's fingerprint."""
FIXED_KEYS = {"prefix_hidden": 0, "tied": True}
"""Stored keys of former options, with the only value that is supported."""


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of a decoder. The defaults are the paper's (T5-small).

    Attributes:
        whole_vocabulary: Normalise log-probabilities over the codes of all levels, as the published model does, instead
            of over the level's own codes.
        linear_head: Add a linear map from the query vector to the logits of all codes. Not in the paper.
        decoder_levels: Number of first levels that the blocks and the linear head score together; the linear head alone
            scores the others. 0: the blocks score all levels, as in the paper.
    """

    dim: int  # of the query vectors
    sizes: tuple[int, ...]  # number of codes of each level, the modality level first
    d_model: int = 512
    layers: int = 6
    heads: int = 8
    d_kv: int = 64
    d_ff: int = 2048
    prefix: int = 30  # number of prefix embeddings, N in Eq. 9
    dropout: float = 0.1
    whole_vocabulary: bool = False
    linear_head: bool = False
    decoder_levels: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(int(size) for size in self.sizes))
        for name in ("dim", "d_model", "layers", "heads", "d_kv", "d_ff", "prefix"):
            if getattr(self, name) < 1:
                raise BadModel(f"The decoder's {name} is {getattr(self, name)}; it must be at least 1.")
        if not 0 <= self.dropout < 0.99:
            raise BadModel(f"The decoder's dropout is {self.dropout}; it must be at least 0 and below 0.99.")
        if not self.sizes or min(self.sizes) < 1:
            raise BadModel(f"The decoder's sizes are {self.sizes}; every level needs at least one code.")
        if not 0 <= self.decoder_levels <= len(self.sizes):
            raise BadModel(f"decoder_levels is {self.decoder_levels}, but the decoder has {len(self.sizes)} levels.")
        if self.decoder_levels and (self.whole_vocabulary or not self.linear_head):
            raise BadModel("decoder_levels needs linear_head = true and whole_vocabulary = false; set it to 0.")

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding table: special tokens and the codes of all levels."""
        return SPECIALS + sum(self.sizes)

    def to_dict(self) -> dict[str, Any]:
        """The stored form: `FIELD_OF_KEY` keys in their fixed order."""
        values = asdict(self)
        return {key: values[field] if field else FIXED_KEYS[key] for key, field in FIELD_OF_KEY.items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "DecoderConfig":
        """Read the stored form."""
        unknown = set(values) - set(FIELD_OF_KEY)
        if unknown:
            raise BadModel(f"The decoder's configuration has keys this version does not know: {sorted(unknown)}.")
        for key, only in FIXED_KEYS.items():
            if values.get(key, only) != only:
                raise BadModel(f"The decoder's configuration has {key} = {values[key]}; only {only} is supported.")
        return cls(**{FIELD_OF_KEY[key]: value for key, value in values.items() if key not in FIXED_KEYS})


class RMSNorm(nn.Module):
    """T5's layer norm: no mean subtraction, no bias."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., size) -> the same shape."""
        return F.rms_norm(x, self.weight.shape, self.weight, eps=1e-6)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(n, length, heads * d_kv) -> (n, heads, length, d_kv), a view."""
    return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(n, heads, length, d_kv) -> (n, length, heads * d_kv)."""
    return x.transpose(1, 2).flatten(2)


class Block(nn.Module):
    """One decoder layer: self-attention, cross-attention to the prefix, feed-forward; each pre-normed and residual."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        d, inner = config.d_model, config.heads * config.d_kv
        self.heads, self.dropout = config.heads, config.dropout
        self.self_norm = RMSNorm(d)
        self.self_qkv = nn.Linear(d, 3 * inner, bias=False)
        self.self_out = nn.Linear(inner, d, bias=False)
        self.cross_norm = RMSNorm(d)
        self.cross_q = nn.Linear(d, inner, bias=False)
        self.cross_kv = nn.Linear(d, 2 * inner, bias=False)
        self.cross_out = nn.Linear(inner, d, bias=False)
        self.ff_norm = RMSNorm(d)
        self.ff_in = nn.Linear(d, config.d_ff, bias=False)
        self.ff_out = nn.Linear(config.d_ff, d, bias=False)
        self.reset(config)

    def reset(self, config: DecoderConfig) -> None:
        """Initialise as T5 does. Query weights include the 1/sqrt(d_kv) that T5's attention leaves out."""
        d, inner = config.d_model, config.heads * config.d_kv
        for module in (self.self_qkv, self.cross_q, self.cross_kv, self.ff_in):
            nn.init.normal_(module.weight, std=d**-0.5)
        with torch.no_grad():
            self.self_qkv.weight[:inner] *= config.d_kv**-0.5
            self.cross_q.weight *= config.d_kv**-0.5
        nn.init.normal_(self.self_out.weight, std=inner**-0.5)
        nn.init.normal_(self.cross_out.weight, std=inner**-0.5)
        nn.init.normal_(self.ff_out.weight, std=config.d_ff**-0.5)

    def prefix_keys(self, prefix: Tensor) -> tuple[Tensor, Tensor]:
        """prefix: (n, N, d_model) -> keys and values, each (n, heads, N, d_kv)."""
        keys, values = self.cross_kv(prefix).chunk(2, dim=-1)
        return split_heads(keys, self.heads), split_heads(values, self.heads)

    def forward(self, x: Tensor, bias: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """x: (n, length, d_model) -> the same. bias: (heads, length, length); keys, values: of the prefix."""
        # 1. Self-attention
        q, k, v = (split_heads(part, self.heads) for part in self.self_qkv(self.self_norm(x)).chunk(3, dim=-1))
        x = x + self.drop(self.self_out(merge_heads(self.attend(q, k, v, bias))))
        # 2. Cross-attention to the prefix
        q = split_heads(self.cross_q(self.cross_norm(x)), self.heads)
        x = x + self.drop(self.cross_out(merge_heads(self.attend(q, keys, values))))
        # 3. Feed-forward
        return x + self.drop(self.ff_out(self.drop(F.relu(self.ff_in(self.ff_norm(x)), inplace=True))))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        """Unscaled dot-product attention, each argument (n, heads, length, d_kv)."""
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=1.0)

    def drop(self, x: Tensor) -> Tensor:
        """Dropout, in training mode only."""
        return F.dropout(x, self.dropout, self.training)


class Decoder(nn.Module):
    """Log-probabilities of IDs `codes: (n, levels)`, modality code first, given query vectors `z: (n, dim)`."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.prefix_network = nn.Sequential(nn.Linear(config.dim, config.prefix * config.d_model))
        self.prefix_norm = RMSNorm(config.d_model)
        self.table = nn.Parameter(torch.randn(config.vocabulary, config.d_model))  # input and output embeddings
        self.position_bias = nn.Parameter(torch.randn(POSITION_BUCKETS, config.heads) * config.d_model**-0.5)
        self.blocks = cast(list[Block], nn.ModuleList(Block(config) for _ in range(config.layers)))
        self.final_norm = RMSNorm(config.d_model)
        self.linear_head = nn.Parameter(torch.zeros(config.vocabulary, config.dim)) if config.linear_head else None
        self.decoder_levels = config.decoder_levels or len(config.sizes)
        starts = torch.tensor((SPECIALS, *config.sizes)).cumsum(0)[:-1]
        self.register_buffer("starts", starts, persistent=False)  # (levels,) table row of each level's code 0
        self.starts: Tensor

    @property
    def levels(self) -> int:
        """Number of codes of an ID."""
        return len(self.config.sizes)

    def init_linear_head(self, codebooks: Sequence[Tensor], gain: float) -> None:
        """Start the linear head from the code vectors (sizes[level], dim) of each level, times `gain`.

        Codes near the query are then likely.
        """
        if self.linear_head is None:
            raise BadModel("This decoder has no linear head; create its configuration with linear_head=True.")
        with torch.no_grad():
            self.linear_head[SPECIALS:] = gain * torch.cat(list(codebooks))

    def forward(self, z: Tensor, codes: Tensor) -> Tensor:
        """Log-probability of each code given the query and the codes before it. Eq. 10 is minus its sum over levels.

        Args:
            z: (n, dim) query vectors.
            codes: (n, m) the first m <= levels codes of IDs.

        Returns:
            (n, m)
        """
        if self.config.whole_vocabulary:
            rows = (codes + self.starts[: codes.shape[1]])[..., None]
            logits = self.table_logits(self.hidden(z, codes))
            if self.linear_head is not None:
                logits = logits + F.linear(z, self.linear_head)[:, None]
            return logits.log_softmax(-1).gather(-1, rows)[..., 0]
        picked = [
            -F.cross_entropy(logits, codes[:, level], reduction="none")
            for level, logits in enumerate(self.logits(z, codes))
        ]
        return torch.stack(picked, dim=1)

    def logits(self, z: Tensor, codes: Tensor) -> list[Tensor]:
        """Teacher forcing: for each level, (n, sizes[level]) over that level's codes, given the codes before it."""
        hidden = self.hidden(z, codes)
        levels = range(hidden.shape[1])
        if self.linear_head is None:
            return [self.table_logits(hidden[:, level], self.rows(level)) for level in levels]
        linear = F.linear(z, self.linear_head)  # (n, vocabulary)
        both = [self.table_logits(hidden[:, level], self.rows(level)) + linear[:, self.rows(level)] for level in levels]
        return both + [linear[:, self.rows(level)] for level in range(len(both), codes.shape[1])]

    def table_logits(self, hidden: Tensor, rows: slice = slice(None)) -> Tensor:
        """hidden: (..., d_model) -> (..., number of table rows)."""
        return F.linear(hidden * self.config.d_model**-0.5, self.table[rows])

    def hidden(self, z: Tensor, codes: Tensor) -> Tensor:
        """Hidden states of the decoder levels by teacher forcing, (n, min(m, decoder_levels), d_model)."""
        codes = codes[:, : self.decoder_levels]
        prefix, length = self.prefix(z), codes.shape[1]
        tokens = F.pad((codes + self.starts[:length])[:, :-1], (1, 0))  # shifted right, behind the start token 0
        x = self.drop(F.embedding(tokens, self.table))
        bias = self.causal_bias(length)
        for block in self.blocks:
            x = block(x, bias, *block.prefix_keys(prefix))
        return self.drop(self.final_norm(x))

    def prefix_embeddings(self, z: Tensor) -> Tensor:
        """P(z), Eq. 9: (n, dim) -> (n, N, d_model)."""
        embeddings: Tensor = self.prefix_network(z)
        return embeddings.view(-1, self.config.prefix, self.config.d_model)

    def prefix(self, z: Tensor) -> Tensor:
        """Normed prefix embeddings, the input of cross-attention: (n, dim) -> (n, N, d_model)."""
        return self.drop(self.prefix_norm(self.prefix_embeddings(z)))

    def rows(self, level: int) -> slice:
        """Table rows of a level's codes."""
        start = SPECIALS + sum(self.config.sizes[:level])
        return slice(start, start + self.config.sizes[level])

    def causal_bias(self, length: int) -> Tensor:
        """Relative position bias, (heads, length, length), -inf for later positions; shared by all blocks, as in T5."""
        position = torch.arange(length, device=self.table.device)
        distance = position[:, None] - position[None, :]
        bias = F.embedding(position_bucket(distance.clamp(min=0)), self.position_bias).permute(2, 0, 1)
        return bias.masked_fill(distance < 0, -math.inf)

    def drop(self, x: Tensor) -> Tensor:
        """Dropout, in training mode only."""
        return F.dropout(x, self.config.dropout, self.training)


def position_bucket(distance: Tensor) -> Tensor:
    """T5's buckets of backward distances: one each for the first half, then logarithmic up to the maximum."""
    exact = POSITION_BUCKETS // 2
    growth = torch.log(distance.clamp(min=1) / exact) / math.log(POSITION_MAX_DISTANCE / exact)
    far = exact + (growth * (POSITION_BUCKETS - exact)).long()
    return torch.where(distance < exact, distance, far.clamp(max=POSITION_BUCKETS - 1))
