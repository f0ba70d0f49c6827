"""Index: a folder of items that can be added to, deleted from and searched.

One Lance dataset (`items.lance`) holds the items, their codes and their embeddings; `index.json` says which model made
them. The codes are read into memory and searched by a Searcher. An index knows nothing of how vectors and codes are
made (the model) or how answers are found (Searcher): it keeps the items, and keeps memory in step with the disk.
"""

import itertools
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, overload

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from genius.conditions import check_condition, unusable
from genius.encoders import Vectors
from genius.errors import BadIndex, BadItem, GeniusError
from genius.items import Item, Modality, Query
from genius.model import Genius
from genius.searcher import Found, Part, Searcher, check_search
from genius.storage import (
    ITEM_COLUMNS,
    OPEN_COLUMNS,
    Header,
    field_columns,
    has_id,
    item_to_row,
    metadata_fields,
    open_dataset,
    read_matrix,
    row_to_item,
    to_lists,
    to_matrix,
)

BATCH = 128  # items that are prepared and encoded together
PARTS = 8  # filters whose items are remembered
COMMIT = 2048  # rows that are written together: every write is a file and a version of its own
_VERIFIED = ("id", "modality", "image", "codes", "embedding")


@dataclass(frozen=True)
class Hit:
    """One answer. `score` is a log-probability in mode "generate" and a cosine in the others; higher is better."""

    id: str
    score: float
    modality: Modality
    codes: tuple[int, ...]
    item: Item


@dataclass(frozen=True)
class AddReport:
    """How many items were written, and the ones that were not, with their reasons."""

    added: int
    bad: list[BadItem]


