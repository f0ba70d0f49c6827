"""The baselines against exhaustive search in numpy, their bytes against the budget, and tiny pools."""

import sys
from collections.abc import Iterator

import numpy as np
import pytest

from genius.errors import GeniusError
from genius.evaluation.baselines import (
    FAISS_BASELINES,
    FaissBaseline,
    NearestCodes,
    build_baseline,
)

faiss = pytest.importorskip("faiss")

DIM = 24
OURS = 12.25  # bytes of an ID of mini
QUANTIZED = ("ivfpq", "opq")


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


def clustered(count: int, seed: int = 0, dim: int = DIM) -> np.ndarray:
    """Vectors of length one around 16 centres that all seeds share."""
    centres = np.random.default_rng(99).standard_normal((16, dim))
    rng = np.random.default_rng(seed)
    return unit(centres[rng.integers(0, 16, count)] + 0.5 * rng.standard_normal((count, dim)))


def exact(queries: np.ndarray, items: np.ndarray, k: int) -> np.ndarray:
    return np.argsort(-(queries @ items.T), axis=1, kind="stable")[:, :k]


def shared(found: np.ndarray, truth: np.ndarray) -> float:
    """The part of the true answers that was found."""
    return float(np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found.tolist(), truth.tolist(), strict=True)]))


ITEMS, QUERIES = clustered(600), clustered(40, seed=1)


