"""Result types: hits, search results with their trace, pages of the code tree, and reports of additions.

Plain data without heavy imports. An index and a client of the service return the same types.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, SupportsIndex, overload

from genius.data.items import Item, Modality
from genius.errors import BadItem
from genius.runtime.wording import counted

if TYPE_CHECKING:
    import numpy as np  # a client of the service starts without it


@dataclass(frozen=True)
class Hit:
    """An item found by a search.

    Attributes:
        id: The item id.
        score: Log-probability of the item's ID in mode "generate", cosine similarity in the others. Higher is better.
        modality: Modality of the item.
        codes: The item's semantic ID.
        item: The item itself.
    """

    id: str
    score: float
    modality: Modality
    codes: tuple[int, ...]
    item: Item

    def _repr_html_(self) -> str:
        return Hits([self])._repr_html_()


class Hits(list[Hit]):
    """The hits of one query, best first. Notebooks show them, and slices of them, as a grid of cards."""

    @overload
    def __getitem__(self, at: SupportsIndex) -> Hit: ...

    @overload
    def __getitem__(self, at: slice) -> "Hits": ...

    def __getitem__(self, at: SupportsIndex | slice) -> "Hit | Hits":
        return Hits(super().__getitem__(at)) if isinstance(at, slice) else super().__getitem__(at)

    def _repr_html_(self) -> str:
        from genius.search.cards import MAX_CARDS  # loads numpy

        return self._html("", MAX_CARDS)

    def _html(self, name: str, most: int) -> str:
        """A grid of at most `most` cards. name: stands before the title."""
        from genius.search.cards import Card, render_cards  # loads numpy

        count = counted(len(self), "hit") if self else "Nothing was found."
        title = f"{count}, the first {most:,} shown" if len(self) > most else count
        return render_cards(
            [Card(hit.item, hit.modality, hit.score, hit.codes) for hit in self[:most]], f"{name}{title}"
        )


class HitLists(list[Hits]):
    """The hits of several queries, in the order of the queries. Notebooks show one grid of cards for each."""

    @overload
    def __getitem__(self, at: SupportsIndex) -> Hits: ...

    @overload
    def __getitem__(self, at: slice) -> "HitLists": ...

    def __getitem__(self, at: SupportsIndex | slice) -> "Hits | HitLists":
        return HitLists(super().__getitem__(at)) if isinstance(at, slice) else super().__getitem__(at)

    def _repr_html_(self) -> str:
        from genius.search.cards import MAX_CARDS, render_cards  # loads numpy

        if not self:
            return render_cards([], "No queries.")
        each = max(1, MAX_CARDS // len(self))
        shown = [hits._html(f"Query {number:,}: ", each) for number, hits in enumerate(self[:MAX_CARDS], 1)]
        rest = len(self) - len(shown)
        if rest:
            shown.append(render_cards([], f"... and {counted(rest, 'more query', 'more queries')}"))
        return "".join(shown)


@dataclass(frozen=True)
class Branch:
    """A beam: a prefix of an ID, or a complete ID.

    Attributes:
        codes: The codes decided so far.
        logprob: Their summed log-probability.
        items: Number of candidates whose IDs start with these codes. In mode "fast" the index may have more such items.
    """

    codes: tuple[int, ...]
    logprob: float
    items: int


@dataclass(frozen=True)
class SearchResult:
    """Hits and how they were found.

    Attributes:
        hits: Best first.
        branches: The beams, best first. In mode "fast" the first codes of the candidates.
        candidates: Number of items that were ranked.
        seconds: Time of the stages "encode", "generate", "rerank" and "read" for the whole batch of queries.
    """

    hits: Hits
    branches: Sequence[Branch]
    candidates: int
    seconds: dict[str, float]


class TopK(NamedTuple):
    """The k best rows of q queries, best first.

    Attributes:
        rows: (q, k) int64, -1 where there are fewer than k.
        scores: (q, k) float32, -inf where there is no row.
        codes: (q, k, levels) uint16, the IDs of the rows.
    """

    rows: "np.ndarray"
    scores: "np.ndarray"
    codes: "np.ndarray"


class SearchTrace(NamedTuple):
    """How one query was answered."""

    branches: Sequence[Branch]  # best first
    candidates: int  # number of items that were ranked


class BatchResult(NamedTuple):
    """Results of a batch of queries."""

    top: TopK
    traces: list[SearchTrace]  # one per query
    seconds: dict[str, float]  # of the stages "generate" and "rerank"

    def replace(self, queries: Sequence[int], other: "BatchResult") -> None:
        """Overwrite the results of some queries, in place, with those of another search."""
        for mine, theirs in zip(self.top, other.top, strict=True):
            mine[queries] = theirs
        for query, trace in zip(queries, other.traces, strict=True):
            self.traces[query] = trace
        for stage, seconds in other.seconds.items():
            self.seconds[stage] += seconds


@dataclass(frozen=True)
class CodedItem:
    """An item and its codes."""

    item: Item
    codes: tuple[int, ...]


@dataclass(frozen=True)
class CodeChild:
    """A code that can follow a prefix.

    Attributes:
        code: The code.
        items: Number of items that have it.
        example: Id of one of these items.
    """

    code: int
    items: int
    example: str


@dataclass(frozen=True)
class CodePage:
    """The items whose IDs match a pattern of codes.

    Attributes:
        total: Number of matching items.
        ids: Number of distinct IDs among them.
        children: The codes of the next level, most items first.
        items: One page of the matching items, in the order of their IDs.
    """

    total: int
    ids: int
    children: list[CodeChild]
    items: list[CodedItem]


@dataclass
class AddReport:
    """Result of an addition.

    Attributes:
        added: Number of items written.
        unchanged: Number of items that the index already held.
        bad: Items that were refused, with reasons.
        replaced: Number of written items that replaced an older one.
    """

    added: int = 0
    unchanged: int = 0
    bad: list[BadItem] = field(default_factory=list)
    replaced: int = 0
