"""Constrained beam search, Sec. 4.4: the best IDs of a collection for each query, by decoder and trie.

A beam is a node of the trie, so only IDs that exist come out. Log-probabilities are summed over levels; ties go to the
lower codes. Knows nothing of items or embeddings: what comes out are ranges of the trie's rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from genius.errors import GeniusError
from genius.model.decoder_runtime import DecoderRuntime, State
from genius.search.kernels import begin, filled, grow
from genius.search.trie import Trie

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

OWN = 4  # where the rest is filled by codes, beams end with one in so many of the items that may come out
ROWS_AT_ONCE = 512  # tokens decoded together: enough for full speed, few enough to stay in the processor's cache


@dataclass(frozen=True)
class Beams:
    """The beams of one query, best first; then what fills `max_items`, best first.

    lo, hi: (b,) ranges of the trie's sorted rows; logprob: (b,) summed over the codes scored so far, or the last beam's
      for an item that is only near by codes.
    level: how many codes the beams have decided; as many as the trie has levels when they are whole IDs.
    own: how many of them are beams.
    """

    lo: Ints
    hi: Ints
    logprob: Floats
    level: int
    own: int

    def __len__(self) -> int:
        return len(self.lo)

    @property
    def items(self) -> int:
        """How many items lie under the beams."""
        return int((self.hi - self.lo).sum())


def beam_search(
    engine: DecoderRuntime,
    trie: Trie,
    z: ArrayLike,
    width: int | Sequence[int],
    *,
    max_items: int | None = None,
    modality: ArrayLike | None = None,
    tails: bool = True,
    doubt: float = 0.0,
) -> list[Beams]:
    """The `width` most probable IDs of the trie for each query. z: (q, dim); width: of all queries or of each.

    max_items: a query stops as soon as no more items than this lie under its beams, which may then be short of IDs.
      What is left of that number is filled with the next best nodes of the level, of the best beam's modality: they are
      scored already. On levels that cost nothing (`DecoderRuntime.free`) their children are looked at as well.
    modality: (q,) the first code where one is wanted, -1 where not. A wanted code is given, so it costs no
      log-probability, and only its subtree is searched.
    tails: once each beam of a query has only one ID left, the set is fixed. With `tails` the rest of these IDs is
      scored and decides their order; without, the search ends there. (With `max_items` it always ends there.)
    doubt: modalities less than this times as probable as the most probable one are not searched, unless the others
      have fewer than `width` items; 0 searches all.
    A query's beams do not depend on the queries beside it.
    """
    vectors = np.ascontiguousarray(z, dtype=np.float32)
    each = np.zeros(len(vectors), np.int64)
    widths, wanted = each + np.asarray(width), each + np.asarray(-1 if modality is None else modality)
    check(engine, trie, vectors, widths)
    found: list[Beams] = []
    tokens = max(1, engine.written // 2) if tails and max_items is None else 1  # of a beam at once; a tail has more
    for part in chunks(widths * tokens):
        search = Search(engine, trie, widths[part], wanted[part], max_items, tails, doubt)
        found += search.run(vectors[part])
    return found


def check(engine: DecoderRuntime, trie: Trie, z: NDArray[np.float32], widths: Ints) -> None:
    sizes, dim = engine.config.sizes, engine.config.dim
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
    if len(widths) and widths.min() < 1:
        raise GeniusError(f"The beam width is {widths.min()}; it must be at least 1.")


def chunks(rows: Ints) -> Iterator[slice]:
    """Consecutive queries that have about ROWS_AT_ONCE rows together."""
    start = 0
    while start < len(rows):
        queries = max(1, ROWS_AT_ONCE // int(rows[start:].max()))
        yield slice(start, start + queries)
        start += queries


@dataclass
class Front:
    """The beams of all live queries, flat: (b,) arrays sorted by query, best first within a query.

    query: from 0, every one with at least one beam; code: the one decided last.
    row: whose log-probabilities to continue with, a row of the decoder's last output.
    """

    query: Ints
    row: Ints
    code: Ints
    lo: Ints
    hi: Ints
    score: Floats

    def take(self, which: Mask | Ints) -> "Front":
        return Front(*(values[which] for values in vars(self).values()))

    def of(self, queries: Mask) -> "Front":
        """The beams of some queries, which are numbered anew."""
        if queries.all():
            return self
        front = self.take(queries[self.query])
        front.query = (np.cumsum(queries) - 1)[front.query]
        return front

    def ranks(self) -> Ints:
        """Each beam's place within its query."""
        return np.arange(len(self.query)) - np.searchsorted(self.query, self.query)

    def best(self, widths: Ints) -> "Front":
        """The `widths[query]` best of each query, in order; ties go to the lower codes, which are first in the trie."""
        ordered = self.take(np.lexsort((self.lo, -self.score, self.query)))
        return ordered.take(ordered.ranks() < widths[ordered.query])

    def padded(self, values: Ints) -> Ints:
        """(b, ...) values of the beams -> (queries, most beams of a query, ...), zero where a query has fewer."""
        ranks = self.ranks()
        table = np.zeros((self.query[-1] + 1, ranks.max() + 1, *values.shape[1:]), dtype=values.dtype)
        table[self.query, ranks] = values
        return table


