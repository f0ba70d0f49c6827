"""Baselines: other ways to search the same vectors.

`build_baseline` builds Faiss indexes: exhaustive search (flat), a graph (HNSW), and product quantizers (IVF-PQ, OPQ)
whose codes take no more bytes per item than ours. `NearestCodes` compares the query with the residual codes of every
item, without a decoder. All of them rank by inner product, which is the cosine for normalised vectors.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from genius.errors import GeniusError
from genius.evaluation.runs import id_bytes
from genius.search.rerank import CodeVectors, code_score, top

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

FAISS_BASELINES = ("flat", "hnsw", "ivfpq", "opq")
HNSW_LINKS = 32  # links per item and level; twice as many at the bottom
HNSW_BUILD, HNSW_SEARCH = 100, 64  # candidates kept while the graph is built and searched
TRAINING_POINTS = 32_768  # maximum: 128 for each of 256 centroids
POINTS_PER_LIST = 32  # minimum; determines the number of lists
PROBED = 16  # a search visits one list in 16, and at least 16 lists
OPQ_ROUNDS = 20
SEED = 0  # of centroids, rotations and the graph
ROWS_AT_ONCE = 8192


@dataclass
class FaissBaseline:
    """A Faiss index.

    bytes_per_item counts vectors, links, and codes with the number of the item's list. As for our IDs, it leaves out
    row numbers and tables of the whole collection.
    """

    name: str
    bytes_per_item: float
    build_seconds: float
    threads: int
    index: Any

    def search(self, queries: Floats, k: int) -> Ints:
        """Find k rows per normalised query (q, d): (q, k), best first, -1 where there are fewer."""
        with _threads(self.threads):
            rows: Ints = self.index.search(queries, k)[1]
        return rows


class NearestCodes:
    """The baseline `rq`: ranks all items by the cosine of the query and the sum of their code vectors.

    Args:
        codes: (n, levels) integers.
        codebooks: (size, d) for each level.
    """

    def __init__(self, codes: ArrayLike, codebooks: Sequence[ArrayLike]) -> None:
        self._vectors = CodeVectors(codebooks)
        self._codes = np.asfortranarray(codes)  # read level by level
        self._halves = self._vectors.half_norms(self._codes)
        self.bytes_per_item = id_bytes(np.diff(self._vectors.bounds).tolist())

    def search(self, queries: Floats, k: int) -> Ints:
        """Find k rows per fused query (q, d): (q, k), best first, -1 where there are fewer."""
        rows = np.full((len(queries), k), -1, np.int64)
        for query, products in enumerate(self._vectors.products(queries)):
            best = top(code_score(self._vectors.scores(products, self._codes), self._halves), k)
            rows[query, : len(best)] = best
        return rows


def build_baseline(
    name: str,
    vectors: Floats,
    budget_bytes: float,
    threads: int = 1,
    added: Callable[[int], object] | None = None,
) -> FaissBaseline:
    """Build a Faiss index. Equal arguments give equal search results.

    Args:
        name: One of FAISS_BASELINES.
        vectors: (n, d) items, at least one.
        budget_bytes: Bytes per item that the codes of ivfpq and opq may take. flat and hnsw store whole vectors.
        threads: Threads of building and searching.
        added: Called with the number of items added, after each block.

    Raises:
        GeniusError: Faiss is not installed, or the budget is below one byte.
    """
    faiss = load_faiss()
    start = time.perf_counter()
    # One thread: the graph depends on the order in which items are added.
    with _threads(1 if name == "hnsw" else threads):
        index, measure = _MAKERS[name](faiss, vectors, _training_points(vectors), budget_bytes)
        for first in range(0, len(vectors), ROWS_AT_ONCE):
            block = np.asarray(vectors[first : first + ROWS_AT_ONCE], np.float32)
            index.add(block)
            if added is not None:
                added(len(block))
        bytes_per_item = measure()
    return FaissBaseline(name, bytes_per_item, time.perf_counter() - start, threads, index)


Measure = Callable[[], float]
"""Called after the items are added: bytes per item."""


def _make_flat(faiss: Any, items: Floats, points: Floats, budget: float) -> tuple[Any, Measure]:
    return faiss.IndexFlatIP(items.shape[1]), lambda: 4.0 * items.shape[1]


def _make_hnsw(faiss: Any, items: Floats, points: Floats, budget: float) -> tuple[Any, Measure]:
    index = faiss.IndexHNSWFlat(items.shape[1], HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
    graph = index.hnsw
    graph.efConstruction, graph.efSearch = HNSW_BUILD, HNSW_SEARCH
    graph.rng = faiss.RandomGenerator(SEED)

    def measure() -> float:
        links = 4 * graph.neighbors.size() + 8 * graph.offsets.size() + 4 * graph.levels.size()
        return float(4 * items.shape[1] + links / len(items))

    return index, measure


def _make_ivfpq(faiss: Any, items: Floats, points: Floats, budget: float) -> tuple[Any, Measure]:
    """Items in lists by their nearest centroid, residuals product-quantized."""
    dim = items.shape[1]
    list_bits = _list_bits(len(items), len(points), budget)
    lists = 2**list_bits
    parts, bits = _product(budget - list_bits / 8, dim, len(points))
    # The parts must be equally long: a rotation spreads the vector over a few more dimensions.
    rotation = faiss.RandomRotationMatrix(dim, _rounded_up(dim, parts))
    rotation.init(SEED)
    inner = faiss.IndexIVFPQ(
        faiss.IndexFlatIP(rotation.d_out), rotation.d_out, lists, parts, bits, faiss.METRIC_INNER_PRODUCT
    )
    inner.nprobe = min(lists, max(PROBED, lists // PROBED))
    for settings in (inner.cp, inner.pq.cp):
        settings.seed, settings.min_points_per_centroid = SEED, 1
    index = faiss.IndexPreTransform(rotation, inner)
    index.train(points)
    return index, lambda: inner.code_size + list_bits / 8


def _make_opq(faiss: Any, items: Floats, points: Floats, budget: float) -> tuple[Any, Measure]:
    """Product quantization after a learned rotation. A search compares all codes."""
    dim = items.shape[1]
    parts, bits = _product(budget, dim, len(points))
    rotation = faiss.OPQMatrix(dim, parts, _rounded_up(dim, parts))
    rotation.niter = OPQ_ROUNDS
    inner = faiss.IndexPQ(rotation.d_out, parts, bits, faiss.METRIC_INNER_PRODUCT)
    learner = faiss.ProductQuantizer(rotation.d_out, parts, bits)
    for settings in (inner.pq.cp, learner.cp):
        settings.seed, settings.min_points_per_centroid = SEED, 1
    rotation.pq = learner
    index = faiss.IndexPreTransform(rotation, inner)
    # Faiss writes past its buffers if there are fewer points than dimensions, so repeat the points.
    index.train(np.resize(points, (max(len(points), rotation.d_out), dim)))
    rotation.pq = None  # it must not outlive `learner`
    return index, lambda: float(inner.code_size)


_MAKERS: dict[str, Callable[[Any, Floats, Floats, float], tuple[Any, Measure]]] = {
    "flat": _make_flat,
    "hnsw": _make_hnsw,
    "ivfpq": _make_ivfpq,
    "opq": _make_opq,
}


def _list_bits(items: int, points: int, budget: float) -> int:
    """Bits of the list number: about 4 sqrt(items) lists, leaving at least one byte for the codes."""
    lists = max(1.0, min(4 * items**0.5, points / POINTS_PER_LIST))
    return max(0, min(int(np.log2(lists)), int(8 * (budget - 1))))


def _product(budget: float, dim: int, points: int) -> tuple[int, int]:
    """Number of sub-quantizers and bits of each, within the whole bytes of the budget."""
    if budget < 1:
        raise GeniusError(f"{budget} bytes per item are too few for product quantization. Give at least 1.")
    bits = min(8, points.bit_length() - 1)
    return min(dim, 8 * int(budget) // bits), bits


def _rounded_up(dim: int, parts: int) -> int:
    return -(-dim // parts) * parts


def _training_points(items: Floats) -> Floats:
    """A sample of the items to learn centroids from; at least two, because a code needs a bit."""
    if len(items) > TRAINING_POINTS:
        rows = np.random.default_rng(SEED).choice(len(items), TRAINING_POINTS, replace=False)
        return np.asarray(items[np.sort(rows)], np.float32)
    return np.resize(np.asarray(items, np.float32), (max(2, len(items)), items.shape[1]))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Set the number of threads of Faiss inside the context."""
    faiss = load_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def load_faiss() -> Any:
    """The module `faiss`. Raises GeniusError with a hint if it is not installed."""
    try:
        import faiss
    except ImportError as error:
        raise GeniusError(
            'The baselines need Faiss. Install it with: pip install "genius-search[baselines]"'
        ) from error
    return faiss
