"""The decoder of a fitted model without layers: the residual score, with a scale chosen by held-back queries."""

from genius.fit.validation import Validation
from genius.model.decoder_config import DecoderConfig
from genius.model.decoder_runtime import DecoderRuntime
from genius.model.quantizer_runtime import QuantizerRuntime
from genius.train.distillation import GAIN

SCALES = (1.0, 1.25, 1.6, 2.0, 2.5)


def closed_form(quantizer: QuantizerRuntime, scale: float) -> DecoderRuntime:
    """The residual score g ((s z - q).c - |c|^2 / 2) as a decoder without layers. All modalities are equally likely.

    Args:
        quantizer: The codebooks, with the code vectors c.
        scale: s, the scale of the query vector z. q is the sum of the code vectors before c, g is `GAIN`.
    """
    config = DecoderConfig(quantizer.dim, quantizer.sizes, layers=0, residual_gain=GAIN, query_scale=scale)
    return DecoderRuntime(config, {}).with_codebooks(quantizer.codebooks)


def choose_query_scale(quantizer: QuantizerRuntime, validation: Validation) -> float:
    """The scale s of `closed_form` with the highest recall.

    A query is farther from its answers than an item is from the sum of its code vectors; s > 1 makes up for that.
    """
    return max(SCALES, key=lambda scale: validation.recall(closed_form(quantizer, scale)))
