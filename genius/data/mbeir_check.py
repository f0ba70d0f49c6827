"""Check a copy of M-BEIR: which files are there, whether they are complete, and whether the counts match the paper.

Files are read line by line; memory holds 8 bytes per id. Counts are compared with Table 1 of the supplement, which has
rounded numbers: 99K fits 98,500 to 99,999.
"""

import json
import random
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from genius.data.mbeir import (
    INSTRUCTIONS,
    Benchmark,
    Task,
    describe_line_error,
    global_pool_path,
    parse_candidate,
    parse_query,
    qrels_path,
    read_qrels,
)
from genius.errors import BadData, BadItem

SPLITS = ("train", "val", "test")
TABLE = """
visualnews  0  99K   20K   20K    1.0  1.0  1.0  542K
mscoco      0  100K  24.8K 24.8K  1.0  1.0  1.0  5K
fashion200k 0  15K   1.7K  1.7K   3.3  3.1  2.8  201K
webqa       1  16K   1.7K  2.4K   2.0  2.0  2.0  544K
edis        2  26K   3.2K  3.2K   2.6  2.6  2.6  1M
webqa       2  17K   1.7K  2.5K   1.4  1.4  1.4  403K
visualnews  3  100K  20K   20K    1.0  1.0  1.0  537K
mscoco      3  113K  5K    5K     5.0  5.0  5.0  25K
fashion200k 3  15K   4.8K  4.8K   1.0  1.0  1.0  61K
nights      4  16K   2K    2K     1.0  1.0  1.0  40K
oven        6  150K  50K   50K    8.5  10.0 9.9  676K
infoseek    6  141K  11K   11K    6.8  6.7  6.5  611K
fashioniq   7  16K   2K    6K     1.0  1.0  1.0  74K
cirr        7  26K   2K    4K     1.0  1.0  1.0  21K
oven        8  157K  14.7K 14.7K  17.8 17.5 17.7 335K
infoseek    8  143K  17.6K 17.6K  9.1  7.5  7.5  481K
"""
GLOBAL_COUNT = "5.6M"
"""Candidates in the global pool of the test split."""


@dataclass(frozen=True)
class PublishedCounts:
    """A row of Table 1: queries and relevant candidates per query of each split, and candidates."""

    queries: dict[str, str]
    relevant: dict[str, float]
    candidates: str


def _published() -> dict[Task, PublishedCounts]:
    rows = (line.split() for line in TABLE.strip().splitlines())
    return {
        Task(name, int(task)): PublishedCounts(
            dict(zip(SPLITS, cells[:3], strict=True)),
            dict(zip(SPLITS, map(float, cells[3:6]), strict=True)),
            cells[6],
        )
        for name, task, *cells in rows
    }


PUBLISHED = _published()


def span(published: str) -> tuple[float, float]:
    """Return low and high such that low <= n < high for all counts n that give "24.8K" by rounding or truncation."""
    unit = {"K": 1e3, "M": 1e6}[published[-1]]
    value = float(published[:-1]) * unit
    step = unit / 10 ** len(published[:-1].partition(".")[2])
    return value - step / 2, value + step


def fits(count: int, *published: str) -> bool:
    """Whether a count fits the sum of published numbers."""
    low, high = (sum(bounds) for bounds in zip(*map(span, published), strict=True))
    return bool(low <= count < high)


@dataclass(frozen=True)
class TaskCounts:
    """Counts of one task in one split; None if the file is missing or does not say."""

    task: Task
    split: str
    queries: int | None
    relevant: float | None
    candidates: int | None

    @property
    def published(self) -> PublishedCounts | None:
        """The numbers of the paper."""
        return PUBLISHED.get(self.task)


