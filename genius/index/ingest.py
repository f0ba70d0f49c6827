"""From items to rows of an index: reading, comparing with what is there, encoding and committing, batch by batch.

Holds one batch of items and one commit of rows at a time, so that any number can be added. What is there already is not
encoded again; so an addition that was broken off is completed by repeating it. Knows nothing of searching, or of how
rows lie on the disk.
"""

import itertools
import json
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numba import njit

from genius.data.items import Item, Modality
from genius.encoders.base import Prepared, Vectors
from genius.errors import BadIndex, BadItem, GeniusError
from genius.index.session import Collection
from genius.index.snapshot import Snapshot, scan
from genius.index.storage import (
    ITEM_COLUMNS,
    Header,
    code_columns,
    item_to_row,
    labels,
    metadata_fields,
    row_to_item,
    take,
    to_lists,
)
from genius.model.genius import Genius
from genius.runtime.progress import show_progress
from genius.search.results import AddReport

BATCH = 128  # items that are prepared and encoded together
COMMIT = 2048  # rows that are written together: every write is a file and a version of its own
VECTORS = 65_536  # rows that are written together when their vectors are ready
_COMPARED = ["hash", "metadata", "image"]  # what tells whether an item is there just so
_TAKEN = "the index has another item with this id. Use upsert to replace it."

OnCommit = Callable[[list[str]], None]
T = TypeVar("T")


@dataclass(frozen=True)
class _Ready:
    """An item on its way into the index: its row so far, and what the model encodes.

    content: None if the vector of the row that it replaces will do: only metadata or path are new.
    """

    row: dict[str, Any]
    content: Prepared | None


@dataclass(frozen=True)
class _Unchanged:
    """An item that is there just so."""


def add_items(
    collection: Collection,
    items: Iterable[Item | BadItem],
    replace: bool,
    progress: bool = False,
    on_commit: OnCommit | None = None,
) -> AddReport:
    """Add items; where an id is taken, replace the item that has it, or refuse the new one."""
    collection.prepare_writing()
    stream = _Stream(collection, replace, on_commit)
    total = len(items) if isinstance(items, Sequence) else None
    with ThreadPoolExecutor(os.cpu_count()) as pool, show_progress("indexing", total, progress) as advance:
        for batch in _batches(items, BATCH):
            stream.take(batch, pool)
            advance(len(batch), len(stream.bad))
        stream.commit()
    return AddReport(stream.added, stream.unchanged, stream.bad, stream.replaced)


