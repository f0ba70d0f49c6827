"""Estimate: a measured value with its 95 % interval, and the means of several."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from genius.evaluation.metrics import middle, resampled_means

STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""97.5 % quantiles of Student's t with 1, 2, ... degrees of freedom: one less than the seeds."""


@dataclass(frozen=True)
class Estimate:
    """A value and the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.1f}"

    @property
    def interval(self) -> str:
        """Such as '58.0–62.0'."""
        return f"{self.low:.1f}–{self.high:.1f}"

    @property
    def half(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2


def mean_percent(estimates: Sequence[Estimate]) -> Estimate:
    """Mean of independent percentages; the interval stays within 0 and 100."""
    value = float(np.mean([e.value for e in estimates]))
    half = math.hypot(*(e.half for e in estimates)) / len(estimates)
    return Estimate(value, max(0.0, value - half), min(100.0, value + half))


def seeded_percent(tasks: Sequence[np.ndarray], rounds: int = 1000) -> Estimate:
    """The mean, in percent, of values of the same queries under several training seeds, with its 95 % interval.

    For differences, give the difference of two rows: both rows then see the same queries and seeds, and what makes a
    query or a seed hard for both cancels out.

    The interval has two parts. Queries: a bootstrap that draws the queries of each task again, each with all its seeds.
    Seeds, if there are several: Student's t interval of the mean over seeds, which is wide for few of them. The two are
    independent, so their widths add as squares. With one seed the interval says nothing about training again.

    Args:
        tasks: For each task the values (seeds, queries), such as 1 for a hit and 0 for a miss.
        rounds: Number of draws.
    """
    drawn = np.mean(
        [resampled_means(values.mean(axis=0), [0, number], rounds) for number, values in enumerate(tasks)], axis=0
    )
    value, (low, high) = 100 * float(np.mean(seed_means(tasks))), middle(100 * drawn)
    seeds = len(seed_means(tasks))
    half = STUDENT[seeds - 2] * seed_spread(tasks) / math.sqrt(seeds) if seeds > 1 else 0.0
    return Estimate(value, value - math.hypot(value - low, half), value + math.hypot(high - value, half))


def seed_means(tasks: Sequence[np.ndarray]) -> np.ndarray:
    """The mean over tasks under each seed, (seeds,), of values (seeds, queries) for each task."""
    means: np.ndarray = np.mean([values.mean(axis=1) for values in tasks], axis=0)
    return means


def seed_spread(tasks: Sequence[np.ndarray]) -> float:
    """Standard deviation over seeds, in percent, of the mean over tasks. Needs two seeds."""
    return 100 * float(np.std(seed_means(tasks), ddof=1))


def signed(value: float) -> str:
    """Such as '+1.5' or '−2.0'."""
    return f"{value:+.1f}".replace("-", "−")
