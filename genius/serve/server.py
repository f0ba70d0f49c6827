"""Runs the service: uvicorn with limits that it does not have itself, a short access log and a graceful end.

Knows sockets, signals and HTTP on the wire. Knows no route.
"""

import asyncio
import contextlib
import ctypes
import errno
import functools
import gc
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from genius.errors import GeniusError
from genius.serve.problems import CODES, error_answer
from genius.serve.security import HEADERS, shown_path
from genius.serve.settings import Settings

log = logging.getLogger("genius.serve")

MAX_HEAD = 65_536
"""Bytes of a request line and its headers."""
MAX_PIPELINE = 32
"""Requests that one connection may send before the first is answered."""
LEAST_READ = 65_536
"""Bytes that a client must read of a long answer within `body_seconds`, again and again."""

_M_ARENA_MAX = -8  # of malloc.h
_TOO_MANY = "Too many connections are open. Try again later."
_LONG_HEAD = f"The address and the headers are too long together: {MAX_HEAD:,} bytes are allowed."


def run(
    app: ASGIApp,
    settings: Settings,
    listener: socket.socket | None = None,
    ready: Callable[[], bool] = lambda: True,
    announce: Callable[[], None] = lambda: None,
    access_log: bool = True,
) -> None:
    """Serve until SIGTERM or SIGINT, then answer what has been asked, within `shutdown_seconds`, and return.

    announce: called once, when connections are taken and `ready` says so.
    """
    _log_to_stderr()
    _allow_open_files(2 * settings.max_connections)
    _share_memory()
    with listener or listen(settings) as taken:
        Server(Logged(app) if access_log else app, settings, ready, announce).run(sockets=[taken])


def listen(settings: Settings) -> socket.socket:
    """The socket of the service. Clients can connect when the server has started."""
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
        listener.bind(address)
        listener.set_inheritable(False)
    except (OSError, OverflowError) as error:
        listener.close()
        raise GeniusError(_why_not(host, port, error)) from error
    return listener


def _why_not(host: str, port: int, error: Exception) -> str:
    match getattr(error, "errno", None):
        case errno.EADDRINUSE:
            return f"Port {port} is taken by another program. Stop that, or choose another port: --port {port + 1}"
        case errno.EACCES | errno.EPERM:
            return f"Port {port} is for privileged users only. Choose one above 1023: --port 8000"
        case errno.EADDRNOTAVAIL:
            return f"This machine does not have the address {host}. Give one that it has: --host 127.0.0.1"
        case _:
            return f"The service cannot listen at {host}, port {port} ({error}). Try --host 127.0.0.1 --port 8000"


def _allow_open_files(wanted: int) -> None:
    """Systems often allow 1024 open files, which as many connections would use up before the index is opened."""
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = wanted + 1024 if hard == resource.RLIM_INFINITY else min(hard, wanted + 1024)
    if soft != resource.RLIM_INFINITY and soft < enough:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))


