"""CandidatePool: one pool of candidates, searched by every method on the same vectors."""

from collections.abc import Callable
from functools import cached_property
from typing import Protocol, cast

import numpy as np

from genius.encoders.base import Vectors
from genius.evaluation.baselines import FaissBaseline, NearestCodes, build_baseline
from genius.evaluation.encoded_split import EncodedSplit
from genius.evaluation.runs import BASELINES, PROTOCOLS, id_bytes
from genius.model.decoder_runtime import DecoderRuntime
from genius.model.genius import Genius
from genius.model.quantizer_runtime import QuantizerRuntime
from genius.runtime.threads import thread_count
from genius.search.options import Mode, SearchOptions
from genius.search.searcher import MIN_MODALITY_RATIO, Searcher

EXACT_BLOCK = 1 << 16  # candidates that exact search reads at once
EXACT_QUERIES = 256  # queries that it compares with them at once
EXACT = ("exact", "exact-modality", "fused")
QUERY_BLOCK, EXACT_QUERY_BLOCK = 256, 16_384  # queries given to `Rank` at once; exact search reads all candidates then

Rank = Callable[[Vectors], np.ndarray]
"""Queries -> (q, k) rows of a pool, best first; -1 where there are fewer than k."""


class VectorSearchModel(Protocol):
    """The part of a model that searches ready vectors. Without a quantizer, "codes" and "rq" are not available."""

    @property
    def decoder(self) -> DecoderRuntime:
        """The decoder."""
        ...

    @property
    def quantizer(self) -> QuantizerRuntime | None:
        """The codebooks."""
        ...

    def fuse(self, vectors: Vectors) -> np.ndarray:
        """Fuse image and text vectors: (n, d) float32."""
        ...


class CandidatePool:
    """Candidates in some rows of a split. Indexes and vectors of a method are made when it is first used."""

    def __init__(
        self,
        model: VectorSearchModel,
        split: EncodedSplit,
        rows: np.ndarray,
        beam: int,
        budget: int | None,
        protocol: str = PROTOCOLS[0],
    ) -> None:
        self.model, self.rows, self.beam, self.budget, self.protocol = model, rows, beam, budget, protocol
        self.split = split
        self.codes, self.modality = split.codes[rows], split.data.modality[rows]
        self._baselines: dict[str, FaissBaseline | NearestCodes] = {}

    @cached_property
    def embeddings(self) -> np.ndarray:
        """(n, d) float16 normalised stage-1 vectors, as an index keeps them."""
        return self.split.derived("embeddings", self.rows, Vectors.embedding)

    @cached_property
    def fused(self) -> np.ndarray:
        """(n, d) float16 fused vectors."""
        return self.split.derived("fused", self.rows, self.model.fuse)

    @cached_property
    def _searcher(self) -> Searcher:
        return Searcher(cast(Genius, self.model), self.codes, self.embeddings)

    @cached_property
    def _codes_searcher(self) -> Searcher:
        return Searcher(cast(Genius, self.model), self.codes)

    def bytes_per_item(self, method: str) -> float:
        """What a method stores of an item: vectors as float32, codes packed."""
        if method in BASELINES:
            return float(self._baseline(method).bytes_per_item)
        vector, codes = 4.0 * self.split.stage_vectors.dim, id_bytes(self.model.decoder.config.sizes)
        stored: dict[str, float] = {"generate": codes, "codes": codes, "rerank": codes + vector, "fast": codes + vector}
        return float(stored.get(method, vector))

    def rank(self, method: str, target: int, k: int) -> Rank:
        """Return the function that finds k answers by a method.

        Only "exact-modality" is told the target modality; the other methods must take it from the prompt.
        """
        if method == "exact":
            return lambda queries: nearest(queries.embedding(), self.embeddings, k)
        if method == "exact-modality":
            rows = np.flatnonzero(self.modality == target)
            return lambda queries: nearest(queries.embedding(), self.embeddings, k, rows)
        if method == "fused":
            return lambda queries: nearest(self.model.fuse(queries), self.fused, k)
        if method in BASELINES:
            vectors_of = self.model.fuse if method == "rq" else Vectors.embedding
            baseline, most = self._baseline(method), min(k, len(self.rows))
            return lambda queries: baseline.search(vectors_of(queries), most)
        if method == "codes":
            return lambda queries: self._search(self._codes_searcher, "fast", queries, k)
        # A beam of b finds b answers: asking for more would widen it.
        most = k if method == "fast" else min(k, self.beam)
        return lambda queries: self._search(self._searcher, cast(Mode, method), queries, most)

    def prepare(self, method: str) -> None:
        """Build what a method needs, so that building does not count as searching."""
        self.rank(method, 0, 1)(self.split.candidates(self.rows[:1]))

    def query_block(self, method: str) -> int:
        """Number of queries that a method should be given at once."""
        return EXACT_QUERY_BLOCK if method in EXACT else QUERY_BLOCK

    def _search(self, searcher: Searcher, mode: Mode, queries: Vectors, k: int) -> np.ndarray:
        fused, embedding = self.model.fuse(queries), queries.embedding()
        options = SearchOptions(k=k, mode=mode, beam=self.beam, budget=self.budget)
        ratio = 0.0 if mode != "fast" and self.protocol == "paper" else MIN_MODALITY_RATIO
        return searcher.search(fused, embedding, None, options, ratio).top.rows

    def _baseline(self, method: str) -> FaissBaseline | NearestCodes:
        if method not in self._baselines:
            self._baselines[method] = self._build(method)
        return self._baselines[method]

    def _build(self, method: str) -> FaissBaseline | NearestCodes:
        if method == "rq" and self.model.quantizer is not None:
            return NearestCodes(self.codes, self.model.quantizer.codebooks)
        size = id_bytes(self.model.decoder.config.sizes)
        return build_baseline(method, self.embeddings, size, threads=thread_count())


