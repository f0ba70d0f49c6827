"""Adding items to an index: read, compare with the stored items, encode, commit.

Items are encoded in batches and committed some 2,000 at a time, so memory does not grow with the number of items. Slow
encoders commit every 30 seconds, and an interrupted call commits what it has encoded. Unchanged items are not encoded
again: to complete an interrupted call, repeat it.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, compress
from typing import Any, NamedTuple, Self

import lance
import numpy as np
import pyarrow as pa

from genius.data.images import image_bytes
from genius.data.items import Item, printable
from genius.data.locations import absolute
from genius.encoders.base import Prepared, Vectors
from genius.errors import BadImage, BadIndex, BadItem, GeniusError
from genius.index.session import Session
from genius.index.snapshot import Snapshot
from genius.index.storage import (
    ITEM_COLUMNS,
    Header,
    item_to_row,
    take,
    take_table,
    to_lists,
    vector_columns,
)
from genius.model.genius import Genius
from genius.runtime.progress import show_progress
from genius.runtime.wording import counted
from genius.search.results import AddReport

BATCH = 128
"""Items that are encoded together."""
COMMIT = 2048
"""Rows that are committed together. Every commit makes a file and a version."""
COMMIT_SECONDS = 30.0
"""Encoded rows are committed after this time, also if they are few."""
NOT_FINITE = "its vector has values that are not finite (NaN). Check the image and the weights of the model."

COMPARED = ["hash", "metadata", "image"]
"""Columns that are equal in unchanged items."""
TAKEN = "the index has another item with this id. Use upsert to replace it."

OnCommit = Callable[[list[str]], None]


class AddInterrupted(KeyboardInterrupt):
    """Ctrl-C during an addition. All encoded items are committed; `report` counts them."""

    def __init__(self, report: AddReport) -> None:
        super().__init__(
            f"Interrupted after {counted(report.added, 'item')}, all committed. Repeat the call to add the rest."
        )
        self.report = report


def add_items(
    session: Session,
    items: Iterable[Item | BadItem],
    replace: bool,
    progress: bool = False,
    on_commit: OnCommit | None = None,
    total: int | None = None,
) -> AddReport:
    """Add items. An item whose id is taken replaces the stored one, or is refused. See `Index.add`."""
    session.prepare_writing()
    ingest = _Ingest(session, replace, on_commit)
    if total is None and isinstance(items, Sized):
        total = len(items)
    with ThreadPoolExecutor(os.cpu_count()) as pool, show_progress("indexing", total, progress) as advance:
        try:
            for batch in _batches(items, BATCH):
                ingest.add(batch, pool)
                advance(len(batch), len(ingest.report.bad))
            ingest.commit()
        except KeyboardInterrupt:
            ingest.commit()
            raise AddInterrupted(ingest.report) from None
        except Exception:  # also of the source of the items: what was encoded before is not lost
            ingest.commit()
            raise
    return ingest.report


def _batches(items: Iterable[Item | BadItem], size: int) -> Iterator[list[Item | BadItem]]:
    """Split items into lists without repeated ids."""
    batch: list[Item | BadItem] = []
    ids: set[str] = set()
    for item in items:
        if len(batch) == size or (isinstance(item, Item) and item.id in ids):
            yield batch
            batch, ids = [], set()
        batch.append(item)
        if isinstance(item, Item):
            ids.add(item.id)
    if batch:
        yield batch


@dataclass(frozen=True)
class ReadItem:
    """An item and the content of its image file, read once: hash and pixels come from the same bytes."""

    item: Item
    path: str | None
    image: bytes | None

    @classmethod
    def read(cls, item: Item) -> Self:
        """Read the image of an item. Raises BadItem if the item has no content or its image cannot be read."""
        item.modality  # noqa: B018 (raises for an item without content)
        try:
            image = None if item.image is None else image_bytes(item.image)
        except BadImage as error:
            raise BadItem(item.id, str(error)) from error
        path = absolute(item.image) if isinstance(item.image, str | os.PathLike) else None
        if path is not None and printable(path) != path:
            raise BadItem(item.id, f"the file name {printable(path)!r} is not valid Unicode. Rename the file.")
        return cls(item, path, image)

    def row(self, header: Header) -> dict[str, Any]:
        """Return the columns that do not depend on the model."""
        return item_to_row(self.item, self.path, self.image, header.store_images)

    def prepare(self, model: Genius) -> Prepared:
        """Decode the content for the model's encoder."""
        name = None if self.path is None else os.fspath(self.item.image)  # type: ignore[arg-type]
        return model.prepare(Item(self.item.id, self.item.text, self.image), name)


def prepare_item(item: Item | BadItem, header: Header, model: Genius) -> "NewRow | BadItem":
    """Read and decode an item of an index that holds no item with its id."""
    if isinstance(item, BadItem):
        return item
    try:
        read = ReadItem.read(item)
        return NewRow(read.row(header), item.metadata, [], read.prepare(model))
    except BadItem as error:
        return error
    except GeniusError as error:
        return BadItem(item.id, str(error))


