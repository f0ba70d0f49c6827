"""Exact search in blocks, over candidates in a file."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from genius.evaluation import pool
from genius.evaluation.pool import nearest


@pytest.mark.parametrize("k", [1, 7, 300])
def test_blocks_find_what_one_product_finds(monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    monkeypatch.setattr(pool, "EXACT_BLOCK", 37)
    monkeypatch.setattr(pool, "EXACT_QUERIES", 5)
    rng = np.random.default_rng(0)
    candidates = rng.integers(-3, 4, (200, 4)).astype(np.float16)  # with many ties
    queries = rng.integers(-3, 4, (13, 4)).astype(np.float32)
    some = np.sort(rng.choice(200, 90, replace=False))
    for rows in (None, some):
        numbers = np.arange(200) if rows is None else rows
        scores = queries @ candidates[numbers].astype(np.float32).T
        expected = numbers[np.argsort(-scores, axis=1, kind="stable")[:, :k]]
        assert np.array_equal(nearest(queries, candidates, k, rows), expected)


def test_a_file_of_candidates_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "EXACT_BLOCK", 1000)
    rng = np.random.default_rng(0)
    candidates = np.lib.format.open_memmap(tmp_path / "c.npy", "w+", np.float16, (100_000, 64))
    for start in range(0, 100_000, 1000):
        candidates[start : start + 1000] = rng.standard_normal((1000, 64))
    queries = rng.standard_normal((20, 64)).astype(np.float32)
    tracemalloc.start()
    nearest(queries, candidates, 10)
    nearest(queries, candidates, 10, np.arange(0, 100_000, 2))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < candidates.nbytes / 10
