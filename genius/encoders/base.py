"""From texts and images to vectors: the one protocol that all encoders follow, and what they return.

An encoder knows texts and images; it knows nothing of items, codes or indexes. Each family has a file of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from PIL import Image
from torch import Tensor

from genius.errors import BadModel
from genius.runtime.threads import over_blocks

ROWS = 1024  # vectors that are worked on at once: few enough to stay in the cache


@dataclass(frozen=True)
class Vectors:
    """Image and text vectors of n items or queries: two (n, d) float32 arrays, a row of zeros where one is absent."""

    image: np.ndarray
    text: np.ndarray

    def __post_init__(self) -> None:
        if self.image.shape != self.text.shape or self.image.ndim != 2:
            raise BadModel(
                f"Image vectors of shape {self.image.shape} and text vectors of shape {self.text.shape} do not belong "
                "together: both must be (n, d), with rows of zeros where there is no image or no text."
            )

    def __len__(self) -> int:
        return len(self.image)

    def __getitem__(self, rows: Any) -> "Vectors":
        return Vectors(self.image[rows], self.text[rows])

    @property
    def has_image(self) -> np.ndarray:
        return (self.image != 0).any(axis=1)

    @property
    def has_text(self) -> np.ndarray:
        return (self.text != 0).any(axis=1)

    @property
    def modality(self) -> np.ndarray:
        """(n,) uint8: 0 image, 1 text, 2 both (the values of `genius.data.items.Modality`)."""
        image, text = self.has_image, self.has_text
        return np.where(image & text, 2, np.where(text, 1, 0)).astype(np.uint8)

    def embedding(self, dtype: type[np.floating] = np.float32) -> np.ndarray:
        """(n, d) of this type: the normalised sum of image and text vector, phi of Eq. 2. Re-ranking compares these."""
        found = np.empty(self.image.shape, dtype)

        def work(block: slice) -> None:
            total = self.image[block] + self.text[block]
            found[block] = total / np.maximum(np.linalg.norm(total, axis=1, keepdims=True), 1e-12)

        over_blocks(work, len(self), ROWS)
        return found

    @staticmethod
    def concatenate(parts: Sequence["Vectors"]) -> "Vectors":
        return Vectors(np.concatenate([p.image for p in parts]), np.concatenate([p.text for p in parts]))


@dataclass(frozen=True)
class Prepared:
    """One item or query ready for an encoder: its image as the encoder takes it, and its text ("" if none)."""

    pixels: np.ndarray | None
    text: str


@runtime_checkable
class Encoder(Protocol):
    """Texts and images -> vectors of one space."""

    kind: str
    dim: int

    def pixels(self, image: Image.Image) -> np.ndarray:
        """An RGB image as the array this encoder takes. Called from many threads."""
        ...

    def encode(self, inputs: Sequence[Prepared], progress: bool = False) -> Vectors:
        """One row for each input; the same input gives the same vector whatever else is in the batch."""
        ...

    def state(self) -> dict[str, Tensor]:
        """What has to be saved beside the configuration: weights, and files such as a tokenizer's as uint8 tensors."""
        ...

    def config(self) -> dict[str, Any]:
        """The JSON-serialisable configuration from which `load_encoder` makes the encoder again."""
        ...
