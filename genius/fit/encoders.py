"""Opens encoders: of GENIUS models, CLIP, SigLIP and sentence-transformers models by name, and functions."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from genius.encoders.base import Encoder
from genius.encoders.function import EncodeFunction, FunctionEncoder
from genius.encoders.model_files import HUB_ID, local_folder
from genius.errors import BadModel, MissingExtra
from genius.model.genius import BUNDLED, Genius

EncoderLike = Encoder | EncodeFunction | str | os.PathLike[str]
"""An encoder, a function (see `FunctionEncoder`), or the name of an encoder."""
NEEDED = ("config.json", "model.safetensors", "tokenizer.json")  # files to download from the hub


@dataclass(frozen=True)
class OpenedEncoder:
    """An encoder, and whether it was trained with instructions such as "Find a picture."."""

    encoder: Encoder
    instructions: bool


def open_encoder(given: EncoderLike, device: str = "cpu") -> OpenedEncoder:
    """Open an encoder.

    Args:
        given: "mini", or the folder or hub id of another GENIUS model, whose encoder is used; the folder or hub id of a
            CLIP, SigLIP or sentence-transformers model; a function; or an encoder, which is returned unchanged.
        device: Device of the encoder, as torch names it.

    Raises:
        BadModel: There is no such model, or it is not an encoder.
        MissingExtra: The encoder needs packages that are not installed.
    """
    if not isinstance(given, str | os.PathLike):
        if isinstance(given, Encoder):
            return OpenedEncoder(given, given.kind == "mini")
        if callable(given):
            return OpenedEncoder(FunctionEncoder(given), False)
        raise BadModel(f"{type(given).__name__} is not an encoder. Give a name, a folder, a function or an Encoder.")
    name = os.fspath(given)
    if (os.sep not in name and (BUNDLED / name).is_dir()) or _is_genius(Path(name)):
        model = Genius.from_pretrained(name, device=device)
        return OpenedEncoder(model.encoder, model.instructions)
    if not Path(name).is_dir() and not HUB_ID.fullmatch(name):
        raise BadModel(
            f"There is no encoder {name!r}. Give mini, the folder or hub id (owner/name) of a CLIP, SigLIP or "
            "sentence-transformers model, or the folder of a GENIUS model."
        )
    folder = local_folder(name, NEEDED)
    if _is_genius(folder):
        model = Genius.from_pretrained(folder, device=device)
        return OpenedEncoder(model.encoder, model.instructions)
    try:
        if (folder / "modules.json").is_file():
            from genius.encoders.sentence import SentenceEncoder

            return OpenedEncoder(SentenceEncoder.from_hub(name, device), False)
        from genius.encoders.clip import ClipEncoder

        return OpenedEncoder(ClipEncoder.from_hub(name, device), False)
    except ImportError as error:
        raise MissingExtra(f"The encoder {name}", "clip") from error


def _is_genius(folder: Path) -> bool:
    """Whether a folder holds a GENIUS model."""
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and {"format", "digest", "encoder"} <= config.keys()
