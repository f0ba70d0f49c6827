"""Recall, reciprocal rank, nDCG, and the interval of a mean, from which answers are right.

Knows arrays only: nothing of queries, candidates or searching. `right` is (q, k) bool everywhere: whether the answer at
each place is right, the best answer first. Every measure gives one figure a query, (q,) float64 from 0 to 1.
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def recall(right: np.ndarray, cut: int) -> Floats:
    """M-BEIR's recall: 1 where any of the first `cut` answers is right, 0 elsewhere."""
    return np.asarray(right[:, :cut].any(axis=1), np.float64)


def reciprocal_rank(right: np.ndarray, cut: int) -> Floats:
    """1 / place of the first right answer; 0 where none of the first `cut` is right."""
    first = right[:, :cut]
    gained: Floats = (first / np.arange(1, first.shape[1] + 1)).max(axis=1, initial=0.0)
    return gained


def ndcg(right: np.ndarray, positives: np.ndarray, cut: int) -> Floats:
    """Discounted gain of the first `cut` answers over that of the best order. positives: (q,) how many are right."""
    discounts = 1 / np.log2(np.arange(2, cut + 2))
    first = right[:, :cut]
    gained = first @ discounts[: first.shape[1]]
    best = np.concatenate([[0.0], discounts.cumsum()])[np.minimum(positives, cut)]
    return np.divide(gained, best, out=np.zeros(len(right)), where=best > 0)


def interval(values: np.ndarray, seed: int = 0, rounds: int = 1000, level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap of the mean. values: (q,) -> (low, high).

    How often each distinct value is drawn is drawn at once: the same distribution as drawing every query, and far
    cheaper where few values are distinct, as they are for recall.
    """
    distinct, counts = np.unique(values, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(values), counts / len(values), size=rounds)
    means = drawn @ distinct / len(values)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
