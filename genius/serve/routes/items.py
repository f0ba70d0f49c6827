"""Items: read, put, delete, list, and add many at once."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from genius.data.items import Item
from genius.errors import BadItem
from genius.search.results import CodedItem
from genius.serve.bodies import Part, decoded, is_text, plain_fields, read_body
from genius.serve.description import body_of
from genius.serve.examples import BULKS, ITEM_ANSWER, PUTS
from genius.serve.images import check_image
from genius.serve.json_answer import json_answer
from genius.serve.problems import Problem, quoted
from genius.serve.routes.access import (
    Limit,
    Offset,
    Ready,
    WhereParameter,
    check_most,
    coded_of,
    errors,
    item_address,
    most,
    shown,
)
from genius.serve.schemas import (
    Bulk,
    BulkAnswer,
    ItemAnswer,
    ItemsAnswer,
    NewItem,
    Put,
    PutAnswer,
)
from genius.serve.settings import Settings

router = APIRouter(tags=["items"])

_LOCATION = {"description": "Where the job can be followed.", "schema": {"type": "string"}}
_FORM = {
    "files": {"type": "array", "items": {"type": "string", "format": "binary"}, "description": "Images and texts."},
    "replace": {"type": "boolean", "default": True, "description": "Whether items may replace others."},
}

ItemId = Annotated[
    str,
    Path(
        min_length=1,
        description="The item's id. Slashes may stand as they are or as %2F.",
        examples=["cats/grooming"],
        json_schema_extra=most("max_id"),
    ),
]


@router.get(
    "/v1/items",
    operation_id="list_items",
    summary="List items.",
    description="Some of the items in the order of the index, all or those that satisfy a condition.",
    responses={200: {"model": ItemsAnswer, "description": "Items."}, **errors(404, 422, 503)},
)
async def list_items(
    request: Request, served: Ready, where: WhereParameter = None, limit: Limit = 50, offset: Offset = 0
) -> Response:
    check_most(request.app.state.settings, "max_page", "limit", limit)
    where = where or None

    def read() -> tuple[int, list[CodedItem]]:
        items = served.index.filter(where, limit, offset)
        return served.index.count(where), coded_of(served.index, [item.id for item in items])

    total, found = await request.app.state.work.read(read)
    return json_answer({"total": total, "items": [shown(coded, served.name) for coded in found]})


@router.post(
    "/v1/items",
    operation_id="add_items",
    summary="Add many items in the background.",
    description="The answer comes at once; the job can be "
    "followed. As a form: several `files`, images or texts (`.txt`); the name of a file becomes the item's id.",
    status_code=202,
    responses={
        202: {"model": BulkAnswer, "description": "The job has been taken.", "headers": {"Location": _LOCATION}},
        **errors(400, 404, 413, 415, 422, 503),
    },
    openapi_extra=body_of(Bulk, BULKS, form=_FORM),
)
async def add_items(request: Request, served: Ready) -> Response:
    body = await read_body(request, Bulk, _bulk_from_form)
    settings: Settings = request.app.state.settings
    items = await request.app.state.work.decode(lambda: [_checked(one, settings) for one in body.items])
    job = served.add(items, body.replace)
    location = f"/v1/jobs/{job.id}"
    return json_answer({"job": job.id, "items": len(items), "location": location}, 202, {"Location": location})


@router.get(
    "/v1/items/{id:anything}",
    operation_id="get_item",
    summary="Read an item.",
    description="What the item holds, and its codes.",
    responses={
        200: {"model": ItemAnswer, "description": "The item.", "content": {"application/json": ITEM_ANSWER}},
        **errors(404, 422, 503),
    },
)
async def get_item(request: Request, id: ItemId, served: Ready) -> Response:
    found = await request.app.state.work.read(lambda: served.index.get_coded(id))
    if found is None:
        raise _no_item(id)
    return json_answer(shown(found, served.name))


@router.put(
    "/v1/items/{id:anything}",
    operation_id="put_item",
    summary="Add or replace an item.",
    description="The answer comes when the item is safe on the disk and can be found.",
    responses={
        200: {"model": PutAnswer, "description": "The item was there: it is replaced, or was just so."},
        201: {"model": PutAnswer, "description": "The item is new."},
        **errors(400, 404, 413, 415, 422, 503),
    },
    openapi_extra=body_of(Put, PUTS, files=("image",)),
)
async def put_item(request: Request, id: ItemId, served: Ready) -> Response:
    settings: Settings = request.app.state.settings
    _check_id(id, settings)
    body = await read_body(request, Put, _item_from_form)
    item = _item(id, body)
    if isinstance(item.image, bytes):
        image = item.image
        await request.app.state.work.decode(lambda: check_image(image, settings.max_pixels))
    status, version = await served.put(item)
    created = status == "created"
    headers = {"Location": item_address(id, served.name)} if created else None
    return json_answer({"id": id, "status": status, "version": version}, 201 if created else 200, headers)


@router.delete(
    "/v1/items/{id:anything}",
    operation_id="delete_item",
    summary="Delete an item.",
    description="The answer comes when the item is gone from the disk.",
    status_code=204,
    responses={204: {"description": "The item is gone."}, **errors(404, 422, 503)},
)
async def delete_item(request: Request, id: ItemId, served: Ready) -> Response:
    if not await served.delete(id):
        raise _no_item(id)
    return Response(status_code=204)


def _no_item(id: str) -> Problem:
    return Problem(404, f"There is no item {quoted(id)}. Check the id.", "id")


def _check_id(id: str, settings: Settings) -> None:
    check_most(settings, "max_id", "id", id)
    if not id.strip():
        raise Problem(422, "`id` is empty. Give every item an id of its own.", "id")


def _item(id: str, body: Put) -> Item:
    """Raises BadItem if there is nothing in it."""
    item = Item(id, body.text, body.image, body.metadata)
    item.modality  # noqa: B018
    return item


def _checked(body: NewItem, settings: Settings) -> Item | BadItem:
    """An item whose image, if it has one, is worth decoding."""
    try:
        if body.image is not None:
            check_image(body.image, settings.max_pixels)
        return _item(body.id, body)
    except Problem as problem:
        return BadItem(body.id, problem.message)
    except BadItem as error:
        return error


def _item_from_form(parts: list[Part]) -> dict[str, Any]:
    return plain_fields(parts, files=("image",), json=("metadata",))


def _bulk_from_form(parts: list[Part]) -> dict[str, Any]:
    """Each file is an item."""
    items = []
    for part in parts:
        if part.name == "files":
            if not part.filename:
                raise Problem(422, "One of `files` is not a file with a name. Name every file.", "files")
            data = bytes(part.data)
            content = {"text": decoded(data, quoted(part.filename), "files")} if is_text(part) else {"image": data}
            items.append({"id": part.filename, **content})
    others = plain_fields([part for part in parts if part.name != "files"], values=("replace",))
    if "items" in others:
        raise Problem(422, "A form has `files`; `items` belong into JSON.", "items")
    return {**others, "items": items}
