"""The storage format of an index: one Lance dataset, `items.lance`, whose schema metadata holds a Header.

A row is an item: its content, its metadata as JSON, its codes, its embedding, and one column for each metadata field
that filters can use. Nothing here changes a dataset; `genius.index.commits` does.
"""

import hashlib
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from genius.data.items import Item, Modality
from genius.errors import BadIndex
from genius.index.lance_errors import Unreadable, folder_name, reading

FORMAT = 3
ITEMS = "items.lance"
ITEM_COLUMNS = ["id", "modality", "text", "image", "image_bytes", "metadata"]
FILTER_COLUMNS = ("id", "text", "modality", "metadata")
"""Columns that a filter may name, besides the metadata fields."""
FIELD_TYPES = {"text": pa.string(), "number": pa.float64(), "boolean": pa.bool_()}
"""Types of metadata fields, and of their columns."""
MAX_FIELDS = 256
"""Metadata fields that get a column."""

_HEADER_KEY = "genius"  # in the schema metadata


@dataclass(frozen=True)
class Header:
    """Properties of an index that are needed to read its rows. A commit changes header and rows together.

    Attributes:
        model: Argument of `Genius.from_pretrained` that loads the model; None if the model was never saved.
        fingerprint: Fingerprint of the model.
        sizes: Number of codes at each level.
        dim: Dimensions of an embedding.
        embeddings: Whether embeddings are stored.
        store_images: Whether image files are copied into the index.
        generation: How many times all items have been encoded again.
        restored: The version that went back to an earlier one last; 0 if there is none. Readers see a changed header
            and read all rows again.
        format: Version of the storage format.
    """

    model: str | None
    fingerprint: str
    sizes: tuple[int, ...]
    dim: int
    embeddings: bool
    store_images: bool
    generation: int = 0
    restored: int = 0
    format: int = FORMAT

    def __post_init__(self) -> None:
        if len(self.sizes) == 1 and not self.embeddings:
            raise BadIndex(
                "The model has no codebooks, so that an index must store embeddings to rank its items. Create the "
                "index with embeddings (without --codes-only), or use a model with codebooks."
            )

    def schema(self) -> pa.Schema:
        """Schema of the fixed columns. The columns of the metadata fields follow them."""
        columns = [
            pa.field("id", pa.string(), nullable=False, metadata={b"lance-encoding:compression": b"zstd"}),
            pa.field("modality", pa.string(), nullable=False),  # Modality.label
            pa.field("text", pa.string()),
            pa.field("image", pa.string()),  # absolute path
            pa.field("image_bytes", pa.large_binary()),  # content of the image file, if stored
            pa.field("metadata", pa.string(), nullable=False),  # JSON, the exact values
            pa.field("hash", pa.binary(16)),  # of text and image; null for items added as vectors
        ]
        # One column per level: Lance packs small integers into few bits, but not inside lists.
        columns += [pa.field(name, pa.uint16(), nullable=False) for name in code_columns(self)]
        if self.embeddings:
            columns.append(pa.field("embedding", pa.list_(pa.float16(), self.dim), nullable=False))
        return pa.schema(columns, metadata={key.encode(): text.encode() for key, text in self.metadata().items()})

    def metadata(self) -> dict[str, str]:
        """Schema metadata that holds the header."""
        return {_HEADER_KEY: json.dumps(asdict(self))}

    def accepts_rows_of(self, other: "Header") -> bool:
        """Whether rows made for the other header fit this one."""
        return self._for_rows() == other._for_rows()

    def _for_rows(self) -> "Header":
        return replace(self, model=None, generation=0, restored=0)

    @classmethod
    def of(cls, dataset: lance.LanceDataset) -> "Header":
        """Read the header of a dataset, and check that the columns match it."""
        folder = folder_name(dataset)
        with reading(dataset):
            schema = dataset.schema
        text = (schema.metadata or {}).get(_HEADER_KEY.encode())
        if text is None:
            raise BadIndex(f"{dataset.uri} is not the dataset of an index. Create one with `genius index create`.")
        try:
            values = json.loads(text)
            if values["format"] != FORMAT:
                raise other_format(folder, values["format"])
            values["sizes"] = (*values["sizes"],)
            values = {"restored": 0} | values  # headers of earlier releases have no such field
            header = cls(**{field.name: values[field.name] for field in fields(cls)})
        except (ValueError, KeyError, TypeError) as error:
            raise Unreadable(folder, dataset.version, f"its header is damaged: {error!r}") from error
        wrong = header._wrong_column(list(schema))
        if wrong is not None:
            raise Unreadable(folder, dataset.version, f"its columns do not match its header: {wrong}")
        return header

    def _wrong_column(self, columns: list[pa.Field]) -> str | None:
        expected = list(self.schema())
        for place, column in enumerate(expected):
            if place >= len(columns) or columns[place].name != column.name:
                return f"{column.name} is missing"
            if columns[place].type != column.type:
                return f"{column.name} is {columns[place].type}, and should be {column.type}"
        for column in columns[len(expected) :]:
            if column.type not in FIELD_TYPES.values():
                return f"{column.name} is {column.type}, which is not the type of a metadata field"
        return None


