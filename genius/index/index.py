"""Index: a folder of items that can be added to, changed, deleted from and searched.

One Lance dataset (`items.lance`) holds the items, their codes and their embeddings, and names the model that made them;
the codes are read into memory and searched there. This module is the whole public surface; how items become rows is in
`writing`, what is in memory in `snapshot`, who may write in `collection`, how it lies on disk in `storage`.
"""

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

import lance
import numpy as np

from genius.data.items import Item, Modality, Query
from genius.encoders.base import Vectors
from genius.errors import BadIndex, BadItem, GeniusError
from genius.index import session as collection
from genius.index.commits import CompactReport, create_dataset
from genius.index.display import index_html
from genius.index.ingest import add_items
from genius.index.reindex import reindex
from genius.index.session import Version
from genius.index.snapshot import Snapshot, check_model, scan
from genius.index.storage import (
    ITEM_COLUMNS,
    ITEMS,
    Header,
    metadata_fields,
    open_dataset,
    row_to_item,
)
from genius.index.vectors import add_vectors
from genius.model.genius import Genius
from genius.search.options import SearchKeywords, SearchOptions
from genius.search.results import AddReport, BatchResult, CodedItem, CodePage, Hit, Hits, SearchResult, TopK
from genius.search.searcher import Searcher
from genius.search.trie import Trie

if TYPE_CHECKING:
    from genius.index.export import ExportReport
    from genius.index.verify import Problem

__all__ = ["AddReport", "CompactReport", "Hit", "Hits", "Index", "IndexInfo", "Version"]


@dataclass(frozen=True)
class IndexInfo:
    """What an index holds.

    ids: how many distinct IDs (code sequences) there are; items that look alike can share one.
    fields: the metadata fields that conditions can name, and whether each is "text", "number" or "boolean".
    generation: how often all items have been encoded anew.
    """

    path: str
    items: int
    modalities: dict[str, int]
    ids: int
    fields: dict[str, str]
    model: str | None
    fingerprint: str
    sizes: tuple[int, ...]
    dim: int
    embeddings: bool
    store_images: bool
    generation: int
    version: int
    bytes: int


