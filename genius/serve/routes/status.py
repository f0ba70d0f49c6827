"""Status: health, readiness and metrics."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from genius.serve.responses import json_response
from genius.serve.routes.dependencies import errors
from genius.serve.schemas import HealthResponse, ReadyResponse

router = APIRouter(tags=["service"])

_METRICS = {"description": "Metrics.", "content": {"text/plain": {"schema": {"type": "string"}}}}


@router.get("/healthz", summary="Whether the process responds.", response_model=HealthResponse, responses=errors())
async def health() -> Response:
    """Always the same, also while indexes are loading."""
    return json_response({"status": "ok"})


@router.get(
    "/readyz",
    summary="Whether the indexes are ready.",
    responses={
        200: {"model": ReadyResponse, "description": "All indexes are ready, except those that cannot be loaded."},
        **errors(),
        503: {"model": ReadyResponse, "description": "An index is loading or closed, or none can be loaded."},
    },
)
async def ready(request: Request) -> Response:
    """For load balancers: requests should be sent only after this returns 200."""
    indexes = {name: bool(one.ready) for name, one in request.app.state.served.items()}
    ready, failed = bool(indexes) and all(indexes.values()), sorted(request.app.state.failed)
    body = {"ready": ready, "indexes": indexes | dict.fromkeys(failed, False), "failed": failed}
    return json_response(body, 200 if ready else 503)


@router.get(
    "/metrics", summary="Metrics for Prometheus.", responses={200: _METRICS, **errors()}, response_class=Response
)
async def metrics(request: Request) -> Response:
    """Requests, durations, queues and indexes, in the text format of Prometheus."""
    body, content_type = request.app.state.metrics.exposition()
    return Response(body, headers={"Content-Type": content_type})
