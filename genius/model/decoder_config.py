"""Shape of a decoder, and the parts of it that depend on the shape alone."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from genius.errors import BadModel

SPECIALS = 3  # table rows before the first code: 0 pad (also the start of every ID), 1 end, 2 unknown, as in T5
POSITION_BUCKETS = 32
POSITION_MAX_DISTANCE = 128

FIELD_OF_KEY = {key: key for key in ("dim", "sizes", "d_model", "layers", "heads", "d_kv", "d_ff", "prefix")}
FIELD_OF_KEY |= {"prefix_hidden": "", "dropout": "dropout", "tied": "", "whole_vocabulary": "whole_vocabulary"}
FIELD_OF_KEY |= {"skip": "", "written": ""}
"""Keys of a stored configuration -> fields. Keys and their order are part of every model's fingerprint."""
FIXED_KEYS = {"prefix_hidden": 0, "tied": True, "skip": False, "written": 0}
"""Stored keys of former options, with the only value that is supported."""
OPTIONS = ("residual_input", "residual_gain", "query_scale")
"""Fields that are stored only if they differ from their defaults, so that older models keep their fingerprints."""


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of a decoder. The defaults are the paper's (T5-small).

    z is the query vector, c a code vector, q the sum of the code vectors of the codes before.

    Attributes:
        layers: Number of blocks. 0 is allowed with a residual score only, which then scores the codes alone; all first
            codes (modalities) are equally likely.
        whole_vocabulary: Normalise log-probabilities over the codes of all levels, as the published model does, instead
            of over the level's own codes.
        residual_input: The blocks read W_z z - W_q q + token_scale * table[token] instead of table[token]. Not in the
            paper.
        residual_gain: g. Adds the residual score g ((s z - q).c - |c|^2 / 2) to the logits of every level but the
            first. Not in the paper. 0: none.
        query_scale: s, the scale of the query vector in residual scores.
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
    residual_input: bool = False
    residual_gain: float = 0.0
    query_scale: float = 1.25

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(int(size) for size in self.sizes))
        for name in ("dim", "d_model", "layers", "heads", "d_kv", "d_ff", "prefix"):
            if getattr(self, name) < (0 if name == "layers" and self.residual_gain > 0 else 1):
                raise BadModel(f"The decoder's {name} is {getattr(self, name)}; it must be at least 1.")
        if not 0 <= self.dropout < 0.99:
            raise BadModel(f"The decoder's dropout is {self.dropout}; it must be at least 0 and below 0.99.")
        if not self.sizes or min(self.sizes) < 1:
            raise BadModel(f"The decoder's sizes are {self.sizes}; every level needs at least one code.")
        for name in ("residual_gain", "query_scale"):
            if not 0 <= getattr(self, name) < math.inf:
                raise BadModel(f"The decoder's {name} is {getattr(self, name)}; it must be a number of at least 0.")
        if self.residual_gain and self.whole_vocabulary:
            raise BadModel(
                "residual_gain scores the codes of one level; set whole_vocabulary = false or the gain to 0."
            )
        if self.residual_input and not self.layers:
            raise BadModel("residual_input is an input of the layers; set it to false or layers to at least 1.")

    @property
    def levels(self) -> int:
        """Number of codes of an ID."""
        return len(self.sizes)

    @property
    def uses_sums(self) -> bool:
        """Whether input or scores depend on q, the sum of the code vectors of the codes before."""
        return self.residual_input or self.residual_gain > 0

    @property
    def vocabulary(self) -> int:
        """Rows of the embedding table: special tokens and the codes of all levels."""
        return SPECIALS + sum(self.sizes)

    def to_dict(self) -> dict[str, Any]:
        """The stored form: `FIELD_OF_KEY` keys in their fixed order, then `OPTIONS` that are not the default."""
        values = asdict(self)
        stored = {key: values[field] if field else FIXED_KEYS[key] for key, field in FIELD_OF_KEY.items()}
        return stored | {name: values[name] for name in OPTIONS if values[name] != getattr(DecoderConfig, name)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "DecoderConfig":
        """Read the stored form."""
        unknown = set(values) - set(FIELD_OF_KEY) - set(OPTIONS)
        if unknown:
            raise BadModel(f"The decoder's configuration has keys this version does not know: {sorted(unknown)}.")
        for key, only in FIXED_KEYS.items():
            if values.get(key, only) != only:
                raise BadModel(f"The decoder's configuration has {key} = {values[key]}; only {only} is supported.")
        return cls(**{FIELD_OF_KEY.get(key, key): value for key, value in values.items() if key not in FIXED_KEYS})

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the stored weights, by their names in `genius.networks.decoder.Decoder`. None without layers.

        The code vectors (`codebooks`) are the quantizer's and are not stored with the decoder.
        """
        if not self.layers:
            return {}
        d, inner = self.d_model, self.heads * self.d_kv
        shapes: dict[str, tuple[int, ...]] = {
            "table": (self.vocabulary, d),
            "position_bias": (POSITION_BUCKETS, self.heads),
            "prefix_network.0.weight": (self.prefix * d, self.dim),
            "prefix_network.0.bias": (self.prefix * d,),
            "prefix_norm.weight": (d,),
            "final_norm.weight": (d,),
        }
        if self.residual_input:
            shapes |= {"query_input.weight": (d, self.dim), "sum_input.weight": (d, self.dim), "token_scale": (1,)}
        block: dict[str, tuple[int, ...]] = {
            "self_norm": (d,),
            "self_qkv": (3 * inner, d),
            "self_out": (d, inner),
            "cross_norm": (d,),
            "cross_q": (inner, d),
            "cross_kv": (2 * inner, d),
            "cross_out": (d, inner),
            "ff_norm": (d,),
            "ff_in": (self.d_ff, d),
            "ff_out": (d, self.d_ff),
        }
        for layer in range(self.layers):
            shapes |= {f"blocks.{layer}.{name}.weight": shape for name, shape in block.items()}
        return shapes

    def row_bounds(self) -> np.ndarray:
        """(levels + 1,) int64: where the codes of each level start in the embedding table."""
        return np.cumsum([SPECIALS, *self.sizes])

    def rows(self, level: int) -> slice:
        """Table rows of a level's codes."""
        start = SPECIALS + sum(self.sizes[:level])
        return slice(start, start + self.sizes[level])


def position_buckets(length: int) -> np.ndarray:
    """T5's buckets of the distances between `length` positions, (length, length) int64; 0 for later positions.

    The first half of the buckets holds one distance each, the others grow logarithmically up to the maximum.
    """
    position = np.arange(length)
    distance = np.maximum(position[:, None] - position[None, :], 0)
    exact = POSITION_BUCKETS // 2
    growth = np.log(np.maximum(distance, 1) / exact) / math.log(POSITION_MAX_DISTANCE / exact)
    far = exact + (growth * (POSITION_BUCKETS - exact)).astype(np.int64)
    return np.asarray(np.where(distance < exact, distance, np.minimum(far, POSITION_BUCKETS - 1)))
