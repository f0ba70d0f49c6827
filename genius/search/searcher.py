"""Searcher: the three ways to search a collection of IDs and embeddings held in memory.

Puts beam search and re-ranking together: `generate`, `rerank` and `fast`. Rows in, rows out: knows nothing of items,
of how queries became vectors, or of disks.
"""

import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from genius.errors import GeniusError
from genius.model.genius import Genius
from genius.search.beam import Beams, beam_search
from genius.search.kernels import best_of, under
from genius.search.rerank import CodeVectors, by_codes, by_embedding
from genius.search.results import Branch
from genius.search.trie import Trie, concatenate_ranges

DOUBT = 0.1  # a modality less than this times as probable as the likeliest one is not re-ranked
SPARE = 65_536  # rows that can be added before embeddings are copied, at least
MODES = ("generate", "rerank", "fast")
_NONE = np.zeros(0, np.int64)
NO_BEAMS = Beams(_NONE, _NONE, np.zeros(0), 0, 0)


class TopK(NamedTuple):
    """The answers to q queries, best first.

    rows: (q, k) int64, -1 where there are fewer; scores: (q, k) float32; codes: (q, k, levels) uint16, their IDs.
    """

    rows: np.ndarray
    scores: np.ndarray
    codes: np.ndarray


class SearchTrace(NamedTuple):
    """How one query got to its answers: the trie that was searched, and the beams in it."""

    trie: Trie
    beams: Beams

    @property
    def looked_at(self) -> int:
        return self.beams.items

    def branches(self) -> list[Branch]:
        """The beams as beginnings of IDs, best first."""
        beams = self.beams
        best = np.argsort(-beams.logprob[: beams.own], kind="stable")
        codes = self.trie.ids(beams.lo[best])[:, : beams.level].tolist()
        items = (beams.hi - beams.lo)[best].tolist()
        return [Branch(*found) for found in zip(map(tuple, codes), beams.logprob[best].tolist(), items, strict=True)]


class BatchResult(NamedTuple):
    """What was found, the way to it for each query, and the seconds it took to "generate" and to "rerank"."""

    found: TopK
    ways: list[SearchTrace]
    seconds: dict[str, float]

    def replace(self, queries: Sequence[int], other: "BatchResult") -> None:
        """Take over how another search has answered these queries."""
        for answers, others in zip(self.found, other.found, strict=True):
            answers[queries] = others
        for query, way in zip(queries, other.ways, strict=True):
            self.ways[query] = way
        for stage, seconds in other.seconds.items():
            self.seconds[stage] += seconds


class Part(NamedTuple):
    """Some rows of a searcher, to search among: made by `Searcher.part`."""

    trie: Trie


