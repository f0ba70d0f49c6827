"""Validation recall against sorting one query at a time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genius.data.mbeir import Task
from genius.data.splits import SplitData, TaskData
from genius.train.validation import AT, recall


def slowly(split: SplitData, task: TaskData, queries: np.ndarray, candidates: np.ndarray) -> float:
    hits = 0
    assert task.pool is not None
    for row, query in enumerate(queries):
        allowed = [c for c in task.pool if task.image[row] < 0 or split.image[c] != task.image[row]]
        ranked = sorted(allowed, key=lambda c: -float(candidates[c] @ query))
        hits += any(c in task.positives[row] for c in ranked[:AT])
    return 100 * hits / len(queries)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 8))
def test_recall_against_sorting(seed: int, size: int, queries: int) -> None:
    """Own images are no answers, even in a pool of fewer candidates than are asked for."""
    rng = np.random.default_rng(seed)
    tasks = []
    for id in (0, 4):
        pool = rng.permutation(size)[: int(rng.integers(1, size + 1))]
        right = [rng.permutation(size)[: int(rng.integers(1, 4))] for _ in range(queries)]
        image = rng.integers(-1, 3, queries)
        tasks.append(TaskData(Task("d", id), ["q"] * queries, np.zeros(queries, int), image, right, pool))
    split = SplitData(tasks, ["c"] * size, np.zeros(size, int), rng.integers(-1, 3, size))
    candidates = rng.standard_normal((size, 4)).astype(np.float32)
    asked = [rng.standard_normal((queries, 4)).astype(np.float32) for _ in tasks]
    figures = recall(split, asked, candidates)
    expected = [slowly(split, task, vectors, candidates) for task, vectors in zip(tasks, asked, strict=True)]
    assert list(figures) == ["score", "d_task0", "d_task4"]
    assert [figures["d_task0"], figures["d_task4"]] == pytest.approx(expected)
    assert figures["score"] == pytest.approx(np.mean(expected))
