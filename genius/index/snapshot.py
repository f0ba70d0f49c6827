"""Snapshot: one version of an index, and the part of it that is held in memory.

Codes, embeddings and ids are read when first needed. The next version takes over what did not change, so that a small
change costs little. A row of the `Searcher` and a row id of Lance both stay the same for the life of an item.
"""

import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import lance
import numpy as np
import pyarrow as pa

from genius.data.items import Item
from genius.errors import BadIndex, GeniusError
from genius.index.filters import check_filter, filter_error, named_columns
from genius.index.folder import Folder
from genius.index.item_ids import ItemIds, to_strings
from genius.index.lance_errors import Unreadable, lance_reason, reading
from genius.index.mapped import mapped_arrays
from genius.index.models import model_path
from genius.index.storage import (
    FILTER_COLUMNS,
    ITEM_COLUMNS,
    Header,
    code_columns,
    has_id,
    has_row_id,
    metadata_fields,
    row_to_item,
    take,
    to_codes,
    to_matrix,
    vector_columns,
)
from genius.index.versions import check_fragments
from genius.model.genius import Genius
from genius.search.options import parse_pattern
from genius.search.searcher import GROWING, AppendBuffer, Searcher

FILTERS = 8  # filters whose searchers are kept
READ = 65_536  # rows read at once
BLOCK = 1024  # items read at once: each may hold an image
MANY = 4096  # from this number of rows on, reading a whole column is faster than picking rows
_NONE = np.zeros(0, np.int64)
T = TypeVar("T")


class _Loaded(NamedTuple):
    """Codes and embeddings in memory. buffer: (rows, 1), the row id of each row of the searcher, ascending."""

    searcher: Searcher
    buffer: AppendBuffer

    @property
    def row_ids(self) -> np.ndarray:
        return self.buffer.first(self.searcher.rows)[:, 0]


