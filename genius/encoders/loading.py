"""Loads encoders, by configuration (of a model folder) or by name (of a folder or a model on the hub)."""

import os
from typing import Any

from torch import Tensor

from genius.encoders.base import Encoder
from genius.errors import BadModel


def load_encoder(config: dict[str, Any], state: dict[str, Tensor], device: str = "cpu") -> Encoder:
    """Restore an encoder.

    Args:
        config: As from `Encoder.config`.
        state: As from `Encoder.state`.
        device: Device of encoders that can run elsewhere than on the CPU.

    Raises:
        BadModel: The kind of encoder is unknown, or the state does not fit.
    """
    kind = config.get("kind")
    if kind == "mini":
        from genius.encoders.mini import MiniEncoder

        return MiniEncoder.from_state(config, state)
    if kind == "clip":
        from genius.encoders.clip import ClipEncoder

        return ClipEncoder.from_state(config, state, device)
    if kind == "sentence":
        from genius.encoders.sentence import SentenceEncoder

        return SentenceEncoder.from_state(config, state, device)
    if kind == "ready":
        from genius.encoders.precomputed import PrecomputedEncoder

        return PrecomputedEncoder.from_state(config, state)
    raise BadModel(f"The model has an encoder of kind {kind!r}, which this version does not know.")


def pretrained_encoder(name: str | os.PathLike[str], device: str = "cpu") -> Encoder:
    """Load a CLIP, SigLIP or sentence-transformers model.

    Args:
        name: A folder, or `owner/name` on the hub, downloaded if it is not in the cache.
        device: Device of the encoder.

    Raises:
        BadModel: There is no such model, or it is of another type.
    """
    from genius.encoders.clip import NEEDED, ClipEncoder
    from genius.encoders.model_files import local_folder
    from genius.encoders.sentence import SentenceEncoder

    if (local_folder(name, NEEDED) / "modules.json").is_file():
        return SentenceEncoder.from_hub(name, device)
    return ClipEncoder.from_hub(name, device)
