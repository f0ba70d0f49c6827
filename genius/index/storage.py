"""How an index lies on disk: one Lance dataset, `items.lance`, whose schema carries the index's Header.

Knows the format, how items become rows and rows items, and how a change is written so that it is either wholly there or
not at all, also after a power cut. Does not know models, searching, when to write, or who else is writing.
"""

import errno
import hashlib
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from lance.fragment import FragmentMetadata, write_fragments
from lance.optimize import Compaction
from PIL import Image

from genius.data.images import load_image
from genius.data.items import Item, Modality, printable
from genius.errors import BadIndex, BadItem

FORMAT = 3
ITEMS = "items.lance"
ROWS = 65_536  # of a file that is large enough
PILE = 32  # small files that are merged as soon as there are so many
BYTES = 1 << 26  # of files that are merged without being asked to
FIELDS = 256  # metadata fields with a column of their own
KINDS = {"text": pa.string(), "number": pa.float64(), "boolean": pa.bool_()}
"""What the values of a metadata field can be in a condition, and the type of their column."""
OPEN_COLUMNS = ("id", "text", "modality", "metadata")  # what a condition may name beside the metadata fields
ITEM_COLUMNS = ["id", "modality", "text", "image", "image_bytes", "metadata"]
_HEADER = b"genius"  # its key in the schema's metadata
_CHANGING = ("data", "_deletions", "_transactions", "_versions")  # folders of a dataset that a change writes to
_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "there is no permission: the folder is read-only for you",
}
_ANEW = "Restore it from a copy, or build the index anew."


@dataclass(frozen=True)
class Header:
    """What must be known before the items can be read. It changes in the same step as the rows it describes.

    model: what `Genius.from_pretrained` needs to load the model again: "mini", or a folder; None if it was never saved.
    generation: how often all items have been encoded anew.
    """

    model: str | None
    fingerprint: str
    sizes: tuple[int, ...]
    dim: int
    embeddings: bool
    store_images: bool
    generation: int = 0
    format: int = FORMAT

    def schema(self) -> pa.Schema:
        """The columns of `items.lance` that every index has. Behind them stand the columns of metadata fields."""
        columns = [
            pa.field("id", pa.string(), nullable=False, metadata={b"lance-encoding:compression": b"zstd"}),
            pa.field("modality", pa.string(), nullable=False),  # its label
            pa.field("text", pa.string()),
            pa.field("image", pa.string()),  # absolute path
            pa.field("image_bytes", pa.large_binary()),  # the image itself, where it is kept
            pa.field("metadata", pa.string(), nullable=False),  # JSON: exact, whatever the columns behind make of it
            pa.field("hash", pa.binary(16)),  # of text and image; null where an item was added as a ready vector
        ]
        # One column a level: Lance packs small numbers into as few bits as they need, but not those of lists.
        columns += [pa.field(name, pa.uint16(), nullable=False) for name in code_columns(self)]
        if self.embeddings:
            columns.append(pa.field("embedding", pa.list_(pa.float16(), self.dim), nullable=False))
        return pa.schema(columns, metadata={_HEADER: json.dumps(asdict(self)).encode()})

    def takes_rows_of(self, other: "Header") -> bool:
        """Whether rows that were made for the other header fit this one."""
        return replace(self, model=None, generation=0) == replace(other, model=None, generation=0)

    @classmethod
    def of(cls, dataset: lance.LanceDataset) -> "Header":
        """The header of an open dataset, which must have the columns that it promises."""
        path = Path(dataset.uri)
        text = (dataset.schema.metadata or {}).get(_HEADER)
        if text is None:
            raise BadIndex(f"{path} is not the dataset of an index. Create one with `genius index create`.")
        try:
            values = json.loads(text)
            version = values["format"]
            if version == FORMAT:
                values["sizes"] = (*values["sizes"],)
                header = cls(**{field.name: values[field.name] for field in fields(cls)})
        except (ValueError, KeyError, TypeError) as error:
            raise BadIndex(f"The header of {path} is damaged ({error!r}). {_ANEW}") from error
        if version != FORMAT:
            raise _other_format(path.parent, version)
        wrong = header._wrong_column(list(dataset.schema))
        if wrong is not None:
            raise BadIndex(f"The columns of {path} do not belong to its header: {wrong}. {_ANEW}")
        return header

    def _wrong_column(self, columns: list[pa.Field]) -> str | None:
        promised = list(self.schema())
        for place, column in enumerate(promised):
            if place >= len(columns) or columns[place].name != column.name:
                return f"{column.name} is missing"
            if columns[place].type != column.type:
                return f"{column.name} is {columns[place].type}, and should be {column.type}"
        for column in columns[len(promised) :]:
            if column.type not in KINDS.values():
                return f"{column.name} is {column.type}, which is no metadata field"
        return None


