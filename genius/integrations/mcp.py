"""MCP server: assistants search indexes, read items and browse codes.

Speaks the Model Context Protocol on standard input and output. All tools only read, and no path or URL that a client
sends is opened. Needs the `mcp` package: pip install "genius-search[mcp]".
"""

import base64
import binascii
import functools
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

from mcp.server.mcpserver import MCPServer, ResourceSecurity
from mcp.server.mcpserver.exceptions import MCPServerError, ResourceNotFoundError, ToolError
from mcp.server.mcpserver.resources import FunctionResource
from mcp.server.mcpserver.tools import Tool
from mcp.types import CallToolResult, ContentBlock, ImageContent, TextContent, ToolAnnotations
from pydantic import BaseModel, Field

from genius import __version__
from genius.data.images import thumbnail
from genius.data.items import Item, Query, printable
from genius.errors import BadImage, GeniusError
from genius.index.filters import FUNCTIONS
from genius.search.options import SearchOptions

if TYPE_CHECKING:
    from genius.index.index import Index
    from genius.model.genius import Genius
    from genius.search.results import CodedItem

MAX_IMAGES = 8
"""Maximum number of thumbnails in one answer."""
THUMBNAIL_SIZE = 256
"""Length of a thumbnail's longer side in pixels. `get_item` shows twice as much."""
REFRESH_SECONDS = 2.0
"""Interval at which indexes look for changes made by other programs."""

FILTER_HELP = (
    "An SQL filter over id, text, modality ('image', 'text' or 'image,text') and the metadata fields that "
    "describe_index lists, for example: lang = 'en' AND year >= 2000. Quote field names that are not identifiers with "
    f"backticks. Functions: {', '.join(FUNCTIONS)}."
)
INSTRUCTIONS = (
    "Search collections of images, texts and images with texts by meaning. Start with describe_index: it lists the "
    "indexes, their contents and the fields that filters can use. Then search with words, an image, both (for example "
    "a photo and the words: the same in red), or an item found earlier (like). Every item has a semantic ID, a "
    "sequence of codes. Items that share their first codes are similar; browse_codes lists them."
)
READ_ONLY = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
_log = logging.getLogger(__name__)

IndexName = Annotated[str | None, Field(description="Name of the index. Default: the first index.")]
ItemId = Annotated[str, Field(min_length=1, max_length=4_096, description="The item's id, as shown by search.")]
ImageCount = Annotated[int, Field(ge=0, le=MAX_IMAGES, description="Maximum number of thumbnails in the answer.")]


class ItemOut(BaseModel):
    """An item of an index."""

    id: str
    modality: Annotated[str, Field(description='"image", "text" or "image,text".')]
    text: Annotated[str | None, Field(description="Long texts are shortened in lists; get_item returns more.")]
    metadata: dict[str, Any]
    has_image: bool
    codes: Annotated[list[int], Field(description="The semantic ID. Items that share the first codes are similar.")]


class HitOut(ItemOut):
    """A search result."""

    score: Annotated[float, Field(description="Similarity of query and item; higher is better, 1 is the maximum.")]


class SearchOut(BaseModel):
    """Answer of the tool `search`."""

    index: str
    items: Annotated[int, Field(description="Number of items in the index.")]
    hits: Annotated[list[HitOut], Field(description="Best first.")]


class GetItemOut(BaseModel):
    """Answer of the tool `get_item`."""

    index: str
    item: ItemOut


class CodeChildOut(BaseModel):
    """A code that can come next."""

    code: int
    items: Annotated[int, Field(description="Number of items with this code.")]
    example: Annotated[str, Field(description="Id of one of these items.")]


class BrowseCodesOut(BaseModel):
    """Answer of the tool `browse_codes`."""

    index: str
    codes: list[int | None]
    total: Annotated[int, Field(description="Number of items with these codes.")]
    ids: Annotated[int, Field(description="Number of distinct semantic IDs among them.")]
    children: Annotated[list[CodeChildOut], Field(description="The next codes, most items first.")]
    more_children: Annotated[int, Field(description="Number of further next codes that are not listed.")]
    items: list[ItemOut]