class _Stream:
    def __init__(self, collection: Collection, replace: bool, on_commit: OnCommit | None) -> None:
        self.collection, self.replace, self.on_commit = collection, replace, on_commit
        snapshot = collection.snapshot
        self.header, self.model = snapshot.header, snapshot.model  # loaded before the first item is read
        self.added = self.unchanged = self.replaced = 0
        self.bad: list[BadItem] = []
        self.tables: list[pa.Table] = []  # encoded, not yet written
        self.waiting: set[str] = set()  # their ids

    def take(self, batch: list[Item | BadItem], pool: ThreadPoolExecutor) -> None:
        ids = [item.id for item in batch if isinstance(item, Item)]
        if self.waiting.intersection(ids):  # so that each is compared with what it would replace
            self.commit()
        snapshot = self.collection.snapshot
        there = snapshot.find(ids)
        old = snapshot.records(list(there), _COMPARED) if there else {}
        ready: list[_Ready] = []
        for one in pool.map(self._prepare, batch, itertools.repeat(old)):
            if isinstance(one, BadItem):
                self.bad.append(one)
            elif isinstance(one, _Unchanged):
                self.unchanged += 1
            else:
                ready.append(one)
        self.tables.append(self._encode(ready, snapshot))
        self.waiting.update(self.tables[-1]["id"].to_pylist())
        if len(self.waiting) >= COMMIT:
            self.commit()

    def _prepare(self, item: Item | BadItem, old: dict[str, dict[str, Any]]) -> "_Ready | _Unchanged | BadItem":
        """Everything about one item that can be done in a thread of its own."""
        if isinstance(item, BadItem):
            return item
        try:
            content, there = None, old.get(item.id)
            if there is None:
                content = self.model.prepare(item)  # first: it says best what is wrong with an image
            row = item_to_row(item, self.header.store_images)
            if there is not None:
                if all(row[name] == there[name] for name in _COMPARED):
                    return _Unchanged()
                if not self.replace:
                    return BadItem(item.id, _TAKEN)
                if row["hash"] != there["hash"]:
                    content = self.model.prepare(item)
            return _Ready(row, content)
        except BadItem as error:
            return error
        except GeniusError as error:
            return BadItem(item.id, str(error))

    def _encode(self, ready: list[_Ready], snapshot: Snapshot) -> pa.Table:
        kept = [one.row["id"] for one in ready if one.content is None]
        old = snapshot.records(kept, [*code_columns(self.header), *_embedding(self.header)]) if kept else {}
        vectors = self.model.encode([one.content for one in ready if one.content is not None])
        encoded = _Encoded.of(self.model, self.header, vectors)
        if kept:
            encoded = encoded.among([one.content is not None for one in ready])
            for place, one in enumerate(ready):
                if one.content is None:
                    encoded.put(place, old[one.row["id"]], self.header)
        for one, fine in zip(ready, encoded.finite, strict=True):
            if not fine:
                self.bad.append(BadItem(one.row["id"], _NOT_NUMBERS))
        columns = {name: [one.row[name] for one in ready] for name in [*ITEM_COLUMNS, "hash"]}
        return encoded.table(columns, self.header).filter(pa.array(encoded.finite, pa.bool_()))

    def commit(self) -> None:
        """Write what is waiting in one step, and say so."""
        table = pa.concat_tables(self.tables) if self.tables else None
        self.tables, self.waiting = [], set()
        if table is not None and len(table):
            report = _write(self.collection, self.header, table, self.replace, _COMPARED, self.on_commit)
            self.added += report.added
            self.unchanged += report.unchanged
            self.replaced += report.replaced
            self.bad += report.bad


def _write(
    collection: Collection,
    header: Header,
    table: pa.Table,
    replace: bool,
    compared: list[str],
    on_commit: OnCommit | None,
) -> AddReport:
    """Rows, each with an id of its own, into the index in one step.

    Without `replace`, those whose id is taken are left out: they are unchanged if the `compared` columns say so.
    """
    unchanged, bad = 0, []
    with collection.writing() as snapshot:
        if not snapshot.header.takes_rows_of(header):
            raise BadIndex(
                f"{collection.path} was encoded anew by another process in the meantime. What was written before is "
                "safe; repeat the command."
            )
        there = snapshot.row_ids_of(table["id"])
        if len(there) and not replace:
            old = snapshot.records(table["id"].to_pylist(), compared)
            for row in table.select(["id", *compared]).to_pylist():
                if row["id"] in old:
                    same = all(row[name] == old[row["id"]][name] for name in compared)
                    unchanged += same
                    bad += [] if same else [BadItem(row["id"], _TAKEN)]
            table = table.filter(pa.array([id not in old for id in table["id"].to_pylist()], pa.bool_()))
            there = there[:0]
        if len(table):
            collection.change(there, table)
    if on_commit is not None and len(table):
        on_commit(table["id"].to_pylist())
    return AddReport(len(table), unchanged, bad, len(there))


_NOT_NUMBERS = "its vector holds values that are not numbers (NaN). Check the image and the model's weights."