def code_columns(header: Header) -> list[str]:
    return [f"code{level}" for level in range(len(header.sizes))]


# Datasets


def create_dataset(folder: Path, header: Header) -> lance.LanceDataset:
    """A dataset without items in this folder."""
    files = _Files(folder / ITEMS)
    dataset = lance.write_dataset(
        header.schema().empty_table(),
        folder / ITEMS,
        mode="create",
        enable_stable_row_ids=True,
        data_storage_version="2.1",
    )
    files.sync()
    return dataset


def open_dataset(folder: Path, version: int | None = None) -> lance.LanceDataset:
    """The items of the index in this folder, as they are now or were in a version."""
    path = folder / ITEMS
    if not folder.exists():
        raise BadIndex(f"There is no index at {folder}. Create one with `genius index create`.")
    if (folder / "index.json").is_file():
        raise _other_format(folder, _old_format(folder / "index.json"))
    if not path.is_dir():
        raise BadIndex(f"{folder} is not an index: it has no {ITEMS}. Create one with `genius index create`.")
    try:
        dataset = lance.dataset(path)
    except (OSError, ValueError) as error:
        raise BadIndex(f"{path} cannot be opened ({error}). {_ANEW}") from error
    if version is None:
        return dataset
    try:
        return dataset.checkout_version(version)
    except (OSError, ValueError) as error:
        raise BadIndex(
            f"{folder} has no version {version}, or no longer. `genius index versions` lists those that it has."
        ) from error


def _old_format(file: Path) -> object:
    try:
        return json.loads(file.read_text(encoding="utf-8"))["format"]
    except (OSError, ValueError, KeyError, TypeError):
        return "2 or older"


def _other_format(folder: Path, version: object) -> BadIndex:
    return BadIndex(
        f"{folder} has index format {version}, this version reads {FORMAT}. Build it anew with "
        "`genius index create`, or use the version that made it."
    )


# Changes


def change(dataset: lance.LanceDataset, gone: np.ndarray, table: pa.Table | None) -> lance.LanceDataset:
    """The dataset without the rows that have these row ids, and with those of the table behind, in one step."""
    files = _Files(dataset.uri)
    updated: list[FragmentMetadata] = []
    emptied: list[int] = []
    if len(gone):
        where = _has_row_id(gone)
        places = dataset.to_table(columns=["_rowaddr"], filter=where)["_rowaddr"].to_numpy()
        numbers = set(np.unique(places >> 32).tolist())
        for fragment in dataset.get_fragments():
            if fragment.fragment_id in numbers:
                left = fragment.delete(where)
                emptied += [fragment.fragment_id] if left is None else []
                updated += [] if left is None else [left]
    added = [] if table is None else write_fragments(table, dataset, mode="append")
    if not len(gone):
        return files.commit(dataset, lance.LanceOperation.Append(added))
    if not added:
        return files.commit(dataset, lance.LanceOperation.Delete(updated, emptied, "_rowid IN (...)"))
    return files.commit(dataset, lance.LanceOperation.Update(emptied, updated, added))


def drop_fragments(dataset: lance.LanceDataset, numbers: Sequence[int]) -> lance.LanceDataset:
    """The dataset without these fragments, whether they can be read or not."""
    return _Files(dataset.uri).commit(dataset, lance.LanceOperation.Delete([], list(numbers), "damaged"))


def add_fields(dataset: lance.LanceDataset, columns: Sequence[pa.Field]) -> lance.LanceDataset:
    """The dataset with columns that are null everywhere."""
    files = _Files(dataset.uri)
    changed = dataset.checkout_version(dataset.version)  # a copy: the other one is somebody's snapshot
    changed.add_columns(list(columns))
    files.sync()
    return changed