class Snapshot:
    """One version of an index. Without a model, the one that made the items is loaded when it is first needed.

    shared: Folder through which processes share codes and embeddings, see `mapped`.
    """

    def __init__(
        self, folder: Folder, dataset: lance.LanceDataset, model: Genius | None, shared: Path | None = None
    ) -> None:
        self.shared = shared
        self.folder = folder
        self.dataset = dataset
        self.header = Header.of(dataset)
        self._model = model
        self._loaded: _Loaded | None = None
        self._item_ids: ItemIds | None = None
        self._filtered: dict[tuple[str | None, frozenset[str] | None, str | None], Searcher] = {}  # the latest last
        self._checked: set[str] | None = None  # files that Lance can be trusted with
        self._known: set[str] = set()  # those of the version before
        self._lock = threading.RLock()

    def __len__(self) -> int:
        with reading(self.dataset):
            return self.dataset.count_rows()

    @property
    def version(self) -> int:
        """Number of this version."""
        return self.dataset.version

    @property
    def model(self) -> Genius:
        """The model that made the items."""
        with self._lock:
            if self._model is None:
                if self.header.model is None:
                    raise BadIndex(
                        f"{self.folder} was made with a model that was not saved. Open it with Index.open(path, model)."
                    )
                model = Genius.from_pretrained(model_path(self.folder, self.header.model))
                check_model(self.folder, self.header, model)
                self._model = model
            return self._model

    @property
    def fields(self) -> dict[str, str]:
        """Fields that filters can name, and their types."""
        return dict.fromkeys(FILTER_COLUMNS, "text") | metadata_fields(self.dataset, self.header)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Turn errors and panics of Lance into Unreadable. Checks first what would make Lance end the process."""
        with reading(self.dataset):
            if self._checked is None:
                self._checked = check_fragments(self.folder, self.dataset, self._known)
            yield

    # From one version to the next

    def after(self, dataset: lance.LanceDataset, gone: np.ndarray | None = None) -> "Snapshot":
        """Return the snapshot of a later version. gone: row ids that were deleted since, if known."""
        header = Header.of(dataset)
        if header != self.header:  # all items were re-encoded
            same = header.fingerprint == self.header.fingerprint
            later = Snapshot(self.folder, dataset, self._model if same else None, self.shared)
            if self._model is not None:
                _ = later.model  # fail now, while the old version can still be searched
            return later
        later = Snapshot(self.folder, dataset, self._model, self.shared)
        with self._lock:
            loaded, item_ids = self._loaded, self._item_ids
            later._known = self._known if self._checked is None else self._checked
        if loaded is None and item_ids is None:
            return later
        known = {fragment.fragment_id for fragment in self.dataset.get_fragments()}
        new = [fragment for fragment in dataset.get_fragments() if fragment.fragment_id not in known]
        with later.reading():
            if item_ids is not None:
                table = _newer_rows(dataset, new, ["id"], item_ids.last)
                later._item_ids = item_ids.insert(table["id"], _row_ids(table)) if len(table) else item_ids
            if loaded is not None:
                later._loaded = _update(loaded, dataset, header, new, gone)
        return later

    # Searching

    @property
    def loaded(self) -> _Loaded:
        """Codes and embeddings of all items; the first call reads them."""
        if self._loaded is None:
            with self._lock:
                if self._loaded is None:
                    model = self.model
                    with self.reading():
                        self._loaded = self._load(model)
        return self._loaded

    def _load(self, model: Genius) -> _Loaded:
        if self.shared is None:
            return _load(self.dataset, self.header, model)

        def arrays() -> dict[str, np.ndarray]:
            loaded = _load(self.dataset, self.header, model)
            return loaded.searcher.arrays() | {"row_ids": loaded.row_ids[:, None]}

        growing = (*GROWING, "row_ids")
        found = mapped_arrays(self.shared, self.dataset.uri, self.version, growing, arrays)
        rows = len(found["order"])
        return _Loaded(Searcher.of_arrays(model, found, rows), AppendBuffer(found["row_ids"], rows))

    def searcher(
        self, where: str | None = None, ids: Collection[str] | None = None, branch: str | None = None
    ) -> Searcher:
        """The searcher of the items that pass a filter. Those of the last few filters are kept."""
        if where is None and ids is None and branch is None:
            return self.loaded.searcher
        key = where, None if ids is None else frozenset(ids), branch
        found = self._filtered.get(key)
        if found is None and branch is not None:
            whole = self.searcher(where, ids)
            found = whole.restrict(whole.trie.order[whole.trie.matching(self._branch(branch))])
        elif found is None:
            loaded = self.loaded
            found = loaded.searcher.restrict(np.searchsorted(loaded.row_ids, self.row_ids(*key[:2])))
        with self._lock:
            self._filtered.pop(key, None)
            self._filtered[key] = found
            while len(self._filtered) > FILTERS:
                del self._filtered[next(iter(self._filtered))]
        return found

    def _branch(self, pattern: str) -> tuple[int | None, ...]:
        """The codes of a pattern, which must be no longer than an ID."""
        codes = parse_pattern(pattern)
        if len(codes) > len(self.header.sizes):
            levels = len(self.header.sizes)
            raise GeniusError(f"The branch {pattern} has {len(codes)} codes, but the IDs of this index have {levels}.")
        return codes

    def rows(self, rows: np.ndarray, columns: Sequence[str]) -> list[dict[str, Any]]:
        """Read columns of rows of the searcher, in their order."""
        row_ids = self.loaded.row_ids[rows]
        with self.reading():
            return take(self.dataset, row_ids, columns)

    # Filters

    def row_ids(self, where: str | None, ids: frozenset[str] | None = None) -> np.ndarray:
        """Row ids of the items that pass a filter."""
        chosen = None if ids is None else self.row_ids_of(list(ids))
        if where is None:
            return _NONE if chosen is None else chosen
        table = self._evaluate(where, lambda: self.dataset.to_table(columns=[], filter=where, with_row_id=True))
        passing = _row_ids(table)
        return passing if chosen is None else np.intersect1d(passing, chosen, assume_unique=True)

    def items(self, where: str | None = None, limit: int | None = None, offset: int = 0) -> list[Item]:
        """The items that pass a filter, in the order of the index: `limit` of them from `offset`."""

        def read() -> list[dict[str, Any]]:
            table = self.dataset.to_table(columns=ITEM_COLUMNS, filter=where, limit=limit, offset=offset)
            return cast(list[dict[str, Any]], table.to_pylist())

        if where is not None:
            return [row_to_item(row) for row in self._evaluate(where, read)]
        with self.reading():
            return [row_to_item(row) for row in read()]

    def batches(self, columns: Sequence[str], where: str | None = None, size: int = BLOCK) -> Iterator[pa.RecordBatch]:
        """Read columns of the rows that pass a filter, in the order of the index, `size` rows at a time."""
        if where is None:
            yield from scan(self, columns, size)
            return
        scanner = self._evaluate(
            where,
            lambda: self.dataset.scanner(columns=list(columns), filter=where, batch_size=size, scan_in_order=True),
        )
        batches = scanner.to_batches()
        while (batch := self._evaluate(where, lambda: next(batches, None))) is not None:
            yield batch

    def _evaluate(self, where: str, read: Callable[[], T]) -> T:
        """Check a filter and call `read`, which passes it to Lance."""
        check_filter(where, set(self.header.schema().names).difference(FILTER_COLUMNS))
        with self.reading():
            try:
                return read()
            except (OSError, ValueError) as error:
                raise self._at_fault(where, error) from error

    def _at_fault(self, where: str, error: Exception) -> GeniusError:
        """Find out whether a filter or the files caused an error: Lance's types and messages do not tell reliably."""
        evaluation = self.dataset.scanner(columns=[], filter=where, with_row_id=True)
        try:
            evaluation.explain_plan()
        except ValueError as refused:
            return filter_error(where, refused, self.fields)
        except OSError as failed:
            return Unreadable(self.folder, self.version, lance_reason(failed))
        try:
            evaluation.to_table()
        except (OSError, ValueError) as failed:
            try:
                for _ in self.dataset.to_batches(columns=named_columns(where, self.dataset.schema.names)):
                    pass
            except (OSError, ValueError) as unreadable:
                return Unreadable(self.folder, self.version, lance_reason(unreadable))
            return filter_error(where, failed, self.fields)
        return Unreadable(
            self.folder, self.version, lance_reason(error)
        )  # the filter works, so other columns cannot be read

    # Item ids

    def find(self, ids: Sequence[str] | pa.ChunkedArray) -> dict[str, list[int]]:
        """Find the row ids of item ids: more than one if another program wrote to the index. Reads all ids once."""
        strings = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else to_strings(ids)
        with self._lock, self.reading():
            if self._item_ids is None:
                batches = self.dataset.scanner(columns=["id"], with_row_id=True, batch_size=READ).to_batches()
                self._item_ids = ItemIds.of((batch["id"], batch["_rowid"].to_numpy()) for batch in batches)
            candidates = self._item_ids.candidates(strings)
        if not len(candidates):
            return {}
        which = has_row_id(candidates) if len(candidates) < MANY else has_id(strings)
        with self.reading():
            table = self.dataset.to_table(columns=["id"], filter=which, with_row_id=True)
        asked = set(strings.to_pylist())
        found: dict[str, list[int]] = {}
        for id, row_id in zip(table["id"].to_pylist(), table["_rowid"].to_pylist(), strict=True):
            if id in asked:
                found.setdefault(id, []).append(row_id)
        return found

    def row_ids_of(self, ids: Sequence[str] | pa.ChunkedArray) -> np.ndarray:
        """Row ids of all rows that have one of these ids, ascending."""
        return np.array(sorted(itertools.chain.from_iterable(self.find(ids).values())), np.int64)

    def records(self, ids: Sequence[str], columns: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Read columns of the rows that have these ids, by id."""
        columns = list(dict.fromkeys(["id", *columns]))
        with self.reading():
            if self._item_ids is None and len(ids) < MANY:
                rows = self.dataset.to_table(columns=columns, filter=has_id(to_strings(ids))).to_pylist()
            else:
                rows = take(self.dataset, self.row_ids_of(ids), columns)
        return {row["id"]: row for row in rows}

    def codes(self) -> np.ndarray:
        """(n, levels) codes of all items, in the order of the index."""
        with self.reading():
            return to_codes(self.dataset.to_table(columns=code_columns(self.header)), self.header)


def scan(snapshot: Snapshot, columns: Sequence[str], size: int) -> Iterator[pa.RecordBatch]:
    """Read columns and row ids of all rows in order, `size` rows at a time."""
    with snapshot.reading():
        scanner = snapshot.dataset.scanner(columns=list(columns), batch_size=size, with_row_id=True, scan_in_order=True)
        batches = iter(scanner.to_batches())
    while True:
        with snapshot.reading():
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def check_model(folder: Folder, header: Header, model: Genius) -> None:
    """Raise BadIndex unless the model made the index."""
    if model.fingerprint != header.fingerprint:
        theirs, ours = header.model or "an unsaved model", model.source or "an unsaved model"
        raise BadIndex(
            f"{folder} was made with {theirs} (fingerprint {header.fingerprint}), which is not {ours} "
            f"(fingerprint {model.fingerprint}). Open it with the model it was made with, or encode it again with "
            "`genius index reindex`."
        )


def _load(dataset: lance.LanceDataset, header: Header, model: Genius) -> _Loaded:
    """Read codes and embeddings of all rows."""
    size, columns = dataset.count_rows(), code_columns(header)
    codes, buffer = np.empty((size, len(columns)), np.uint16), AppendBuffer.of_size(size, 1, np.dtype(np.int64))
    row_ids = buffer.first(size)[:, 0]
    embeddings = AppendBuffer.of_size(size, header.dim, np.dtype(np.float16)) if header.embeddings else None
    start = 0
    for batch in dataset.scanner(columns=vector_columns(header), with_row_id=True, scan_in_order=True).to_batches():
        end = start + len(batch)
        codes[start:end], row_ids[start:end] = to_codes(batch, header), batch["_rowid"].to_numpy()
        if embeddings is not None:
            embeddings.first(end)[start:end] = to_matrix(batch["embedding"])
        start = end
    if start < size or (np.diff(row_ids) <= 0).any():
        raise BadIndex(f"{dataset.uri} was changed by another program. Encode it again with `genius index reindex`.")
    return _Loaded(Searcher(model, codes, embeddings), buffer)


def _update(
    loaded: _Loaded, dataset: lance.LanceDataset, header: Header, new: list[Any], gone: np.ndarray | None
) -> _Loaded:
    """Bring codes and embeddings up to a later version. new: its new fragments; gone: deleted row ids, if known."""
    searcher, row_ids, buffer = loaded.searcher, loaded.row_ids, loaded.buffer
    added = _newer_rows(dataset, new, vector_columns(header), int(row_ids[-1]) if len(row_ids) else -1)
    if gone is None and len(searcher) + len(added) != dataset.count_rows():
        now = _row_ids(dataset.to_table(columns=[], with_row_id=True))
        removed = np.zeros(len(row_ids), bool)
        removed[searcher.trie.order] = True
        removed &= ~np.isin(row_ids, now, assume_unique=True)
        gone = row_ids[removed]
    if gone is not None and len(gone):
        searcher = searcher.remove(np.searchsorted(row_ids, gone))
    if len(added):
        buffer = buffer.put(_row_ids(added)[:, None], behind=searcher.rows)
        embeddings = to_matrix(added["embedding"]) if header.embeddings else None
        searcher = searcher.insert(to_codes(added, header), embeddings)
    return _Loaded(searcher, buffer)


def _newer_rows(dataset: lance.LanceDataset, fragments: list[Any], columns: Sequence[str], last: int) -> pa.Table:
    """Read rows of these fragments that were added after row id `last`. Compaction moved the others there."""
    if not fragments:
        schema = pa.schema([dataset.schema.field(name) for name in columns])
        return schema.append(pa.field("_rowid", pa.uint64())).empty_table()
    scanner = dataset.scanner(
        columns=list(columns),
        filter=f"_rowid >= {last + 1}",
        fragments=fragments,
        batch_size=READ,
        with_row_id=True,
        scan_in_order=True,
    )
    return scanner.to_table()


def _row_ids(table: pa.Table) -> np.ndarray:
    return np.asarray(table["_rowid"].to_numpy(), np.int64)
