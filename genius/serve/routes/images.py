"""Images: small copies of the images of items."""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from genius.serve.images import TYPE, Thumbnails, fingerprint
from genius.serve.problems import Problem, quoted
from genius.serve.routes.access import Ready, errors
from genius.serve.routes.items import ItemId

router = APIRouter(tags=["items"])

CACHED = {"Cache-Control": "private, max-age=60"}


@router.get(
    "/v1/images/{id:anything}",
    operation_id="get_image",
    summary="A small copy of an item's image.",
    description="Made anew from the pixels, never the stored file. Its longer side is at most `size`.",
    responses={
        200: {"description": "The image.", "content": {TYPE: {"schema": {"type": "string", "format": "binary"}}}},
        304: {"description": "The image has not changed since."},
        **errors(404, 422, 503),
    },
    response_class=Response,
)
async def get_image(
    request: Request,
    id: ItemId,
    served: Ready,
    size: Annotated[int, Query(ge=64, le=1024, description="Length of the longer side, in pixels.")] = 256,
    if_none_match: Annotated[str | None, Header(description="An `ETag` that was given before.")] = None,
) -> Response:
    work, thumbnails = request.app.state.work, request.app.state.thumbnails
    assert isinstance(thumbnails, Thumbnails)
    item = await work.read(lambda: served.index.get(id))
    if item is None:
        raise Problem(404, f"There is no item {quoted(id)}. Check the id.", "id")
    if item.image is None:
        raise Problem(404, f"The item {quoted(id)} has no image.", "id")
    tag = await work.read(lambda: fingerprint(item, size))
    headers = {**CACHED, "ETag": f'"{tag}"'}
    if if_none_match is not None and tag in if_none_match:
        return Response(status_code=304, headers=headers)
    image = thumbnails.get(tag)
    if image is None:
        image = await work.decode(lambda: thumbnails.make(tag, item, size))
    return Response(image, headers=headers, media_type=TYPE)
