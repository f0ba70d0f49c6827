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
    def levels(self) -> int:
        """Number of codes of an ID."""
        return len(self.sizes)

    @property
    def levels_of_blocks(self) -> int:
        """Number of first levels that the blocks score."""
        return self.decoder_levels or len(self.sizes)

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

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the decoder's weights, by their names in `genius.networks.decoder.Decoder`."""
        d, inner = self.d_model, self.heads * self.d_kv
        shapes: dict[str, tuple[int, ...]] = {
            "table": (self.vocabulary, d),
            "position_bias": (POSITION_BUCKETS, self.heads),
            "prefix_network.0.weight": (self.prefix * d, self.dim),
            "prefix_network.0.bias": (self.prefix * d,),
            "prefix_norm.weight": (d,),
            "final_norm.weight": (d,),
        }
        if self.linear_head:
            shapes["linear_head"] = (self.vocabulary, self.dim)
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
