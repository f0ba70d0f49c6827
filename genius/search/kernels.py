"""The inner loops of beam search, compiled by numba: nanoseconds instead of microseconds per node.

The arrays codes, first_diff_level, starts and start_bounds are those of `Trie`. `level_bounds` (levels + 1,) says where
the codes of each level start in an array over all codes. Numba compiles each kernel at its first call and caches it.
"""

import numpy as np
from numba import njit

from genius.runtime.compilation import compiled

SCAN = 512  # children of larger nodes are looked up in `starts`; smaller nodes are scanned
BINS = 2048  # histogram bins of `threshold`
MANY = 2**32  # more than the number of nodes
MIN_NODES = np.int64(32)  # minimum number of nodes of a level that `nearest` follows
COMPARED = 16  # `nearest` compares this many items by all codes for each item it returns
ZERO = np.int64(0)  # a plain 0 has a type of its own, for which numba would compile functions again


@compiled
def first_beams(  # type: ignore[no-untyped-def]
    first_diff_level, levels, codes, roots, ends, nodes, count, scored, given, width, min_modality_ratio
):
    """Make the first beams of all queries.

    Inputs:
        codes, roots, ends: (r,) the nodes of the first level.
        nodes: (q, w) the nodes of each query, of which the first count[q] are valid.
        scored: (q, w, codes) log-probabilities.
        given: (q,) whether the first code is a target, which costs no log-probability.
        width: Number of beams per query.
        min_modality_ratio: Nodes less probable than this times the best one are dropped, unless the others have
            fewer than `width` items.

    Returns:
        The beams, by query and best first: query, row of `scored`, code, lo, hi, score. Per query: the number of items
        under its beams, and whether each beam has one ID.
    """
    room = nodes.size
    to_query, to_row, to_code = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    to_lo, to_hi, to_score = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.float64)
    items, settled = np.zeros(len(nodes), np.int64), np.ones(len(nodes), np.bool_)
    end = 0
    for q in range(len(nodes)):
        score, lo = np.zeros(count[q]), np.empty(count[q], np.int64)
        for n in range(count[q]):
            lo[n] = roots[nodes[q, n]]
            if not given[q]:
                score[n] = scored[q, n, codes[nodes[q, n]]]
        best = top_sorted(score, lo, width)
        for n in best:
            if score[n] < score[best[0]] + np.log(min_modality_ratio) and items[q] >= width:
                continue
            node = nodes[q, n]
            to_query[end], to_row[end], to_code[end] = q, q * nodes.shape[1] + n, codes[node]
            to_lo[end], to_hi[end], to_score[end] = roots[node], ends[node], score[n]
            items[q] += ends[node] - roots[node]
            settled[q] &= is_single_id(first_diff_level, levels, roots[node], ends[node])
            end += 1
    return to_query[:end], to_row[:end], to_code[:end], to_lo[:end], to_hi[:end], to_score[:end], items, settled


