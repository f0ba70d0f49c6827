"""A LlamaIndex retriever over an index or a client of one.

Needs llama-index-core: pip install "genius-search[llamaindex]". There is a retriever and no vector store: the index's
own model reads the query and writes the ID of the answer, so an embedding that the caller made is of no use to it.
"""

import asyncio
import base64
import os
from typing import Any, Protocol, Unpack

from genius.data.items import Modality, Query
from genius.errors import MissingExtra
from genius.search.options import SearchKeywords
from genius.search.results import Hit, Hits

try:
    from llama_index.core.base.llms.types import BaseContentBlock, TextBlock
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import ImageNode, MetadataMode, NodeWithScore, QueryBundle, TextNode
except ImportError as error:
    raise MissingExtra("The LlamaIndex retriever", "llamaindex") from error

__all__ = ["GeniusRetriever"]

_NOT_FOR_PROMPTS = ["score", "modality", "codes"]


class Searchable(Protocol):
    """An Index or a Client."""

    def search(self, query: Query, k: int = 10, **options: Any) -> Hits: ...


class ImageNode(ImageNode):
    """An ImageNode that shows a multimodal model its text as well as its image."""

    def get_content_blocks(self, metadata_mode: MetadataMode = MetadataMode.NONE) -> list[BaseContentBlock]:
        words: list[BaseContentBlock] = [TextBlock(text=self.text)] if self.text else []
        return words + super().get_content_blocks(metadata_mode)


class GeniusRetriever(BaseRetriever):
    """Nodes for words, an image, or both: `TextNode` for texts, `ImageNode` for what has an image at hand.

    >>> GeniusRetriever(Index.open("photos.genius"), k=4, target="image")  # doctest: +SKIP

    k and the options are those of `Index.search`, target and instruction those of `Query`.
    image_size: a client fetches images with their sides at most so long; None: it fetches none. An index gives
      images as they are.
    Of a QueryBundle, `query_str` and `image_path` are searched with; embeddings and texts to embed are passed over.
    An image in a file is given as `image_path`, any other as `image`, in base64. A node's metadata are the item's, and
    over them `id`, `score`, `modality` and `codes`; prompts leave out the last three.
    """

    def __init__(
        self,
        source: Searchable,
        k: int = 10,
        target: Modality | str | None = None,
        instruction: str | None = None,
        image_size: int | None = 512,
        **options: Unpack[SearchKeywords],
    ) -> None:
        super().__init__()
        Modality.parse(target)
        self._source = source
        self._k = k
        self._target = target
        self._instruction = instruction
        self._image_size = image_size
        self._options = options

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        query = Query(query_bundle.query_str or None, query_bundle.image_path, self._instruction, self._target)
        hits = self._source.search(query, self._k, **self._options)
        with_images = getattr(self._source, "with_images", None)
        if with_images is not None and self._image_size is not None:
            hits = with_images(hits, self._image_size)
        return [NodeWithScore(node=_node(hit), score=hit.score) for hit in hits]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)


def _node(hit: Hit) -> TextNode:
    item = hit.item
    fields: dict[str, Any] = {
        "id_": hit.id,
        "text": item.text or "",
        "metadata": item.metadata
        | {"id": hit.id, "score": hit.score, "modality": hit.modality.label, "codes": list(hit.codes)},
        "excluded_llm_metadata_keys": _NOT_FOR_PROMPTS,
        "excluded_embed_metadata_keys": _NOT_FOR_PROMPTS,
    }
    if isinstance(item.image, bytes):
        return ImageNode(image=base64.b64encode(item.image).decode(), **fields)
    if isinstance(item.image, str | os.PathLike):
        return ImageNode(image_path=os.fspath(item.image), **fields)
    return TextNode(**fields)
