"""The autoregressive decoder (Sec. 4.3): log-probabilities of the codes of an ID, given a query vector.

A T5 decoder (RMS norm, relative position bias, no biases, unscaled dot products, ReLU feed-forward) that attends to
`prefix` embeddings made from the query vector (Eq. 9). This module scores whole IDs by teacher forcing, as training
needs it; `genius.model.decoder_runtime` decodes level by level.
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genius.errors import BadModel
from genius.model.decoder_config import POSITION_BUCKETS, SPECIALS, DecoderConfig, position_buckets
from genius.model.decoder_runtime import DecoderRuntime
from genius.networks.arrays import arrays


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
        starts = torch.from_numpy(config.row_bounds()[:-1])
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
            return [self.table_logits(hidden[:, level], self.config.rows(level)) for level in levels]
        linear = F.linear(z, self.linear_head)  # (n, vocabulary)
        both = [
            self.table_logits(hidden[:, level], self.config.rows(level)) + linear[:, self.config.rows(level)]
            for level in levels
        ]
        return both + [linear[:, self.config.rows(level)] for level in range(len(both), codes.shape[1])]

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

    def causal_bias(self, length: int) -> Tensor:
        """Relative position bias, (heads, length, length), -inf for later positions; shared by all blocks, as in T5."""
        buckets = torch.from_numpy(position_buckets(length)).to(self.table.device)
        later = torch.ones(length, length, dtype=torch.bool, device=self.table.device).triu(1)
        return F.embedding(buckets, self.position_bias).permute(2, 0, 1).masked_fill(later, -math.inf)

    def runtime(self, int8: bool = False) -> DecoderRuntime:
        """The decoder for search, with a copy of the weights. int8: see `DecoderRuntime`."""
        return DecoderRuntime(self.config, arrays(self), int8)

    def drop(self, x: Tensor) -> Tensor:
        """Dropout, in training mode only."""
        return F.dropout(x, self.config.dropout, self.training)
