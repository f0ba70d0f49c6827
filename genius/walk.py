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
    codes, change, starts, start_bounds, level, bounds, lo, hi, score, row, log_probs, widths, enough, fill
):
    """The best children of all beams, one level of beam search.

    bounds: (q + 1,) where each query's beams begin; lo, hi, score, row: (b,) the beams' nodes, their log-probabilities
    and their rows of log_probs, (rows, codes of the level); widths: (q,) how many children each query keeps.
    If no more than `enough` items lie under these, or each has one ID, the query is done, and as many as `fill` items
    are made up with other children of the best one's modality, best first.
    Returns the children, query by query and best first: query, parent, code, lo, hi, score; and for each query whether
    its `widths` best hold few enough items, and whether each of them has one ID.
    """
    levels, queries = len(codes), len(bounds) - 1
    room = 0
    for q in range(queries):
        beams = slice(bounds[q], bounds[q + 1])
        room += min(items_under(lo[beams], hi[beams]), widths[q] + fill)
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
        best = best_of(child_score, child_lo, widths[q] + fill)
        items = 0
        for n in range(len(best)):
            i = best[n]
            if n < widths[q]:
                items += child_hi[i] - child_lo[i]
                settled[q] &= one_id(change, levels, child_lo[i], child_hi[i])
            else:
                if n == widths[q]:
                    few[q] = items <= enough
                if not (few[q] or settled[q] or level + 1 == levels):
                    break
                if codes[0, child_lo[i]] != codes[0, child_lo[best[0]]]:
                    continue
                items += child_hi[i] - child_lo[i]
                if items > fill:
                    break
            to_query[end], to_parent[end], to_code[end] = q, bounds[q] + parent[i], codes[level, child_lo[i]]
            to_lo[end], to_hi[end], to_score[end] = child_lo[i], child_hi[i], child_score[i]
            end += 1
        if len(best) <= widths[q]:
            few[q] = items <= enough
    return to_query[:end], to_parent[:end], to_code[:end], to_lo[:end], to_hi[:end], to_score[:end], few, settled


@njit(cache=True, nogil=True)
def grow_free(  # type: ignore[no-untyped-def]
    codes, change, starts, start_bounds, level, bounds, lo, hi, score, left, rows, widths, enough, to_the_end
):
    """`grow`, level after level, where log-probabilities are the same for all beams of a query.

    left: (q, codes of the levels from `level` on), those of a level from rows[level] - rows[first level of left] on.
    A query ends with the last level, or as soon as `enough` or fewer items lie under its beams, or, unless it goes on
    `to_the_end`, each of them has one ID. Returns the beams: query, lo, hi, score; and the level each query reached.
    """
    levels, queries = len(codes), len(bounds) - 1
    room = widths.sum()
    to_query, to_lo, to_hi = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    to_score, reached = np.empty(room, np.float64), np.empty(queries, np.int64)
    first = rows[levels] - left.shape[1]
    end = 0
    for q in range(queries):
        beams = slice(bounds[q], bounds[q + 1])
        at_lo, at_hi, at_score = lo[beams], hi[beams], score[beams]
        at = level
        while at < levels:
            here = np.array([0, len(at_lo)])
            row = np.zeros(len(at_lo), np.int64)
            log_probs = left[q : q + 1, rows[at] - first : rows[at + 1] - first].copy()
            width = widths[q : q + 1]
            _, _, _, at_lo, at_hi, at_score, few, settled = grow(
                codes, change, starts, start_bounds, at, here, at_lo, at_hi, at_score, row, log_probs, width, enough, 0
            )
            at += 1
            if few[0] or (settled[0] and not to_the_end):
                break
        for i in range(len(at_lo)):
            to_query[end], to_lo[end], to_hi[end], to_score[end] = q, at_lo[i], at_hi[i], at_score[i]
            end += 1
        reached[q] = at
    return to_query[:end], to_lo[:end], to_hi[:end], to_score[:end], reached


