"""The trie against dictionaries of prefixes: every node's children, leaves and ranges."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from genius.errors import GeniusError
from genius.trie import Trie

few_codes = st.sampled_from([0, 1, 2, 300, 65535])  # few values, so that prefixes are shared; high ones fill sort keys
codes_tables = st.tuples(st.integers(0, 40), st.integers(1, 6)).flatmap(
    lambda shape: arrays(np.uint16, shape, elements=few_codes)
)


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
        parent, code, lo, hi = trie.children(lo, hi, level)
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
            _, _, los, his = trie.children([lo], [hi], level)
            nodes += [(int(a), int(b), level + 1) for a, b in zip(los, his, strict=True)]
    for level in range(trie.levels):
        chosen = [node for node in nodes if node[2] == level]
        random.shuffle(chosen)
        lo, hi = np.array([n[0] for n in chosen], int), np.array([n[1] for n in chosen], int)
        together = [list(map(int, row)) for row in zip(*trie.children(lo, hi, level), strict=True)]
        alone = [
            [i, *map(int, row[1:])]
            for i in range(len(chosen))
            for row in zip(*trie.children(lo[i : i + 1], hi[i : i + 1], level), strict=True)
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
        for a, b in zip(small.children([0], [len(small)], 0), fresh.children([0], [len(fresh)], 0), strict=True):
            assert a.tolist() == b.tolist()


def test_items_with_one_id_stay_in_the_callers_order() -> None:
    trie = Trie(np.array([[1, 2], [0, 1], [1, 2], [1, 2], [0, 0]], np.uint16))
    assert trie.order.tolist() == [4, 1, 0, 2, 3]
    assert trie.single([0, 2, 0], [1, 5, 2]).tolist() == [True, True, False]


def test_leaves_of_many_nodes_come_node_after_node() -> None:
    trie = Trie(np.array([[2], [0], [1], [0]], np.uint16))
    assert trie.leaves([3, 0, 2, 1], [4, 2, 2, 2]).tolist() == [0, 1, 3, 3]
    assert trie.leaves([], []).tolist() == []


def test_empty_and_one_item_tries() -> None:
    empty = Trie(np.zeros((0, 3), np.uint16))
    assert len(empty) == 0
    assert empty.levels == 3
    assert all(len(part) == 0 for part in empty.children([], [], 0))
    one = Trie(np.array([[2, 700, 3]], np.uint16))
    assert [part.tolist() for part in one.children([0], [1], 1)] == [[0], [700], [0], [1]]


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