@compiled
def expand_beams(  # type: ignore[no-untyped-def]
    codes, first_diff_level, starts, start_bounds, level, bounds, lo, hi, score, row, log_probs, head_log_probs,
    level_bounds, width, enough, fill, to_the_end,
):  # fmt: skip
    """Expand the beams of all queries by one level, and by all later levels that the linear head has scored.

    Inputs:
        level: The level to expand.
        bounds: (q + 1,) where the beams of each query start.
        lo, hi, score, row: (b,) nodes of the beams, their log-probabilities, and their rows of `log_probs`.
        log_probs: (rows, codes of the level).
        head_log_probs: (q, codes of the last levels) from the linear head, the same for all beams of a query.
        width: Number of beams per query.
        enough: A query stops when at most this many items lie under its beams.
        fill: The rest of this number is filled with other children of the best beam's modality, best first.
        to_the_end: Whether to go on when each beam of a query has one ID.

    Returns:
        The beams, by query and best first: query, the beam each extends, lo, hi, score. Per query: whether at most
        `enough` items are left, whether each beam has one ID, and the number of decided codes.
    """
    levels, queries, head_start = len(codes), len(bounds) - 1, level_bounds[len(codes)] - head_log_probs.shape[1]
    room = queries * (width + fill)
    to_query, to_parent = np.empty(room, np.int64), np.empty(room, np.int64)
    to_lo, to_hi, to_score = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.float64)
    few, settled, reached = np.zeros(queries, np.bool_), np.zeros(queries, np.bool_), np.empty(queries, np.int64)
    end = 0
    for q in range(queries):
        beams = slice(bounds[q], bounds[q + 1])
        parent = np.arange(bounds[q], bounds[q + 1])
        at_lo, at_hi, at_score, at_row, at_log_probs = lo[beams], hi[beams], score[beams], row[beams], log_probs
        at = level
        while True:
            best, at_lo, at_hi, at_score, few[q], settled[q] = expand_query(
                codes, first_diff_level, starts, start_bounds, at, at_lo, at_hi, at_score, at_row, at_log_probs,
                width, enough, fill,
            )  # fmt: skip
            for i in range(len(best)):
                best[i] = parent[best[i]]
            parent = best
            at += 1
            if at == levels or level_bounds[at] < head_start or few[q] or (settled[q] and not to_the_end):
                break
            at_row = np.zeros(len(at_lo), np.int64)
            start, stop = level_bounds[at] - head_start, level_bounds[at + 1] - head_start
            at_log_probs = head_log_probs[q : q + 1, start:stop].copy()
        reached[q] = at
        for i in range(len(at_lo)):
            to_query[end], to_parent[end] = q, parent[i]
            to_lo[end], to_hi[end], to_score[end] = at_lo[i], at_hi[i], at_score[i]
            end += 1
    return to_query[:end], to_parent[:end], to_lo[:end], to_hi[:end], to_score[:end], few, settled, reached


@njit(nogil=True, inline="always")
def expand_query(  # type: ignore[no-untyped-def]
    codes, first_diff_level, starts, start_bounds, level, lo, hi, score, row, log_probs, width, enough, fill
):
    """The best children of one query's beams, best first: parent, lo, hi, score; few, settled. See `expand_beams`."""
    parent, child_lo, child_hi = children(first_diff_level, starts, start_bounds, level, lo, hi)
    child_score = np.empty(len(parent))
    for i in range(len(parent)):
        child_score[i] = score[parent[i]] + log_probs[row[parent[i]], codes[level, child_lo[i]]]
    best = top_sorted(child_score, child_lo, width + fill)
    items, settled = 0, True
    for i in best[:width]:
        items += child_hi[i] - child_lo[i]
        settled &= is_single_id(first_diff_level, len(codes), child_lo[i], child_hi[i])
    few = items <= enough
    count = min(width, len(best))
    if few or settled or level + 1 == len(codes):
        for i in best[width:]:
            if codes[0, child_lo[i]] == codes[0, child_lo[best[0]]]:
                items += child_hi[i] - child_lo[i]
                if items > fill:
                    break
                best[count] = i
                count += 1
    best = best[:count]
    to_parent, to_score = np.empty(count, np.int64), np.empty(count)
    to_lo, to_hi = np.empty(count, np.int64), np.empty(count, np.int64)
    for n in range(count):
        i = best[n]
        to_parent[n], to_lo[n], to_hi[n], to_score[n] = parent[i], child_lo[i], child_hi[i], child_score[i]
    return to_parent, to_lo, to_hi, to_score, few, settled


