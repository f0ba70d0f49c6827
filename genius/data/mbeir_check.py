"""Check a copy of M-BEIR: which files are there, whether they are complete, and whether the counts match the paper.

A benchmark of one's own in the same layout is checked for what training and evaluation need: it may have any data sets,
tasks and splits, and need not have a global pool or qrels.

Files are read line by line; memory holds 8 bytes per id. Counts are compared with Table 1 of the supplement, which has
rounded numbers: 99K fits 98,500 to 99,999.
"""

import json
import os
import random
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from genius.data.mbeir import (
    INSTRUCTIONS,
    LINE_ERRORS,
    Benchmark,
    Task,
    describe_line_error,
    global_pool_path,
    parse_candidate,
    parse_query,
    qrels_path,
    read_qrels,
)
from genius.errors import BadData
from genius.runtime.wording import counted

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


PUBLISHED = {
    Task(row[0], int(row[1])): PublishedCounts(
        dict(zip(SPLITS, row[2:5], strict=True)), dict(zip(SPLITS, map(float, row[5:8]), strict=True)), row[8]
    )
    for row in map(str.split, TABLE.strip().splitlines())
}


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
    published: PublishedCounts | None = None  # the numbers of the paper


@dataclass
class CheckReport:
    """Result of `check`."""

    rows: list[TaskCounts] = field(default_factory=list)
    global_pools: dict[str, int] = field(default_factory=dict)  # candidates of each split
    absent: list[tuple[str, str]] = field(default_factory=list)  # split and name of each task without files
    missing: list[str] = field(default_factory=list)  # names of files
    damaged: list[str] = field(default_factory=list)  # sentences
    differing: list[str] = field(default_factory=list)  # sentences about counts that differ from the paper
    images: int = 0  # number of images that were opened

    @property
    def whole(self) -> bool:
        """Whether nothing is missing, damaged or different."""
        return not (self.absent or self.missing or self.damaged or self.differing)


def check(
    root: str | Path,
    splits: Sequence[str] | None = None,
    tasks: Sequence[str] | None = None,
    images: int = 100,
    show: bool = False,
    own: bool = False,
) -> CheckReport:
    """Read all files of some splits and report what is wrong.

    Args:
        root: Folder of the benchmark.
        splits: Splits to check; by default all.
        tasks: Names such as mscoco_task0, or prefixes of them; by default all.
        images: Number of images to open per file.
        show: Show a progress bar on stderr.
        own: The folder is another benchmark in this layout. Nothing is compared with M-BEIR.

    Raises:
        BadData: The folder is not in M-BEIR layout, or there is no such split or task.
    """
    benchmark = Benchmark(root)
    there, name = (sorted(benchmark.splits(), key=_place), str(root)) if own else (SPLITS, "M-BEIR")
    splits = there if splits is None else splits
    unknown = next((split for split in splits if split not in there), None)
    if unknown is not None or not splits:
        raise BadData(f"There is no split {unknown or 'with queries'!r} in {name}; it has {', '.join(there)}.")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not show, transient=True) as bar:
        work = _Check(benchmark, tasks, images, bar, own)
        work.check_instructions(dict.fromkeys(task for split in splits for task in work.tasks(split)))
        for split in splits:
            work.check_split(split)
    if tasks and not work.report.rows and not work.report.absent:
        raise BadData(f"No task begins with {' or '.join(tasks)}. Names are like mscoco_task0.")
    work.report.images = len(work.opened)
    return work.report


def _place(split: str) -> int:
    return SPLITS.index(split) if split in SPLITS else len(SPLITS)


_Record = tuple[str, str | None, Sequence[str], int | None]  # id, image path, relevant candidates, task id


@dataclass(frozen=True)
class _Contents:
    """A query file or a pool. ids, positives: sorted hashes. queries, relevant: counts by task id, if it is stated."""

    count: int
    ids: np.ndarray
    positives: np.ndarray
    queries: Counter[int | None]
    relevant: Counter[int | None]


