"""Batches of query-target pairs, and which other targets of a batch are right too.

Knows the index arrays of the training data; knows nothing of vectors or losses.
"""

import numpy as np

from genius.data.splits import SplitData


class Pairs:
    """All queries of a split as one list, drawn task by task.

    A task of n queries is drawn in proportion to n ** balance: 1 follows the data, 0 gives every task the same share.
    A batch is made of draws of `mix` tasks: the fewer, the more alike its candidates are, and the harder to tell apart.
    """

    def __init__(self, split: SplitData, balance: float, mix: int) -> None:
        self.mix = mix
        tasks = split.tasks
        self.text = np.concatenate([t.text for t in tasks])
        self.image = np.concatenate([t.image for t in tasks])
        self.wanted = np.concatenate([np.full(len(t), int(t.task.target_modality)) for t in tasks])
        positives = [p for t in tasks for p in t.positives]
        self._first = np.concatenate([[0], np.cumsum([len(p) for p in positives])])
        self._positives = np.concatenate(positives)
        sizes = np.array([len(t) for t in tasks])
        self._starts, self._sizes = np.cumsum(sizes) - sizes, sizes
        self._shares = sizes**balance / (sizes**balance).sum()

    def __len__(self) -> int:
        return len(self.text)

    def draw(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """At most n different queries, and a right candidate for each."""
        task = rng.choice(rng.choice(len(self._sizes), self.mix, p=self._shares), n)
        queries = np.unique(self._starts[task] + (rng.random(n) * self._sizes[task]).astype(np.int64))
        count = np.diff(self._first)[queries]
        return queries, self._positives[self._first[queries] + (rng.random(len(queries)) * count).astype(np.int64)]

    def targets(self) -> np.ndarray:
        """The rows of all candidates that are right for a query, in order."""
        return np.unique(self._positives)

    def false_negatives(self, queries: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        """(n, n) bool: candidate j is right for query i too, though it was drawn for another (or drawn twice)."""
        counts = np.diff(self._first)[queries]
        starts = np.cumsum(counts) - counts
        at = np.repeat(self._first[queries] - starts, counts) + np.arange(counts.sum())
        right = np.logical_or.reduceat(self._positives[at][:, None] == candidates, starts)
        np.fill_diagonal(right, False)
        return right
