"""Trie: the IDs of a collection as one sorted table of codes.

A node is a range [lo, hi) of sorted rows that share a prefix, so there is no object per node. Rows are inserted and
removed without sorting the others again.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from genius.errors import GeniusError

BLOCK = 65_536  # rows reordered at once

Ints = NDArray[np.int64]
Codes = NDArray[np.unsignedinteger]


class Trie:
    """The sorted IDs of a collection. Items that share an ID are all kept.

    Args:
        codes: (n, levels) integers below 65536, one row per item.

    Attributes:
        order: (n,) int32, the caller's row at each sorted position. Equal IDs stay in the caller's order.
        codes: (levels, n) in sorted order, uint8 if all codes fit, else uint16.
        first_diff_level: (n,) uint8, the first level at which each sorted row differs from the row before it (the
            length of their common prefix); `levels` if they are equal.
        starts: Sorted positions at which the nodes of level 1 start, then those of level 2, and so on for the upper
            levels.
        start_bounds: Where each of these levels starts in `starts`, and where the last one ends.
        highest: The highest code of each level.

    Raises:
        GeniusError: The codes do not have this shape or range.
    """

    def __init__(self, codes: ArrayLike) -> None:
        table = _checked(codes)
        order = _sort_rows(table)
        columns = _arranged(table, order)
        first_diff_level = np.append(
            np.zeros(min(1, len(order)), np.uint8), _differences(columns[:, :-1], columns[:, 1:])
        )
        self._fill(columns, order, first_diff_level, _highest_codes(columns))

    def _fill(
        self, codes: Codes, order: NDArray[np.int32], first_diff_level: NDArray[np.uint8], highest: tuple[int, ...]
    ) -> None:
        self.codes, self.order, self.first_diff_level, self.highest = codes, order, first_diff_level, highest
        self.starts, self.start_bounds = node_starts(first_diff_level, len(codes))

    def __len__(self) -> int:
        return len(self.order)

    @property
    def levels(self) -> int:
        """Number of codes of an ID."""
        return len(self.codes)

    @cached_property
    def roots(self) -> tuple[Ints, Ints, Ints]:
        """The nodes of the first level: their lo, hi and code."""
        lo = self.starts[: self.start_bounds[1]].astype(np.int64)
        return lo, np.append(lo[1:], len(self)), self.codes[0][lo].astype(np.int64)

    @property
    def nbytes(self) -> int:
        """Size in memory."""
        return sum(array.nbytes for array in (self.codes, self.order, self.first_diff_level, self.starts))

    def leaves(self, lo: ArrayLike, hi: ArrayLike) -> Ints:
        """The caller's rows under nodes [lo, hi), node after node."""
        return self.order[concatenate_ranges(_positions(lo), _positions(hi))].astype(np.int64)

    def ids(self, at: ArrayLike) -> Ints:
        """The IDs at sorted positions: (...) -> (..., levels)."""
        return self.codes.T[_positions(at)].astype(np.int64)

    def children(self, level: int, lo: Ints, hi: Ints) -> tuple[Ints, Ints, Ints]:
        """The children at `level` of nodes [lo, hi) of the level above: parent, lo, hi of each, grouped by parent."""
        if level + 1 < len(self.start_bounds):
            starts = self.starts[self.start_bounds[level] : self.start_bounds[level + 1]]
            # In the type of `starts`, of which numpy would else make a converted copy.
            first, end = starts.searchsorted(lo.astype(np.int32)), starts.searchsorted(hi.astype(np.int32))
            parent = np.repeat(np.arange(len(lo)), end - first)
            child_lo, ends = starts[concatenate_ranges(first, end)].astype(np.int64), np.cumsum(end - first)
        else:
            parent, child_lo = np.repeat(np.arange(len(lo)), hi - lo), concatenate_ranges(lo, hi)
            is_start = self.first_diff_level[child_lo] <= level
            is_start[np.cumsum(hi - lo) - (hi - lo)] = True
            parent, child_lo = parent[is_start], child_lo[is_start]
            ends = np.cumsum(np.bincount(parent, minlength=len(lo)))
        child_hi = np.empty_like(child_lo)
        child_hi[:-1] = child_lo[1:]
        child_hi[ends - 1] = hi
        return parent, child_lo, child_hi

    def have_one_id(self, lo: Ints, hi: Ints) -> NDArray[np.bool_]:
        """Whether all items under a node [lo, hi) share one ID, for each node."""
        alike: NDArray[np.bool_] = (self.codes[:, lo] == self.codes[:, hi - 1]).all(axis=0)
        return alike

    def matching(self, pattern: Sequence[int | None]) -> Ints:
        """Sorted positions of the IDs that start with these codes. None matches any code."""
        lo, hi, given = 0, len(self), 0
        for column, code in zip(self.codes, pattern, strict=False):
            if code is None or not 0 <= code <= np.iinfo(column.dtype).max:
                break
            values, value = column[lo:hi], column.dtype.type(code)
            lo, hi, given = lo + np.searchsorted(values, value), lo + np.searchsorted(values, value, "right"), given + 1
        at = np.arange(lo, hi)
        for level, code in enumerate(pattern[given:], given):
            if code is not None:
                at = at[self.codes[level][at] == code]
        return at

    def restrict(self, keep: NDArray[np.bool_]) -> "Trie":
        """Return the trie of some items only. keep: (rows of the caller,) bool. Row numbers stay the same."""
        kept = np.flatnonzero(keep[self.order])
        if not len(kept):
            return trie_of_sorted(self.codes[:, :0], self.order[:0], self.first_diff_level[:0])
        behind = np.append(0, kept + 1)  # between two kept rows, the least level decides
        first_diff_level = np.minimum.reduceat(self.first_diff_level[: behind[-1]], behind[:-1])
        return trie_of_sorted(np.take(self.codes, kept, axis=1), self.order[kept], first_diff_level)

    def remove(self, rows: ArrayLike) -> "Trie":
        """Return the trie without these rows of the caller, each given once. The others keep their numbers."""
        rows = _positions(rows)
        removed = self._mask(rows)
        present = int(removed[self.order].sum())
        if present != len(rows):
            raise GeniusError(f"A trie was to lose {len(rows)} rows, but only {present} are in it.")
        return self.restrict(~removed)

    def insert(self, codes: ArrayLike, rows: ArrayLike) -> "Trie":
        """Return the trie with more items: their IDs (m, levels), and the caller's numbers for them (m,)."""
        table, rows = _checked(codes), _positions(rows)
        if table.shape != (len(rows), self.levels):
            raise GeniusError(
                f"Codes of shape {table.shape} and {len(rows)} row numbers do not fit a trie of {self.levels} levels."
            )
        _check_rows(rows)
        known = rows.min(initial=2**31) <= self.order.max(initial=-1) and self._mask(rows)[self.order].any()
        if known or len(np.unique(rows)) < len(rows):
            raise GeniusError("Rows to be added to a trie are in it already, or are given twice.")
        by_number = np.argsort(rows)
        order = by_number[_sort_rows(table[by_number])]
        new, numbers = _arranged(table, order), rows[order].astype(np.int32)
        before = self._places(new, numbers)
        dtype = np.promote_types(self.codes.dtype, new.dtype)
        merged = np.insert(self.codes.astype(dtype, copy=False), before, new, axis=1)
        joined = np.insert(self.order, before, numbers)
        first_diff_level = np.insert(self.first_diff_level, before, 0)
        touched = before + np.arange(len(rows))  # the new rows and those behind them have other neighbours now
        touched = np.union1d(touched, touched + 1)
        touched = touched[(touched > 0) & (touched < len(joined))]
        first_diff_level[touched] = _differences(merged[:, touched - 1], merged[:, touched])
        first_diff_level[:1] = 0
        return trie_of_sorted(merged, joined, first_diff_level, tuple(map(max, self.highest, _highest_codes(new))))

    def _places(self, new: Codes, rows: NDArray[np.int32]) -> Ints:
        """The sorted positions (m,) before which new IDs (levels, m) of these rows (m,) belong: binary search."""
        lo, hi, each = np.zeros(len(rows), np.int64), np.full(len(rows), len(self)), np.arange(len(rows))
        while (open := lo < hi).any():
            middle = np.minimum((lo + hi) // 2, len(self) - 1)  # of a search that has ended: any
            found = self.codes[:, middle]
            level = (found != new).argmax(axis=0)  # 0 if they are equal
            code, other = found[level, each], new[level, each]
            before = (code < other) | ((code == other) & (self.order[middle] < rows))
            lo, hi = np.where(open & before, middle + 1, lo), np.where(open & ~before, middle, hi)
        return lo

    def _mask(self, rows: Ints) -> NDArray[np.bool_]:
        """Bool for every row number of the trie and of `rows`: whether it is in `rows`."""
        _check_rows(rows)
        mask = np.zeros(max(self.order.max(initial=-1), rows.max(initial=-1)) + 1, np.bool_)
        mask[rows] = True
        return mask


def trie_of_sorted(
    codes: Codes, order: NDArray[np.int32], first_diff_level: NDArray[np.uint8], highest: tuple[int, ...] | None = None
) -> Trie:
    """Make a trie of sorted arrays."""
    trie = Trie.__new__(Trie)
    highest = _highest_codes(codes) if highest is None else highest
    trie._fill(codes.astype(np.uint8, copy=False) if max(highest) < 2**8 else codes, order, first_diff_level, highest)
    return trie


def _positions(values: ArrayLike) -> Ints:
    return np.asarray(values, dtype=np.int64)


def _check_rows(rows: Ints) -> None:
    if len(rows) and (rows.min() < 0 or rows.max() >= 2**31):
        raise GeniusError(f"A trie's rows must lie in 0..{2**31 - 1}, but they span {rows.min()}..{rows.max()}.")


def _checked(codes: ArrayLike) -> NDArray[np.integer]:
    table = np.asarray(codes)
    if table.ndim != 2 or table.shape[1] == 0 or table.dtype.kind not in "iu":
        raise GeniusError(
            f"A trie needs integer codes of shape (items, levels), but got {table.dtype} of shape {table.shape}."
        )
    if table.size and (table.min() < 0 or table.max() >= 2**16):
        raise GeniusError(f"A trie's codes must lie in 0..65535, but they span {table.min()}..{table.max()}.")
    return table


def _sort_rows(table: NDArray[np.integer]) -> NDArray[np.int32]:
    """Order of the rows (n, levels) by their codes, the first level first, then by their numbers."""
    key, levels = _pack(table)
    order = np.argsort(key).astype(np.int32)
    key = key[order]
    same = key[1:] == key[:-1]
    # The first key decides nearly always: the other levels are needed only among its ties.
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    keys: list[NDArray[np.integer]] = [key[tied]]
    rows = order[tied]
    while levels < table.shape[1]:
        key, more = _pack(table[rows, levels:])
        keys, levels = [*keys, key], levels + more
    order[tied] = rows[np.lexsort([rows, *reversed(keys)])]
    return order


def _pack(table: NDArray[np.integer]) -> tuple[NDArray[np.uint64], int]:
    """Pack as many columns as fit into a 64-bit key, the first most significant. Returns the keys and their number."""
    key, free = np.zeros(len(table), dtype=np.uint64), 64
    for level, column in enumerate(table.T):
        bits = int(column.max(initial=0)).bit_length()
        if bits > free:
            return key, level
        key <<= np.uint64(bits)
        key |= column.astype(np.uint64)
        free -= bits
    return key, table.shape[1]


def _arranged(table: NDArray[np.integer], order: NDArray[np.integer]) -> Codes:
    """The rows (n, levels) in this order, as (levels, n) uint8 or uint16."""
    codes = np.empty(table.shape[::-1], np.uint8 if table.max(initial=0) < 2**8 else np.uint16)
    for start in range(0, len(order), BLOCK):
        block = slice(start, start + BLOCK)
        codes[:, block] = table[order[block]].T
    return codes


def _differences(some: Codes, others: Codes) -> NDArray[np.uint8]:
    """The first level at which IDs (levels, n) differ from others; `levels` where they are equal."""
    first = np.full(some.shape[1], len(some), dtype=np.uint8)
    for level in reversed(range(len(some))):
        first[some[level] != others[level]] = level
    return first


def _highest_codes(codes: Codes) -> tuple[int, ...]:
    """The highest code of each level. codes: (levels, n)."""
    highest: list[int] = codes.max(axis=1, initial=0).tolist()
    return tuple(highest)


def node_starts(first_diff_level: NDArray[np.uint8], levels: int) -> tuple[NDArray[np.int32], Ints]:
    """`starts` and `start_bounds` of a trie: of as many levels as fit in four bytes per item, at least of the first."""
    counts = np.cumsum(np.bincount(first_diff_level, minlength=levels + 1))[:levels]  # nodes of each level
    bounds = np.append(0, np.cumsum(counts))
    kept = max(1, int(np.searchsorted(bounds[1:], len(first_diff_level), side="right")))
    starts = [np.flatnonzero(first_diff_level <= level).astype(np.int32) for level in range(kept)]
    return np.concatenate(starts), bounds[: kept + 1]


def concatenate_ranges(lo: NDArray[np.integer], hi: NDArray[np.integer]) -> Ints:
    """The numbers lo, lo + 1, ... hi - 1 of each range, one range after the other."""
    lengths = hi - lo
    before = np.cumsum(lengths) - lengths
    numbers: Ints = np.repeat(lo - before, lengths)
    numbers += np.arange(len(numbers))
    return numbers
