"""The autoregressive decoder, Sec. 4.3: from a query vector to log-probabilities of the codes of an ID, level by level.

A T5 decoder (RMS norm, relative position bias, no biases, unscaled dot products, ReLU feed-forward) that attends to
`prefix` embeddings made from the query vector (Eq. 9). Whole IDs go in, as in training; `decoder_runtime` goes level
by level. It knows nothing of items, tries or beams.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genius.errors import BadModel
from genius.runtime.dropout import dropout

SPECIALS = 3  # rows of the table before the first code: 0 pad (also the start of every ID), 1 end, 2 unknown, as in T5
POSITION_BUCKETS = 32
POSITION_MAX_DISTANCE = 128


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of a decoder. The defaults after `sizes` are the paper's (T5-small).

    dim: of the query vectors; sizes: codes of each level, the modality level first.
    prefix_hidden: width of a hidden layer in the prefix network; 0 is one linear layer, as published.
    tied: the output rows are the input embeddings, scaled by d_model^-0.5.
    whole_vocabulary: log-probabilities are normalised over all levels' codes, as published, not over the level's own.
    skip: a linear path from the query vector to the logits of all codes, beside the decoder. Not in the paper.
    written: the first levels that the layers decide together with that path; the finer codes are left to the path
      alone. 0: the layers decide all levels, as in the paper.
    """

    dim: int
    sizes: tuple[int, ...]
    d_model: int = 512
    layers: int = 6
    heads: int = 8
    d_kv: int = 64
    d_ff: int = 2048
    prefix: int = 30
    prefix_hidden: int = 0
    dropout: float = 0.1
    tied: bool = True
    whole_vocabulary: bool = False
    skip: bool = False
    written: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(int(size) for size in self.sizes))
        for name in ("dim", "d_model", "layers", "heads", "d_kv", "d_ff", "prefix"):
            if getattr(self, name) < 1:
                raise BadModel(f"The decoder's {name} is {getattr(self, name)}; it must be at least 1.")
        if not 0 <= self.dropout < 0.99:
            raise BadModel(f"The decoder's dropout is {self.dropout}; it must be at least 0 and below 0.99.")
        if not self.sizes or min(self.sizes) < 1:
            raise BadModel(f"The decoder's sizes are {self.sizes}; every level needs at least one code.")
        if not 0 <= self.written <= len(self.sizes):
            raise BadModel(f"The decoder's written is {self.written}; it has only {len(self.sizes)} levels.")
        if self.written and (self.whole_vocabulary or not self.skip):
            raise BadModel("Only a decoder with skip and without whole_vocabulary has written levels; set it to 0.")

    @property
    def vocabulary(self) -> int:
        return SPECIALS + sum(self.sizes)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> "DecoderConfig":
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "DecoderConfig":
        unknown = set(values) - {known.name for known in fields(cls)}
        if unknown:
            raise BadModel(f"The decoder's configuration has keys this version does not know: {sorted(unknown)}.")
        return cls(**values)


class RMSNorm(nn.Module):
    """T5's layer norm: no mean, no bias."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, eps=1e-6)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(n, length, heads * d_kv) -> (n, heads, length, d_kv), a view."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """(n, heads, length, d_kv) -> (n, length, heads * d_kv)."""
    return x.transpose(1, 2).flatten(2)


class Block(nn.Module):
    """One decoder layer: self-attention, attention to the prefix, feed-forward; each pre-normed and residual."""

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
        """T5's initialisation; the queries take over the 1/sqrt(d_kv) that its attention leaves out."""
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
        """x: (n, length, d_model); bias: (heads, length, length), -inf where a position may not look."""
        q, k, v = (split_heads(part, self.heads) for part in self.self_qkv(self.self_norm(x)).chunk(3, dim=-1))
        x = x + self.drop(self.self_out(merge_heads(self.attend(q, k, v, bias))))
        return self.after_self_attention(x, keys, values)

    def after_self_attention(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """x: (n, length, d_model) attends to the prefix, then passes the feed-forward layer."""
        q = split_heads(self.cross_q(self.cross_norm(x)), self.heads)
        x = x + self.drop(self.cross_out(merge_heads(self.attend(q, keys, values))))
        return x + self.drop(self.ff_out(self.drop(F.relu(self.ff_in(self.ff_norm(x)), inplace=True))))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=1.0)

    def drop(self, x: Tensor) -> Tensor:
        return dropout(x, self.dropout, self.training)


