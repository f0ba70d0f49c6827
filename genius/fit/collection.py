"""The collection that a fit learns from: vectors of all items, read by rows from memory or from disk."""

import json
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from genius.data.items import Item, Modality
from genius.encoders.base import Encoder, Prepared, Vectors
from genius.errors import BadData, BadItem
from genius.fit.codebooks import Floats, Sample
from genius.model.encoder_only import encoder_only
from genius.runtime.progress import show_progress
from genius.train.files import write_json

BLOCK = 1024  # items that are encoded and stored together
VECTOR_COLUMNS = ("vector", "image_vector", "text_vector")
CHECK_BLOCK = 65_536  # rows that are checked together


@dataclass
class Collection:
    """Vectors of n items.

    Attributes:
        vectors: (n, d) sums of image and text vector, of any norm and float type. May be memory-mapped.
        modality: (n,) values of `Modality`.
        texts: (m, d) vectors of the texts of some pairs, which serve as queries.
        bad: Items that could not be read.
    """

    vectors: np.ndarray
    modality: np.ndarray
    texts: np.ndarray
    bad: list[BadItem]

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def dim(self) -> int:
        """Dimensions of the vectors."""
        return int(self.vectors.shape[1])

    def sample(self, rows: np.ndarray) -> Sample:
        """Items in some rows (m,), with normalised vectors. Sorted rows are read faster."""
        return Sample(normalised(self.vectors[rows]), self.modality[rows])

    @classmethod
    def of(cls, vectors: "Vectors | np.ndarray", modality: Modality = Modality.TEXT) -> "Collection":
        """Make a collection from vectors.

        Args:
            vectors: Image and text vectors, or one array (n, d) of floats.
            modality: Modality of all items, if an array is given.

        Raises:
            BadData: The vectors are not an array (n, d) of floats, or a row is zero or not finite.
        """
        if isinstance(vectors, Vectors):
            both = vectors.has_image & vectors.has_text
            total = vectors.image + vectors.text
            texts, modalities = vectors.text[np.flatnonzero(both)[:BLOCK]], vectors.modality
        else:
            total, texts = vectors, np.zeros((0, 0), np.float32)
            modalities = np.full(len(vectors), int(modality), np.uint8)
        if total.ndim != 2 or total.dtype.kind != "f":
            raise BadData(f"Vectors must be an array (n, d) of floats, not {total.dtype} of shape {total.shape}.")
        for start in range(0, len(total), CHECK_BLOCK):
            lengths = np.linalg.norm(np.asarray(total[start : start + CHECK_BLOCK], np.float32), axis=1)
            wrong = np.flatnonzero(~np.isfinite(lengths) | (lengths == 0))
            if len(wrong):
                raise BadData(f"The vector in row {start + wrong[0]} is zero or not finite. Leave such rows out.")
        return cls(total, modalities, texts, [])


def normalised(vectors: np.ndarray) -> Floats:
    """Vectors (n, d), divided by their norm, as float32. Zero vectors stay zero."""
    found: Floats = np.array(vectors, np.float32)
    found /= np.maximum(np.linalg.norm(found, axis=1, keepdims=True), np.float32(1e-12))
    return found


def read_vectors(path: Path, modality: Modality) -> Collection:
    """Read vectors from a file.

    Args:
        path: A .npy file with an array (n, d), or a Parquet file with the column `vector`, or with the columns
            `image_vector` and `text_vector`, null where an item has no image or no text.
        modality: Modality of all items of an array or a column `vector`.

    Raises:
        BadData: The file cannot be read, or does not hold such vectors.
    """
    try:
        if path.suffix == ".npy":
            return Collection.of(np.load(path, mmap_mode="r", allow_pickle=False), modality)
        names = [name for name in VECTOR_COLUMNS if name in pq.read_schema(path).names]
        table = pq.read_table(path, columns=names)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise BadData(f"{path} cannot be read as vectors ({error}). Give a .npy or Parquet file.") from error
    if names == ["vector"]:
        return Collection.of(_matrix(path, table["vector"])[0], modality)
    if set(names) == set(VECTOR_COLUMNS[1:]):
        (image, has_image), (text, has_text) = (_matrix(path, table[name]) for name in VECTOR_COLUMNS[1:])
        dim = max(image.shape[1], text.shape[1])
        both = []
        for part, there in ((image, has_image), (text, has_text)):
            full = np.zeros((len(table), dim), np.float32)
            full[there] = part
            both.append(full)
        return Collection.of(Vectors(*both))
    raise BadData(
        f"{path} has no column `vector`, nor the columns `image_vector` and `text_vector`. Rename its columns."
    )


