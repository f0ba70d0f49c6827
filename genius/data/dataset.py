"""Make a benchmark in M-BEIR layout from items and pairs: images with captions, judged pairs, or a click log.

Modalities and tasks follow from the contents. Items are divided into train, val and test; no item is in two of them.
"""

import csv
import os
import re
import tempfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import cast

from genius.data.image_folder import ImageFolder
from genius.data.image_headers import open_image
from genius.data.images import image_bytes
from genius.data.item_splits import SPLITS, Groups, assign_splits
from genius.data.items import ImageSource, Item, Modality, Query, clean_text, printable
from genius.data.mbeir import TASKS, Candidate, Instruction, MBQuery, Task
from genius.data.mbeir_check import TaskCounts
from genius.data.mbeir_writer import (
    check_new_folder,
    write_global_pool,
    write_instructions,
    write_pool,
    write_queries,
)
from genius.data.pairs import Pair, PairTable
from genius.data.prompts import PROMPTS
from genius.data.readers import read_items
from genius.errors import BadData, BadImage, BadItem
from genius.runtime.progress import show_progress

Source = str | os.PathLike[str]
ITEMS_FILE = "items.csv"
"""Table of did, item id and split of each item."""
_TASK_IDS = {modalities: task_id for task_id, modalities in TASKS.items()}


@dataclass
class DatasetReport:
    """Result of `make_dataset`.

    Attributes:
        name: Name of the data set.
        dataset_id: Number before the colon in query ids and candidate ids.
        rows: Counts of each task in each split.
        candidates: Number of candidates of each split.
        merged: Number of items that are identical to another one and share its candidate.
        few_clicks: Number of pairs with fewer clicks than asked for. They are left out.
        divided: Number of queries whose items are in several splits. Each split has the query with its own items.
        one_way: Number of pairs that are searched in one direction only. Their query is an item of another split, or
            M-BEIR has no task for the other direction.
        missing: Split and task of each task that has too few items for queries in that split.
        unused_columns: Columns of the tables of pairs that have no meaning here.
        bad: Items and rows that could not be used, with the reasons.
    """

    name: str
    dataset_id: int
    rows: list[TaskCounts] = field(default_factory=list)
    candidates: dict[str, int] = field(default_factory=dict)
    merged: int = 0
    few_clicks: int = 0
    divided: int = 0
    one_way: int = 0
    missing: list[tuple[str, str]] = field(default_factory=list)
    unused_columns: list[str] = field(default_factory=list)
    bad: list[BadItem] = field(default_factory=list)


def make_dataset(
    out: Source,
    items: Source | Sequence[Source] | Iterable[Item],
    pairs: Source | Sequence[Source] | Iterable[Pair] | None = None,
    *,
    both_ways: bool = False,
    min_clicks: float = 1,
    val: float = 0.1,
    test: float = 0.1,
    seed: int = 0,
    name: str | None = None,
    columns: Mapping[str, str] | None = None,
    dry_run: bool = False,
    progress: bool = False,
) -> DatasetReport:
    """Write a benchmark in M-BEIR layout, for `genius train` and `genius evaluate`.

    Args:
        out: Folder to create.
        items: Folders, tables or Items, as for `genius index create`.
        pairs: Tables of queries and item ids (see `genius.data.pairs`), or Pairs. None: the text of each image is its
            caption, which is the query for the image.
        both_ways: Search the other way, too: items become queries, and queries become items.
        min_clicks: Leave out pairs with fewer clicks. Rows with the same query and item add up.
        val: Share of the items in the val split.
        test: Share of the items in the test split.
        seed: Seed of the division into splits.
        name: Name of the data set, by default that of the folder.
        columns: Names of columns of the tables of pairs by role: query, query_image, item, clicks.
        dry_run: Read and divide everything, but write nothing.
        progress: Show a progress bar on stderr.

    Raises:
        BadData: A file cannot be read, `out` exists already, or no pair can be used. Nothing is written.
    """
    out = Path(out)
    if not (val >= 0 and test >= 0 and val + test < 1):
        raise BadData(f"The shares {val:g} of val and {test:g} of test leave nothing for train. Choose smaller ones.")
    check_new_folder(out)
    chosen = _dataset_name(name or out.absolute().name)
    report = DatasetReport(chosen, 100 + zlib.crc32(chosen.encode()) % 900)
    tables = [PairTable(path, columns) for path in _paths(pairs)]
    with _unfinished(out, dry_run) as folder:
        maker = _Maker(folder, report, captions=pairs is None)
        with show_progress("reading items", None, progress) as advance:
            for item in _items(items):
                maker.add_item(item)
                advance(1, len(report.bad))
        given = () if pairs is None or tables else cast(Iterable[Pair], pairs)
        for pair in chain(*tables, given):
            maker.add_pair(pair)
        report.unused_columns = list(dict.fromkeys(name for table in tables for name in table.unused))
        shares = {"val": val, "test": test}
        maker.divide(both_ways, min_clicks, shares, seed)
        maker.write([split for split in SPLITS if shares.get(split, 1) > 0])
    return report


