"""Shared by the routes: the selected index, parameters, error descriptions, and items as JSON."""

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

from fastapi import Depends, Query, Request
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import ClientDisconnect

from genius.data.items import Item, Modality
from genius.errors import BadItem, GeniusError
from genius.index.index import Index
from genius.search.options import parse_pattern
from genius.search.results import CodedItem
from genius.serve.hosted import HostedIndex
from genius.serve.limits import MAX_PAGE, MAX_WHERE, NOT_READY, ServiceUnavailable
from genius.serve.problems import HttpProblem, quote_name
from genius.serve.schemas import ErrorResponse

T = TypeVar("T")


class AnyPath(Convertor[str]):
    """The rest of an address, including slashes and line breaks: ids may contain any character."""

    regex = "(?s:.+)"

    def convert(self, value: str) -> str:
        """The value itself."""
        return value

    def to_string(self, value: str) -> str:
        """The value, percent-encoded."""
        return quote(value, safe="")


register_url_convertor("anypath", AnyPath())

IndexName = Annotated[
    str | None, Query(alias="index", description="Name of the index. Default: the first one.", max_length=200)
]


def find_index(request: Request, name: str | None) -> HostedIndex:
    """The index with this name; without a name, the default."""
    served: dict[str, HostedIndex] = request.app.state.served
    chosen: str = request.app.state.default if name is None else name
    if chosen in request.app.state.failed:
        raise HttpProblem(
            503, f"The index {quote_name(chosen)} could not be loaded. The log of the service has the reason.", "index"
        )
    if chosen not in served:
        raise HttpProblem(404, f"There is no index {quote_name(chosen)}. /v1/indexes lists the indexes.", "index")
    return served[chosen]


async def _ready_index(request: Request, name: IndexName = None) -> HostedIndex:
    one = find_index(request, name)
    if not one.ready:
        raise ServiceUnavailable(NOT_READY)
    return one


ReadyIndex = Annotated[HostedIndex, Depends(_ready_index)]
"""The selected index, loaded."""


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`; cancel it and raise ClientDisconnect if the client disconnects."""
    task, disconnect = asyncio.ensure_future(work), asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait((task, disconnect), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        disconnect.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Maximum number of items to list.")]
Offset = Annotated[int, Query(ge=0, le=1 << 40, description="Number of items to skip.")]
Where = Annotated[
    str | None,
    Query(max_length=MAX_WHERE, description="Filter: an SQL condition.", examples=["modality = 'text'"]),
]

_DESCRIPTIONS = {
    400: "The request is malformed.",
    404: "Not found.",
    409: "The state of the resource does not allow this.",
    413: "The body is too large.",
    415: "The content type is not supported.",
    422: "A value is invalid.",
    503: "Too many requests are waiting, or the index is loading. `Retry-After` says when to try again.",
}
_COMMON = {
    401: "The key is missing or unknown.",
    403: "The key or the settings of the service do not allow this.",
    408: "The body did not arrive in time.",
    429: "Too many requests. `Retry-After` says when to try again.",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of an operation, for the OpenAPI description."""
    described = {**{status: _DESCRIPTIONS[status] for status in statuses}, **_COMMON}
    return {status: {"model": ErrorResponse, "description": described[status]} for status in sorted(described)}


def parse_codes(pattern: str, sizes: tuple[int, ...], field: str) -> list[int | None]:
    """The codes of a pattern. Codes that cannot occur are errors; codes without items are not.

    Args:
        pattern: See `parse_pattern`.
        sizes: Number of codes of each level.
        field: The request field or parameter that holds the pattern.
    """
    try:
        codes = list(parse_pattern(pattern))
    except GeniusError as error:
        raise HttpProblem(422, str(error), field) from error
    if len(codes) > len(sizes):
        raise HttpProblem(422, f"`{field}` has {len(codes)} codes; the IDs of this index have {len(sizes)}.", field)
    for level, (code, size) in enumerate(zip(codes, sizes, strict=False)):
        if code is not None and code >= size:
            raise HttpProblem(422, f"Code {code} is too high: level {level + 1} has codes 0 to {size - 1}.", field)
    return codes


def item_url(route: str, id: str, index: str) -> str:
    """The address of an item (`route` "items") or of its thumbnail ("images")."""
    return f"/v1/{route}/{quote(id, safe='')}?index={quote(index, safe='')}"


def get_coded(index: Index, ids: list[str]) -> list[CodedItem]:
    """The items that exist, with their codes."""
    return [coded for coded in index.get_coded(ids) if coded is not None]


def item_json(item: Item, modality: Modality, index: str) -> dict[str, Any]:
    """The fields that every response has for an item."""
    return {
        "id": item.id,
        "modality": modality.label,
        "text": item.text,
        "metadata": item.metadata,
        "image_url": None if item.image is None else item_url("images", item.id, index),
    }


def modality_of(coded: CodedItem) -> Modality:
    """The modality of the item; if only its vector is stored, that of its first code."""
    try:
        return coded.item.modality
    except BadItem:
        return Modality(min(coded.codes[0], Modality.IMAGE_TEXT))


def coded_json(coded: CodedItem, index: str) -> dict[str, Any]:
    """An item with its codes."""
    return {**item_json(coded.item, modality_of(coded), index), "codes": list(coded.codes)}
