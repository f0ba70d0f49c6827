"""The IDs of a collection as one sorted table of codes. A node is a range of rows that agree on their first codes.

No object per node: the children of many nodes come out of a few array operations. Knows nothing of items (a caller's
row number stands for one), of probabilities, or of files.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from genius.errors import GeniusError

Ints = NDArray[np.int64]


class Trie:
    """codes: (n, levels) integers below 65536, a row an item; equal rows (items that share an ID) are kept.

    order: (n,) int32, the caller's row at each sorted position; equal IDs stay in the caller's order.
    codes: (levels, n) in sorted order, uint8 where they fit, else uint16.
    change: (n,) the first level at which each sorted row differs from the one before it; `levels` where they are equal.
    starts: where each node of the first level starts, then of the second, and so on for a few levels.
    start_bounds: where in `starts` each of these levels begins, and where the last one ends.
    """

    def __init__(self, codes: ArrayLike) -> None:
        table = np.asarray(codes)
        if table.ndim != 2 or table.shape[1] == 0 or table.dtype.kind not in "iu":
            raise GeniusError(
                f"A trie needs integer codes of shape (items, levels), but got {table.dtype} of shape {table.shape}."
            )
        if table.size and (table.min() < 0 or table.max() >= 2**16):
            raise GeniusError(f"A trie's codes must lie in 0..65535, but they span {table.min()}..{table.max()}.")
        order = sort_rows(table.T)
        codes = np.empty(table.shape[::-1], np.uint8 if table.max(initial=0) < 2**8 else np.uint16)
        for column, sorted_column in zip(table.T, codes, strict=True):
            sorted_column[:] = column[order]
        self._fill(codes, order)

    def _fill(self, codes: NDArray[np.unsignedinteger], order: NDArray[np.int32]) -> None:
        self.codes, self.order = codes, order
        self.highest = tuple(codes.max(axis=1, initial=0).tolist())  # code of each level
        self.change = first_change(codes)
        starts = node_starts(self.change, len(codes))
        self.starts = np.concatenate(starts)
        self.start_bounds = np.cumsum([0, *map(len, starts)])

    def __len__(self) -> int:
        return len(self.order)

    @property
    def levels(self) -> int:
        return len(self.codes)

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
        at = positions(at)
        return np.moveaxis(self.codes[:, at], 0, -1).astype(np.int64)

    def single(self, lo: ArrayLike, hi: ArrayLike) -> NDArray[np.bool_]:
        """Whether all items under a node share one ID. Rows are sorted, so the first and the last tell."""
        return (self.ids(lo) == self.ids(positions(hi) - 1)).all(axis=-1)

    def restrict(self, keep: NDArray[np.bool_]) -> "Trie":
        """The trie of some of the items only; row numbers stay the caller's. keep: (rows of the caller,) bool."""
        kept = keep[self.order]
        smaller = Trie.__new__(Trie)
        smaller._fill(self.codes[:, kept], self.order[kept])
        return smaller


def positions(values: ArrayLike) -> Ints:
    return np.asarray(values, dtype=np.int64)


def sort_rows(columns: NDArray[np.integer]) -> NDArray[np.int32]:
    """Stable order of the rows by their codes, the first level first."""
    keys = pack(columns)
    order = np.argsort(keys[0], kind="stable")
    if len(keys) > 1:  # the first key decides nearly always: the others are needed only among its ties
        same = np.diff(keys[0][order]) == 0
        tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
        rows = order[tied]
        order[tied] = rows[np.lexsort([key[rows] for key in reversed(keys)])]
    return order.astype(np.int32)


def pack(columns: NDArray[np.integer]) -> list[NDArray[np.uint64]]:
    """The columns side by side in as few 64-bit keys as possible, the most significant first."""
    keys: list[NDArray[np.uint64]] = []
    free = 0
    for column in columns:
        bits = int(column.max(initial=0)).bit_length()
        if bits > free or not keys:
            keys.append(np.zeros(len(column), dtype=np.uint64))
            free = 64
        keys[-1] <<= np.uint64(bits)
        keys[-1] |= column.astype(np.uint64)
        free -= bits
    return keys


def first_change(codes: NDArray[np.unsignedinteger]) -> NDArray[np.uint8]:
    change = np.full(codes.shape[1], len(codes), dtype=np.uint8)
    for level in reversed(range(len(codes))):
        change[1:][codes[level][1:] != codes[level][:-1]] = level
    change[:1] = 0
    return change


def node_starts(change: NDArray[np.uint8], levels: int) -> list[NDArray[np.int32]]:
    """Where the nodes of the upper levels start: as many levels as fit in four bytes an item, at least the first."""
    nodes = np.cumsum(np.bincount(change, minlength=levels + 1))[:levels]
    kept = max(1, int(np.searchsorted(np.cumsum(nodes), len(change), side="right")))
    return [np.flatnonzero(change <= level).astype(np.int32) for level in range(kept)]


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