def replace_all(dataset: lance.LanceDataset, header: Header, tables: Iterable[pa.Table]) -> lance.LanceDataset:
    """The dataset with other rows and another header. The tables have the header's columns, then the present fields."""
    files = _Files(dataset.uri)
    behind = list(dataset.schema)[len(Header.of(dataset).schema()) :]
    schema = pa.schema([*header.schema(), *behind], metadata=header.schema().metadata)
    added: list[FragmentMetadata] = []
    for table in tables:
        added += write_fragments(
            table.cast(schema),
            dataset.uri,
            mode="overwrite",
            enable_stable_row_ids=True,
            data_storage_version="2.1",
        )
    return files.commit(dataset, lance.LanceOperation.Overwrite(schema, added))


@dataclass(frozen=True)
class CompactReport:
    """What compacting did: small files merged into others, versions removed, and the bytes that are free again."""

    files_merged: int
    versions_removed: int
    bytes_removed: int


def compact(dataset: lance.LanceDataset, keep: timedelta | None) -> tuple[lance.LanceDataset, CompactReport]:
    """The same items in fewer files; versions older than `keep`, and files that belong to none, are removed."""
    files = _Files(dataset.uri)
    before = len(dataset.get_fragments())
    merged = _merged(dataset, files, ROWS)
    changed = dataset if merged is None else merged
    removed = changed.cleanup_old_versions(
        older_than=timedelta(days=36500) if keep is None else keep,
        delete_unverified=True,
        error_if_tagged_old_versions=False,
    )
    return changed, CompactReport(before - len(changed.get_fragments()), removed.old_versions, removed.bytes_removed)


