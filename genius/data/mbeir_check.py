"""Whether a folder holds M-BEIR: which parts are there, whole, and as many as were published.

Every file is read line by line, so that memory stays small whatever its size (8 bytes an id). Counts are compared with
Table 1 of the paper's supplement, whose figures are rounded: `99K` fits 98,500 to 99,999. Knows the layout through
`genius.data.mbeir`; opens some images to see whether they can be opened; knows nothing of vectors or models.
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

from genius.data.mbeir import INSTRUCTIONS, Benchmark, Task, _candidate, _qrels_name, _query, _read_qrels, _wrong_line
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
GLOBAL = "5.6M"
"""Candidates of the test split's global pool."""


@dataclass(frozen=True)
class Figures:
    """A task's row of the supplement's Table 1: queries and right candidates a query by split, and candidates."""

    queries: dict[str, str]
    relevant: dict[str, float]
    candidates: str


def _published() -> dict[Task, Figures]:
    rows = (line.split() for line in TABLE.strip().splitlines())
    return {
        Task(name, int(task)): Figures(
            dict(zip(SPLITS, cells[:3], strict=True)),
            dict(zip(SPLITS, map(float, cells[3:6]), strict=True)),
            cells[6],
        )
        for name, task, *cells in rows
    }


PUBLISHED = _published()


def span(figure: str) -> tuple[float, float]:
    """The counts that a rounded figure such as 24.8K stands for, whether it was rounded or cut off: low <= n < high."""
    unit = {"K": 1e3, "M": 1e6}[figure[-1]]
    value = float(figure[:-1]) * unit
    step = unit / 10 ** len(figure[:-1].partition(".")[2])
    return value - step / 2, value + step


def fits(count: int, *figures: str) -> bool:
    """Whether a count is what the figures, summed, stand for."""
    low, high = (sum(bounds) for bounds in zip(*map(span, figures), strict=True))
    return low <= count < high


@dataclass(frozen=True)
class Row:
    """What was counted of one task in one split; None where the file is missing or does not say."""

    task: Task
    split: str
    queries: int | None
    relevant: float | None
    candidates: int | None

    @property
    def published(self) -> Figures | None:
        return PUBLISHED.get(self.task)


@dataclass
class Checked:
    """rows: of tasks of which there is something. global_pools: split -> candidates.

    absent: (split, task) of which there is nothing. missing: files. damaged, differing: sentences, each about one file.
    images: how many were looked at.
    """

    rows: list[Row] = field(default_factory=list)
    global_pools: dict[str, int] = field(default_factory=dict)
    absent: list[tuple[str, str]] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)
    images: int = 0

    @property
    def whole(self) -> bool:
        return not (self.absent or self.missing or self.damaged or self.differing)


