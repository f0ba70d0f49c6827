"""The files of the frozen backbones in `genius/encoders/weights`; `scripts/backbones.py` writes them."""

from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from genius.encoders.model_files import reason
from genius.errors import BadModel

FOLDER = Path(__file__).parent / "weights"


class BackboneWeights(dict[str, np.ndarray]):
    """Weights by name: float16, and bytes with their scales. A missing name raises BadModel."""

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            super().__init__(load_file(file))
        except (OSError, SafetensorError) as error:
            raise damaged(file, reason(error)) from error

    def __missing__(self, name: str) -> np.ndarray:
        raise damaged(self.file, f"it has no weights {name!r}")

    def floats(self, name: str) -> np.ndarray:
        """Weights as float32."""
        return self[name].astype(np.float32)


def damaged(file: Path, why: str) -> BadModel:
    """The error for a file that cannot be used."""
    return BadModel(f"{file} is missing or damaged ({why}). Install the package again: pip install genius-search")