def merge_small(dataset: lance.LanceDataset) -> lance.LanceDataset | None:
    """The same items with small files merged, if there are many of them; None if there are not.

    First the smallest among themselves, then what came of them: no item is moved often, and none if images make its
    file a large one.
    """
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    for rows in (ROWS // PILE // 2, ROWS):
        small = [one for one in fragments if one.physical_rows < rows]
        size = sum(file.file_size_bytes or 0 for one in small for file in one.files)
        held = sum(one.physical_rows for one in small)
        rows = min(rows, BYTES * held // max(1, size))
        if sum(one.physical_rows < rows for one in small) >= PILE:
            return _merged(dataset, _Files(dataset.uri), rows)
    return None


def _merged(dataset: lance.LanceDataset, files: "_Files", rows: int) -> lance.LanceDataset | None:
    """With files of fewer rows merged into some of so many; None if there is nothing to merge."""
    plan = Compaction.plan(dataset, {"target_rows_per_fragment": rows})
    if not plan.num_tasks():
        return None
    done = [task.execute(dataset) for task in plan.tasks]
    files.sync()
    changed = dataset.checkout_version(dataset.version)  # a copy: the other one is somebody's snapshot
    Compaction.commit(changed, done)
    files.sync()
    return changed.checkout_version(changed.latest_version)


class _Files:
    """The files of a dataset. New ones are written through to the disk, which Lance leaves to the system."""

    def __init__(self, dataset_path: str | Path) -> None:
        self._root = str(dataset_path)
        self._synced = self._all()

    def _all(self) -> set[str]:
        folders = [self._root, *(os.path.join(self._root, name) for name in _CHANGING)]
        there = [folder for folder in folders if os.path.isdir(folder)]
        return {*there, *(f"{folder}{os.sep}{name}" for folder in there for name in os.listdir(folder))}

    def sync(self) -> None:
        new = self._all() - self._synced
        for path in [*new, *{os.path.dirname(path) for path in new}]:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        self._synced |= new

    def commit(self, dataset: lance.LanceDataset, operation: lance.LanceOperation.BaseOperation) -> lance.LanceDataset:
        """The files first, then the manifest that names them: a power cut leaves the old version or the new one."""
        self.sync()
        changed = lance.LanceDataset.commit(
            dataset, operation, read_version=dataset.version, enable_stable_row_ids=True, max_retries=0
        )
        self.sync()
        return changed


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """What goes wrong on the disk, as a sentence."""
    try:
        yield
    except OSError as error:
        raise BadIndex(
            f"{folder} could not be written to ({_reason(error)}). What was written before is safe; check the disk's "
            "space and permissions, then repeat the command."
        ) from error


def _reason(error: OSError) -> str:
    """Lance's errors have their number in the text only."""
    for number, reason in _REASONS.items():
        if error.errno == number or f"os error {number})" in str(error):
            return reason
    return str(error)


# Rows


def take(dataset: lance.LanceDataset, row_ids: np.ndarray, columns: Sequence[str]) -> list[dict[str, Any]]:
    """The rows that have these row ids, in their order."""
    if not len(row_ids):
        return []
    table = dataset.to_table(columns=list(columns), filter=_has_row_id(row_ids), with_row_id=True)
    place = {row_id: place for place, row_id in enumerate(table.column("_rowid").to_pylist())}
    rows = table.drop_columns("_rowid").to_pylist()
    return [rows[place[row_id]] for row_id in row_ids.tolist()]


def has_id(ids: pa.Array | pa.ChunkedArray) -> pc.Expression:
    """Filter for the rows with these ids."""
    return pc.field("id").isin(ids)


def _has_row_id(row_ids: np.ndarray) -> str:
    return f"_rowid IN ({', '.join(map(str, row_ids.tolist()))})"


def item_to_row(item: Item, store_images: bool) -> dict[str, Any]:
    """The columns of an item that do not depend on the model."""
    path, image = _read_image(item)
    keep = store_images or path is None
    return {
        "id": item.id,
        "modality": item.modality.label,
        "text": item.text,
        "image": path,
        "image_bytes": image if keep else None,
        "metadata": json.dumps(item.metadata, ensure_ascii=False),
        "hash": content_hash(item.text, image),
    }


def row_to_item(row: dict[str, Any]) -> Item:
    """The item of a row with ITEM_COLUMNS; a kept image comes back as bytes, any other as its path."""
    kept = row["image_bytes"]
    return Item(row["id"], row["text"], row["image"] if kept is None else kept, json.loads(row["metadata"]))


def metadata_fields(dataset: lance.LanceDataset, header: Header) -> dict[str, str]:
    """The metadata fields that have a column, and the kind of each."""
    kinds = {type: kind for kind, type in KINDS.items()}
    return {column.name: kinds[column.type] for column in list(dataset.schema)[len(header.schema()) :]}


def field_columns(metadata: pa.ChunkedArray, known: dict[str, str], reserved: Sequence[str]) -> dict[str, pa.Array]:
    """Columns for the fields of some items' metadata, so that conditions can name them: of the known and of new ones.

    A field that is not known becomes text if any of the items has text in it, otherwise a number or a boolean, and
    stays what it is. Any value can be put as text; what is no number in a field of numbers, or no boolean in one of
    booleans, is null, as are lists and objects. A field with a name that is `reserved` or cannot be quoted gets none.
    """
    different = metadata.combine_chunks().dictionary_encode()  # often all are the same
    records = [json.loads(one) for one in different.dictionary.to_pylist()]
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
        name: pa.array([_as(kind, record.get(name)) for record in records], KINDS[kind]).take(different.indices)
        if name in found
        else pa.nulls(len(metadata), KINDS[kind])
        for name, kind in kinds.items()
    }


def _can_be_named(name: str) -> bool:
    """Lance keeps names that begin with an underscore for itself, and cannot tell a dot from a path.

    A model that comes later may have more levels, and so more columns of codes.
    """
    return (
        0 < len(name) <= 100
        and name == name.strip()
        and name.isprintable()
        and name[0] != "_"
        and not set(name) & {".", "`"}
        and not re.fullmatch(r"code\d+", name.lower())
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


def _read_image(item: Item) -> tuple[str | None, bytes | None]:
    """Absolute path (None unless the image is a file) and bytes (None without an image)."""
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


def content_hash(text: str | None, image: bytes | None) -> bytes:
    """16 bytes that differ whenever text or image do."""
    parts = [b"" if part is None else b"+" + part for part in ((text.encode() if text else None), image)]
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def to_codes(batch: pa.RecordBatch | pa.Table, header: Header) -> np.ndarray:
    """The code columns of some rows -> (n, levels) uint16."""
    return np.stack([batch.column(name).to_numpy() for name in code_columns(header)], axis=1)


def labels(modality: np.ndarray) -> pa.Array:
    """The column `modality` of items of these kinds, as `Vectors.modality` gives them."""
    return pa.array([kind.label for kind in Modality]).take(pa.array(modality))


def to_lists(matrix: np.ndarray) -> pa.FixedSizeListArray:
    """(n, width) -> a column of fixed-size lists."""
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), matrix.shape[1])


def to_matrix(column: pa.ChunkedArray | pa.FixedSizeListArray) -> np.ndarray:
    """A column of fixed-size lists -> (n, width)."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array.flatten().to_numpy(zero_copy_only=False).reshape(-1, column.type.list_size)
