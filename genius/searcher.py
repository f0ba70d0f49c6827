"""Searcher: the three ways to search a collection of IDs and embeddings held in memory.

Puts beam search and re-ranking together: `generate`, `rerank` and `fast`. Rows in, rows out: knows nothing of items,
of how queries became vectors, or of disks.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from genius.beam import Beams, beam_search
from genius.errors import GeniusError
from genius.model import Genius
from genius.rerank import by_codes, by_embedding, reconstruction_norms, top
from genius.trie import Trie

DOUBT = 0.1  # a modality less than this times as probable as the likeliest one is not re-ranked
FEW = 8  # a part of fewer than one in so many rows gets a trie of its own; it is cut out of the whole trie otherwise
MODES = ("generate", "rerank", "fast")


class Found(NamedTuple):
    """The answers to q queries, best first. rows: (q, k) int64, -1 where there are fewer; scores: (q, k) float32."""

    rows: np.ndarray
    scores: np.ndarray


class Part(NamedTuple):
    """Some rows of a searcher, to search among: made by `Searcher.part`.

    trie: of their IDs; rows: (n,) the searcher's row for each of the trie's, or None where they are the same.
    """

    trie: Trie
    rows: np.ndarray | None = None

    def under(self, beams: Beams) -> np.ndarray:
        """The searcher's rows under the beams, beam after beam."""
        rows = self.trie.leaves(beams.lo, beams.hi)
        return rows if self.rows is None else self.rows[rows]


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
    """codes: (n, levels) uint16, the items' IDs; embeddings: (n, dim), their normalised vectors, or None.

    Rows that come out are rows of `codes`. Without embeddings, items are re-ranked by their codes. A searcher does not
    change: `extend` and `select` make new ones. Its trie is built when it is first searched.
    """

    def __init__(self, model: Genius, codes: np.ndarray, embeddings: np.ndarray | None = None) -> None:
        if embeddings is not None and len(embeddings) != len(codes):
            raise GeniusError(f"{len(codes)} IDs and {len(embeddings)} embeddings do not belong together.")
        self.model = model
        self.codes = codes
        self.embeddings = embeddings

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def trie(self) -> Trie:
        return Trie(self.codes)

    def extend(self, codes: np.ndarray, embeddings: np.ndarray | None = None) -> "Searcher":
        """With these items behind the others."""
        joined = None
        if self.embeddings is not None and embeddings is not None:
            joined = np.concatenate([self.embeddings, embeddings])
        return Searcher(self.model, np.concatenate([self.codes, codes]), joined)

    def select(self, rows: np.ndarray) -> "Searcher":
        """Of these items only. rows: (n,) bool, or row numbers; they are numbered anew."""
        embeddings = None if self.embeddings is None else self.embeddings[rows]
        return Searcher(self.model, self.codes[rows], embeddings)

    def part(self, rows: np.ndarray) -> Part:
        """These rows as something to search among. rows: row numbers, in any order; answers keep these numbers."""
        keep = np.zeros(len(self), bool)
        keep[rows] = True
        rows = np.flatnonzero(keep)  # in order, each once
        if len(rows) * FEW < len(self):
            return Part(Trie(self.codes[rows]), rows)
        return Part(self.trie.restrict(keep))

    def search(
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
    ) -> Found:
        """The k best rows for each query, whatever the other queries are.

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
        bad = np.flatnonzero(~np.isfinite(fused).all(1) | ~np.isfinite(embedding).all(1))
        if len(bad):
            raise GeniusError(f"The vector of query {bad[0]} holds values that are not numbers (NaN). Check the query.")
        rows = np.full((len(fused), k), -1, np.int64)
        scores = np.full((len(fused), k), -np.inf, np.float32)
        part = Part(self.trie) if among is None else among
        if not len(part.trie):
            return Found(rows, scores)
        beams = beam_search(
            self.model.engine,
            part.trie,
            fused,
            max(beam, k),
            max_items=max(budget, k) if mode == "fast" else None,
            modality=_first_codes(wanted, len(fused)),
            tails=mode == "generate",
            doubt=0.0 if mode == "generate" else DOUBT,
        )
        for query, found in enumerate(beams):
            if mode == "generate":
                best, score = self._in_order(part, found, k)
            else:
                best, score = self._reranked(part, found, fused[query], embedding[query], k, blend)
            rows[query, : len(best)], scores[query, : len(best)] = best, score
        return Found(rows, scores)

    def _in_order(self, part: Part, beams: Beams, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The items of each beam in turn, with the beam's log-probability: items that share an ID share a score."""
        return part.under(beams)[:k], np.repeat(beams.logprob, beams.hi - beams.lo)[:k]

    def _reranked(
        self, part: Part, beams: Beams, fused: np.ndarray, embedding: np.ndarray, k: int, blend: float
    ) -> tuple[np.ndarray, np.ndarray]:
        rows = part.under(beams)
        order = np.argsort(rows)  # so that ties go to the lower row
        rows = rows[order]
        if self.embeddings is not None:
            scores = by_embedding(embedding, self.embeddings[rows])
        else:
            codes, books = self.codes[rows], self._codebooks
            scores = by_codes(fused, codes, books, reconstruction_norms(codes, books))
        if blend:
            scores += blend * np.repeat(beams.logprob, beams.hi - beams.lo)[order].astype(np.float32)
        best = top(scores, k)
        return rows[best], scores[best]

    @cached_property
    def _codebooks(self) -> list[np.ndarray]:
        return [book.cpu().numpy() for book in self.model.quantizer.codebooks]


def _first_codes(wanted: Sequence[int | None] | np.ndarray | None, queries: int) -> np.ndarray | None:
    if wanted is None:
        return None
    if len(wanted) != queries:
        raise GeniusError(f"{queries} queries and {len(wanted)} wanted modalities do not belong together.")
    return np.array([-1 if modality is None else int(modality) for modality in wanted], np.int64)
