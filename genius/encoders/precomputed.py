"""No encoder: for models that are given ready image and text vectors. Knows only how long the vectors are."""

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np
from PIL import Image
from torch import Tensor

from genius.encoders.base import Prepared, Vectors
from genius.errors import BadModel


class PrecomputedEncoder:
    """Stands where an encoder would; whoever asks it for vectors is told what is missing."""

    kind = "ready"

    def __init__(self, dim: int) -> None:
        self.dim = dim

    @classmethod
    def from_state(cls, config: dict[str, Any], state: dict[str, Tensor]) -> "PrecomputedEncoder":
        return cls(int(config["dim"]))

    def config(self) -> dict[str, Any]:
        return {"kind": self.kind, "dim": self.dim}

    def state(self) -> dict[str, Tensor]:
        return {}

    def pixels(self, image: Image.Image) -> np.ndarray:
        self._refuse()

    def encode(self, inputs: Sequence[Prepared], progress: bool = False) -> Vectors:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise BadModel(
            "This model has no encoder: it works from ready image and text vectors "
            f"(arrays of {self.dim} dimensions, genius.encoders.Vectors). To search by words and images, convert it "
            "again with the encoder's file: genius convert --clip clip_sf_large.pth --rq F --decoder F OUT."
        )
