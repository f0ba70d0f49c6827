"""The IDs of a collection as one sorted table of codes. A node is a range of rows that agree on their first codes.

No object per node: the children of many nodes come out of a few array operations. Rows are put in and taken out without
sorting the others again. Knows nothing of items (a caller's row number stands for one), of probabilities, or of files.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from genius.errors import GeniusError

BLOCK = 65_536  # rows that are put in order at a time

Ints = NDArray[np.int64]
Codes = NDArray[np.unsignedinteger]


class Trie:
    """codes: (n, levels) integers below 65536, a row an item; equal rows (items that share an ID) are kept.

    order: (n,) int32, the caller's row at each sorted position; equal IDs stay in the caller's order.
    codes: (levels, n) in sorted order, uint8 where they fit, else uint16.
    change: (n,) the first level at which each sorted row differs from the one before it; `levels` where they are equal.
    starts: where each node of the first level starts, then of the second, and so on for a few levels.
    start_bounds: where in `starts` each of these levels begins, and where the last one ends.
    """

    def __init__(self, codes: ArrayLike) -> None:
        table = checked(codes)
        order = sort_rows(table)
        columns = arranged(table, order)
        self._fill(columns, order, first_change(columns), highest_codes(columns))

    def _fill(
        self, codes: Codes, order: NDArray[np.int32], change: NDArray[np.uint8], highest: tuple[int, ...]
    ) -> None:
        self.codes, self.order, self.change = codes, order, change
        self.highest = highest  # code of each level
        self.starts, self.start_bounds = node_starts(change, len(codes))

    def __len__(self) -> int:
        return len(self.order)

    @property
    def levels(self) -> int:
        return len(self.codes)

    @cached_property
    def roots(self) -> tuple[Ints, Ints, Ints]:
        """The nodes of the first level: lo, hi and code of each."""
        lo = self.starts[: self.start_bounds[1]].astype(np.int64)
        return lo, np.append(lo[1:], len(self)), self.codes[0][lo].astype(np.int64)

    @property
    def nbytes(self) -> int:
        arrays = (self.codes, self.order, self.change, self.starts)
        return sum(array.nbytes for array in arrays)

    def children(self, lo: ArrayLike, hi: ArrayLike, level: int) -> tuple[Ints, Ints, Ints, Ints]:
        """The children of many nodes [lo, hi), which agree on the codes before `level`; none of them empty.

        Returns parent (index into `lo`), code at `level`, and the child's own lo and hi: grouped by parent in the given
        order, ascending code within a parent.
        """
        lo, hi = positions(lo), positions(hi)
        if level + 1 < len(self.start_bounds):
            starts = self.starts[self.start_bounds[level] : self.start_bounds[level + 1]]
            first, last = np.searchsorted(starts, lo), np.searchsorted(starts, hi)
            parent, index = concatenate_ranges(first, last)
            child_lo = starts[index].astype(np.int64)
        else:  # nearly every row starts a node here, and ranges are short
            parent, index = concatenate_ranges(lo, hi)
            begins = self.change[index] <= level
            parent, child_lo = parent[begins], index[begins]
        code = self.codes[level][child_lo].astype(np.int64)
        return parent, code, child_lo, next_start(parent, child_lo, hi)

    def leaves(self, lo: ArrayLike, hi: ArrayLike) -> Ints:
        """The caller's rows under many nodes, node after node."""
        return self.order[concatenate_ranges(positions(lo), positions(hi))[1]].astype(np.int64)

    def ids(self, at: ArrayLike) -> Ints:
        """The IDs at sorted positions: (...) -> (..., levels)."""
        return self.codes.T[positions(at)].astype(np.int64)

    def single(self, lo: ArrayLike, hi: ArrayLike) -> NDArray[np.bool_]:
        """Whether all items under a node share one ID. Rows are sorted, so the first and the last tell."""
        return (self.ids(lo) == self.ids(positions(hi) - 1)).all(axis=-1)

    def matching(self, pattern: Sequence[int | None]) -> Ints:
        """The sorted positions of the rows that begin with these codes; None stands for any code."""
        lo, hi, given = 0, len(self), 0
        for column, code in zip(self.codes, pattern, strict=False):
            if code is None or not 0 <= code <= np.iinfo(column.dtype).max:
                break
            part, wanted = column[lo:hi], column.dtype.type(code)
            lo, hi, given = lo + np.searchsorted(part, wanted), lo + np.searchsorted(part, wanted, "right"), given + 1
        at = np.arange(lo, hi)
        for level, code in enumerate(pattern[given:], given):
            if code is not None:
                at = at[self.codes[level][at] == code]
        return at

    def restrict(self, keep: NDArray[np.bool_]) -> "Trie":
        """The trie of some of the items only; row numbers stay the caller's. keep: (rows of the caller,) bool."""
        return self._select(np.flatnonzero(keep[self.order]))

    def remove(self, rows: ArrayLike) -> "Trie":
        """The trie without these of the caller's rows, each given once; the others keep their numbers."""
        rows = positions(rows)
        gone = np.flatnonzero(self._among(rows)[self.order])
        if len(gone) != len(rows):
            raise GeniusError(f"A trie was to lose {len(rows)} rows, but only {len(gone)} are in it.")
        left = len(self) - len(gone)
        codes = np.empty((self.levels, left), self.codes.dtype)
        order, change = np.empty(left, np.int32), np.empty(left, np.uint8)
        for old, new in zip([*self.codes, self.order, self.change], [*codes, order, change], strict=True):
            cut(old, gone, new)
        close(self.change, gone, change)
        return _made(codes, order, change)

    def insert(self, codes: ArrayLike, rows: ArrayLike) -> "Trie":
        """The trie with more items. codes: (m, levels); rows: (m,) the caller's numbers for them, below 2^31."""
        table, rows = checked(codes), positions(rows)
        if table.shape != (len(rows), self.levels):
            raise GeniusError(
                f"Codes of shape {table.shape} and {len(rows)} row numbers do not fit a trie of {self.levels} levels."
            )
        check_rows(rows)
        known = rows.min(initial=2**31) <= self.order.max(initial=-1) and self._among(rows)[self.order].any()
        if known or len(np.unique(rows)) < len(rows):
            raise GeniusError("Rows to be added to a trie are in it already, or are given twice.")
        by_number = np.argsort(rows)
        order = by_number[sort_rows(table[by_number])]
        new, numbers = arranged(table, order), rows[order].astype(np.int32)
        before = places(self.codes, self.order, new, numbers)
        merged = np.empty((self.levels, len(self) + len(rows)), np.promote_types(self.codes.dtype, new.dtype))
        for old_column, new_column, column in zip(self.codes, new, merged, strict=True):
            splice(old_column, new_column, before, column)
        joined = np.empty(len(self) + len(rows), np.int32)
        splice(self.order, numbers, before, joined)
        change = np.empty(len(joined), np.uint8)
        splice(self.change, np.zeros(len(rows), np.uint8), before, change)
        touched = before + np.arange(len(rows))  # where the new ones are: they and those behind them follow others now
        touched = np.union1d(touched, touched + 1)
        touched = touched[(touched > 0) & (touched < len(joined))]
        change[touched] = difference(merged[:, touched - 1], merged[:, touched])
        change[:1] = 0
        return _made(merged, joined, change, tuple(map(max, self.highest, highest_codes(new))))

    def _among(self, rows: Ints) -> NDArray[np.bool_]:
        """For every number a row of the trie or of these can have, whether it is among these."""
        check_rows(rows)
        among = np.zeros(max(self.order.max(initial=-1), rows.max(initial=-1)) + 1, np.bool_)
        among[rows] = True
        return among

    def _select(self, kept: Ints) -> "Trie":
        """Of some sorted positions only, in order."""
        behind = np.append(0, kept + 1)  # the row before: what changed since then is what changes now
        change = np.minimum.reduceat(self.change[: behind[-1]], behind[:-1]) if len(kept) else self.change[:0]
        return _made(np.take(self.codes, kept, axis=1), self.order[kept], change)


