"""The inner loops of search, compiled: a few nanoseconds a node or item instead of a few microseconds.

Arrays in, arrays out, those of `Trie` among them: codes, change, starts, start_bounds. Knows nothing of decoders, and
of items only their positions in the trie's order. Compiled when first called, once on a machine: a function of one
caller as a part of it, which takes less time.
"""

import numpy as np
from numba import njit

from genius.runtime.half_precision import single

SCAN = 512  # under a node of more items, its children are looked up; of fewer, all items are looked at
BINS = 2048  # that scores are sorted into
MANY = 2**32  # more than there are nodes
NODES = np.int64(32)  # at least so many nodes of a level are followed to the items near by codes
ZERO = np.int64(0)  # unlike a plain 0, not a type of its own, for which functions would be compiled again
ITEMS = 16  # for each item wanted, so many are compared by their codes


@njit(cache=True, nogil=True)
def begin(  # type: ignore[no-untyped-def]
    change, levels, codes, roots, ends, nodes, count, scored, given, widths, doubt
):
    """The first beams of all queries.

    codes, roots, ends: (r,) the trie's first nodes; nodes: (q, w) which of them are each query's, of which the first
    `count` are meant; scored: (q, w, codes) log-probabilities; given: (q,) whose first code is given and costs none.
    Nodes less than `doubt` times as probable as the best one are left out unless the others have too few items.
    Returns the beams, query by query and best first: query, row of `scored`, code, lo, hi, score; and for each query
    the items under its beams, and whether each beam has one ID.
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
        best = best_of(score, lo, widths[q])
        for n in best:
            if score[n] < score[best[0]] + np.log(doubt) and items[q] >= widths[q]:
                continue
            node = nodes[q, n]
            to_query[end], to_row[end], to_code[end] = q, q * nodes.shape[1] + n, codes[node]
            to_lo[end], to_hi[end], to_score[end] = roots[node], ends[node], score[n]
            items[q] += ends[node] - roots[node]
            settled[q] &= one_id(change, levels, roots[node], ends[node])
            end += 1
    return to_query[:end], to_row[:end], to_code[:end], to_lo[:end], to_hi[:end], to_score[:end], items, settled


@njit(cache=True, nogil=True)
def grow(  # type: ignore[no-untyped-def]
    codes, change, starts, start_bounds, level, bounds, lo, hi, score, row, log_probs, left, rows, widths, enough, fill,
    to_the_end,
):  # fmt: skip
    """One level of beam search for all queries, and all levels after it whose log-probabilities are there already.

    bounds: (q + 1,) where each query's beams begin; lo, hi, score, row: (b,) the beams' nodes, their log-probabilities
    and their rows of log_probs, (rows, codes of the level); widths: (q,) how many beams each query has.
    left: (q, codes of the last levels), the same for all beams of a query; rows[level] says where a level's codes are.
    A query is done with the last level, or when no more than `enough` items lie under its beams, or each has one ID
    (unless its log-probabilities are wanted `to_the_end`). With `fill`, what its beams leave of so many items is then
    made up with other children of the best one's modality, best first.
    Returns the beams, query by query and best first: query, the beam each comes from, lo, hi, score; and for each query
    whether its beams hold few enough items, whether each has one ID, and how many codes they have.
    """
    levels, queries, free = len(codes), len(bounds) - 1, rows[len(codes)] - left.shape[1]
    room = 0
    for q in range(queries):
        room += widths[q] + fill
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
            best, at_lo, at_hi, at_score, few[q], settled[q] = expand(
                codes, change, starts, start_bounds, at, at_lo, at_hi, at_score, at_row, at_log_probs, widths[q],
                enough, fill,
            )  # fmt: skip
            for i in range(len(best)):
                best[i] = parent[best[i]]
            parent = best
            at += 1
            if at == levels or rows[at] < free or few[q] or (settled[q] and not to_the_end):
                break
            at_row = np.zeros(len(at_lo), np.int64)
            at_log_probs = left[q : q + 1, rows[at] - free : rows[at + 1] - free].copy()
        reached[q] = at
        for i in range(len(at_lo)):
            to_query[end], to_parent[end] = q, parent[i]
            to_lo[end], to_hi[end], to_score[end] = at_lo[i], at_hi[i], at_score[i]
            end += 1
    return to_query[:end], to_parent[:end], to_lo[:end], to_hi[:end], to_score[:end], few, settled, reached


@njit(cache=True, nogil=True, inline="always")
def expand(  # type: ignore[no-untyped-def]
    codes, change, starts, start_bounds, level, lo, hi, score, row, log_probs, width, enough, fill
):
    """The best children of one query's beams, best first: parent, lo, hi, score; few, settled. See `grow`."""
    parent, child_lo, child_hi = children(change, starts, start_bounds, level, lo, hi)
    child_score = np.empty(len(parent))
    for i in range(len(parent)):
        child_score[i] = score[parent[i]] + log_probs[row[parent[i]], codes[level, child_lo[i]]]
    best = best_of(child_score, child_lo, width + fill)
    items, settled = 0, True
    for i in best[:width]:
        items += child_hi[i] - child_lo[i]
        settled &= one_id(change, len(codes), child_lo[i], child_hi[i])
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