class Index:
    """Items on disk that can be searched. Made by `Index.create` or `Index.open`.

    >>> index = Index.create("photos.genius", Genius.from_pretrained("mini"))  # doctest: +SKIP
    >>> index.add([Item("p1", image="cat.jpg"), Item("t1", text="How to groom a cat")])  # doctest: +SKIP
    >>> index.search(Query(text="a cat asleep on a sofa", target="image"), k=10)  # doctest: +SKIP
    >>> index.search(Query(text="cat care"), where="lang = 'en' AND year >= 2000")  # doctest: +SKIP

    An open index is a snapshot: what other processes write is seen after `refresh`, or after a write of its own. Any
    number of processes may read; writers take turns, commit by commit. May be used from many threads.
    """

    def __init__(self, collection: collection.Collection) -> None:
        self._collection = collection

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], model: Genius, embeddings: bool = True, store_images: bool = False
    ) -> Self:
        """A new, empty index in a folder that is empty or does not exist yet.

        embeddings: keep each item's vector (2 bytes a dimension) for exact re-ranking; without, codes re-rank.
        store_images: keep a copy of each image file. Images given as bytes or PIL images are always kept.
        """
        folder = Path(path)
        _check_free(folder)
        if max(model.sizes) > 1 << 16:
            raise BadIndex(
                f"The model has levels of {max(model.sizes)} codes; an index holds at most {1 << 16} a level."
            )
        header = Header(_source(model), model.fingerprint, tuple(model.sizes), model.dim, embeddings, store_images)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with collection.FileLock(folder / collection.LOCK):
                _check_free(folder)  # another process may have come first
                shutil.rmtree(folder / ITEMS, ignore_errors=True)
                try:
                    dataset = create_dataset(folder, header)
                except OSError:
                    shutil.rmtree(folder / ITEMS, ignore_errors=True)
                    raise
        except OSError as error:
            raise BadIndex(f"{folder} cannot be created ({error}). Check the path and its permissions.") from error
        return cls(collection.Collection(folder, Snapshot(dataset, model)))

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        model: Genius | None = None,
        *,
        version: int | None = None,
        refresh: float | None = None,
        wait: float = 10.0,
    ) -> Self:
        """An index made before.

        model: the one that made it; without, it is loaded from where the index says when it is first needed.
        version: the index as it was then (see `versions`); it can be read, but not written to.
        refresh: look for what others have written every so many seconds, beside the searches (0: before each of them);
          without, only `refresh()` and writing do.
        wait: seconds that a write waits while another process is writing.
        """
        folder = Path(path)
        snapshot = Snapshot(open_dataset(folder, version), model)
        if model is not None:
            check_model(folder, snapshot.header, model)
        return cls(collection.Collection(folder, snapshot, version is not None, refresh, wait))

    @property
    def path(self) -> Path:
        return self._collection.path

    @property
    def header(self) -> Header:
        return self._collection.snapshot.header

    @property
    def model(self) -> Genius:
        """The model that made this index."""
        return self._collection.snapshot.model

    @property
    def version(self) -> int:
        """The number of the version that is read."""
        return self._collection.snapshot.version

    @property
    def dataset(self) -> lance.LanceDataset:
        """The items as Lance has them, for reading only."""
        return self._collection.snapshot.dataset

    def __len__(self) -> int:
        return len(self._collection.snapshot)

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and bool(self._collection.read(lambda snapshot: snapshot.records([id], ["id"])))

    def _repr_html_(self) -> str:
        return self._collection.read(lambda snapshot: index_html(self.path, snapshot))

    def __repr__(self) -> str:
        return f"Index({str(self.path)!r}, {len(self)} items, model {self.header.model!r})"

    # Writing

    def add(
        self,
        items: Iterable[Item | BadItem],
        progress: bool = False,
        on_commit: Callable[[list[str]], None] | None = None,
    ) -> AddReport:
        """Add new items. Those that cannot be read, or whose id another item has, are left out and listed.

        Items are taken one batch at a time, so a generator of any length will do, and committed some 2,000 at a time;
        on_commit is called with the ids of each commit, once it is safe on the disk. An item that is there just so is
        not encoded again: to complete an addition that was broken off, repeat it.
        """
        return add_items(self._collection, items, False, progress, on_commit)

    def upsert(
        self,
        items: Iterable[Item | BadItem],
        progress: bool = False,
        on_commit: Callable[[list[str]], None] | None = None,
    ) -> AddReport:
        """Like `add`, but an item whose id is taken replaces the one that has it; in one call, the last one stays.

        Only new text or a new image is encoded. A changed item moves to the end of the index.
        """
        return add_items(self._collection, items, True, progress, on_commit)

    def add_vectors(
        self,
        ids: Sequence[str],
        vectors: Vectors,
        metadata: Sequence[dict[str, Any]] | None = None,
        replace: bool = False,
        on_commit: Callable[[list[str]], None] | None = None,
    ) -> AddReport:
        """Add items by their vectors alone: they can be found, but have no text or image to show or encode anew.

        Ids must differ from each other; where one is taken, replace decides as between `add` and `upsert`.
        """
        return add_vectors(self._collection, ids, vectors, metadata, replace, on_commit)

    def delete(self, ids: str | Iterable[str]) -> int:
        """Delete the items with these ids; ids that are not in the index are passed over. Returns how many went."""
        wanted = [ids] if isinstance(ids, str) else list(ids)
        if not wanted:
            return 0
        with self._collection.writing() as snapshot:
            gone = snapshot.row_ids_of(wanted)
            if len(gone):
                self._collection.change(gone)
        return len(gone)

    def reindex(self, model: Genius | None = None, progress: bool = False) -> AddReport:
        """Encode all items anew from their texts and images, with another model or the same, as one new version.

        Others go on reading the old one until they refresh. With the same model, items that have only vectors, or that
        cannot be read, stay as they are; another model refuses to begin if there are any.
        """
        return reindex(self._collection, model, None if model is None else _source(model), progress)

    def compact(self, keep: timedelta | None = timedelta(days=1)) -> CompactReport:
        """Merge small files, and remove versions older than `keep` (None: none) and what broken-off writes left.

        Whoever still reads a version that is removed goes on with the latest one at the next search.
        """
        return self._collection.compact(keep)

    def drop_fragments(self, numbers: Sequence[int]) -> int:
        """Take these fragments out, readable or not (`verify` names damaged ones). Returns how many items went."""
        return self._collection.drop_fragments(numbers)

    # Versions

    def refresh(self) -> bool:
        """See what other processes have written since; whether there was something."""
        return self._collection.refresh()

    def versions(self) -> list[Version]:
        """The states that can still be opened, oldest first."""
        return self._collection.versions()

    # Reading

    @overload
    def get(self, id: str) -> Item | None: ...

    @overload
    def get(self, id: list[str]) -> list[Item | None]: ...

    def get(self, id: str | list[str]) -> Item | list[Item | None] | None:
        """The item with this id, or None; for a list of ids, a list of these."""
        ids = [id] if isinstance(id, str) else list(id)
        rows = self._collection.read(lambda snapshot: snapshot.records(ids, ITEM_COLUMNS))
        items = [row_to_item(rows[one]) if one in rows else None for one in ids]
        return items[0] if isinstance(id, str) else items

    def items(self) -> Iterator[Item]:
        """All items, one after the other, in the order in which they were added."""
        for batch in scan(self.dataset, ITEM_COLUMNS, 1024):
            yield from map(row_to_item, batch.to_pylist())

    def ids(self, rows: np.ndarray) -> list[str]:
        """The ids behind rows that `search_vectors` found."""
        return self._collection.read(lambda snapshot: snapshot.names(np.asarray(rows, np.int64)))

    @property
    def codes(self) -> np.ndarray:
        """The IDs of all items, (n, levels) uint16, in the order in which they were added."""
        return self._collection.read(Snapshot.codes)

    @property
    def fields(self) -> dict[str, str]:
        """What conditions can name, and what each is: "text", "number" or "boolean"."""
        return self._collection.snapshot.fields

    def count(self, where: str | None = None) -> int:
        """How many items satisfy a condition (see `search`); without one, how many there are."""
        return len(self) if where is None else self._collection.read(lambda snapshot: len(snapshot.row_ids(where)))

    def filter(self, where: str | None = None, limit: int | None = None, offset: int = 0) -> list[Item]:
        """The items that satisfy a condition (see `search`), in the order of the index: `limit` of them from `offset`.

        Without a condition, any.
        """
        if limit is not None and limit < 1:
            raise GeniusError(f"limit is {limit}; it must be at least 1.")
        if offset < 0:
            raise GeniusError(f"offset is {offset}; it must not be negative.")

        return self._collection.read(lambda snapshot: snapshot.items(where, limit, offset))

    # Codes

    @overload
    def get_coded(self, id: str) -> CodedItem | None: ...

    @overload
    def get_coded(self, id: list[str]) -> list[CodedItem | None]: ...

    def get_coded(self, id: str | list[str]) -> CodedItem | list[CodedItem | None] | None:
        """Like `get`, with the codes."""
        ids = [id] if isinstance(id, str) else list(id)
        rows = self._collection.read(lambda snapshot: snapshot.coded(snapshot.row_ids_of(ids)))
        found = {coded.item.id: coded for coded in rows}
        return found.get(id) if isinstance(id, str) else [found.get(one) for one in ids]

    def browse_codes(self, pattern: Sequence[int | None] = (), limit: int = 50, offset: int = 0) -> CodePage:
        """The items whose IDs begin with these codes, where None stands for any code, and which codes come next.

        >>> index.browse_codes([0, 17])  # images whose first code of meaning is 17  # doctest: +SKIP
        """
        levels = len(self.header.sizes)
        if len(pattern) > levels:
            raise GeniusError(f"{len(pattern)} codes were given, but the IDs of this index have {levels}.")
        if limit < 0 or offset < 0:
            raise GeniusError(f"limit is {limit} and offset {offset}; they must not be negative.")
        return self._collection.read(lambda snapshot: snapshot.browse(pattern, limit, offset))

    # Search

    @overload
    def search(self, query: Query, k: int = SearchOptions.k, **options: Unpack[SearchKeywords]) -> Hits: ...

    @overload
    def search(
        self, query: Sequence[Query], k: int = SearchOptions.k, **options: Unpack[SearchKeywords]
    ) -> list[Hits]: ...

    def search(
        self, query: Query | Sequence[Query], k: int = SearchOptions.k, **options: Unpack[SearchKeywords]
    ) -> Hits | list[Hits]:
        """Find the k best items for a query. A query with a target modality finds only items of that modality.

        Args:
            query: One query, or a list of queries.
            k: Number of hits per query. Fewer come back only if the index, or the filter, has fewer items.
            **options: mode, beam, budget, where and ids: see `SearchOptions`. A filter `where` is SQL as Lance reads
                it, over id, text, modality ("image", "text" or "image,text"), the metadata fields, and metadata, the
                whole metadata as JSON. Quote field names that are not identifiers with backticks. `fields` lists the
                fields and their types; the first items that have a field decide its type. A field is null where an
                item has no such value.

        Returns:
            Hits, best first; for a list of queries, a list of Hits.

        Raises:
            GeniusError: An option or the filter is not valid.
        """
        if isinstance(query, Query):
            return self.answer(query, k, **options).hits
        return [result.hits for result in self.answer(query, k, **options)]

    @overload
    def answer(self, query: Query, k: int = SearchOptions.k, **options: Unpack[SearchKeywords]) -> SearchResult: ...

    @overload
    def answer(
        self, query: Sequence[Query], k: int = SearchOptions.k, **options: Unpack[SearchKeywords]
    ) -> list[SearchResult]: ...

    def answer(
        self, query: Query | Sequence[Query], k: int = SearchOptions.k, **options: Unpack[SearchKeywords]
    ) -> SearchResult | list[SearchResult]:
        """Like `search`, with the beams, the number of ranked items and the time of each stage."""
        chosen = SearchOptions(k=k, **options)
        queries = [query] if isinstance(query, Query) else list(query)
        for one in queries:
            if not isinstance(one, Query):
                raise GeniusError(f"search takes a Query or a list of them, not {one!r}. Write Query(text=...).")

        def read(snapshot: Snapshot) -> list[SearchResult]:
            snapshot.searcher(chosen.where, chosen.ids)  # refuses a bad filter, also without queries
            if not queries:
                return []
            started = time.perf_counter()
            vectors = snapshot.model.encode_queries(queries)
            encoded = {"encode": time.perf_counter() - started}
            found = _search(snapshot, vectors, [one.target_modality for one in queries], chosen)
            return _read_results(snapshot, found, encoded)

        results = self._collection.read(read)
        return results[0] if isinstance(query, Query) else results

    def answer_vectors(
        self,
        vectors: Vectors,
        targets: Sequence[Modality | None] | None = None,
        k: int = SearchOptions.k,
        **options: Unpack[SearchKeywords],
    ) -> list[SearchResult]:
        """Like `answer`, for encoded queries. targets: the target modality of each."""
        chosen = SearchOptions(k=k, **options)
        return self._collection.read(
            lambda snapshot: _read_results(snapshot, _search(snapshot, vectors, targets, chosen), {})
        )

    def search_vectors(
        self,
        vectors: Vectors,
        targets: Sequence[Modality | None] | None = None,
        k: int = SearchOptions.k,
        **options: Unpack[SearchKeywords],
    ) -> TopK:
        """Like `search`, for encoded queries. Returns row numbers, which `ids` turns into item ids, and scores.

        A row keeps its number while this index is open, until the item is deleted, replaced or re-encoded.
        """
        chosen = SearchOptions(k=k, **options)
        return self._collection.read(lambda snapshot: _search(snapshot, vectors, targets, chosen).top)

    @property
    def searcher(self) -> Searcher:
        """The codes and embeddings in memory, which `search` searches."""
        return self._collection.read(lambda snapshot: snapshot.searcher())

    # Inspection

    def info(self) -> IndexInfo:
        """What the index holds and which model it belongs to; does not load the model."""
        codes = self.codes
        snapshot = self._collection.snapshot
        kinds = Counter(snapshot.dataset.to_table(columns=["modality"])["modality"].to_pylist())
        header = asdict(snapshot.header)
        del header["format"]
        return IndexInfo(
            path=str(self.path),
            items=len(codes),
            modalities={modality.label: kinds[modality.label] for modality in Modality},
            ids=int((Trie(codes).first_diff_level < codes.shape[1]).sum()),
            fields=metadata_fields(snapshot.dataset, snapshot.header),
            version=snapshot.version,
            bytes=sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file()),
            **header,
        )

    def verify(self, sample: int = 100, deep: bool = False, progress: bool = False) -> "list[Problem]":
        """Everything that is wrong with the index; empty when all is well.

        sample: so many items are encoded anew, and must get the codes they have; deep: all of them.
        """
        from genius.index.verify import verify

        return verify(self, sample, deep, progress)

    def export(
        self,
        path: str | os.PathLike[str],
        format: str | None = None,
        copy_images: bool = False,
        progress: bool = False,
    ) -> "ExportReport":
        """Write all items to a file or folder: "jsonl", "parquet" or "mbeir"; without `format`, the name decides."""
        from genius.index.export import export

        return export(self, path, format, copy_images, progress)