class IndexOut(BaseModel):
    """Description of an index."""

    name: str
    items: int
    modalities: Annotated[dict[str, int], Field(description="Number of items of each modality.")]
    fields: Annotated[dict[str, str], Field(description='Metadata fields and types: "text", "number" or "boolean".')]
    levels: Annotated[int, Field(description="Number of codes in a semantic ID.")]
    sizes: Annotated[list[int], Field(description="Number of possible codes at each level.")]
    model: str | None
    version: int
    examples: Annotated[list[ItemOut], Field(description="A few items.")]


class DescribeIndexOut(BaseModel):
    """Answer of the tool `describe_index`."""

    indexes: list[IndexOut]
    filters: Annotated[str, Field(description="How to write the argument `where` of search.")] = FILTER_HELP


class IndexTools:
    """The tools and resources. Indexes open in a background thread; a call waits until its index is ready."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._models: dict[str, Genius] = {}
        executor = ThreadPoolExecutor(1)
        self._indexes: dict[str, Future[Index]] = {name: executor.submit(self._open, paths[name]) for name in paths}
        self.names = list(paths)

    @property
    def loading(self) -> bool:
        """Whether an index is still being opened."""
        return not all(future.done() for future in self._indexes.values())

    def _open(self, path: str) -> "Index":
        """Open an index and run one search, so that model and codes are loaded. Indexes share models."""
        from genius.index.index import Index

        try:
            index = Index.open(path, refresh=REFRESH_SECONDS)
            fingerprint = index.header.fingerprint
            if fingerprint in self._models:
                index = Index.open(path, self._models[fingerprint], refresh=REFRESH_SECONDS)
            index.search(Query(text="ready"), k=1)
            self._models[fingerprint] = index.model
        except Exception as error:
            _log.warning("%s", error)
            raise
        return index

    def _index(self, name: str | None) -> tuple[str, "Index"]:
        name = self.names[0] if name is None else name
        if name not in self._indexes:
            raise GeniusError(f"There is no index {printable(name)[:200]!r}. There are: {', '.join(self.names)}.")
        return name, self._indexes[name].result()

    def _get(self, index: str | None, id: str) -> tuple[GetItemOut, Item]:
        name, opened = self._index(index)
        found = _coded_item(opened, id)
        whole = _fields(found.item, found.codes, max_text=20_000, max_metadata=50_000)
        return GetItemOut(index=name, item=ItemOut(**whole)), found.item

    def search(
        self,
        text: Annotated[str | None, Field(max_length=10_000, description="Words to search for.")] = None,
        image: Annotated[
            str | None,
            Field(
                max_length=28_000_000,
                description="An image to search with: a PNG, JPEG or WebP file in base64, not a path or URL.",
            ),
        ] = None,
        like: Annotated[
            str | None,
            Field(description="Id of an item to search with, instead of an image. Combine with text to modify it."),
        ] = None,
        target: Annotated[
            Literal["image", "text", "image,text"] | None,
            Field(description="Modality of the items to find. Default: all modalities."),
        ] = None,
        instruction: Annotated[
            str | None,
            Field(max_length=1_000, description="The task as a sentence, for example: Find the product photo."),
        ] = None,
        where: Annotated[
            str | None, Field(description=f"Find only items that match this filter. {FILTER_HELP}")
        ] = None,
        k: Annotated[int, Field(ge=1, le=50, description="Maximum number of items, best first.")] = SearchOptions.k,
        images: ImageCount = 4,
        index: IndexName = None,
    ) -> Annotated[CallToolResult, SearchOut]:
        """Find the items of an index that best match words, an image, or both. Words are matched by meaning."""
        name, opened = self._index(index)
        hits = opened.search(_query(opened, text, image, like, instruction, target), k, where=where)
        found = [HitOut(**_fields(hit.item, hit.codes), score=round(hit.score, 4)) for hit in hits]
        return _result(SearchOut(index=name, items=len(opened), hits=found), (hit.item for hit in hits), images)

    def get_item(self, id: ItemId, index: IndexName = None) -> Annotated[CallToolResult, GetItemOut]:
        """Get one item by its id: full text, metadata, codes and image."""
        out, item = self._get(index, id)
        return _result(out, [item], 1, 2 * THUMBNAIL_SIZE)

    def browse_codes(
        self,
        codes: Annotated[
            list[Annotated[int, Field(ge=0)] | None],
            Field(
                max_length=64,
                description="First codes of the semantic ID; null matches any code. The first code is the modality: "
                "0 image, 1 text, 2 image with text. Default: all items.",
            ),
        ] = [],  # noqa: B006
        limit: Annotated[int, Field(ge=1, le=50, description="Maximum number of items.")] = 10,
        offset: Annotated[int, Field(ge=0, le=10**9, description="Number of items to skip.")] = 0,
        images: ImageCount = 4,
        index: IndexName = None,
    ) -> Annotated[CallToolResult, BrowseCodesOut]:
        """Browse the code tree: list the items whose semantic ID starts with these codes, and the next codes."""
        name, opened = self._index(index)
        page = opened.browse_codes(codes, limit=limit, offset=offset)
        children = [CodeChildOut(code=one.code, items=one.items, example=one.example) for one in page.children[:60]]
        out = BrowseCodesOut(
            index=name,
            codes=codes,
            total=page.total,
            ids=page.ids,
            children=children,
            more_children=len(page.children) - len(children),
            items=[ItemOut(**_fields(one.item, one.codes)) for one in page.items],
        )
        return _result(out, (one.item for one in page.items), images)

    def describe_index(
        self, index: Annotated[str | None, Field(description="Name of the index. Default: all indexes.")] = None
    ) -> DescribeIndexOut:
        """Describe the indexes: number of images, texts and pairs, fields for filters, examples. Call this first."""
        return DescribeIndexOut(indexes=[self.describe(name) for name in (self.names if index is None else [index])])

    def describe(self, name: str) -> IndexOut:
        """Describe one index."""
        name, opened = self._index(name)
        info = opened.info()
        return IndexOut(
            name=name,
            items=info.items,
            modalities=info.modalities,
            fields=info.fields,
            levels=len(info.sizes),
            sizes=list(info.sizes),
            model=None if info.model is None else os.path.basename(info.model),
            version=info.version,
            examples=[ItemOut(**_fields(one.item, one.codes)) for one in opened.browse_codes([], limit=3).items],
        )

    def item(self, index: str, id: str) -> GetItemOut:
        """An item as JSON."""
        return self._get(index, id)[0]

    def image(self, index: str, id: str) -> bytes:
        """An item's image as a JPEG thumbnail."""
        image = _jpeg(self._get(index, id)[1], 2 * THUMBNAIL_SIZE)
        if image is None:
            raise GeniusError(f"{printable(id)[:200]!r} has no readable image. Use an item with has_image.")
        return image