@njit(cache=True, nogil=True)
def filled(  # type: ignore[no-untyped-def]
    codes, change, starts, start_bounds, roots, products, rows, lo, hi, score, items
):
    """A query's beams, and behind them the nearest other items of the best beam's modality, to `items` in all.

    roots: (r,) where the trie's first nodes begin; products, rows: as for `nearest`. An item that is only near has the
    score of the worst beam. Returns lo, hi, score.
    """
    missing = items - items_under(lo, hi)
    if missing <= 0:
        return lo, hi, score
    root = place(roots, lo[0] + 1) - 1
    end = roots[root + 1] if root + 1 < len(roots) else codes.shape[1]
    near = nearest(codes, change, starts, start_bounds, roots[root], end, products, rows, lo, hi, missing)
    beams = len(lo)
    to_lo, to_hi = np.empty(beams + len(near), np.int64), np.empty(beams + len(near), np.int64)
    to_score, worst = np.empty(beams + len(near), np.float64), score[0]
    for n in range(beams):
        to_lo[n], to_hi[n], to_score[n] = lo[n], hi[n], score[n]
        worst = min(worst, score[n])
    for n in range(len(near)):
        to_lo[beams + n], to_hi[beams + n], to_score[beams + n] = near[n], near[n] + 1, worst
    return to_lo, to_hi, to_score


@njit(cache=True, nogil=True, inline="always")
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
    level = np.int64(1)
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
        values, deeper = near[begin:end], level
        if (levels - level) % 2:
            table, column = products[rows[deeper] :], codes[deeper, at_lo[n] : at_hi[n]]
            for i in range(len(values)):
                values[i] += table[column[i]]
            deeper += 1
        while deeper < levels:
            a, of_a = products[rows[deeper] :], codes[deeper, at_lo[n] : at_hi[n]]
            b, of_b = products[rows[deeper + 1] :], codes[deeper + 1, at_lo[n] : at_hi[n]]
            for i in range(len(values)):
                values[i] = (values[i] + a[of_a[i]]) + b[of_b[i]]
            deeper += 2
    for n in range(len(without_lo)):  # positions are in the trie's order
        for i in range(place(where, without_lo[n]), place(where, without_hi[n])):
            near[i] = -np.inf
    end = 0
    for i in range(total):
        if near[i] > -np.inf:
            where[end], near[end] = where[i], near[i]
            end += 1
    where = where[:end]
    near = near[:end]
    best = likely(near, where, count)
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
    best = likely(score, lo, count)
    for last in range(len(best) - 1, 0, -1):  # the worst to the end, one by one
        best[0], best[last] = best[last], best[0]
        sink(best, ZERO, last, score, lo)
    return best


