"""The inner loops of search, compiled: a few nanoseconds a node or item instead of a few microseconds.

Arrays in, arrays out, those of `Trie` among them: codes, change, starts, start_bounds. Knows nothing of decoders, and
of items only their positions in the trie's order. Compiled when first called, once on a machine.
"""

import numpy as np
from numba import njit

SCAN = 512  # under a node of more items, its children are looked up; of fewer, all items are looked at
BINS = 2048  # that scores are sorted into
NODES = 32  # at least so many nodes of a level are followed to the items near by codes
ITEMS = 16  # for each item wanted, so many are compared by their codes


@njit(cache=True, nogil=True)
def grow(  # type: ignore[no-untyped-def]
    codes, change, starts, start_bounds, level, bounds, lo, hi, score, row, log_probs, widths, max_items
):
    """The best children of all beams, one level of beam search.

    bounds: (q + 1,) where each query's beams begin; lo, hi, score, row: (b,) the beams' nodes, their log-probabilities
    and their rows of log_probs, (rows, codes of the level); widths: (q,) how many children each query keeps.
    If no more than `max_items` items lie under these, or each has one ID, the query is done, and what is left of
    `max_items` is filled with other children of the best one's modality, best first.
    Returns the children, query by query and best first: query, parent, code, lo, hi, score; and for each query whether
    its `widths` best hold few enough items, and whether each of them has one ID.
    """
    levels, queries = len(codes), len(bounds) - 1
    room = 0
    for q in range(queries):
        below = 0
        for b in range(bounds[q], bounds[q + 1]):
            below += hi[b] - lo[b]
        room += min(below, widths[q] + max_items)
    to_query, to_parent, to_code = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    to_lo, to_hi, to_score = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.float64)
    few, settled = np.zeros(queries, np.bool_), np.ones(queries, np.bool_)
    end = 0
    for q in range(queries):
        beams = slice(bounds[q], bounds[q + 1])
        parent, child_lo, child_hi = children(change, starts, start_bounds, level, lo[beams], hi[beams])
        count = len(parent)
        child_score = np.empty(count)
        for i in range(count):
            b = bounds[q] + parent[i]
            child_score[i] = score[b] + log_probs[row[b], codes[level, child_lo[i]]]
        best = best_of(child_score, child_lo, widths[q] + max_items)
        items = 0
        for n in range(len(best)):
            i = best[n]
            if n < widths[q]:
                items += child_hi[i] - child_lo[i]
                settled[q] &= one_id(change, levels, child_lo[i], child_hi[i])
            else:
                if n == widths[q]:
                    few[q] = items <= max_items
                if not (few[q] or settled[q] or level + 1 == levels):
                    break
                if codes[0, child_lo[i]] != codes[0, child_lo[best[0]]]:
                    continue
                items += child_hi[i] - child_lo[i]
                if items > max_items:
                    break
            to_query[end], to_parent[end], to_code[end] = q, bounds[q] + parent[i], codes[level, child_lo[i]]
            to_lo[end], to_hi[end], to_score[end] = child_lo[i], child_hi[i], child_score[i]
            end += 1
        if len(best) <= widths[q]:
            few[q] = items <= max_items
    return to_query[:end], to_parent[:end], to_code[:end], to_lo[:end], to_hi[:end], to_score[:end], few, settled