@dataclass
class _Encoded:
    """Codes and embeddings of some items, and which of them are made of numbers."""

    codes: np.ndarray
    embeddings: np.ndarray | None
    finite: np.ndarray

    @classmethod
    def of(cls, model: Genius, header: Header, vectors: Vectors) -> "_Encoded":
        finite = np.isfinite(vectors.image).all(1) & np.isfinite(vectors.text).all(1)
        encoded = cls(
            np.zeros((len(vectors), len(header.sizes)), np.uint16),
            np.zeros((len(vectors), header.dim), np.float16) if header.embeddings else None,
            finite,
        )
        good = vectors if finite.all() else vectors[finite]
        if len(good):
            encoded.codes[finite] = model.codes(good)
            if encoded.embeddings is not None:
                encoded.embeddings[finite] = good.embedding()
        return encoded

    def among(self, mask: Sequence[bool]) -> "_Encoded":
        """Spread out over more items: those of the mask."""
        places = np.flatnonzero(mask)
        wider = _Encoded(
            np.zeros((len(mask), self.codes.shape[1]), self.codes.dtype),
            None if self.embeddings is None else np.zeros((len(mask), self.embeddings.shape[1]), np.float16),
            np.ones(len(mask), bool),
        )
        wider.codes[places], wider.finite[places] = self.codes, self.finite
        if wider.embeddings is not None:
            wider.embeddings[places] = self.embeddings
        return wider

    def put(self, place: int, record: dict[str, Any], header: Header) -> None:
        """What a row of the index has."""
        self.codes[place] = [record[name] for name in code_columns(header)]
        if self.embeddings is not None:
            self.embeddings[place] = record["embedding"]

    def table(self, columns: dict[str, Any], header: Header) -> pa.Table:
        """With the other columns, as rows of the index."""
        columns = columns | dict(zip(code_columns(header), self.codes.T.copy(), strict=True))
        if self.embeddings is not None:
            columns["embedding"] = to_lists(self.embeddings)
        schema = header.schema()
        return pa.table([columns[name] for name in schema.names], schema=schema)


def _embedding(header: Header) -> list[str]:
    return ["embedding"] if header.embeddings else []


def _batches(items: Iterable[Item | BadItem], size: int) -> Iterator[list[Item | BadItem]]:
    """Lists of up to so many items, none of which has an id twice."""
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


# Ready vectors


def add_vectors(
    collection: Collection,
    ids: Sequence[str],
    vectors: Vectors,
    metadata: Sequence[dict[str, Any]] | None = None,
    replace: bool = False,
    on_commit: OnCommit | None = None,
) -> AddReport:
    """Add items that have vectors and nothing else."""
    if len(ids) != len(vectors) or (metadata is not None and len(metadata) != len(ids)):
        given = "" if metadata is None else f" and {len(metadata)} dicts of metadata"
        raise GeniusError(f"{len(ids)} ids, {len(vectors)} vectors{given} do not belong together.")
    snapshot = collection.prepare_writing()
    header, model = snapshot.header, snapshot.model
    if vectors.image.shape[1] != header.dim:
        raise GeniusError(f"The vectors have {vectors.image.shape[1]} dimensions; this index needs {header.dim}.")
    unfit = _unfit(ids, metadata)
    compared = ["hash", "metadata", *code_columns(header)]

    def ready(start: int) -> tuple[pa.Table, list[BadItem]]:
        block = slice(start, start + VECTORS)
        bad = {place - start: error for place, error in unfit.items() if start <= place < start + VECTORS}
        records = None if metadata is None else metadata[block]
        return _vector_rows(model, header, ids[block], vectors[block], records, bad)

    added, unchanged, replaced, bad = 0, 0, 0, []
    with ThreadPoolExecutor(1) as pool:
        for table, refused in _one_ahead(pool, ready, range(0, len(ids), VECTORS)):
            bad += refused
            if len(table):
                report = _write(collection, header, table, replace, compared, on_commit)
                added += report.added
                unchanged += report.unchanged
                replaced += report.replaced
                bad += report.bad
    return AddReport(added, unchanged, bad, replaced)


def _one_ahead(pool: ThreadPoolExecutor, work: Callable[[int], T], arguments: Iterable[int]) -> Iterator[T]:
    """What `work` makes of each, in order; while one is used, the pool works on the next."""
    begun: deque[Future[T]] = deque()
    for argument in arguments:
        begun.append(pool.submit(work, argument))
        if len(begun) > 1:
            yield begun.popleft().result()
    while begun:
        yield begun.popleft().result()


