"""What routes share: which index is meant, what an item looks like in an answer, and which errors there can be."""

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

from fastapi import Depends, Query, Request
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import ClientDisconnect

from genius.data.items import Item, Modality
from genius.errors import BadItem
from genius.index.index import Index
from genius.search.results import CodedItem
from genius.serve.problems import Problem, quoted
from genius.serve.schemas import LIMIT, Error, too_much
from genius.serve.served import Busy, Served
from genius.serve.settings import Settings

T = TypeVar("T")


class Anything(Convertor[str]):
    """The rest of an address, slashes and line breaks included: any id may stand there."""

    regex = "(?s:.+)"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return quote(value, safe="")


register_url_convertor("anything", Anything())

IndexName = Annotated[
    str | None, Query(alias="index", description="Name of the index; without it, the first one.", max_length=200)
]


def named(request: Request, name: str | None) -> Served:
    """The index that is meant."""
    served: dict[str, Served] = request.app.state.served
    if name is None:
        return next(iter(served.values()))
    if name not in served:
        raise Problem(404, f"There is no index {quoted(name)}. /v1/indexes lists those there are.", "index")
    return served[name]


async def _ready(request: Request, name: IndexName = None) -> Served:
    one = named(request, name)
    if not one.ready:
        raise Busy(f"The index {one.name!r} is being loaded, or closed. Try again in a few seconds.")
    return one


Ready = Annotated[Served, Depends(_ready)]
"""The index that is meant, loaded."""


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What the work gives, or ClientDisconnect: it is given up when the client is no longer there to hear of it."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        gone.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def most(setting: str) -> dict[str, Any]:
    """For the description of a number in an address: the setting that limits it."""
    return {LIMIT: setting}


def check_most(settings: Settings, setting: str, name: str, value: int | str) -> None:
    complaint = too_much(settings, setting, value)
    if complaint:
        raise Problem(422, f"`{name}` {complaint}", name)


Limit = Annotated[int, Query(ge=1, description="How many items to list.", json_schema_extra=most("max_page"))]
Offset = Annotated[int, Query(ge=0, le=1 << 40, description="How many items to pass over.")]
WhereParameter = Annotated[
    str | None,
    Query(max_length=10_000, description="Only items that satisfy this condition.", examples=["modality = 'text'"]),
]

_MEANINGS = {
    400: "The request cannot be understood.",
    404: "There is no such thing.",
    409: "The thing is not in a state in which this can be done.",
    413: "The body is too large.",
    415: "The body is of a type that is not taken.",
    422: "A value is wrong.",
    503: "Too much waits already, or the index is being loaded. `Retry-After` says when to try again.",
}
_ALWAYS = {
    401: "The key is missing or unknown.",
    403: "The key, or the settings of the service, do not allow this.",
    408: "The body did not come in time.",
    429: "Too many requests. `Retry-After` says when to try again.",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error answers of an operation, for the description."""
    meanings = {**{status: _MEANINGS[status] for status in statuses}, **_ALWAYS}
    return {status: {"model": Error, "description": meanings[status]} for status in sorted(meanings)}


# Items in answers


def image_url(item: Item, index: str) -> str | None:
    if item.image is None:
        return None
    return f"/v1/images/{quote(item.id, safe='')}?index={quote(index, safe='')}"


def item_address(id: str, index: str) -> str:
    return f"/v1/items/{quote(id, safe='')}?index={quote(index, safe='')}"


def coded_of(index: Index, ids: list[str]) -> list[CodedItem]:
    """Those of these items that are there."""
    return [coded for coded in index.get_coded(ids) if coded is not None]


def modality_of(coded: CodedItem) -> Modality:
    """What the item has, or, where only its vector is kept, what its first code says."""
    try:
        return coded.item.modality
    except BadItem:
        return Modality(min(coded.codes[0], Modality.IMAGE_TEXT))


def shown(coded: CodedItem, index: str) -> dict[str, Any]:
    """An item as answers have it."""
    item = coded.item
    return {
        "id": item.id,
        "modality": modality_of(coded).label,
        "text": item.text,
        "metadata": item.metadata,
        "codes": list(coded.codes),
        "image_url": image_url(item, index),
    }
