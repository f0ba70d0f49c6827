"""The trie against dictionaries of prefixes; and after changes, against one that is built anew."""

import itertools
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import ArrayLike, NDArray

from genius.errors import GeniusError
from genius.search.trie import Trie, node_starts

few_codes = st.sampled_from([0, 1, 2, 300, 65535])  # few values, so that prefixes are shared; high ones fill sort keys
codes_tables = st.tuples(st.integers(0, 40), st.integers(1, 6)).flatmap(
    lambda shape: arrays(np.uint16, shape, elements=few_codes)
)


def children(trie: Trie, lo: ArrayLike, hi: ArrayLike, level: int) -> tuple[NDArray[np.int64], ...]:
    """Parent, code, lo and hi of the children of some nodes."""
    nodes = np.asarray(lo, np.int64), np.asarray(hi, np.int64)
    parent, *child = trie.children(level, *nodes)
    return parent, trie.codes[level][child[0]], *child


def reference_children(rows: list[tuple[int, ...]], prefix: tuple[int, ...]) -> list[int]:
    return sorted({row[len(prefix)] for row in rows if row[: len(prefix)] == prefix})


@settings(deadline=None)
@given(codes_tables)
def test_walking_the_trie_meets_every_prefix_once(codes: NDArray[np.uint16]) -> None:
    trie, rows = Trie(codes), [tuple(map(int, row)) for row in codes]
    lo, hi, prefixes = np.array([0]), np.array([len(rows)]), [()]
    for level in range(codes.shape[1]):
        if not rows:
            lo, hi = lo[:0], hi[:0]
        parent, code, lo, hi = children(trie, lo, hi, level)
        expected = [(*prefix, c) for prefix in prefixes for c in reference_children(rows, prefix)]
        prefixes = [(*prefixes[p], int(c)) for p, c in zip(parent, code, strict=True)]
        assert prefixes == expected
        for prefix, start, end in zip(prefixes, lo, hi, strict=True):
            inside = [i for i, row in enumerate(rows) if row[: level + 1] == prefix]
            assert sorted(trie.leaves([start], [end]).tolist()) == inside
    for prefix, start, end in zip(prefixes, lo, hi, strict=True):
        assert [rows[i] for i in trie.leaves([start], [end])] == [prefix] * (end - start)
        assert tuple(trie.ids(start)) == prefix


@settings(deadline=None)
@given(codes_tables, st.randoms(use_true_random=False))
def test_any_nodes_in_any_order(codes: NDArray[np.uint16], random: Random) -> None:
    trie = Trie(codes)
    nodes = [(0, len(trie), 0)] if len(trie) else []
    for lo, hi, level in nodes:
        if level + 1 < trie.levels:
            _, _, los, his = children(trie, [lo], [hi], level)
            nodes += [(int(a), int(b), level + 1) for a, b in zip(los, his, strict=True)]
    for level in range(trie.levels):
        chosen = [node for node in nodes if node[2] == level]
        random.shuffle(chosen)
        los, his = np.array([n[0] for n in chosen], int), np.array([n[1] for n in chosen], int)
        together = [list(map(int, row)) for row in zip(*children(trie, los, his, level), strict=True)]
        alone = [
            [i, *map(int, row[1:])]
            for i in range(len(chosen))
            for row in zip(*children(trie, los[i : i + 1], his[i : i + 1], level), strict=True)
        ]
        assert together == alone


@settings(deadline=None)
@given(codes_tables, st.data())
def test_restricted_trie_equals_a_trie_of_the_kept_rows(codes: NDArray[np.uint16], data: st.DataObject) -> None:
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=len(codes), max_size=len(codes))), dtype=bool)
    small, fresh = Trie(codes).restrict(keep), Trie(codes[keep])
    assert small.order.tolist() == np.flatnonzero(keep)[fresh.order].tolist()
    assert small.ids(np.arange(len(small))).tolist() == fresh.ids(np.arange(len(fresh))).tolist()
    if len(fresh):
        for a, b in zip(children(small, [0], [len(small)], 0), children(fresh, [0], [len(fresh)], 0), strict=True):
            assert a.tolist() == b.tolist()


def same(trie: Trie, kept: dict[int, tuple[int, ...]], levels: int) -> None:
    """The trie is the one that is built anew of these rows, in all that a search uses."""
    rows = np.array(sorted(kept), np.int64)
    anew = Trie(np.array([kept[row] for row in rows.tolist()], np.int64).reshape(len(rows), levels))
    assert trie.order.tolist() == rows[anew.order].tolist()
    assert trie.order.dtype == anew.order.dtype
    assert trie.highest == anew.highest
    for name in ("codes", "first_diff_level", "starts", "start_bounds"):
        ours, theirs = getattr(trie, name), getattr(anew, name)
        assert ours.tolist() == theirs.tolist(), name
        assert ours.dtype == theirs.dtype, name


@settings(deadline=None)
@given(st.data())
def test_rows_put_in_and_taken_out_leave_the_trie_of_the_rest(data: st.DataObject) -> None:
    levels = data.draw(st.integers(1, 5))
    codes = st.tuples(*[few_codes] * levels)
    first = data.draw(st.lists(codes, max_size=20))
    kept = dict(enumerate(first))
    trie = Trie(np.array(first, np.uint16).reshape(-1, levels))
    for _ in range(data.draw(st.integers(1, 5))):
        if data.draw(st.booleans()):
            free = st.sampled_from(sorted(set(range(60)) - kept.keys()))
            new = data.draw(st.dictionaries(free, codes, max_size=8))
            before = trie
            trie = trie.insert(np.array(list(new.values()), np.uint16).reshape(-1, levels), list(new))
            same(before, kept, levels)  # a trie that was searched meanwhile has not changed
            kept |= new
        else:
            gone = data.draw(st.lists(st.sampled_from(sorted(kept)), unique=True)) if kept else []
            trie = trie.remove(gone)
            kept = {row: id for row, id in kept.items() if row not in gone}
        same(trie, kept, levels)


