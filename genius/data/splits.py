"""A split of a benchmark as index arrays over unique texts and images, for training and evaluation.

Each unique text and image has one number, so it is encoded once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from genius.data.items import Query, clean_text
from genius.data.mbeir import Benchmark, Candidate, MBQuery, Task
from genius.errors import BadData

Choose = Callable[[Sequence[str]], str | None]
"""Chooses the prompt of a query; None means the default instruction of the target modality."""


class Vocabulary:
    """Numbers of unique strings."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, name: str | None) -> int:
        """Return the number of a string, a new one if necessary; -1 for None and ""."""
        if not name:
            return -1
        if name not in self._numbers:
            self._numbers[name] = len(self.names)
            self.names.append(name)
        return self._numbers[name]


@dataclass
class TaskData:
    """The queries of one task."""

    task: Task
    qids: list[str]
    text: np.ndarray  # (n,) numbers of the prompts
    image: np.ndarray  # (n,) numbers of the images, -1 for none
    positives: list[np.ndarray]  # rows of the relevant candidates of each query
    pool: np.ndarray | None  # rows of the candidates of the task; None in train

    def __len__(self) -> int:
        return len(self.text)

    def select(self, rows: np.ndarray) -> "TaskData":
        """The same task with these queries only, given by number."""
        qids, positives = [self.qids[row] for row in rows], [self.positives[row] for row in rows]
        return TaskData(self.task, qids, self.text[rows], self.image[rows], positives, self.pool)


@dataclass
class SplitData:
    """All tasks of one split, with their candidates. text, image: (candidates,) numbers, -1 for none."""

    tasks: list[TaskData]
    dids: list[str]
    text: np.ndarray
    image: np.ndarray

    @property
    def modality(self) -> np.ndarray:
        """(candidates,) values of Modality."""
        return np.where(self.image < 0, 1, np.where(self.text < 0, 0, 2))


def first_prompt(prompts: Sequence[str]) -> str:
    """Choose the first prompt."""
    return prompts[0]


def read_split(
    benchmarks: Sequence[Benchmark], split: str, texts: Vocabulary, images: Vocabulary, choose: Choose = first_prompt
) -> SplitData:
    """Read one split of some benchmarks. New strings and images get numbers in `texts` and `images`."""
    tasks: list[TaskData] = []
    dids: list[str] = []
    text: list[int] = []
    image: list[int] = []

    def image_number(benchmark: Benchmark, of: Candidate | MBQuery) -> int:
        return images.number(benchmark.image(of.image_path))

    def add(benchmark: Benchmark, candidate: Candidate, rows: dict[str, int]) -> str:
        rows[candidate.did] = len(text)
        dids.append(candidate.did)
        text.append(texts.number(clean_text(candidate.text)))
        image.append(image_number(benchmark, candidate))
        return candidate.did

    def read_pool(benchmark: Benchmark, task: Task, rows: dict[str, int]) -> list[str]:
        """Return the dids of a pool. The published global val pool lacks candidates that are relevant to no query."""
        pool = benchmark.pool(task, split)
        return [one.did if one.did in rows or split != "val" else add(benchmark, one, rows) for one in pool]

    def read_task(benchmark: Benchmark, task: Task, rows: dict[str, int]) -> TaskData:
        queries = benchmark.queries(task, split)
        prompts = benchmark.prompts(task.dataset, task.query_modality, task.target_modality)
        where = f"{benchmark.root}, {split}: {task.name}"
        if not queries:
            raise BadData(f"{where} has no queries. Remove its file, or add queries.")
        unanswered = next((q.qid for q in queries if not q.positives), None)
        if unanswered is not None:
            raise BadData(f"{where} has a query without relevant candidates, {unanswered}. Remove it, or add one.")
        pool = None if split == "train" else read_pool(benchmark, task, rows)
        strings = [Query(q.text, q.image_path, choose(prompts), task.target_modality).prompt() for q in queries]
        return TaskData(
            task,
            [q.qid for q in queries],
            np.array([texts.number(s) for s in strings]),
            np.array([image_number(benchmark, q) for q in queries]),
            [_rows(rows, q.positives, where) for q in queries],
            None if pool is None else _rows(rows, pool, where),
        )

    for benchmark in benchmarks:
        if split not in benchmark.splits():
            raise BadData(f"{benchmark.root} has no {split} queries; it has {', '.join(benchmark.splits())}.")
        rows: dict[str, int] = {}
        for candidate in benchmark.global_pool(split):
            add(benchmark, candidate, rows)
        tasks += [read_task(benchmark, task, rows) for task in benchmark.tasks(split)]
    return SplitData(tasks, dids, np.array(text), np.array(image))


def _rows(rows: dict[str, int], dids: Sequence[str], where: str) -> np.ndarray:
    missing = next((did for did in dids if did not in rows), None)
    if missing is not None:
        raise BadData(f"{where} names the candidate {missing}, which is in no pool of the split. Add it.")
    return np.array([rows[did] for did in dids], dtype=np.int64)