def _unfit(ids: Sequence[str], metadata: Sequence[dict[str, Any]] | None) -> dict[int, BadItem]:
    """What cannot be an item, by place: for its id, or for its metadata."""
    if metadata is None and set(map(type, ids)) <= {str}:
        plain = all(map(str.isascii, ids)) and all(map(str.strip, ids)) and len(set(ids)) == len(ids)
        if plain:  # nearly always: a million need no look at each
            return {}
    bad: dict[int, BadItem] = {}
    seen: set[str] = set()
    for place, id in enumerate(ids):
        try:
            if metadata is not None or not isinstance(id, str) or not id.isascii() or not id.strip():
                Item(id, metadata={} if metadata is None else metadata[place])  # it knows what can be
            if id in seen:
                raise BadItem(id, "the id appears twice among those to add. Leave one out, or rename it.")
            seen.add(id)
        except BadItem as error:
            bad[place] = error
    return bad


def _vector_rows(
    model: Genius,
    header: Header,
    ids: Sequence[str],
    vectors: Vectors,
    metadata: Sequence[dict[str, Any]] | None,
    bad: dict[int, BadItem],
) -> tuple[pa.Table, list[BadItem]]:
    """Rows of those items that are good, and the others. bad: those that are known already, by place."""
    image, text = (
        largest(np.ascontiguousarray(part, np.float32).view(np.uint32)) for part in (vectors.image, vectors.text)
    )
    for wrong, reason in (
        (np.maximum(image, text) >= _INFINITE, "its vector holds values that are not numbers (NaN). Leave it out."),
        (np.maximum(image, text) == 0, "its vectors are zero: it has neither an image nor a text."),
    ):
        for place in np.flatnonzero(wrong).tolist():
            bad.setdefault(place, BadItem(str(ids[place]), reason))
    records: Sequence[str] | pa.Array = pa.repeat("{}", len(ids))
    if metadata is not None:
        records = ["{}" if place in bad else json.dumps(one, ensure_ascii=False) for place, one in enumerate(metadata)]
    modality = np.where(text == 0, Modality.IMAGE, np.where(image == 0, Modality.TEXT, Modality.IMAGE_TEXT))
    refused = [bad[place] for place in sorted(bad)]
    if bad:
        good = np.setdiff1d(np.arange(len(ids)), list(bad))
        ids, vectors, modality = [ids[place] for place in good.tolist()], vectors[good], modality[good]
        records = [str(records[place]) for place in good.tolist()]
    if not len(ids):
        return header.schema().empty_table(), refused
    embeddings = vectors.embedding(np.float16) if header.embeddings else None
    encoded = _Encoded(model.codes(vectors), embeddings, np.ones(len(ids), bool))
    columns = {name: pa.nulls(len(ids), header.schema().field(name).type) for name in [*ITEM_COLUMNS, "hash"]}
    columns |= {"id": ids, "modality": labels(modality), "metadata": records}
    return encoded.table(columns, header), refused


_INFINITE = np.uint32(0x7F800000)  # as bits; what is no number lies above it


@njit(cache=True, nogil=True)
def largest(bits):  # type: ignore[no-untyped-def]
    """(n,) of each row the largest number without its sign, as bits: 0 if all are zero. bits: (n, d), of float32."""
    found = np.zeros(len(bits), np.uint32)
    for row in range(len(bits)):
        most = np.uint32(0)
        for column in range(bits.shape[1]):
            most = max(most, bits[row, column] & np.uint32(0x7FFFFFFF))
        found[row] = most
    return found


# Encoding anew


def reindex(collection: Collection, model: Genius | None, source: str | None, progress: bool = False) -> AddReport:
    """Encode all items anew from their texts and images, as one new version with a header of its own.

    source: where `model` can be loaded from again. Without a new model, items that have only vectors, or whose image
    is gone, stay as they are.
    """
    with collection.writing() as snapshot:
        other = model is not None and model.fingerprint != snapshot.header.fingerprint
        model = model or snapshot.model
        header = replace(
            snapshot.header,
            model=source if other else snapshot.header.model,
            fingerprint=model.fingerprint,
            sizes=tuple(model.sizes),
            dim=model.dim,
            generation=snapshot.header.generation + 1,
        )
        if other:
            _check_all_have_content(collection, snapshot)
        work = _Reindexing(snapshot, header, model, other)
        with show_progress("encoding anew", len(snapshot), progress) as advance:
            collection.replace_all(header, model, work.tables(advance))
        return AddReport(work.added, work.unchanged, work.bad)