class AppendBuffer:
    """Rows of an array with room for more behind them. Rows that are there do not change, so views of them may be kept.

    >>> rows = AppendBuffer.of_size(2, 3, np.dtype(np.float16))
    >>> rows.put(np.zeros((5, 3)), behind=2).first(7).shape
    (7, 3)
    """

    def __init__(self, array: np.ndarray, used: int | None = None) -> None:
        self._array = array
        self._used = len(array) if used is None else used

    @classmethod
    def of_size(cls, n: int, width: int, dtype: np.dtype) -> "AppendBuffer":
        """n rows to be filled; the room behind them takes no memory until it is used."""
        return cls(np.empty((n + n // 4 + SPARE, width), dtype), n)

    def first(self, n: int) -> np.ndarray:
        return self._array[:n]

    def put(self, rows: np.ndarray, behind: int) -> "AppendBuffer":
        """With these rows behind the first so many: in the room that is left, or in a copy with more of it."""
        end = behind + len(rows)
        grown = self
        if behind != self._used or end > len(self._array):
            grown = AppendBuffer.of_size(end, self._array.shape[1], self._array.dtype)
            grown._array[:behind] = self._array[:behind]
        grown._array[behind:end] = rows
        grown._used = end
        return grown


def check_search(k: int, mode: str, beam: int, budget: int, blend: float = 0.0) -> None:
    """Refuses what no search can be done with."""
    if not 0 <= blend < np.inf:
        raise GeniusError(f"blend is {blend}; it must be a number that is not negative. Most searches need none: 0.")
    for name, value in (("k", k), ("beam", beam), ("budget", budget)):
        if value < 1:
            raise GeniusError(f"{name} is {value}; it must be at least 1.")
    if mode not in MODES:
        raise GeniusError(f"There is no search mode {mode!r}. Choose one of {', '.join(MODES)}.")


class Searcher:
    """Items to search: codes: (n, levels), their IDs; embeddings: (n, dim), their normalised vectors, or None.

    Rows are numbered from 0 and keep their numbers: those that `insert` adds are numbered on, those that `remove` takes
    away are not used again. A searcher does not change: both make new ones. Without embeddings, items are re-ranked by
    their codes.
    """

    def __init__(self, model: Genius, codes: np.ndarray, embeddings: np.ndarray | AppendBuffer | None = None) -> None:
        if isinstance(embeddings, np.ndarray):
            if len(embeddings) != len(codes):
                raise GeniusError(f"{len(codes)} IDs and {len(embeddings)} embeddings do not belong together.")
            embeddings = AppendBuffer(embeddings)
        self.model = model
        self.trie = Trie(codes)
        self.rows = len(codes)  # that there ever were
        self._embeddings = embeddings

    def __len__(self) -> int:
        return len(self.trie)

    @property
    def embeddings(self) -> np.ndarray | None:
        """(rows, dim): of all rows that there ever were."""
        return None if self._embeddings is None else self._embeddings.first(self.rows)

    def insert(self, codes: np.ndarray, embeddings: np.ndarray | None = None) -> "Searcher":
        """With more items, numbered on from `rows`."""
        trie = self.trie.insert(codes, np.arange(self.rows, self.rows + len(codes)))
        grown = self._embeddings
        if grown is not None:
            if embeddings is None or len(embeddings) != len(codes):
                raise GeniusError(f"{len(codes)} IDs to be added need as many embeddings.")
            grown = grown.put(embeddings, behind=self.rows)
        return self._with(trie, grown, self.rows + len(codes))

    def remove(self, rows: np.ndarray) -> "Searcher":
        """Without the items that have these numbers; their embeddings stay in memory."""
        return self._with(self.trie.remove(rows), self._embeddings, self.rows)

    def _with(self, trie: Trie, embeddings: AppendBuffer | None, rows: int) -> "Searcher":
        other = Searcher.__new__(Searcher)
        other.model, other.trie, other.rows, other._embeddings = self.model, trie, rows, embeddings
        if "_code_vectors" in vars(self):
            other._code_vectors = self._code_vectors
        return other

    def part(self, rows: np.ndarray) -> Part:
        """These rows as something to search among. rows: row numbers, in any order; answers keep these numbers."""
        keep = np.zeros(self.rows, bool)
        keep[rows] = True
        return Part(self.trie.restrict(keep))

    def search(self, *vectors: Any, **how: Any) -> TopK:
        """As `trace`, without the way to it."""
        return self.trace(*vectors, **how).found

    def trace(
        self,
        fused: np.ndarray,
        embedding: np.ndarray,
        wanted: Sequence[int | None] | np.ndarray | None = None,
        k: int = 10,
        mode: str = "fast",
        beam: int = 50,
        budget: int = 1000,
        among: Part | None = None,
        blend: float = 0.0,
    ) -> BatchResult:
        """The k best rows for each query, whatever the other queries are, and how they were found.

        fused, embedding: (q, dim), the queries as `Genius.fuse` and `Vectors.embedding` give them.
        wanted: for each query the modality its answers must have; None, or -1 in an array, leaves it to the decoder.
        mode: "generate" ranks IDs by log-probability (the paper's GENIUS); "rerank" ranks the items under the beams'
          IDs by similarity (GENIUS^R); "fast" does so as soon as no more than `budget` items lie under the beams.
        beam, budget: never less than k, so that k items are found where there are so many.
        among: the rows that may come out, as `part` gives them; the answers are those of a collection of these alone.
        blend: so many times the log-probability of an item's beam is added to its similarity, in "rerank" and "fast".
        """
        check_search(k, mode, beam, budget, blend)
        fused, embedding = np.asarray(fused, np.float32), np.asarray(embedding, np.float32)
        if not (np.isfinite(fused).all() and np.isfinite(embedding).all()):
            bad = np.flatnonzero(~np.isfinite(fused).all(1) | ~np.isfinite(embedding).all(1))
            raise GeniusError(f"The vector of query {bad[0]} holds values that are not numbers (NaN). Check the query.")
        trie = self.trie if among is None else among.trie
        begun = time.perf_counter()
        beams = [NO_BEAMS] * len(fused)
        if len(trie):
            beams = beam_search(
                self.model.decoder_runtime,
                trie,
                fused,
                max(beam, k),
                max_items=max(budget, k) if mode == "fast" else None,
                modality=_first_codes(wanted, len(fused)),
                tails=mode == "generate",
                doubt=0.0 if mode == "generate" else DOUBT,
            )
        generated = time.perf_counter()
        rows = np.full((len(fused), k), -1, np.int64)
        scores = np.full((len(fused), k), -np.inf, np.float32)
        codes = np.zeros((len(fused), k, trie.levels), np.uint16)
        for query, found in enumerate(beams):
            if not len(found):
                continue
            if mode == "generate":
                at, score = self._in_order(found, k)
            else:
                at, score = self._reranked(trie, found, fused[query], embedding[query], k, blend)
            rows[query, : len(at)], scores[query, : len(at)] = trie.order[at], score
            codes[query, : len(at)] = trie.ids(at)
        seconds = {"generate": generated - begun, "rerank": time.perf_counter() - generated}
        return BatchResult(TopK(rows, scores, codes), [SearchTrace(trie, found) for found in beams], seconds)

    # What is under the beams of one query: positions in the trie, best first, and their scores

    def _in_order(self, beams: Beams, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The items of each beam in turn, with the beam's log-probability: items that share an ID share a score."""
        of, at = concatenate_ranges(beams.lo, beams.hi)
        return at[:k], beams.logprob[of[:k]]

    def _reranked(
        self, trie: Trie, beams: Beams, fused: np.ndarray, embedding: np.ndarray, k: int, blend: float
    ) -> tuple[np.ndarray, np.ndarray]:
        of, at, rows = under(trie.order, beams.lo, beams.hi)
        if self.embeddings is not None:
            scores = by_embedding(embedding, self.embeddings, rows)
        else:
            scores = by_codes(fused, trie.ids(at), self._code_vectors)
        if blend:
            scores += blend * beams.logprob[of].astype(np.float32)
        best = best_of(scores.astype(np.float64), rows, k)  # ties go to the lower row
        return at[best], scores[best]

    @cached_property
    def _code_vectors(self) -> CodeVectors:
        return CodeVectors([book.cpu().numpy() for book in self.model.quantizer.codebooks])


def _first_codes(wanted: Sequence[int | None] | np.ndarray | None, queries: int) -> np.ndarray | None:
    if wanted is None:
        return None
    if len(wanted) != queries:
        raise GeniusError(f"{queries} queries and {len(wanted)} wanted modalities do not belong together.")
    return np.array([-1 if modality is None else int(modality) for modality in wanted], np.int64)
