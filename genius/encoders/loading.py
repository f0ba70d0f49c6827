"""Encoders by configuration (from a model folder) and by name (from a folder or the hub)."""

import os
from typing import Any

from torch import Tensor

from genius.encoders.base import Encoder
from genius.errors import BadModel


def load_encoder(config: dict[str, Any], state: dict[str, Tensor], device: str = "cpu") -> Encoder:
    """The encoder that `config` and `state` describe. device: where it computes, for kinds that can choose."""
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
    raise BadModel(f"The model wants an encoder of kind {kind!r}, which this version does not know.")


def pretrained_encoder(name: str | os.PathLike[str], device: str = "cpu") -> Encoder:
    """A CLIP, SigLIP or sentence-transformers model by folder or hub id (`owner/name`), fetched if need be."""
    from genius.encoders.clip import NEEDED, ClipEncoder
    from genius.encoders.model_files import local_folder
    from genius.encoders.sentence import SentenceEncoder

    if (local_folder(name, NEEDED) / "modules.json").is_file():
        return SentenceEncoder.from_hub(name, device)
    return ClipEncoder.from_hub(name, device)
