"""Constrained beam search (Sec. 4.4): the most probable IDs of a collection for each query, by decoder and trie.

A beam is a node of the trie, so only existing IDs are generated. Log-probabilities are summed over levels. Equal beams
are ordered by their codes. The result is ranges of the trie's sorted rows.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from genius.errors import GeniusError
from genius.model.decoder_runtime import DecoderRuntime, State
from genius.search.nearest import nearest
from genius.search.rerank import top
from genius.search.trie import Trie

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

BEAM_SHARE = 4  # with a linear head, beams stop at max_items / BEAM_SHARE items; the nearest by codes fill the rest
CHUNK = 512  # tokens decoded together: full speed, and they stay in the processor's cache


@dataclass(frozen=True)
class Beams:
    """The beams of one query, best first, then the nodes that fill `max_items`, best first."""

    lo: Ints  # (b,) start of each range of the trie's sorted rows
    hi: Ints  # (b,) end of each range
    logprob: Floats  # (b,) sum over the codes scored so far; items that are only nearest by codes have the lowest one
    level: int  # number of codes decided
    own: int  # how many of the b ranges are beams

    def __len__(self) -> int:
        return len(self.lo)

    @property
    def items(self) -> int:
        """Number of items in all ranges."""
        return int((self.hi - self.lo).sum())


def beam_search(
    decoder: DecoderRuntime,
    trie: Trie,
    z: ArrayLike,
    width: int,
    *,
    max_items: int | None = None,
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
        max_items: Stop as soon as at most this many items lie under the beams, which may then be prefixes of IDs. The
            rest of this number is filled with other items of the best beam's modality: with a linear head, the nearest
            by codes, else the next best nodes of the level.
        targets: (q,) first code of the hits, -1 to leave it to the decoder. A target costs no log-probability.
        tails: Whether to score the remaining codes of beams that have only one ID left. They decide the order of the
            beams, not which IDs are found. Never done with `max_items`.
        min_modality_ratio: Modalities less probable than this times the most probable one are not searched, unless
            the others have fewer than `width` items. 0 searches all.

    Raises:
        GeniusError: Trie, decoder, queries and width do not fit together.
    """
    vectors = np.ascontiguousarray(z, dtype=np.float32)
    first_codes = np.full(len(vectors), -1) if targets is None else np.asarray(targets, np.int64)
    _check(decoder, trie, vectors, width)
    found: list[Beams] = []
    tokens = max(1, decoder.decoder_levels // 2) if tails and max_items is None else 1  # per beam; a tail has several
    queries = max(1, CHUNK // (width * tokens))
    for start in range(0, len(vectors), queries):
        chunk = slice(start, start + queries)
        search = _Search(decoder, trie, int(width), first_codes[chunk], max_items, tails, min_modality_ratio)
        found += search.run(vectors[chunk])
    return found


def _check(decoder: DecoderRuntime, trie: Trie, z: NDArray[np.float32], width: int) -> None:
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
class _Front:
    """The current beams of all live queries: (b,) arrays sorted by query, best first within a query."""

    query: Ints  # number of the query among the live ones; each has at least one beam
    row: Ints  # of the decoder's last output that continues the beam
    code: Ints  # decided last
    lo: Ints  # the node [lo, hi)
    hi: Ints
    score: Floats  # summed log-probability

    @classmethod
    def joined(cls, fronts: Iterable["_Front"]) -> "_Front":
        """The beams of several queries, given in the order of the queries."""
        return cls(*map(np.concatenate, zip(*(vars(front).values() for front in fronts), strict=True)))

    def take(self, which: Mask | Ints) -> "_Front":
        return _Front(*(values[which] for values in vars(self).values()))

    def of(self, queries: Mask) -> "_Front":
        """The beams of some queries, renumbered from 0."""
        if queries.all():
            return self
        front = self.take(queries[self.query])
        front.query = (np.cumsum(queries) - 1)[front.query]
        return front

    def ranks(self) -> Ints:
        """Rank of each beam within its query."""
        return np.arange(len(self.query)) - np.searchsorted(self.query, self.query)

    def best(self, count: int) -> "_Front":
        """The `count` best beams of each query, in order. Equal scores are ordered by codes."""
        ordered = self.take(np.lexsort((self.lo, -self.score, self.query)))
        return ordered.take(ordered.ranks() < count)

    def padded(self, values: Ints) -> Ints:
        """Values of the beams (b, ...) -> (queries, most beams of a query, ...), padded with zeros."""
        ranks = self.ranks()
        table = np.zeros((self.query[-1] + 1, ranks.max() + 1, *values.shape[1:]), dtype=values.dtype)
        table[self.query, ranks] = values
        return table


class _Children(NamedTuple):
    """The best descendants of one query's beams, best first."""

    parent: Ints  # (b,) index of the beam in the front
    lo: Ints  # (b,) the node [lo, hi)
    hi: Ints
    score: Floats
    level: int  # number of codes decided
    few: bool  # whether the search of the query may stop, because few items are left
    settled: bool  # whether each beam has one ID


class _Search:
    """A chunk of queries that descend the trie together. Finished queries leave; `live` numbers the others."""

    def __init__(
        self,
        decoder: DecoderRuntime,
        trie: Trie,
        beam: int,
        targets: Ints,
        max_items: int | None,
        tails: bool,
        min_modality_ratio: float,
    ) -> None:
        self.decoder, self.trie, self.beam, self.targets = decoder, trie, beam, targets
        self.min_log_ratio = math.log(min_modality_ratio) if min_modality_ratio else -math.inf
        self.max_items = 0 if max_items is None else max_items
        # A query stops at this number of items.
        self.enough = self.max_items // BEAM_SHARE if decoder.has_linear_levels else self.max_items
        self.tails = tails and max_items is None
        self.found: dict[int, Beams] = {}
        self.level = 1  # codes decided by the beams of the front
        self.live: Ints  # set by `run`
        self.state: State  # set by `open`, as are the next three
        self.front: _Front
        self.width: int  # beams of the decoder's last output
        self.log_probs: NDArray[np.float32]

    def run(self, z: NDArray[np.float32]) -> list[Beams]:
        """Search for z: (q, dim)."""
        roots, ends, codes = self.trie.roots
        possible = (self.targets[:, None] < 0) | (self.targets[:, None] == codes)  # (q, roots)
        few = possible @ (ends - roots) <= self.max_items
        for query in np.flatnonzero(few).tolist():
            lo, hi = roots[possible[query]], ends[possible[query]]
            self.found[query] = Beams(lo, hi, np.zeros(len(lo)), 1, len(lo))
        self.live = np.flatnonzero(~few)
        if len(self.live):
            self.open(z[self.live], possible[self.live])
        while len(self.live):
            self.descend()
        return [self.found[query] for query in range(len(z))]

    def open(self, z: NDArray[np.float32], possible: Mask) -> None:
        """Score the nodes of level 1 and, in the same pass, the codes of level 2. possible: (q, roots)."""
        codes = self.trie.roots[2]
        count = possible.sum(axis=1)
        nodes = np.argsort(~possible, axis=1, kind="stable")[:, : count.max()]  # padded to the most of any query
        self.state, (scored, *following) = self.decoder.open(z, codes[nodes][..., None][..., : self.trie.levels - 1])
        self.keep_output(following[0] if following else scored)
        fronts = [self.first_beams(i, nodes[i, : count[i]], scored[i]) for i in range(len(z))]
        self.front = _Front.joined(fronts)
        few = [(front.hi - front.lo).sum() <= self.max_items for front in fronts]
        settled = [self.trie.have_one_id(front.lo, front.hi).all() for front in fronts]
        self.leave(np.array(few) | self.done(np.array(settled)))

    def first_beams(self, query: int, nodes: Ints, log_probs: NDArray[np.float32]) -> _Front:
        """The first beams of a live query. nodes: (w,) nodes of level 1; log_probs: (w, codes), given each node."""
        lo, hi, codes = (values[nodes] for values in self.trie.roots)
        given = self.targets[self.live[query]] >= 0
        score = np.zeros(len(nodes)) if given else log_probs[np.arange(len(nodes)), codes].astype(np.float64)
        kept: list[int] = []
        items = 0
        for node in top(score, self.beam, ties=lo).tolist():
            if not kept or items < self.beam or score[node] >= score[kept[0]] + self.min_log_ratio:
                kept.append(node)
                items += hi[node] - lo[node]
        rows = query * self.width + np.array(kept)
        return _Front(np.full(len(kept), query), rows, codes[kept], lo[kept], hi[kept], score[kept])

    def descend(self) -> None:
        """Expand all beams by one level, or to the end where the linear head scores all levels, and keep the best."""
        front, code_of = self.front, self.trie.codes[self.level]
        bounds = np.searchsorted(front.query, np.arange(len(self.live) + 1)).tolist()
        found = [self.expand(i, np.arange(bounds[i], bounds[i + 1])) for i in range(len(self.live))]
        self.front = _Front.joined(
            _Front(front.query[own.parent], front.row[own.parent], code_of[own.lo].astype(np.int64), *own[1:4])
            for own in found
        )
        few, settled = np.array([own.few for own in found]), np.array([own.settled for own in found])
        self.level += 1
        if self.decoder.is_linear(self.level):
            self.leave(np.ones(len(self.live), dtype=bool), np.array([own.level for own in found]))
            return
        if self.tails and self.level < self.trie.levels:
            self.finish_tails(settled)
            few = settled = np.zeros(len(self.live), dtype=bool)
        self.leave(few | self.done(settled))
        if len(self.live):
            self.keep_output(self.decoder.step(self.state, *self.inputs(self.front, self.front.code)))
            self.front.row = self.front.query * self.width + self.front.ranks()

    def expand(self, query: int, beams: Ints) -> _Children:
        """Expand a live query's beams (b,) by one level, and by all later levels that the linear head has scored."""
        trie, front, level = self.trie, self.front, self.level
        parent, lo, hi, score = beams, front.lo[beams], front.hi[beams], front.score[beams]
        while True:
            child, lo, hi = trie.children(level, lo, hi)
            parent = parent[child]
            code = trie.codes[level][lo]
            if level == self.level:
                score = score[child] + self.log_probs[front.row[parent], code]
            else:
                score = score[child] + self.linear_log_probs(query, level)[code]
            level += 1
            best, few, settled = self.choose(level, lo, hi, score)
            parent, lo, hi, score = parent[best], lo[best], hi[best], score[best]
            if level == trie.levels or not self.decoder.is_linear(level) or few or (settled and not self.tails):
                return _Children(parent, lo, hi, score, level, few, settled)
            if settled:  # only the order of the beams is open
                for deeper in range(level, trie.levels):
                    score += self.linear_log_probs(query, deeper)[trie.codes[deeper][lo]]
                best = top(score, len(score), ties=lo)
                return _Children(parent[best], lo[best], hi[best], score[best], trie.levels, few, settled)

    def choose(self, level: int, lo: Ints, hi: Ints, score: Floats) -> tuple[Ints, bool, bool]:
        """Choose the best of one query's nodes, which have `level` codes: their indices, best first; few, settled.

        When the query stops here and the decoder has no linear levels, other nodes of the best beam's modality follow,
        best first, up to `max_items` items.
        """
        fill = 0 if self.decoder.has_linear_levels else self.max_items
        best = top(score, self.beam + fill, ties=lo)
        beams, others = best[: self.beam], best[self.beam :]
        items = int((hi[beams] - lo[beams]).sum())
        few, settled = items <= self.enough, bool(self.trie.have_one_id(lo[beams], hi[beams]).all())
        if len(others) and (few or settled or level == self.trie.levels):
            modality = self.trie.codes[0]
            others = others[modality[lo[others]] == modality[lo[best[0]]]]
            fitting = np.searchsorted(np.cumsum(hi[others] - lo[others]), fill - items, side="right")
            beams = np.concatenate([beams, others[:fitting]])
        return beams, few, settled

    def linear_log_probs(self, query: int, level: int) -> NDArray[np.float32]:
        """Log-probabilities of the codes of a linear level for a live query."""
        bounds = self.decoder.row_bounds - self.decoder.row_bounds[self.decoder.decoder_levels]
        return self.state.linear_log_probs[query, bounds[level] : bounds[level + 1]]

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

    def inputs(self, front: _Front, codes: Ints) -> tuple[Ints, Ints]:
        """Decoder inputs: the beams' codes, and the beam of the last output that each of them extends."""
        return front.padded(codes), front.padded(front.row % self.width)

    def keep_output(self, log_probs: NDArray[np.float32]) -> None:
        """Keep the decoder's output (q, w, codes) as (q * w, codes)."""
        self.width = log_probs.shape[1]
        self.log_probs = np.ascontiguousarray(log_probs).reshape(-1, log_probs.shape[-1])

    def done(self, settled: Mask) -> Mask:
        """(live,) whether a query needs no more decoding. settled: (live,) whether each of its beams has one ID."""
        return settled & (not self.tails) | (self.level == self.trie.levels)

    def leave(self, queries: Mask, level: int | Ints | None = None) -> None:
        """Record the beams of these queries and drop them. level: codes their beams decided, if not `self.level`."""
        if queries.any():
            level = self.level if level is None else level
            self.record(self.front.of(queries), self.live[queries], level)
            if self.max_items and self.decoder.has_linear_levels and np.max(level) > 1:
                self.fill(queries)
            self.drop(queries)

    def record(self, front: _Front, queries: Ints, level: int | Ints) -> None:
        bounds = np.searchsorted(front.query, np.arange(len(queries) + 1))
        levels = (np.zeros(len(queries), np.int64) + level).tolist()
        for i, query in enumerate(queries.tolist()):
            own = slice(bounds[i], bounds[i + 1])
            count = bounds[i + 1] - bounds[i]
            self.found[query] = Beams(front.lo[own], front.hi[own], front.score[own], levels[i], count)

    def fill(self, queries: Mask) -> None:
        """Fill the results of these queries up to `max_items` with the nearest items by codes.

        They have the modality of the best beam, and the log-probability of the worst one.
        """
        roots, ends, _ = self.trie.roots
        for i in np.flatnonzero(queries).tolist():
            query = int(self.live[i])
            beams = self.found[query]
            missing = self.max_items - beams.items
            if missing > 0:
                root = np.searchsorted(roots, beams.lo[0], side="right") - 1
                scores, without = self.state.linear_logits[i, 0], (beams.lo, beams.hi)
                near = nearest(self.trie, (roots[root], ends[root]), scores, self.decoder.row_bounds, missing, without)
                self.found[query] = Beams(
                    np.concatenate([beams.lo, near]),
                    np.concatenate([beams.hi, near + 1]),
                    np.concatenate([beams.logprob, np.full(len(near), beams.logprob.min())]),
                    beams.level,
                    beams.own,
                )

    def drop(self, queries: Mask) -> None:
        if queries.all():
            self.live = self.live[:0]
            return
        self.state = self.state_of(~queries)
        self.front, self.live = self.front.of(~queries), self.live[~queries]

    def state_of(self, queries: Mask) -> State:
        return self.state if queries.all() else self.state.select(np.flatnonzero(queries))