def _made(
    codes: Codes, order: NDArray[np.int32], change: NDArray[np.uint8], highest: tuple[int, ...] | None = None
) -> Trie:
    """A trie of what is sorted already."""
    trie = Trie.__new__(Trie)
    highest = highest_codes(codes) if highest is None else highest
    trie._fill(codes.astype(np.uint8, copy=False) if max(highest) < 2**8 else codes, order, change, highest)
    return trie


def positions(values: ArrayLike) -> Ints:
    return np.asarray(values, dtype=np.int64)


def check_rows(rows: Ints) -> None:
    if len(rows) and (rows.min() < 0 or rows.max() >= 2**31):
        raise GeniusError(f"A trie's rows must lie in 0..{2**31 - 1}, but they span {rows.min()}..{rows.max()}.")


def checked(codes: ArrayLike) -> NDArray[np.integer]:
    table = np.asarray(codes)
    if table.ndim != 2 or table.shape[1] == 0 or table.dtype.kind not in "iu":
        raise GeniusError(
            f"A trie needs integer codes of shape (items, levels), but got {table.dtype} of shape {table.shape}."
        )
    if table.size and (table.min() < 0 or table.max() >= 2**16):
        raise GeniusError(f"A trie's codes must lie in 0..65535, but they span {table.min()}..{table.max()}.")
    return table


