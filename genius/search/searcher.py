"""Searcher: search the codes and embeddings of a collection, held in memory, in one of three modes.

Takes query vectors and returns rows. Beam search generates IDs, or mode "fast" finds the items nearest by their codes;
re-ranking orders the items.
"""

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import overload

import numpy as np

from genius.errors import GeniusError
from genius.model.genius import Genius
from genius.search.beam import NO_BEAMS, Beams, beam_search
from genius.search.nearest import nearest_search
from genius.search.options import SearchOptions, automatic_budget
from genius.search.rerank import CodeVectors, by_codes, by_embedding, top
from genius.search.results import BatchResult, Branch, SearchTrace, TopK
from genius.search.trie import Trie, concatenate_ranges, trie_of_sorted

MIN_MODALITY_RATIO = 0.5
"""The default of `Searcher.search`."""

RANK_BLOCK = 2_048  # embeddings that are read at once
GROWING = ("embeddings",)
"""Names of the `arrays` of a searcher that have a row for each row."""
SPARE = 65_536  # minimum number of free rows of an AppendBuffer


class AppendBuffer:
    """A 2-D array with free rows at its end. Rows never change once written, so views of them stay valid."""

    def __init__(self, array: np.ndarray, used: int | None = None) -> None:
        self._array = array
        self._used = len(array) if used is None else used

    @classmethod
    def of_size(cls, n: int, width: int, dtype: np.dtype) -> "AppendBuffer":
        """Allocate n rows for the caller to fill. Free rows take no memory until they are written."""
        return cls(np.empty((cls.capacity(n), width), dtype), n)

    @staticmethod
    def capacity(n: int) -> int:
        """Rows that are allocated for n rows."""
        return n + n // 4 + SPARE

    def first(self, n: int) -> np.ndarray:
        """Return a view of the first n rows."""
        return self._array[:n]

    def put(self, rows: np.ndarray, behind: int) -> "AppendBuffer":
        """Write rows behind the first `behind` rows: in the free space if it is still unused, else in a copy."""
        end = behind + len(rows)
        grown = self
        if behind != self._used or end > len(self._array):
            grown = AppendBuffer.of_size(end, self._array.shape[1], self._array.dtype)
            grown._array[:behind] = self._array[:behind]
        grown._array[behind:end] = rows
        grown._used = end
        return grown