class _Check:
    """State of one `check` call."""

    def __init__(
        self, benchmark: Benchmark, tasks: Sequence[str] | None, images: int, bar: Progress, own: bool
    ) -> None:
        self.benchmark, self.root, self.images, self.bar = benchmark, benchmark.root, images, bar
        self.published = {} if own else PUBLISHED
        self.own = own
        self.chosen = tuple(tasks) if tasks else None
        self.report = CheckReport()
        self.random = random.Random(0)
        self.contents: dict[Path, _Contents] = {}
        self.opened: set[str] = set()
        self.work = bar.add_task("checking")

    def tasks(self, split: str) -> list[Task]:
        """Return the published tasks and those with files, if they are chosen."""
        if self.own:
            there = set(self.benchmark.tasks(split))
        else:
            there = {Task(name, id) for name, id in self.benchmark.query_files(split) if id is not None}
        every = [*self.published, *sorted(there - self.published.keys(), key=lambda task: task.name)]
        return [task for task in every if self.chosen is None or task.name.startswith(self.chosen)]

    def check_instructions(self, tasks: Iterable[Task]) -> None:
        if not (self.root / INSTRUCTIONS).is_file():
            self.report.missing.append(INSTRUCTIONS)
            return
        for task in tasks:
            try:
                self.benchmark.prompts(task.dataset, task.query_modality, task.target_modality)
            except BadData as error:
                self._damaged(str(error))

    def check_split(self, split: str) -> None:
        files = self.benchmark.query_files(split)
        union = None
        if self.own and not (self.root / global_pool_path(split)).is_file():
            if split == "train" and not self.benchmark.local_pools(split):
                self.report.missing.append(f"{global_pool_path(split)} (or a local pool for each task)")
        elif self._exists(global_pool_path(split)):
            union = self._pool(self.root / global_pool_path(split))
            self.report.global_pools[split] = union.count
            if split == "test" and self.chosen is None and not self.own:
                self._compare(global_pool_path(split), "candidates", union.count, GLOBAL_COUNT)
        for task in self.tasks(split):
            own_file = files.get((task.dataset, task.task_id))
            self._check_task(task, split, own_file, files.get((task.dataset, None)), union)
        for (dataset, _), path in files.items():
            queries = self.contents.get(path)
            if queries is not None:
                self._check_inside(path, "relevant candidate", queries.positives, union, "the global pool")
                if queries.queries[None]:
                    published = [row.queries[split] for task, row in self.published.items() if task.dataset == dataset]
                    self._compare(f"{dataset}, {split}, all tasks", "queries", queries.count, *published)

    def _check_task(
        self, task: Task, split: str, own_file: Path | None, mixed_file: Path | None, union: _Contents | None
    ) -> None:
        """Check the files of a task in one split, and add its counts to the report."""
        pool_file = None
        if split != "train":
            with suppress(BadData):
                pool_file = self.benchmark.pool_file(task, split)
        query_file = own_file or mixed_file
        if query_file is None and pool_file is None:
            self.report.absent.append((split, task.name))
            return
        contents = pool = None
        if query_file is None:
            self.report.missing.append(f"query/{split}/mbeir_{task.name}_{split}.jsonl")
        else:
            contents = self._queries(query_file, task, mixed=own_file is None)
        if split != "train":
            if not self.own or (self.root / qrels_path(task.name, split)).is_file():
                self._check_qrels(qrels_path(task.name, split), contents)
            if pool_file is None:
                of_split = f"_{split}" if task.dataset == "mscoco" or self.own else ""
                self.report.missing.append(f"cand_pool/local/mbeir_{task.name}{of_split}_cand_pool.jsonl")
            else:
                pool = self._pool(pool_file)
                if split == "test":
                    self._check_inside(pool_file, "candidate", pool.ids, union, "the global pool")
        if own_file and contents:
            self._check_inside(own_file, "relevant candidate", contents.positives, pool, "the pool of the task")
        queries = contents.queries[task.task_id] if contents and not contents.queries[None] else None
        relevant = contents.relevant[task.task_id] / queries if contents and queries else None
        size = None if pool is None else pool.count
        counts = TaskCounts(task, split, queries, relevant, size, self.published.get(task))
        self.report.rows.append(counts)
        if counts.published is not None:
            self._compare(f"{task.name}, {split}", "queries", queries, counts.published.queries[split])
            self._compare(f"{task.name}, {split}", "candidates", counts.candidates, counts.published.candidates)

    def _check_qrels(self, name: str, queries: _Contents | None) -> None:
        if not self._exists(name):
            return
        try:
            qids = np.unique(np.fromiter((hash(qid) for qid, _, _ in read_qrels(self.root / name)), np.int64))
        except BadData as error:
            self._damaged(str(error))
            return
        if queries is None:
            return
        for ids, others, what in (
            (queries.ids, qids, "not in it"),
            (qids, queries.ids, "in it but not in the query file"),
        ):
            if lost := len(np.setdiff1d(ids, others, assume_unique=True)):
                self._damaged(
                    f"{name}: {counted(lost, 'query', 'queries')} {what}. {self._repair('queries and qrels')}"
                )

    def _check_inside(self, path: Path, what: str, ids: np.ndarray, pool: _Contents | None, where: str) -> None:
        if pool is not None and (lost := len(np.setdiff1d(ids, pool.ids, assume_unique=True))):
            self._damaged(f"{path}: {counted(lost, what)} not in {where}. {self._repair('both files')}")

    def _compare(self, where: str, what: str, count: int | None, *published: str) -> None:
        if count is not None and published and not fits(count, *published):
            self.report.differing.append(f"{where}: {count:,} {what}; the paper has {' + '.join(published)}.")

    def _repair(self, what: str) -> str:
        return f"Correct {what}." if self.own else f"Download {what} again."

    def _exists(self, name: str) -> bool:
        found = (self.root / name).is_file()
        if not found:
            self.report.missing.append(name)
        return found

    def _damaged(self, sentence: str) -> None:
        sentence = sentence.replace(f"{self.root}{os.sep}", "")
        if sentence not in self.report.damaged:
            self.report.damaged.append(sentence)

    # Reading

    def _queries(self, path: Path, task: Task, mixed: bool) -> _Contents:
        def parse(row: dict[str, Any]) -> _Record:
            query, task_id = parse_query(row, task), row.get("task_id") if mixed else task.task_id
            return query.qid, query.image_path, query.positives, None if task_id is None else int(task_id)

        return self._read(path, parse)

    def _pool(self, path: Path) -> _Contents:
        def parse(row: dict[str, Any]) -> _Record:
            candidate = parse_candidate(row)
            return candidate.did, candidate.image_path, (), None

        return self._read(path, parse)

    def _read(self, path: Path, parse: Callable[[dict[str, Any]], _Record]) -> _Contents:
        """Read a file once. Report lines that cannot be read, repeated ids, and images that cannot be opened."""
        if path in self.contents:
            return self.contents[path]
        ids, positives = array("q"), array("q")
        queries: Counter[int | None] = Counter()
        relevant: Counter[int | None] = Counter()
        images: list[str] = []  # a random sample
        seen = bad = 0
        first = ""
        self.bar.reset(self.work, description=path.name, total=path.stat().st_size)
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not number % 4096:
                    self.bar.update(self.work, completed=file.tell())
                if line.isspace():
                    continue
                try:
                    id, image, dids, task_id = parse(json.loads(line))
                except LINE_ERRORS as error:
                    first = first or f"line {number}: {describe_line_error(line, error)}"
                    bad += 1
                    continue
                ids.append(hash(id))
                positives.extend(map(hash, dids))
                queries[task_id] += 1
                relevant[task_id] += len(dids)
                if image is not None:
                    seen += 1
                    if len(images) < self.images:
                        images.append(image)
                    elif (place := self.random.randrange(seen)) < self.images:
                        images[place] = image
        unique = np.unique(np.frombuffer(ids, np.int64))
        if bad:
            self._damaged(f"{path}, {first}" + (f" ({bad:,} such lines)" if bad > 1 else ""))
        if repeated := len(ids) - len(unique):
            self._damaged(f"{path}: {counted(repeated, 'repeated id')}. {self._repair('the file')}")
        if closed := [image for image in images if not self._opens(image)]:
            self._damaged(
                f"{path}: cannot open {len(closed):,} of {counted(len(images), 'image')}, such as {closed[0]}. "
                + ("Check their paths." if self.own else "Unpack the image archive again.")
            )
        found = np.unique(np.frombuffer(positives, np.int64))
        self.contents[path] = _Contents(len(ids), unique, found, queries, relevant)
        return self.contents[path]

    def _opens(self, image: str) -> bool:
        self.opened.add(image)
        try:
            with Image.open(self.root / image):
                return True
        except (OSError, ValueError, Image.DecompressionBombError):
            return False
