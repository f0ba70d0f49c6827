"""Models of an encoder alone. They have no codebooks: search compares a query with every item (exact search)."""

from collections.abc import Mapping

import numpy as np

from genius.encoders.base import Encoder
from genius.model.decoder_config import DecoderConfig
from genius.model.decoder_runtime import DecoderRuntime
from genius.model.fusion_runtime import FusionRuntime, weight_shapes
from genius.model.genius import Genius
from genius.model.quantizer_runtime import MODALITIES, QuantizerRuntime


def encoder_only(encoder: Encoder) -> Genius:
    """A model whose IDs are the modality and nothing else; weights are kept as float32.

    Fusion is the normalised sum of the vectors. The decoder finds all modalities equally likely. Modes "rerank" and
    "fast" rank the items under all IDs, which are all items, by their embeddings. There is nothing to generate.
    """
    dim = encoder.dim
    quantizer = QuantizerRuntime([np.zeros((MODALITIES, dim), np.float32)], levels=0)
    config = DecoderConfig(dim, quantizer.sizes, d_model=8, layers=1, heads=1, d_kv=8, d_ff=8, prefix=1, dropout=0.0)
    fusion, decoder = FusionRuntime(_zeros(weight_shapes(dim, hidden=1))), _zeros(config.weight_shapes())
    return Genius(encoder, fusion, quantizer, DecoderRuntime(config, decoder), dtype="float32")


def _zeros(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
