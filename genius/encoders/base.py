"""The protocol that all encoders follow, their input (`Prepared`) and their output (`Vectors`)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from PIL import Image

from genius.errors import BadModel
from genius.runtime.threads import over_blocks

ROWS = 1024  # vectors of one block: few enough to stay in the cache


@dataclass(frozen=True)
class Vectors:
    """Image and text vectors of n items or queries.

    Attributes:
        image: (n, d) float32, a row of zeros where there is no image.
        text: (n, d) float32, a row of zeros where there is no text.
    """

    image: np.ndarray
    text: np.ndarray

    def __post_init__(self) -> None:
        if self.image.shape != self.text.shape or self.image.ndim != 2:
            raise BadModel(
                f"Image vectors of shape {self.image.shape} and text vectors of shape {self.text.shape} do not "
                "match: both must be (n, d), with rows of zeros where there is no image or no text."
            )

    def __len__(self) -> int:
        return len(self.image)

    def __getitem__(self, rows: Any) -> "Vectors":
        return Vectors(self.image[rows], self.text[rows])

    @property
    def has_image(self) -> np.ndarray:
        """(n,) bool."""
        return np.asarray((self.image != 0).any(axis=1))

    @property
    def has_text(self) -> np.ndarray:
        """(n,) bool."""
        return np.asarray((self.text != 0).any(axis=1))

    @property
    def modality(self) -> np.ndarray:
        """(n,) uint8: 0 image, 1 text, 2 both (the values of `genius.data.items.Modality`)."""
        image, text = self.has_image, self.has_text
        return np.where(image & text, 2, np.where(text, 1, 0)).astype(np.uint8)

    def embedding(self, dtype: type[np.floating] = np.float32) -> np.ndarray:
        """The normalised sum of image and text vector, phi of Eq. 2: (n, d) of this type. Re-ranking compares these."""
        found = np.empty(self.image.shape, dtype)

        def work(block: slice) -> None:
            total = self.image[block] + self.text[block]
            found[block] = total / np.maximum(np.linalg.norm(total, axis=1, keepdims=True), 1e-12)

        over_blocks(work, len(self), ROWS)
        return found

    @staticmethod
    def joint(vectors: np.ndarray, has_image: np.ndarray, has_text: np.ndarray) -> "Vectors":
        """Vectors of an encoder that makes one vector of an image with its text (see `Encoder.joint`).

        The vector of an image is its image vector, that of a text its text vector. Of an image with a text, each of the
        two is half of the vector: their sum, which search and a new fusion work on, is the vector itself.

        Args:
            vectors: (n, d) one vector of each input.
            has_image: (n,) bool, whether the input has an image.
            has_text: (n,) bool, whether it has a text.
        """
        share = vectors / np.where(has_image & has_text, 2, 1)[:, None].astype(vectors.dtype)
        return Vectors(share * has_image[:, None], share * has_text[:, None])

    @staticmethod
    def concatenate(parts: Sequence["Vectors"]) -> "Vectors":
        """The rows of all parts, in order."""
        return Vectors(np.concatenate([p.image for p in parts]), np.concatenate([p.text for p in parts]))


@dataclass(frozen=True)
class Prepared:
    """One item or query as input of an encoder.

    Attributes:
        pixels: The image as `Encoder.pixels` returns it, or None.
        text: The text, "" if there is none.
    """

    pixels: np.ndarray | None
    text: str


@runtime_checkable
class Encoder(Protocol):
    """Texts and images -> vectors of one space.

    Attributes:
        kind: Name of the family in a stored configuration.
        dim: Dimensions of the vectors.
        joint: Whether an image with a text is encoded as one. Then its vectors (see `Vectors.joint`) are not those of
            the image alone and of the text alone, and evaluation and training encode every pair.
    """

    kind: str
    dim: int
    joint: bool

    def pixels(self, image: Image.Image) -> np.ndarray:
        """Convert an RGB image to the array this encoder takes. Called from many threads."""
        ...

    def encode(self, inputs: Sequence[Prepared], progress: bool = False) -> Vectors:
        """Vectors of all inputs, in order. A vector does not depend on the rest of the batch."""
        ...

    def state(self) -> dict[str, np.ndarray]:
        """Arrays to save beside the configuration: weights, and files such as a tokenizer's as uint8 arrays."""
        ...

    def config(self) -> dict[str, Any]:
        """The configuration, JSON-serialisable, from which `load_encoder` restores the encoder."""
        ...


def equal_length_batches(lengths: np.ndarray, max_tokens: int) -> Iterator[np.ndarray]:
    """Rows of texts in batches of one length (n,) and about `max_tokens` tokens, so that no text is padded."""
    for length in np.unique(lengths):
        same = np.flatnonzero(lengths == length)
        yield from np.array_split(same, -(-len(same) * int(length) // max_tokens))
