"""Snapshot: one version of an index's items, and what of it is held in memory.

Reads what it is asked for when it is first asked, and hands on to the next version what stays the same, so that a small
change costs little. Rows are searched under numbers that stay (see Searcher); row ids are Lance's, and stay as well.
Knows nothing of writing, of locks, or of when to look for a newer version.
"""

import itertools
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import lance
import numpy as np
import pyarrow as pa
from numba import njit

from genius.data.items import Item, printable
from genius.errors import BadIndex
from genius.index.filters import check_condition, unusable
from genius.index.storage import (
    FILTER_COLUMNS,
    ITEM_COLUMNS,
    Header,
    code_columns,
    has_id,
    metadata_fields,
    row_to_item,
    take,
    to_codes,
    to_matrix,
)
from genius.model.genius import Genius
from genius.search.results import CodeChild, CodedItem, CodePage, TopK
from genius.search.searcher import AppendBuffer, Searcher
from genius.search.trie import concatenate_ranges

FILTERS = 8  # filters whose searchers are kept
READ = 65_536  # rows that are read at a time
MANY = 4096  # rows from which on it is quicker to read a whole column than to pick rows


class _Run(NamedTuple):
    """Some ids. keys: (n,) uint64, ascending: a hash, whose lowest bits are a place in row_ids; row_ids: (n,)."""

    keys: np.ndarray
    row_ids: np.ndarray

    @property
    def places(self) -> np.uint64:
        """The bits of a key that are a place."""
        return np.uint64((1 << len(self.row_ids).bit_length()) - 1)

    @classmethod
    def of(cls, hashes: np.ndarray, row_ids: np.ndarray) -> "_Run":
        """hashes: (n,) uint64; they become the keys."""
        run = cls(hashes, row_ids)
        hashes &= ~run.places
        hashes |= np.arange(len(row_ids), dtype=np.uint64)
        hashes.sort()
        return run

    def with_(self, other: "_Run") -> "_Run":
        both = _Run(np.concatenate([self.keys, other.keys]), np.concatenate([self.row_ids, other.row_ids]))
        mine, theirs = both.keys[: len(self.keys)], both.keys[len(self.keys) :]
        mine[:] = (mine & ~both.places) | (mine & self.places)
        theirs[:] = (theirs & ~both.places) | ((theirs & other.places) + np.uint64(len(self.keys)))
        both.keys.sort()
        return both

    def candidates(self, hashes: np.ndarray) -> np.ndarray:
        wanted = np.sort(hashes & ~self.places)
        lo, hi = np.searchsorted(self.keys, wanted), np.searchsorted(self.keys, wanted | self.places, "right")
        at = concatenate_ranges(lo[lo < hi], hi[lo < hi])[1]
        return self.row_ids[self.keys[at] & self.places]


class Names:
    """Where the ids of an index are: for a hash of each, the row id. In a few runs, so that little is moved at a time.

    Rows that are deleted stay in it: who finds a row here has to look whether it is there and has the very id.
    """

    def __init__(self, runs: tuple[_Run, ...] = (), last: int = -1) -> None:
        self._runs = runs  # each less than half as long as the one before it
        self.last = last  # the highest row id seen

    @classmethod
    def of(cls, batches: Iterable[tuple[pa.Array, np.ndarray]], size: int) -> "Names":
        hashes, row_ids = np.empty(size, np.uint64), np.empty(size, np.int64)
        start = 0
        for ids, rows in batches:
            end = start + len(ids)
            hashes[start:end], row_ids[start:end] = _hashes(ids), rows
            start = end
        return cls((_Run.of(hashes, row_ids),), int(row_ids.max(initial=-1)))

    def insert(self, ids: pa.Array | pa.ChunkedArray, row_ids: np.ndarray) -> "Names":
        if not len(row_ids):
            return self
        runs = [*self._runs, _Run.of(_hashes(ids), row_ids)]
        while len(runs) > 1 and len(runs[-2].keys) <= 2 * len(runs[-1].keys):
            runs[-2:] = [runs[-2].with_(runs[-1])]
        return Names(tuple(runs), max(self.last, int(row_ids.max())))

    def candidates(self, ids: pa.Array | pa.ChunkedArray) -> np.ndarray:
        """The row ids that these ids may have, in no order; some of them more than once."""
        hashes = _hashes(ids)
        return np.concatenate([_NONE, *(run.candidates(hashes) for run in self._runs)])


class Searched(NamedTuple):
    """What is searched, and the row id of each of its rows, ascending; room: where these are kept."""

    searcher: Searcher
    room: AppendBuffer

    @property
    def row_ids(self) -> np.ndarray:
        return self.room.first(self.searcher.rows)[:, 0]


