"""Estimate: a measured value with its 95 % interval, and the means of several."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


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


def mean_difference(pairs: Sequence[tuple[Estimate, Estimate]]) -> Estimate | None:
    """Mean of first - second over all pairs; None without pairs.

    Takes the two values of a pair as independent. Where both come from the same queries the interval is too wide, never
    too narrow.
    """
    if not pairs:
        return None
    value = float(np.mean([first.value - second.value for first, second in pairs]))
    half = math.hypot(*(e.half for pair in pairs for e in pair)) / len(pairs)
    return Estimate(value, value - half, value + half)


def signed(value: float) -> str:
    """Such as '+1.5' or '−2.0'."""
    return f"{value:+.1f}".replace("-", "−")