def _paths(sources: object) -> list[Source]:
    """Return the paths of one source or several; none for other objects."""
    if isinstance(sources, str | os.PathLike):
        return [sources]
    if isinstance(sources, list | tuple) and sources and isinstance(sources[0], str | os.PathLike):
        return list(sources)
    return []


def _items(sources: Source | Sequence[Source] | Iterable[Item]) -> Iterator[Item | BadItem]:
    paths = _paths(sources)
    return chain.from_iterable(map(read_items, paths)) if paths else iter(cast(Iterable[Item], sources))


def _dataset_name(name: str) -> str:
    """Return a name that can stand in file names: lower case, no `_task1` in it."""
    plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    return re.sub(r"_task(?=\d)", "_", plain) or "dataset"


@contextmanager
def _unfinished(out: Path, dry_run: bool) -> Iterator[Path | None]:
    """A folder that becomes `out` if nothing fails; None for a dry run."""
    if dry_run:
        yield None
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
            made = Path(folder, out.name)
            made.mkdir()
            yield made
            if out.exists():
                out.rmdir()
            os.replace(made, out)
    except OSError as error:
        raise BadData(
            f"{out} could not be written ({error}). Nothing was written; check the disk's space and permissions."
        ) from error


@dataclass(frozen=True)
class _Content:
    """Content of a query or candidate. Equal contents are one. image: path in the benchmark."""

    text: str | None
    image: str | None

    @property
    def modality(self) -> Modality:
        return Query(self.text, self.image).modality