@pytest.fixture(autouse=True, scope="module")
def _few_rounds() -> Iterator[None]:
    """So few vectors need no long training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("genius.evaluation.baselines.OPQ_ROUNDS", 2)
        yield


@pytest.fixture(scope="module")
def baselines(_few_rounds: None) -> dict[str, FaissBaseline]:
    return {name: build_baseline(name, ITEMS, OURS) for name in FAISS_BASELINES}


def test_flat_is_every_product_sorted(baselines: dict[str, FaissBaseline]) -> None:
    np.testing.assert_array_equal(baselines["flat"].search(QUERIES, 20), exact(QUERIES, ITEMS, 20))


def test_flat_ranks_by_inner_product_not_by_distance() -> None:
    items = np.array([[1, 0], [3, 3], [0, 1]], np.float32)
    query = np.array([[1, 0.1]], np.float32)  # nearest to the first; the largest product is with the second
    assert build_baseline("flat", items, OURS).search(query, 3).tolist() == [[1, 0, 2]]


@pytest.mark.parametrize(("name", "least"), [("hnsw", 0.97), ("ivfpq", 0.5), ("opq", 0.6)])
def test_most_of_the_nearest_are_found(baselines: dict[str, FaissBaseline], name: str, least: float) -> None:
    found = baselines[name].search(QUERIES, 10)
    assert found.dtype == np.int64
    assert shared(found, exact(QUERIES, ITEMS, 10)) >= least
    assert all(len(set(row)) == 10 for row in found.tolist())


@pytest.mark.parametrize("name", QUANTIZED)
def test_more_bytes_find_more(name: str) -> None:
    truth = exact(QUERIES, ITEMS, 10)
    few, many = (shared(build_baseline(name, ITEMS, size).search(QUERIES, 10), truth) for size in (3, OURS))
    assert many > few + 0.1


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("budget", [1, 1.5, 2, 7.9, OURS, 13.5, 500])
@pytest.mark.parametrize("count", [3, 100])
def test_codes_are_never_above_the_budget(name: str, budget: float, count: int) -> None:
    baseline = build_baseline(name, ITEMS[:count], budget)
    inner = faiss.downcast_index(baseline.index.index)
    lists = inner.nlist if name == "ivfpq" else 1
    assert baseline.bytes_per_item == inner.code_size + np.log2(lists) / 8
    assert 0 < baseline.bytes_per_item <= budget
    assert baseline.bytes_per_item > budget - 2 or inner.pq.M == DIM  # near to it, unless every dimension has its code


def test_the_budget_of_our_codes_is_used_up() -> None:
    items = clustered(600, dim=36)
    assert build_baseline("opq", items, OURS).bytes_per_item == 12
    ivfpq = build_baseline("ivfpq", items, OURS)
    assert ivfpq.index.index.ntotal == 600
    assert faiss.downcast_index(ivfpq.index.index).nlist == 16  # 4 bits, which leave 11 whole bytes
    assert ivfpq.bytes_per_item == 11.5


def test_bytes_are_what_faiss_keeps(baselines: dict[str, FaissBaseline]) -> None:
    row_bytes = {"ivfpq": 8}  # the lists hold row numbers
    for name, baseline in baselines.items():
        tables = sum(4 * table for table in tables_of(name, baseline))
        counted = (baseline.bytes_per_item + row_bytes.get(name, 0)) * len(ITEMS) + tables
        # A file holds a few headers more; the number of an item's list is not written, the lists' lengths are.
        assert len(faiss.serialize_index(baseline.index)) == pytest.approx(counted, rel=0.03), name
    assert baselines["flat"].bytes_per_item == 4 * DIM
    assert baselines["hnsw"].bytes_per_item > 4 * DIM + 4 * 64


def tables_of(name: str, baseline: FaissBaseline) -> list[int]:
    """The sizes of rotation, codebooks and centroids, which all items share."""
    if name not in QUANTIZED:
        return []
    inner = faiss.downcast_index(baseline.index.index)
    lists = [inner.nlist * inner.d] if name == "ivfpq" else []
    return [DIM * inner.d, 2**inner.pq.nbits * inner.d, *lists]


@pytest.mark.parametrize("name", FAISS_BASELINES)
@pytest.mark.parametrize("count", [1, 2, 3, 17])
def test_tiny_pools_are_found_whole_and_the_rest_is_minus_one(name: str, count: int) -> None:
    found = build_baseline(name, ITEMS[:count], OURS).search(QUERIES, 20)
    assert found.shape == (len(QUERIES), 20)
    assert (np.sort(found[:, :count], axis=1) == np.arange(count)).all()
    assert (found[:, count:] == -1).all()


def test_no_more_dimensions_than_items_is_no_trouble_for_opq() -> None:
    items = clustered(40, dim=130)
    found = build_baseline("opq", items, OURS).search(items, 1)
    assert (found[:, 0] == np.arange(40)).mean() > 0.9


@pytest.mark.parametrize("name", FAISS_BASELINES)
def test_no_queries_give_no_rows(baselines: dict[str, FaissBaseline], name: str) -> None:
    assert baselines[name].search(np.zeros((0, DIM), np.float32), 5).shape == (0, 5)


@pytest.mark.parametrize("name", FAISS_BASELINES)
def test_the_same_again(baselines: dict[str, FaissBaseline], name: str) -> None:
    again = build_baseline(name, ITEMS, OURS)
    np.testing.assert_array_equal(again.search(QUERIES, 10), baselines[name].search(QUERIES, 10))
    np.testing.assert_array_equal(faiss.serialize_index(again.index), faiss.serialize_index(baselines[name].index))


@pytest.mark.parametrize("name", ["hnsw", *QUANTIZED])
def test_the_seed_is_used(baselines: dict[str, FaissBaseline], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genius.evaluation.baselines.SEED", 1)
    other = build_baseline(name, ITEMS, OURS)
    assert not np.array_equal(faiss.serialize_index(other.index), faiss.serialize_index(baselines[name].index))


def test_a_graph_is_the_same_however_many_threads_search_it(baselines: dict[str, FaissBaseline]) -> None:
    two = build_baseline("hnsw", ITEMS, OURS, threads=2)
    np.testing.assert_array_equal(two.search(QUERIES, 10), baselines["hnsw"].search(QUERIES, 10))


@pytest.mark.parametrize("name", FAISS_BASELINES)
def test_arguments_are_left_alone_and_may_have_any_layout(baselines: dict[str, FaissBaseline], name: str) -> None:
    items, queries = np.asfortranarray(ITEMS), np.asfortranarray(QUERIES)
    before = items.copy()
    found = build_baseline(name, items, OURS).search(queries, 10)
    np.testing.assert_array_equal(found, baselines[name].search(QUERIES, 10))
    np.testing.assert_array_equal(items, before)


def test_threads_are_pinned_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = faiss.omp_get_max_threads()
    calls: list[int] = []
    monkeypatch.setattr(faiss, "omp_get_max_threads", lambda: 7)
    monkeypatch.setattr(faiss, "omp_set_num_threads", calls.append)
    baseline = build_baseline("flat", ITEMS, OURS, threads=3)
    baseline.search(QUERIES, 1)
    assert calls == [3, 7, 3, 7]
    calls.clear()
    with pytest.raises(GeniusError):
        build_baseline("opq", ITEMS, 0.5)
    assert calls == [1, 7]  # given back when building fails
    assert build_baseline("hnsw", ITEMS[:50], OURS, threads=3).threads == 3
    assert calls[2:] == [1, 7]
    monkeypatch.undo()
    assert faiss.omp_get_max_threads() == before


def test_progress_counts_every_item(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genius.evaluation.baselines.ROWS_AT_ONCE", 250)
    steps: list[int] = []
    baseline = build_baseline("flat", ITEMS, OURS, added=steps.append)
    assert steps == [250, 250, 100]
    np.testing.assert_array_equal(baseline.search(QUERIES, 5), exact(QUERIES, ITEMS, 5))


def test_large_training_sets_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genius.evaluation.baselines.TRAINING_POINTS", 100)
    once, twice = (build_baseline("opq", ITEMS, OURS).search(QUERIES, 5) for _ in range(2))
    np.testing.assert_array_equal(once, twice)


# Nearest codes

RNG = np.random.default_rng(3)
CODEBOOKS = [RNG.standard_normal((size, DIM)).astype(np.float32) for size in (3, 8, 8, 300)]
CODES = np.stack([RNG.integers(0, len(book), 60) for book in CODEBOOKS], axis=1).astype(np.uint16)
REBUILT = unit(np.array([sum(book[code] for book, code in zip(CODEBOOKS, row, strict=True)) for row in CODES]))


def test_nearest_codes_are_the_nearest_rebuilt_vectors() -> None:
    baseline = NearestCodes(CODES, CODEBOOKS)
    np.testing.assert_array_equal(baseline.search(QUERIES, 10), exact(QUERIES, REBUILT, 10))


def test_codes_are_counted_in_bits() -> None:
    assert NearestCodes(CODES, CODEBOOKS).bytes_per_item == (2 + 3 + 3 + 9) / 8
    mini = [np.ones((size, 4), np.float32) for size in (3, *[256] * 12)]
    assert NearestCodes(np.zeros((1, 13), np.uint16), mini).bytes_per_item == OURS


def test_items_of_equal_codes_come_in_their_order_and_gaps_are_minus_one() -> None:
    found = NearestCodes(CODES[[4, 4, 4]], CODEBOOKS).search(QUERIES[:2], 5)
    assert found.tolist() == [[0, 1, 2, -1, -1]] * 2


def test_no_codes_give_no_rows() -> None:
    assert NearestCodes(CODES[:0], CODEBOOKS).search(QUERIES[:2], 2).tolist() == [[-1, -1]] * 2


# Refusals


@pytest.mark.parametrize("name", QUANTIZED)
def test_less_than_a_byte_per_item_is_refused(name: str) -> None:
    with pytest.raises(GeniusError, match=r"0\.9 bytes per item are too few"):
        build_baseline(name, ITEMS, 0.9)


def test_without_faiss_there_is_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(GeniusError, match=r'pip install "genius-search\[baselines\]"'):
        build_baseline("flat", ITEMS, OURS)
    assert NearestCodes(CODES, CODEBOOKS).search(QUERIES, 3).shape == (len(QUERIES), 3)
