"""Re-ranking (Sec. 4.4): score candidates against the query by their embeddings, or by their codes alone.

By codes, an item is represented by the sum of its code vectors, so no embedding has to be stored.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
import onnx
import onnxruntime
from numpy.typing import ArrayLike, NDArray

from genius.runtime.onnx_graph import Graph
from genius.runtime.threads import over_blocks

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

BLOCK = 1024  # items decoded at once: they stay in the processor's cache


def by_embedding(query: ArrayLike, embeddings: ArrayLike) -> Floats:
    """Inner products of a query (d,) with embeddings (n, d), in float32 -> (n,). Cosines if all are normalised.

    Embeddings may be float32, or float16 as an index keeps them: 1,000 of 256 dimensions take 0.1 ms.
    """
    vectors = np.asarray(embeddings)
    if vectors.dtype == np.float16:
        vectors = _to_float32().run(None, {"half": vectors})[0]
    # Unlike a matrix product, einsum gives equal rows equal sums wherever they stand, so ties stay ties.
    products: Floats = np.einsum("nd,d->n", np.asarray(vectors, np.float32), np.asarray(query, np.float32))
    return products


@cache
def _to_float32() -> onnxruntime.InferenceSession:
    """Converts float16 vectors (n, d), ten times as fast as numpy does."""
    graph = Graph()
    graph.node("Cast", "half", to=onnx.TensorProto.FLOAT, output="single")
    return graph.model({"half": (np.float16, ["n", "d"])}, {"single": ["n", "d"]}).session(threads=1)


def by_codes(query: ArrayLike, codes: ArrayLike, vectors: "CodeVectors") -> Floats:
    """Cosines of a normalised query (d,) with the sums of code vectors of items (n, levels) -> (n,)."""
    decoded = vectors.decode(codes)
    return code_score(by_embedding(query, decoded), half_squares(decoded))


def code_score(products: Floats, halves: Floats) -> Floats:
    """Score of items by their codes, from products z.q of the query and |q|^2 / 2: the cosine, 0 where q is zero.

    Every exhaustive comparison by codes uses this function.
    """
    norms: Floats = np.sqrt(2 * halves)
    norms[norms == 0] = 1
    return products / norms


class CodeVectors:
    """The code vectors (size, d) of all levels in one table."""

    def __init__(self, codebooks: Sequence[ArrayLike]) -> None:
        books = [np.asarray(codebook, np.float32) for codebook in codebooks]
        self.table: Floats = np.concatenate(books)  # (codes, d)
        self.bounds: Ints = np.cumsum([0, *map(len, books)])  # (levels + 1,) where each level starts in the table
        self.halves: Floats = half_squares(self.table)  # (codes,) |c|^2 / 2

    def decode(self, codes: ArrayLike) -> Floats:
        """Sum the code vectors of each item: (n, levels) -> (n, d). Codes must exist; searches check that.

        Fewer levels give the sums of the first codes.
        """
        first, *others = self._rows(codes).T
        decoded: Floats = self.table.take(first, axis=0, mode="clip")  # quicker than with checks
        for rows in others:
            decoded += self.table.take(rows, axis=0, mode="clip")
        return decoded

    def half_norms(self, codes: ArrayLike) -> Floats:
        """|q|^2 / 2 of the sum q of the code vectors of each item: (n, levels) -> (n,)."""
        table = np.asarray(codes)
        halves = np.empty(len(table), np.float32)

        def compute(block: slice) -> None:
            halves[block] = half_squares(self.decode(table[block]))

        over_blocks(compute, len(table), BLOCK)
        return halves

    def products(self, queries: ArrayLike) -> Floats:
        """Inner products of queries (q, d) with every code vector -> (q, codes): the tables that `scores` looks up."""
        return np.asarray(queries, np.float32) @ self.table.T

    def scores(self, products: Floats, codes: ArrayLike) -> Floats:
        """Sum one query's products (codes,) over the codes of each item (n, levels) -> (n,)."""
        summed: Floats = products[self._rows(codes)].sum(axis=1)
        return summed

    def _rows(self, codes: ArrayLike) -> Ints:
        table = np.asarray(codes)
        return table + self.bounds[: table.shape[1]]


def half_squares(vectors: Floats) -> Floats:
    """|v|^2 / 2 of each vector: (n, d) -> (n,)."""
    halves: Floats = np.einsum("nd,nd->n", vectors, vectors) * np.float32(0.5)
    return halves


def top(scores: ArrayLike, k: int, ties: NDArray[np.integer] | None = None) -> Ints:
    """Indices of the k highest scores (n,), best first. Equal scores are ordered by `ties` (n,), else by index."""
    values = np.asarray(scores)
    k = min(k, len(values))
    if k <= 0:
        return np.zeros(0, np.int64)
    likely = np.flatnonzero(values >= np.partition(values, len(values) - k)[len(values) - k])
    return likely[np.lexsort((likely if ties is None else ties[likely], -values[likely]))][:k]