@dataclass(frozen=True)
class IndexInfo:
    """What an index holds.

    ids: how many distinct IDs (code sequences) there are; items that look alike can share one.
    fields: the metadata fields that conditions can name, and whether each is "text", "number" or "boolean".
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
    version: int
    bytes: int


@dataclass(frozen=True)
class _Prepared:
    """An item on its way into the index: its row so far, and what the model encodes."""

    id: str
    row: dict[str, Any]
    content: Any


class Index:
    """Items on disk that can be searched. Made by `Index.create` or `Index.open`.

    >>> index = Index.create("photos.genius", Genius.from_pretrained("mini"))  # doctest: +SKIP
    >>> index.add([Item("p1", image="cat.jpg"), Item("t1", text="How to groom a cat")])  # doctest: +SKIP
    >>> index.search(Query(text="a cat asleep on a sofa", target="image"), k=10)  # doctest: +SKIP
    >>> index.search(Query(text="cat care"), where="lang = 'en' AND year >= 2000")  # doctest: +SKIP

    An open index is a snapshot: what other processes write is seen after this one's next write, or when opened again.
    """

    def __init__(self, path: Path, header: Header, dataset: lance.LanceDataset, model: Genius | None) -> None:
        self.path = path
        self.header = header
        self._dataset = dataset
        self._model = model
        self._searcher: Searcher | None = None  # its rows are the dataset's, in order; None: to be read when needed
        self._parts: dict[tuple[str | None, frozenset[str] | None], Part] = {}  # of that searcher, the latest last

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], model: Genius, embeddings: bool = True, store_images: bool = False
    ) -> Self:
        """A new, empty index in a folder that is empty or does not exist yet.

        embeddings: keep each item's vector (2 bytes a dimension) for exact re-ranking; without, codes re-rank.
        store_images: keep a copy of each picture file. Pictures given as bytes or PIL images are always kept.
        """
        folder = Path(path)
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadIndex(
                f"{folder} exists already and is not empty. Open it with Index.open, or choose another folder."
            )
        if max(model.sizes) > 1 << 16:
            raise BadIndex(
                f"The model has levels of {max(model.sizes)} codes; an index holds at most {1 << 16} a level."
            )
        header = Header(_source(model), model.fingerprint, tuple(model.sizes), model.dim, embeddings, store_images)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            lance.write_dataset(header.schema().empty_table(), folder / "items.lance", mode="create")
            header.write(folder)  # last: a folder without index.json is no index
        except OSError as error:
            shutil.rmtree(folder / "items.lance", ignore_errors=True)
            raise BadIndex(f"{folder} cannot be created ({error}). Check the path and its permissions.") from error
        return cls(folder, header, open_dataset(folder, header), model)

    @classmethod
    def open(cls, path: str | os.PathLike[str], model: Genius | None = None) -> Self:
        """An index made before. Without `model`, the one named in the index is loaded when it is first needed."""
        folder = Path(path)
        if not folder.exists():
            raise BadIndex(f"There is no index at {folder}. Create one with `genius index create`.")
        header = Header.read(folder)
        if model is not None:
            _check_model(folder, header, model)
        return cls(folder, header, open_dataset(folder, header), model)

    @property
    def model(self) -> Genius:
        """The model that made this index."""
        if self._model is None:
            if self.header.model is None:
                raise BadIndex(
                    f"{self.path} was made with a model that was not saved. Open it with Index.open(path, model)."
                )
            model = Genius.from_pretrained(self.header.model)
            _check_model(self.path, self.header, model)
            self._model = model
        return self._model

    def __len__(self) -> int:
        return self._dataset.count_rows()

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and bool(self._present([id]))

    def __repr__(self) -> str:
        return f"Index({str(self.path)!r}, {len(self)} items, model {self.header.model!r})"

    # Writing

    def add(self, items: Iterable[Item | BadItem], progress: bool = False) -> AddReport:
        """Add new items. Those that cannot be read, or whose id is taken, are left out and listed in the report.

        Items are taken one batch at a time, so a generator of any length will do. Should the call fail in the middle,
        the index holds the first whole batches and nothing else.
        """
        return self._write(items, replace=False, progress=progress)

    def upsert(self, items: Iterable[Item | BadItem], progress: bool = False) -> AddReport:
        """Like `add`, but an item whose id is taken replaces the one that has it; in one call, the last one stays."""
        return self._write(items, replace=True, progress=progress)

    def delete(self, ids: str | Iterable[str]) -> int:
        """Delete the items with these ids; ids that are not in the index are passed over. Returns how many went."""
        wanted = [ids] if isinstance(ids, str) else list(ids)
        self._catch_up()
        if not wanted:
            return 0
        if self._searcher is None:
            keep = None
        else:
            names = self._dataset.to_table(columns=["id"])["id"]
            keep = ~np.asarray(pc.is_in(names, value_set=pa.array(wanted, pa.string())))
        result = self._transact(
            lambda: self._dataset.delete(has_id(wanted)),
            None if keep is None else lambda searcher: searcher.select(keep),
        )
        return int(result["num_deleted_rows"])

    def _write(self, items: Iterable[Item | BadItem], replace: bool, progress: bool) -> AddReport:
        self._catch_up()
        _ = self.model  # loaded before the first item is read
        bad: list[BadItem] = []
        tables: list[pa.Table] = []  # encoded, not yet written
        unwritten: set[str] = set()  # their ids
        added = 0
        total = len(items) if isinstance(items, Sequence) else None
        with ThreadPoolExecutor(os.cpu_count()) as pool, _progress(progress, total) as advance:
            for batch in _batches(items, BATCH):
                taken = set() if replace else self._present([item.id for item in batch])
                prepared = pool.map(self._prepare, batch, itertools.repeat(taken))
                good = _sort(prepared, None if replace else unwritten, bad)
                tables.append(self._encode(good, bad))
                if sum(map(len, tables)) >= COMMIT:
                    added += self._commit(tables, replace)
                    tables, unwritten = [], set()
                advance(len(batch), len(bad))
            added += self._commit(tables, replace)
        return AddReport(added, bad)

    def _prepare(self, item: Item | BadItem, taken: set[str]) -> _Prepared | BadItem:
        """Everything about one item that can be done in a thread of its own."""
        if isinstance(item, BadItem):
            return item
        if item.id in taken:
            return BadItem(item.id, "the index has an item with this id already. Use upsert to replace it.")
        try:
            content = self.model.prepare(item)  # first: it says best what is wrong with a picture
            return _Prepared(item.id, item_to_row(item, self.header.store_images), content)
        except BadItem as error:
            return error
        except GeniusError as error:
            return BadItem(item.id, str(error))

    def _encode(self, items: list[_Prepared], bad: list[BadItem]) -> pa.Table:
        """Rows for the dataset; items whose vectors are not numbers are refused."""
        schema = self.header.schema()
        if not items:
            return schema.empty_table()
        vectors = self.model.encode([item.content for item in items])
        finite = np.isfinite(vectors.image).all(1) & np.isfinite(vectors.text).all(1)
        if not finite.all():
            reason = "its vector holds values that are not numbers (NaN). Check the picture and the model's weights."
            bad.extend(BadItem(item.id, reason) for item, fine in zip(items, finite, strict=True) if not fine)
            items = [item for item, fine in zip(items, finite, strict=True) if fine]
            return self._encode(items, bad)
        columns: dict[str, Any] = {name: [item.row[name] for item in items] for name in items[0].row}
        columns["codes"] = to_lists(self.model.codes(vectors).astype(np.uint16))
        if self.header.embeddings:
            columns["embedding"] = to_lists(vectors.embedding().astype(np.float16))
        return pa.table([columns[name] for name in schema.names], schema=schema)

    def _commit(self, tables: list[pa.Table], replace: bool) -> int:
        """Write the rows in one transaction and bring memory in step. Returns how many items they came from."""
        table = pa.concat_tables(tables) if tables else self.header.schema().empty_table()
        if not len(table):
            return 0
        table = self._with_fields(table)
        if replace:
            last = {id: row for row, id in enumerate(table["id"].to_pylist())}
            merge = self._dataset.merge_insert("id").when_matched_update_all().when_not_matched_insert_all()
            rows = table.take(list(last.values()))
            self._transact(lambda: merge.execute(rows), None)  # a merge moves rows: all are read anew when needed
        else:
            codes = to_matrix(table["codes"])
            embeddings = to_matrix(table["embedding"]) if self.header.embeddings else None
            self._transact(lambda: self._dataset.insert(table), lambda searcher: searcher.extend(codes, embeddings))
        return len(table)

    def _with_fields(self, table: pa.Table) -> pa.Table:
        """With a column for every metadata field of the dataset, which gets those that are new."""
        self._catch_up()
        known = metadata_fields(self._dataset, self.header)
        columns = field_columns(table["metadata"].to_pylist(), known, table.schema.names)
        new = [pa.field(name, column.type) for name, column in columns.items() if name not in known]
        if new:
            self._transact(lambda: self._dataset.add_columns(new), lambda searcher: searcher)
        for name, column in columns.items():
            table = table.append_column(name, column)
        return table

    def _transact(self, write: Callable[[], Any], update: Callable[[Searcher], Searcher] | None) -> Any:
        """Write to the dataset; then bring the searcher in step by `update`, or leave it to be read anew."""
        version, searcher = self._dataset.version, self._searcher
        self._searcher, self._parts = None, {}
        try:
            result = write()
        except OSError as error:
            raise BadIndex(
                f"{self.path} could not be written to ({error}). What was written before is safe; "
                "check the disk's space and permissions, then repeat the command."
            ) from error
        alone = self._dataset.version == version + 1  # no other process has written in between
        if searcher is not None and update is not None and alone:
            self._searcher = update(searcher)
        return result

    # Memory

    def _catch_up(self) -> None:
        """See what other processes have written since this index was opened."""
        if self._dataset.latest_version != self._dataset.version:
            self._dataset.checkout_latest()
            self._searcher, self._parts = None, {}

    @property
    def codes(self) -> np.ndarray:
        """The IDs of all items, (n, levels) uint16."""
        return read_matrix(self._dataset, "codes") if self._searcher is None else self._searcher.codes

    @property
    def searcher(self) -> Searcher:
        """What finds rows by codes and embeddings, on the items as they are now."""
        if self._searcher is None:
            embeddings = read_matrix(self._dataset, "embedding") if self.header.embeddings else None
            self._searcher = Searcher(self.model, read_matrix(self._dataset, "codes"), embeddings)
        return self._searcher

    # Reading

    def get(self, id: str) -> Item | None:
        """The item with this id, or None."""
        rows = self._dataset.to_table(columns=ITEM_COLUMNS, filter=has_id([id])).to_pylist()
        return row_to_item(rows[0]) if rows else None

    def _present(self, ids: list[str]) -> set[str]:
        """Those of the ids that the index has."""
        return set(self._dataset.to_table(columns=["id"], filter=has_id(ids))["id"].to_pylist()) if ids else set()

    @property
    def fields(self) -> dict[str, str]:
        """What conditions can name, and what each is: "text", "number" or "boolean"."""
        return dict.fromkeys(OPEN_COLUMNS, "text") | metadata_fields(self._dataset, self.header)

    def count(self, where: str | None = None) -> int:
        """How many items satisfy a condition (see `search`); without one, how many there are."""
        return len(self) if where is None else len(self._rows(where, None))

    def filter(self, where: str, limit: int | None = None) -> list[Item]:
        """The items that satisfy a condition (see `search`), in the order of the index; at most `limit` of them."""
        if limit is not None and limit < 1:
            raise GeniusError(f"limit is {limit}; it must be at least 1.")
        table = self._evaluate(where, lambda: self._dataset.to_table(columns=ITEM_COLUMNS, filter=where, limit=limit))
        return [row_to_item(row) for row in table.to_pylist()]

    def _evaluate(self, where: str, read: Callable[[], Any]) -> Any:
        """What `read` gives; it hands the condition to Lance."""
        check_condition(where, set(self.header.schema().names).difference(OPEN_COLUMNS))
        try:
            return read()
        except ValueError as error:
            raise unusable(where, error, self.fields) from error

    def _part(self, ids: Collection[str] | None, where: str | None) -> Part | None:
        """The rows that a filter leaves; None for no filter. The last few are remembered until the index changes."""
        if isinstance(ids, str):
            raise GeniusError(f"ids is the string {ids!r}. Write a list of ids.")
        if ids is None and where is None:
            return None
        key = where, None if ids is None else frozenset(ids)
        part = self._parts.pop(key, None) or self.searcher.part(self._rows(*key))
        self._parts[key] = part
        while len(self._parts) > PARTS:
            del self._parts[next(iter(self._parts))]
        return part

    def _rows(self, where: str | None, ids: frozenset[str] | None) -> np.ndarray:
        """The rows that satisfy a condition and have one of the ids: places among all rows that are not deleted."""
        columns = ["_rowoffset"] if ids is None else ["_rowoffset", "id"]
        if where is None:
            table = self._dataset.to_table(columns=columns)
        else:
            table = self._evaluate(where, lambda: self._dataset.to_table(columns=columns, filter=where))
        if ids is not None:
            table = table.filter(pc.is_in(table["id"], value_set=pa.array(ids, pa.string())))
        return table["_rowoffset"].to_numpy().astype(np.int64)

    @overload
    def search(
        self,
        query: Query,
        k: int = 10,
        mode: str = "fast",
        beam: int = 50,
        budget: int = 1000,
        ids: Collection[str] | None = None,
        where: str | None = None,
    ) -> list[Hit]: ...

    @overload
    def search(
        self,
        query: Sequence[Query],
        k: int = 10,
        mode: str = "fast",
        beam: int = 50,
        budget: int = 1000,
        ids: Collection[str] | None = None,
        where: str | None = None,
    ) -> list[list[Hit]]: ...

    def search(
        self,
        query: Query | Sequence[Query],
        k: int = 10,
        mode: str = "fast",
        beam: int = 50,
        budget: int = 1000,
        ids: Collection[str] | None = None,
        where: str | None = None,
    ) -> list[Hit] | list[list[Hit]]:
        """The k best items for a query, best first; for a list of queries, a list of such lists.

        mode: "generate", "rerank" or "fast"; beam and budget: see `Searcher.search`. A query with a target gets only
        items of that kind.
        ids: only items with one of these ids.
        where: only items that satisfy this condition: SQL as Lance reads it, over `id`, `text`, `modality` ("image",
          "text" or "image,text"), the metadata fields, and `metadata`, all of them as JSON. Names that are no plain
          words go between backticks. A field is text, number or boolean, as the first items that have it decide
          (`fields` says which), and null where an item has no such value; lists and objects are in `metadata` only.
        Items that a filter leaves out are never looked at: fewer than k hits come back only when fewer items are left.
        """
        queries = [query] if isinstance(query, Query) else list(query)
        for asked in queries:
            if not isinstance(asked, Query):
                raise GeniusError(f"search takes a Query or a list of them, not {asked!r}. Write Query(text=...).")
        check_search(k, mode, beam, budget)
        among = self._part(ids, where)
        if not queries:
            return []
        wanted = [asked.wanted for asked in queries]
        found = self._search(self.model.encode_queries(queries), wanted, k, mode, beam, budget, among)
        hits = self._hits(found)
        return hits[0] if isinstance(query, Query) else hits

    def search_vectors(
        self,
        vectors: Vectors,
        wanted: Sequence[Modality | None] | None = None,
        k: int = 10,
        mode: str = "fast",
        beam: int = 50,
        budget: int = 1000,
        ids: Collection[str] | None = None,
        where: str | None = None,
    ) -> Found:
        """Like `search`, for encoded queries: rows of this index's `codes` and their scores."""
        return self._search(vectors, wanted, k, mode, beam, budget, self._part(ids, where))

    def _search(
        self,
        vectors: Vectors,
        wanted: Sequence[Modality | None] | None,
        k: int,
        mode: str,
        beam: int,
        budget: int,
        among: Part | None,
    ) -> Found:
        fused, embedding = self.model.fuse(vectors), vectors.embedding()
        return self.searcher.search(fused, embedding, wanted, k, mode, beam, budget, among)

    def _hits(self, found: Found) -> list[list[Hit]]:
        """The items behind the rows, read in one go."""
        unique = np.unique(found.rows[found.rows >= 0])
        records = self._dataset.take(unique, columns=ITEM_COLUMNS).to_pylist() if len(unique) else []
        by_row = {int(row): record for row, record in zip(unique, records, strict=True)}
        return [
            [_hit(by_row[int(row)], float(score)) for row, score in zip(rows, scores, strict=True) if row >= 0]
            for rows, scores in zip(found.rows, found.scores, strict=True)
        ]

    # Inspection

    def info(self) -> IndexInfo:
        """What the index holds and which model it belongs to; does not load the model."""
        kinds = np.bincount(self.codes[:, 0], minlength=len(Modality))
        header = asdict(self.header)
        del header["format"]
        return IndexInfo(
            path=str(self.path),
            items=len(self),
            modalities={modality.label: int(kinds[modality]) for modality in Modality},
            ids=len(np.unique(self.codes, axis=0)),
            fields=metadata_fields(self._dataset, self.header),
            version=self._dataset.version,
            bytes=sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file()),
            **header,
        )

    def verify(self) -> list[str]:
        """Everything that is wrong with the index, one sentence each; empty when all is well."""
        problems = []
        try:
            _ = self.model  # loading it checks the fingerprint
        except GeniusError as error:
            problems.append(str(error))
        columns = {name: name for name in self.header.schema().names if name in _VERIFIED}
        columns["kept"] = "image_bytes IS NOT NULL"
        names = []
        try:
            for batch in self._dataset.to_batches(columns=columns):
                problems.extend(self._verify_rows(batch))
                names.append(batch["id"])
        except (OSError, ValueError) as error:
            problems.append(f"The items cannot be read ({error}). Restore items.lance from a copy, or build it anew.")
            return problems
        counts = pa.chunked_array(names, pa.string()).value_counts()
        twice = counts.filter(pc.greater(counts.field("counts"), 1)).field("values").to_pylist()
        problems.extend(f"{id}: the id is there more than once. Delete it and add the item again." for id in twice)
        if sum(map(len, names)) != len(self):
            problems.append(f"{len(self)} rows are promised, {sum(map(len, names))} are there. Build the index anew.")
        return problems

    def _verify_rows(self, batch: pa.RecordBatch) -> Iterator[str]:
        codes = to_matrix(batch["codes"])
        checks = [
            ((codes >= np.array(self.header.sizes)).any(1), "its codes are not the model's. Upsert the item."),
            (
                codes[:, 0] != [Modality.parse(label) for label in batch["modality"].to_pylist()],
                "its first code is not its modality. Upsert the item.",
            ),
        ]
        if self.header.embeddings:
            finite = np.isfinite(to_matrix(batch["embedding"])).all(1)
            checks.append((~finite, "its embedding holds values that are not numbers. Upsert the item."))
        for wrong, problem in checks:
            for row in np.flatnonzero(wrong).tolist():
                yield f"{batch['id'][row]}: {problem}"
        for id, path, kept in zip(*(batch[name].to_pylist() for name in ("id", "image", "kept")), strict=True):
            if path is not None and not kept and not os.path.isfile(path):
                yield f"{id}: its picture {path} is gone. Put it back, or upsert or delete the item."