@dataclass(frozen=True)
class NewRow:
    """An item on its way into the index."""

    values: dict[str, Any]  # the columns that do not depend on the model
    metadata: dict[str, Any]
    replaces: list[int]  # row ids of the stored item with the same id
    prepared: Prepared | None  # None if the stored vectors are still right


class _EncodedBatch(NamedTuple):
    """Rows on their way to the next commit."""

    table: pa.Table
    metadata: list[dict[str, Any]]
    stored: dict[str, list[int]]  # row ids of the stored items with the same id
    version: int  # in which these were looked up


class _Ingest:
    """State of one `add_items` call: `add` encodes a batch, `commit` writes the encoded rows."""

    def __init__(self, session: Session, replace: bool, on_commit: OnCommit | None) -> None:
        self.session, self.replace, self.on_commit = session, replace, on_commit
        snapshot = session.snapshot
        self.header, self.model = snapshot.header, snapshot.model  # loads the model before the first item is read
        self.report = AddReport()
        self._start_commit()

    def _start_commit(self) -> None:
        self.encoded: list[_EncodedBatch] = []
        self.ids: set[str] = set()
        self.since = time.monotonic()

    def add(self, batch: list[Item | BadItem], pool: ThreadPoolExecutor) -> None:
        """Read, compare and encode items with different ids."""
        ids = [item.id for item in batch if isinstance(item, Item)]
        if not self.ids.isdisjoint(ids):  # commit first: an item is compared with the one that it replaces
            self.commit()
        snapshot = self.session.snapshot
        stored = snapshot.find(ids)
        old = old_rows(snapshot, stored, COMPARED)
        rows: list[NewRow] = []
        for row in pool.map(lambda item: self._prepare(item, stored, old), batch):
            if isinstance(row, BadItem):
                self.report.bad.append(row)
            elif row is None:
                self.report.unchanged += 1
            else:
                rows.append(row)
        self._encode(rows, snapshot)
        if len(self.ids) >= COMMIT or time.monotonic() - self.since >= COMMIT_SECONDS:
            self.commit()

    def _prepare(
        self, item: Item | BadItem, stored: dict[str, list[int]], old: dict[str, dict[str, Any]]
    ) -> NewRow | BadItem | None:
        """Read an item and compare it with the stored one; None if it is unchanged. Runs in a thread."""
        if isinstance(item, BadItem):
            return item
        try:
            read = ReadItem.read(item)
            values, before = read.row(self.header), old.get(item.id)
            if before is None:
                return NewRow(values, item.metadata, [], read.prepare(self.model))
            if all(values[name] == before[name] for name in COMPARED):
                return None
            if not self.replace:
                return BadItem(item.id, TAKEN)
            prepared = None if values["hash"] == before["hash"] else read.prepare(self.model)
            return NewRow(values, item.metadata, stored[item.id], prepared)
        except BadItem as error:
            return error
        except GeniusError as error:
            return BadItem(item.id, str(error))

    def _encode(self, rows: list[NewRow], snapshot: Snapshot) -> None:
        """Encode rows and keep them for the next commit."""
        vectors, rows, refused = encode_rows(self.model, self.header, rows)
        self.report.bad += refused
        is_new = np.array([row.prepared is not None for row in rows], bool)
        kept = np.array([row.replaces[0] for row in rows if row.prepared is None], np.int64)
        vectors = with_stored_vectors(vectors, is_new, snapshot.dataset, kept)
        table, metadata = rows_to_table(self.header, rows, vectors), [row.metadata for row in rows]
        stored = {row.values["id"]: row.replaces for row in rows if row.replaces}
        self.ids.update(row.values["id"] for row in rows)
        # One operation: an interrupt leaves a batch here complete or not at all.
        self.encoded.append(_EncodedBatch(table, metadata, stored, snapshot.version))

    def commit(self) -> None:
        """Write the encoded rows. After an error they are dropped, after an interrupt they can be committed again."""
        try:
            if any(len(batch.table) for batch in self.encoded):
                versions = {batch.version for batch in self.encoded}
                rows = EncodedRows(
                    pa.concat_tables([batch.table for batch in self.encoded]),
                    [one for batch in self.encoded for one in batch.metadata],
                    {id: row_ids for batch in self.encoded for id, row_ids in batch.stored.items()},
                    versions.pop() if len(versions) == 1 else None,
                )
                write(self.session, self.header, rows, self.replace, COMPARED, self.report, self.on_commit)
        except Exception:
            self._start_commit()
            raise
        self._start_commit()


# Encoding


def encode(model: Genius, header: Header, prepared: Sequence[Prepared]) -> tuple[pa.Table, np.ndarray]:
    """Encode items. Returns the vector columns of items with finite vectors, and which items these are: (n,) bool."""
    vectors = model.encode(prepared)
    finite = is_finite(vectors)
    return vector_table(model, header, vectors if finite.all() else vectors[finite]), finite


