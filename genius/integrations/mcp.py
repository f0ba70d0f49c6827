"""An MCP server: assistants search an index, look at items and walk the tree of codes.

Speaks the Model Context Protocol on standard input and output. It only reads: no tool writes, and no path or address
that a model gives is ever opened. Answers at once; the indexes are opened, and their models loaded, in a thread.
Knows nothing of HTTP. Needs the `mcp` package (`genius-search[mcp]`).
"""

import base64
import binascii
import io
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self
from urllib.parse import quote, unquote

import anyio
import anyio.to_thread
from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from genius import __version__
from genius.data.images import load_image
from genius.data.items import Item, Query, printable
from genius.errors import BadImage, GeniusError
from genius.index.filters import FUNCTIONS

if TYPE_CHECKING:
    from genius.index.index import Index
    from genius.model.genius import Genius
    from genius.search.results import CodedItem, Hit

LARGEST_IMAGE = 20_000_000
"""Bytes of an image that is searched with."""
IMAGES = 8
"""Thumbnails in one answer, at most."""
THUMBNAIL = 256
"""Pixels along the longer side; of one item alone, twice as many."""
THUMBNAIL_BYTES = 60_000
TEXT = 500
"""Characters of a text in a list; one item alone shows more."""
WHOLE_TEXT = 20_000
METADATA = 2_000
"""Characters of an item's metadata as JSON in a list."""
WHOLE_METADATA = 50_000
AT_ONCE = 2
"""Tools that run at the same time; others wait."""
REFRESH = 2.0
"""Seconds after which what other programs have written to an index is seen."""

CONDITION = (
    "SQL condition over id, text, modality ('image', 'text' or 'image,text') and the metadata fields that "
    "describe_index lists, for example: lang = 'en' AND year >= 2000. Names that are no plain words stand between "
    f"backticks. Functions: {', '.join(FUNCTIONS)}."
)
INSTRUCTIONS = (
    "Search collections of images, texts and images with texts by their meaning. Begin with describe_index: it "
    "says what there is and which fields conditions can use. Then search with words, with an image, with both "
    '("this, but in red"), or with an item that was found before (like). Every item has an ID, a sequence of codes; '
    "items that share their first codes are alike, and browse_codes shows them."
)
_log = logging.getLogger(__name__)


# What goes in


class Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")

    index: Annotated[str | None, Field(description="Name of the index; the first one unless told.")] = None


class SearchArguments(Arguments):
    text: Annotated[str | None, Field(max_length=10_000, description="What to look for, in words.")] = None
    image: Annotated[
        str | None,
        Field(
            max_length=LARGEST_IMAGE * 4 // 3 + 100,
            description="An image to search with: the bytes of a PNG, JPEG or WebP file in base64. Neither a path "
            "nor an address.",
        ),
    ] = None
    like: Annotated[
        str | None,
        Field(
            description="Id of an item to search with instead of an image of your own. With text: its image "
            "and these words, as in: this, but in red."
        ),
    ] = None
    target: Annotated[
        Literal["image", "text", "image,text"] | None,
        Field(description="Which kind of items is wanted; left out, any kind may come."),
    ] = None
    instruction: Annotated[
        str | None,
        Field(
            max_length=1_000,
            description='What to do with text and image, as a sentence such as "Find the product photo."',
        ),
    ] = None
    where: Annotated[str | None, Field(description=f"Only items that satisfy this. {CONDITION}")] = None
    k: Annotated[int, Field(ge=1, le=50, description="How many items, best first.")] = 10
    images: Annotated[
        int, Field(ge=0, le=IMAGES, description="How many of the best images are shown as thumbnails.")
    ] = 4

    @model_validator(mode="after")
    def _something(self) -> Self:
        if self.image is not None and self.like is not None:
            raise ValueError("image and like cannot be used together; give one of them")
        if self.image is None and self.like is None and not (self.text or "").strip():
            raise ValueError("there is nothing to search with; give text, image or like")
        return self


class ItemArguments(Arguments):
    id: Annotated[str, Field(min_length=1, max_length=4_096, description="The item's id, as a search shows it.")]


