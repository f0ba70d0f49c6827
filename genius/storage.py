"""How an index lies on disk: `index.json` (Header) and the columns of `items.lance`.

Knows the format, and how items become rows and rows items. Does not know models, searching, or when to write.
"""

import hashlib
import io
import json
import os
import uuid
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image

from genius.errors import BadIndex, BadItem
from genius.images import load_image
from genius.items import Item, printable

FORMAT = 1
ITEM_COLUMNS = ["id", "modality", "text", "image", "image_bytes", "metadata", "codes"]
_ANEW = "Restore it from a copy, or build the index anew."


@dataclass(frozen=True)
class Header:
    """`index.json`: what must be known before the items can be read.

    model: what `Genius.from_pretrained` needs to load the model again: "mini", or a folder; None if it was never saved.
    """

    model: str | None
    fingerprint: str
    sizes: tuple[int, ...]
    dim: int
    embeddings: bool
    store_images: bool
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        temporary = folder / f"index.json.{uuid.uuid4().hex}"
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(asdict(self), file, indent=2)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, folder / "index.json")
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def read(cls, folder: Path) -> "Header":
        file = folder / "index.json"
        if not file.is_file():
            raise BadIndex(f"{folder} is not an index: it has no index.json. Create one with `genius index create`.")
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
            version = values["format"]
            if version == FORMAT:
                return cls(**{field.name: values[field.name] for field in fields(cls)} | {"sizes": (*values["sizes"],)})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadIndex(f"{file} is damaged ({error!r}). {_ANEW}") from error
        raise BadIndex(
            f"{folder} has index format {version}, this version reads {FORMAT}. Use the version that made it."
        )

    def schema(self) -> pa.Schema:
        """The columns of `items.lance`."""
        columns = [
            pa.field("id", pa.string(), nullable=False),
            pa.field("modality", pa.uint8(), nullable=False),
            pa.field("text", pa.string()),
            pa.field("image", pa.string()),  # absolute path
            pa.field("image_bytes", pa.large_binary()),  # the picture itself, where it is kept
            pa.field("metadata", pa.string(), nullable=False),  # JSON
            pa.field("hash", pa.binary(16), nullable=False),  # of text and picture: what the vector depends on
            pa.field("codes", pa.list_(pa.uint16(), len(self.sizes)), nullable=False),
        ]
        if self.embeddings:
            columns.append(pa.field("embedding", pa.list_(pa.float16(), self.dim), nullable=False))
        return pa.schema(columns)


def open_dataset(folder: Path, header: Header) -> lance.LanceDataset:
    """The items of the index, as its header describes them."""
    path = folder / "items.lance"
    try:
        dataset = lance.dataset(path)
    except (OSError, ValueError) as error:
        raise BadIndex(f"{path} cannot be opened ({error}). {_ANEW}") from error
    if dataset.schema != header.schema():
        raise BadIndex(f"{path} does not belong to the index.json beside it. {_ANEW}")
    return dataset


def has_id(ids: list[str]) -> pc.Expression:
    """Filter for the rows with these ids."""
    return pc.field("id").isin(pa.array(ids, pa.string()))


def item_to_row(item: Item, store_images: bool) -> dict[str, Any]:
    """The columns of an item that do not depend on the model."""
    path, picture = _read_picture(item)
    keep = store_images or path is None
    return {
        "id": item.id,
        "modality": int(item.modality),
        "text": item.text,
        "image": path,
        "image_bytes": picture if keep else None,
        "metadata": json.dumps(item.metadata, ensure_ascii=False),
        "hash": _digest(item.text, picture),
    }


def row_to_item(row: dict[str, Any]) -> Item:
    """The item of a row with ITEM_COLUMNS; a kept picture comes back as bytes, any other as its path."""
    kept = row["image_bytes"]
    return Item(row["id"], row["text"], row["image"] if kept is None else kept, json.loads(row["metadata"]))


def _read_picture(item: Item) -> tuple[str | None, bytes | None]:
    """Absolute path (None unless the picture is a file) and bytes (None without a picture)."""
    if item.image is None:
        return None, None
    if isinstance(item.image, bytes):
        return None, item.image
    if isinstance(item.image, Image.Image):
        png = io.BytesIO()
        load_image(item.image).save(png, "PNG")
        return None, png.getvalue()
    path = os.path.abspath(item.image)
    if printable(path) != path:
        raise BadItem(item.id, f"the file name {printable(path)!r} is not valid Unicode. Rename the file.")
    try:
        return path, Path(path).read_bytes()
    except OSError as error:
        raise BadItem(item.id, f"{path} cannot be read ({error.strerror}). Check its permissions.") from error


def _digest(text: str | None, picture: bytes | None) -> bytes:
    """16 bytes that differ whenever text or picture do."""
    parts = [b"" if part is None else b"+" + part for part in ((text.encode() if text else None), picture)]
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def to_lists(matrix: np.ndarray) -> pa.FixedSizeListArray:
    """(n, width) -> a column of fixed-size lists."""
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), matrix.shape[1])


def to_matrix(column: pa.ChunkedArray | pa.FixedSizeListArray) -> np.ndarray:
    """A column of fixed-size lists -> (n, width)."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array.flatten().to_numpy(zero_copy_only=False).reshape(-1, column.type.list_size)


def read_matrix(dataset: lance.LanceDataset, column: str) -> np.ndarray:
    """A whole column of fixed-size lists, (n, width), in the dataset's order; no second copy on the way."""
    kind = dataset.schema.field(column).type
    matrix = np.empty((dataset.count_rows(), kind.list_size), kind.value_type.to_pandas_dtype())
    start = 0
    for batch in dataset.to_batches(columns=[column]):
        matrix[start : start + len(batch)] = to_matrix(batch[column])
        start += len(batch)
    return matrix
