"""Runs the service with uvicorn: socket, limits of connections, access log and graceful shutdown.

uvicorn's h11 protocol is used because it limits the size of request heads and reads pipelined requests one at a time.
It costs 0.1 ms per request more than httptools.
"""

import asyncio
import contextlib
import gc
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genius.errors import GeniusError
from genius.runtime.memory import return_memory
from genius.serve.responses import error_response
from genius.serve.security import raw_path
from genius.serve.settings import Settings

log = logging.getLogger("genius.serve")

MAX_HEAD = 65_536
"""Bytes of an unfinished request line and headers."""


def run(
    app: ASGIApp,
    settings: Settings,
    listener: socket.socket,
    ready: Callable[[], bool] = lambda: True,
    announce: Callable[[], None] = lambda: None,
    access_log: bool = True,
    failed: Callable[[], bool] = lambda: False,
    unix_socket: str | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT, then finish open requests within `shutdown_seconds` and return.

    `announce` is called once, when connections are accepted and `ready` returns True. The service also ends when
    `failed` returns True. `unix_socket`: path of a socket on which the app is served, too.
    """
    log_to_stderr()
    _raise_file_limit(2 * settings.max_connections)
    return_memory()
    server = Server(AccessLog(app) if access_log else app, settings, ready, announce, failed)
    if unix_socket is None:
        server.run(sockets=[listener])
        return
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(_serve_both(server, listener, _InnerServer(app, settings, unix_socket)))


async def _serve_both(server: "Server", listener: socket.socket, inner: "_InnerServer") -> None:
    serving = asyncio.create_task(inner.serve())
    try:
        await server.serve(sockets=[listener])
    finally:
        inner.should_exit = True
        await serving


def listen(settings: Settings) -> socket.socket:
    """Open the socket of the service. Clients can connect once the server has started."""
    host, port = settings.host, settings.port
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = min(found, key=lambda one: one[0] != socket.AF_INET)
    except (OSError, UnicodeError) as error:
        raise GeniusError(f"There is no host {host!r} ({error}). Give an address: --host 127.0.0.1") from error
    listener = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux drops clients that stop reading a response
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * settings.body_seconds))
        listener.bind(address)
        listener.set_inheritable(False)
    except (OSError, OverflowError) as error:
        listener.close()
        raise GeniusError(
            f"Cannot listen on {host}, port {port}: {error}. Choose another port, or an address of this machine: "
            f"--host 127.0.0.1 --port {max(port + 1, 8000)}"
        ) from error
    return listener


def _raise_file_limit(connections: int) -> None:
    """Raise the limit of open files, often 1024, so that connections leave enough for the index."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = connections + 1024 if hard == resource.RLIM_INFINITY else min(hard, connections + 1024)
    if soft != resource.RLIM_INFINITY and soft < enough:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))


def log_to_stderr() -> None:
    """Send the log of the service to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    for name, level in (("genius.serve", logging.INFO), ("uvicorn", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


class Server(uvicorn.Server):
    """uvicorn's server, which announces when it is ready and returns normally after a signal."""

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        ready: Callable[[], bool],
        announce: Callable[[], None],
        failed: Callable[[], bool] = lambda: False,
    ) -> None:
        config = uvicorn.Config(
            app,
            http="h11",
            h11_max_incomplete_event_size=MAX_HEAD,
            limit_concurrency=settings.max_connections + 1,  # uvicorn refuses requests at this number
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=settings.keep_alive,  # type: ignore[arg-type]
            timeout_graceful_shutdown=settings.shutdown_seconds,  # type: ignore[arg-type]
        )
        super().__init__(config)
        self._ready, self._announce, self._failed = ready, announce, failed
        self._announced = False

    async def on_tick(self, counter: int) -> bool:
        """Announce once when ready; end if there is nothing to serve."""
        self.should_exit = self.should_exit or self._failed()
        if not self._announced and self._ready():
            self._announced = True
            gc.collect()
            gc.freeze()  # objects that live as long as the service need not be scanned again
            self._announce()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Discard captured signals: uvicorn would raise them again and end the process with an error."""
        with super().capture_signals():
            yield
            self._captured_signals.clear()


class _InnerServer(uvicorn.Server):
    """Serves other processes of the same service on a Unix socket. The other server starts and stops the app."""

    def __init__(self, app: ASGIApp, settings: Settings, path: str) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                uds=path,
                http="h11",
                h11_max_incomplete_event_size=MAX_HEAD,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=settings.shutdown_seconds,  # type: ignore[arg-type]
            )
        )

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the other server."""
        yield


class AccessLog:
    """Middleware: logs one line per request, without query strings and bodies.

    A request that is cancelled because the service stops is answered with status 503.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, status = time.perf_counter(), 0

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watch)
        except asyncio.CancelledError:  # uvicorn cancels tasks after timeout_graceful_shutdown
            if not status:
                response = error_response(503, "The service is stopping.", headers={"Connection": "close"})
                await response(scope, receive, watch)
        finally:
            taken = 1000 * (time.perf_counter() - began)
            client = scope["client"][0] if scope.get("client") else "-"
            id = scope.get("state", {}).get("request_id", "-")
            log.info("%s %s %s %d %.0f ms %s", client, scope["method"], raw_path(scope), status, taken, id)