class CodesArguments(Arguments):
    codes: Annotated[
        list[Annotated[int, Field(ge=0)] | None],
        Field(
            max_length=64,
            description="The codes with which an ID begins; null stands for any. The first is the kind: 0 image, 1 "
            "text, 2 image with text. Empty: all items.",
        ),
    ] = []
    limit: Annotated[int, Field(ge=1, le=50, description="How many items are listed.")] = 10
    offset: Annotated[int, Field(ge=0, le=10**9, description="How many items are passed over first.")] = 0
    images: Annotated[
        int, Field(ge=0, le=IMAGES, description="How many of the items' images are shown as thumbnails.")
    ] = 4


class DescribeArguments(Arguments):
    index: Annotated[str | None, Field(description="Name of the index; all of them unless told.")] = None


# What comes out


class ItemOut(BaseModel):
    id: str
    modality: Annotated[str, Field(description='"image", "text" or "image,text".')]
    text: Annotated[str | None, Field(description="In lists, the beginning of a long text; get_item shows more.")]
    metadata: dict[str, Any]
    has_image: bool
    codes: Annotated[list[int], Field(description="The item's ID. Items that share the first codes are alike.")]


class HitOut(ItemOut):
    score: Annotated[float, Field(description="How near the item is; higher is better, 1 is the most.")]


class SearchOut(BaseModel):
    index: str
    items: Annotated[int, Field(description="How many items the index holds.")]
    hits: Annotated[list[HitOut], Field(description="Best first.")]


class ItemAnswer(BaseModel):
    index: str
    item: ItemOut


class ChildOut(BaseModel):
    code: int
    items: Annotated[int, Field(description="How many items have this code next.")]
    example: Annotated[str, Field(description="Id of one of them.")]


class CodesOut(BaseModel):
    index: str
    codes: list[int | None]
    total: Annotated[int, Field(description="How many items have these codes.")]
    ids: Annotated[int, Field(description="How many distinct IDs they have.")]
    children: Annotated[list[ChildOut], Field(description="The codes that come next, most items first.")]
    more_children: Annotated[int, Field(description="How many further codes come next and are not listed.")]
    items: list[ItemOut]


class IndexOut(BaseModel):
    name: str
    items: int
    modalities: Annotated[dict[str, int], Field(description="How many items there are of each kind.")]
    fields: Annotated[
        dict[str, str], Field(description='Metadata fields for conditions: "text", "number" or "boolean".')
    ]
    levels: Annotated[int, Field(description="How many codes an ID has.")]
    sizes: Annotated[list[int], Field(description="How many codes each level has.")]
    model: str | None
    version: int
    examples: Annotated[list[ItemOut], Field(description="A few items.")]


class DescribeOut(BaseModel):
    indexes: list[IndexOut]
    conditions: Annotated[str, Field(description="How the argument `where` of search is written.")] = CONDITION


@dataclass(frozen=True)
class Reply:
    """What a tool answers, and the items whose images are shown with it."""

    out: BaseModel
    images: list[Item] = field(default_factory=list)
    size: int = THUMBNAIL


# The tools


def search(name: str, index: "Index", asked: SearchArguments) -> Reply:
    query = _query(index, asked)
    hits = index.search(query, k=asked.k, where=asked.where)
    shown = [hit.item for hit in hits if hit.item.image is not None][: asked.images]
    return Reply(SearchOut(index=name, items=len(index), hits=[_hit(hit) for hit in hits]), shown)


def get_item(name: str, index: "Index", asked: ItemArguments) -> Reply:
    found = _coded(index, asked.id)
    shown = [] if found.item.image is None else [found.item]
    return Reply(ItemAnswer(index=name, item=_item(found, WHOLE_TEXT, WHOLE_METADATA)), shown, 2 * THUMBNAIL)


def browse_codes(name: str, index: "Index", asked: CodesArguments) -> Reply:
    _check_codes(index, asked.codes)
    page = index.browse_codes(asked.codes, limit=asked.limit, offset=asked.offset)
    out = CodesOut(
        index=name,
        codes=asked.codes,
        total=page.total,
        ids=page.ids,
        children=[ChildOut(code=one.code, items=one.items, example=one.example) for one in page.children[:60]],
        more_children=max(0, len(page.children) - 60),
        items=[_item(one) for one in page.items],
    )
    return Reply(out, [one.item for one in page.items if one.item.image is not None][: asked.images])


