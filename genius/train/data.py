"""The train and val splits that a model is trained on, with the instructions its queries get."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from genius.data.mbeir import Benchmark
from genius.data.splits import SplitData, TaskData, Vocabulary, read_split

VALIDATION_QUERIES = 5_000  # of a task, at most
VALIDATION_POOL = 20_000  # candidates of a task, at most, the right ones among them


class TrainingData:
    """One or more benchmarks. `texts` and `images` name what the numbers in `train` and `val` stand for.

    A training query gets one of its task's prompts at random or, in a part `derived_prompts` of the cases, the
    instruction of a query without one: users will ask both ways. Of large validation tasks a sample is kept.
    """

    def __init__(self, roots: Sequence[Path], seed: int, derived_prompts: float) -> None:
        self.texts, self.images = Vocabulary(), Vocabulary()
        rng = np.random.default_rng([seed, 1])
        benchmarks = [Benchmark(root) for root in roots]

        def choose(prompts: Sequence[str]) -> str | None:
            if rng.random() < derived_prompts:
                return None
            return prompts[int(rng.integers(len(prompts)))]

        self.train = read_split(benchmarks, "train", self.texts, self.images, choose)
        texts, images = Vocabulary(), Vocabulary()
        self.val = sampled(read_split(benchmarks, "val", texts, images), VALIDATION_QUERIES, VALIDATION_POOL)
        renumber(self.val, "text", texts, self.texts)
        renumber(self.val, "image", images, self.images)


def sampled(split: SplitData, queries: int, pool: int) -> SplitData:
    """At most so many queries of each task, and so many candidates of its pool, the right ones among them.

    The same sample every time. A split that is no larger is given back as it is.
    """
    if all(len(t) <= queries and len(_pool(t)) <= pool for t in split.tasks):
        return split
    rng = np.random.default_rng(0)
    tasks = [_sampled_task(task, queries, pool, rng) for task in split.tasks]
    used = np.unique(np.concatenate([rows for t in tasks for rows in (_pool(t), *t.positives)]))
    for task in tasks:
        task.pool = np.searchsorted(used, _pool(task))
        task.positives = [np.searchsorted(used, right) for right in task.positives]
    return SplitData(tasks, [split.dids[row] for row in used], split.text[used], split.image[used])


def _sampled_task(task: TaskData, queries: int, pool: int, rng: np.random.Generator) -> TaskData:
    asked = np.sort(rng.permutation(len(task))[:queries])
    positives = [task.positives[number] for number in asked]
    right = np.unique(np.concatenate(positives))
    others = rng.permutation(np.setdiff1d(_pool(task), right))[: max(0, pool - len(right))]
    kept = _pool(task)[np.isin(_pool(task), np.concatenate([right, others]))]
    qids = [task.qids[number] for number in asked]
    return TaskData(task.task, qids, task.text[asked], task.image[asked], positives, kept)


def _pool(task: TaskData) -> np.ndarray:
    assert task.pool is not None
    return task.pool


def renumber(split: SplitData, kind: str, old: Vocabulary, new: Vocabulary) -> None:
    """Gives the strings or images that a split uses their numbers in another vocabulary."""
    parts: list[SplitData | TaskData] = [split, *split.tasks]
    used = np.unique(np.concatenate([getattr(part, kind) for part in parts]))
    table = np.full(len(old.names) + 1, -1)  # its last entry is that of -1
    for number in used[used >= 0]:
        table[number] = new.number(old.names[number])
    for part in parts:
        setattr(part, kind, table[getattr(part, kind)])
