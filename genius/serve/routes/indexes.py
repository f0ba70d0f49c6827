"""Indexes: list what is served."""

from functools import lru_cache
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from genius.data.items import Modality
from genius.index.index import Index
from genius.serve.hosted import HostedIndex
from genius.serve.responses import json_response
from genius.serve.routes.dependencies import errors
from genius.serve.schemas import IndexListResponse
from genius.serve.settings import Settings

router = APIRouter(tags=["service"])


@router.get("/v1/indexes", summary="List the indexes.", response_model=IndexListResponse, responses=errors(503))
async def list_indexes(request: Request) -> Response:
    """The indexes by name. The first is the default of requests that name none."""
    settings: Settings = request.app.state.settings
    served: list[HostedIndex] = list(request.app.state.served.values())
    indexes = await request.app.state.pools.read(lambda: [_index_json(one, settings) for one in served])
    return json_response({"indexes": indexes})


def _index_json(one: HostedIndex, settings: Settings) -> dict[str, Any]:
    index = one.index
    header = index.header
    return {
        "name": one.name,
        "items": len(index),
        "modalities": _count_modalities(index, index.version),
        "version": index.version,
        "model": _model_name(header.model),
        "levels": len(header.sizes),
        "sizes": list(header.sizes),
        "embeddings": header.embeddings,
        "fields": index.fields,
        "writable": settings.writable,
        "ready": one.ready,
    }


@lru_cache(maxsize=64)
def _count_modalities(index: Index, version: int) -> dict[str, int]:
    """Number of items per modality, counted once per version."""
    return {one.label: index.count(f"modality = '{one.label}'") for one in Modality}


def _model_name(source: str | None) -> str | None:
    """The name of the model without its folder."""
    return None if source is None else source.replace("\\", "/").rstrip("/").rpartition("/")[2]
