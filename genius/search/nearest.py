"""The items nearest to a query by their codes: those with the highest summed scores of codes."""

import numpy as np
from numpy.typing import NDArray

from genius.search.trie import Trie, concatenate_ranges

Ints = NDArray[np.int64]

COMPARED = 16  # items compared by their codes for each item that is wanted
EARLY, KEPT = 5, 3  # after this number of further levels, this number is left for each item that is wanted
MANY = 512  # items wanted, from which on it pays to drop others early
SAMPLED = 16  # one in this number of scores tells which items to drop
MIN_NODES = 32  # nodes of a level that are followed at least


def nearest(
    trie: Trie,
    node: tuple[int, int],
    scores: NDArray[np.float32],
    bounds: Ints,
    count: int,
    without: tuple[Ints, Ints],
) -> Ints:
    """Sorted positions of `count` items whose codes have the highest summed scores, in ascending order.

    Follows the best nodes of each level until few enough items lie under them, then compares these by the other codes.

    Args:
        trie: The IDs of the collection.
        node: The node [lo, hi) of level 1 to search.
        scores: (all codes,) score of each code of each level for the query.
        bounds: (levels + 1,) where the codes of each level start in `scores`.
        count: Number of items.
        without: Nodes (lo, hi) whose items are left out.
    """
    lo, hi = np.array(node[:1]), np.array(node[1:])
    score = np.zeros(1, np.float32)
    level, wanted = 1, COMPARED * count
    while level < trie.levels and (hi - lo).sum() > 2 * wanted:
        parent, lo, hi = trie.children(level, lo, hi)
        score = score[parent] + scores[bounds[level] :].take(trie.codes[level].take(lo))
        best = _best_nodes(score, hi - lo, wanted)
        lo, hi, score = lo[best], hi[best], score[best]
        level += 1
    which, at = concatenate_ranges(lo, hi)
    allowed = np.ones(len(at), np.bool_)
    allowed[concatenate_ranges(*(np.searchsorted(at, edge) for edge in without))[1]] = False
    which, at = which[allowed], at[allowed]
    score = score[which]
    for deeper in range(level, trie.levels):
        if deeper == level + EARLY and len(at) > 2 * KEPT * count and count >= MANY:
            likely = _about_highest(score, KEPT * count)
            at, score = at[likely], score[likely]
        score += scores[bounds[deeper] :].take(trie.codes[deeper].take(at))
    return at[_highest(score, min(count, len(at)))]


def _best_nodes(score: NDArray[np.float32], items: Ints, wanted: int) -> Ints:
    """Indices of the best nodes that hold the wanted number of items, at least MIN_NODES, in ascending order."""
    order = np.argsort(-score)
    end = int(np.searchsorted(np.cumsum(items[order]), wanted)) + 1
    return np.sort(order[: max(end, MIN_NODES)])


def _about_highest(score: NDArray[np.float32], count: int) -> Ints:
    """Indices of about the `count` highest scores, in ascending order: an exact number would take far longer."""
    sample = score[::SAMPLED]
    rank = len(sample) - count // SAMPLED
    return np.flatnonzero(score >= np.partition(sample, rank)[rank])


def _highest(score: NDArray[np.float32], count: int) -> Ints:
    """Indices of the `count` highest scores, in ascending order. Of equal scores at the end, the first count."""
    if count <= 0:
        return np.zeros(0, np.int64)
    least = np.partition(score, len(score) - count)[len(score) - count]
    chosen = score > least
    chosen[np.flatnonzero(score == least)[: count - int(chosen.sum())]] = True
    return np.flatnonzero(chosen)
