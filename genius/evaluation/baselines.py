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
from genius.search.rerank import CodeVectors, top

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

FAISS_BASELINES = ("flat", "hnsw", "ivfpq", "opq")
HNSW_LINKS = 32  # links per item and level; twice as many at the bottom
HNSW_BUILD, HNSW_SEARCH = 100, 64  # candidates kept while the graph is built and searched
TRAINING_POINTS = 32_768  # maximum: 128 for each of 256 centroids
POINTS_PER_LIST = 32  # minimum; determines the number of lists
PROBED = 16  # a search visits one list in 16, and at least 16 lists
OPQ_ROUNDS = 20
ROWS_AT_ONCE = 8192


@dataclass
class FaissBaseline:
    """A Faiss index.

    Attributes:
        name: One of FAISS_BASELINES.
        bytes_per_item: Storage per item, counted as for our IDs: vectors, links, and codes including the number of the
            item's list, without row numbers and without tables of the whole collection.
        row_bytes: Bytes of an item's row number, if the index stores it.
        table_bytes: Bytes of centroids, codebooks and rotation.
        build_seconds: Time to build the index.
        threads: Threads of a search.
        dim: Dimension of the vectors.
        index: The index.
    """

    name: str
    bytes_per_item: float
    row_bytes: int
    table_bytes: int
    build_seconds: float
    threads: int
    dim: int
    index: Any

    def search(self, queries: Floats, k: int) -> Ints:
        """Find k rows per query.

        Args:
            queries: (q, d) normalised vectors.
            k: Number of rows.

        Returns:
            (q, k) rows, best first, -1 where there are fewer.
        """
        asked = _checked(queries, "queries", self.dim)
        _check_count(k, "k")
        with _threads(self.threads):
            rows: Ints = self.index.search(asked, k)[1]
        return rows


class NearestCodes:
    """The baseline `rq`: ranks all items by the cosine of the query and the sum of their code vectors.

    Args:
        codes: (n, levels) integers.
        codebooks: (size, d) for each level.
    """

    name = "rq"

    def __init__(self, codes: ArrayLike, codebooks: Sequence[ArrayLike]) -> None:
        start = time.perf_counter()
        self._vectors = CodeVectors(codebooks)
        sizes = np.diff(self._vectors.bounds).tolist()
        self._codes = _checked_codes(codes, sizes)
        self._norms = self._vectors.norms(self._codes)
        self.bytes_per_item = sum((size - 1).bit_length() for size in sizes) / 8
        self.build_seconds = time.perf_counter() - start

    def search(self, queries: Floats, k: int) -> Ints:
        """Find k rows per fused query (q, d): (q, k), best first, -1 where there are fewer."""
        asked = _checked(queries, "queries", self._vectors.table.shape[1])
        _check_count(k, "k")
        rows = np.full((len(asked), k), -1, np.int64)
        for query, products in enumerate(self._vectors.products(asked)):
            best = top(self._vectors.scores(products, self._codes) / self._norms, k)
            rows[query, : len(best)] = best
        return rows


def build_baseline(
    name: str,
    vectors: Floats,
    budget_bytes: float,
    train: Floats | None = None,
    threads: int = 1,
    seed: int = 0,
    added: Callable[[int], object] | None = None,
) -> FaissBaseline:
    """Build a Faiss index. Equal arguments give equal search results.

    Args:
        name: One of FAISS_BASELINES.
        vectors: (n, d) items.
        budget_bytes: Bytes per item that the codes of ivfpq and opq may take. flat and hnsw store whole vectors.
        train: (m, d) vectors that centroids are learned from. Default: the items. With few vectors there are fewer
            centroids.
        threads: Threads of building and searching.
        seed: Seed of centroids, rotations and the graph.
        added: Called with the number of items added, after each block.

    Raises:
        GeniusError: Faiss is not installed, or an argument is not valid.
    """
    items = _checked(vectors, "vectors")
    if name not in FAISS_BASELINES:
        hint = " Make it with NearestCodes(codes, codebooks)." if name == NearestCodes.name else ""
        raise GeniusError(f"There is no Faiss baseline {name!r}; choose one of {', '.join(FAISS_BASELINES)}.{hint}")
    if not len(items):
        raise GeniusError("There are no vectors to build a baseline from. Check the pool: it is empty.")
    _check_count(threads, "threads")
    faiss = _faiss()
    points = _training_points(items if train is None else _checked(train, "training vectors", items.shape[1]), seed)
    start = time.perf_counter()
    # One thread: the graph depends on the order in which items are added.
    with _threads(1 if name == "hnsw" else threads):
        index, measure = _MAKERS[name](faiss, items, points, budget_bytes, seed)
        for first in range(0, len(items), ROWS_AT_ONCE):
            block = items[first : first + ROWS_AT_ONCE]
            index.add(block)
            if added is not None:
                added(len(block))
        bytes_per_item, row_bytes, table_bytes = measure()
    seconds = time.perf_counter() - start
    return FaissBaseline(name, bytes_per_item, row_bytes, table_bytes, seconds, threads, items.shape[1], index)


Measure = Callable[[], tuple[float, int, int]]
"""Called after the items are added: bytes per item, bytes of its row number, bytes of the tables."""


def _make_flat(faiss: Any, items: Floats, points: Floats, budget: float, seed: int) -> tuple[Any, Measure]:
    return faiss.IndexFlatIP(items.shape[1]), lambda: (4.0 * items.shape[1], 0, 0)


