"""The nearest items by codes against slow and obvious versions."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from genius.search.nearest import MANY, nearest
from genius.search.trie import Trie

SIZES = (2, 4, 3, 5)
BOUNDS = np.cumsum([3, *SIZES])
exact = settings(deadline=None, derandomize=True, max_examples=60)


@st.composite
def collections(draw: st.DrawFn) -> NDArray[np.uint16]:
    rows = st.tuples(*(st.integers(0, size - 1) for size in SIZES))
    return np.array(draw(st.lists(rows, min_size=1, max_size=60)), np.uint16)


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
    got = nearest(trie, (inside[0], inside[-1] + 1), products, BOUNDS, count, (without, without + 1))
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
    got = nearest(trie, (0, len(trie)), products, bounds, 50, (nowhere, nowhere))
    total = sum(products[bounds[level] + trie.codes[level].astype(int)] for level in range(1, 4))
    best = np.argsort(-total)[:50]
    assert np.isin(best, got).mean() > 0.9
    assert len(set(got.tolist())) == 50


def test_items_that_are_dropped_early_are_not_the_nearest() -> None:
    rng = np.random.default_rng(1)
    sizes = (1, *[8] * 9)
    codes = np.stack([rng.integers(0, size, 60_000) for size in sizes], axis=1).astype(np.uint16)
    trie, bounds = Trie(codes), np.cumsum([3, *sizes])
    weight = np.concatenate([np.zeros(4), np.repeat(0.7 ** np.arange(9), 8)])
    products = (rng.standard_normal(bounds[-1]) * weight).astype(np.float32)
    total = sum(products[bounds[level] + trie.codes[level].astype(int)] for level in range(1, 10))
    without = np.argsort(-total)[:2000]
    got = nearest(trie, (0, len(trie)), products, bounds, 2 * MANY, (without, without + 1))
    assert len(set(got.tolist())) == 2 * MANY
    assert not np.isin(got, without).any()
    assert np.isin(np.argsort(-total)[2000 : 2000 + 2 * MANY], got).mean() > 0.95
