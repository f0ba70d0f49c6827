"""Index: a folder of items that can be searched, added to, changed and deleted from.

One Lance dataset (`items.lance`) holds the items, their codes and their embeddings, and names the model that made them.
Codes and embeddings are read into memory and searched there. This module is the public surface of the room.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Self, Unpack, overload

import lance
import numpy as np

from genius.data.items import Item, Modality, QueryLike, to_queries
from genius.encoders.base import Vectors
from genius.errors import BadItem, GeniusError
from genius.index.browse import code_page, coded_items
from genius.index.commits import CompactReport
from genius.index.display import index_html
from genius.index.export import ExportReport, export
from genius.index.folder import Folder, open_folder
from genius.index.info import IndexInfo, index_info
from genius.index.ingest import add_items
from genius.index.query import answer_queries, read_hits, search_vectors
from genius.index.recode import read_embeddings, recode
from genius.index.reindex import reindex
from genius.index.restore import RestoreReport
from genius.index.session import Session, Version
from genius.index.snapshot import Snapshot
from genius.index.storage import ITEM_COLUMNS, Header, row_to_item
from genius.index.vectors import add_vectors
from genius.index.verify import IndexProblem, damaged_fragments, file_problems, find_problems
from genius.index.versions import check_files, unrecorded_files
from genius.model.genius import Genius
from genius.runtime.wording import counted
from genius.search.options import SearchKeywords, SearchOptions, search_options, whole_number
from genius.search.results import AddReport, CodedItem, CodePage, HitLists, Hits, SearchResult, TopK
from genius.search.searcher import Searcher


class Index:
    """Items on disk that can be searched. Made by `Index.create` or `Index.open`.

    An open index reads one version: it sees what other processes write after `refresh` or after a write of its own. Any
    number of processes may read; writers take turns, commit by commit. Indexes may be used from many threads.

    `len(index)` is the number of items, `"p1" in index` looks up an id, and iterating yields all items, read from disk
    a block at a time.

    >>> index = Index.create("photos.genius", Genius.from_pretrained("mini"))  # doctest: +SKIP
    >>> index.add([Item("p1", image="cat.jpg"), Item("t1", text="How to groom a cat")])  # doctest: +SKIP
    >>> index.search("a cat asleep on a sofa", k=10)  # doctest: +SKIP
    >>> index.search(Query(text="a cat asleep on a sofa", target="image"), k=10)  # doctest: +SKIP
    >>> index.search(Query(text="cat care"), where="lang = 'en' AND year >= 2000")  # doctest: +SKIP
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        model: Genius,
        embeddings: bool = True,
        store_images: bool = False,
        *,
        storage_options: Mapping[str, str] | None = None,
    ) -> Self:
        """Create an empty index.

        Args:
            path: A folder that is empty or does not exist, or the URL of one in an object store, such as
                s3://bucket/photos.genius, gs://... or az://...
            model: The model that encodes items and queries.
            embeddings: Keep each item's vector (2 bytes per dimension) for re-ranking. Without, codes re-rank.
            store_images: Keep a copy of each image file. Images given as bytes or PIL images are always kept.
            storage_options: Options of Lance for the object store, such as {"aws_region": "eu-west-1"}. By default,
                environment variables such as AWS_ACCESS_KEY_ID are used.

        Raises:
            BadIndex: The folder is not empty or cannot be created.
        """
        return cls(Session.create(open_folder(path, storage_options), model, embeddings, store_images))

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        model: Genius | None = None,
        *,
        version: int | None = None,
        refresh: float | None = None,
        wait: float = 10.0,
        storage_options: Mapping[str, str] | None = None,
        shared: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Open an index.

        Args:
            path: The folder, or its URL in an object store.
            model: The model that made the index. By default it is loaded when first needed, from the source that the
                index names.
            version: Open an older version (see `versions`), which cannot be written to.
            refresh: Seconds between looks for what other processes wrote, in a thread of its own. 0 looks before
                every read. By default only `refresh()` and writes look.
            wait: Seconds that a write waits while another process is writing.
            storage_options: Options of Lance for the object store, see `create`.
            shared: A private folder of this machine, through which processes that open the same version share codes
                and embeddings in memory. Delete it when they have ended.

        Raises:
            BadIndex: There is no such index or version, or another model made it.
        """
        return cls(
            Session.open(
                open_folder(path, storage_options),
                model,
                version,
                refresh,
                wait,
                None if shared is None else Path(shared),
            )
        )

    @property
    def path(self) -> Path | str:
        """Folder of the index; its URL, as a string, in an object store."""
        return self._session.folder.path

    @property
    def _folder(self) -> Folder:
        """Files of the index."""
        return self._session.folder

    @property
    def header(self) -> Header:
        """What the index says about its model and columns."""
        return self._session.snapshot.header

    @property
    def model(self) -> Genius:
        """The model that made the index."""
        return self._session.snapshot.model

    @property
    def version(self) -> int:
        """Number of the version that is read."""
        return self._session.snapshot.version

    @property
    def dataset(self) -> lance.LanceDataset:
        """The Lance dataset, for reading only."""
        return self._session.snapshot.dataset

    def __len__(self) -> int:
        return len(self._session.snapshot)

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and bool(self._session.read(lambda snapshot: snapshot.records([id], ["id"])))

    def __iter__(self) -> Iterator[Item]:
        return self.items()

    def __repr__(self) -> str:
        return f"Index({str(self.path)!r}, {counted(len(self), 'item')}, model {self.header.model!r})"

    def _repr_html_(self) -> str:
        return self._session.read(index_html)

    # Search

    @overload
    def search(self, query: QueryLike, k: int = SearchOptions.k, **options: Unpack[SearchKeywords]) -> Hits: ...  # type: ignore[overload-overlap]

    @overload
    def search(
        self, query: Iterable[QueryLike], k: int = SearchOptions.k, **options: Unpack[SearchKeywords]
    ) -> HitLists: ...

    def search(
        self, query: QueryLike | Iterable[QueryLike], k: int = SearchOptions.k, **options: Unpack[SearchKeywords]
    ) -> Hits | HitLists:
        """Find the items for a query. A query with a target modality finds only items of that modality.

        Args:
            query: A `Query`, or only its content: a string is a text, also if a file has this name; a path object
                (`pathlib.Path`), bytes or a PIL image is an image. Or a list of these.
            k: Number of hits per query. Fewer are returned only if the index, or the filter, has fewer items.
            **options: mode, beam, budget, where, ids and branch: see `SearchOptions`. A filter `where` is SQL as Lance
                reads it, over id, text, modality ("image", "text" or "image,text"), the metadata fields, and metadata,
                the whole metadata as JSON. Quote field names that are not identifiers with backticks. `fields` lists
                the fields and their types; the first items that have a field decide its type. A field is null where an
                item has no such value.

        Returns:
            Hits, best first; for a list of queries, a list of Hits. Notebooks show both.

        Raises:
            GeniusError: An option or the filter is not valid.
        """
        results = self.answer(query, k, **options)
        return results.hits if isinstance(results, SearchResult) else HitLists(result.hits for result in results)

    @overload
    def answer(self, query: QueryLike, k: int = SearchOptions.k, **options: Unpack[SearchKeywords]) -> SearchResult: ...  # type: ignore[overload-overlap]

    @overload
    def answer(
        self, query: Iterable[QueryLike], k: int = SearchOptions.k, **options: Unpack[SearchKeywords]
    ) -> list[SearchResult]: ...

    def answer(
        self, query: QueryLike | Iterable[QueryLike], k: int = SearchOptions.k, **options: Unpack[SearchKeywords]
    ) -> SearchResult | list[SearchResult]:
        """Like `search`, with the beams, the number of ranked items and the time of each stage."""
        chosen = search_options(k, **options)
        queries, single = to_queries(query)
        results = self._session.read(lambda snapshot: answer_queries(snapshot, queries, chosen))
        return results[0] if single else results

    def answer_vectors(
        self,
        vectors: Vectors,
        targets: Sequence[Modality | None] | None = None,
        k: int = SearchOptions.k,
        **options: Unpack[SearchKeywords],
    ) -> list[SearchResult]:
        """Like `answer`, for encoded queries. targets: the target modality of each."""
        chosen = search_options(k, **options)
        return self._session.read(
            lambda snapshot: read_hits(snapshot, search_vectors(snapshot, vectors, targets, chosen), {})
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
        chosen = search_options(k, **options)
        return self._session.read(lambda snapshot: search_vectors(snapshot, vectors, targets, chosen).top)

    def ids(self, rows: np.ndarray) -> list[str]:
        """Item ids of rows that `search_vectors` found."""
        numbers = np.asarray(rows, np.int64)
        return [record["id"] for record in self._session.read(lambda snapshot: snapshot.rows(numbers, ["id"]))]

    @property
    def searcher(self) -> Searcher:
        """The codes and embeddings in memory, which `search` searches."""
        return self._session.read(lambda snapshot: snapshot.searcher())

    # Reading

    @overload
    def get(self, id: str) -> Item | None: ...

    @overload
    def get(self, id: list[str]) -> list[Item | None]: ...

    def get(self, id: str | list[str]) -> Item | list[Item | None] | None:
        """The item with this id, or None; for a list of ids, a list."""
        ids = [id] if isinstance(id, str) else list(id)
        rows = self._session.read(lambda snapshot: snapshot.records(ids, ITEM_COLUMNS))
        items = [row_to_item(rows[one]) if one in rows else None for one in ids]
        return items[0] if isinstance(id, str) else items

    def items(self, where: str | None = None) -> Iterator[Item]:
        """All items, or those that pass a filter (see `search`), in the order of the index, read a block at a time.

        The items are those of the version that is read when the first one is asked for.
        """
        for batch in self._session.snapshot.batches(ITEM_COLUMNS, where):
            yield from map(row_to_item, batch.to_pylist())

    def filter(self, where: str | None = None, limit: int | None = None, offset: int = 0) -> list[Item]:
        """The items that pass a filter (see `search`), in the order of the index: `limit` of them from `offset`."""
        most = None if limit is None else whole_number("limit", limit, at_least=1)
        start = whole_number("offset", offset, at_least=0)
        return self._session.read(lambda snapshot: snapshot.items(where, most, start))

    def count(self, where: str | None = None) -> int:
        """Number of items that pass a filter (see `search`); without one, of all items."""
        return len(self) if where is None else self._session.read(lambda snapshot: len(snapshot.row_ids(where)))

    @property
    def fields(self) -> dict[str, str]:
        """Fields that filters can name, and their types: "text", "number" or "boolean"."""
        return self._session.snapshot.fields

    @property
    def codes(self) -> np.ndarray:
        """(n, levels) uint16 codes of all items, in the order in which they were added."""
        return self._session.read(Snapshot.codes)

    @overload
    def get_coded(self, id: str) -> CodedItem | None: ...

    @overload
    def get_coded(self, id: list[str]) -> list[CodedItem | None]: ...

    def get_coded(self, id: str | list[str]) -> CodedItem | list[CodedItem | None] | None:
        """Like `get`, with the codes."""
        ids = [id] if isinstance(id, str) else list(id)
        coded = self._session.read(lambda snapshot: coded_items(snapshot, snapshot.row_ids_of(ids)))
        found = {one.item.id: one for one in coded}
        return found.get(id) if isinstance(id, str) else [found.get(one) for one in ids]

    def browse_codes(self, pattern: Sequence[int | None] = (), limit: int = 50, offset: int = 0) -> CodePage:
        """The items whose IDs start with these codes, and the codes that come next.

        >>> index.browse_codes([0, 17])  # images whose second code is 17  # doctest: +SKIP

        Args:
            pattern: Codes of the first levels. None matches any code.
            limit: Number of items on the page.
            offset: Number of items before the page.
        """
        levels = len(self.header.sizes)
        if len(pattern) > levels:
            raise GeniusError(f"{len(pattern)} codes were given, but the IDs of this index have {levels}.")
        most, start = whole_number("limit", limit, at_least=0), whole_number("offset", offset, at_least=0)
        return self._session.read(lambda snapshot: code_page(snapshot, pattern, most, start))

    # Writing

    def add(
        self,
        items: Iterable[Item | BadItem],
        progress: bool = False,
        on_commit: Callable[[list[str]], None] | None = None,
        total: int | None = None,
    ) -> AddReport:
        """Add new items. Unchanged items are skipped, so repeating an interrupted call completes it.

        Args:
            items: Items, or a generator of any length. They are encoded batch by batch.
            progress: Whether to show a progress bar. It has a total if `items` has a length.
            on_commit: Called with the ids of each commit, once it is safe on disk. Items are committed about 2,000 at
                a time, or every 30 seconds.
            total: Number of items for the progress bar, if they come from a generator.

        Returns:
            How many items were added. Items that cannot be read, or whose id is taken, are listed in `bad`.

        Raises:
            KeyboardInterrupt: Ctrl-C. What was encoded is committed; the attribute `report` counts it.
        """
        return add_items(self._session, items, False, progress, on_commit, total)

    def upsert(
        self,
        items: Iterable[Item | BadItem],
        progress: bool = False,
        on_commit: Callable[[list[str]], None] | None = None,
        total: int | None = None,
    ) -> AddReport:
        """Like `add`, but an item whose id is taken replaces the older one. The last item of an id wins.

        Only new text or a new image is encoded. A changed item moves to the end of the index.
        """
        return add_items(self._session, items, True, progress, on_commit, total)

    def add_vectors(
        self,
        ids: Sequence[str],
        vectors: Vectors,
        metadata: Sequence[dict[str, Any]] | None = None,
        replace: bool = False,
        on_commit: Callable[[list[str]], None] | None = None,
    ) -> AddReport:
        """Add items as vectors only. They can be found, but have no text or image to show or to re-encode.

        Args:
            ids: Distinct item ids.
            vectors: One row per id.
            metadata: One dict per id.
            replace: Whether items replace older ones of the same id, as in `upsert`.
            on_commit: Called with the ids of each commit, once it is safe on disk.
        """
        return add_vectors(self._session, ids, vectors, metadata, replace, on_commit)

    def delete(self, ids: str | Iterable[str] | None = None, *, where: str | None = None) -> int:
        """Delete items by id, or all items that pass a filter, in one commit. `count(where)` tells how many these are.

        Args:
            ids: Ids of the items. Unknown ids are ignored.
            where: A filter, see `search`.

        Returns:
            Number of deleted items.

        Raises:
            GeniusError: Neither `ids` nor `where` is given, or both, or the filter is not valid.
        """
        if (ids is None) == (where is None):
            raise GeniusError("Give either ids or where, to say which items to delete.")
        chosen = None if ids is None else [ids] if isinstance(ids, str) else list(ids)
        if chosen == []:
            return 0
        with self._session.writing() as snapshot:
            gone = snapshot.row_ids(where) if chosen is None else snapshot.row_ids_of(chosen)
            if len(gone):
                self._session.change(gone)
        return len(gone)

    def reindex(self, model: Genius | None = None, progress: bool = False) -> AddReport:
        """Re-encode all items from their texts and images, with the same or another model, as one new version.

        Other processes read the old version until they refresh. With the same model, items that have only vectors or
        cannot be read stay as they are; with another model they are an error, and nothing is changed.
        """
        return reindex(self._session, model, progress)

    def recode(self, model: Genius, embeddings: bool = True, progress: bool = False) -> None:
        """Give all items the codes of another model with the same encoder, as one new version.

        Codes are made from the stored embeddings: nothing is encoded. `genius.fit.refit` fits such a model.

        Args:
            model: A model that was fitted with the encoder of this index.
            embeddings: Whether to keep the embeddings. Without them, there can be no new codes later.
            progress: Show a progress bar.

        Raises:
            BadIndex: The index stores no embeddings, or the model has other dimensions.
        """
        recode(self._session, model, embeddings, progress)

    def embeddings(self) -> tuple[np.ndarray, np.ndarray]:
        """Stored embeddings (n, dim) float16 and modalities (n,) of all items. Raises BadIndex if there are none."""
        return self._session.read(read_embeddings)

    def compact(self, keep: timedelta | None = timedelta(days=1)) -> CompactReport:
        """Merge small files, and remove versions older than `keep` (None keeps all) and files of interrupted writes.

        Processes that read a removed version continue with the latest one.
        """
        return self._session.compact(keep)

    # Versions and inspection

    def refresh(self) -> bool:
        """Move on to the latest version. Returns whether there was a newer one."""
        return self._session.refresh()

    def versions(self) -> list[Version]:
        """The versions that can still be opened, oldest first."""
        return self._session.versions()

    @staticmethod
    def restore(
        path: str | os.PathLike[str],
        version: int | None = None,
        *,
        wait: float = 10.0,
        storage_options: Mapping[str, str] | None = None,
    ) -> RestoreReport:
        """Go back to an earlier version, also if the newest one is damaged. It becomes the newest one again.

        Damaged files, and the manifests of versions that need them, go to the folder `quarantine` of the index. Nothing
        is deleted.

        Args:
            path: The folder, or its URL in an object store.
            version: The version to go back to. By default the newest one whose files are all as they were written.
            wait: Seconds to wait while another process is writing.
            storage_options: Options of Lance for the object store, see `create`.

        Raises:
            BadIndex: There is no such version, or no version is whole.
        """
        return Session.restore(open_folder(path, storage_options), version, wait)

    def info(self) -> IndexInfo:
        """What the index holds and which model made it. Does not load the model."""
        return self._session.read(index_info)

    def verify(self, sample: int = 100, deep: bool = False, progress: bool = False) -> list[IndexProblem]:
        """Find everything that is wrong with the index.

        Args:
            sample: Number of items, drawn at random, that are encoded again and must get the same codes.
            deep: Encode all items again.
            progress: Show a progress bar.

        Returns:
            The problems, each with the command that repairs it; an empty list if there are none.
        """
        return list(find_problems(self._session.snapshot, sample, deep, progress))

    @staticmethod
    def verify_files(
        path: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None
    ) -> list[IndexProblem]:
        """Compare all files of an index with their checksums, also if it is too damaged to be opened.

        `verify` does so too. The checksums were recorded when the files were written; files of earlier releases have
        none until `compact` records them.
        """
        folder = open_folder(path, storage_options)
        return list(file_problems(folder, check_files(folder)))

    def files_without_checksum(self) -> list[str]:
        """Files of this version that have no checksum. An earlier release wrote them; `compact` records checksums."""
        return unrecorded_files(self._session.folder, self._session.snapshot.dataset)

    def drop_damaged(self) -> int:
        """Remove the items whose files are damaged, and return how many there were.

        Items of which only codes or embeddings cannot be read stay; `reindex` repairs them.
        """
        damaged = damaged_fragments(self._session.snapshot)
        return self._session.drop_fragments(damaged) if damaged else 0

    def export(
        self,
        path: str | os.PathLike[str],
        format: str | None = None,
        copy_images: bool = False,
        progress: bool = False,
        where: str | None = None,
    ) -> ExportReport:
        """Write all items, or those that pass a filter, to a file or folder that does not exist yet.

        `genius index add` reads all formats. Vectors are not exported; they can be computed again from the content.

        Args:
            path: File or folder to write.
            format: By default, the suffix of `path` decides. "csv": the columns id, text and image, one for each
                metadata field, and metadata, a JSON object with the values that have no column. "jsonl": one object per
                line with id, text, image and metadata. Both put images that the index stores into the folder
                NAME_images. "parquet": columns id, text, image (a struct of bytes and path) and metadata (JSON).
                "mbeir": a folder with a candidate pool and images; metadata fields stand beside the fields of M-BEIR,
                unless they have the name of one.
            copy_images: Copy images of which the index has only the path, so that the export can be moved.
            progress: Show a progress bar.
            where: A filter, see `search`.

        Raises:
            BadData: The file exists already or cannot be written.
            BadIndex: Some items cannot be read.
        """
        return export(self._session.snapshot, path, format, where, copy_images, progress)