def sort_rows(table: NDArray[np.integer]) -> NDArray[np.int32]:
    """Order of the rows by their codes, the first level first, then by their numbers. table: (n, levels)."""
    key, levels = pack(table)
    order = np.argsort(key).astype(np.int32)
    key = key[order]
    same = key[1:] == key[:-1]
    # The first key decides nearly always: the other levels are needed only among its ties.
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    keys: list[NDArray[np.integer]] = [key[tied]]
    rows = order[tied]
    while levels < table.shape[1]:
        key, more = pack(table[rows, levels:])
        keys, levels = [*keys, key], levels + more
    order[tied] = rows[np.lexsort([rows, *reversed(keys)])]
    return order


def arranged(table: NDArray[np.integer], order: NDArray[np.integer]) -> Codes:
    """The rows in this order: (levels, n), as narrow as they can be."""
    codes = np.empty(table.shape[::-1], np.uint8 if table.max(initial=0) < 2**8 else np.uint16)
    for start in range(0, len(order), BLOCK):
        block = slice(start, start + BLOCK)
        codes[:, block] = table[order[block]].T
    return codes


def pack(table: NDArray[np.integer]) -> tuple[NDArray[np.uint64], int]:
    """As many columns as fit, side by side in a 64-bit key, the first most significant; and how many they are."""
    key, free = np.zeros(len(table), dtype=np.uint64), 64
    for level, column in enumerate(table.T):
        bits = int(column.max(initial=0)).bit_length()
        if bits > free:
            return key, level
        key <<= np.uint64(bits)
        key |= column.astype(np.uint64)
        free -= bits
    return key, table.shape[1]


def first_change(codes: Codes) -> NDArray[np.uint8]:
    change = difference(codes[:, :-1], codes[:, 1:])
    return np.append(np.zeros(min(1, codes.shape[1]), np.uint8), change)


def difference(some: Codes, others: Codes) -> NDArray[np.uint8]:
    """The first level at which IDs differ from others, (levels, n) each; `levels` where they are equal."""
    first = np.full(some.shape[1], len(some), dtype=np.uint8)
    for level in reversed(range(len(some))):
        first[some[level] != others[level]] = level
    return first


def highest_codes(codes: Codes) -> tuple[int, ...]:
    """Of each level. codes: (levels, n)."""
    highest: list[int] = codes.max(axis=1, initial=0).tolist()
    return tuple(highest)


