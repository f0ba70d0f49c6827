"""Where an encoder's files are: a folder on this machine, or a model hub's `owner/name`.

Knows how to find or fetch files, and which sentence to say when they cannot be had; knows nothing of what is in them.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from genius.errors import BadModel, GeniusError

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
SMALL = ("*.json", "*.txt", "*.model")
WEIGHTS = ("*.safetensors", "pytorch_model*.bin")  # the second only where there is none of the first


def local_folder(name: str | os.PathLike[str], needed: Sequence[str], weights: bool = True) -> Path:
    """The folder `name`, or the local copy of the hub's model `name`, fetched if need be.

    needed: the files that make it whole, for the sentence that is said when they cannot be had.
    """
    if Path(name).is_dir():
        return Path(name)
    files = f"{', '.join(needed[:-1])} and {needed[-1]}" if len(needed) > 1 else needed[0]
    if not HUB_ID.fullmatch(str(name)):
        raise BadModel(f"There is no folder {str(name)!r}. Give a folder that holds {files}, or a hub id (owner/name).")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise needs_extra("Models of the hub need", "huggingface_hub") from error
    try:
        folder = Path(snapshot_download(str(name), allow_patterns=[*SMALL, *WEIGHTS[:weights]]))
        if weights and not any(folder.rglob(WEIGHTS[0])):
            folder = Path(snapshot_download(str(name), allow_patterns=[*SMALL, *WEIGHTS]))
    except (OSError, ValueError) as error:  # no network, no such model, no permission
        raise BadModel(
            f"{name} is no folder, is not among the models fetched earlier, and the hub did not give it "
            f"({reason(error)}). Copy {files} of {name} into one folder on this machine and give that folder instead."
        ) from error
    return folder


def needs_extra(what: str, package: str) -> GeniusError:
    return GeniusError(f'{what} the package {package}. Install it: pip install "genius-search[clip]"')


def reason(error: BaseException) -> str:
    """The first line of a library's message, without its full stop."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
