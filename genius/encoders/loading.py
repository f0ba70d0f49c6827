"""Restores the encoder of a model folder."""

from typing import Any

from torch import Tensor

from genius.encoders.base import Encoder
from genius.encoders.clip import ClipEncoder
from genius.encoders.mini import MiniEncoder
from genius.encoders.precomputed import PrecomputedEncoder
from genius.encoders.sentence import SentenceEncoder
from genius.errors import BadModel

ENCODERS = {encoder.kind: encoder for encoder in (MiniEncoder, ClipEncoder, SentenceEncoder, PrecomputedEncoder)}


def load_encoder(config: dict[str, Any], state: dict[str, Tensor], device: str = "cpu") -> Encoder:
    """Restore an encoder from `Encoder.config` and `Encoder.state`.

    Raises:
        BadModel: The kind of encoder is unknown, or the state does not fit.
    """
    kind = config.get("kind")
    if kind not in ENCODERS:
        raise BadModel(f"The model has an encoder of kind {kind!r}, which this version does not know.")
    return ENCODERS[kind].from_state(config, state, device)
