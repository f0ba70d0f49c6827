"""Constrained beam search (Sec. 4.4): the most probable IDs of a collection for each query, by decoder and trie.

A beam is a node of the trie, so only existing IDs are generated. Log-probabilities are summed over levels. Equal beams
are ordered by their codes. The result is ranges of the trie's sorted rows.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from genius.errors import GeniusError
from genius.model.decoder_runtime import DecoderRuntime, State
from genius.search.rerank import top
from genius.search.trie import Trie

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

CHUNK = 512  # tokens decoded together: full speed, and they stay in the processor's cache


@dataclass(frozen=True)
class Beams:
    """Ranges of the trie's sorted rows that were found for one query, best first.

    In mode "fast" a range is one item, and several share the codes that were decided.
    """

    lo: Ints  # (b,) start of each range
    hi: Ints  # (b,) end of each range
    logprob: Floats  # (b,) sum over the codes scored so far
    level: int  # number of codes decided

    def __len__(self) -> int:
        return len(self.lo)

    @property
    def items(self) -> int:
        """Number of items in all ranges."""
        return int((self.hi - self.lo).sum())


NO_BEAMS = Beams(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), 0)


def beam_search(
    decoder: DecoderRuntime,
    trie: Trie,
    z: ArrayLike,
    width: int,
    *,
    targets: ArrayLike | None = None,
    tails: bool = True,
    min_modality_ratio: float = 0.0,
) -> list[Beams]:
    """Generate the `width` most probable IDs of the trie for each query. Results do not depend on the batch.

    Args:
        decoder: Scores the codes of each level.
        trie: The IDs of the collection.
        z: (q, dim) fused query vectors.
        width: Number of beams per query.
        targets: (q,) first code of the hits, -1 to leave it to the decoder. A target costs no log-probability.
        tails: Whether to score the remaining codes of beams that have only one ID left. They decide the order of the
            beams, not which IDs are found.
        min_modality_ratio: Modalities less probable than this times the most probable one are not searched, unless
            the others have fewer than `width` items. 0 searches all.

    Raises:
        GeniusError: Trie, decoder, queries and width do not fit together.
    """
    vectors = np.ascontiguousarray(z, dtype=np.float32)
    first_codes = np.full(len(vectors), -1) if targets is None else np.asarray(targets, np.int64)
    check_search(decoder, trie, vectors, width)
    found: list[Beams] = []
    tokens = max(1, decoder.levels // 2) if tails else 1  # per beam; a tail has several
    queries = max(1, CHUNK // (width * tokens))
    for start in range(0, len(vectors), queries):
        chunk = slice(start, start + queries)
        search = _Search(decoder, trie, int(width), first_codes[chunk], tails, min_modality_ratio)
        found += search.run(vectors[chunk])
    return found


def check_search(decoder: DecoderRuntime, trie: Trie, z: NDArray[np.float32], width: int) -> None:
    """Raise GeniusError if trie, decoder, queries (q, dim) and width do not fit together."""
    sizes, dim = decoder.config.sizes, decoder.config.dim
    if trie.levels != len(sizes):
        raise GeniusError(
            f"The trie's IDs have {trie.levels} codes, the decoder's have {len(sizes)}; rebuild the trie."
        )
    if any(code >= size for code, size in zip(trie.highest, sizes, strict=True)):
        raise GeniusError(f"The trie's highest codes are {trie.highest}, but the decoder's levels have {sizes} codes.")
    if z.ndim != 2 or z.shape[1] != dim:
        raise GeniusError(f"Query vectors must have shape (queries, {dim}), but got {tuple(z.shape)}.")
    finite = np.isfinite(z)
    if not finite.all():
        query = int(np.argmin(finite.all(axis=1)))
        raise GeniusError(f"The vector of query {query} has values that are not finite; check what encoded it.")
    if width < 1:
        raise GeniusError(f"The beam width is {width}; it must be at least 1.")


@dataclass
class Front:
    """The current beams of all live queries: (b,) arrays sorted by query, best first within a query."""

    query: Ints  # number of the query among the live ones; each has at least one beam
    row: Ints  # of the decoder's last output that continues the beam
    code: Ints  # decided last
    lo: Ints  # the node [lo, hi)
    hi: Ints
    score: Floats  # summed log-probability

    @classmethod
    def joined(cls, fronts: Iterable["Front"]) -> "Front":
        """The beams of several queries, given in the order of the queries."""
        return cls(*map(np.concatenate, zip(*(vars(front).values() for front in fronts), strict=True)))

    def take(self, which: Mask | Ints) -> "Front":
        """Some of the beams."""
        return Front(*(values[which] for values in vars(self).values()))

    def of(self, queries: Mask) -> "Front":
        """The beams of some queries, renumbered from 0."""
        if queries.all():
            return self
        front = self.take(queries[self.query])
        front.query = (np.cumsum(queries) - 1)[front.query]
        return front

    def ranks(self) -> Ints:
        """Rank of each beam within its query."""
        return np.arange(len(self.query)) - np.searchsorted(self.query, self.query)

    def best(self, count: int) -> "Front":
        """The `count` best beams of each query, in order. Equal scores are ordered by codes."""
        bounds = np.searchsorted(self.query, np.arange(self.query[-1] + 2)).tolist()
        best = [a + top(self.score[a:b], count, ties=self.lo[a:b]) for a, b in itertools.pairwise(bounds)]
        return self.take(np.concatenate(best))

    def padded(self, values: Ints) -> Ints:
        """Values of the beams (b, ...) -> (queries, most beams of a query, ...), padded with zeros."""
        ranks = self.ranks()
        table = np.zeros((self.query[-1] + 1, ranks.max() + 1, *values.shape[1:]), dtype=values.dtype)
        table[self.query, ranks] = values
        return table


class FirstPass(NamedTuple):
    """What one pass of the decoder tells of queries that have something to find."""

    queries: Ints  # (live,) their numbers
    state: State
    log_probs: NDArray[np.float32]  # (live, nodes, codes) of the second level given each node of the first
    fronts: list[Front]  # the kept nodes of the first level, for each query

    @classmethod
    def of(
        cls,
        decoder: DecoderRuntime,
        trie: Trie,
        z: NDArray[np.float32],
        targets: Ints,
        width: int,
        min_modality_ratio: float,
    ) -> "FirstPass | None":
        """Score the nodes of level 1 and, in the same pass, the codes of level 2. None if no query has any node.

        At most `width` nodes are kept. For the arguments see `beam_search`.
        """
        roots, ends, codes = trie.roots
        possible = (targets[:, None] < 0) | (targets[:, None] == codes)  # (q, roots)
        live = np.flatnonzero(possible.any(axis=1))
        if not len(live):
            return None
        count = possible[live].sum(axis=1)
        nodes = np.argsort(~possible[live], axis=1, kind="stable")[:, : count.max()]  # padded to the most of any query
        state, (scored, *following) = decoder.open(z[live], codes[nodes][..., None][..., : trie.levels - 1])
        log_probs = following[0] if following else scored
        min_log_ratio = math.log(min_modality_ratio) if min_modality_ratio else -math.inf
        fronts = []
        for i, query in enumerate(live.tolist()):
            own = nodes[i, : count[i]]
            lo, hi, code = roots[own], ends[own], codes[own]
            given = targets[query] >= 0
            score = np.zeros(len(own)) if given else scored[i, np.arange(len(own)), code].astype(np.float64)
            kept: list[int] = []
            items = 0
            for node in top(score, width, ties=lo).tolist():
                if not kept or items < width or score[node] >= score[kept[0]] + min_log_ratio:
                    kept.append(node)
                    items += hi[node] - lo[node]
            rows = i * log_probs.shape[1] + np.array(kept)
            fronts.append(Front(np.full(len(kept), i), rows, code[kept], lo[kept], hi[kept], score[kept]))
        return cls(live, state, log_probs, fronts)


class _Search:
    """A chunk of queries that descend the trie together. Finished queries leave; `live` numbers the others."""

    def __init__(
        self,
        decoder: DecoderRuntime,
        trie: Trie,
        beam: int,
        targets: Ints,
        tails: bool,
        min_modality_ratio: float,
    ) -> None:
        self.decoder, self.trie, self.beam, self.targets = decoder, trie, beam, targets
        self.tails, self.min_modality_ratio = tails, min_modality_ratio
        self.found: dict[int, Beams] = {}
        self.level = 1  # codes decided by the beams of the front
        self.live: Ints = np.zeros(0, np.int64)
        self.state: State  # set by `open`, as are the next three
        self.front: Front
        self.width: int  # beams of the decoder's last output
        self.log_probs: NDArray[np.float32]

    def run(self, z: NDArray[np.float32]) -> list[Beams]:
        """Search for z: (q, dim)."""
        first = FirstPass.of(self.decoder, self.trie, z, self.targets, self.beam, self.min_modality_ratio)
        if first is not None:
            self.live, self.state = first.queries, first.state
            self.keep_output(first.log_probs)
            self.front = Front.joined(first.fronts)
            settled = [self.trie.have_one_id(front.lo, front.hi).all() for front in first.fronts]
            self.leave(self.done(np.array(settled)))
        while len(self.live):
            self.descend()
        return [self.found.get(query, NO_BEAMS) for query in range(len(z))]

    def descend(self) -> None:
        """Expand all beams by one level and keep the best."""
        front = self.front
        parent, lo, hi = self.trie.children(self.level, front.lo, front.hi)
        code = self.trie.codes[self.level][lo].astype(np.int64)
        score = front.score[parent] + self.log_probs[front.row[parent], code]
        self.front = Front(front.query[parent], front.row[parent], code, lo, hi, score).best(self.beam)
        self.level += 1
        bounds = np.searchsorted(self.front.query, np.arange(len(self.live)))
        settled = np.logical_and.reduceat(self.trie.have_one_id(self.front.lo, self.front.hi), bounds)
        if self.tails and self.level < self.trie.levels:
            self.finish_tails(settled)
        else:
            self.leave(self.done(settled))
        if len(self.live):
            self.keep_output(self.decoder.step(self.state, *self.inputs(self.front, self.front.code)))
            self.front.row = self.front.query * self.width + self.front.ranks()

    def finish_tails(self, queries: Mask) -> None:
        """Score the remaining codes of queries whose beams have one ID each, and let these queries leave."""
        if not queries.any():
            return
        front = self.front.of(queries)
        codes, parents = self.inputs(front, self.trie.ids(front.lo)[:, self.level - 1 :])
        total = self.decoder.tail(self.state_of(queries), codes, parents)
        front.score += total[front.query, front.ranks()]
        self.record(front.best(self.beam), self.live[queries], self.trie.levels)
        self.drop(queries)

    def inputs(self, front: Front, codes: Ints) -> tuple[Ints, Ints]:
        """Decoder inputs: the beams' codes, and the beam of the last output that each of them extends."""
        return front.padded(codes), front.padded(front.row % self.width)

    def keep_output(self, log_probs: NDArray[np.float32]) -> None:
        """Keep the decoder's output (q, w, codes) as (q * w, codes)."""
        self.width = log_probs.shape[1]
        self.log_probs = np.ascontiguousarray(log_probs).reshape(-1, log_probs.shape[-1])

    def done(self, settled: Mask) -> Mask:
        """(live,) whether a query needs no more decoding. settled: (live,) whether each of its beams has one ID."""
        return settled & (not self.tails) | (self.level == self.trie.levels)

    def leave(self, queries: Mask) -> None:
        """Record the beams of these queries and drop them."""
        if queries.any():
            self.record(self.front.of(queries), self.live[queries], self.level)
            self.drop(queries)

    def record(self, front: Front, queries: Ints, level: int) -> None:
        bounds = np.searchsorted(front.query, np.arange(len(queries) + 1))
        for i, query in enumerate(queries.tolist()):
            own = slice(bounds[i], bounds[i + 1])
            self.found[query] = Beams(front.lo[own], front.hi[own], front.score[own], level)

    def drop(self, queries: Mask) -> None:
        if queries.all():
            self.live = self.live[:0]
            return
        self.state = self.state_of(~queries)
        self.front, self.live = self.front.of(~queries), self.live[~queries]

    def state_of(self, queries: Mask) -> State:
        return self.state if queries.all() else self.state.select(np.flatnonzero(queries))
