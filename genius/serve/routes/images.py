"""Images: thumbnails of items."""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from genius.serve.images import THUMBNAIL_TYPE, Thumbnails, image_bytes, image_pixels, thumbnail_tag
from genius.serve.problems import HttpProblem, quote_name
from genius.serve.routes.dependencies import ReadyIndex, cancel_on_disconnect, errors
from genius.serve.routes.items import ItemId
from genius.serve.threads import decoders

router = APIRouter(tags=["items"])

_CONTENT = {THUMBNAIL_TYPE: {"schema": {"type": "string", "format": "binary"}}}


@router.get(
    "/v1/images/{id:anypath}",
    summary="The thumbnail of an item.",
    responses={
        200: {"description": "The thumbnail.", "content": _CONTENT},
        304: {"description": "The image has not changed."},
        **errors(404, 422, 503),
    },
    response_class=Response,
)
async def get_image(
    request: Request,
    id: ItemId,
    served: ReadyIndex,
    size: Annotated[int, Query(ge=64, le=1024, description="Length of the longer side in pixels.")] = 256,
    if_none_match: Annotated[str | None, Header(description="`ETag` of an earlier response.")] = None,
) -> Response:
    """A copy of the image whose longer side is at most `size`. The stored file itself is never sent."""
    pools, thumbnails = request.app.state.pools, request.app.state.thumbnails
    assert isinstance(thumbnails, Thumbnails)
    item = await pools.read(lambda: served.index.get(id))
    if item is None:
        raise HttpProblem(404, f"There is no item {quote_name(id)}.", "id")
    if item.image is None:
        raise HttpProblem(404, f"The item {quote_name(id)} has no image.", "id")
    tag = await pools.read(lambda: thumbnail_tag(item, size))
    headers = {"Cache-Control": "private, max-age=60", "ETag": f'"{tag}"'}
    if if_none_match is not None and tag in if_none_match:
        return Response(status_code=304, headers=headers)
    image = thumbnails.get(tag)
    if image is None:
        pixels = await pools.read(lambda: image_pixels(image_bytes(item, "id")))
        making = decoders.run(lambda: thumbnails.make(tag, item, size), pixels, served.settings.deadline)
        image = await cancel_on_disconnect(request, making)
    return Response(image, headers=headers, media_type=THUMBNAIL_TYPE)