def _matrix(path: Path, column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """The vectors (m, d) that are not null, and which rows (n,) bool have one."""
    there = np.asarray(column.is_valid())
    lists = column.drop_null().combine_chunks()
    if not pa.types.is_list(lists.type) and not pa.types.is_fixed_size_list(lists.type):
        raise BadData(f"{path} has vectors of type {column.type}. Store them as lists of floats.")
    values = lists.flatten().to_numpy(zero_copy_only=False)
    if not len(lists):
        return np.zeros((0, 0), np.float32), there
    if len(values) % len(lists):
        raise BadData(f"{path} has vectors of different lengths. All must have the same number of dimensions.")
    return values.reshape(len(lists), -1).astype(np.float32, copy=False), there


def is_vector_file(path: Path) -> bool:
    """Whether `read_vectors` reads a file: .npy, or Parquet with a column of vectors."""
    if path.suffix == ".npy":
        return True
    if path.suffix != ".parquet" or not path.is_file():
        return False
    try:
        return bool(set(VECTOR_COLUMNS) & set(pq.read_schema(path).names))
    except (OSError, pa.ArrowException):
        return False


# Encoding items


def encode_collection(
    items: Iterable[Item | BadItem],
    encoder: Encoder,
    folder: Path | None = None,
    progress: bool = False,
    total: int | None = None,
) -> Collection:
    """Encode items.

    Args:
        items: The items, in the same order in every call.
        encoder: The encoder.
        folder: Folder to store the vectors in, block by block. A later call continues after the last block. None: the
            vectors stay in memory.
        progress: Whether to show a progress bar.
        total: Number of items, for the progress bar.

    Returns:
        Normalised vectors as float16, memory-mapped if there is a folder. Unreadable items are listed in `bad`.
    """
    store = _Memory(encoder.dim) if folder is None else _Disk(folder, encoder.dim)
    source = iter(items)
    for _ in islice(source, store.seen):
        pass
    model = encoder_only(encoder)

    def prepare(item: Item | BadItem) -> Prepared | BadItem:
        if isinstance(item, BadItem):
            return item
        try:
            return model.prepare(item)
        except BadItem as error:
            return error

    with ThreadPoolExecutor(os.cpu_count()) as pool, show_progress("encoding", total, progress) as advance:
        advance(store.seen, len(store.bad))
        while block := list(islice(source, BLOCK)):
            ids = [item.id for item in block]
            store.put(*_encoded(encoder, ids, list(pool.map(prepare, block))), seen=len(block))
            advance(len(block), len(store.bad))
    return store.collection()


def _encoded(
    encoder: Encoder, ids: Sequence[str], block: Sequence[Prepared | BadItem]
) -> tuple[Vectors, list[BadItem]]:
    """Vectors of the readable items of a block, and the items that are left out."""
    good = [row for row, one in enumerate(block) if isinstance(one, Prepared)]
    bad = [one for one in block if isinstance(one, BadItem)]
    vectors = encoder.encode([one for one in block if isinstance(one, Prepared)])
    total = vectors.image + vectors.text
    fine = np.isfinite(total).all(1) & (total != 0).any(1)
    bad += [BadItem(ids[good[row]], "its vector is zero or not finite.") for row in np.flatnonzero(~fine)]
    return vectors[fine], bad


class _Memory:
    """Vectors of a collection in memory."""

    def __init__(self, dim: int) -> None:
        self.dim, self.seen, self.bad = dim, 0, list[BadItem]()
        self.parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def put(self, vectors: Vectors, bad: list[BadItem], seen: int) -> None:
        """Add a block of `seen` items."""
        self.parts.append(_stored(vectors))
        self.bad += bad
        self.seen += seen

    def collection(self) -> Collection:
        no_rows = np.zeros((0, self.dim), np.float16)
        empty = (no_rows, np.zeros(0, np.uint8), no_rows)
        sums, modality, texts = (np.concatenate(part) for part in zip(*(self.parts or [empty]), strict=True))
        return Collection(sums, modality, texts, self.bad)


class _Disk:
    """Vectors of a collection in files. `progress.json` records how many bytes of each file are complete."""

    def __init__(self, folder: Path, dim: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.counter, self.dim = folder, folder / "progress.json", dim
        facts = json.loads(self.counter.read_text()) if self.counter.exists() else {}
        self.seen: int = facts.get("seen", 0)
        self.bytes: dict[str, int] = facts.get("bytes", dict.fromkeys(("sums", "modality", "texts"), 0))
        self.bad = [BadItem(*one) for one in facts.get("bad", [])]

    def put(self, vectors: Vectors, bad: list[BadItem], seen: int) -> None:
        """Append a block of `seen` items. It overwrites a block that a killed process has left incomplete."""
        for name, array in zip(self.bytes, _stored(vectors), strict=True):
            path = self.folder / name
            with open(path, "r+b" if path.exists() else "w+b") as file:
                file.truncate(self.bytes[name])
                file.seek(self.bytes[name])
                file.write(np.ascontiguousarray(array).tobytes())
                file.flush()
                os.fsync(file.fileno())
            self.bytes[name] += array.nbytes
        self.bad += bad
        self.seen += seen
        facts: dict[str, Any] = {"seen": self.seen, "bytes": self.bytes}
        write_json(self.counter, facts | {"bad": [(one.id, one.reason) for one in self.bad]})

    def collection(self) -> Collection:
        def mapped(name: str, dtype: type, width: int | None) -> np.ndarray:
            size = self.bytes[name] // np.dtype(dtype).itemsize
            shape = (size,) if width is None else (size // width, width)
            return np.memmap(self.folder / name, dtype, "r", shape=shape) if size else np.zeros(shape, dtype)

        sums, texts = (mapped(name, np.float16, self.dim) for name in ("sums", "texts"))
        return Collection(sums, mapped("modality", np.uint8, None), texts, self.bad)


def _stored(vectors: Vectors) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Normalised sums (n, d) and modalities (n,) of items, and the normalised texts (m, d) of the pairs among them."""
    both = vectors.has_image & vectors.has_text
    return vectors.embedding(np.float16), vectors.modality, normalised(vectors.text[both]).astype(np.float16)
