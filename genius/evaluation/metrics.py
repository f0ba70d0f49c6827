"""Recall, reciprocal rank, nDCG and bootstrap intervals.

In every function `right` is a (q, k) bool array: whether the answer at each rank is right, best answer first. Metrics
return one value per query, (q,) float64 in [0, 1].
"""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def recall(right: np.ndarray, cut: int) -> Floats:
    """M-BEIR's Recall@cut: 1 if any of the first `cut` answers is right, else 0."""
    return np.asarray(right[:, :cut].any(axis=1), np.float64)


def reciprocal_rank(right: np.ndarray, cut: int) -> Floats:
    """1 / rank of the first right answer, or 0 if none of the first `cut` answers is right."""
    first = right[:, :cut]
    gained: Floats = (first / np.arange(1, first.shape[1] + 1)).max(axis=1, initial=0.0)
    return gained


def ndcg(right: np.ndarray, positives: np.ndarray, cut: int) -> Floats:
    """NDCG@cut with binary relevance. positives: (q,) number of right candidates of each query."""
    discounts = 1 / np.log2(np.arange(2, cut + 2))
    first = right[:, :cut]
    gained = first @ discounts[: first.shape[1]]
    best = np.concatenate([[0.0], discounts.cumsum()])[np.minimum(positives, cut)]
    ratio: Floats = np.divide(gained, best, out=np.zeros(len(right)), where=best > 0)
    return ratio


def interval(values: np.ndarray, seed: int = 0, rounds: int = 1000, level: float = 0.95) -> tuple[float, float]:
    """Percentile bootstrap interval (low, high) of the mean of values (q,)."""
    return middle(resampled_means(values, seed, rounds), level)


def resampled_means(values: np.ndarray, seed: int | list[int] = 0, rounds: int = 1000) -> Floats:
    """Means (rounds,) of values (q,) whose queries are drawn again with replacement.

    Draws the counts of the distinct values from a multinomial. This has the same distribution as resampling queries
    and is much faster for metrics with few distinct values, such as recall.
    """
    distinct, counts = np.unique(values, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(values), counts / len(values), size=rounds)
    means: Floats = drawn @ distinct / len(values)
    return means


def middle(means: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """The ends (low, high) of the middle share of resampled means."""
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