def check(
    root: str | Path,
    splits: Sequence[str] = SPLITS,
    tasks: Sequence[str] | None = None,
    images: int = 100,
    show: bool = False,
) -> Checked:
    """Reads all files of some splits.

    tasks: names such as mscoco_task0, or how they begin; all unless given. images: so many of each file are opened.
    show: a progress bar on stderr.
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
    """What a file of queries or candidates holds. ids, positives: hashes."""

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
        self.wanted = tuple(tasks) if tasks else None
        self.found = Checked()
        self.random = random.Random(0)
        self.pools: dict[Path, _Read] = {}
        self.looked_at: set[str] = set()
        self.work = bar.add_task("checking", total=self._bytes())

    def run(self) -> Checked:
        self._instructions()
        for split in self.splits:
            self._split(split)
        if self.wanted and not self.found.rows and not self.found.absent:
            raise BadData(f"No task begins with {' or '.join(self.wanted)}. Names are like mscoco_task0.")
        self.found.images = len(self.looked_at)
        return self.found

    # Which files

    def _tasks(self, split: str) -> list[Task]:
        """Those of the published set and those that are there, as far as they are wanted."""
        there = {Task(name, id) for name, id in self.benchmark._query_files(split) if id is not None}
        every = [*PUBLISHED, *sorted(there - PUBLISHED.keys(), key=lambda task: task.name)]
        return [task for task in every if self.wanted is None or task.name.startswith(self.wanted)]

    def _pool(self, task: Task, split: str) -> Path | None:
        """The task's own pool; None if it is not there."""
        try:
            return self.benchmark._pool_file(task, split)
        except BadData:
            return None

    def _global(self, split: str) -> Path:
        return self.benchmark.root / f"cand_pool/global/mbeir_union_{split}_cand_pool.jsonl"

    def _bytes(self) -> int:
        """Size of all that will be read."""
        files: set[Path] = set()
        for split in self.splits:
            names, tasks = self.benchmark._query_files(split), self._tasks(split)
            files |= {path for (name, id), path in names.items() if id is None or Task(name, id) in tasks}
            files |= {pool for task in tasks if (pool := self._pool(task, split))} | {self._global(split)}
        return sum(path.stat().st_size for path in files if path.is_file())

    # Reading

    def _records(self, path: Path, make: Callable[[dict[str, Any]], Any]) -> Iterator[tuple[dict[str, Any], Any]]:
        """Each line that can be read, as it stands and as `make` makes it; the first that cannot is named."""
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
                    first = first or f"line {number}: {_wrong_line(line, error)}"
                    bad += 1
                    continue
                yield row, made
        self.bar.advance(self.work, unseen)
        if bad:
            self.found.damaged.append(f"{self._name(path)}, {first}" + (f" ({bad:,} such lines)" if bad > 1 else ""))

    def _queries(self, path: Path, task: Task, mixed: bool) -> _Read:
        read, ids, positives, sample = _Read(), array("q"), array("q"), _Sample(self.images, self.random)
        for row, query in self._records(path, lambda row: _query(row, task)):
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
            for _, candidate in self._records(path, _candidate):
                ids.append(hash(candidate.did))
                sample.add(candidate.image_path)
            self.pools[path] = self._finish(path, _Read(), ids, sample)
        return self.pools[path]

    def _finish(self, path: Path, read: _Read, ids: "array[int]", sample: "_Sample") -> _Read:
        read.count, read.ids = len(ids), np.unique(np.frombuffer(ids, np.int64))
        if twice := read.count - len(read.ids):
            self.found.damaged.append(f"{self._name(path)}: {twice:,} ids come more than once. Fetch the file again.")
        self._look_at(path, sample.kept)
        return read

    def _look_at(self, path: Path, names: Sequence[str]) -> None:
        bad = [name for name in names if not self._opens(name)]
        if bad:
            self.found.damaged.append(
                f"{self._name(path)}: of {len(names):,} images tried, {len(bad):,} cannot be opened, such as "
                f"{bad[0]}. Unpack the archive of images again."
            )

    def _opens(self, name: str) -> bool:
        self.looked_at.add(name)
        try:
            with Image.open(self.benchmark.root / name):
                return True
        except (OSError, ValueError, Image.DecompressionBombError):
            return False

    def _name(self, path: Path) -> str:
        return path.relative_to(self.benchmark.root).as_posix()

    # Comparing

    def _instructions(self) -> None:
        try:
            rows = {(r.dataset.casefold(), r.query_modality, r.cand_modality) for r in self.benchmark.instructions}
        except BadData as error:
            there = (self.benchmark.root / INSTRUCTIONS).is_file()
            (self.found.damaged if there else self.found.missing).append(str(error) if there else INSTRUCTIONS)
            return
        for task in sorted({task for split in self.splits for task in self._tasks(split)}, key=lambda task: task.name):
            if (task.dataset, task.query_modality, task.target_modality) not in rows:
                kind = f"{task.query_modality.label} -> {task.target_modality.label}"
                self.found.damaged.append(f"{INSTRUCTIONS}: no row for {task.dataset}, {kind}.")

    def _split(self, split: str) -> None:
        files, whole = self.benchmark._query_files(split), self._global(split)
        everything = None
        if whole.is_file():
            everything = self._candidates(whole)
            self.found.global_pools[split] = everything.count
            if split == "test" and self.wanted is None and not fits(everything.count, GLOBAL):
                self._differs(self._name(whole), "candidates", everything.count, GLOBAL)
        else:
            self.found.missing.append(self._name(whole))
        mixed: dict[str, _Read] = {}
        for task in self._tasks(split):
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
                    self._answerable(self._name(together), mixed[task.dataset], None, everything)
                read = mixed[task.dataset]
            else:
                self.found.missing.append(f"query/{split}/mbeir_{task.name}_{split}.jsonl")
            self._task(task, split, path, read, pool, everything)
        for dataset, read in mixed.items():
            self._sum(dataset, split, read)

    def _task(
        self, task: Task, split: str, path: Path | None, read: _Read | None, pool: Path | None, everything: _Read | None
    ) -> None:
        """One task of one split: its pool, its qrels, and the row for people."""
        own = None
        if split != "train":
            if pool is None:
                of_split = f"_{split}" if task.dataset == "mscoco" else ""
                self.found.missing.append(f"cand_pool/local/mbeir_{task.name}{of_split}_cand_pool.jsonl")
            else:
                own = self._candidates(pool)
            self._qrels(task, split, read)
        if read is not None and path is not None:
            self._answerable(self._name(path), read, own, everything)
        if own is not None and everything is not None and split == "test":
            self._inside(self._name(pool or Path()), "candidates", own.ids, everything, "the global pool")
        queries = read.by_task[task.task_id] if read and not read.by_task[None] else None
        relevant = read.relevant[task.task_id] / queries if read and queries else None
        row = Row(task, split, queries, relevant, own.count if own else None)
        self.found.rows.append(row)
        if row.published is not None:
            figure = row.published.queries[split]
            if queries is not None and not fits(queries, figure):
                self._differs(f"{task.name}, {split}", "queries", queries, figure)
            if own is not None and not fits(own.count, row.published.candidates):
                self._differs(f"{task.name}, {split}", "candidates", own.count, row.published.candidates)

    def _qrels(self, task: Task, split: str, read: _Read | None) -> None:
        name = _qrels_name(task.name, split)
        path = self.benchmark.root / name
        if not path.is_file():
            self.found.missing.append(name)
            return
        asked = array("q")
        try:
            asked.extend(hash(qid) for qid, _, _ in _read_qrels(path))
        except BadData as error:
            self.found.damaged.append(str(error).replace(str(path), name))
            return
        if read is not None:
            here = np.unique(np.frombuffer(asked, np.int64))
            for ids, others, what in (
                (read.ids, here, "without a line in it"),
                (here, read.ids, "in it but not asked"),
            ):
                if lost := int((~np.isin(ids, others, assume_unique=True)).sum()):
                    self.found.damaged.append(f"{name}: {lost:,} queries are {what}. Fetch queries and qrels again.")

    def _answerable(self, name: str, read: _Read, own: _Read | None, everything: _Read | None) -> None:
        for pool, what in ((own, "the task's own pool"), (everything, "the global pool")):
            if pool is not None:
                self._inside(name, "right candidates", read.positives, pool, what)

    def _inside(self, name: str, what: str, ids: np.ndarray, pool: _Read, where: str) -> None:
        if lost := int((~np.isin(ids, pool.ids, assume_unique=True)).sum()):
            self.found.damaged.append(f"{name}: {lost:,} {what} are not in {where}. Fetch both files again.")

    def _sum(self, dataset: str, split: str, read: _Read) -> None:
        """A file of several tasks whose lines do not say which: only the sum can be compared."""
        figures = [row.queries[split] for task, row in PUBLISHED.items() if task.dataset == dataset]
        if read.by_task[None] and figures and not fits(read.count, *figures):
            self._differs(f"{dataset}, {split}, all tasks", "queries", read.count, " + ".join(figures))

    def _differs(self, where: str, what: str, count: int, figure: str) -> None:
        self.found.differing.append(f"{where}: {count:,} {what}, published are {figure}.")


class _Sample:
    """Some of a stream of names, each as likely as any other (reservoir sampling)."""

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
