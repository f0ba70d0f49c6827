"""A LangChain retriever over an index or a client of one. Needs langchain-core: pip install "genius-search[langchain]".

There is a retriever and no `VectorStore`: a vector store is asked with vectors of whatever embedding the caller plugs
in, whereas here the index's own model reads the words and writes the ID of the answer.
"""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from genius.data.items import Query
from genius.errors import GeniusError, MissingExtra
from genius.search.options import SearchKeywords
from genius.search.results import Hit, Hits

try:
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.runnables.config import run_in_executor
    from pydantic import Field, field_validator
except ImportError as error:
    raise MissingExtra("The LangChain retriever", "langchain") from error

__all__ = ["GeniusRetriever"]


_OF_THE_QUERY = ("target", "instruction")
_SETTINGS = frozenset([*_OF_THE_QUERY, "k", *SearchKeywords.__annotations__])


@runtime_checkable
class Searchable(Protocol):
    """An Index or a Client."""

    def search(self, query: Query, k: int = 10, **options: Any) -> Hits: ...


class GeniusRetriever(BaseRetriever):
    """Documents for words: texts, images and pairs.

    >>> GeniusRetriever(source=Index.open("photos.genius"), search_kwargs={"k": 4, "target": "text"})  # doctest: +SKIP

    search_kwargs: `k`, `target` and `instruction` (see `Query`), and the options of `Index.search`, such as `where`.
      A call can override them: `retriever.invoke("cats", k=3)`.
    A document's text is the item's, "" where it has none; for a chain that reads only texts, ask for a target with
    text. Its metadata are the item's, and over them `id`, `score`, `modality`, `codes` and, for an image in a file,
    `image`.
    """

    source: Searchable
    search_kwargs: dict[str, Any] = Field(default_factory=dict)

    @field_validator("search_kwargs")
    @classmethod
    def _known(cls, settings: dict[str, Any]) -> dict[str, Any]:
        _check(settings)
        return settings

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return self._documents(query, kwargs)

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun, **kwargs: Any
    ) -> list[Document]:
        return await run_in_executor(None, self._documents, query, kwargs)

    def _documents(self, text: str, changes: Mapping[str, Any]) -> list[Document]:
        _check(changes)
        settings = {**self.search_kwargs, **changes}
        query = Query(text=text, **{name: settings.pop(name, None) for name in _OF_THE_QUERY})
        return [_document(hit) for hit in self.source.search(query, **settings)]


def _document(hit: Hit) -> Document:
    item = hit.item
    metadata = item.metadata | {
        "id": hit.id,
        "score": hit.score,
        "modality": hit.modality.label,
        "codes": list(hit.codes),
    }
    if isinstance(item.image, str):
        metadata["image"] = item.image
    return Document(id=hit.id, page_content=item.text or "", metadata=metadata)


def _check(settings: Mapping[str, Any]) -> None:
    unknown = sorted(settings.keys() - _SETTINGS)
    if unknown:
        raise GeniusError(f"A search has no setting {unknown[0]!r}. It has {', '.join(sorted(_SETTINGS))}.")