def code_columns(header: Header) -> list[str]:
    """Names of the columns with the codes, one per level."""
    return [f"code{level}" for level in range(len(header.sizes))]


def vector_columns(header: Header) -> list[str]:
    """Names of the columns that the model computes: codes and embedding."""
    return [*code_columns(header), "embedding"] if header.embeddings else code_columns(header)


def other_format(folder: object, version: object) -> BadIndex:
    """The error for an index of a format that this release cannot read."""
    return BadIndex(
        f"{folder} has index format {version}; this release reads format {FORMAT}. Build the index again with "
        "`genius index create`, or use the release that made it."
    )


# Items and rows


def item_to_row(item: Item, path: str | None, image: bytes | None, store_images: bool) -> dict[str, Any]:
    """Values of ITEM_COLUMNS and `hash` for an item. path, image: absolute path and content of its image file."""
    return {
        "id": item.id,
        "modality": item.modality.label,
        "text": item.text,
        "image": path,
        "image_bytes": image if store_images or path is None else None,
        "metadata": json.dumps(item.metadata, ensure_ascii=False),
        "hash": content_hash(item.text, image),
    }


def row_to_item(row: dict[str, Any]) -> Item:
    """Return the item of a row with ITEM_COLUMNS. A stored image is returned as bytes, others as paths."""
    stored = row["image_bytes"]
    try:
        metadata = json.loads(row["metadata"])
    except (ValueError, TypeError, RecursionError) as error:
        raise BadIndex(
            f"The metadata of the item {row['id']!r} is damaged. `genius index verify` lists all damage and the "
            "commands that repair it."
        ) from error
    return Item(row["id"], row["text"], row["image"] if stored is None else stored, metadata)


def content_hash(text: str | None, image: bytes | None) -> bytes:
    """Return a 16-byte hash of text and image file. An empty text counts as none."""
    digest = hashlib.blake2b(digest_size=16)
    for content in (text.encode() if text else None, image):
        part = b"" if content is None else b"+" + content
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def has_id(ids: pa.Array | pa.ChunkedArray) -> pc.Expression:
    """Filter for the rows with these item ids."""
    return pc.field("id").isin(ids)


def has_row_id(row_ids: np.ndarray) -> str:
    """Filter for the rows with these Lance row ids."""
    return f"_rowid IN ({', '.join(map(str, row_ids.tolist()))})"


