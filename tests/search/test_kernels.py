"""The compiled loops against slow and obvious versions."""

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from genius.search import kernels
from genius.search.trie import Trie

SIZES = (2, 4, 3, 5)
BOUNDS = np.cumsum([3, *SIZES])
exact = settings(deadline=None, derandomize=True, max_examples=60)

scores = hnp.arrays(np.float64, st.integers(1, 60), elements=st.sampled_from([-3.5, -1.0, 0.0, 0.25, 0.5, 7.0, 1e6]))


@st.composite
def collections(draw: st.DrawFn) -> NDArray[np.uint16]:
    rows = st.tuples(*(st.integers(0, size - 1) for size in SIZES))
    return np.array(draw(st.lists(rows, min_size=1, max_size=60)), np.uint16)


@exact
@given(scores, st.integers(1, 70), st.randoms())
def test_best_of_is_a_sort(score: NDArray[np.float64], count: int, random: Random) -> None:
    lo = np.array(random.sample(range(1000), len(score)))
    expected = sorted(range(len(score)), key=lambda i: (-score[i], lo[i]))[:count]
    assert kernels.top_sorted(score, lo, count).tolist() == expected


@exact
@given(scores, st.integers(1, 20), st.integers(0, 40))
def test_enough_nodes_and_items_reach_the_threshold(score: NDArray[np.float64], nodes: int, items: int) -> None:
    lo = np.arange(len(score)) * 5
    hi = lo + 1 + lo % 4
    reached = score >= kernels.threshold(score, lo, hi, nodes, items)
    assert reached.sum() >= min(nodes, len(score))
    assert (hi - lo)[reached].sum() >= min(items, (hi - lo).sum())


@exact
@given(collections(), st.integers(1, 30), st.integers(0, 3), st.data())
def test_nearest_are_the_greatest_sums_of_products(
    codes: NDArray[np.uint16], count: int, seed: int, data: st.DataObject
) -> None:
    trie = Trie(codes)
    products = np.random.default_rng(seed).standard_normal(BOUNDS[-1]).astype(np.float32)
    kind = data.draw(st.sampled_from(sorted(set(codes[:, 0].tolist()))))
    inside = np.flatnonzero(trie.codes[0] == kind)
    without = np.array(sorted(data.draw(st.sets(st.sampled_from(inside.tolist())))), np.int64)
    got = kernels.nearest(
        trie.codes, trie.first_diff_level, trie.starts, trie.start_bounds, inside[0], inside[-1] + 1, products, BOUNDS,
        without, without + 1, count,
    )  # fmt: skip
    total = sum(products[BOUNDS[level] + trie.codes[level].astype(int)] for level in range(1, 4))
    allowed = np.setdiff1d(inside, without)
    assert len(set(got.tolist())) == len(got) == min(count, len(allowed))
    assert np.isin(got, allowed).all()
    best = np.sort(total[allowed])[::-1][: len(got)]
    np.testing.assert_allclose(np.sort(total[got])[::-1], best, atol=1e-5)  # so few items are all compared


def test_nearest_follows_the_best_nodes_of_a_large_collection() -> None:
    rng = np.random.default_rng(0)
    sizes = (1, 64, 64, 64)
    codes = np.stack([rng.integers(0, size, 200_000) for size in sizes], axis=1).astype(np.uint16)
    trie, bounds = Trie(codes), np.cumsum([3, *sizes])
    products = (rng.standard_normal(bounds[-1]) * np.repeat([0, 4, 2, 1], [4, 64, 64, 64])).astype(np.float32)
    nowhere = np.zeros(0, np.int64)
    got = kernels.nearest(
        trie.codes,
        trie.first_diff_level,
        trie.starts,
        trie.start_bounds,
        0,
        len(trie),
        products,
        bounds,
        nowhere,
        nowhere,
        50,
    )
    total = sum(products[bounds[level] + trie.codes[level].astype(int)] for level in range(1, 4))
    best = np.argsort(-total)[:50]
    assert np.isin(best, got).mean() > 0.9
    assert len(set(got.tolist())) == 50


@exact
@given(collections(), st.integers(0, 3), st.data())
def test_children_are_the_codes_that_follow(codes: NDArray[np.uint16], level: int, data: st.DataObject) -> None:
    trie = Trie(codes)
    assert kernels.SCAN > 60  # so that this test scans all items; the large collection above looks children up
    ids = [tuple(row) for row in trie.ids(np.arange(len(trie))).tolist()]
    prefixes = sorted({id[:level] for id in ids})
    chosen = data.draw(st.lists(st.sampled_from(prefixes), min_size=1, unique=True))
    ranges = [[at for at, id in enumerate(ids) if id[:level] == prefix] for prefix in chosen]
    lo, hi = np.array([inside[0] for inside in ranges]), np.array([inside[-1] + 1 for inside in ranges])
    expected = []
    for parent, inside in enumerate(ranges):
        for code in sorted({ids[at][level] for at in inside}):
            below = [at for at in inside if ids[at][level] == code]
            expected.append((parent, below[0], below[-1] + 1))
    got = kernels.children(trie.first_diff_level, trie.starts, trie.start_bounds, level, lo, hi)
    assert list(zip(*(part.tolist() for part in got), strict=True)) == expected


@exact
@given(collections(), st.data())
def test_one_id_only_where_all_codes_agree(codes: NDArray[np.uint16], data: st.DataObject) -> None:
    trie = Trie(codes)
    lo = data.draw(st.integers(0, len(trie) - 1))
    hi = data.draw(st.integers(lo + 1, len(trie)))
    assert kernels.is_single_id(trie.first_diff_level, trie.levels, lo, hi) == (
        len({tuple(c) for c in trie.ids(np.arange(lo, hi)).tolist()}) == 1
    )