def _make_hnsw(faiss: Any, items: Floats, points: Floats, budget: float, seed: int) -> tuple[Any, Measure]:
    index = faiss.IndexHNSWFlat(items.shape[1], HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
    graph = index.hnsw
    graph.efConstruction, graph.efSearch = HNSW_BUILD, HNSW_SEARCH
    graph.rng = faiss.RandomGenerator(seed)

    def measure() -> tuple[float, int, int]:
        links = 4 * graph.neighbors.size() + 8 * graph.offsets.size() + 4 * graph.levels.size()
        return 4.0 * items.shape[1] + links / len(items), 0, 0

    return index, measure


def _make_ivfpq(faiss: Any, items: Floats, points: Floats, budget: float, seed: int) -> tuple[Any, Measure]:
    """Items in lists by their nearest centroid, residuals product-quantized."""
    dim = items.shape[1]
    list_bits = _list_bits(len(items), len(points), budget)
    lists = 2**list_bits
    parts, bits = _product(budget - list_bits / 8, dim, len(points))
    # The parts must be equally long: a rotation spreads the vector over a few more dimensions.
    rotation = faiss.RandomRotationMatrix(dim, _rounded_up(dim, parts))
    rotation.init(seed)
    inner = faiss.IndexIVFPQ(
        faiss.IndexFlatIP(rotation.d_out), rotation.d_out, lists, parts, bits, faiss.METRIC_INNER_PRODUCT
    )
    inner.nprobe = min(lists, max(PROBED, lists // PROBED))
    for settings in (inner.cp, inner.pq.cp):
        settings.seed, settings.min_points_per_centroid = seed, 1
    index = faiss.IndexPreTransform(rotation, inner)
    index.train(points)
    tables = 4 * rotation.d_out * (dim + lists + 2**bits)
    return index, lambda: (inner.code_size + list_bits / 8, 8, tables)


def _make_opq(faiss: Any, items: Floats, points: Floats, budget: float, seed: int) -> tuple[Any, Measure]:
    """Product quantization after a learned rotation. A search compares all codes."""
    dim = items.shape[1]
    parts, bits = _product(budget, dim, len(points))
    rotation = faiss.OPQMatrix(dim, parts, _rounded_up(dim, parts))
    rotation.niter = OPQ_ROUNDS
    inner = faiss.IndexPQ(rotation.d_out, parts, bits, faiss.METRIC_INNER_PRODUCT)
    learner = faiss.ProductQuantizer(rotation.d_out, parts, bits)
    for settings in (inner.pq.cp, learner.cp):
        settings.seed, settings.min_points_per_centroid = seed, 1
    rotation.pq = learner
    index = faiss.IndexPreTransform(rotation, inner)
    # Faiss writes past its buffers if there are fewer points than dimensions, so repeat the points.
    index.train(np.resize(points, (max(len(points), rotation.d_out), dim)))
    rotation.pq = None  # it must not outlive `learner`
    tables = 4 * rotation.d_out * (dim + 2**bits)
    return index, lambda: (float(inner.code_size), 0, tables)


_MAKERS: dict[str, Callable[[Any, Floats, Floats, float, int], tuple[Any, Measure]]] = {
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


def _training_points(points: Floats, seed: int) -> Floats:
    """Sample the training points; at least two, because a code needs a bit."""
    if not len(points):
        raise GeniusError(
            "A baseline cannot learn from no training vectors. Leave `train` out to learn from the items."
        )
    if len(points) > TRAINING_POINTS:
        rows = np.random.default_rng(seed).choice(len(points), TRAINING_POINTS, replace=False)
        return points[np.sort(rows)]
    return np.resize(points, (max(2, len(points)), points.shape[1]))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Set the number of threads of Faiss inside the context."""
    faiss = _faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(count)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(before)


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise GeniusError(
            'The baselines need Faiss. Install it with: pip install "genius-search[baselines]"'
        ) from error
    return faiss


def _checked(vectors: ArrayLike, what: str, dim: int | None = None) -> Floats:
    array = np.ascontiguousarray(vectors, np.float32)
    if array.ndim != 2 or not array.shape[1]:
        raise GeniusError(f"The {what} have shape {array.shape}; a baseline needs (n, d).")
    if dim is not None and array.shape[1] != dim:
        raise GeniusError(f"The {what} have {array.shape[1]} dimensions, the collection has {dim}; use one model.")
    bad = np.flatnonzero(~np.isfinite(array).all(axis=1))
    if len(bad):
        raise GeniusError(f"Row {bad[0]} of the {what} holds values that are not numbers (NaN). Check what it encodes.")
    return array


def _checked_codes(codes: ArrayLike, sizes: list[int]) -> NDArray[np.integer]:
    """Check codes, and store them level by level, as they are read."""
    table = np.asfortranarray(codes)
    if table.ndim != 2 or table.dtype.kind not in "iu" or not sizes or table.shape[1] != len(sizes):
        raise GeniusError(
            f"Codes of shape {table.shape} and type {table.dtype} do not fit {len(sizes)} codebooks: give integers "
            "(n, levels), a codebook for each level."
        )
    if len(table) and ((table.min(axis=0) < 0) | (table.max(axis=0) >= sizes)).any():
        raise GeniusError(f"Some codes lie outside their codebooks of {sizes} codes. Use the codebooks that made them.")
    return table


def _check_count(value: int, name: str) -> None:
    if value < 1:
        raise GeniusError(f"{name} is {value}; it must be at least 1.")