def test_a_large_code_widens_the_trie_and_takes_its_width_with_it() -> None:
    small = Trie(np.array([[0, 255], [1, 0]]))
    large = small.insert([[0, 256]], [7])
    assert [trie.codes.dtype.name for trie in (small, large, large.remove([7]))] == ["uint8", "uint16", "uint8"]
    assert large.ids([0, 1, 2]).tolist() == [[0, 255], [0, 256], [1, 0]]
    same(large.insert([[0, 0]], [8]), {0: (0, 255), 1: (1, 0), 7: (0, 256), 8: (0, 0)}, 2)


def test_many_rows_at_once() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 20, (3000, 6))
    trie = Trie(codes[:1000]).insert(codes[1000:], np.arange(1000, 3000))
    same(trie, {row: tuple(id) for row, id in enumerate(codes.tolist())}, 6)
    gone = rng.permutation(3000)[:2500]
    left = np.setdiff1d(np.arange(3000), gone)
    same(trie.remove(gone), {row: tuple(codes[row].tolist()) for row in left.tolist()}, 6)


def test_rows_that_cannot_be_put_in_or_taken_out() -> None:
    trie = Trie(np.array([[0, 1], [1, 0]]))
    for codes, rows, message in (
        ([[0, 0]], [1], "already"),
        ([[0, 0], [1, 1]], [5, 5], "twice"),
        ([[0, 0]], [2**31], "2147483648"),
        ([[0, 0]], [-1], "-1"),
        ([[0, 0, 0]], [2], "2 levels"),
        ([[0, 0]], [2, 3], "2 row numbers"),
        ([[0, 70000]], [2], "65535"),
    ):
        with pytest.raises(GeniusError, match=message):
            trie.insert(codes, rows)
    for rows in ([2], [0, 0], [0, 9]):
        with pytest.raises(GeniusError, match=f"lose {len(rows)} rows, but only {len(rows) - 1} are"):
            trie.remove(rows)
    with pytest.raises(GeniusError, match="-1"):
        trie.remove([-1])


def test_items_with_one_id_stay_in_the_callers_order() -> None:
    trie = Trie(np.array([[1, 2], [0, 1], [1, 2], [1, 2], [0, 0]], np.uint16))
    assert trie.order.tolist() == [4, 1, 0, 2, 3]


def test_leaves_of_many_nodes_come_node_after_node() -> None:
    trie = Trie(np.array([[2], [0], [1], [0]], np.uint16))
    assert trie.leaves([3, 0, 2, 1], [4, 2, 2, 2]).tolist() == [0, 1, 3, 3]
    assert trie.leaves([], []).tolist() == []


def test_empty_and_one_item_tries() -> None:
    empty = Trie(np.zeros((0, 3), np.uint16))
    assert len(empty) == 0
    assert empty.levels == 3
    assert all(len(part) == 0 for part in children(empty, [], [], 0))
    one = Trie(np.array([[2, 700, 3]], np.uint16))
    assert [part.tolist() for part in children(one, [0], [1], 1)] == [[0], [700], [0], [1]]


@pytest.mark.parametrize(("levels", "size"), [(13, 256), (9, 4096)])
def test_memory_stays_below_32_bytes_an_item(levels: int, size: int) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, size, (100_000, levels), dtype=np.uint16)
    codes[:, 0] %= 3
    codes[:, 1:4] %= 16  # several levels with middling numbers of nodes: the worst case for the lists of node starts
    assert Trie(codes).nbytes <= 32 * len(codes)


def test_bad_codes_are_refused() -> None:
    with pytest.raises(GeniusError, match="shape"):
        Trie(np.zeros(3, np.uint16))
    with pytest.raises(GeniusError, match="float64"):
        Trie(np.zeros((3, 2)))
    with pytest.raises(GeniusError, match=r"-1\.\.0"):
        Trie(np.array([[0, -1]]))


@settings(deadline=None)
@given(codes_tables, st.lists(st.none() | few_codes | st.sampled_from([-1, 70_000]), max_size=6))
def test_rows_that_match_a_pattern(codes: NDArray[np.uint16], pattern: list[int | None]) -> None:
    trie, pattern = Trie(codes), pattern[: codes.shape[1]]
    expected = [
        i
        for i, row in enumerate(codes.tolist())
        if all(wanted in (None, code) for wanted, code in zip(pattern, row, strict=False))
    ]
    at = trie.matching(pattern)
    assert sorted(trie.order[at].tolist()) == expected
    assert (np.diff(at) > 0).all()


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), max_size=60), st.integers(4, 6))
def test_node_starts_are_where_rows_change(changes: list[int], levels: int) -> None:
    change = np.array([0, *changes] if changes else [], np.uint8)
    starts, bounds = node_starts(change, levels)
    kept = [starts[a:b].tolist() for a, b in itertools.pairwise(bounds)]
    every = [np.flatnonzero(change <= level).tolist() for level in range(levels)]
    assert kept == every[: len(kept)]
    held = [sum(map(len, every[: level + 1])) for level in range(levels)]
    assert len(kept) == max(1, sum(total <= len(change) for total in held))