@njit(cache=True, nogil=True)
def nearest(  # type: ignore[no-untyped-def]
    codes, change, starts, start_bounds, lo, hi, products, rows, without_lo, without_hi, count
):
    """The positions of `count` items whose codes have great products with a query, best first.

    lo, hi: the node of level 1 below which to look; products: the query's with every code, those of a level from
    rows[level] on; without_lo, without_hi: (b,) nodes whose items are not wanted.
    Goes down with the best nodes of each level until few enough items lie below them, and compares these by all codes.
    """
    levels, many = len(codes), ITEMS * count
    at_lo, at_hi, score = np.array([lo]), np.array([hi]), np.zeros(1, np.float32)
    level = 1
    while level < levels and (at_hi - at_lo).sum() > 2 * many:
        parent, child_lo, child_hi = children(change, starts, start_bounds, level, at_lo, at_hi)
        child_score = np.empty(len(parent), np.float32)
        for i in range(len(parent)):
            child_score[i] = score[parent[i]] + products[rows[level] + codes[level, child_lo[i]]]
        kept = np.flatnonzero(child_score >= threshold(child_score, child_hi - child_lo, NODES, many))
        at_lo, at_hi, score = child_lo[kept], child_hi[kept], child_score[kept]
        level += 1
    total = (at_hi - at_lo).sum()
    where, near = np.empty(total, np.int64), np.empty(total, np.float32)
    order = np.argsort(without_lo)
    end = skip = 0
    for n in range(len(at_lo)):  # in the trie's order, as are the positions below each
        begin = end
        for at in range(at_lo[n], at_hi[n]):
            while skip < len(order) and without_hi[order[skip]] <= at:
                skip += 1
            if skip == len(order) or at < without_lo[order[skip]]:
                where[end], near[end] = at, score[n]
                end += 1
        for deeper in range(level, levels):
            for i in range(begin, end):
                near[i] += products[rows[deeper] + codes[deeper, where[i]]]
    where, near = where[:end], near[:end]
    return where if end <= count else where[best_of(near, where, count)]


@njit(cache=True, nogil=True)
def children(change, starts, start_bounds, level, lo, hi):  # type: ignore[no-untyped-def]
    """`Trie.children` of a few nodes: parent, lo and hi of each."""
    kept = level + 1 < len(start_bounds)
    begins = starts[start_bounds[level] : start_bounds[level + 1]] if kept else starts[:0]
    room = 0
    for b in range(len(lo)):
        if kept and hi[b] - lo[b] > SCAN:
            room += np.searchsorted(begins, hi[b]) - np.searchsorted(begins, lo[b])
        else:
            room += hi[b] - lo[b]
    parent, child_lo, child_hi = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    end = 0
    for b in range(len(lo)):
        first = end
        if kept and hi[b] - lo[b] > SCAN:
            for at in range(np.searchsorted(begins, lo[b]), np.searchsorted(begins, hi[b])):
                parent[end], child_lo[end] = b, begins[at]
                end += 1
        else:
            for at in range(lo[b], hi[b]):
                if at == lo[b] or change[at] <= level:
                    parent[end], child_lo[end] = b, at
                    end += 1
        for i in range(first, end - 1):
            child_hi[i] = child_lo[i + 1]
        child_hi[end - 1] = hi[b]
    return parent[:end], child_lo[:end], child_hi[:end]


@njit(cache=True, nogil=True)
def best_of(score, lo, count):  # type: ignore[no-untyped-def]
    """The `count` best children, best first; ties go to the lower `lo`."""
    best = np.arange(len(score))
    if len(score) > count:
        best = np.flatnonzero(score >= threshold(score, np.ones(len(score), np.int64), count, count))
    best = best[np.argsort(-score[best], kind="mergesort")]
    start = 0
    for i in range(1, len(best) + 1):
        if i == len(best) or score[best[i]] != score[best[start]]:
            if i - start > 1:
                best[start:i] = best[start:i][np.argsort(lo[best[start:i]])]
            start = i
    return best[:count]


@njit(cache=True, nogil=True)
def threshold(score, items, nodes, many):  # type: ignore[no-untyped-def]
    """A score that at least `nodes` nodes with at least `many` items reach, if there are so many, and few others.

    score, items: (n,). Found by counting in bins, without sorting.
    """
    low, high = score.min(), score.max()
    scale = (BINS - 1) / (high - low) if high - low > 1e-6 else 0.0
    in_bin, items_in_bin = np.zeros(BINS, np.int64), np.zeros(BINS, np.int64)
    for i in range(len(score)):
        at = int((score[i] - low) * scale)
        in_bin[at] += 1
        items_in_bin[at] += items[i]
    at = BINS
    while at > 0 and (nodes > 0 or many > 0):
        at -= 1
        nodes -= in_bin[at]
        many -= items_in_bin[at]
    lowest = high
    for i in range(len(score)):
        if score[i] < lowest and int((score[i] - low) * scale) >= at:
            lowest = score[i]
    return lowest


@njit(cache=True, nogil=True)
def one_id(change, levels, lo, hi):  # type: ignore[no-untyped-def]
    """Whether all items under a node share one ID."""
    for at in range(lo + 1, hi):
        if change[at] < levels:
            return False
    return True
