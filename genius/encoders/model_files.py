"""Finds the files of a model: in a local folder, or downloaded from the hub by `owner/name`."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from genius.errors import BadModel, GeniusError

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
SMALL = ("*.json", "*.txt", "*.model")
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")  # the second only where the first is absent


def local_folder(name: str | os.PathLike[str], needed: Sequence[str], weights: bool = True) -> Path:
    """The folder of a model: `name` itself, or `owner/name` on the hub, downloaded if it is not in the cache.

    `needed` are the files of a complete model, named in error messages.

    Raises:
        BadModel: There is no such folder, and the hub has no such model or cannot be reached.
    """
    if Path(name).is_dir():
        return Path(name)
    files = f"{', '.join(needed[:-1])} and {needed[-1]}" if len(needed) > 1 else needed[0]
    if not HUB_ID.fullmatch(str(name)):
        raise BadModel(f"There is no folder {str(name)!r}. Give a folder that holds {files}, or a hub id (owner/name).")
    download = hub_library().snapshot_download
    try:
        folder = Path(download(str(name), allow_patterns=[*SMALL, *WEIGHTS[:weights]]))
        if weights and not any(folder.rglob(WEIGHTS[0])):
            folder = Path(download(str(name), allow_patterns=[*SMALL, *WEIGHTS]))
    except (OSError, ValueError) as error:  # no network, no such model, no permission
        raise BadModel(
            f"{name} is neither a folder nor in the local cache, and could not be downloaded from the hub "
            f"({reason(error)}). Copy {files} of {name} into one folder on this machine and give that folder instead."
        ) from error
    return folder


def hub_library() -> Any:
    """The package huggingface_hub; GeniusError if it is not installed."""
    try:
        import huggingface_hub
    except ImportError as error:
        raise needs_extra("Models of the hub need", "huggingface_hub") from error
    return huggingface_hub


def needs_extra(what: str, package: str) -> GeniusError:
    """The error for a missing optional package. what: the beginning of the sentence, such as "Models need"."""
    return GeniusError(f'{what} the package {package}. Install it: pip install "genius-search[clip]"')


def as_array(tensor: Any) -> np.ndarray:
    """A torch tensor as an array. bfloat16, which numpy does not have, becomes float32."""
    tensor = tensor.detach().cpu()
    found: np.ndarray = (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()
    return found


def reason(error: BaseException) -> str:
    """First line of a library's error message, without its full stop."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
