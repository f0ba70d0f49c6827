"""Indexes: what is served."""

from typing import Any
from weakref import WeakKeyDictionary

from fastapi import APIRouter, Request
from starlette.responses import Response

from genius.data.items import Modality
from genius.index.index import Index
from genius.serve.json_answer import json_answer
from genius.serve.routes.access import errors
from genius.serve.schemas import IndexesAnswer
from genius.serve.served import Served
from genius.serve.settings import Settings

router = APIRouter(tags=["service"])


@router.get(
    "/v1/indexes",
    operation_id="list_indexes",
    summary="What is served.",
    description="The indexes by name, the one that is meant where none is named first.",
    responses={200: {"model": IndexesAnswer, "description": "Indexes."}, **errors(503)},
)
async def list_indexes(request: Request) -> Response:
    settings: Settings = request.app.state.settings
    served: list[Served] = list(request.app.state.served.values())
    described = await request.app.state.work.read(lambda: [_shown(one, settings) for one in served])
    return json_answer({"indexes": described})


def _shown(one: Served, settings: Settings) -> dict[str, Any]:
    index = one.index
    header = index.header
    return {
        "name": one.name,
        "items": len(index),
        "modalities": _modalities(index),
        "version": index.version,
        "model": _model_name(header.model),
        "levels": len(header.sizes),
        "sizes": list(header.sizes),
        "embeddings": header.embeddings,
        "fields": index.fields,
        "writable": settings.writable,
        "ready": one.ready,
    }


_counted: "WeakKeyDictionary[Index, tuple[int, dict[str, int]]]" = WeakKeyDictionary()


def _modalities(index: Index) -> dict[str, int]:
    """How many items of each kind there are; counted once a version."""
    version, known = index.version, _counted.get(index)
    if known is None or known[0] != version:
        known = version, {kind.label: index.count(f"modality = '{kind.label}'") for kind in Modality}
        _counted[index] = known
    return known[1]


def _model_name(source: str | None) -> str | None:
    """What the model is called, without the folder in which it lies."""
    return None if source is None else source.replace("\\", "/").rstrip("/").rpartition("/")[2]
