"""Items: read, write, delete, list, and add many at once."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from genius.data.items import Item
from genius.errors import BadItem
from genius.search.results import CodedItem
from genius.serve.bodies import FormPart, decode_text, form_values, read_body
from genius.serve.examples import ADD_REQUESTS, ITEM_RESPONSE, PUT_REQUESTS
from genius.serve.images import check_image
from genius.serve.limits import MAX_ID, MAX_WHERE
from genius.serve.openapi import request_body
from genius.serve.problems import HttpProblem, quote_name
from genius.serve.responses import json_response
from genius.serve.routes.dependencies import (
    Limit,
    Offset,
    ReadyIndex,
    Where,
    cancel_on_disconnect,
    coded_json,
    errors,
    get_coded,
    item_url,
)
from genius.serve.schemas import (
    AddItemsRequest,
    AddItemsResponse,
    DeleteItemsResponse,
    ItemListResponse,
    ItemResponse,
    NewItemRequest,
    PutItemRequest,
    PutItemResponse,
)

router = APIRouter(tags=["items"])

_LOCATION = {"description": "Address of the job.", "schema": {"type": "string"}}
_FORM = {
    "files": {"type": "array", "items": {"type": "string", "format": "binary"}, "description": "Images and texts."},
    "replace": {"type": "boolean", "default": True, "description": "Replace items with the same id."},
}

ItemId = Annotated[
    str,
    Path(
        max_length=MAX_ID,
        pattern=r"\S",
        description="Id of the item. Slashes may be sent as they are or as %2F.",
        examples=["cats/grooming"],
    ),
]

RequiredWhere = Annotated[
    str,
    Query(
        max_length=MAX_WHERE,
        pattern=r"\S",
        description="Filter: an SQL condition. All items that match it are deleted.",
        examples=["year < 2000"],
    ),
]


@router.get("/v1/items", summary="List items.", response_model=ItemListResponse, responses=errors(404, 422, 503))
async def list_items(
    request: Request, served: ReadyIndex, where: Where = None, limit: Limit = 50, offset: Offset = 0
) -> Response:
    """Items in the order of the index, all or those that match a filter."""
    where = where or None

    def read() -> tuple[int, list[CodedItem]]:
        items = served.index.filter(where, limit, offset)
        return served.index.count(where), get_coded(served.index, [item.id for item in items])

    total, found = await request.app.state.pools.read(read)
    return json_response({"total": total, "items": [coded_json(coded, served.name) for coded in found]})


@router.post(
    "/v1/items",
    summary="Add many items in the background.",
    status_code=202,
    responses={
        202: {"model": AddItemsResponse, "description": "The job was accepted.", "headers": {"Location": _LOCATION}},
        **errors(400, 404, 413, 415, 422, 503),
    },
    openapi_extra=request_body(AddItemsRequest, ADD_REQUESTS, form=_FORM),
)
async def add_items(request: Request, served: ReadyIndex) -> Response:
    """Returns at once; the job can be followed.

    As a form: several `files`, images or texts (`.txt`). The name of a file becomes the id of the item.
    """
    body = await read_body(request, AddItemsRequest, _add_request_from_form)
    items = await request.app.state.pools.read(lambda: [_checked_item(one) for one in body.items])
    job = served.writer.add(items, body.replace)
    location = f"/v1/jobs/{job.id}"
    return json_response({"job": job.id, "items": len(items), "location": location}, 202, {"Location": location})


@router.delete(
    "/v1/items",
    summary="Delete the items that match a filter.",
    response_model=DeleteItemsResponse,
    responses=errors(404, 422, 503),
)
async def delete_items(request: Request, served: ReadyIndex, where: RequiredWhere) -> Response:
    """Returns when the items are deleted on the disk, in one commit.

    `GET /v1/items` with the same filter tells beforehand how many there are (`total`). Without a filter nothing is
    deleted.
    """
    deleted, version = await served.writer.delete_where(where)
    return json_response({"deleted": deleted, "version": version})


@router.get(
    "/v1/items/{id:anypath}",
    summary="Read an item.",
    responses={
        200: {"model": ItemResponse, "description": "The item.", "content": {"application/json": ITEM_RESPONSE}},
        **errors(404, 422, 503),
    },
)
async def get_item(request: Request, id: ItemId, served: ReadyIndex) -> Response:
    """The content of the item and its codes."""
    found = await request.app.state.pools.read(lambda: served.index.get_coded(id))
    if found is None:
        raise _no_item(id)
    return json_response(coded_json(found, served.name))


@router.put(
    "/v1/items/{id:anypath}",
    summary="Add or replace an item.",
    responses={
        200: {"model": PutItemResponse, "description": "The item was replaced, or is unchanged."},
        201: {"model": PutItemResponse, "description": "The item is new."},
        **errors(400, 404, 413, 415, 422, 503),
    },
    openapi_extra=request_body(PutItemRequest, PUT_REQUESTS),
)
async def put_item(request: Request, id: ItemId, served: ReadyIndex) -> Response:
    """Returns when the item is on the disk and can be found."""
    body = await read_body(request, PutItemRequest)
    item = _item(id, body)
    if body.image is not None:
        image = body.image
        await request.app.state.pools.read(lambda: check_image(image))
    status, version = await cancel_on_disconnect(request, served.writer.put(item))
    created = status == "created"
    headers = {"Location": item_url("items", id, served.name)} if created else None
    return json_response({"id": id, "status": status, "version": version}, 201 if created else 200, headers)


@router.delete(
    "/v1/items/{id:anypath}",
    summary="Delete an item.",
    status_code=204,
    responses={204: {"description": "The item is deleted."}, **errors(404, 422, 503)},
)
async def delete_item(request: Request, id: ItemId, served: ReadyIndex) -> Response:
    """Returns when the item is deleted on the disk."""
    if not await served.writer.delete(id):
        raise _no_item(id)
    return Response(status_code=204)


def _no_item(id: str) -> HttpProblem:
    return HttpProblem(404, f"There is no item {quote_name(id)}.", "id")


def _item(id: str, body: PutItemRequest) -> Item:
    """The item of a request. Raises BadItem if it has no content."""
    item = Item(id, body.text, body.image, body.metadata)
    item.modality  # noqa: B018
    return item


def _checked_item(body: NewItemRequest) -> Item | BadItem:
    """The item of a request with a checked image, or the reason why it is refused."""
    try:
        if body.image is not None:
            check_image(body.image)
        return _item(body.id, body)
    except HttpProblem as problem:
        return BadItem(body.id, problem.message)
    except BadItem as error:
        return error


def _add_request_from_form(parts: list[FormPart]) -> dict[str, Any]:
    """Every file becomes an item."""
    items = []
    for part in parts:
        if part.name == "files":
            if not part.filename:
                raise HttpProblem(422, "A part of `files` has no file name. Name every file.", "files")
            text = decode_text(part.data, quote_name(part.filename), "files") if part.is_text_file else None
            items.append({"id": part.filename, **({"image": part.data} if text is None else {"text": text})})
    others = form_values([part for part in parts if part.name != "files"], AddItemsRequest)
    if "items" in others:
        raise HttpProblem(422, "A form sends `files`; `items` is for JSON.", "items")
    return {**others, "items": items}