def _share_memory() -> None:
    """Keeps glibc from giving each thread a heap of its own, which grow and are not given back."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # other C libraries have no such thing
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    for name, level in (("genius.serve", logging.INFO), ("uvicorn", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


class Server(uvicorn.Server):
    """Ends without an error when a signal asks for it, and says when it is ready."""

    def __init__(
        self, app: ASGIApp, settings: Settings, ready: Callable[[], bool], announce: Callable[[], None]
    ) -> None:
        config = uvicorn.Config(
            app,
            http=functools.partial(LimitedProtocol, settings=settings),  # type: ignore[arg-type]
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
        self._ready, self._announce = ready, announce
        self._announced = False

    async def on_tick(self, counter: int) -> bool:
        if not self._announced and self._ready():
            self._announced = True
            gc.collect()
            gc.freeze()  # what there is now stays; to look at it again and again would hold up searches
            self._announce()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        with super().capture_signals():
            yield
            self._captured_signals.clear()  # or they would be raised again, and end the process with an error


class Logged:
    """One short line a request: who, what, how it ended, how long it took. Nothing of what was searched for.

    A request that has to be broken off at the end of the service is told so.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, status = time.perf_counter(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except asyncio.CancelledError:  # uvicorn's, when the time for the end is up; this task does nothing more
            if not status:
                await error_answer(503, "The service is stopping.", headers={"Connection": "close"})(
                    scope, receive, watched
                )
        finally:
            taken = 1000 * (time.perf_counter() - began)
            client = scope["client"][0] if scope.get("client") else "-"
            id = scope.get("state", {}).get("request_id", "-")
            log.info("%s %s %s %d %.0f ms %s", client, scope["method"], shown_path(scope), status, taken, id)


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits on the time and size of request heads, on pipelining, and on clients that do not
    read their answers. What is left of a body after its request has been answered counts as the head of the next."""

    def __init__(self, *arguments: Any, settings: Settings, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._settings = settings
        self._in_head = False
        self._head_size = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._reading_timer: asyncio.TimerHandle | None = None
        self._unread: int | None = None
        self._deaf = False
        self._running: RequestResponseCycle | None = None

    # Connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > 2 * self._settings.max_connections:
            transport.abort()
        else:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_arrived()
        self._stop_watching()
        self.pipeline.clear()
        if self._running is not None:  # uvicorn tells only the newest of pipelined requests that the client has gone
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    # Heads of requests

    def data_received(self, data: bytes) -> None:
        if self._deaf or self.transport.is_closing():
            return
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head_size += len(data)
            if self._head_size > MAX_HEAD:
                return self._break_off(431, _LONG_HEAD)
        if not self._answering:
            self._await_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_size = True, 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._head_arrived()
        self._check_limits()
        super().on_headers_complete()
        if self.parser.should_upgrade():  # to nothing that is spoken here: answered, and nothing more is read
            self._deaf = True
            self.cycle.keep_alive = False

    def _check_limits(self) -> None:
        if len(self.connections) > self._settings.max_connections:
            self._break_off(503, _TOO_MANY)
        elif len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > MAX_HEAD:
            self._break_off(431, _LONG_HEAD)
        elif len(self.pipeline) >= MAX_PIPELINE:
            self.transport.abort()
        if self.transport.is_closing():
            raise ConnectionAbortedError  # ends the parser

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self._settings.header_seconds, self.transport.abort)

    def _head_arrived(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def send_400_response(self, msg: str) -> None:
        self._break_off(400, "This is not a valid HTTP request.")

    def _break_off(self, status: int, message: str) -> None:
        """Answer without the app, and close; while an earlier answer is under way, only close."""
        if self.transport.is_closing():
            return
        if self._answering:
            return self.transport.abort()
        body = json.dumps({"error": {"code": CODES[status], "message": message, "field": None}}).encode()
        headers = {b"content-type": b"application/json", b"content-length": str(len(body)).encode(), **HEADERS}
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}".encode(), b"connection: close"]
        lines += [name + b": " + value for name, value in headers.items()]
        lines += [b"retry-after: 1"] if status == 503 else []
        self.transport.write(b"\r\n".join(lines) + b"\r\n\r\n" + body)
        self.transport.close()
        self._watch_reading()

    def _unsupported_upgrade_warning(self) -> None:
        """Nobody needs to know."""

    # Clients that do not read

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        self._stop_watching()
        super().resume_writing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._watch_reading()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch_reading()

    def _watch_reading(self) -> None:
        if self._reading_timer is None:
            self._look_at_reading()

    def _look_at_reading(self) -> None:
        left = self.transport.get_write_buffer_size()
        if left == 0:
            return self._stop_watching()
        if self._unread is not None and self._unread - left < LEAST_READ:
            return self.transport.abort()
        self._unread = left
        self._reading_timer = self.loop.call_later(self._settings.body_seconds, self._look_at_reading)

    def _stop_watching(self) -> None:
        if self._reading_timer is not None:
            self._reading_timer.cancel()
        self._reading_timer, self._unread = None, None