class _Maker:
    """State of one `make_dataset` call. Candidates and queries have numbers."""

    def __init__(self, folder: Path | None, report: DatasetReport, captions: bool) -> None:
        self.folder, self.report, self.captions = folder, report, captions
        self.images = ImageFolder(Path("images") if folder is None else folder / "images")
        self.contents: list[_Content] = []  # of the candidates
        self.candidates: dict[_Content, int] = {}
        self.ids: dict[str, int] = {}  # item id -> candidate
        self.short: dict[str, int | None] = {}  # file name without folder or suffix -> candidate; None: ambiguous
        self.keys: dict[_Content, _Content] = {}  # query in lower case -> as it was first written
        self.clicks: dict[tuple[_Content, int], float] = {}  # (query, candidate)
        self.splits: list[str] = []  # of each candidate
        self.found: dict[tuple[str, int], dict[_Content, list[int]]] = {}  # (split, task) -> query -> candidates

    def add_item(self, item: Item | BadItem) -> None:
        """Add an item as a candidate."""
        try:
            if isinstance(item, BadItem):
                raise item
            _ = item.modality  # an item without content is bad
            content = self._content(item.text, item.image)
            caption = content.text if self.captions and content.image else None
            if caption:
                content = replace(content, text=None)
            if item.id in self.ids and self.contents[self.ids[item.id]] != content:
                raise BadItem(item.id, "another item has the same id. Give every item its own id.")
            self.ids[item.id] = number = self._candidate(content)
        except BadItem as error:
            self.report.bad.append(error)
        except BadImage as error:
            self.report.bad.append(BadItem(item.id, str(error)))
        else:
            for short in {item.id.rpartition("/")[2], Path(item.id).stem}:
                self.short[short] = number if self.short.get(short, number) == number else None
            if caption:
                self.add_pair(Pair(Query(caption), item.id, place=item.id))

    def add_pair(self, pair: Pair | BadItem) -> None:
        """Add a query with a relevant item."""
        try:
            if isinstance(pair, BadItem):
                raise pair
            number = self._find(pair.item)
            content = self._content(pair.query.text, pair.query.image)
            self._task(content, number)
        except BadItem as error:
            self.report.bad.append(error if isinstance(pair, BadItem) else _at(pair.place, error.reason))
        except BadImage as error:
            assert isinstance(pair, Pair)
            self.report.bad.append(_at(pair.place, str(error)))
        else:
            key = replace(content, text=content.text and content.text.casefold())
            query = self.keys.setdefault(key, content)
            self.clicks[query, number] = self.clicks.get((query, number), 0) + pair.clicks

    def _content(self, text: str | None, image: ImageSource | None) -> _Content:
        """Check and store an image; remove needless white space from a text."""
        words = " ".join((text or "").split()) if clean_text(text) else None
        if image is None:
            return _Content(words, None)
        content = image_bytes(image)
        source = image if isinstance(image, str | os.PathLike) else None
        open_image(content, "the image" if source is None else printable(os.fsdecode(source))).close()
        return _Content(words, self.images.path(content) if self.folder is None else self.images.save(content, source))

    def _find(self, id: str) -> int:
        """Return the candidate of an item id or, if only one fits, of a file name without folder or suffix."""
        number = self.ids.get(id, self.ids.get(id.removeprefix("./"), self.short.get(id)))
        if number is None:
            several = ": several items have this file name" if id in self.short else ""
            raise BadItem(id, f"there is no item {printable(id)!r}{several}. Give the id of an item.")
        return number

    def _candidate(self, content: _Content) -> int:
        if content not in self.candidates:
            self.candidates[content] = len(self.contents)
            self.contents.append(content)
        return self.candidates[content]

    def _task(self, query: _Content, candidate: int) -> int:
        task = _TASK_IDS.get((query.modality, self.contents[candidate].modality))
        if task is None:
            raise BadItem("", "M-BEIR has no task from an image to an image with text. Give the query a text, too.")
        return task

    def divide(self, both_ways: bool, min_clicks: float, shares: Mapping[str, float], seed: int) -> None:
        """Divide the items into splits, and the queries by split and task."""
        relevant: dict[_Content, list[int]] = defaultdict(list)
        for (query, candidate), clicks in self.clicks.items():
            if clicks >= min_clicks:
                relevant[query].append(candidate)
            else:
                self.report.few_clicks += 1
        if not relevant:
            reason = f" The first problem: {self.report.bad[0]}" if self.report.bad else ""
            raise BadData(
                "There is no query with a relevant item. Give images with captions, or a table of queries and item ids "
                f"(--pairs).{reason}"
            )
        self.report.merged = len(self.ids) - len(self.contents)
        self.splits = self._divide_items(relevant, shares, seed)
        for query, candidates in relevant.items():
            self.report.divided += len({self.splits[candidate] for candidate in candidates}) > 1
            for candidate in candidates:
                self._ask(query, candidate)
        if both_ways:
            for query, candidates in relevant.items():
                self._ask_back(query, candidates)

    def _divide_items(
        self, relevant: Mapping[_Content, list[int]], shares: Mapping[str, float], seed: int
    ) -> list[str]:
        """Return the split of each candidate. Items of a query, and items with the same image, are kept together.

        A query joins items to groups of limited size only: a few frequent queries connect most items of a click log.
        """
        groups = Groups(len(self.contents))
        same_image: dict[str, list[int]] = defaultdict(list)
        for number, content in enumerate(self.contents):
            if content.image is not None:
                same_image[content.image].append(number)
        for items in same_image.values():
            groups.join(items)
        given = [share for share in shares.values() if share > 0]
        limit = max(2, min(given) * len(self.contents) / 4) if given else 0
        tasks: list[set[int]] = [set() for _ in self.contents]
        for query, candidates in sorted(relevant.items(), key=lambda entry: len(entry[1])):
            groups.join([*candidates, *same_image.get(query.image or "", ())], limit)
        for query, candidates in relevant.items():
            for candidate in candidates:
                tasks[groups.leader(candidate)].add(self._task(query, candidate))
        strata = [frozenset(tasks[groups.leader(number)]) for number in range(len(self.contents))]
        return assign_splits(groups, strata, shares, seed, needed=filter(None, strata))

    def _ask(self, query: _Content, candidate: int) -> None:
        """Note that a candidate is relevant to a query."""
        place = self.splits[candidate], self._task(query, candidate)
        candidates = self.found.setdefault(place, {}).setdefault(query, [])
        if candidate not in candidates:
            candidates.append(candidate)

    def _ask_back(self, query: _Content, candidates: list[int]) -> None:
        """Search for a query with each of its items. A new candidate is in the split of most of these."""
        if query not in self.candidates:
            ((split, _),) = Counter(self.splits[candidate] for candidate in candidates).most_common(1)
            self.splits.append(split)
        back = self._candidate(query)
        for candidate in candidates:
            content = self.contents[candidate]
            if self.splits[candidate] == self.splits[back] and (content.modality, query.modality) in _TASK_IDS:
                self._ask(content, back)
            else:
                self.report.one_way += 1

    def write(self, splits: Sequence[str]) -> None:
        """Write the benchmark, and count what it holds. A dry run counts only."""
        report, number = self.report, 0
        all_tasks = sorted({task for _, task in self.found})
        everything = [
            Candidate(f"{report.dataset_id}:{n}", content.text, content.image, content.modality)
            for n, content in enumerate(self.contents, 1)
        ]
        for split in splits:
            union = [one for one, where in zip(everything, self.splits, strict=True) if where == split]
            report.candidates[split] = len(union)
            for task in (Task(report.name, id) for id in all_tasks):
                found = self.found.get((split, task.task_id), {})
                pool = [one for one in union if one.modality == task.target_modality]
                if not found:
                    report.missing.append((split, task.name))
                    continue
                right = sum(map(len, found.values())) / len(found)
                report.rows.append(TaskCounts(task, split, len(found), right, len(pool)))
                queries = list(self._queries(task, found, everything, number))
                number += len(queries)
                if self.folder is not None:
                    write_queries(self.folder, task, split, queries)
                    if split != "train":
                        write_pool(self.folder, task, split, pool)
            if self.folder is not None and union:
                write_global_pool(self.folder, split, union)
        if self.folder is not None:
            rows = (Instruction(report.name, report.dataset_id, *TASKS[id], PROMPTS[id]) for id in all_tasks)
            write_instructions(self.folder, rows)
            with open(self.folder / ITEMS_FILE, "w", encoding="utf-8", newline="") as file:
                table = csv.writer(file, lineterminator="\n")
                table.writerow(("did", "id", "split"))
                table.writerows((everything[n].did, id, self.splits[n]) for id, n in self.ids.items())

    def _queries(
        self, task: Task, found: Mapping[_Content, list[int]], everything: Sequence[Candidate], first: int
    ) -> Iterator[MBQuery]:
        for number, (query, candidates) in enumerate(found.items(), first + 1):
            yield MBQuery(
                qid=f"{self.report.dataset_id}:{number}",
                text=query.text,
                image_path=query.image,
                modality=query.modality,
                positives=tuple(everything[candidate].did for candidate in candidates),
                task_id=task.task_id,
                dataset=task.dataset,
            )


def _at(place: str, reason: str) -> BadItem:
    return BadItem(place or "pair", reason)