@njit(cache=True, nogil=True)
def likely(score, lo, count):  # type: ignore[no-untyped-def]
    """As `best_of`, in the order of a heap with the worst at its root."""
    least = threshold(score, lo, lo, count, ZERO) if len(score) > count else -np.inf
    best, end = np.empty(len(score), np.int64), ZERO
    for i in range(len(score)):
        if score[i] >= least:
            best[end] = i
            end += 1
    for i in range(end // 2 - 1, -1, -1):
        sink(best, i, end, score, lo)
    while end > count:
        end -= 1
        best[0] = best[end]
        sink(best, ZERO, end, score, lo)
    return best[:end]


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
    in_bin = np.zeros(BINS, np.int64)  # nodes, and above them MANY times the items
    for i in range(len(score)):
        in_bin[int((score[i] - low) * scale)] += 1 + MANY * (hi[i] - lo[i])
    at = BINS
    while at > 0 and (nodes > 0 or items > 0):
        at -= 1
        nodes -= in_bin[at] % MANY
        items -= in_bin[at] // MANY
    # A little below where the bin begins, so that rounding leaves nothing of it out.
    return low + at / scale - 1e-12 * (abs(low) + abs(high)) if scale else low


@njit(cache=True, nogil=True)
def one_id(change, levels, lo, hi):  # type: ignore[no-untyped-def]
    """Whether all items under a node share one ID."""
    at = lo + 1
    while at < hi and change[at] == levels:
        at += 1
    return at >= hi


@njit(cache=True, nogil=True)
def under(order, lo, hi):  # type: ignore[no-untyped-def]
    """The items under some nodes: the number of the node, the position in the trie, the caller's row."""
    total = items_under(lo, hi)
    of, at, row = np.empty(total, np.int64), np.empty(total, np.int64), np.empty(total, np.int64)
    end = 0
    for n in range(len(lo)):
        for i in range(lo[n], hi[n]):
            of[end], at[end], row[end] = n, i, order[i]
            end += 1
    return of, at, row


@njit(cache=True, nogil=True, fastmath=True)
def half_products(bits, rows, query):  # type: ignore[no-untyped-def]
    """The products of a query (d,) float32 with some rows of half-precision vectors, given as their bits (n, d) int16.

    Four rows at a time, so that each is fetched from memory while others are worked on, and all rounded alike.
    """
    count = len(rows)
    products = np.empty(count + 3, np.float32)
    for n in range(0, count, 4):
        last = count - 1
        a, b, c, d = (
            bits[rows[n]],
            bits[rows[min(n + 1, last)]],
            bits[rows[min(n + 2, last)]],
            bits[rows[min(n + 3, last)]],
        )
        of_a, of_b, of_c, of_d = np.float32(0), np.float32(0), np.float32(0), np.float32(0)
        for i in range(len(query)):
            of_a += single(a[i]) * query[i]
            of_b += single(b[i]) * query[i]
            of_c += single(c[i]) * query[i]
            of_d += single(d[i]) * query[i]
        products[n], products[n + 1], products[n + 2], products[n + 3] = of_a, of_b, of_c, of_d
    return products[:count]


@njit(cache=True, nogil=True)
def sums(products, bounds, codes):  # type: ignore[no-untyped-def]
    """products: (all codes,), those of a level from bounds[level] on; codes: (n, levels) -> (n,) float32."""
    totals = np.empty(len(codes), np.float32)
    for n in range(len(codes)):
        total = np.float32(0)
        for level in range(codes.shape[1]):
            total += products[bounds[level] + codes[n, level]]
        totals[n] = total
    return totals


@njit(cache=True, nogil=True, fastmath=True)
def lengths_of_sums(table, bounds, codes):  # type: ignore[no-untyped-def]
    """table: (all codes, d); codes: (n, levels) -> (n,) float32, the length of the sum of each one's rows."""
    lengths, dim = np.empty(len(codes), np.float32), table.shape[1]
    total = np.empty(dim, np.float32)
    for n in range(len(codes)):
        total[:] = 0
        for level in range(codes.shape[1]):
            row = table[bounds[level] + codes[n, level]]
            for i in range(dim):
                total[i] += row[i]
        square = np.float32(0)
        for i in range(dim):
            square += total[i] * total[i]
        lengths[n] = np.sqrt(square)
    return lengths