class Unreadable(BadIndex):
    """Files of a version are damaged, or another process has removed them."""

    def __init__(self, dataset: lance.LanceDataset, error: Exception) -> None:
        super().__init__(
            f"Version {dataset.version} of {Path(dataset.uri).parent} cannot be read ({error}). `genius index verify` "
            "says what is damaged, `genius index versions` which versions are left."
        )


@contextmanager
def reading(dataset: lance.LanceDataset) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise Unreadable(dataset, error) from error


_NONE = np.zeros(0, np.int64)


_SEED = np.uint64(secrets.randbits(64))  # so that nobody can choose ids that have one hash


def _strings(ids: Sequence[str]) -> pa.Array:
    try:
        return pa.array(ids, pa.string())
    except (pa.ArrowException, TypeError, UnicodeError):  # no item has an id that is no text
        return pa.array([id for id in ids if isinstance(id, str) and printable(id) == id], pa.string())


def _hashes(ids: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """(n,) uint64."""
    if isinstance(ids, pa.ChunkedArray):
        return np.concatenate([np.zeros(0, np.uint64), *map(_hashes, ids.chunks)])
    _, offsets, text = ids.buffers()
    bounds = np.frombuffer(offsets or b"\0\0\0\0", np.int32)[ids.offset : ids.offset + len(ids) + 1]
    return hash_texts(bounds, np.frombuffer(text or b"", np.uint8), _SEED)


@njit(cache=True, nogil=True)
def hash_texts(bounds, text, seed):  # type: ignore[no-untyped-def]
    """(n,) uint64. Text i is text[bounds[i] : bounds[i + 1]]."""
    hashes = np.empty(len(bounds) - 1, np.uint64)
    for i in range(len(hashes)):
        value = seed
        for at in range(bounds[i], bounds[i + 1]):
            value = (value ^ np.uint64(text[at])) * np.uint64(0x9E3779B97F4A7C15)
            value ^= value >> np.uint64(29)
        hashes[i] = value * np.uint64(0xBF58476D1CE4E5B9)
    return hashes


class Snapshot:
    """model: the one that made the items; None: to be loaded when it is needed."""

    def __init__(self, dataset: lance.LanceDataset, model: Genius | None) -> None:
        self.dataset = dataset
        self.header = Header.of(dataset)
        self._model = model
        self._searched: Searched | None = None
        self._names: Names | None = None
        self._filtered: dict[tuple[str | None, frozenset[str] | None], Searcher] = {}  # the latest last
        self._reading = threading.RLock()

    def __len__(self) -> int:
        return self.dataset.count_rows()

    @property
    def folder(self) -> Path:
        """Of the index."""
        return Path(self.dataset.uri).parent

    @property
    def version(self) -> int:
        return self.dataset.version

    @property
    def model(self) -> Genius:
        with self._reading:
            if self._model is None:
                if self.header.model is None:
                    raise BadIndex(
                        f"{self.folder} was made with a model that was not saved. Open it with Index.open(path, model)."
                    )
                model = Genius.from_pretrained(self.header.model)
                check_model(self.folder, self.header, model)
                self._model = model
            return self._model

    # From one version to the next

    def after(self, dataset: lance.LanceDataset, gone: np.ndarray | None = None) -> "Snapshot":
        """A later version. gone: the row ids that this one has and the later one has not, where they are known."""
        header = Header.of(dataset)
        if header != self.header:  # encoded anew: all is different
            same = header.fingerprint == self.header.fingerprint
            later = Snapshot(dataset, self._model if same else None)
            if self._model is not None:
                _ = later.model  # who could search before must be able to, or hear why not, before anything changes
            return later
        later = Snapshot(dataset, self._model)
        with self._reading:
            searched, names = self._searched, self._names
        if searched is None and names is None:
            return later
        known = {fragment.fragment_id for fragment in self.dataset.get_fragments()}
        new = [fragment for fragment in dataset.get_fragments() if fragment.fragment_id not in known]
        with reading(dataset):
            if names is not None:
                table = _newer(dataset, new, ["id"], names.last)
                names = names.insert(table["id"], _row_ids(table))
            if searched is not None:
                searched = _changed(searched, dataset, header, new, gone)
        later._searched, later._names = searched, names
        return later

    # What is searched

    @property
    def searched(self) -> Searched:
        if self._searched is None:
            with self._reading:
                if self._searched is None:
                    model = self.model
                    with reading(self.dataset):
                        self._searched = _read_all(self.dataset, self.header, model)
        return self._searched

    def searcher(self, where: str | None = None, ids: Collection[str] | None = None) -> Searcher:
        """What searches the items that pass a filter. The searchers of the last few filters are kept."""
        if where is None and ids is None:
            return self.searched.searcher
        key = where, None if ids is None else frozenset(ids)
        found = self._filtered.get(key)
        if found is None:
            searched = self.searched
            found = searched.searcher.restrict(np.searchsorted(searched.row_ids, self.row_ids(*key)))
        with self._reading:
            self._filtered.pop(key, None)
            self._filtered[key] = found
            while len(self._filtered) > FILTERS:
                del self._filtered[next(iter(self._filtered))]
        return found

    def hits(self, found: TopK) -> dict[int, dict[str, Any]]:
        """The records behind the rows that were found, by row."""
        rows = np.unique(found.rows[found.rows >= 0])
        with reading(self.dataset):
            records = take(self.dataset, self.searched.row_ids[rows], ITEM_COLUMNS)
        return dict(zip(rows.tolist(), records, strict=True))

    def names(self, rows: np.ndarray) -> list[str]:
        """The ids of rows that were found."""
        row_ids = self.searched.row_ids[rows]
        with reading(self.dataset):
            return [record["id"] for record in take(self.dataset, row_ids, ["id"])]

    # Rows

    def items(self, where: str | None = None, limit: int | None = None, offset: int = 0) -> list[Item]:
        """The items that pass a filter, in the order of the index: `limit` of them from `offset`."""

        def rows() -> list[dict[str, Any]]:
            return self.dataset.to_table(columns=ITEM_COLUMNS, filter=where, limit=limit, offset=offset).to_pylist()

        if where is not None:
            return [row_to_item(row) for row in self.evaluate(where, rows)]
        with reading(self.dataset):
            return [row_to_item(row) for row in rows()]

    def row_ids(self, where: str | None, ids: frozenset[str] | None = None) -> np.ndarray:
        """Of the rows that satisfy a condition and have one of the ids."""
        chosen = None if ids is None else self.row_ids_of(list(ids))
        if where is None:
            return _NONE if chosen is None else chosen
        table = self.evaluate(where, lambda: self.dataset.to_table(columns=[], filter=where, with_row_id=True))
        satisfying = table["_rowid"].to_numpy().astype(np.int64)
        return satisfying if chosen is None else np.intersect1d(satisfying, chosen, assume_unique=True)

    def evaluate(self, where: str, read: Callable[[], Any]) -> Any:
        """What `read` gives; it hands the condition to Lance."""
        check_condition(where, set(self.header.schema().names).difference(FILTER_COLUMNS))
        try:
            return read()
        except OSError as error:
            raise Unreadable(self.dataset, error) from error
        except ValueError as error:
            if "Not found" in str(error):  # a file, not a field
                raise Unreadable(self.dataset, error) from error
            raise unusable(where, error, self.fields) from error

    @property
    def fields(self) -> dict[str, str]:
        """What conditions can name, and what each is."""
        return dict.fromkeys(FILTER_COLUMNS, "text") | metadata_fields(self.dataset, self.header)

    def find(self, ids: Sequence[str] | pa.ChunkedArray) -> dict[str, list[int]]:
        """Those of the ids that are there, and the row id of each; several, if other programs wrote to the index.

        The first call reads all ids.
        """
        strings = ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else _strings(ids)
        with self._reading, reading(self.dataset):
            if self._names is None:
                batches = self.dataset.scanner(columns=["id"], with_row_id=True, batch_size=READ).to_batches()
                self._names = Names.of(((batch["id"], batch["_rowid"].to_numpy()) for batch in batches), len(self))
            names = self._names
        candidates = names.candidates(strings)
        if not len(candidates):
            return {}
        which = f"_rowid IN ({', '.join(map(str, candidates.tolist()))})" if len(candidates) < MANY else has_id(strings)
        with reading(self.dataset):
            table = self.dataset.to_table(columns=["id"], filter=which, with_row_id=True)
        wanted = set(strings.to_pylist())
        found: dict[str, list[int]] = {}
        for id, row_id in zip(table["id"].to_pylist(), table["_rowid"].to_pylist(), strict=True):
            if id in wanted:
                found.setdefault(id, []).append(row_id)
        return found

    def row_ids_of(self, ids: Sequence[str] | pa.ChunkedArray) -> np.ndarray:
        """The row ids of all rows that have one of these ids, ascending."""
        return np.array(sorted(itertools.chain.from_iterable(self.find(ids).values())), np.int64)

    def records(self, ids: Sequence[str], columns: Sequence[str]) -> dict[str, dict[str, Any]]:
        """These columns of the rows that have these ids, by id."""
        columns = list(dict.fromkeys(["id", *columns]))
        with reading(self.dataset):
            if self._names is None and len(ids) < MANY:
                rows = self.dataset.to_table(columns=columns, filter=has_id(_strings(ids))).to_pylist()
            else:
                rows = take(self.dataset, self.row_ids_of(ids), columns)
        return {row["id"]: row for row in rows}

    def codes(self) -> np.ndarray:
        """(n, levels) of all rows, in order."""
        with reading(self.dataset):
            return to_codes(self.dataset.to_table(columns=code_columns(self.header)), self.header)

    def coded(self, row_ids: np.ndarray) -> list[CodedItem]:
        """The items in these rows, and their IDs."""
        columns = code_columns(self.header)
        with reading(self.dataset):
            rows = take(self.dataset, row_ids, [*ITEM_COLUMNS, *columns])
        return [CodedItem(row_to_item(row), tuple(row[column] for column in columns)) for row in rows]

    def browse(self, pattern: Sequence[int | None], limit: int, offset: int) -> CodePage:
        """What has these codes: neighbours by ID side by side."""
        trie, row_ids = self.searched.searcher.trie, self.searched.row_ids
        at = trie.matching(pattern)
        children: list[CodeChild] = []
        if len(pattern) < trie.levels and len(at):
            codes, first, counts = np.unique(trie.codes[len(pattern)][at], return_index=True, return_counts=True)
            examples = self.names(trie.order[at[first]])
            found = zip(codes.tolist(), counts.tolist(), examples, strict=True)
            children = sorted((CodeChild(*child) for child in found), key=lambda child: -child.items)
        shown = row_ids[trie.order[at[offset : offset + limit]]]
        ids = int((trie.first_diff_level[at] < trie.levels).sum())
        return CodePage(len(at), ids, children, self.coded(shown))


def scan(dataset: lance.LanceDataset, columns: Sequence[str], size: int) -> Iterator[pa.RecordBatch]:
    """Columns of all rows in their order, and the row ids, so many rows at a time."""
    scanner = dataset.scanner(columns=list(columns), batch_size=size, with_row_id=True, scan_in_order=True)
    with reading(dataset):
        batches = iter(scanner.to_batches())
    while True:
        with reading(dataset):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def check_model(path: Path, header: Header, model: Genius) -> None:
    if model.fingerprint != header.fingerprint:
        theirs, ours = header.model or "an unsaved model", model.source or "an unsaved model"
        raise BadIndex(
            f"{path} was made with {theirs} (fingerprint {header.fingerprint}), which is not {ours} "
            f"(fingerprint {model.fingerprint}). Open it with the model it was made with, or encode it anew with "
            "`genius index reindex`."
        )


def _read_all(dataset: lance.LanceDataset, header: Header, model: Genius) -> Searched:
    size, columns = dataset.count_rows(), code_columns(header)
    codes, room = np.empty((size, len(columns)), np.uint16), AppendBuffer.of_size(size, 1, np.dtype(np.int64))
    row_ids = room.first(size)[:, 0]
    embeddings = AppendBuffer.of_size(size, header.dim, np.dtype(np.float16)) if header.embeddings else None
    start = 0
    read = [*columns, "embedding"] if header.embeddings else columns
    for batch in dataset.scanner(columns=read, with_row_id=True, scan_in_order=True).to_batches():
        end = start + len(batch)
        codes[start:end], row_ids[start:end] = to_codes(batch, header), batch["_rowid"].to_numpy()
        if embeddings is not None:
            embeddings.first(end)[start:end] = to_matrix(batch["embedding"])
        start = end
    if start < size or (np.diff(row_ids) <= 0).any():
        raise BadIndex(f"{dataset.uri} was changed by another program. Encode it anew with `genius index reindex`.")
    return Searched(Searcher(model, codes, embeddings), room)


def _newer(dataset: lance.LanceDataset, fragments: list[Any], columns: Sequence[str], last: int) -> pa.Table:
    """Rows of these fragments that were added after the row with the id `last`; others were only moved there."""
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
    return table["_rowid"].to_numpy().astype(np.int64)


def _changed(
    searched: Searched, dataset: lance.LanceDataset, header: Header, new: list[Any], gone: np.ndarray | None
) -> Searched:
    """In step with a later version."""
    searcher, row_ids, room = searched.searcher, searched.row_ids, searched.room
    last = int(row_ids[-1]) if len(row_ids) else -1
    read = [*code_columns(header), "embedding"] if header.embeddings else code_columns(header)
    added = _newer(dataset, new, read, last)
    if gone is None and len(searcher) + len(added) != dataset.count_rows():
        now = _row_ids(dataset.to_table(columns=[], with_row_id=True))
        there = np.zeros(len(row_ids), bool)
        there[searcher.trie.order] = True
        there &= ~np.isin(row_ids, now, assume_unique=True)
        gone = row_ids[there]
    if gone is not None and len(gone):
        searcher = searcher.remove(np.searchsorted(row_ids, gone))
    if len(added):
        room = room.put(_row_ids(added)[:, None], behind=searcher.rows)
        embeddings = to_matrix(added["embedding"]) if header.embeddings else None
        searcher = searcher.insert(to_codes(added, header), embeddings)
    return Searched(searcher, room)