def _check_free(folder: Path) -> None:
    """Refuses a folder that has anything in it but what a creation that was broken off has left."""
    if not folder.exists():
        return
    manifests = folder / ITEMS / "_versions"
    if (
        not folder.is_dir()
        or any(entry.name not in (ITEMS, collection.LOCK) for entry in folder.iterdir())
        or (manifests.is_dir() and any(manifests.glob("*.manifest")))
    ):
        raise BadIndex(f"{folder} exists already and is not empty. Open it with Index.open, or choose another folder.")


def _source(model: Genius) -> str | None:
    """Where the model can be loaded from again, also from another working directory."""
    return os.path.abspath(model.source) if model.source and os.path.isdir(model.source) else model.source


def _search(
    snapshot: Snapshot, vectors: Vectors, targets: Sequence[Modality | None] | None, options: SearchOptions
) -> BatchResult:
    """Fuse encoded queries and search the items that pass the filter."""
    model = snapshot.model
    fused, embedding = model.fuse(vectors), vectors.embedding()
    searcher = snapshot.searcher(options.where, options.ids)
    if targets is None or model.first_code == "modality":
        return searcher.search(fused, embedding, targets, options)
    # The first code is not the modality here, so a target is a filter on the column `modality`.
    found = searcher.search(fused, embedding, None, options)
    for target in {target for target in targets if target is not None}:
        where = f"modality = '{target.label}'"
        where = where if options.where is None else f"({options.where}) AND {where}"
        queries = [query for query, other in enumerate(targets) if other == target]
        searcher = snapshot.searcher(where, options.ids)
        found.replace(queries, searcher.search(fused[queries], embedding[queries], None, options))
    return found


def _read_results(snapshot: Snapshot, found: BatchResult, seconds: dict[str, float]) -> list[SearchResult]:
    """Read the items of all hits at once. seconds: of the stages before."""
    started = time.perf_counter()
    records = snapshot.hits(found.top)
    hits = [
        Hits(
            _hit(records[row], score, codes)
            for row, score, codes in zip(*(values.tolist() for values in top), strict=True)
            if row >= 0
        )
        for top in zip(*found.top, strict=True)
    ]
    seconds |= found.seconds | {"read": time.perf_counter() - started}
    return [
        SearchResult(of_query, trace.branches, trace.candidates, seconds)
        for of_query, trace in zip(hits, found.traces, strict=True)
    ]


def _hit(record: dict[str, Any], score: float, codes: list[int]) -> Hit:
    return Hit(record["id"], score, Modality.parse(record["modality"]), tuple(codes), row_to_item(record))
