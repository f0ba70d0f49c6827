"""The decoder of a fitted model without layers: the residual score, whose one number is chosen by held-back queries."""

import numpy as np

from genius.encoders.base import Encoder
from genius.fit.check import CheckedItems, exact, recall
from genius.fit.codebooks import Sample
from genius.fit.queries import QueryMaker
from genius.fit.settings import FitSettings
from genius.model.decoder_config import DecoderConfig
from genius.model.decoder_runtime import DecoderRuntime
from genius.model.encoder_only import encoder_only
from genius.model.genius import Genius
from genius.model.quantizer_runtime import QuantizerRuntime
from genius.train.distillation import GAIN

SCALES = (1.0, 1.25, 1.6, 2.0, 2.5)
SCALE_ITEMS, SCALE_QUERIES = 10_000, 100  # that the choice of a scale searches


def closed_form(quantizer: QuantizerRuntime, scale: float) -> DecoderRuntime:
    """The residual score g ((s z - q).c - |c|^2 / 2) as a decoder without layers. All modalities are equally likely."""
    config = DecoderConfig(quantizer.dim, quantizer.sizes, layers=0, residual_gain=GAIN, query_scale=scale)
    return DecoderRuntime(config, {}).with_codebooks(quantizer.codebooks)


def choose_query_scale(
    quantizer: QuantizerRuntime, encoder: Encoder, learned: Sample, maker: QueryMaker, settings: FitSettings
) -> float:
    """The scale s with which mode generate finds most of what exact search finds, for held-back pseudo-queries.

    A query is farther from its answers than an item is from its own codes; s makes up for that.
    """
    sample = Sample(learned.z[:: _step(learned)], learned.modality[:: _step(learned)])
    items = CheckedItems(sample, quantizer.encode(sample.z, sample.modality, settings.code_beams))
    queries = maker.draw(SCALE_QUERIES, np.random.default_rng([settings.seed, 1]))
    nearest, fusion = exact(sample, queries), encoder_only(encoder).fusion

    def score(scale: float) -> float:
        model = Genius(encoder, fusion, quantizer, closed_form(quantizer, scale))
        return recall(model, items, queries, nearest, "generate")

    return max(SCALES, key=score)


def _step(learned: Sample) -> int:
    return max(1, len(learned) // SCALE_ITEMS)