def describe(name: str, index: "Index") -> IndexOut:
    info = index.info()
    return IndexOut(
        name=name,
        items=info.items,
        modalities=info.modalities,
        fields=info.fields,
        levels=len(info.sizes),
        sizes=list(info.sizes),
        model=None if info.model is None else os.path.basename(info.model),
        version=info.version,
        examples=[_item(one) for one in index.browse_codes([], limit=3).items],
    )


def _query(index: "Index", asked: SearchArguments) -> Query:
    image = None if asked.image is None else _image(asked.image)
    if asked.like is None:
        return Query(asked.text, image, asked.instruction, asked.target)
    item = _coded(index, asked.like).item
    words = (asked.text or "").strip()
    text = words if words and item.image is not None else f"{item.text or ''} {words}".strip()
    return Query(text, item.image, asked.instruction, asked.target)


def _image(encoded: str) -> bytes:
    """The bytes of an image in base64, also of a data URL."""
    if encoded.startswith("data:"):
        encoded = encoded.partition(",")[2]
    try:
        image = base64.b64decode("".join(encoded.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadImage(
            f"image is not base64 ({error}). Give the bytes of a PNG, JPEG or WebP file in base64; paths and addresses "
            "are not opened."
        ) from error
    if len(image) > LARGEST_IMAGE:
        raise BadImage(f"The image has {len(image):,} bytes; at most {LARGEST_IMAGE:,} are read. Make it smaller.")
    return image


def _coded(index: "Index", id: str) -> "CodedItem":
    found = index.get_coded(id)
    if found is None:
        raise GeniusError(f"There is no item {printable(id)[:200]!r} in this index. Use an id that a search has shown.")
    return found


def _check_codes(index: "Index", codes: list[int | None]) -> None:
    sizes = index.header.sizes
    if len(codes) > len(sizes):
        raise GeniusError(f"There are {len(codes)} codes; an ID of this index has {len(sizes)}. Give fewer.")
    for level, (code, size) in enumerate(zip(codes, sizes, strict=False), 1):
        if code is not None and code >= size:
            raise GeniusError(f"Code {level} is {code}; it must be below {size}, or null for any.")


def _item(coded: "CodedItem", longest: int = TEXT, metadata: int = METADATA) -> ItemOut:
    item = coded.item
    return ItemOut(
        id=item.id,
        modality=item.modality.label,
        text=_shorten(item.text, longest),
        metadata=_some(item.metadata, metadata),
        has_image=item.image is not None,
        codes=list(coded.codes),
    )


def _hit(hit: "Hit") -> HitOut:
    return HitOut(
        id=hit.id,
        modality=hit.modality.label,
        text=_shorten(hit.item.text, TEXT),
        metadata=_some(hit.item.metadata, METADATA),
        has_image=hit.item.image is not None,
        codes=list(hit.codes),
        score=round(hit.score, 4),
    )


def _shorten(text: str | None, longest: int) -> str | None:
    return text if text is None or len(text) <= longest else text[:longest] + " ..."


def _some(metadata: dict[str, Any], most: int) -> dict[str, Any]:
    """The first entries, as many as fit."""
    kept: dict[str, Any] = {}
    for key, value in metadata.items():
        most -= len(key) + len(json.dumps(value))
        if most >= 0:
            kept[key] = value
    return kept


# Images for the eyes


def thumbnail(item: Item, size: int) -> bytes | None:
    """A small JPEG of the item's image; None if it cannot be read, or is not small enough even so."""
    assert item.image is not None
    try:
        image = load_image(item.image)
    except BadImage:
        return None
    image.thumbnail((size, size))
    for quality in (80, 40):
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        if file.tell() <= THUMBNAIL_BYTES:
            return file.getvalue()
    return None


def _content(reply: Reply) -> list[types.ContentBlock]:
    """The answer as text, for clients that do not read structured content, and the thumbnails, each after its name."""
    blocks: list[types.ContentBlock] = [types.TextContent(text=reply.out.model_dump_json())]
    for item in reply.images:
        image = thumbnail(item, reply.size)
        if image is None:
            blocks.append(types.TextContent(text=f"The image of {item.id} cannot be shown: its file is not readable."))
            continue
        blocks.append(types.TextContent(text=f"Image of {item.id}:"))
        blocks.append(types.ImageContent(data=base64.b64encode(image).decode(), mime_type="image/jpeg"))
    return blocks


# The server


@dataclass(frozen=True)
class _Tool:
    title: str
    description: str
    arguments: type[Arguments]
    out: type[BaseModel]
    run: Callable[[str, "Index", Any], Reply] | None  # None: of several indexes at once


TOOLS = {
    "search": _Tool(
        "Search",
        "Find the items of an index that best answer words, an image, or both. Words are matched by meaning, not by "
        "letter. The best images come as thumbnails.",
        SearchArguments,
        SearchOut,
        search,
    ),
    "get_item": _Tool(
        "Get item",
        "One item by its id: its whole text, metadata, codes and image.",
        ItemArguments,
        ItemAnswer,
        get_item,
    ),
    "browse_codes": _Tool(
        "Browse codes",
        "Walk the tree of codes: which items have an ID that begins with these codes, and which codes come next. The "
        "more codes items share, the more alike they are.",
        CodesArguments,
        CodesOut,
        browse_codes,
    ),
    "describe_index": _Tool(
        "Describe index",
        "What can be searched: how many images, texts and pairs there are, the metadata fields that conditions can "
        "name, and a few examples. Call it first.",
        DescribeArguments,
        DescribeOut,
        None,
    ),
}


class GeniusServer:
    """Tools and resources over indexes by name; the first one is meant where a client names none."""

    def __init__(self, paths: Mapping[str, Path]) -> None:
        self._paths = dict(paths)
        self._indexes: dict[str, Future[Index]] = {name: Future() for name in paths}
        self._limit = anyio.CapacityLimiter(AT_ONCE)
        self._loading = threading.Thread(target=self._load, name="loading", daemon=True)
        self.server: Server[dict[str, Any]] = Server(
            "genius",
            version=__version__,
            title="GENIUS search",
            instructions=INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
        )

    async def serve(self) -> None:
        """Answer on standard input and output until the input ends."""
        async with stdio_server() as (reading, writing):
            self._loading.start()
            await self.server.run(reading, writing, self.server.create_initialization_options())

    @property
    def loading(self) -> bool:
        return self._loading.is_alive()

    def _load(self) -> None:
        """Open the indexes and ask each one something, so that models and compiled code are ready.

        Indexes of one model share it.
        """
        models: dict[str, Genius] = {}
        for name, path in self._paths.items():
            try:
                from genius.index.index import Index

                index = Index.open(path, refresh=REFRESH)
                fingerprint = index.header.fingerprint
                if fingerprint in models:
                    index = Index.open(path, models[fingerprint], refresh=REFRESH)
                index.search(Query(text="ready"), k=1)
                models[fingerprint] = index.model
                self._indexes[name].set_result(index)
            except Exception as error:  # told to whoever asks
                _log.warning("%s", error)
                self._indexes[name].set_exception(error)

    async def _index(self, name: str, ctx: ServerRequestContext[Any, Any]) -> "Index":
        """The open index; says that it is loading to a client that wants to know."""
        future = self._indexes[name]
        if not future.done():
            await ctx.session.report_progress(0, 1, "Opening the index and loading its model.")
            await anyio.to_thread.run_sync(lambda: future.exception(), abandon_on_cancel=True)
            await ctx.session.report_progress(1, 1, "The index is ready.")
        return future.result()

    def _name(self, given: str | None) -> str:
        name = next(iter(self._paths)) if given is None else given
        if name not in self._paths:
            raise GeniusError(f"There is no index {printable(name)[:200]!r}. There are: {', '.join(self._paths)}.")
        return name

    async def _list_tools(
        self, ctx: ServerRequestContext[Any, Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[self._described(name) for name in TOOLS])

    def _described(self, name: str) -> types.Tool:
        tool, schema = TOOLS[name], TOOLS[name].arguments.model_json_schema()
        if len(self._paths) > 1:
            schema["properties"]["index"]["enum"] = [*self._paths, None]
        else:
            del schema["properties"]["index"]
        return types.Tool(
            name=name,
            title=tool.title,
            description=tool.description,
            input_schema=schema,
            output_schema=tool.out.model_json_schema(),
            annotations=types.ToolAnnotations(
                title=tool.title,
                read_only_hint=True,
                destructive_hint=False,
                idempotent_hint=True,
                open_world_hint=False,
            ),
        )

    async def _call_tool(
        self, ctx: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        tool = TOOLS.get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"There is no tool {params.name!r}. There are: {', '.join(TOOLS)}.")
        try:
            asked = tool.arguments.model_validate(params.arguments or {})
            reply = await self._answer(ctx, tool, asked)
            content = await anyio.to_thread.run_sync(_content, reply, limiter=self._limit)
        except ValidationError as error:
            return _refusal(_sentences(error))
        except GeniusError as error:
            return _refusal(str(error))
        except Exception:
            _log.exception("The tool %s failed.", params.name)
            return _refusal(f"The tool {params.name} failed for a reason that it did not foresee; its log says more.")
        return types.CallToolResult(content=content, structured_content=reply.out.model_dump(mode="json"))

    async def _answer(self, ctx: ServerRequestContext[Any, Any], tool: _Tool, asked: Arguments) -> Reply:
        if tool.run is None:
            names = list(self._paths) if asked.index is None else [self._name(asked.index)]
            return Reply(DescribeOut(indexes=[await self._describe(ctx, name) for name in names]))
        name = self._name(asked.index)
        index = await self._index(name, ctx)
        return await anyio.to_thread.run_sync(tool.run, name, index, asked, limiter=self._limit)

    async def _describe(self, ctx: ServerRequestContext[Any, Any], name: str) -> IndexOut:
        index = await self._index(name, ctx)
        return await anyio.to_thread.run_sync(describe, name, index, limiter=self._limit)

    # Resources: genius://INDEX describes an index, genius://INDEX/items/ID is an item

    async def _list_resources(
        self, ctx: ServerRequestContext[Any, Any], params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        return types.ListResourcesResult(
            resources=[
                types.Resource(
                    uri=f"genius://{quote(name, safe='')}",
                    name=name,
                    title=f"The index {name}",
                    description="What the index holds, and the fields that conditions can name.",
                    mime_type="application/json",
                )
                for name in self._paths
            ]
        )

    async def _list_templates(
        self, ctx: ServerRequestContext[Any, Any], params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(
            uri_template="genius://{index}/items/{id}",
            name="item",
            title="An item",
            description="An item as JSON, and its image, made small. The id is percent-encoded.",
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def _read_resource(
        self, ctx: ServerRequestContext[Any, Any], params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        uri = str(params.uri)
        host, _, rest = uri.removeprefix("genius://").partition("/")
        id = unquote(rest.removeprefix("items/")) if rest.startswith("items/") else None
        try:
            name = self._name(unquote(host))
            if not uri.startswith("genius://") or (rest and not id):
                raise GeniusError("Resources are genius://INDEX and genius://INDEX/items/ID.")
            if id is None:
                return _resource(uri, Reply(await self._describe(ctx, name)))
            index = await self._index(name, ctx)
            reply = await anyio.to_thread.run_sync(get_item, name, index, ItemArguments(id=id), limiter=self._limit)
            return await anyio.to_thread.run_sync(_resource, uri, reply, limiter=self._limit)
        except ValidationError as error:
            raise MCPError(types.INVALID_PARAMS, _sentences(error)) from error
        except GeniusError as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from error


def _resource(uri: str, reply: Reply) -> types.ReadResourceResult:
    contents: list[types.TextResourceContents | types.BlobResourceContents] = [
        types.TextResourceContents(uri=uri, mime_type="application/json", text=reply.out.model_dump_json())
    ]
    for item in reply.images:
        image = thumbnail(item, reply.size)
        if image is not None:
            blob = base64.b64encode(image).decode()
            contents.append(types.BlobResourceContents(uri=uri, mime_type="image/jpeg", blob=blob))
    return types.ReadResourceResult(contents=contents)


def _refusal(sentence: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=sentence)], is_error=True)


def _sentences(error: ValidationError) -> str:
    """What is wrong with the arguments, one sentence each."""
    said = []
    for one in error.errors(include_url=False, include_context=False, include_input=False):
        place = ".".join(map(str, one["loc"]))
        reason = one["msg"].removeprefix("Value error, ")
        said.append(f"{place}: {reason}." if place else f"{reason[0].upper()}{reason[1:]}.")
    return " ".join(said)


def serve(paths: Mapping[str, Path]) -> None:
    """Serve these indexes to the assistant at the other end of standard input and output, until it hangs up."""
    server = GeniusServer(paths)
    anyio.run(server.serve)
    if server.loading:  # nobody wants the model any more, and Python would wait for it
        os._exit(0)
