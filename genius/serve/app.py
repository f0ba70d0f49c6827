"""The service as an ASGI app: routes, middleware and error handlers, and the start and stop of the indexes."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genius import __version__
from genius.errors import GeniusError
from genius.serve import security
from genius.serve.forwarding import Forwarding
from genius.serve.hosted import HostedIndex
from genius.serve.images import Thumbnails
from genius.serve.metrics import Metrics
from genius.serve.openapi import TAGS, openapi
from genius.serve.problems import install_problems
from genius.serve.routes import codes, images, indexes, items, jobs, pages, search, status
from genius.serve.settings import Settings
from genius.serve.threads import ThreadPools

log = logging.getLogger("genius.serve")

ROUTE_MODULES = (search, items, codes, images, jobs, indexes, status, pages)


def create_app(
    served: Mapping[str, HostedIndex],
    settings: Settings,
    failed: Collection[str] = (),
    default: str | None = None,
    worker: tuple[Path, int, int] | None = None,
) -> FastAPI:
    """Create the app.

    Args:
        served: Indexes by name.
        settings: Settings of the service.
        failed: Names of indexes that could not be opened. Requests for them are answered with status 503.
        default: Name of the index of requests that name none. Default: the first one.
        worker: With several processes: folder of their sockets, number of this one, number of all.
    """
    app = FastAPI(
        title="GENIUS search",
        version=__version__,
        openapi_tags=TAGS,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,  # operation ids
        lifespan=_lifespan,
    )
    app.state.served, app.state.settings = dict(served), settings
    app.state.failed = set(failed)
    app.state.default = next(iter(served), None) if default is None else default
    app.state.metrics, app.state.pools, app.state.thumbnails = Metrics(served), ThreadPools(), Thumbnails()
    app.state.routes = [route for module in ROUTE_MODULES for route in module.router.routes]
    for module in ROUTE_MODULES:
        app.include_router(module.router)
    app.openapi = lambda: openapi(app)  # type: ignore[method-assign]
    install_problems(app)
    app.state.wait_until_ready = worker is not None
    if worker is not None:
        app.add_middleware(Forwarding, folder=worker[0], worker=worker[1], workers=worker[2])
    app.add_middleware(HeadRequests)
    security.install(app, settings)
    app.add_middleware(RequestMetrics, metrics=app.state.metrics)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Start and stop the indexes. The service responds at once; each index is ready when it has loaded.

    One of several processes responds when its indexes are ready: until then the others do.
    """
    served: list[HostedIndex] = list(app.state.served.values())
    starting = [asyncio.create_task(_start(app, one)) for one in served]
    if app.state.wait_until_ready:
        await asyncio.gather(*starting)
    try:
        yield
    finally:
        await asyncio.gather(*starting)  # a thread that loads a model cannot be interrupted
        await asyncio.gather(*(one.stop(app.state.settings.shutdown_seconds) for one in served))
        app.state.pools.close()


async def _start(app: FastAPI, one: HostedIndex) -> None:
    """Start an index. One that cannot be loaded moves from `served` to `failed`; the others are served."""
    try:
        await asyncio.to_thread(one.start)
    except Exception as error:
        log.error("The index %s cannot be served. %s", one.name, _sentence(error))
        log.debug("Why %s cannot be served:", one.name, exc_info=error)
        app.state.failed.add(one.name)
        del app.state.served[one.name]


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, GeniusError) else f"Loading it failed with {type(error).__name__}: {error}"


class HeadRequests:
    """Middleware: routes HEAD like GET. The server leaves the body out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            return await self._app(scope, receive, send)
        get_scope = {**scope, "method": "GET"}
        try:
            await self._app(get_scope, receive, send)
        finally:
            scope["route"] = get_scope.get("route")


class RequestMetrics:
    """Middleware: counts requests by route and status, and measures their duration."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, status = time.perf_counter(), 500

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            route = getattr(scope.get("route"), "path_format", "unmatched")
            self._metrics.observe_request(route, scope["method"], status, time.perf_counter() - began)