def encode_rows(model: Genius, header: Header, rows: Sequence[NewRow]) -> tuple[pa.Table, list[NewRow], list[BadItem]]:
    """Encode the rows that have content to encode. Returns their vector columns, and all rows that are not refused."""
    encoded = [row for row in rows if row.prepared is not None]
    vectors, finite = encode(model, header, [row.prepared for row in encoded if row.prepared is not None])
    refused = {id(row) for row, fine in zip(encoded, finite.tolist(), strict=True) if not fine}
    kept = [row for row in rows if id(row) not in refused]
    return vectors, kept, [BadItem(row.values["id"], NOT_FINITE) for row in encoded if id(row) in refused]


def rows_to_table(header: Header, rows: Sequence[NewRow], vectors: pa.Table) -> pa.Table:
    """Combine rows with their vector columns to rows of the index."""
    return to_table(header, {name: [row.values[name] for row in rows] for name in [*ITEM_COLUMNS, "hash"]}, vectors)


def is_finite(vectors: Vectors) -> np.ndarray:
    """Return which vectors have only finite values: (n,) bool."""
    return np.asarray(np.isfinite(vectors.image).all(1) & np.isfinite(vectors.text).all(1))


def vector_table(model: Genius, header: Header, vectors: Vectors) -> pa.Table:
    """Return the vector columns for the vectors of some items."""
    columns = list(model.codes(vectors).T.copy())
    if header.embeddings:
        columns.append(to_lists(vectors.embedding(np.float16)))
    return pa.table(columns, schema=pa.schema([header.schema().field(name) for name in vector_columns(header)]))


def with_stored_vectors(
    new: pa.Table, is_new: np.ndarray, dataset: lance.LanceDataset, row_ids: np.ndarray
) -> pa.Table:
    """Combine new vector columns with those of stored rows. is_new: (n,) bool, which rows of the result are new."""
    if is_new.all():
        return new
    stored = take_table(dataset, row_ids, new.schema.names).cast(new.schema)
    order = np.argsort(np.concatenate([np.flatnonzero(is_new), np.flatnonzero(~is_new)]))
    return pa.concat_tables([new, stored]).take(order)


def to_table(header: Header, columns: dict[str, Any], vectors: pa.Table) -> pa.Table:
    """Combine the other columns with the vector columns to rows of the index."""
    schema = header.schema()
    return pa.table([columns[name] if name in columns else vectors[name] for name in schema.names], schema=schema)


# Committing


@dataclass(frozen=True)
class EncodedRows:
    """Rows to write. Their ids are different."""

    table: pa.Table  # all columns but the metadata fields
    metadata: Sequence[dict[str, Any]] | None  # None if no row has any
    stored: dict[str, list[int]] = field(default_factory=dict)  # row ids of the stored items with the same id
    version: int | None = None  # in which these were looked up


def write(
    session: Session,
    header: Header,
    rows: EncodedRows,
    replace: bool,
    compared: list[str],
    report: AddReport,
    on_commit: OnCommit | None,
) -> None:
    """Commit rows and count them in the report.

    Without `replace`, rows whose id is taken are left out: as unchanged if the `compared` columns are equal, as bad
    otherwise.
    """
    table, metadata = rows.table, rows.metadata
    with session.writing() as snapshot:
        if not snapshot.header.accepts_rows_of(header):
            raise BadIndex(
                f"Another process encoded {session.folder} again in the meantime. Earlier commits are safe; repeat "
                "the command."
            )
        stored = rows.stored if snapshot.version == rows.version else snapshot.find(table["id"])
        if stored and not replace:
            old = old_rows(snapshot, stored, compared)
            taken = np.array([id in old for id in table["id"].to_pylist()])
            for row in table.filter(pa.array(taken)).select(["id", *compared]).to_pylist():
                if all(row[name] == old[row["id"]][name] for name in compared):
                    report.unchanged += 1
                else:
                    report.bad.append(BadItem(row["id"], TAKEN))
            table, stored = table.filter(pa.array(~taken)), {}
            metadata = None if metadata is None else list(compress(metadata, ~taken))
        gone = np.array(sorted(chain.from_iterable(stored.values())), np.int64)
        if len(table):
            session.change(gone, table, metadata)
    report.added += len(table)
    report.replaced += len(gone)
    if on_commit is not None and len(table):
        on_commit(table["id"].to_pylist())


def old_rows(snapshot: Snapshot, stored: dict[str, list[int]], columns: list[str]) -> dict[str, dict[str, Any]]:
    """Read columns of stored items, by id."""
    row_ids = np.array([found[0] for found in stored.values()], np.int64)
    with snapshot.reading():
        return dict(zip(stored, take(snapshot.dataset, row_ids, columns), strict=True))