@compiled
def fill_with_nearest(  # type: ignore[no-untyped-def]
    codes, first_diff_level, starts, start_bounds, roots, head_logits, level_bounds, lo, hi, score, items
):
    """Append the nearest other items of the best beam's modality to a query's beams, up to `items` in all.

    Appended items get the score of the worst beam. roots: (r,) starts of the nodes of the first level; head_logits: see
    `nearest`. Returns lo, hi, score.
    """
    missing = items - items_under(lo, hi)
    if missing <= 0:
        return lo, hi, score
    root = lower_bound(roots, lo[0] + 1) - 1
    end = roots[root + 1] if root + 1 < len(roots) else codes.shape[1]
    near = nearest(
        codes, first_diff_level, starts, start_bounds, roots[root], end, head_logits, level_bounds, lo, hi, missing
    )
    beams = len(lo)
    to_lo, to_hi = np.empty(beams + len(near), np.int64), np.empty(beams + len(near), np.int64)
    to_score, worst = np.empty(beams + len(near), np.float64), score[0]
    for n in range(beams):
        to_lo[n], to_hi[n], to_score[n] = lo[n], hi[n], score[n]
        worst = min(worst, score[n])
    for n in range(len(near)):
        to_lo[beams + n], to_hi[beams + n], to_score[beams + n] = near[n], near[n] + 1, worst
    return to_lo, to_hi, to_score


@njit(nogil=True, inline="always")
def nearest(  # type: ignore[no-untyped-def]
    codes, first_diff_level, starts, start_bounds, lo, hi, head_logits, level_bounds, without_lo, without_hi, count
):
    """Sorted positions of `count` items whose codes have the highest summed logits, in any order.

    Follows the best nodes of each level until few enough items lie under them, then compares these by all codes.

    Inputs:
        lo, hi: The node of level 1 to search.
        head_logits: (all codes,) logits of the linear head for the query.
        without_lo, without_hi: (b,) nodes whose items are left out.
        count: Number of items.
    """
    levels, many = len(codes), COMPARED * count
    at_lo, at_hi, score = np.empty(1, np.int64), np.empty(1, np.int64), np.zeros(1, np.float64)
    at_lo[0], at_hi[0] = lo, hi
    level = np.int64(1)
    while level < levels and items_under(at_lo, at_hi) > 2 * many:
        parent, child_lo, child_hi = children(first_diff_level, starts, start_bounds, level, at_lo, at_hi)
        child_score = np.empty(len(parent), np.float64)
        for i in range(len(parent)):
            child_score[i] = score[parent[i]] + head_logits[level_bounds[level] + codes[level, child_lo[i]]]
        least = threshold(child_score, child_lo, child_hi, MIN_NODES, many)
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
        values, deeper = near[begin:end], level
        if (levels - level) % 2:
            table, column = head_logits[level_bounds[deeper] :], codes[deeper, at_lo[n] : at_hi[n]]
            for i in range(len(values)):
                values[i] += table[column[i]]
            deeper += 1
        while deeper < levels:
            a, of_a = head_logits[level_bounds[deeper] :], codes[deeper, at_lo[n] : at_hi[n]]
            b, of_b = head_logits[level_bounds[deeper + 1] :], codes[deeper + 1, at_lo[n] : at_hi[n]]
            for i in range(len(values)):
                values[i] = (values[i] + a[of_a[i]]) + b[of_b[i]]
            deeper += 2
    for n in range(len(without_lo)):  # positions are in the trie's order
        for i in range(lower_bound(where, without_lo[n]), lower_bound(where, without_hi[n])):
            near[i] = -np.inf
    end = 0
    for i in range(total):
        if near[i] > -np.inf:
            where[end], near[end] = where[i], near[i]
            end += 1
    where = where[:end]
    near = near[:end]
    best = top_heap(near, where, count)
    for n in range(len(best)):
        best[n] = where[best[n]]
    return best


@compiled
def items_under(lo, hi):  # type: ignore[no-untyped-def]
    """Number of items under some nodes."""
    items = 0
    for b in range(len(lo)):
        items += hi[b] - lo[b]
    return items


