"""What the retrievers for other libraries share: the source they search and the metadata of a hit."""

from typing import Any, Protocol, Unpack, runtime_checkable

from genius.data.items import Query
from genius.search.options import SearchKeywords, SearchOptions
from genius.search.results import Hit, Hits


@runtime_checkable
class SearchSource(Protocol):
    """An Index or a Client."""

    def search(self, query: Query, k: int = SearchOptions.k, **options: Unpack[SearchKeywords]) -> Hits:
        """Find the k best items for a query."""


def hit_metadata(hit: Hit) -> dict[str, Any]:
    """The item's metadata, overlaid with id, score, modality and codes of the hit."""
    found = {"id": hit.id, "score": hit.score, "modality": hit.modality.label, "codes": list(hit.codes)}
    return hit.item.metadata | found