@dataclass
class CheckReport:
    """Result of `check`.

    Attributes:
        rows: Counts of the tasks that have files.
        global_pools: Number of candidates of each split.
        absent: Splits and names of the tasks without files.
        missing: Names of missing files.
        damaged: Sentences about damaged files.
        differing: Sentences about counts that differ from the paper.
        images: Number of images that were opened.
    """

    rows: list[TaskCounts] = field(default_factory=list)
    global_pools: dict[str, int] = field(default_factory=dict)
    absent: list[tuple[str, str]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    images: int = 0

    @property
    def whole(self) -> bool:
        """Whether nothing is missing, damaged or different."""
        return not (self.absent or self.missing or self.damaged or self.differing)


def check(
    root: str | Path,
    splits: Sequence[str] = SPLITS,
    tasks: Sequence[str] | None = None,
    images: int = 100,
    show: bool = False,
) -> CheckReport:
    """Read all files of some splits and report what is wrong.

    Args:
        root: Folder of the benchmark.
        splits: Splits to check.
        tasks: Names such as mscoco_task0, or prefixes of them; by default all.
        images: Number of images to open per file.
        show: Show a progress bar on stderr.

    Raises:
        BadData: The folder is not in M-BEIR layout, or there is no such split or task.
    """
    for split in splits:
        if split not in SPLITS:
            raise BadData(f"There is no split {split!r} in M-BEIR; it has {', '.join(SPLITS)}.")
    benchmark = Benchmark(root)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not show, transient=True) as bar:
        return _Check(benchmark, splits, tasks, images, bar).run()


@dataclass
class _Read:
    """Contents of a query file or a pool. ids, positives: sorted hashes."""

    count: int = 0
    ids: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    positives: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    by_task: Counter[int | None] = field(default_factory=Counter)
    relevant: Counter[int | None] = field(default_factory=Counter)