def _check_all_have_content(collection: Collection, snapshot: Snapshot) -> None:
    """Before hours of encoding rather than after them."""
    vectors = snapshot.dataset.count_rows(filter="hash IS NULL")
    if vectors:
        raise BadIndex(
            f"{vectors:,} items of {collection.path} were added as vectors and have nothing that another model could "
            "encode. Delete them first, or keep the model; nothing was changed."
        )
    gone = []
    for batch in snapshot.dataset.to_batches(columns=["id", "image"], filter="image_bytes IS NULL"):
        pairs = zip(batch["id"].to_pylist(), batch["image"].to_pylist(), strict=True)
        gone += [id for id, path in pairs if path is not None and not os.path.isfile(path)]
    if gone:
        raise BadIndex(
            f"The images of {len(gone):,} items of {collection.path} are gone (the first is {gone[0]!r}). Put them "
            "back, or delete the items (`genius index verify` lists them); nothing was changed."
        )


class _Reindexing:
    def __init__(self, snapshot: Snapshot, header: Header, model: Genius, other: bool) -> None:
        self.snapshot, self.header, self.model, self.other = snapshot, header, model, other
        self.fields = list(metadata_fields(snapshot.dataset, snapshot.header))
        self.added = self.unchanged = self.replaced = 0
        self.bad: list[BadItem] = []

    def tables(self, advance: Callable[..., None]) -> Iterator[pa.Table]:
        """All rows, a file at a time."""
        done: list[pa.Table] = []
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for batch in scan(self.snapshot.dataset, [*ITEM_COLUMNS, "hash", *self.fields], BATCH):
                done.append(self._encoded(pa.Table.from_batches([batch]), pool))
                advance(len(batch), len(self.bad))
                if sum(map(len, done)) >= COMMIT * 8:
                    yield pa.concat_tables(done)
                    done = []
            if done:
                yield pa.concat_tables(done)

    def _encoded(self, rows: pa.Table, pool: ThreadPoolExecutor) -> pa.Table:
        """The same rows with new codes, embeddings and hashes."""
        records = rows.select([*ITEM_COLUMNS, "hash"]).to_pylist()
        ready = list(pool.map(self._prepare, records))
        mask = np.array([one is not None for one in ready])
        vectors = self.model.encode([one.content for one in ready if one is not None and one.content is not None])
        encoded = _Encoded.of(self.model, self.header, vectors).among(mask.tolist())
        for place in np.flatnonzero(~encoded.finite).tolist():
            self._refuse(BadItem(records[place]["id"], _NOT_NUMBERS))
        stay = np.flatnonzero(~mask | ~encoded.finite)  # as they are, which only the same model allows
        kept = [*code_columns(self.header), *_embedding(self.header)]
        row_ids = rows["_rowid"].to_numpy().astype(np.int64)[stay]
        for place, record in zip(stay.tolist(), take(self.snapshot.dataset, row_ids, kept), strict=True):
            encoded.put(place, record, self.header)
        self.added += len(rows) - len(stay)
        known = [old if one is None else one.row for one, old in zip(ready, records, strict=True)]
        columns = {name: rows[name] for name in ITEM_COLUMNS}
        columns |= {name: [row[name] for row in known] for name in ("modality", "hash")}
        table = encoded.table(columns, self.header)
        for name in self.fields:
            table = table.append_column(name, rows[name])
        return table

    def _prepare(self, record: dict[str, Any]) -> _Ready | None:
        """None where there is nothing to encode."""
        if record["hash"] is None:
            self.unchanged += 1
            return None
        item = row_to_item(record)
        try:
            return _Ready(item_to_row(item, self.header.store_images), self.model.prepare(item))
        except GeniusError as error:
            self._refuse(error if isinstance(error, BadItem) else BadItem(item.id, str(error)))
            return None

    def _refuse(self, error: BadItem) -> None:
        if self.other:
            raise BadIndex(f"{error} Nothing was changed: repair or delete the item first.") from error
        self.bad.append(error)