class Searcher:
    """A collection to search.

    Searchers are immutable: `insert`, `remove` and `restrict` return new ones that share memory with the old one. Rows
    are numbered from 0 and keep their numbers; numbers of removed rows are not used again.

    Args:
        model: The model that made the codes.
        codes: (n, levels) the items' IDs.
        embeddings: (n, dim) the items' normalised vectors. Without them, items are re-ranked by their codes.

    Raises:
        GeniusError: The numbers of codes and embeddings differ.
    """

    def __init__(self, model: Genius, codes: np.ndarray, embeddings: np.ndarray | AppendBuffer | None = None) -> None:
        if isinstance(embeddings, np.ndarray):
            if len(embeddings) != len(codes):
                raise GeniusError(f"{len(codes)} IDs and {len(embeddings)} embeddings do not belong together.")
            embeddings = AppendBuffer(embeddings)
        self.model = model
        self.trie = Trie(codes)
        self.rows = len(codes)  # including removed rows
        self._embeddings = embeddings
        self._code_vectors = CodeVectors(model.decoder.codebooks)
        self._halves = self._code_vectors.half_norms(codes)[self.trie.order]  # in the order of the trie

    @classmethod
    def of_arrays(cls, model: Genius, arrays: Mapping[str, np.ndarray], rows: int) -> "Searcher":
        """Make a searcher of the arrays of another one, see `arrays`. Those of `GROWING` may have free rows."""
        trie = trie_of_sorted(arrays["codes"], arrays["order"], arrays["first_diff_level"])
        embeddings = AppendBuffer(arrays["embeddings"], rows) if "embeddings" in arrays else None
        found = cls.__new__(cls)
        found.model, found._code_vectors = model, CodeVectors(model.decoder.codebooks)
        return found._with(trie, embeddings, arrays["halves"], rows)

    def arrays(self) -> dict[str, np.ndarray]:
        """All that is in memory besides the model, for `of_arrays`."""
        arrays = {
            "codes": self.trie.codes,
            "order": self.trie.order,
            "first_diff_level": self.trie.first_diff_level,
            "halves": self._halves,
        }
        return arrays if self.embeddings is None else arrays | {"embeddings": self.embeddings}

    def __len__(self) -> int:
        return len(self.trie)

    @property
    def embeddings(self) -> np.ndarray | None:
        """(rows, dim) embeddings, including those of removed rows."""
        return None if self._embeddings is None else self._embeddings.first(self.rows)

    def insert(self, codes: np.ndarray, embeddings: np.ndarray | None = None) -> "Searcher":
        """Return a searcher with more items, whose row numbers start at `rows`."""
        trie = self.trie.insert(codes, np.arange(self.rows, self.rows + len(codes)))
        grown = self._embeddings
        if grown is not None:
            if embeddings is None or len(embeddings) != len(codes):
                raise GeniusError(f"{len(codes)} IDs to be added need as many embeddings.")
            grown = grown.put(embeddings, behind=self.rows)
        new = trie.order >= self.rows
        halves = np.empty(len(trie), np.float32)
        halves[~new] = self._halves
        halves[new] = self._code_vectors.half_norms(codes)[trie.order[new] - self.rows]
        return self._with(trie, grown, halves, self.rows + len(codes))

    def remove(self, rows: np.ndarray) -> "Searcher":
        """Return a searcher without these rows. Their embeddings stay in memory."""
        trie = self.trie.remove(rows)
        keep = np.ones(self.rows, bool)
        keep[rows] = False
        return self._with(trie, self._embeddings, self._halves[keep[self.trie.order]], self.rows)

    def restrict(self, rows: np.ndarray) -> "Searcher":
        """Return a searcher of these rows only, given in any order. Row numbers stay the same."""
        keep = np.zeros(self.rows, bool)
        keep[rows] = True
        trie = self.trie.restrict(keep)
        return self._with(trie, self._embeddings, self._halves[keep[self.trie.order]], self.rows)

    def _with(self, trie: Trie, embeddings: AppendBuffer | None, halves: np.ndarray, rows: int) -> "Searcher":
        other = Searcher.__new__(Searcher)
        other.model, other.trie, other.rows, other._embeddings = self.model, trie, rows, embeddings
        other._code_vectors, other._halves = self._code_vectors, halves
        return other

    def search(
        self,
        fused: np.ndarray,
        embedding: np.ndarray,
        targets: Sequence[int | None] | np.ndarray | None = None,
        options: SearchOptions | None = None,
        min_modality_ratio: float = MIN_MODALITY_RATIO,
    ) -> BatchResult:
        """Find the k best rows of each query. Results do not depend on the rest of the batch.

        Args:
            fused: (q, dim) fused query vectors, from `Genius.fuse`.
            embedding: (q, dim) normalised query vectors, from `Vectors.embedding`.
            targets: Modality of the hits of each query. None (-1 in an array) leaves it to the decoder.
            options: How to search. The filters `where` and `ids` are not read here: see `restrict`.
            min_modality_ratio: Modalities less probable than this times the most probable one are not searched. 0
                searches all that the beams reach.

        Raises:
            GeniusError: A query vector is not finite, the number of targets is not q, or the model cannot generate.
        """
        options = options or SearchOptions()
        if self.trie.levels == 1 and options.mode == "generate":
            raise GeniusError(
                "The model has no codebooks, so that there are no IDs to generate. Search in mode fast, which compares "
                "the query with every item, or train codebooks and a decoder with genius train."
            )
        fused, embedding = np.asarray(fused, np.float32), np.asarray(embedding, np.float32)
        _check_finite(fused, embedding)
        started = time.perf_counter()
        beams = self._generate(fused, targets, options, min_modality_ratio)
        generated = time.perf_counter()
        top_k = self._rank(beams, fused, embedding, options)
        seconds = {"generate": generated - started, "rerank": time.perf_counter() - generated}
        return BatchResult(top_k, [SearchTrace(self._branches(found), found.items) for found in beams], seconds)

    def _generate(
        self,
        fused: np.ndarray,
        targets: Sequence[int | None] | np.ndarray | None,
        options: SearchOptions,
        min_modality_ratio: float,
    ) -> list[Beams]:
        """Find the candidates of each query: by beam search or, in mode "fast", by their codes."""
        targets = _target_codes(targets, len(fused))
        if not len(self):
            return [NO_BEAMS] * len(fused)
        if options.mode == "fast":
            budget = automatic_budget(len(self)) if options.budget is None else options.budget
            return nearest_search(
                self.model.decoder,
                self.trie,
                self._code_vectors,
                self._halves,
                fused,
                max(budget, options.k),
                targets=targets,
                min_modality_ratio=min_modality_ratio,
            )
        return beam_search(
            self.model.decoder,
            self.trie,
            fused,
            max(options.beam, options.k),
            targets=targets,
            tails=options.mode == "generate",
            min_modality_ratio=min_modality_ratio,
        )

    def _rank(self, beams: list[Beams], fused: np.ndarray, embedding: np.ndarray, options: SearchOptions) -> TopK:
        """Rank the items under the beams of each query."""
        queries, k = len(beams), options.k
        rows = np.full((queries, k), -1, np.int64)
        scores = np.full((queries, k), -np.inf, np.float32)
        codes = np.zeros((queries, k, self.trie.levels), np.uint16)
        for query, found in enumerate(beams):
            at = concatenate_ranges(found.lo, found.hi)
            if options.mode == "generate":  # items that share an ID share its log-probability
                logprob = np.repeat(found.logprob, found.hi - found.lo)
                at, score = at[:k], logprob[:k].astype(np.float32)
            else:
                candidates = self.trie.order[at]
                if self.embeddings is not None:
                    score = self._similarity(embedding[query], candidates)
                else:
                    score = by_codes(fused[query], self.trie.ids(at), self._code_vectors)
                best = top(score, k, ties=candidates)
                at, score = at[best], score[best]
            rows[query, : len(at)], scores[query, : len(at)] = self.trie.order[at], score
            codes[query, : len(at)] = self.trie.ids(at)
        return TopK(rows, scores, codes)

    def _similarity(self, query: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        """Inner products of a query (dim,) with the embeddings of candidates (n,), of which there may be millions."""
        assert self.embeddings is not None
        blocks = np.array_split(candidates, max(1, -(-len(candidates) // RANK_BLOCK)))
        return np.concatenate([by_embedding(query, self.embeddings.take(block, axis=0)) for block in blocks])

    def _branches(self, beams: Beams) -> Sequence[Branch]:
        return _Branches(self.trie.codes[: beams.level, beams.lo], beams)


class _Branches(Sequence[Branch]):
    """The prefixes of IDs that were decided, best first. Made when they are read: mode "fast" has hundreds of them.

    Args:
        codes: (level, b) the codes of the beams.
        beams: The beams.
    """

    def __init__(self, codes: np.ndarray, beams: Beams) -> None:
        self._codes, self._beams = codes, beams

    @cached_property
    def _made(self) -> list[Branch]:
        codes, beams = self._codes, self._beams
        # Ranges of one prefix stand side by side.
        starts = np.flatnonzero(np.append(len(beams) > 0, (codes[:, 1:] != codes[:, :-1]).any(axis=0)))
        items = np.add.reduceat(beams.hi - beams.lo, starts) if len(starts) else starts
        best = np.argsort(-beams.logprob[starts], kind="stable")
        prefixes, logprob = codes[:, starts[best]].T.tolist(), beams.logprob[starts[best]].tolist()
        return [Branch(*one) for one in zip(map(tuple, prefixes), logprob, items[best].tolist(), strict=True)]

    def __len__(self) -> int:
        return len(self._made)

    @overload
    def __getitem__(self, at: int) -> Branch: ...

    @overload
    def __getitem__(self, at: slice) -> list[Branch]: ...

    def __getitem__(self, at: int | slice) -> Branch | list[Branch]:
        return self._made[at]


def _check_finite(fused: np.ndarray, embedding: np.ndarray) -> None:
    bad = np.flatnonzero(~np.isfinite(fused).all(1) | ~np.isfinite(embedding).all(1))
    if len(bad):
        raise GeniusError(f"The vector of query {bad[0]} holds values that are not numbers (NaN). Check the query.")


def _target_codes(targets: Sequence[int | None] | np.ndarray | None, queries: int) -> np.ndarray | None:
    """(q,) the first codes of the targets, -1 where there is none."""
    if targets is None:
        return None
    if len(targets) != queries:
        raise GeniusError(f"{queries} queries and {len(targets)} targets do not belong together.")
    return np.array([-1 if target is None else int(target) for target in targets], np.int64)
