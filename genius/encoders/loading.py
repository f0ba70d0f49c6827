"""Restores the encoder of a model folder."""

from importlib import import_module
from typing import Any

import numpy as np

from genius.encoders.base import Encoder
from genius.encoders.model_files import needs_extra
from genius.errors import BadModel

ENCODERS = {
    "mini": ("mini", "MiniEncoder"),
    "clip": ("clip", "ClipEncoder"),
    "blip-ff": ("blip", "BlipEncoder"),
    "sentence": ("sentence", "SentenceEncoder"),
    "function": ("function", "FunctionEncoder"),
    "ready": ("precomputed", "PrecomputedEncoder"),
}
"""Module and class by kind. A module is imported when a model asks for it: some need optional packages."""


def load_encoder(config: dict[str, Any], state: dict[str, np.ndarray], device: str = "cpu") -> Encoder:
    """Restore an encoder from `Encoder.config` and `Encoder.state`.

    Raises:
        BadModel: The kind of encoder is unknown, or the state does not fit.
        GeniusError: The encoder needs a package that is not installed.
    """
    kind = str(config.get("kind"))
    if kind not in ENCODERS:
        raise BadModel(f"The model has an encoder of kind {kind!r}, which this version does not know.")
    module, name = ENCODERS[kind]
    try:
        found = getattr(import_module(f"genius.encoders.{module}"), name)
    except ImportError as error:
        raise needs_extra(f"Encoders of kind {kind!r} need", error.name or str(error)) from error
    encoder: Encoder = found.from_state(config, state, device)
    return encoder