def _query(
    index: "Index", text: str | None, image: str | None, like: str | None, instruction: str | None, target: str | None
) -> Query:
    words = (text or "").strip()
    if image is not None and like is not None:
        raise GeniusError("image and like cannot be used together. Give one of them.")
    if like is not None:
        item = _coded_item(index, like).item
        replaces_text = words and item.image is not None
        return Query(words if replaces_text else f"{item.text or ''} {words}".strip(), item.image, instruction, target)
    if image is None and not words:
        raise GeniusError("There is nothing to search with. Give text, image or like.")
    return Query(text, None if image is None else _decode_image(image), instruction, target)


def _decode_image(encoded: str) -> bytes:
    """Decode an image from base64 or a data URL."""
    if encoded.startswith("data:"):
        encoded = encoded.partition(",")[2]
    try:
        return base64.b64decode("".join(encoded.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadImage(
            f"image is not base64 ({error}). Give a PNG, JPEG or WebP file in base64; paths and URLs are not opened."
        ) from error


def _coded_item(index: "Index", id: str) -> "CodedItem":
    found = index.get_coded(id)
    if found is None:
        raise GeniusError(f"There is no item {printable(id)[:200]!r} in this index. Use an id shown by search.")
    return found


def _fields(item: Item, codes: Iterable[int], max_text: int = 500, max_metadata: int = 2_000) -> dict[str, Any]:
    """The fields of `ItemOut`. Limits are in characters; metadata entries beyond the limit are left out."""
    text = item.text if item.text is None or len(item.text) <= max_text else item.text[:max_text] + " ..."
    metadata = {}
    for key, value in item.metadata.items():
        max_metadata -= len(key) + len(json.dumps(value))
        if max_metadata >= 0:
            metadata[key] = value
    return {
        "id": item.id,
        "modality": item.modality.label,
        "text": text,
        "metadata": metadata,
        "has_image": item.image is not None,
        "codes": list(codes),
    }


def _jpeg(item: Item, size: int) -> bytes | None:
    """The item's image as a JPEG thumbnail, or None if there is no readable image."""
    try:
        return None if item.image is None else thumbnail(item.image, size, "JPEG", quality=70)
    except BadImage:
        return None


def _result(out: BaseModel, items: Iterable[Item], images: int, size: int = THUMBNAIL_SIZE) -> CallToolResult:
    """Structured content, the same as text for clients that need it, and thumbnails with captions."""
    content: list[ContentBlock] = [TextContent(text=out.model_dump_json())]
    for item in [item for item in items if item.image is not None][:images]:
        image = _jpeg(item, size)
        if image is None:
            content.append(TextContent(text=f"The image of {item.id} cannot be shown: its file is not readable."))
        else:
            content.append(TextContent(text=f"Image of {item.id}:"))
            content.append(ImageContent(data=base64.b64encode(image).decode(), mime_type="image/jpeg"))
    return CallToolResult(content=content, structured_content=out.model_dump(mode="json"))


def _translated(function: Callable[..., Any], kind: type[MCPServerError]) -> Callable[..., Any]:
    """Raise a GeniusError as an error whose message the SDK passes on to the client."""

    @functools.wraps(function)
    def call(**arguments: Any) -> Any:
        try:
            return function(**arguments)
        except GeniusError as error:
            raise kind(str(error)) from error

    return call


def _tool(title: str, function: Callable[..., Any], names: list[str]) -> Tool:
    """A tool that refuses unknown arguments and, with several indexes, lists their names in its schema."""
    tool = Tool.from_function(_translated(function, ToolError), title=title, annotations=READ_ONLY)
    arguments = tool.fn_metadata.arg_model
    arguments.model_config["extra"] = "forbid"
    arguments.model_rebuild(force=True)
    tool.parameters = arguments.model_json_schema()
    if len(names) > 1:
        tool.parameters["properties"]["index"]["enum"] = [*names, None]
    else:
        del tool.parameters["properties"]["index"]
    return tool


def create_server(tools: IndexTools) -> MCPServer:
    """Create a server with the tools and the resources of the indexes."""
    functions: dict[str, Callable[..., Any]] = {
        "Search": tools.search,
        "Get item": tools.get_item,
        "Browse codes": tools.browse_codes,
        "Describe index": tools.describe_index,
    }
    server = MCPServer(
        "genius",
        title="GENIUS search",
        version=__version__,
        instructions=INSTRUCTIONS,
        tools=[_tool(title, function, tools.names) for title, function in functions.items()],
        resource_security=ResourceSecurity(exempt_params={"id"}),  # an id is never used as a path
        log_level="WARNING",
    )
    for name in tools.names:
        resource = FunctionResource(
            uri=f"genius://{quote(name, safe='')}",
            name=name,
            title=f"Index {name}",
            description="Contents of the index and the fields that filters can use.",
            mime_type="application/json",
            fn=_translated(functools.partial(tools.describe, name), ResourceNotFoundError),
        )
        server.add_resource(resource)
    item, image = (_translated(function, ResourceNotFoundError) for function in (tools.item, tools.image))
    server.resource("genius://{index}/items/{id}", title="Item", mime_type="application/json")(item)
    server.resource("genius://{index}/images/{id}", title="Image", mime_type="image/jpeg")(image)
    return server


def serve(paths: Mapping[str, str]) -> None:
    """Serve indexes by name on standard input and output until the input ends. The first one is the default."""
    tools = IndexTools(paths)
    create_server(tools).run()
    if tools.loading:  # do not wait for a model that is no longer needed
        os._exit(0)
