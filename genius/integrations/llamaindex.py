"""A LlamaIndex retriever over an Index or a Client. Needs llama-index-core: pip install "genius-search[llamaindex]".

It is a retriever and not a vector store, because an index encodes queries with its own model.
"""

import asyncio
import base64
import os
from typing import Any, Unpack

from genius.data.items import Modality, Query
from genius.errors import MissingExtra
from genius.integrations.sources import SearchSource, hit_metadata
from genius.integrations.wire import RemoteItem
from genius.search.options import SearchKeywords, SearchOptions
from genius.search.results import Hit

try:
    from llama_index.core.base.llms.types import BaseContentBlock, TextBlock
    from llama_index.core.retrievers import BaseRetriever
    from llama_index.core.schema import ImageNode, MetadataMode, NodeWithScore, QueryBundle, TextNode
except ImportError as error:
    raise MissingExtra("The LlamaIndex retriever", "llamaindex") from error

__all__ = ["GeniusRetriever"]

_NOT_FOR_PROMPTS = ["score", "modality", "codes"]


class CaptionedImageNode(ImageNode):
    """An ImageNode that shows a multimodal model its text as well as its image."""

    def get_content_blocks(self, metadata_mode: MetadataMode = MetadataMode.NONE) -> list[BaseContentBlock]:
        """The text, if there is one, and the image."""
        words: list[BaseContentBlock] = [TextBlock(text=self.text)] if self.text else []
        return words + super().get_content_blocks(metadata_mode)


class GeniusRetriever(BaseRetriever):
    """Retrieves nodes for words, an image, or both: `ImageNode` for items with an image, else `TextNode`.

    Searches with `query_str` and `image_path` of a QueryBundle and ignores its embeddings. An image in a file is
    returned as `image_path`, any other as `image` in base64. A node's metadata are the item's metadata, overlaid with
    `id`, `score`, `modality` and `codes`; prompts leave out the last three.

    >>> GeniusRetriever(Index.open("photos.genius"), k=4, target="image")  # doctest: +SKIP

    Args:
        source: An Index or a Client.
        k: Number of nodes.
        target: See `Query`.
        instruction: See `Query`.
        image_size: Maximum side in pixels of images fetched by a Client; None fetches no images.
        **options: See `Index.search`.
    """

    def __init__(
        self,
        source: SearchSource,
        k: int = SearchOptions.k,
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
    item = hit.item.plain(None) if isinstance(hit.item, RemoteItem) else hit.item  # no image was asked for
    fields: dict[str, Any] = {
        "id_": hit.id,
        "text": item.text or "",
        "metadata": hit_metadata(hit),
        "excluded_llm_metadata_keys": _NOT_FOR_PROMPTS,
        "excluded_embed_metadata_keys": _NOT_FOR_PROMPTS,
    }
    if isinstance(item.image, bytes):
        return CaptionedImageNode(image=base64.b64encode(item.image).decode(), **fields)
    if isinstance(item.image, str | os.PathLike):
        return CaptionedImageNode(image_path=os.fspath(item.image), **fields)
    return TextNode(**fields)
