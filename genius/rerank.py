"""Re-ranking, Sec. 4.4: candidates scored against the query by their stored embeddings, or by their codes alone.

By codes, an item stands for the sum of its code vectors: the query's product with every code is looked up in small
tables, and no embedding is needed. Knows nothing of how the candidates were found or where vectors are stored.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from genius.walk import half_products

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

ROWS_AT_ONCE = 16384  # vectors rebuilt together when their lengths are computed


def by_embedding(query: ArrayLike, vectors: ArrayLike, rows: Ints | None = None) -> Floats:
    """query: (d,), vectors: (n, d) -> (n,) inner products: cosines, if all of them are L2-normalised.

    rows: (m,) which of the vectors to score, (m,) inner products; all, if not given.
    """
    table, wanted = np.asarray(vectors), np.asarray(query, np.float32)
    if table.dtype == np.float16:
        return half_products(table.view(np.uint16), np.arange(len(table)) if rows is None else rows, wanted)
    # Unlike a matrix product, einsum rounds equal rows equally wherever they stand, so ties stay ties.
    return np.einsum("nd,d->n", np.asarray(table if rows is None else table[rows], np.float32), wanted)


def by_codes(
    query: ArrayLike, codes: ArrayLike, codebooks: Sequence[ArrayLike], norms: ArrayLike | None = None
) -> Floats:
    """The query against the sum of each item's code vectors.

    query: (d,), codes: (n, levels), codebooks: levels arrays (size, d) -> (n,) inner products; with the items'
    `reconstruction_norms` (n,), cosines (of a query of length one).
    """
    tables = [table[0] for table in look_up_tables(np.asarray(query)[None], codebooks)]
    return by_tables(tables, codes, norms)


def look_up_tables(queries: ArrayLike, codebooks: Sequence[ArrayLike]) -> list[Floats]:
    """queries: (q, d), codebooks: levels arrays (size, d) -> levels arrays (q, size) of inner products."""
    vectors = np.asarray(queries, np.float32)
    return [vectors @ np.asarray(codebook, np.float32).T for codebook in codebooks]


def by_tables(tables: Sequence[Floats], codes: ArrayLike, norms: ArrayLike | None = None) -> Floats:
    """`by_codes` for one query's row of each look-up table. tables: levels arrays (size,), codes: (n, levels)."""
    columns = np.asarray(codes).T
    scores = np.zeros(columns.shape[1], np.float32)
    for table, column in zip(tables, columns, strict=True):
        scores += table[column]
    if norms is not None:
        scores /= np.asarray(norms, np.float32)
    return scores


def reconstruction_norms(codes: ArrayLike, codebooks: Sequence[ArrayLike]) -> Floats:
    """The length of the sum of each item's code vectors. codes: (n, levels) -> (n,); 1 where the sum is zero."""
    table, books = np.asarray(codes), [np.asarray(codebook, np.float32) for codebook in codebooks]
    norms = np.ones(len(table), np.float32)
    for start in range(0, len(table), ROWS_AT_ONCE):
        columns = table[start : start + ROWS_AT_ONCE].T
        total = sum(book[column] for book, column in zip(books, columns, strict=True))
        norms[start : start + ROWS_AT_ONCE] = np.linalg.norm(total, axis=1)
    norms[norms == 0] = 1
    return norms


def top(scores: ArrayLike, k: int) -> Ints:
    """scores: (n,) -> the indices of the k best, best first; the lower index where scores are equal."""
    values = np.asarray(scores)
    k = min(k, len(values))
    if k <= 0:
        return np.zeros(0, np.int64)
    likely = np.flatnonzero(values >= np.partition(values, len(values) - k)[len(values) - k])
    return likely[np.argsort(-values[likely], kind="stable")][:k]
