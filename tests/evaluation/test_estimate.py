"""Means over seeds and queries against drawing every query one by one."""

import math

import numpy as np
import pytest

from genius.evaluation.estimate import Estimate, seed_means, seed_spread, seeded_percent


def hits(rng: np.random.Generator, seeds: int, sizes: tuple[int, ...], share: float) -> list[np.ndarray]:
    """For each task (seeds, queries): some queries are easy under every seed, others under none."""
    return [rng.random((seeds, size)) < np.clip(share + rng.normal(0, 0.3, size), 0, 1) for size in sizes]


def slow_interval(mine: list[np.ndarray], theirs: list[np.ndarray], rounds: int) -> tuple[float, float]:
    """95 % of the differences of means over tasks when every query is drawn by number, the same one for both rows."""
    rng = np.random.default_rng(7)
    means = []
    for _ in range(rounds):
        differences = []
        for a, b in zip(mine, theirs, strict=True):
            queries = rng.integers(a.shape[1], size=a.shape[1])
            differences.append(np.mean([int(a[s, q]) - int(b[s, q]) for s in range(len(a)) for q in queries]))
        means.append(100 * np.mean(differences))
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_paired_difference_is_that_of_drawing_every_query(seeds: int) -> None:
    rng = np.random.default_rng(seeds)
    mine = hits(rng, seeds, (30, 50), 0.5)
    theirs = [a ^ (rng.random(a.shape) < 0.2) for a in mine]  # mostly the same queries
    found = seeded_percent([a.astype(float) - b for a, b in zip(mine, theirs, strict=True)], rounds=20_000)
    by_seed = [np.mean([a[s].mean() - b[s].mean() for a, b in zip(mine, theirs, strict=True)]) for s in range(seeds)]
    assert found.value == pytest.approx(100 * np.mean(by_seed))

    low, high = slow_interval(mine, theirs, 2000)
    if seeds > 1:  # 4.303: Student's t with two degrees of freedom
        half = 4.303 * 100 * np.std(by_seed, ddof=1) / math.sqrt(seeds)
        low, high = (found.value + sign * math.hypot(end - found.value, half) for sign, end in ((-1, low), (1, high)))
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.08 * (high - low))


def test_pairing_makes_the_interval_narrower() -> None:
    rng = np.random.default_rng(0)
    (mine,) = hits(rng, 1, (400,), 0.5)
    theirs = mine.copy()
    theirs[0, :20] = ~theirs[0, :20]
    paired = seeded_percent([mine.astype(float) - theirs])
    apart = [seeded_percent([one]) for one in (mine, theirs)]
    assert paired.half < 0.5 * math.hypot(*(one.half for one in apart))


def test_seeds_that_disagree_make_the_interval_wider() -> None:
    easy, hard = np.zeros((3, 200)), np.zeros((3, 200))
    easy[:, :100] = 1
    hard[0, :120], hard[1, :100], hard[2, :80] = 1, 1, 1
    assert seeded_percent([easy]).value == seeded_percent([hard]).value == 50
    assert seed_means([hard]).tolist() == [0.6, 0.5, 0.4]
    assert seed_spread([hard]) == pytest.approx(10)
    assert seeded_percent([hard]).half > 4.303 * 10 / math.sqrt(3)
    assert seeded_percent([easy]).half < 8


def test_a_task_counts_as_much_as_another() -> None:
    assert seeded_percent([np.ones((1, 2)), np.zeros((1, 998))]).value == 50
    assert seeded_percent([np.zeros((2, 5)), np.zeros((2, 9))]) == Estimate(0, 0, 0)