def take(dataset: lance.LanceDataset, row_ids: np.ndarray, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Read the rows with these row ids, in this order."""
    return take_table(dataset, row_ids, columns).to_pylist() if len(row_ids) else []


def take_table(dataset: lance.LanceDataset, row_ids: np.ndarray, columns: Sequence[str]) -> pa.Table:
    """Like `take`, as an Arrow table."""
    with reading(dataset):
        # The only call of Lance that looks row ids up without planning a scan, which would take half as long again.
        table = dataset._take_rows(row_ids.tolist(), list(columns))
        if len(table) != len(row_ids):
            raise ValueError(f"{len(row_ids) - len(table)} of {len(row_ids)} rows are missing")
    return table


def to_codes(batch: pa.RecordBatch | pa.Table, header: Header) -> np.ndarray:
    """Convert the code columns to an array (n, levels) of uint16."""
    return np.stack([batch.column(name).to_numpy() for name in code_columns(header)], axis=1)


def to_labels(modality: np.ndarray) -> pa.Array:
    """Convert modalities (n,), as in `Vectors.modality`, to the column `modality`."""
    return pa.array([one.label for one in Modality]).take(pa.array(modality))


def to_lists(matrix: np.ndarray) -> pa.FixedSizeListArray:
    """Convert an array (n, width) to a column of fixed-size lists."""
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), matrix.shape[1])


def to_matrix(column: pa.ChunkedArray | pa.FixedSizeListArray) -> np.ndarray:
    """Convert a column of fixed-size lists to an array (n, width)."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    values = array.flatten().to_numpy(zero_copy_only=False)
    return np.asarray(values.reshape(-1, column.type.list_size))


# Metadata fields


def metadata_fields(dataset: lance.LanceDataset, header: Header) -> dict[str, str]:
    """Names and types ("text", "number" or "boolean") of the metadata fields that have a column."""
    names = {column: name for name, column in FIELD_TYPES.items()}
    return {column.name: names[column.type] for column in list(dataset.schema)[len(header.schema()) :]}


def field_columns(
    metadata: Sequence[dict[str, Any]], known: dict[str, str], reserved: Sequence[str]
) -> dict[str, pa.Array]:
    """Make the columns of known and new metadata fields.

    A new field is of type text if any row has a string in it, else number or boolean. The type never changes. A text
    column takes any string, number or boolean; other columns have null for values of another type, as all have for
    lists and objects. Fields with a name in `reserved`, or one that filters cannot quote, get no column.
    """
    found: dict[str, list[Any]] = {}
    for row in metadata:
        for name, value in row.items():
            if isinstance(value, str | bool | int | float):
                found.setdefault(name, []).append(value)
    types = dict(known)
    for name, values in found.items():
        if name not in types and len(types) < MAX_FIELDS and name.lower() not in reserved and _is_column_name(name):
            types[name] = _field_type(values)
    return {
        name: pa.array([_to_type(type, row.get(name)) for row in metadata], FIELD_TYPES[type])
        if name in found
        else pa.nulls(len(metadata), FIELD_TYPES[type])
        for name, type in types.items()
    }


def _is_column_name(name: str) -> bool:
    """Whether Lance takes the name. It reserves a leading underscore and reads a dot as a path.

    `code0`, `code1` ... stay free for models with more levels.
    """
    return (
        0 < len(name) <= 100
        and name == name.strip()
        and name.isprintable()
        and name[0] != "_"
        and not set(name) & {".", "`"}
        and not re.fullmatch(r"code\d+", name.lower())
    )


def _field_type(values: list[Any]) -> str:
    booleans = sum(isinstance(value, bool) for value in values)
    if booleans == len(values):
        return "boolean"
    return "text" if booleans or any(isinstance(value, str) for value in values) else "number"


def _to_type(type: str, value: Any) -> str | float | bool | None:
    """Convert a JSON value to a field type; None if it does not fit."""
    if isinstance(value, bool):
        return value if type == "boolean" else json.dumps(value) if type == "text" else None
    if isinstance(value, int | float):
        if type == "number":
            return float(value) if abs(value) <= sys.float_info.max else None
        return json.dumps(value) if type == "text" else None
    return value if isinstance(value, str) and type == "text" else None
