"""A Python function as an encoder."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from genius.encoders.base import Prepared, Vectors
from genius.errors import BadModel
from genius.runtime.progress import show_progress

BLOCK = 64  # inputs of one call

EncodeFunction = Callable[[list[Any]], Any]
"""A list of texts, or a list of PIL images, -> an array (n, d) with one vector each."""


class FunctionEncoder:
    """Vectors that a function of the user computes.

    A model folder stores the function's name only, never code: `Genius.from_pretrained(folder, encoder=function)`
    brings the two together again.

    Args:
        function: Gets a list of texts or a list of RGB images, and returns an array (n, d). None: the function is not
            known, and encoding raises BadModel.
        dim: Dimensions of the vectors. None: those of a text that is encoded now.
        name: Name in the stored configuration. None: the function's own.
    """

    kind = "function"
    joint = False

    def __init__(self, function: EncodeFunction | None, dim: int | None = None, name: str | None = None) -> None:
        self.function = function
        self.name = name or str(getattr(function, "__qualname__", type(function).__name__))
        self.dim = self._call(["a photo"]).shape[1] if dim is None else dim

    @classmethod
    def from_state(cls, config: dict[str, Any], state: dict[str, np.ndarray], device: str = "cpu") -> "FunctionEncoder":
        """Restore from a stored configuration, without the function."""
        return cls(None, int(config["dim"]), str(config["name"]))

    def config(self) -> dict[str, Any]:
        """See `Encoder.config`."""
        return {"kind": self.kind, "dim": self.dim, "name": self.name}

    def state(self) -> dict[str, np.ndarray]:
        """Nothing to save."""
        return {}

    def pixels(self, image: Image.Image) -> np.ndarray:
        """The image as an array (height, width, 3) uint8."""
        return np.asarray(image, np.uint8)

    def encode(self, inputs: Sequence[Prepared], progress: bool = False) -> Vectors:
        """See `Encoder.encode`."""
        vectors = Vectors(*(np.zeros((len(inputs), self.dim), np.float32) for _ in range(2)))
        images = [(row, Image.fromarray(given.pixels)) for row, given in enumerate(inputs) if given.pixels is not None]
        texts = [(row, given.text) for row, given in enumerate(inputs) if given.text]
        with show_progress("encoding", len(images) + len(texts), progress) as advance:
            for target, side in ((vectors.image, images), (vectors.text, texts)):
                for start in range(0, len(side), BLOCK):
                    block = side[start : start + BLOCK]
                    target[[row for row, _ in block]] = self._call([content for _, content in block])
                    advance(len(block))
        return vectors

    def _call(self, inputs: list[Any]) -> np.ndarray:
        if self.function is None:
            raise BadModel(
                f"The model's encoder is the Python function {self.name!r}, which is not stored with it. Load the "
                "model with Genius.from_pretrained(folder, encoder=function)."
            )
        found = np.asarray(self.function(inputs), np.float32)
        if found.ndim != 2 or len(found) != len(inputs) or found.shape[1] != getattr(self, "dim", found.shape[1]):
            raise BadModel(
                f"The function {self.name!r} returned an array of shape {found.shape} for {len(inputs)} inputs. It "
                "must return one vector each, (n, d)."
            )
        return found
