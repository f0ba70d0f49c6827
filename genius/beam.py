"""Constrained beam search, Sec. 4.4: the best IDs of a collection for each query, by decoder and trie.

A beam is a node of the trie, so only IDs that exist come out. Log-probabilities are summed over levels; ties go to the
lower codes. Knows nothing of items or embeddings: what comes out are ranges of the trie's rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from genius.decoder import Decoder, State
from genius.errors import GeniusError
from genius.trie import Trie

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

ROWS_AT_ONCE = 512  # beams decoded together: enough for full speed, few enough to stay in the processor's cache


@dataclass(frozen=True)
class Beams:
    """The beams of one query, best first.

    lo, hi: (b,) ranges of the trie's sorted rows; logprob: (b,) summed over the codes scored so far.
    level: how many codes the beams have decided; as many as the trie has levels when they are whole IDs.
    """

    lo: Ints
    hi: Ints
    logprob: Floats
    level: int

    def __len__(self) -> int:
        return len(self.lo)

    @property
    def items(self) -> int:
        """How many items lie under the beams."""
        return int((self.hi - self.lo).sum())


def beam_search(
    decoder: Decoder,
    trie: Trie,
    z: ArrayLike | Tensor,
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
      scored already, so that more than `width` beams come out.
    modality: (q,) the first code where one is wanted, -1 where not. A wanted code is given, so it costs no
      log-probability, and only its subtree is searched.
    tails: once each beam of a query has only one ID left, the set is fixed. With `tails` the rest of these IDs is
      scored and decides their order; without, the search ends there. (With `max_items` it always ends there.)
    doubt: modalities less than this times as probable as the most probable one are not searched, unless the others
      have fewer than `width` items; 0 searches all.
    A query's beams do not depend on the queries beside it.
    """
    vectors = torch.as_tensor(z, dtype=torch.float32, device=decoder.table.device)
    widths = np.broadcast_to(np.asarray(width, dtype=np.int64), len(vectors))
    wanted = np.broadcast_to(np.asarray(-1 if modality is None else modality, dtype=np.int64), len(vectors))
    check(decoder, trie, vectors, widths)
    found: list[Beams] = []
    for part in chunks(widths):
        search = Search(decoder, trie, widths[part], wanted[part], max_items, tails, doubt)
        found += search.run(vectors[part])
    return found


def check(decoder: Decoder, trie: Trie, z: Tensor, widths: Ints) -> None:
    sizes, dim = decoder.config.sizes, decoder.config.dim
    if trie.levels != len(sizes):
        raise GeniusError(
            f"The trie's IDs have {trie.levels} codes, the decoder's have {len(sizes)}; rebuild the trie."
        )
    if any(code >= size for code, size in zip(trie.highest, sizes, strict=True)):
        raise GeniusError(f"The trie's highest codes are {trie.highest}, but the decoder's levels have {sizes} codes.")
    if z.ndim != 2 or z.shape[1] != dim:
        raise GeniusError(f"Query vectors must have shape (queries, {dim}), but got {tuple(z.shape)}.")
    if not z.isfinite().all():
        bad = int((~z.isfinite().all(1)).nonzero()[0])
        raise GeniusError(f"The vector of query {bad} has values that are not finite; check what encoded it.")
    if len(widths) and widths.min() < 1:
        raise GeniusError(f"The beam width is {widths.min()}; it must be at least 1.")


