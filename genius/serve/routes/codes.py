"""Codes: the tree of IDs, and what has which codes."""

import re
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from starlette.responses import Response

from genius.search.results import CodedItem, CodePage
from genius.serve.json_answer import json_answer
from genius.serve.problems import Problem
from genius.serve.routes.access import (
    Limit,
    Offset,
    Ready,
    check_most,
    coded_of,
    errors,
    image_url,
    modality_of,
    shown,
)
from genius.serve.schemas import CodesAnswer
from genius.serve.served import Served

router = APIRouter(tags=["codes"])

CHILDREN = 60
_CODE = re.compile(r"\*|[0-9]{1,6}", re.ASCII)


@router.get(
    "/v1/codes",
    operation_id="get_root_codes",
    summary="The root of the code tree.",
    description="All items, and the first codes they have.",
    responses={200: {"model": CodesAnswer, "description": "Items and codes."}, **errors(404, 422, 503)},
)
async def get_root_codes(request: Request, served: Ready, limit: Limit = 50, offset: Offset = 0) -> Response:
    return await _page(request, served, "", limit, offset)


@router.get(
    "/v1/codes/{pattern:anything}",
    operation_id="get_codes",
    summary="Everything that has certain codes.",
    description="The items whose IDs begin with these codes, and which codes come next.",
    responses={200: {"model": CodesAnswer, "description": "Items and codes."}, **errors(404, 422, 503)},
)
async def get_codes(
    request: Request,
    pattern: Annotated[
        str,
        Path(
            description="Codes joined by `-`, a star for any code: `0-17`, `*-17`.",
            pattern=r"^(\*|[0-9]{1,6})(-(\*|[0-9]{1,6}))*$",
            max_length=500,
            examples=["0"],
        ),
    ],
    served: Ready,
    limit: Limit = 50,
    offset: Offset = 0,
) -> Response:
    return await _page(request, served, pattern, limit, offset)


async def _page(request: Request, served: Served, pattern: str, limit: int, offset: int) -> Response:
    check_most(request.app.state.settings, "max_page", "limit", limit)
    codes = _parse(pattern, served.index.header.sizes)

    def read() -> tuple[CodePage, dict[str, CodedItem]]:
        page = served.index.browse_codes(codes, limit, offset)
        examples = coded_of(served.index, [child.example for child in page.children[:CHILDREN]])
        return page, {coded.item.id: coded for coded in examples}

    page, examples = await request.app.state.work.read(read)
    sizes = list(served.index.header.sizes)
    children = [
        {"code": child.code, "items": child.items, "example": _example(examples[child.example], served.name)}
        for child in page.children[:CHILDREN]
        if child.example in examples  # it may have been deleted a moment ago
    ]
    return json_answer(
        {
            "pattern": pattern,
            "level": len(codes),
            "levels": len(sizes),
            "sizes": sizes,
            "total": page.total,
            "ids": page.ids,
            "children": children,
            "more_children": max(0, len(page.children) - CHILDREN),
            "items": [shown(coded, served.name) for coded in page.items],
        }
    )


def _parse(pattern: str, sizes: tuple[int, ...]) -> list[int | None]:
    """The codes of a pattern. A code that no ID can have is an error, one that none has is not."""
    parts = pattern.split("-") if pattern else []
    if any(not _CODE.fullmatch(part) for part in parts):
        raise Problem(422, "`pattern` must be codes joined by `-`, with a star for any code: 0-17, *-17.", "pattern")
    if len(parts) > len(sizes):
        raise Problem(422, f"`pattern` has {len(parts)} codes; the IDs of this index have {len(sizes)}.", "pattern")
    codes = [None if part == "*" else int(part) for part in parts]
    for level, (code, size) in enumerate(zip(codes, sizes, strict=False)):
        if code is not None and code >= size:
            raise Problem(422, f"Code {code} is too high: level {level + 1} has codes 0 to {size - 1}.", "pattern")
    return codes


def _example(coded: CodedItem, index: str) -> dict[str, Any]:
    item = coded.item
    return {
        "id": item.id,
        "modality": modality_of(coded).label,
        "text": item.text,
        "metadata": item.metadata,
        "image_url": image_url(item, index),
    }
