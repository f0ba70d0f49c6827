"""Pairs: right candidates for every query, tasks in their shares, and no false negatives."""

from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genius.data.mbeir import Task
from genius.data.splits import SplitData, TaskData
from genius.train.batches import Pairs

CANDIDATES = 12

positives = st.lists(st.integers(0, CANDIDATES - 1), min_size=1, max_size=4)
tasks = st.lists(st.lists(positives, min_size=1, max_size=8), min_size=1, max_size=4)


def make(right: list[list[list[int]]], balance: float = 1.0, mix: int = 8) -> Pairs:
    """right: for each task, for each query, its right candidates. The text of query i is i, its image 100 + i."""
    number = count()
    made = []
    for id, queries in zip((0, 1, 2, 3), right, strict=False):
        text = np.array([next(number) for _ in queries])
        rows = [np.array(some) for some in queries]
        made.append(TaskData(Task("d", id), [str(n) for n in text], text, 100 + text, rows, None))
    none = np.full(CANDIDATES, -1)
    return Pairs(SplitData(made, [f"c{n}" for n in range(CANDIDATES)], np.arange(CANDIDATES), none), balance, mix)


@settings(max_examples=60, deadline=None)
@given(tasks, st.integers(0, 1000), st.integers(1, 20))
def test_false_negatives_against_brute_force(right: list[list[list[int]]], seed: int, n: int) -> None:
    flat = [set(some) for queries in right for some in queries]
    pairs = make(right)
    queries, candidates = pairs.draw(np.random.default_rng(seed), n)
    masked = pairs.false_negatives(queries, candidates)
    for i, query in enumerate(queries):
        for j, candidate in enumerate(candidates):
            assert masked[i, j] == (i != j and candidate in flat[query])


@settings(max_examples=60, deadline=None)
@given(tasks, st.integers(0, 1000), st.integers(1, 20), st.sampled_from([0.0, 0.5, 1.0]), st.integers(1, 5))
def test_draws_are_different_queries_with_a_right_candidate_each(
    right: list[list[list[int]]], seed: int, n: int, balance: float, mix: int
) -> None:
    flat = [some for queries in right for some in queries]
    pairs = make(right, balance, mix)
    assert len(pairs) == len(flat)
    queries, candidates = pairs.draw(np.random.default_rng(seed), n)
    assert 1 <= len(queries) <= n
    assert len(set(queries.tolist())) == len(queries) == len(candidates)
    assert all(candidate in flat[query] for query, candidate in zip(queries, candidates, strict=True))


def test_every_query_and_every_right_candidate_is_drawn() -> None:
    right = [[[0, 1], [2]], [[3, 4, 5]]]
    pairs = make(right)
    rng = np.random.default_rng(0)
    seen = {(int(q), int(c)) for _ in range(100) for q, c in zip(*pairs.draw(rng, 4), strict=True)}
    assert seen == {(0, 0), (0, 1), (1, 2), (2, 3), (2, 4), (2, 5)}


def test_text_and_image_follow_the_query() -> None:
    pairs = make([[[0]], [[1], [2]]])
    assert pairs.text.tolist() == [0, 1, 2]
    assert pairs.image.tolist() == [100, 101, 102]


@pytest.mark.parametrize("mix", [1, 2, 3])
def test_a_batch_is_of_no_more_tasks_than_the_mix(mix: int) -> None:
    pairs = make([[[0]] * 20] * 4, mix=mix)
    rng = np.random.default_rng(0)
    counts = [len(set(pairs.draw(rng, 40)[0] // 20)) for _ in range(100)]
    assert max(counts) == mix
    assert min(counts) == 1  # a task can be drawn twice


@pytest.mark.parametrize(("balance", "share"), [(1.0, 1 / 26), (0.5, 1 / 6), (0.0, 1 / 2)])
def test_tasks_are_drawn_by_their_size_to_the_power_of_balance(balance: float, share: float) -> None:
    """A task of 4 queries beside one of 100."""
    pairs = make([[[0]] * 4, [[1]] * 100], balance)
    rng = np.random.default_rng(0)
    small = np.mean([pairs.draw(rng, 1)[0][0] < 4 for _ in range(2000)])
    assert small == pytest.approx(share, abs=0.03)