def chunks(widths: Ints) -> Iterator[slice]:
    """Consecutive queries that have about ROWS_AT_ONCE beams together."""
    start = 0
    while start < len(widths):
        queries = max(1, ROWS_AT_ONCE // int(widths[start:].max()))
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
        front = self.take(queries[self.query])
        front.query = (np.cumsum(queries) - 1)[front.query]
        return front

    def ranks(self) -> Ints:
        """Each beam's place within its query."""
        return np.arange(len(self.query)) - np.searchsorted(self.query, self.query)

    def best(self, widths: Ints) -> "Front":
        """The `widths[query]` best of each query, in order; ties go to the lower codes, which are first in the trie."""
        likely = self.take(above_threshold(self.query, self.score, widths))
        ordered = likely.take(np.lexsort((likely.lo, -likely.score, likely.query)))
        return ordered.take(ordered.ranks() < widths[ordered.query])

    def beyond_doubt(self, doubt: float, widths: Ints) -> "Front":
        """Of beams in order, those at least `doubt` times as probable as their query's first, and more for `widths`."""
        if not doubt:
            return self
        first = np.searchsorted(self.query, self.query)
        before = np.cumsum(self.hi - self.lo) - (self.hi - self.lo)
        before -= before[first]
        return self.take((self.score >= self.score[first] + np.log(doubt)) | (before < widths[self.query]))

    def filled(self, widths: Ints, max_items: int, first_code: Ints) -> "Front":
        """As `best`, and further beams in order, of the first beam's `first_code` (b,), up to `max_items` items."""
        order = np.lexsort((self.lo, -self.score, self.query))
        ordered, first_code = self.take(order), first_code[order]
        ranks = ordered.ranks()
        kept = ranks < widths[ordered.query]
        allowed = kept | (first_code == first_code[np.flatnonzero(ranks == 0)][ordered.query])
        items = np.cumsum(np.where(allowed, ordered.hi - ordered.lo, 0))
        before = np.concatenate([[0], items])[np.searchsorted(ordered.query, np.arange(len(widths)))]
        return ordered.take(kept | (allowed & (items - before[ordered.query] <= max_items)))

    def padded(self, values: Ints) -> Ints:
        """(b, ...) values of the beams -> (queries, most beams of a query, ...), zero where a query has fewer."""
        ranks = self.ranks()
        table = np.zeros((self.query[-1] + 1, ranks.max() + 1, *values.shape[1:]), dtype=values.dtype)
        table[self.query, ranks] = values
        return table


def above_threshold(query: Ints, score: Floats, widths: Ints) -> Mask:
    """Leaves out, before sorting, what is surely not among the best. Ties stay, so sometimes more than `widths`."""
    threshold = np.full(len(widths), -np.inf)
    bounds = np.searchsorted(query, np.arange(len(widths) + 1))
    for q in np.flatnonzero(np.diff(bounds) > widths):
        scores = score[bounds[q] : bounds[q + 1]]
        threshold[q] = np.partition(scores, len(scores) - widths[q])[len(scores) - widths[q]]
    return score >= threshold[query]


class Search:
    """A few queries on their way down the trie together. Those that are done leave; `live` are the others' numbers."""

    def __init__(
        self,
        decoder: Decoder,
        trie: Trie,
        widths: Ints,
        wanted: Ints,
        max_items: int | None,
        tails: bool,
        doubt: float,
    ) -> None:
        self.decoder, self.trie, self.widths, self.wanted, self.doubt = decoder, trie, widths, wanted, doubt
        self.max_items = 0 if max_items is None else max_items
        self.tails = tails and max_items is None
        self.live = np.arange(len(widths))
        self.found: dict[int, Beams] = {}
        self.state = State([], torch.empty(0))  # until a query needs decoding at all
        self.level = 1  # codes decided by the beams in front
        self.front = self.roots()

    def run(self, z: Tensor) -> list[Beams]:
        """z: (q, dim)"""
        self.leave(self.few_items())
        if len(self.live):
            self.open(z[torch.from_numpy(self.live)])
        while len(self.live):
            self.descend()
        return [self.found[query] for query in range(len(self.widths))]

    def roots(self) -> Front:
        """Each query's first nodes: all modalities, or the wanted one if the trie has it."""
        root = np.array([[0], [len(self.trie)]])[:, : len(self.trie)]  # an empty trie has not even a root
        _, code, lo, hi = self.trie.children(root[0], root[1], 0)
        query, node = np.nonzero((self.wanted[:, None] < 0) | (self.wanted[:, None] == code))
        return Front(query, np.zeros_like(query), code[node], lo[node], hi[node], np.zeros(len(query)))

    def open(self, z: Tensor) -> None:
        """Score the first nodes and, in the same pass, what may follow them."""
        front = self.front
        self.state = self.decoder.start(z)
        first_codes = self.tensor(front.padded(front.code))[..., None]
        scored, *following = self.decoder.first(self.state, first_codes[..., : self.trie.levels - 1])
        self.output(following[0] if following else scored)
        given = self.wanted[self.live][front.query] >= 0
        front.score = np.where(given, 0.0, as_rows(scored)[front.row, front.code])
        self.front = front.best(self.widths[self.live]).beyond_doubt(self.doubt, self.widths[self.live])
        self.leave(self.done())

    def descend(self) -> None:
        """One level further: expand all beams, keep the best, decode these unless their query is done."""
        front = self.front
        parent, code, lo, hi = self.trie.children(front.lo, front.hi, self.level)
        row = front.row[parent]
        score = front.score[parent] + self.log_probs[row, code]
        scored = Front(front.query[parent], row, code, lo, hi, score)
        self.front = scored.best(self.widths[self.live])
        self.level += 1
        self.fill(scored)
        if self.tails and self.level < self.trie.levels:
            self.finish_tails(self.one_id_each())
        self.leave(self.done())
        if len(self.live):
            codes, parents = self.inputs(self.front, self.front.code)
            self.output(self.decoder.step(self.state, codes, parents))

    def fill(self, scored: Front) -> None:
        """Let go of the queries whose beams hold few enough items, with more of their scored beams in addition."""
        few = self.few_items()
        if self.max_items and few.any():
            scored = scored.of(few)
            first_code = self.trie.columns[0][scored.lo].astype(np.int64)
            filled = scored.filled(self.widths[self.live[few]], self.max_items, first_code)
            self.record(filled, self.live[few], self.level)
            self.drop(few)

    def finish_tails(self, queries: Mask) -> None:
        """These queries' beams are decided: score the rest of their IDs at once, and let them go."""
        if not queries.any():
            return
        front = self.front.of(queries)
        codes, parents = self.inputs(front, self.trie.ids(front.lo)[:, self.level - 1 :])
        total = self.decoder.tail(self.state_of(queries), codes, parents).cpu().numpy()
        front.score += total[front.query, front.ranks()]
        self.record(front.best(self.widths[self.live[queries]]), self.live[queries], self.trie.levels)
        self.drop(queries)

    def inputs(self, front: Front, codes: Ints) -> tuple[Tensor, Tensor]:
        """For the decoder: the beams' `codes` and, from its last output, the place of the beam that each extends."""
        return self.tensor(front.padded(codes)), self.tensor(front.padded(front.row % self.width))

    def output(self, log_probs: Tensor) -> None:
        """Keep what the decoder says, (q, w, codes), and which row of it belongs to each beam in front."""
        self.width = log_probs.shape[1]
        self.log_probs = as_rows(log_probs)
        self.front.row = self.front.query * self.width + self.front.ranks()

    def done(self) -> Mask:
        """(live,) which queries need no more decoding."""
        if self.level == self.trie.levels:
            return np.ones(len(self.live), dtype=bool)
        return self.few_items() if self.tails else self.few_items() | self.one_id_each()

    def few_items(self) -> Mask:
        items = np.bincount(self.front.query, self.front.hi - self.front.lo, minlength=len(self.live))
        return items <= self.max_items

    def one_id_each(self) -> Mask:
        undecided = ~self.trie.single(self.front.lo, self.front.hi)
        return np.bincount(self.front.query, undecided, minlength=len(self.live)) == 0

    def leave(self, queries: Mask) -> None:
        if queries.any():
            self.record(self.front.of(queries), self.live[queries], self.level)
            self.drop(queries)

    def record(self, front: Front, queries: Ints, level: int) -> None:
        bounds = np.searchsorted(front.query, np.arange(len(queries) + 1))
        for i, query in enumerate(queries.tolist()):
            part = slice(bounds[i], bounds[i + 1])
            self.found[query] = Beams(front.lo[part], front.hi[part], front.score[part], level)

    def drop(self, queries: Mask) -> None:
        if not queries.all():
            self.state = self.state_of(~queries)
        self.front, self.live = self.front.of(~queries), self.live[~queries]

    def state_of(self, queries: Mask) -> State:
        return self.state if queries.all() else self.state.select(self.tensor(np.flatnonzero(queries)))

    def tensor(self, values: Ints) -> Tensor:
        return torch.from_numpy(values).to(self.decoder.table.device)


def as_rows(log_probs: Tensor) -> NDArray[np.float32]:
    """(q, w, codes) -> (q * w, codes)"""
    return log_probs.flatten(0, 1).cpu().numpy()
