"""The encoder of models that work on precomputed image and text vectors: it refuses to encode."""

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from PIL import Image

from genius.encoders.base import Prepared, Vectors
from genius.errors import BadModel


class PrecomputedEncoder:
    """Knows only the dimensions of the vectors; encoding raises BadModel."""

    kind = "ready"  # as stored in configurations
    joint = False

    def __init__(self, dim: int) -> None:
        self.dim = dim

    @classmethod
    def from_state(
        cls, config: dict[str, Any], state: dict[str, np.ndarray], device: str = "cpu"
    ) -> "PrecomputedEncoder":
        """Restore from a stored configuration."""
        return cls(int(config["dim"]))

    def config(self) -> dict[str, Any]:
        """See `Encoder.config`."""
        return {"kind": self.kind, "dim": self.dim}

    def state(self) -> dict[str, np.ndarray]:
        """Nothing to save."""
        return {}

    def pixels(self, image: Image.Image) -> np.ndarray:
        """Raise BadModel."""
        self._refuse()

    def encode(self, inputs: Sequence[Prepared], progress: bool = False) -> Vectors:
        """Raise BadModel."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise BadModel(
            "This model has no encoder: it works on precomputed image and text vectors "
            f"(genius.encoders.base.Vectors of {self.dim} dimensions). To search by words and images, convert it "
            "again with the encoder's file: genius convert --clip clip_sf_large.pth --rq F --decoder F OUT."
        )
