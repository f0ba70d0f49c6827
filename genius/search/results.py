"""How an index is searched and what it answers: hits, the way to them, what has which codes, what became of additions.

Plain data, light to import: an index and a client of the service both give these. Knows nothing of either.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import TypedDict

from genius.data.items import Item, Modality
from genius.errors import BadItem


class SearchKeywords(TypedDict, total=False):
    """How to search: see `Index.search`."""

    mode: str
    beam: int
    budget: int
    ids: Collection[str] | None
    where: str | None
    blend: float


@dataclass(frozen=True)
class Hit:
    """One answer. `score` is a log-probability in mode "generate" and a cosine in the others; higher is better."""

    id: str
    score: float
    modality: Modality
    codes: tuple[int, ...]
    item: Item

    def _repr_html_(self) -> str:
        return Hits([self])._repr_html_()


class Hits(list[Hit]):
    """The answers to one query, best first. A notebook shows them with their images."""

    def _repr_html_(self) -> str:
        from genius.index.display import hits_html

        return hits_html(self)


@dataclass(frozen=True)
class Branch:
    """A beam: the beginning of an ID that the decoder wrote (or all of it), and how many items have it."""

    codes: tuple[int, ...]
    logprob: float
    items: int


@dataclass(frozen=True)
class SearchResult:
    """Hits, and how they were found.

    branches: the beams, best first.
    looked_at: how many items lay under the beams or came near by their codes; these were ranked.
    seconds: "encode", "generate", "rerank" and "read", of all the queries that were asked at once.
    """

    hits: Hits
    branches: list[Branch]
    looked_at: int
    seconds: dict[str, float]


@dataclass(frozen=True)
class CodedItem:
    """An item and its ID."""

    item: Item
    codes: tuple[int, ...]


@dataclass(frozen=True)
class CodeChild:
    """A next code, how many items have it, and the id of one of them."""

    code: int
    items: int
    example: str


@dataclass(frozen=True)
class CodePage:
    """The items that have certain codes: how many, how many distinct IDs, what comes next, and some of them.

    children: most items first.
    """

    total: int
    ids: int
    children: list[CodeChild]
    items: list[CodedItem]


@dataclass(frozen=True)
class AddReport:
    """How many items were written, how many were there just so, and the ones that were refused, with their reasons.

    replaced: how many of those that were written took the place of an older one.
    """

    added: int
    unchanged: int
    bad: list[BadItem]
    replaced: int = 0