@compiled
def lower_bound(values, value):  # type: ignore[no-untyped-def]
    """The first index whose value is at least `value`. values: ascending."""
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if values[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def children(first_diff_level, starts, start_bounds, level, lo, hi):  # type: ignore[no-untyped-def]
    """The children at `level` of some nodes: parent, lo and hi of each, grouped by parent."""
    kept = level + 1 < len(start_bounds)
    begins = starts[start_bounds[level] : start_bounds[level + 1]] if kept else starts[:0]
    room = 0
    for b in range(len(lo)):
        if kept and hi[b] - lo[b] > SCAN:
            room += lower_bound(begins, hi[b]) - lower_bound(begins, lo[b])
        else:
            room += hi[b] - lo[b]
    parent, child_lo, child_hi = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    end = 0
    for b in range(len(lo)):
        first = end
        if kept and hi[b] - lo[b] > SCAN:
            for at in range(lower_bound(begins, lo[b]), lower_bound(begins, hi[b])):
                parent[end], child_lo[end] = b, begins[at]
                end += 1
        else:
            for at in range(lo[b], hi[b]):
                if at == lo[b] or first_diff_level[at] <= level:
                    parent[end], child_lo[end] = b, at
                    end += 1
        for i in range(first, end - 1):
            child_hi[i] = child_lo[i + 1]
        child_hi[end - 1] = hi[b]
    return parent[:end], child_lo[:end], child_hi[:end]


@compiled
def top_sorted(score, lo, count):  # type: ignore[no-untyped-def]
    """Indices of the `count` highest scores, best first. Equal scores are ordered by `lo`."""
    best = top_heap(score, lo, count)
    for last in range(len(best) - 1, 0, -1):  # heap sort: the worst goes to the end
        best[0], best[last] = best[last], best[0]
        sift_down(best, ZERO, last, score, lo)
    return best


@compiled
def top_heap(score, lo, count):  # type: ignore[no-untyped-def]
    """The indices of `top_sorted` as a heap with the worst at its root."""
    least = threshold(score, lo, lo, count, ZERO) if len(score) > count else -np.inf
    best, end = np.empty(len(score), np.int64), ZERO
    for i in range(len(score)):
        if score[i] >= least:
            best[end] = i
            end += 1
    for i in range(end // 2 - 1, -1, -1):
        sift_down(best, i, end, score, lo)
    while end > count:
        end -= 1
        best[0] = best[end]
        sift_down(best, ZERO, end, score, lo)
    return best[:end]


@compiled
def sift_down(heap, at, end, score, lo):  # type: ignore[no-untyped-def]
    """Move the element `at` down to its place in a heap."""
    moved = heap[at]
    while 2 * at + 1 < end:
        child = 2 * at + 1
        if child + 1 < end and is_worse(heap[child + 1], heap[child], score, lo):
            child += 1
        if is_worse(moved, heap[child], score, lo):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = moved


@compiled
def is_worse(a, b, score, lo):  # type: ignore[no-untyped-def]
    """Whether a comes after b in the order of `top_sorted`."""
    return score[a] < score[b] or (score[a] == score[b] and lo[a] > lo[b])


@compiled
def threshold(score, lo, hi, nodes, items):  # type: ignore[no-untyped-def]
    """A score that at least `nodes` nodes with at least `items` items reach, if there are enough, and few others.

    Found with a histogram, without sorting.
    """
    low = high = score[0]
    for value in score:
        low, high = min(low, value), max(high, value)
    scale = (BINS - 1) / (high - low) if high - low > 1e-9 else 0.0
    in_bin = np.zeros(BINS, np.int64)  # nodes, and above them MANY times the items
    for i in range(len(score)):
        in_bin[int((score[i] - low) * scale)] += 1 + MANY * (hi[i] - lo[i])
    at = BINS
    while at > 0 and (nodes > 0 or items > 0):
        at -= 1
        nodes -= in_bin[at] % MANY
        items -= in_bin[at] // MANY
    # Slightly below the bin's edge, so that rounding excludes nothing of it.
    return low + at / scale - 1e-12 * (abs(low) + abs(high)) if scale else low


@compiled
def is_single_id(first_diff_level, levels, lo, hi):  # type: ignore[no-untyped-def]
    """Whether all items under a node share one ID."""
    at = lo + 1
    while at < hi and first_diff_level[at] == levels:
        at += 1
    return at >= hi