def _source(model: Genius) -> str | None:
    """Where the model can be loaded from again, also from another working directory."""
    return os.path.abspath(model.source) if model.source and os.path.isdir(model.source) else model.source


def _check_model(folder: Path, header: Header, model: Genius) -> None:
    if model.fingerprint != header.fingerprint:
        theirs, ours = header.model or "an unsaved model", model.source or "an unsaved model"
        raise BadIndex(
            f"{folder} was made with {theirs} (fingerprint {header.fingerprint}), which is not {ours} (fingerprint "
            f"{model.fingerprint}). Open it with the model it was made with, or build it anew."
        )


def _batches(items: Iterable[Item | BadItem], size: int) -> Iterator[list[Item | BadItem]]:
    source = iter(items)
    while batch := list(itertools.islice(source, size)):
        yield batch


def _sort(prepared: Iterable[_Prepared | BadItem], seen: set[str] | None, bad: list[BadItem]) -> list[_Prepared]:
    """The good ones; the others, and those whose id is in `seen`, go to `bad`. The good ones' ids go to `seen`."""
    good = []
    for item in prepared:
        if isinstance(item, BadItem):
            bad.append(item)
        elif seen is not None and item.id in seen:
            bad.append(BadItem(item.id, "the id appears twice among the items to add. Use upsert, or rename one."))
        else:
            good.append(item)
            if seen is not None:
                seen.add(item.id)
    return good


def _hit(record: dict[str, Any], score: float) -> Hit:
    return Hit(record["id"], score, Modality.parse(record["modality"]), tuple(record["codes"]), row_to_item(record))


@contextmanager
def _progress(show: bool, total: int | None) -> Iterator[Callable[[int, int], None]]:
    """A bar with rate on the terminal; yields what is called with the items just done and the bad ones so far."""
    if not show:
        yield lambda done, bad: None
        return
    columns = (
        TextColumn("indexing"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:.0f} items/s, {task.fields[bad]} bad"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("indexing", total=total, rate=0.0, bad=0)

        def advance(done: int, bad: int) -> None:
            completed = bar.tasks[0].completed + done
            bar.update(task, completed=completed, rate=completed / (bar.tasks[0].elapsed or 1.0), bad=bad)

        yield advance