class Search:
    """A few queries on their way down the trie together. Those that are done leave; `live` are the others' numbers."""

    def __init__(
        self,
        engine: DecoderRuntime,
        trie: Trie,
        widths: Ints,
        wanted: Ints,
        max_items: int | None,
        tails: bool,
        doubt: float,
    ) -> None:
        self.engine, self.trie, self.widths, self.wanted, self.doubt = engine, trie, widths, wanted, doubt
        self.max_items = 0 if max_items is None else max_items
        self.enough = self.max_items // OWN if engine.path else self.max_items  # items for a query to stop with
        self.tails = tails and max_items is None
        self.live: Ints  # set by `run`
        self.found: dict[int, Beams] = {}
        self.level = 1  # codes decided by the beams in front
        self.state: State  # these as soon as a query needs decoding at all
        self.front: Front
        self.log_probs: NDArray[np.float32]

    def run(self, z: NDArray[np.float32]) -> list[Beams]:
        """z: (q, dim)"""
        roots, ends, codes = self.trie.roots
        possible = (self.wanted[:, None] < 0) | (self.wanted[:, None] == codes)  # (q, roots)
        few = possible @ (ends - roots) <= self.max_items
        for query in np.flatnonzero(few).tolist():
            lo, hi = roots[possible[query]], ends[possible[query]]
            self.found[query] = Beams(lo, hi, np.zeros(len(lo)), 1, len(lo))
        self.live = np.flatnonzero(~few)
        if len(self.live):
            self.open(z[self.live], possible[self.live])
        while len(self.live):
            self.descend()
        return [self.found[query] for query in range(len(self.widths))]

    def open(self, z: NDArray[np.float32], possible: Mask) -> None:
        """Score the first nodes and, in the same pass, what may follow them. possible: (q, roots)

        As many nodes are scored for each query as for the one with the most.
        """
        roots, ends, codes = self.trie.roots
        count = possible.sum(axis=1)
        nodes = np.argsort(~possible, axis=1, kind="stable")[:, : count.max()]
        self.state, (scored, *following) = self.engine.open(z, codes[nodes][..., None][..., : self.trie.levels - 1])
        self.output(following[0] if following else scored)
        *front, items, settled = begin(
            self.trie.change,
            self.trie.levels,
            codes,
            roots,
            ends,
            nodes,
            count,
            scored,
            self.wanted[self.live] >= 0,
            self.widths[self.live],
            self.doubt,
        )
        self.front = Front(*front)
        self.leave((items <= self.max_items) | self.over(settled))

    def descend(self) -> None:
        """One level further, or to the end where that costs no decoding: expand all beams and keep the best."""
        front, trie = self.front, self.trie
        query, parent, lo, hi, score, few, settled, reached = grow(
            trie.codes,
            trie.change,
            trie.starts,
            trie.start_bounds,
            self.level,
            np.searchsorted(front.query, np.arange(len(self.live) + 1)),
            front.lo,
            front.hi,
            front.score,
            front.row,
            self.log_probs,
            self.state.left,
            self.engine.row_bounds,
            self.widths[self.live],
            self.enough,
            0 if self.engine.path else self.max_items,
            self.tails,
        )
        code = trie.codes[self.level][lo].astype(np.int64)
        self.front = Front(query, front.row[parent], code, lo, hi, score)
        self.level += 1
        if self.engine.free(self.level):
            self.leave(np.ones(len(self.live), dtype=bool), reached)
            return
        if self.tails and self.level < trie.levels:
            self.finish_tails(settled)
            few = settled = np.zeros(len(self.live), dtype=bool)
        self.leave(few | self.over(settled))
        if len(self.live):
            self.output(self.engine.step(self.state, *self.inputs(self.front, self.front.code)))
            self.front.row = self.front.query * self.width + self.front.ranks()

    def finish_tails(self, queries: Mask) -> None:
        """These queries' beams are decided: score the rest of their IDs at once, and let them go."""
        if not queries.any():
            return
        front = self.front.of(queries)
        codes, parents = self.inputs(front, self.trie.ids(front.lo)[:, self.level - 1 :])
        total = self.engine.tail(self.state_of(queries), codes, parents)
        front.score += total[front.query, front.ranks()]
        self.record(front.best(self.widths[self.live[queries]]), self.live[queries], self.trie.levels)
        self.drop(queries)

    def inputs(self, front: Front, codes: Ints) -> tuple[Ints, Ints]:
        """For the decoder: the beams' `codes` and, from its last output, the place of the beam that each extends."""
        return front.padded(codes), front.padded(front.row % self.width)

    def output(self, log_probs: NDArray[np.float32]) -> None:
        """Keep what the decoder says, (q, w, codes)."""
        self.width = log_probs.shape[1]
        self.log_probs = flat(log_probs)

    def over(self, settled: Mask) -> Mask:
        """(live,) which queries need no more decoding. settled: whose beams have one ID each."""
        return settled & (not self.tails) | (self.level == self.trie.levels)

    def leave(self, queries: Mask, level: int | Ints | None = None) -> None:
        """level: how many codes these queries' beams have decided, if not as many as the others'."""
        if queries.any():
            level = self.level if level is None else level
            self.record(self.front.of(queries), self.live[queries], level)
            if self.max_items and self.engine.path and np.max(level) > 1:
                self.fill(queries)
            self.drop(queries)

    def record(self, front: Front, queries: Ints, level: int | Ints) -> None:
        bounds = np.searchsorted(front.query, np.arange(len(queries) + 1))
        levels = (np.zeros(len(queries), np.int64) + level).tolist()
        for i, query in enumerate(queries.tolist()):
            part = slice(bounds[i], bounds[i + 1])
            own = bounds[i + 1] - bounds[i]
            self.found[query] = Beams(front.lo[part], front.hi[part], front.score[part], levels[i], own)

    def fill(self, queries: Mask) -> None:
        """Give these queries what their beams leave of `max_items`: items near by codes, of the best one's modality."""
        trie = self.trie
        for i in np.flatnonzero(queries).tolist():
            query = int(self.live[i])
            beams = self.found[query]
            lo, hi, score = filled(
                trie.codes,
                trie.change,
                trie.starts,
                trie.start_bounds,
                trie.roots[0],
                self.state.direct[i, 0],
                self.engine.row_bounds,
                beams.lo,
                beams.hi,
                beams.logprob,
                self.max_items,
            )
            self.found[query] = Beams(lo, hi, score, beams.level, beams.own)

    def drop(self, queries: Mask) -> None:
        if queries.all():
            self.live = self.live[:0]
            return
        self.state = self.state_of(~queries)
        self.front, self.live = self.front.of(~queries), self.live[~queries]

    def state_of(self, queries: Mask) -> State:
        return self.state if queries.all() else self.state.select(np.flatnonzero(queries))


def flat(log_probs: NDArray[np.float32]) -> NDArray[np.float32]:
    """(q, w, codes) -> (q * w, codes)"""
    return np.ascontiguousarray(log_probs).reshape(-1, log_probs.shape[-1])
