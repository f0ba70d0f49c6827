"""The service as one ASGI app: routes, checks and pages put together, and the indexes started and stopped with it.

Knows how the parts fit. What a route does is in `routes`, what an index does in `served`.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genius import __version__
from genius.serve import security
from genius.serve.description import TAGS, description_of
from genius.serve.images import Thumbnails
from genius.serve.metrics import Metrics
from genius.serve.problems import install_problems
from genius.serve.routes import codes, images, indexes, items, jobs, pages, search, status
from genius.serve.served import Served
from genius.serve.settings import Settings
from genius.serve.work import Work

log = logging.getLogger("genius.serve")

PARTS = (search, items, codes, images, jobs, indexes, status, pages)


def create_app(served: Mapping[str, Served], settings: Settings) -> FastAPI:
    """The app over some indexes by name; the first is the one that is meant where none is named."""
    app = FastAPI(
        title="GENIUS search",
        version=__version__,
        openapi_tags=TAGS,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=_lifespan,
    )
    app.state.served, app.state.settings = dict(served), settings
    app.state.metrics, app.state.work, app.state.thumbnails = Metrics(served), Work(), Thumbnails()
    app.state.routes = [route for part in PARTS for route in part.router.routes]
    for part in PARTS:
        app.include_router(part.router)
    app.openapi = lambda: description_of(app)  # type: ignore[method-assign]
    install_problems(app)
    app.add_middleware(Heads)
    security.install(app, settings)
    app.add_middleware(Counted, metrics=app.state.metrics)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """The service answers at once; each index is ready when it has loaded."""
    every: list[Served] = list(app.state.served.values())
    starting = [asyncio.create_task(_start(one)) for one in every]
    try:
        yield
    finally:
        await asyncio.gather(*starting)  # a thread that loads a model cannot be broken off
        await asyncio.gather(*(one.stop(app.state.settings.shutdown_seconds) for one in every))
        app.state.work.close()


async def _start(one: Served) -> None:
    try:
        await asyncio.to_thread(one.start)
    except Exception:  # the others go on; /readyz says that this one is not there
        log.exception("The index %s cannot be served.", one.name)


class Heads:
    """Middleware: HEAD is answered like GET, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            return await self._app(scope, receive, send)

        async def without_body(message: Message) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        as_get = {**scope, "method": "GET"}
        try:
            await self._app(as_get, receive, without_body)
        finally:
            scope["route"] = as_get.get("route")


class Counted:
    """Middleware: counts requests by route and status, and measures them."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, status = time.perf_counter(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            route = getattr(scope.get("route"), "path_format", "unmatched")
            self._metrics.request(route, scope["method"], status, time.perf_counter() - began)
