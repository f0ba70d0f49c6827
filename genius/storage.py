"""How an index lies on disk: `index.json` (Header) and the columns of `items.lance`.

Knows the format, and how items become rows and rows items. Does not know models, searching, or when to write.
"""

import hashlib
import io
import json
import os
import sys
import uuid
from collections.abc import Sequence
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

FORMAT = 2
FIELDS = 256  # metadata fields with a column of their own
KINDS = {"text": pa.string(), "number": pa.float64(), "boolean": pa.bool_()}
"""What the values of a metadata field can be in a condition, and the type of their column."""
OPEN_COLUMNS = ("id", "text", "modality", "metadata")  # what a condition may name beside the metadata fields
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
            f"{folder} has index format {version}, this version reads {FORMAT}. Build it anew with "
            "`genius index create`, or use the version that made it."
        )

    def schema(self) -> pa.Schema:
        """The columns of `items.lance` that every index has. Behind them stand the columns of metadata fields."""
        columns = [
            pa.field("id", pa.string(), nullable=False),
            pa.field("modality", pa.string(), nullable=False),  # its label
            pa.field("text", pa.string()),
            pa.field("image", pa.string()),  # absolute path
            pa.field("image_bytes", pa.large_binary()),  # the picture itself, where it is kept
            pa.field("metadata", pa.string(), nullable=False),  # JSON: exact, whatever the columns behind make of it
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
    columns, schema = list(dataset.schema), header.schema()
    if columns[: len(schema)] != list(schema) or any(
        column.type not in KINDS.values() for column in columns[len(schema) :]
    ):
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
        "modality": item.modality.label,
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


def metadata_fields(dataset: lance.LanceDataset, header: Header) -> dict[str, str]:
    """The metadata fields that have a column, and the kind of each."""
    kinds = {type: kind for kind, type in KINDS.items()}
    return {column.name: kinds[column.type] for column in list(dataset.schema)[len(header.schema()) :]}


def field_columns(metadata: Sequence[str], known: dict[str, str], reserved: Sequence[str]) -> dict[str, pa.Array]:
    """Columns for the fields of some items' metadata, so that conditions can name them: of the known and of new ones.

    A field that is not known becomes text if any of the items has text in it, otherwise a number or a boolean, and
    stays what it is. Any value can be put as text; what is no number in a field of numbers, or no boolean in one of
    booleans, is null, as are lists and objects. A field with a name that is `reserved` or cannot be quoted gets none.
    """
    records = [json.loads(one) for one in metadata]
    found: dict[str, list[Any]] = {}
    for record in records:
        for name, value in record.items():
            if isinstance(value, str | bool | int | float):
                found.setdefault(name, []).append(value)
    kinds = dict(known)
    for name, values in found.items():
        if name not in kinds and len(kinds) < FIELDS and name.lower() not in reserved and _can_be_named(name):
            kinds[name] = _kind(values)
    return {
        name: pa.array([_as(kind, record.get(name)) for record in records], KINDS[kind])
        if name in found
        else pa.nulls(len(records), KINDS[kind])
        for name, kind in kinds.items()
    }


def _can_be_named(name: str) -> bool:
    """Lance keeps names that begin with an underscore for itself, and cannot tell a dot from a path."""
    return (
        0 < len(name) <= 100
        and name == name.strip()
        and name.isprintable()
        and name[0] != "_"
        and not set(name) & {".", "`"}
    )


def _kind(values: list[Any]) -> str:
    booleans = sum(isinstance(value, bool) for value in values)
    if booleans == len(values):
        return "boolean"
    return "text" if booleans or any(isinstance(value, str) for value in values) else "number"


def _as(kind: str, value: Any) -> str | float | bool | None:
    """A JSON value in a column of this kind."""
    if isinstance(value, bool):
        return value if kind == "boolean" else json.dumps(value) if kind == "text" else None
    if isinstance(value, int | float):
        if kind == "number":
            return float(value) if abs(value) <= sys.float_info.max else None
        return json.dumps(value) if kind == "text" else None
    return value if isinstance(value, str) and kind == "text" else None


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
