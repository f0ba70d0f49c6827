"""Re-ranking, Sec. 4.4: candidates scored against the query by their stored embeddings, or by their codes alone.

By codes, an item stands for the sum of its code vectors: the query's product with every code is looked up in small
tables, and no embedding is needed. Knows nothing of how the candidates were found or where vectors are stored.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from genius.search.kernels import half_products, lengths_of_sums, sums

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]


def by_embedding(query: ArrayLike, vectors: ArrayLike, rows: NDArray[np.integer] | None = None) -> Floats:
    """query: (d,), vectors: (n, d) -> (n,) inner products: cosines, if all of them are L2-normalised.

    rows: (m,) which of the vectors to score, (m,) inner products; all, if not given.
    """
    table, wanted = np.asarray(vectors), np.asarray(query, np.float32)
    if table.dtype == np.float16:
        return half_products(table.view(np.int16), np.arange(len(table)) if rows is None else rows, wanted)
    # Unlike a matrix product, einsum rounds equal rows equally wherever they stand, so ties stay ties.
    return np.einsum("nd,d->n", np.asarray(table if rows is None else table[rows], np.float32), wanted)


class CodeVectors:
    """The code vectors of all levels: table, (codes, d), those of a level from bounds[level] on."""

    def __init__(self, codebooks: Sequence[ArrayLike]) -> None:
        """codebooks: levels arrays (size, d)."""
        books = [np.asarray(codebook, np.float32) for codebook in codebooks]
        self.table: Floats = np.concatenate(books)
        self.bounds: Ints = np.cumsum([0, *map(len, books)])

    def products(self, queries: ArrayLike) -> Floats:
        """queries: (q, d) -> (q, codes) inner products with every code: tables to look up."""
        return np.asarray(queries, np.float32) @ self.table.T

    def norms(self, codes: ArrayLike) -> Floats:
        """The length of the sum of each item's code vectors. codes: (n, levels) -> (n,); 1 where the sum is zero."""
        norms: Floats = lengths_of_sums(self.table, self.bounds, np.ascontiguousarray(codes))
        norms[norms == 0] = 1
        return norms

    def scores(self, products: Floats, codes: ArrayLike) -> Floats:
        """One query's products (codes,), summed over each item's codes (n, levels) -> (n,)."""
        summed: Floats = sums(products, self.bounds, np.ascontiguousarray(codes))
        return summed


def by_codes(query: ArrayLike, codes: ArrayLike, vectors: CodeVectors) -> Floats:
    """The cosine of the query (of length one) and the sum of each item's code vectors. codes: (n, levels) -> (n,)."""
    return vectors.scores(vectors.products(np.asarray(query)[None])[0], codes) / vectors.norms(codes)


def top(scores: ArrayLike, k: int) -> Ints:
    """scores: (n,) -> the indices of the k best, best first; the lower index where scores are equal."""
    values = np.asarray(scores)
    k = min(k, len(values))
    if k <= 0:
        return np.zeros(0, np.int64)
    likely = np.flatnonzero(values >= np.partition(values, len(values) - k)[len(values) - k])
    return likely[np.argsort(-values[likely], kind="stable")][:k]
