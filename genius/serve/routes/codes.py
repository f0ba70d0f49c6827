"""Codes: browse the tree of semantic IDs."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from genius.search.results import CodedItem, CodePage
from genius.serve.hosted import HostedIndex
from genius.serve.responses import json_response
from genius.serve.routes.dependencies import (
    Limit,
    Offset,
    ReadyIndex,
    coded_json,
    errors,
    get_coded,
    item_json,
    modality_of,
    parse_codes,
)
from genius.serve.schemas import CodesResponse

router = APIRouter(tags=["codes"])

MAX_CHILDREN = 60
Children = Annotated[int, Query(ge=1, le=300, description="Maximum number of codes of the next level to list.")]


@router.get(
    "/v1/codes", summary="The root of the code tree.", response_model=CodesResponse, responses=errors(404, 422, 503)
)
async def get_root_codes(
    request: Request, served: ReadyIndex, limit: Limit = 50, offset: Offset = 0, children: Children = MAX_CHILDREN
) -> Response:
    """All items, and the codes of the first level."""
    return await _page(request, served, "", limit, offset, children)


@router.get(
    "/v1/codes/{pattern:anypath}",
    summary="The items that match a code pattern.",
    response_model=CodesResponse,
    responses=errors(404, 422, 503),
)
async def get_codes(
    request: Request,
    pattern: Annotated[
        str,
        Path(
            description="Codes joined by `-`; a star matches any code: `0-17`, `*-17`.",
            pattern=r"^(\*|[0-9]{1,6})(-(\*|[0-9]{1,6}))*$",
            max_length=500,
            examples=["0"],
        ),
    ],
    served: ReadyIndex,
    limit: Limit = 50,
    offset: Offset = 0,
    children: Children = MAX_CHILDREN,
) -> Response:
    """The items whose IDs start with these codes, and the codes of the next level."""
    return await _page(request, served, pattern, limit, offset, children)


async def _page(request: Request, served: HostedIndex, pattern: str, limit: int, offset: int, most: int) -> Response:
    codes = parse_codes(pattern, served.index.header.sizes, "pattern") if pattern else []

    def read() -> tuple[CodePage, dict[str, CodedItem]]:
        page = served.index.browse_codes(codes, limit, offset)
        examples = get_coded(served.index, [child.example for child in page.children[:most]])
        return page, {coded.item.id: coded for coded in examples}

    page, examples = await request.app.state.pools.read(read)
    sizes = list(served.index.header.sizes)
    children = []
    for child in page.children[:most]:
        coded = examples.get(child.example)
        if coded is not None:  # None: deleted in the meantime
            example = item_json(coded.item, modality_of(coded), served.name)
            children.append({"code": child.code, "items": child.items, "example": example})
    served.names.refresh()
    named = [codes, *([*codes, child["code"]] for child in children), *(coded.codes for coded in page.items)]
    return json_response(
        {
            "pattern": pattern,
            "level": len(codes),
            "levels": len(sizes),
            "sizes": sizes,
            "total": page.total,
            "ids": page.ids,
            "children": children,
            "more_children": max(0, len(page.children) - most),
            "items": [coded_json(coded, served.name) for coded in page.items],
            "names": served.names.of(named),
            "names_ready": served.names.ready,
        }
    )