class _Check:
    def __init__(
        self, benchmark: Benchmark, splits: Sequence[str], tasks: Sequence[str] | None, images: int, bar: Progress
    ) -> None:
        self.benchmark, self.splits, self.images, self.bar = benchmark, splits, images, bar
        self.chosen = tuple(tasks) if tasks else None
        self.found = CheckReport()
        self.random = random.Random(0)
        self.pools: dict[Path, _Read] = {}
        self.opened: set[str] = set()
        self.work = bar.add_task("checking", total=self._bytes())

    def run(self) -> CheckReport:
        self._check_instructions()
        for split in self.splits:
            self._check_split(split)
        if self.chosen and not self.found.rows and not self.found.absent:
            raise BadData(f"No task begins with {' or '.join(self.chosen)}. Names are like mscoco_task0.")
        self.found.images = len(self.opened)
        return self.found

    # Which files

    def _chosen_tasks(self, split: str) -> list[Task]:
        """Return the published tasks and those with files, if they are chosen."""
        there = {Task(name, id) for name, id in self.benchmark.query_files(split) if id is not None}
        every = [*PUBLISHED, *sorted(there - PUBLISHED.keys(), key=lambda task: task.name)]
        return [task for task in every if self.chosen is None or task.name.startswith(self.chosen)]

    def _pool(self, task: Task, split: str) -> Path | None:
        """Return the pool of a task; None if it is missing."""
        try:
            return self.benchmark.pool_file(task, split)
        except BadData:
            return None

    def _global_pool(self, split: str) -> Path:
        return self.benchmark.root / global_pool_path(split)

    def _bytes(self) -> int:
        """Return the size of all files to read."""
        files: set[Path] = set()
        for split in self.splits:
            names, tasks = self.benchmark.query_files(split), self._chosen_tasks(split)
            files |= {path for (name, id), path in names.items() if id is None or Task(name, id) in tasks}
            files |= {pool for task in tasks if (pool := self._pool(task, split))} | {self._global_pool(split)}
        return sum(path.stat().st_size for path in files if path.is_file())

    # Reading

    def _records(self, path: Path, make: Callable[[dict[str, Any]], Any]) -> Iterator[tuple[dict[str, Any], Any]]:
        """Yield each readable line, as JSON and converted by `make`; report the first that is not."""
        first, bad, unseen = "", 0, 0
        self.bar.update(self.work, description=path.name)
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                unseen += len(line)
                if unseen > 1 << 20:
                    self.bar.advance(self.work, unseen)
                    unseen = 0
                if line.isspace():
                    continue
                try:
                    row = json.loads(line)
                    made = make(row)
                except (ValueError, KeyError, TypeError, AttributeError, RecursionError, BadItem) as error:
                    first = first or f"line {number}: {describe_line_error(line, error)}"
                    bad += 1
                    continue
                yield row, made
        self.bar.advance(self.work, unseen)
        if bad:
            self.found.damaged.append(f"{self._name(path)}, {first}" + (f" ({bad:,} such lines)" if bad > 1 else ""))

    def _queries(self, path: Path, task: Task, mixed: bool) -> _Read:
        read, ids, positives, sample = _Read(), array("q"), array("q"), _Sample(self.images, self.random)
        for row, query in self._records(path, lambda row: parse_query(row, task)):
            id = row.get("task_id") if mixed else task.task_id
            id = None if id is None else int(id)
            read.by_task[id] += 1
            read.relevant[id] += len(query.positives)
            ids.append(hash(query.qid))
            positives.extend(map(hash, query.positives))
            sample.add(query.image_path)
        read.positives = np.unique(np.frombuffer(positives, np.int64))
        return self._finish(path, read, ids, sample)

    def _candidates(self, path: Path) -> _Read:
        if path not in self.pools:
            ids, sample = array("q"), _Sample(self.images, self.random)
            for _, candidate in self._records(path, parse_candidate):
                ids.append(hash(candidate.did))
                sample.add(candidate.image_path)
            self.pools[path] = self._finish(path, _Read(), ids, sample)
        return self.pools[path]

    def _finish(self, path: Path, read: _Read, ids: "array[int]", sample: "_Sample") -> _Read:
        read.count, read.ids = len(ids), np.unique(np.frombuffer(ids, np.int64))
        if twice := read.count - len(read.ids):
            self.found.damaged.append(f"{self._name(path)}: {twice:,} ids are repeated. Download the file again.")
        self._check_images(path, sample.kept)
        return read

    def _check_images(self, path: Path, names: Sequence[str]) -> None:
        bad = [name for name in names if not self._opens(name)]
        if bad:
            self.found.damaged.append(
                f"{self._name(path)}: {len(bad):,} of {len(names):,} images cannot be opened, such as "
                f"{bad[0]}. Unpack the image archive again."
            )

    def _opens(self, name: str) -> bool:
        self.opened.add(name)
        try:
            with Image.open(self.benchmark.root / name):
                return True
        except (OSError, ValueError, Image.DecompressionBombError):
            return False

    def _name(self, path: Path) -> str:
        return path.relative_to(self.benchmark.root).as_posix()

    # Comparing

    def _check_instructions(self) -> None:
        try:
            rows = {(r.dataset.casefold(), r.query_modality, r.cand_modality) for r in self.benchmark.instructions}
        except BadData as error:
            there = (self.benchmark.root / INSTRUCTIONS).is_file()
            (self.found.damaged if there else self.found.missing).append(str(error) if there else INSTRUCTIONS)
            return
        for task in sorted(
            {task for split in self.splits for task in self._chosen_tasks(split)}, key=lambda task: task.name
        ):
            if (task.dataset, task.query_modality, task.target_modality) not in rows:
                kind = f"{task.query_modality.label} -> {task.target_modality.label}"
                self.found.damaged.append(f"{INSTRUCTIONS}: no row for {task.dataset}, {kind}.")

    def _check_split(self, split: str) -> None:
        files, whole = self.benchmark.query_files(split), self._global_pool(split)
        whole_pool = None
        if whole.is_file():
            whole_pool = self._candidates(whole)
            self.found.global_pools[split] = whole_pool.count
            if split == "test" and self.chosen is None and not fits(whole_pool.count, GLOBAL_COUNT):
                self._differs(self._name(whole), "candidates", whole_pool.count, GLOBAL_COUNT)
        else:
            self.found.missing.append(self._name(whole))
        mixed: dict[str, _Read] = {}
        for task in self._chosen_tasks(split):
            path, pool = files.get((task.dataset, task.task_id)), self._pool(task, split)
            together = files.get((task.dataset, None))
            if path is None and together is None and (split == "train" or pool is None):
                self.found.absent.append((split, task.name))
                continue
            read = None
            if path is not None:
                read = self._queries(path, task, mixed=False)
            elif together is not None:
                if task.dataset not in mixed:
                    mixed[task.dataset] = self._queries(together, task, mixed=True)
                    self._check_positives(self._name(together), mixed[task.dataset], None, whole_pool)
                read = mixed[task.dataset]
            else:
                self.found.missing.append(f"query/{split}/mbeir_{task.name}_{split}.jsonl")
            self._check_task(task, split, path, read, pool, whole_pool)
        for dataset, read in mixed.items():
            self._check_sum(dataset, split, read)

    def _check_task(
        self, task: Task, split: str, path: Path | None, read: _Read | None, pool: Path | None, whole_pool: _Read | None
    ) -> None:
        """Check the pool and the qrels of a task in one split, and add its counts to the report."""
        own = None
        if split != "train":
            if pool is None:
                of_split = f"_{split}" if task.dataset == "mscoco" else ""
                self.found.missing.append(f"cand_pool/local/mbeir_{task.name}{of_split}_cand_pool.jsonl")
            else:
                own = self._candidates(pool)
            self._check_qrels(task, split, read)
        if read is not None and path is not None:
            self._check_positives(self._name(path), read, own, whole_pool)
        if own is not None and whole_pool is not None and split == "test":
            self._check_inside(self._name(pool or Path()), "candidates", own.ids, whole_pool, "the global pool")
        queries = read.by_task[task.task_id] if read and not read.by_task[None] else None
        relevant = read.relevant[task.task_id] / queries if read and queries else None
        row = TaskCounts(task, split, queries, relevant, own.count if own else None)
        self.found.rows.append(row)
        if row.published is not None:
            published = row.published.queries[split]
            if queries is not None and not fits(queries, published):
                self._differs(f"{task.name}, {split}", "queries", queries, published)
            if own is not None and not fits(own.count, row.published.candidates):
                self._differs(f"{task.name}, {split}", "candidates", own.count, row.published.candidates)

    def _check_qrels(self, task: Task, split: str, read: _Read | None) -> None:
        name = qrels_path(task.name, split)
        path = self.benchmark.root / name
        if not path.is_file():
            self.found.missing.append(name)
            return
        asked = array("q")
        try:
            asked.extend(hash(qid) for qid, _, _ in read_qrels(path))
        except BadData as error:
            self.found.damaged.append(str(error).replace(str(path), name))
            return
        if read is not None:
            here = np.unique(np.frombuffer(asked, np.int64))
            for ids, others, what in (
                (read.ids, here, "not in it"),
                (here, read.ids, "in it but not in the query file"),
            ):
                if lost := int((~np.isin(ids, others, assume_unique=True)).sum()):
                    self.found.damaged.append(f"{name}: {lost:,} queries are {what}. Download queries and qrels again.")

    def _check_positives(self, name: str, read: _Read, own: _Read | None, whole_pool: _Read | None) -> None:
        for pool, what in ((own, "the pool of the task"), (whole_pool, "the global pool")):
            if pool is not None:
                self._check_inside(name, "relevant candidates", read.positives, pool, what)

    def _check_inside(self, name: str, what: str, ids: np.ndarray, pool: _Read, where: str) -> None:
        if lost := int((~np.isin(ids, pool.ids, assume_unique=True)).sum()):
            self.found.damaged.append(f"{name}: {lost:,} {what} are not in {where}. Download both files again.")

    def _check_sum(self, dataset: str, split: str, read: _Read) -> None:
        """Compare the sum of several tasks, for a file whose lines do not state the task."""
        published = [row.queries[split] for task, row in PUBLISHED.items() if task.dataset == dataset]
        if read.by_task[None] and published and not fits(read.count, *published):
            self._differs(f"{dataset}, {split}, all tasks", "queries", read.count, " + ".join(published))

    def _differs(self, where: str, what: str, count: int, published: str) -> None:
        self.found.differing.append(f"{where}: {count:,} {what}; the paper has {published}.")


class _Sample:
    """A uniform random sample of a stream of names (reservoir sampling)."""

    def __init__(self, size: int, generator: random.Random) -> None:
        self.size, self.random, self.seen = size, generator, 0
        self.kept: list[str] = []

    def add(self, name: str | None) -> None:
        if name is None:
            return
        self.seen += 1
        if len(self.kept) < self.size:
            self.kept.append(name)
        elif (place := self.random.randrange(self.seen)) < self.size:
            self.kept[place] = name
