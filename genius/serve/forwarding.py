"""Forwarding: how the worker processes of a service talk to each other, over Unix sockets in a private folder.

Each worker serves the same app on a socket of its own. Writes and jobs are forwarded to the worker that writes; the
metrics of all workers are collected by the one that is asked.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import h11
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genius.serve.responses import error_response

WRITER = 0
"""Number of the worker that writes."""

_BLOCK = 65_536  # bytes read at once
_PATIENCE = 30.0  # seconds that a worker may take to tell its metrics
_HOP = {b"connection", b"keep-alive", b"transfer-encoding", b"content-length"}
_SAMPLE = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (.*)")


def socket_of(folder: Path, worker: int) -> str:
    """Path of the socket of a worker."""
    return str(folder / f"{worker}.sock")


def from_worker(scope: Scope) -> bool:
    """Whether a request came over a socket of a worker, which has checked its rate."""
    return scope.get("client") is None and (scope.get("server") or ("", 0))[1] is None


class Forwarding:
    """Middleware: forwards writes and jobs to the worker that writes, and collects metrics.

    Args:
        app: The app of this worker.
        folder: Folder of the sockets.
        worker: Number of this worker.
        workers: Number of workers.
    """

    def __init__(self, app: ASGIApp, folder: Path, worker: int, workers: int) -> None:
        self._app, self._folder, self._worker, self._workers = app, folder, worker, workers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http" or from_worker(scope):
            return await self._app(scope, receive, send)
        if scope["path"] == "/metrics":
            return await self._collect(scope, send)
        if self._worker == WRITER or not _is_for_writer(scope["method"], scope["path"]):
            return await self._app(scope, receive, send)
        return await self._forward(scope, receive, send)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False
        try:
            async with asyncio.timeout(None), _exchange(socket_of(self._folder, WRITER), scope, receive) as answer:
                async for message in answer:
                    if message["type"] == "http.response.start":
                        if message["status"] < 300 and scope["method"] != "GET":
                            await self._refresh(scope)
                        started = True
                    await send(message)
        except (OSError, EOFError, h11.RemoteProtocolError):
            if started:
                raise
            sentence = "The process that writes is starting. Try again in a moment."
            await error_response(503, sentence, headers={"Retry-After": "2"})(scope, receive, send)

    async def _refresh(self, scope: Scope) -> None:
        """Let this worker see what was written before it answers."""
        for one in scope["app"].state.served.values():
            await asyncio.to_thread(one.index.refresh)

    async def _collect(self, scope: Scope, send: Send) -> None:
        found = await asyncio.gather(*(self._metrics_of(scope, worker) for worker in range(self._workers)))
        body = merge_metrics({worker: text for worker, text in enumerate(found) if text is not None}).encode()
        headers = [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _metrics_of(self, scope: Scope, worker: int) -> str | None:
        """Metrics of a worker; None if it is starting."""

        async def no_body() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        status, body = 0, b""
        with contextlib.suppress(OSError, EOFError, TimeoutError, h11.RemoteProtocolError):
            async with asyncio.timeout(_PATIENCE):
                async with _exchange(socket_of(self._folder, worker), scope, no_body) as answer:
                    async for message in answer:
                        status = message.get("status", status)
                        body += message.get("body", b"")
        return body.decode() if status == 200 else None


def _is_for_writer(method: str, path: str) -> bool:
    if path == "/v1/jobs" or path.startswith("/v1/jobs/"):
        return True
    return method in ("PUT", "POST", "DELETE") and (path == "/v1/items" or path.startswith("/v1/items/"))


@contextlib.asynccontextmanager
async def _exchange(path: str, scope: Scope, receive: Receive) -> AsyncIterator[AsyncIterator[Message]]:
    """Send a request to the socket of a worker. Yields its answer as ASGI messages."""
    reader, writer = await asyncio.open_unix_connection(path)
    try:
        connection = h11.Connection(h11.CLIENT)
        target = scope.get("raw_path") or scope["path"].encode()
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        headers = [(name, value) for name, value in scope["headers"] if name not in _HOP]
        headers.append((b"connection", b"close"))
        message = await _body_part(receive)
        if message.get("body") or message.get("more_body"):
            headers.append((b"transfer-encoding", b"chunked"))
        # A request without a body is sent by one write: the other side may answer and close as soon as it has the head.
        writer.write(connection.send(h11.Request(method=scope["method"], target=target, headers=headers)))
        while True:
            if message.get("body"):
                writer.write(connection.send(h11.Data(data=message["body"])))
                await writer.drain()
            if not message.get("more_body"):
                break
            message = await _body_part(receive)
        writer.write(connection.send(h11.EndOfMessage()))
        await writer.drain()
        yield _answer(connection, reader)
    finally:
        writer.close()


async def _body_part(receive: Receive) -> Message:
    """The next part of the body of a request. Raises EOFError if the client has left."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise EOFError
    return message


async def _answer(connection: h11.Connection, reader: asyncio.StreamReader) -> AsyncIterator[Message]:
    while True:
        event: Any = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(_BLOCK))
        elif isinstance(event, h11.Response):
            headers = [(name, value) for name, value in event.headers if name not in _HOP - {b"content-length"}]
            yield {"type": "http.response.start", "status": event.status_code, "headers": headers}
        elif isinstance(event, h11.Data):
            yield {"type": "http.response.body", "body": bytes(event.data), "more_body": True}
        elif isinstance(event, h11.EndOfMessage):
            yield {"type": "http.response.body", "body": b""}
            return
        elif isinstance(event, h11.ConnectionClosed):
            raise EOFError


def merge_metrics(texts: dict[int, str]) -> str:
    """Metrics of workers in Prometheus' text format, as one text whose samples have the label `worker`."""
    families: dict[str, tuple[list[str], list[str]]] = {}
    for worker, text in texts.items():
        comments: list[str] = []
        samples: list[str] = []
        for line in text.splitlines():
            if line.startswith("# HELP"):
                comments, samples = families.setdefault(line.split(" ", 3)[2], ([], []))
            if line.startswith("#"):
                if line not in comments:
                    comments.append(line)
            elif match := _SAMPLE.fullmatch(line):
                name, labels, value = match.groups()
                samples.append(f'{name}{{{f"{labels}," if labels else ""}worker="{worker}"}} {value}')
    lines = [line for comments, samples in families.values() for line in (*comments, *samples)]
    return "\n".join(lines) + "\n"