class Decoder(nn.Module):
    """z: (n, dim) query vectors -> log-probabilities of IDs `codes: (n, levels)`, the modality code first."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        width = config.prefix * config.d_model
        if config.prefix_hidden:
            hidden = config.prefix_hidden
            self.prefix_network = nn.Sequential(nn.Linear(config.dim, hidden), nn.ReLU(), nn.Linear(hidden, width))
        else:
            self.prefix_network = nn.Sequential(nn.Linear(config.dim, width))
        self.prefix_norm = RMSNorm(config.d_model)
        self.table = nn.Parameter(torch.randn(config.vocabulary, config.d_model))
        self.head = None if config.tied else nn.Parameter(self.table.detach() * config.d_model**-0.5)
        self.position_bias = nn.Parameter(torch.randn(POSITION_BUCKETS, config.heads) * config.d_model**-0.5)
        self.blocks = cast(list[Block], nn.ModuleList(Block(config) for _ in range(config.layers)))
        self.final_norm = RMSNorm(config.d_model)
        self.skip = nn.Parameter(torch.zeros(config.vocabulary, config.dim)) if config.skip else None
        self.written = config.written or len(config.sizes)
        starts = torch.tensor((SPECIALS, *config.sizes)).cumsum(0)[:-1]
        self.register_buffer("starts", starts, persistent=False)  # (levels,) the table row of each level's code 0
        self.starts: Tensor

    @property
    def levels(self) -> int:
        return len(self.config.sizes)

    def start_skip(self, codebooks: Sequence[Tensor], gain: float) -> None:
        """Begin the linear path with the code vectors, levels of (size, dim): a code near the query is likely."""
        if self.skip is None:
            raise BadModel("This decoder has no linear path to start; make its configuration with skip=True.")
        with torch.no_grad():
            self.skip[SPECIALS:] = gain * torch.cat(list(codebooks))

    # Training: IDs, or the first codes of IDs, at once. codes: (n, m), m <= levels.

    def forward(self, z: Tensor, codes: Tensor) -> Tensor:
        """log p(code | query, codes before it), (n, m). Eq. 10 is minus its sum over levels."""
        if self.config.whole_vocabulary:
            rows = (codes + self.starts[: codes.shape[1]])[..., None]
            direct = self.direct_logits(z)
            logits = self.all_logits(self.hidden(z, codes), None if direct is None else direct[:, None])
            return logits.log_softmax(-1).gather(-1, rows)[..., 0]
        picked = [
            -F.cross_entropy(logits, codes[:, level], reduction="none")
            for level, logits in enumerate(self.logits(z, codes))
        ]
        return torch.stack(picked, dim=1)

    def logits(self, z: Tensor, codes: Tensor) -> list[Tensor]:
        """Teacher forcing: for each level, (n, sizes[level]) over that level's codes, given the codes before it."""
        hidden, direct = self.hidden(z, codes), self.direct_logits(z)
        written = [self.level_logits(hidden[:, level], level, direct) for level in range(hidden.shape[1])]
        levels = range(len(written), codes.shape[1])
        return written + ([] if direct is None else [direct[:, self.rows(level)] for level in levels])

    def hidden(self, z: Tensor, codes: Tensor) -> Tensor:
        """Decoder output for every written level by teacher forcing, (n, min(m, written), d_model)."""
        codes = codes[:, : self.written]
        prefix, length = self.prefix(z), codes.shape[1]
        tokens = F.pad((codes + self.starts[:length])[:, :-1], (1, 0))  # shifted right, behind the start token 0
        x = self.drop(F.embedding(tokens, self.table))
        bias = self.causal_bias(length)
        for block in self.blocks:
            x = block(x, bias, *block.prefix_keys(prefix))
        return self.drop(self.final_norm(x))

    def prefix_embeddings(self, z: Tensor) -> Tensor:
        """P(z), Eq. 9: (n, dim) -> (n, prefix, d_model)."""
        return self.prefix_network(z).unflatten(-1, (self.config.prefix, self.config.d_model))

    def prefix(self, z: Tensor) -> Tensor:
        """What the blocks attend to: the prefix embeddings, normed."""
        return self.drop(self.prefix_norm(self.prefix_embeddings(z)))

    def level_logits(self, hidden: Tensor, level: int, direct: Tensor | None) -> Tensor:
        """hidden: (..., d_model), direct: (..., vocabulary) -> (..., sizes[level]), over the level's own codes only."""
        rows = self.rows(level)
        logits = F.linear(self.scaled(hidden), self.output_table[rows])
        return logits if direct is None else logits + direct[..., rows]

    def all_logits(self, hidden: Tensor, direct: Tensor | None) -> Tensor:
        """hidden: (..., d_model), direct: (..., vocabulary) -> (..., vocabulary), specials and every level's codes."""
        logits = F.linear(self.scaled(hidden), self.output_table)
        return logits if direct is None else logits + direct

    def direct_logits(self, z: Tensor) -> Tensor | None:
        """What the linear path adds: (n, dim) -> (n, vocabulary)."""
        return None if self.skip is None else F.linear(z, self.skip)

    def rows(self, level: int) -> slice:
        """Where the table has a level's codes."""
        start = SPECIALS + sum(self.config.sizes[:level])
        return slice(start, start + self.config.sizes[level])

    @property
    def output_table(self) -> Tensor:
        return self.table if self.head is None else self.head

    def scaled(self, hidden: Tensor) -> Tensor:
        return hidden * self.config.d_model**-0.5 if self.config.tied else hidden

    def causal_bias(self, length: int) -> Tensor:
        """Relative position bias, (heads, length, length), -inf for later positions. One for all layers, as in T5."""
        position = torch.arange(length, device=self.table.device)
        distance = position[:, None] - position[None, :]
        bias = F.embedding(position_bucket(distance.clamp(min=0)), self.position_bias).permute(2, 0, 1)
        return bias.masked_fill(distance < 0, -math.inf)

    def drop(self, x: Tensor) -> Tensor:
        return dropout(x, self.config.dropout, self.training)


def position_bucket(distance: Tensor) -> Tensor:
    """T5's buckets of backward distances: one each up to half of them, then logarithmic up to the maximum."""
    exact = POSITION_BUCKETS // 2
    growth = torch.log(distance.clamp(min=1) / exact) / math.log(POSITION_MAX_DISTANCE / exact)
    far = exact + (growth * (POSITION_BUCKETS - exact)).long()
    return torch.where(distance < exact, distance, far.clamp(max=POSITION_BUCKETS - 1))