def nearest(queries: np.ndarray, candidates: np.ndarray, k: int, rows: np.ndarray | None = None) -> np.ndarray:
    """Exact search by inner product: (q, min(k, n)) rows of candidates, ties to the lower row.

    Each candidate is read once, in blocks, so that they may be a memory-mapped file.

    Args:
        queries: (q, d) float32.
        candidates: (n, d) of any floating type.
        k: Number of answers.
        rows: Rows of candidates to search, ascending. Default: all.
    """
    count = len(candidates) if rows is None else len(rows)
    values = np.full((len(queries), min(k, count)), -np.inf, np.float32)
    found = np.full(values.shape, -1, np.int64)
    for start in range(0, count, EXACT_BLOCK):
        block = slice(start, min(start + EXACT_BLOCK, count))
        numbers = np.arange(block.start, block.stop) if rows is None else rows[block]
        vectors = np.asarray(candidates[block if rows is None else numbers], np.float32)
        for first in range(0, len(queries), EXACT_QUERIES):
            some = slice(first, first + EXACT_QUERIES)
            values[some], found[some] = _merged(values[some], found[some], queries[some] @ vectors.T, numbers)
    return found


def _merged(
    values: np.ndarray, rows: np.ndarray, scores: np.ndarray, numbers: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The best of (q, k) values with their rows, and of scores (q, n) of the rows `numbers` (n,)."""
    k, count = values.shape[1], scores.shape[1]
    most = min(k, count)
    best = np.argpartition(scores, count - most, axis=1)[:, count - most :]
    least = np.take_along_axis(scores, best[:, :1], 1)
    for query in np.flatnonzero((scores >= least).sum(axis=1) > most):  # of equal scores, any were taken
        likely = np.flatnonzero(scores[query] >= least[query])
        best[query] = likely[np.argsort(-scores[query, likely], kind="stable")][:most]
    values = np.concatenate([values, np.take_along_axis(scores, best, 1)], axis=1)
    rows = np.concatenate([rows, numbers[best]], axis=1)
    order = np.lexsort((rows, -values))[:, :k]
    return np.take_along_axis(values, order, 1), np.take_along_axis(rows, order, 1)
