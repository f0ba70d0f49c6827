"""The autoregressive decoder (Sec. 4.3): log-probabilities of the codes of an ID, given a query vector.

A T5 decoder (RMS norm, relative position bias, no biases, unscaled dot products, ReLU feed-forward) that attends to
`prefix` embeddings made from the query vector (Eq. 9). Two options that the paper does not have use the code vectors:
`residual_input` tells the blocks what the codes before leave of the query, `residual_gain` adds a closed-form score
(see `DecoderConfig`). This module scores whole IDs by teacher forcing, as training needs it;
`genius.model.decoder_runtime` decodes level by level.
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from genius.model.decoder_config import POSITION_BUCKETS, SPECIALS, DecoderConfig, position_buckets
from genius.model.decoder_runtime import DecoderRuntime
from genius.networks.arrays import arrays
from genius.networks.precision import full_precision

START_SCALE = 16.0  # of code vectors in the token table and of the residual input, before training
TOKEN_SCALE = 0.1  # weight of the last token in the residual input, before training
BRANCH_SCALE = 0.1  # of the layers' outputs beside the residual input, before training


def orthogonal_map(outputs: int, inputs: int) -> Tensor:
    """(outputs, inputs): the identity if both are equal, else a fixed random map with orthonormal rows or columns."""
    if outputs == inputs:
        return torch.eye(inputs)
    generator = torch.Generator().manual_seed(0)
    q: Tensor = torch.linalg.qr(torch.randn(max(outputs, inputs), min(outputs, inputs), generator=generator))[0]
    return q if outputs > inputs else q.T


class RMSNorm(nn.Module):
    """T5's layer norm: no mean subtraction, no bias."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., size) -> the same shape."""
        return F.rms_norm(x.to(self.weight.dtype), self.weight.shape, self.weight, eps=1e-6)


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
    """Log-probabilities of IDs `codes: (n, levels)`, modality code first, given query vectors `z: (n, dim)`.

    A decoder with residual input or score, and every decoder that is searched in mode "fast", needs the code vectors:
    call `init_codebooks`. They are a buffer that is neither trained nor saved.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        d = config.d_model
        if config.layers:
            self.prefix_network = nn.Sequential(nn.Linear(config.dim, config.prefix * d))
            self.prefix_norm = RMSNorm(d)
            self.table = nn.Parameter(torch.randn(config.vocabulary, d))  # input and output embeddings
            self.position_bias = nn.Parameter(torch.randn(POSITION_BUCKETS, config.heads) * d**-0.5)
            self.blocks = cast(list[Block], nn.ModuleList(Block(config) for _ in range(config.layers)))
            self.final_norm = RMSNorm(d)
        if config.residual_input:
            self.query_input = nn.Linear(config.dim, d, bias=False)  # W_z
            self.sum_input = nn.Linear(config.dim, d, bias=False)  # W_q
            self.token_scale = nn.Parameter(torch.tensor([TOKEN_SCALE]))
            with torch.no_grad():  # the input starts as the residual s z - q, in the space of `init_table`
                self.sum_input.weight.copy_(START_SCALE * orthogonal_map(d, config.dim))
                self.query_input.weight.copy_(config.query_scale * self.sum_input.weight)
                for block in self.blocks:  # start near the residual, to which the layers add
                    for out in (block.self_out, block.cross_out, block.ff_out):
                        out.weight.mul_(BRANCH_SCALE)
        starts = torch.from_numpy(config.row_bounds()[:-1])
        self.register_buffer("starts", starts, persistent=False)  # (levels,) table row of each level's code 0
        self.register_buffer("codebooks", torch.zeros(config.vocabulary, config.dim), persistent=False)
        self.register_buffer("buckets", torch.from_numpy(position_buckets(config.levels)), persistent=False)
        self.buckets: Tensor  # (levels, levels) row of `position_bias` for each pair of positions
        self.starts: Tensor
        self.codebooks: Tensor

    @property
    def levels(self) -> int:
        """Number of codes of an ID."""
        return self.config.levels

    def init_codebooks(self, codebooks: Sequence[Tensor]) -> None:
        """Set the code vectors: (sizes[level], dim) of each level. Special tokens have zero vectors."""
        with torch.no_grad():
            self.codebooks[SPECIALS:] = torch.cat(list(codebooks))

    def init_table(self, codebooks: Sequence[Tensor], scale: float = START_SCALE) -> None:
        """Start the token table from the code vectors (sizes[level], dim) of each level, times `scale`.

        If d_model is not dim, they are mapped by `orthogonal_map`. Special tokens keep their random vectors.
        """
        with torch.no_grad():
            vectors = torch.cat(list(codebooks))
            mapped = vectors @ orthogonal_map(self.config.d_model, self.config.dim).T.to(vectors)
            self.table[SPECIALS:] = scale * mapped

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
            return self.table_logits(self.hidden(z, codes), self.table).log_softmax(-1).gather(-1, rows)[..., 0]
        picked = [
            -F.cross_entropy(logits, codes[:, level], reduction="none")
            for level, logits in enumerate(self.logits(z, codes))
        ]
        return torch.stack(picked, dim=1)

    def logits(self, z: Tensor, codes: Tensor) -> list[Tensor]:
        """Teacher forcing: for each level, (n, sizes[level]) over that level's codes, given the codes before it."""
        levels = range(codes.shape[1])
        if self.config.layers:
            # One split of the hidden states and of the table: the gradient of a slice is as large as the whole.
            tables = torch.split(self.table[SPECIALS:], list(self.config.sizes))
            hidden = self.hidden(z, codes).unbind(1)
            logits = [self.table_logits(of_level, table) for of_level, table in zip(hidden, tables, strict=False)]
        else:
            logits = [z.new_zeros(len(z), self.config.sizes[level]) for level in levels]
        if self.config.residual_gain:
            sums = self.sums(codes)
            for level in levels[1:]:
                scores = self.residual_scores(z, sums[:, level], self.config.rows(level))
                logits[level] = logits[level] + self.config.residual_gain * scores
        return logits

    def table_logits(self, hidden: Tensor, table: Tensor) -> Tensor:
        """Logits of rows of the token table: hidden (..., d_model), table (rows, d_model) -> (..., rows)."""
        return F.linear(hidden * self.config.d_model**-0.5, table).float()

    def residual_scores(self, z: Tensor, sums: Tensor, rows: slice = slice(None)) -> Tensor:
        """(s z - q).c - |c|^2 / 2 of the codes c in these table rows: z, sums q (n, dim) -> (n, number of rows).

        Summed over the levels of an ID, it is s z.q - |q|^2 / 2 of the sum q of all its code vectors, less the same of
        the first one alone: the nearer q is to s z, the higher.
        """
        codes = self.codebooks[rows]
        with full_precision(z.device):  # differences of near scores decide
            return F.linear(self.config.query_scale * z - sums, codes) - codes.square().sum(1) / 2

    def hidden(self, z: Tensor, codes: Tensor) -> Tensor:
        """Hidden states of the levels by teacher forcing: z (n, dim), codes (n, m) -> (n, m, d_model)."""
        prefix, length = self.prefix(z), codes.shape[1]
        x = F.embedding(self.tokens(codes), self.table)
        if self.config.residual_input:
            x = self.query_input(z)[:, None] - self.sum_input(self.sums(codes)) + self.token_scale * x
        x = self.drop(x)
        bias = self.causal_bias(length)
        for block in self.blocks:
            x = block(x, bias, *block.prefix_keys(prefix))
        return self.drop(self.final_norm(x))

    def tokens(self, codes: Tensor) -> Tensor:
        """Input tokens of the levels: codes (n, m) shifted right, behind the start token 0."""
        return F.pad((codes + self.starts[: codes.shape[1]])[:, :-1], (1, 0))

    def sums(self, codes: Tensor) -> Tensor:
        """Sum of the code vectors of the codes before each level: (n, m) -> (n, m, dim)."""
        return F.embedding(self.tokens(codes), self.codebooks).cumsum(1)

    def prefix_embeddings(self, z: Tensor) -> Tensor:
        """P(z), Eq. 9: (n, dim) -> (n, N, d_model)."""
        embeddings: Tensor = self.prefix_network(z)
        return embeddings.view(-1, self.config.prefix, self.config.d_model)

    def prefix(self, z: Tensor) -> Tensor:
        """Normed prefix embeddings, the input of cross-attention: (n, dim) -> (n, N, d_model)."""
        return self.drop(self.prefix_norm(self.prefix_embeddings(z)))

    def causal_bias(self, length: int) -> Tensor:
        """Relative position bias, (heads, length, length), -inf for later positions; shared by all blocks, as in T5."""
        buckets = self.buckets[:length, :length]
        later = torch.ones(length, length, dtype=torch.bool, device=self.table.device).triu(1)
        return F.embedding(buckets, self.position_bias).permute(2, 0, 1).masked_fill(later, -math.inf)

    def runtime(self, int8: bool = False) -> DecoderRuntime:
        """The decoder for search, with a copy of the weights. int8: see `DecoderRuntime`."""
        return DecoderRuntime(self.config, arrays(self) | {"codebooks": self.codebooks.cpu().numpy().copy()}, int8)

    def drop(self, x: Tensor) -> Tensor:
        """Dropout, in training mode only."""
        return F.dropout(x, self.config.dropout, self.training)