@njit(cache=True, nogil=True)
def nearest(  # type: ignore[no-untyped-def]
    codes, change, starts, start_bounds, lo, hi, products, rows, without_lo, without_hi, count
):
    """The positions of `count` items whose codes have great products with a query, in any order.

    lo, hi: the node of level 1 below which to look; products: the query's with every code, those of a level from
    rows[level] on; without_lo, without_hi: (b,) nodes whose items are not wanted.
    Goes down with the best nodes of each level until few enough items lie below them, and compares these by all codes.
    """
    levels, many = len(codes), ITEMS * count
    at_lo, at_hi, score = np.empty(1, np.int64), np.empty(1, np.int64), np.zeros(1, np.float64)
    at_lo[0], at_hi[0] = lo, hi
    level = 1
    while level < levels and items_under(at_lo, at_hi) > 2 * many:
        parent, child_lo, child_hi = children(change, starts, start_bounds, level, at_lo, at_hi)
        child_score = np.empty(len(parent), np.float64)
        for i in range(len(parent)):
            child_score[i] = score[parent[i]] + products[rows[level] + codes[level, child_lo[i]]]
        least = threshold(child_score, child_lo, child_hi, NODES, many)
        end = 0
        for i in range(len(parent)):
            if child_score[i] >= least:
                child_lo[end], child_hi[end], child_score[end] = child_lo[i], child_hi[i], child_score[i]
                end += 1
        at_lo, at_hi, score = child_lo[:end], child_hi[:end], child_score[:end]
        level += 1
    total = items_under(at_lo, at_hi)
    where, near = np.empty(total, np.int64), np.empty(total, np.float64)
    end = 0
    for n in range(len(at_lo)):
        begin = end
        for at in range(at_lo[n], at_hi[n]):
            where[end], near[end] = at, score[n]
            end += 1
        for deeper in range(level, levels):
            table, column = products[rows[deeper] :], codes[deeper, at_lo[n] : at_hi[n]]
            for i in range(len(column)):
                near[begin + i] += table[column[i]]
    for n in range(len(without_lo)):  # positions are in the trie's order
        for i in range(place(where, without_lo[n]), place(where, without_hi[n])):
            near[i] = -np.inf
    end = 0
    for i in range(total):
        if near[i] > -np.inf:
            where[end], near[end] = where[i], near[i]
            end += 1
    where = where[:end]
    best = best_of(near[:end], where, count)
    for n in range(len(best)):
        best[n] = where[best[n]]
    return best


@njit(cache=True, nogil=True)
def items_under(lo, hi):  # type: ignore[no-untyped-def]
    items = 0
    for b in range(len(lo)):
        items += hi[b] - lo[b]
    return items


@njit(cache=True, nogil=True)
def place(values, value):  # type: ignore[no-untyped-def]
    """The first index of ascending values that is not below `value`."""
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def children(change, starts, start_bounds, level, lo, hi):  # type: ignore[no-untyped-def]
    """`Trie.children` of a few nodes: parent, lo and hi of each."""
    kept = level + 1 < len(start_bounds)
    begins = starts[start_bounds[level] : start_bounds[level + 1]] if kept else starts[:0]
    room = 0
    for b in range(len(lo)):
        if kept and hi[b] - lo[b] > SCAN:
            room += place(begins, hi[b]) - place(begins, lo[b])
        else:
            room += hi[b] - lo[b]
    parent, child_lo, child_hi = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    end = 0
    for b in range(len(lo)):
        first = end
        if kept and hi[b] - lo[b] > SCAN:
            for at in range(place(begins, lo[b]), place(begins, hi[b])):
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
    """The `count` best children, or all if they are fewer, best first; ties go to the lower `lo`."""
    least = threshold(score, lo, lo, count, 0) if len(score) > count else -np.inf
    best, end = np.empty(len(score), np.int64), 0
    for i in range(len(score)):
        if score[i] >= least:
            best[end] = i
            end += 1
    for i in range(end // 2 - 1, -1, -1):  # a heap with the worst at its root, then the worst to the end, one by one
        sink(best, i, end, score, lo)
    for last in range(end - 1, 0, -1):
        best[0], best[last] = best[last], best[0]
        sink(best, 0, last, score, lo)
    return best[: min(count, end)]


@njit(cache=True, nogil=True)
def sink(heap, at, end, score, lo):  # type: ignore[no-untyped-def]
    """Put the element `at` in its place, below all that are worse."""
    moved = heap[at]
    while 2 * at + 1 < end:
        child = 2 * at + 1
        if child + 1 < end and worse(heap[child + 1], heap[child], score, lo):
            child += 1
        if worse(moved, heap[child], score, lo):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = moved


@njit(cache=True, nogil=True)
def worse(a, b, score, lo):  # type: ignore[no-untyped-def]
    return score[a] < score[b] or (score[a] == score[b] and lo[a] > lo[b])


@njit(cache=True, nogil=True)
def threshold(score, lo, hi, nodes, items):  # type: ignore[no-untyped-def]
    """A score that at least `nodes` nodes with at least `items` items reach, if there are so many, and few others.

    Found by counting in bins, without sorting.
    """
    low = high = score[0]
    for value in score:
        low, high = min(low, value), max(high, value)
    scale = (BINS - 1) / (high - low) if high - low > 1e-9 else 0.0
    in_bin, items_in_bin = np.zeros(BINS, np.int64), np.zeros(BINS, np.int64)
    for i in range(len(score)):
        at = int((score[i] - low) * scale)
        in_bin[at] += 1
        items_in_bin[at] += hi[i] - lo[i]
    at = BINS
    while at > 0 and (nodes > 0 or items > 0):
        at -= 1
        nodes -= in_bin[at]
        items -= items_in_bin[at]
    lowest = high
    for value in score:
        if value < lowest and int((value - low) * scale) >= at:
            lowest = value
    return lowest


@njit(cache=True, nogil=True)
def one_id(change, levels, lo, hi):  # type: ignore[no-untyped-def]
    """Whether all items under a node share one ID."""
    at = lo + 1
    while at < hi and change[at] == levels:
        at += 1
    return at >= hi
