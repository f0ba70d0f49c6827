"""Training data: benchmarks in M-BEIR layout as index arrays over unique texts and pictures.

Knows queries, positives, pools and prompts; knows nothing of features or losses. Every unique string and picture has
one number, so that the frozen backbones see each of them once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from genius.errors import BadData
from genius.items import Query, clean_text
from genius.mbeir import Benchmark, Candidate, MBQuery, Task


class Vocabulary:
    """Numbers for unique strings; -1 for none."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, name: str | None) -> int:
        if not name:
            return -1
        if name not in self._numbers:
            self._numbers[name] = len(self.names)
            self.names.append(name)
        return self._numbers[name]


@dataclass
class TaskData:
    """The queries of one task. text, image: (n,) numbers of strings and pictures, -1 for none.

    positives: for each query the rows of its right candidates. pool: the rows searched in validation, None in train.
    """

    task: Task
    text: np.ndarray
    image: np.ndarray
    positives: list[np.ndarray]
    pool: np.ndarray | None

    def __len__(self) -> int:
        return len(self.text)


@dataclass
class SplitData:
    """All tasks of one split over one list of candidates. text, image: (candidates,) numbers, -1 for none."""

    tasks: list[TaskData]
    text: np.ndarray
    image: np.ndarray

    @property
    def modality(self) -> np.ndarray:
        """(candidates,) 0 image, 1 text, 2 both."""
        return np.where(self.image < 0, 1, np.where(self.text < 0, 0, 2))


class TrainingData:
    """The train and val splits of one or more benchmarks. `texts` and `images` name what the numbers stand for."""

    def __init__(self, roots: Sequence[Path], seed: int, derived_prompts: float) -> None:
        self.texts, self.images = Vocabulary(), Vocabulary()
        self._rng = np.random.default_rng([seed, 1])
        self._derived = derived_prompts
        benchmarks = [Benchmark(root) for root in roots]
        self.train = self._split(benchmarks, "train")
        self.val = self._split(benchmarks, "val")

    def _split(self, benchmarks: Sequence[Benchmark], split: str) -> SplitData:
        tasks: list[TaskData] = []
        text: list[int] = []
        image: list[int] = []
        for benchmark in benchmarks:
            if split not in benchmark.splits():
                raise BadData(f"{benchmark.root} has no {split} queries. Training needs a train and a val split.")
            rows: dict[str, int] = {}
            for candidate in benchmark.global_pool(split):
                rows[candidate.did] = len(text)
                text.append(self.texts.number(clean_text(candidate.text)))
                image.append(self._image(benchmark, candidate))
            tasks += [self._task(benchmark, task, split, rows) for task in benchmark.tasks(split)]
        return SplitData(tasks, np.array(text), np.array(image))

    def _task(self, benchmark: Benchmark, task: Task, split: str, rows: dict[str, int]) -> TaskData:
        queries = benchmark.queries(task, split)
        prompts = benchmark.prompts(task.dataset, task.query_modality, task.wanted)
        missing = next((did for q in queries for did in q.positives if did not in rows), None)
        if missing is not None:
            raise BadData(f"{benchmark.root}: {task.name} names {missing}, which the global {split} pool does not hold.")
        texts = [self._prompted(q, task, prompts if split == "train" else prompts[:1]) for q in queries]
        pool = None
        if split != "train":
            pool = np.array([rows[c.did] for c in benchmark.pool(task, split)])
        return TaskData(
            task,
            np.array([self.texts.number(t) for t in texts]),
            np.array([self._image(benchmark, q) for q in queries]),
            [np.array([rows[did] for did in q.positives]) for q in queries],
            pool,
        )

    def _prompted(self, query: MBQuery, task: Task, prompts: Sequence[str]) -> str:
        """Instruction and text as one string. In training the instruction is one of several, or the derived one."""
        if len(prompts) == 1:
            instruction: str | None = prompts[0]
        elif self._rng.random() < self._derived:
            instruction = None
        else:
            instruction = prompts[self._rng.integers(len(prompts))]
        # Whether there is a picture, not which, decides what the string says.
        return Query(query.text, query.image_path, instruction, task.wanted).prompt()

    def _image(self, benchmark: Benchmark, what: Candidate | MBQuery) -> int:
        return self.images.number(benchmark.image(what.image_path))
