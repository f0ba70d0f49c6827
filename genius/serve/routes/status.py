"""Status: health, readiness and metrics."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from genius.serve.responses import json_response
from genius.serve.routes.dependencies import errors
from genius.serve.schemas import HealthResponse, ReadyResponse

router = APIRouter(tags=["service"])

_METRICS = {"description": "Metrics.", "content": {"text/plain": {"schema": {"type": "string"}}}}


@router.get(
    "/healthz",
    operation_id="health",
    summary="Whether the process responds.",
    description="Always the same, also while indexes are loading.",
    responses={200: {"model": HealthResponse, "description": "It responds."}, **errors()},
)
async def health() -> Response:
    """Liveness probe."""
    return json_response({"status": "ok"})


@router.get(
    "/readyz",
    operation_id="ready",
    summary="Whether all indexes are ready.",
    description="For load balancers: requests should be sent only after this returns 200.",
    responses={
        200: {"model": ReadyResponse, "description": "All indexes are ready."},
        **errors(),
        503: {"model": ReadyResponse, "description": "An index is loading, is closed, or cannot be opened."},
    },
)
async def ready(request: Request) -> Response:
    """Readiness probe."""
    indexes = {name: bool(one.ready) for name, one in request.app.state.served.items()}
    every = all(indexes.values())
    return json_response({"ready": every, "indexes": indexes}, 200 if every else 503)


@router.get(
    "/metrics",
    operation_id="metrics",
    summary="Metrics for Prometheus.",
    description="Requests, durations, queues and indexes, in the text format of Prometheus.",
    responses={200: _METRICS, **errors()},
    response_class=Response,
)
async def metrics(request: Request) -> Response:
    """The metrics."""
    body, content_type = request.app.state.metrics.exposition()
    return Response(body, headers={"Content-Type": content_type})
