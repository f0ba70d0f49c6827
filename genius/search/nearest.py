"""Search in mode "fast": the items whose code vectors sum up to the vector nearest to the query.

The decoder's first pass chooses the modalities. Under them, items are compared by the residual score s z.q - |q|^2 / 2,
where q is the sum of an item's code vectors: the nearer q is to s z, the higher. s z.q is a sum of one number for each
code, and |q|^2 / 2 is computed once for each item.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from genius.model.decoder_runtime import DecoderRuntime
from genius.search.beam import NO_BEAMS, Beams, FirstPass, Front, check_search
from genius.search.rerank import CodeVectors, half_squares
from genius.search.trie import Trie, concatenate_ranges

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

QUERY_SCALE = 2.5  # s; larger than in a decoder, since a query lies further from its answers than a code from its item
QUERIES = 128  # queries that the decoder reads at once
COMPARED = 14  # items compared by all their codes for each item that is wanted
EARLY, KEPT = 5, 3  # after this number of further levels, this number is left for each item that is wanted
MANY = 512  # items wanted, from which on it pays to drop others early
SAMPLE = 1024  # nodes that are sorted to find out which of many nodes are likely to be followed
MIN_NODES = 64  # nodes of a level that are followed at least


def nearest_search(
    decoder: DecoderRuntime,
    trie: Trie,
    vectors: CodeVectors,
    halves: Floats,
    z: ArrayLike,
    count: int,
    *,
    targets: ArrayLike | None = None,
    min_modality_ratio: float = 0.0,
) -> list[Beams]:
    """Find `count` items for each query: the nearest by their codes, of the modalities that the decoder chooses.

    Several modalities share `count` equally. Results do not depend on the batch.

    Args:
        decoder: Scores the modality and the first semantic code.
        trie: The IDs of the collection.
        vectors: The code vectors.
        halves: `CodeVectors.half_norms` of the items, in the order of the trie.
        z: (q, dim) fused query vectors.
        count: Number of items per query.
        targets: (q,) first code of the hits, -1 to leave it to the decoder.
        min_modality_ratio: Modalities less probable than this times the most probable one are not searched, unless
            the others have fewer than `count` items.

    Returns:
        One range per item, with the log-probability of its first two codes. If no more than `count` items are there to
        be found, the ranges are modalities.

    Raises:
        GeniusError: Trie, decoder, queries and count do not fit together.
    """
    queries = np.ascontiguousarray(z, dtype=np.float32)
    first_codes = np.full(len(queries), -1) if targets is None else np.asarray(targets, np.int64)
    check_search(decoder, trie, queries, count)
    scaled = np.float32(QUERY_SCALE) * queries
    roots, ends, codes = trie.roots
    possible = (first_codes[:, None] < 0) | (first_codes[:, None] == codes)  # (q, roots)
    few = possible @ (ends - roots) <= count
    found: list[Beams] = [NO_BEAMS] * len(queries)
    for query in np.flatnonzero(few).tolist():  # all items are compared: the decoder has nothing to decide
        lo, hi = roots[possible[query]], ends[possible[query]]
        found[query] = Beams(lo, hi, np.zeros(len(lo)), 1)
    others = np.flatnonzero(~few)
    for start in range(0, len(others), QUERIES):
        chunk = others[start : start + QUERIES]
        first = FirstPass.of(decoder, trie, queries[chunk], first_codes[chunk], count, min_modality_ratio)
        assert first is not None  # each of these queries has items
        after = first.log_probs.reshape(-1, first.log_probs.shape[-1])
        for query, front in zip(chunk.tolist(), first.fronts, strict=True):
            found[query] = _find(trie, vectors, halves, scaled[query], count, front, after)
    return found


def _find(
    trie: Trie, vectors: CodeVectors, halves: Floats, query: Floats, count: int, front: Front, after: Floats
) -> Beams:
    """The items of one query under the modalities of its front. after: (rows, codes) log-probabilities of level 2."""
    if (front.hi - front.lo).sum() <= count or trie.levels == 1:
        return Beams(front.lo, front.hi, front.score, 1)
    products = vectors.table @ query
    left, parts = count, []
    for i in reversed(range(len(front.lo))):  # the most probable modality comes last and takes what the others leave
        at = nearest(trie, (front.lo[i], front.hi[i]), products, vectors, halves, left // (i + 1))
        left -= len(at)
        parts.append((at, front.score[i] + after[front.row[i]].take(trie.codes[1].take(at))))
    at, score = (np.concatenate(part) for part in zip(*reversed(parts), strict=True))
    return Beams(at, at + 1, score, 2)


def nearest(
    trie: Trie, node: tuple[int, int], products: Floats, vectors: CodeVectors, halves: Floats, count: int
) -> Ints:
    """Sorted positions of `count` items with the highest residual scores, in ascending order.

    Follows the best nodes of each level until few enough items lie under them, then compares these by the other codes.
    A node's score is that of its codes so far.

    Args:
        trie: The IDs of the collection.
        node: The node [lo, hi) of level 1 to search.
        products: (codes,) s z.c of every code.
        vectors: The code vectors.
        halves: `CodeVectors.half_norms` of the items, in the order of the trie.
        count: Number of items.
    """
    lo, hi = np.array(node[:1]), np.array(node[1:])
    bounds = vectors.bounds
    dot = products.take(trie.codes[0].take(lo))  # (nodes,) s z.q of each node, where q is the sum of its codes so far
    level, wanted = 1, COMPARED * count
    while level < trie.levels and (hi - lo).sum() > 2 * wanted:
        book = slice(bounds[level], bounds[level + 1])
        sums = vectors.decode(trie.codes[:level].take(lo, axis=1).T)  # (nodes, dim) q
        # With one more code c: s z.(q + c) - |q + c|^2 / 2 = s z.q + s z.c - |q|^2 / 2 - q.c - |c|^2 / 2
        scores = (dot - half_squares(sums))[:, None] - sums @ vectors.table[book].T  # (nodes, codes)
        scores += products[book] - vectors.halves[book]
        parent, lo, hi = trie.children(level, lo, hi)
        code = trie.codes[level].take(lo)
        best = _best_nodes(scores.take(parent * scores.shape[1] + code), hi - lo, wanted)
        lo, hi, dot = lo[best], hi[best], dot[parent[best]] + products[book][code[best]]
        level += 1
    at: Ints | slice
    if len(lo) == 1:  # a slice is a view: nothing is copied
        at, score = slice(int(lo[0]), int(hi[0])), np.repeat(dot, hi - lo)
    else:
        at, score = concatenate_ranges(lo, hi), np.repeat(dot, hi - lo)
    score -= _values(halves, at)
    for deeper in range(level, trie.levels):
        if deeper == level + EARLY and len(score) > 2 * KEPT * count and count >= MANY:
            likely = np.flatnonzero(score >= _at_rank(score, KEPT * count))
            at, score = _positions(at, likely), score[likely]
        score += products[bounds[deeper] :].take(_values(trie.codes[deeper], at))
    return _positions(at, _highest(score, min(count, len(score))))


def _values(array: NDArray[Any], at: Ints | slice) -> NDArray[Any]:
    """array[at]."""
    return array[at] if isinstance(at, slice) else array.take(at)


def _positions(at: Ints | slice, which: Ints) -> Ints:
    """Positions of some items. which: their indices in `at`."""
    return at.start + which if isinstance(at, slice) else at[which]


def _best_nodes(score: Floats, items: Ints, wanted: int) -> Ints:
    """Indices of the best nodes that hold the wanted number of items, at least MIN_NODES, in ascending order."""
    nodes = np.arange(len(score))
    if len(nodes) > 2 * SAMPLE:  # to sort them all would take far longer than to sort a sample and the likely ones
        step = len(nodes) // SAMPLE
        least = score[_first_best(nodes[::step], score, items, 2 * wanted // step)[-1]]
        likely = np.flatnonzero(score >= least)
        nodes = likely if items[likely].sum() >= wanted else nodes
    return np.sort(_first_best(nodes, score, items, wanted))


def _first_best(nodes: Ints, score: Floats, items: Ints, wanted: int) -> Ints:
    """The best of these nodes, best first: as many as hold the wanted number of items, at least MIN_NODES."""
    order = nodes[np.argsort(-score[nodes])]
    end = int(np.searchsorted(np.cumsum(items[order]), wanted)) + 1
    return order[: max(end, MIN_NODES)]


def _highest(score: Floats, count: int) -> Ints:
    """Indices of the `count` highest scores, in ascending order. Of equal scores at the end, the first count."""
    if count <= 0:
        return np.zeros(0, np.int64)
    least = _at_rank(score, count)
    chosen = score > least
    chosen[np.flatnonzero(score == least)[: count - int(chosen.sum())]] = True
    return np.flatnonzero(chosen)


def _at_rank(score: Floats, rank: int) -> np.float32:
    """The highest score has rank 1."""
    value: np.float32 = np.partition(score, len(score) - rank)[len(score) - rank]
    return value