def node_starts(change: NDArray[np.uint8], levels: int) -> tuple[NDArray[np.int32], Ints]:
    """Where the nodes of the upper levels start: as many levels as fit in four bytes an item, at least the first.

    Returns `starts` and `start_bounds` of a trie.
    """
    bounds = np.append(0, np.cumsum(np.cumsum(tally(change, levels + 1))[:levels]))
    kept = max(1, int(np.searchsorted(bounds[1:], len(change), side="right")))
    bounds = bounds[: kept + 1]
    starts = np.empty(bounds[-1] + 1, np.int32)
    find_starts(change, bounds, starts)
    return starts[:-1], bounds


def concatenate_ranges(lo: NDArray[np.integer], hi: NDArray[np.integer]) -> tuple[Ints, Ints]:
    """The ranges [lo, hi) one after the other: the number of the range, and the value, of every element."""
    lengths = hi - lo
    which = np.repeat(np.arange(len(lo)), lengths)
    before = np.cumsum(lengths) - lengths
    return which, np.arange(len(which)) + (lo - before)[which]


def next_start(parent: Ints, start: Ints, end: Ints) -> Ints:
    """Where each child ends: at its next sibling's start, or at its parent's end."""
    stop = np.empty_like(start)
    stop[:-1] = start[1:]
    last = np.ones(len(parent), dtype=bool)
    last[:-1] = parent[1:] != parent[:-1]
    stop[last] = end[parent[last]]
    return stop


# Compiled when first called, once on a machine


@njit(cache=True, nogil=True)
def places(codes, order, new, rows):  # type: ignore[no-untyped-def]
    """(m,) the sorted positions before which IDs belong. codes, order: a trie's; new: (levels, m); rows: (m,)."""
    found = np.empty(len(rows), np.int64)
    for i in range(len(rows)):
        lo, hi = 0, len(order)
        while lo < hi:
            middle, level = (lo + hi) // 2, 0
            while level < len(codes) and codes[level, middle] == new[level, i]:
                level += 1
            if codes[level, middle] < new[level, i] if level < len(codes) else order[middle] < rows[i]:
                lo = middle + 1
            else:
                hi = middle
        found[i] = lo
    return found


@njit(cache=True, nogil=True)
def splice(old, new, before, joined):  # type: ignore[no-untyped-def]
    """Fills `joined` with `old`, and `new` between: new[i] before old[before[i]], which ascends."""
    start = 0
    for i in range(len(new)):
        stop = before[i]
        joined[start + i : stop + i] = old[start:stop]
        joined[stop + i] = new[i]
        start = stop
    joined[start + len(new) :] = old[start:]


@njit(cache=True, nogil=True)
def cut(old, gone, left):  # type: ignore[no-untyped-def]
    """Fills `left` with `old` without what is at the positions `gone`, which ascend."""
    start = 0
    for i in range(len(gone)):
        stop = gone[i]
        left[start - i : stop - i] = old[start:stop]
        start = stop + 1
    left[start - len(gone) :] = old[start:]


@njit(cache=True, nogil=True)
def close(change, gone, left):  # type: ignore[no-untyped-def]
    """Rows behind those that went follow others now: what changed since is in `left`, which has none of `gone`."""
    least = np.uint8(255)
    for i in range(len(gone)):
        least = min(least, change[gone[i]])
        if i + 1 == len(gone) or gone[i + 1] > gone[i] + 1:
            if gone[i] - i < len(left):
                left[gone[i] - i] = min(left[gone[i] - i], least)
            least = np.uint8(255)


@njit(cache=True, nogil=True)
def tally(values, kinds):  # type: ignore[no-untyped-def]
    """(kinds,) how often each value occurs; all are below `kinds`."""
    counts = np.zeros(kinds, np.int64)
    for i in range(len(values)):
        counts[values[i]] += 1
    return counts


@njit(cache=True, nogil=True)
def find_starts(change, bounds, starts):  # type: ignore[no-untyped-def]
    """Fills `starts`, level after level. Its last element is of no use: it is written to, so that nothing branches."""
    for level in range(len(bounds) - 1):
        at = bounds[level]
        for i in range(len(change)):
            starts[at] = i
            at += change[i] <= level
