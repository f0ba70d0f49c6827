"""A LangChain retriever over an Index or a Client. Needs langchain-core: pip install "genius-search[langchain]".

It is a retriever and not a `VectorStore`, because a vector store is searched with the vectors of any embedding, while
an index encodes queries with its own model.
"""

from collections.abc import Mapping
from typing import Any

from genius.data.items import Query
from genius.errors import GeniusError, MissingExtra
from genius.integrations.sources import SearchSource, hit_metadata
from genius.integrations.wire import RemoteItem
from genius.search.options import SearchKeywords
from genius.search.results import Hit

try:
    from langchain_core.callbacks import AsyncCallbackManagerForRetrieverRun, CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from langchain_core.runnables.config import run_in_executor
    from pydantic import Field, field_validator
except ImportError as error:
    raise MissingExtra("The LangChain retriever", "langchain") from error

__all__ = ["GeniusRetriever"]

_QUERY_SETTINGS = ("target", "instruction")
_SETTINGS = frozenset([*_QUERY_SETTINGS, "k", *SearchKeywords.__annotations__])


class GeniusRetriever(BaseRetriever):
    """Retrieves documents for words: texts, images and pairs.

    A document's text is the item's text, or "". Its metadata are the item's metadata, overlaid with `id`, `score`,
    `modality`, `codes` and, for an image in a file, `image`. Chains that read only texts should set a target with
    text.

    >>> GeniusRetriever(source=Index.open("photos.genius"), search_kwargs={"k": 4, "target": "text"})  # doctest: +SKIP

    Attributes:
        source: An Index or a Client.
        search_kwargs: `k`, `target`, `instruction` (see `Query`) and the options of `Index.search`, such as `where`.
            A call can override them: `retriever.invoke("cats", k=3)`.
    """

    source: SearchSource
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
        query = Query(text=text, **{name: settings.pop(name, None) for name in _QUERY_SETTINGS})
        return [_document(hit) for hit in self.source.search(query, **settings)]


def _document(hit: Hit) -> Document:
    remote = isinstance(hit.item, RemoteItem)  # reading its image would fetch it
    image = {"image": hit.item.image} if not remote and isinstance(hit.item.image, str) else {}
    return Document(id=hit.id, page_content=hit.item.text or "", metadata=hit_metadata(hit) | image)


def _check(settings: Mapping[str, Any]) -> None:
    unknown = sorted(settings.keys() - _SETTINGS)
    if unknown:
        raise GeniusError(f"A search has no setting {unknown[0]!r}. It has {', '.join(sorted(_SETTINGS))}.")
