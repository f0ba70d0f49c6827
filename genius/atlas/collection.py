"""Collection: what the atlas reads of one version of an index."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from genius.data.items import Modality
from genius.encoders.base import Prepared, Vectors
from genius.errors import GeniusError
from genius.index.index import Index
from genius.index.lance_errors import reading
from genius.index.storage import to_codes, to_matrix, vector_columns
from genius.model.genius import Genius


@dataclass(frozen=True)
class Collection:
    """The items of an index, in one order.

    Attributes:
        name: Name of the index.
        version: Its version.
        model: The model that made the codes.
        ids: Item ids.
        texts: Texts, "" where there is none.
        has_image: (n,) bool.
        modality: (n,) values of Modality.
        codes: (n, levels) uint16.
        embeddings: (n, dim) float16, or None if the index stores none.
    """

    name: str
    version: int
    model: Genius
    ids: list[str]
    texts: list[str]
    has_image: np.ndarray
    modality: np.ndarray
    codes: np.ndarray
    embeddings: np.ndarray | None

    def __len__(self) -> int:
        return len(self.ids)

    @classmethod
    def read(cls, index: Index, most: int | None = None) -> "Collection":
        """Read an index, or a random sample of at most `most` of its items, in the order of the index.

        Raises:
            GeniusError: The index is empty, or its model has no codes besides the modality.
        """
        dataset, header = index.dataset, index.header
        if len(header.sizes) == 1:
            raise GeniusError(f"The model of {index.path} has no codebooks, so that there is no code tree to show.")
        columns = ["id", "modality", "text", "image", *vector_columns(header)]
        with reading(dataset):
            size = dataset.count_rows()
            if not size:
                raise GeniusError(f"{index.path} is empty. Add items with `genius index add` first.")
            rows = sampled(size, most or size)
            whole = len(rows) == size
            table = dataset.to_table(columns=columns) if whole else dataset.take(rows.tolist(), columns=columns)
        codes = to_codes(table, header)
        labels = {one.label: int(one) for one in Modality}
        modality = np.array([labels[label] for label in table["modality"].to_pylist()])
        return cls(
            name=Path(index.path).stem,
            version=index.version,
            model=index.model,
            ids=table["id"].to_pylist(),
            texts=[text or "" for text in table["text"].to_pylist()],
            has_image=modality != Modality.TEXT,
            modality=modality,
            codes=codes,
            embeddings=to_matrix(table["embedding"]) if header.embeddings else None,
        )

    def select(self, rows: np.ndarray) -> "Collection":
        """Some items only, in the order of `rows`."""
        numbers = rows.tolist()
        return replace(
            self,
            ids=[self.ids[row] for row in numbers],
            texts=[self.texts[row] for row in numbers],
            has_image=self.has_image[rows],
            modality=self.modality[rows],
            codes=self.codes[rows],
            embeddings=None if self.embeddings is None else self.embeddings[rows],
        )

    @cached_property
    def quantized(self) -> np.ndarray:
        """(n, dim) the vectors that the codes stand for: the sums of the code vectors."""
        return self.model.quantizer.decode(self.codes)

    @cached_property
    def directions(self) -> np.ndarray:
        """(n, dim) float32 of length 1, comparable across modalities: embeddings, or quantized vectors without them."""
        if self.embeddings is not None:
            return self.embeddings.astype(np.float32)
        semantic = self.quantized - self.model.quantizer.codebooks[0][self.codes[:, 0]]
        return np.asarray(semantic / np.maximum(np.linalg.norm(semantic, axis=1, keepdims=True), 1e-12))

    def vectors(self, index: Index, rows: np.ndarray) -> Vectors:
        """The encoder's vectors of some rows.

        Embeddings of images and texts are the encoder's vectors if these have length 1. Pairs, of which only the sum of
        both vectors is stored, and items without an embedding are encoded again.
        """
        dim = self.model.dim
        image, text = np.zeros((len(rows), dim), np.float32), np.zeros((len(rows), dim), np.float32)
        again = np.ones(len(rows), bool)
        if self.embeddings is not None and _unit_vectors(self.model):
            modality = self.modality[rows]
            again = modality == Modality.IMAGE_TEXT
            for vectors, which in ((image, Modality.IMAGE), (text, Modality.TEXT)):
                vectors[modality == which] = self.embeddings[rows[modality == which]]
        items = index.get([self.ids[row] for row in rows[again].tolist()])
        known = [item for item in items if item is not None]
        if len(known) < len(items):
            raise GeniusError("The index changed while it was read. Run the command again.")
        if known:
            encoded = self.model.encode_items(known)
            image[again], text[again] = encoded.image, encoded.text
        return Vectors(image, text)


def sampled(size: int, most: int, seed: int = 0) -> np.ndarray:
    """Row numbers of a random sample of at most `most` of `size` rows, ascending."""
    if size <= most:
        return np.arange(size)
    return np.sort(np.random.default_rng(seed).choice(size, most, replace=False))


def _unit_vectors(model: Genius) -> bool:
    """Whether the encoder's vectors have length 1, so that an embedding is the vector itself."""
    vector = model.encode([Prepared(None, "A cat.")]).text
    return bool(abs(np.linalg.norm(vector) - 1) < 1e-3)
