"""How the service is doing: for those who watch it."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from genius.serve.json_answer import json_answer
from genius.serve.routes.access import errors
from genius.serve.schemas import HealthAnswer, ReadyAnswer

router = APIRouter(tags=["service"])


@router.get(
    "/healthz",
    operation_id="health",
    summary="Whether the process answers.",
    description="Always the same, also while indexes are loaded.",
    responses={200: {"model": HealthAnswer, "description": "It does."}, **errors()},
)
async def health() -> Response:
    return json_answer({"status": "ok"})


@router.get(
    "/readyz",
    operation_id="ready",
    summary="Whether all indexes can be searched.",
    description="For load balancers: no requests should come before this says so.",
    responses={
        200: {"model": ReadyAnswer, "description": "All are ready."},
        **errors(),
        503: {"model": ReadyAnswer, "description": "Some are being loaded, closed, or cannot be opened."},
    },
)
async def ready(request: Request) -> Response:
    indexes = {name: bool(one.ready) for name, one in request.app.state.served.items()}
    every = all(indexes.values())
    return json_answer({"ready": every, "indexes": indexes}, 200 if every else 503)


@router.get(
    "/metrics",
    operation_id="metrics",
    summary="Figures for Prometheus.",
    description="Requests, times, queues and indexes, in the text format of Prometheus.",
    responses={200: {"description": "Figures.", "content": {"text/plain": {"schema": {"type": "string"}}}}, **errors()},
    response_class=Response,
)
async def metrics(request: Request) -> Response:
    body, kind = request.app.state.metrics.text()
    return Response(body, headers={"Content-Type": kind})
