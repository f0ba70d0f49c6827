"""The server over real sockets: malformed and long heads, slow and incomplete bodies, clients that do not read, and
shutdown while requests are being served."""

import asyncio
import errno
import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from processes import Talk, other
from starlette.responses import PlainTextResponse

from genius.errors import GeniusError
from genius.serve import security, server
from genius.serve.metrics import Metrics
from genius.serve.problems import install_problems
from genius.serve.settings import Settings

PATIENCE = 20.0
QUICK = Settings(port=0, body_seconds=0.3, keep_alive=10, max_body=1000, shutdown_seconds=10)


def small_app(settings: Settings) -> FastAPI:
    app = FastAPI(openapi_url=None)

    @app.get("/")
    async def hello() -> PlainTextResponse:
        return PlainTextResponse("hello")

    @app.post("/v1/search")
    async def echo(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"{len(await request.body())} bytes")

    @app.get("/v1/long")
    async def long() -> PlainTextResponse:
        return PlainTextResponse(b"x" * 50_000_000)

    @app.get("/v1/wait")
    @app.post("/v1/search/batch")
    async def wait(request: Request) -> PlainTextResponse:
        await request.body()
        app.state.asked.set()
        await asyncio.to_thread(app.state.go_on.wait, PATIENCE)
        return PlainTextResponse("done")

    app.state.asked, app.state.go_on = threading.Event(), threading.Event()
    app.state.routes = [route for route in app.routes if isinstance(route, APIRoute)]
    install_problems(app)
    app.state.metrics = Metrics({})
    security.install(app, settings)
    return app


class Running:
    def __init__(self, settings: Settings) -> None:
        self.app = small_app(settings)
        self._listener = server.listen(settings)
        self.port = self._listener.getsockname()[1]
        self._started = threading.Event()
        self.server = server.Server(server.AccessLog(self.app), settings, lambda: True, self._started.set)
        self._thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self._listener]}, daemon=True)
        self._thread.start()
        assert self._started.wait(PATIENCE)

    def stop(self) -> None:
        self.server.should_exit = True
        self._thread.join(PATIENCE)
        self._listener.close()
        assert not self._thread.is_alive()

    @property
    def connections(self) -> int:
        return len(self.server.server_state.connections)


@contextmanager
def running(settings: Settings) -> Iterator[Running]:
    service = Running(settings)
    try:
        yield service
    finally:
        service.app.state.go_on.set()
        service.stop()


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with running(QUICK) as service:
        yield service


class Client:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: str | bytes) -> None:
        self.socket.sendall(data.encode() if isinstance(data, str) else data)

    def ask(self, method: str = "GET", path: str = "/", body: bytes = b"", headers: str = "") -> tuple[int, bytes]:
        length = f"Content-Length: {len(body)}\r\n" if body else ""
        self.send(f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{length}{headers}\r\n".encode() + body)
        return self.reply()

    def reply(self) -> tuple[int, bytes]:
        """Status and body of the next answer; 0 if the connection is closed instead."""
        head = b""
        while b"\r\n\r\n" not in head:
            piece = self._receive(1)
            if not piece:
                return 0, head
            head += piece
        lines = head.decode().lower().split("\r\n")
        length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
        body = b""
        while len(body) < length:
            piece = self._receive(length - len(body))
            assert piece, "the connection was closed in the middle of an answer"
            body += piece
        return int(lines[0].split()[1]), body

    def rest(self) -> bytes:
        """Everything until the connection is closed."""
        received = b""
        while piece := self._receive(65_536):
            received += piece
        return received

    def closed(self) -> bool:
        """Whether nothing more comes but the end."""
        return self._receive(1) == b""

    def _receive(self, size: int) -> bytes:
        try:
            return self.socket.recv(size)
        except ConnectionError:
            return b""


def code_of(body: bytes) -> str:
    error = json.loads(body)["error"]
    assert set(error) == {"code", "message", "field"}
    return str(error["code"])


def until(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def listened(monkeypatch: pytest.MonkeyPatch) -> Lines:
    """What is logged from now on."""
    logger, handler = logging.getLogger("genius.serve"), Lines()
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "level", logging.INFO)
    logger.manager._clear_cache()  # type: ignore[attr-defined]  # it remembers which levels are on
    return handler


# Heads


def test_requests_are_answered_one_after_the_other_on_a_connection(service):
    with Client(service.port) as client:
        for _ in range(3):
            assert client.ask() == (200, b"hello")


def test_a_connection_that_waits_between_requests_is_kept(service):
    with Client(service.port) as client:
        assert client.ask() == (200, b"hello")
        time.sleep(2 * QUICK.body_seconds)
        assert client.ask() == (200, b"hello")


def test_a_connection_that_asks_nothing_more_is_closed():
    with running(replace(QUICK, keep_alive=0.1)) as service, Client(service.port) as client:
        assert client.ask() == (200, b"hello")
        assert client.closed()


@pytest.mark.parametrize(
    "head",
    [
        "nonsense\r\n\r\n",
        "GET /\xff HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: x\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "GET / HTTP/1.1\r\nHost : 127.0.0.1\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused(service, head):
    with Client(service.port) as client:
        client.send(head)
        assert client.rest().startswith(b"HTTP/1.1 400 ")


def test_a_chunked_body_with_a_length_is_read_in_chunks(service):
    with Client(service.port) as client:
        head = "POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        client.send(head + "3\r\nabc\r\n0\r\n\r\n")
        assert client.reply() == (200, b"3 bytes")


def test_the_service_is_no_proxy(service):
    with Client(service.port) as client:
        client.send("CONNECT 127.0.0.1:80 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        status, body = client.reply()
        assert (status, code_of(body)) == (404, "not_found")


@pytest.mark.parametrize("piece", ["y" * 16_384, "y\r\nX: " * 2048])
def test_a_head_without_end_is_refused(service, piece):
    with Client(service.port) as client:
        client.send("GET / HTTP/1.1\r\nX: ")

        def refused() -> bool:
            try:
                client.send(piece)
            except ConnectionError:
                return True
            return False

        assert until(refused)


def test_a_long_head_is_read(service):
    with Client(service.port) as client:
        assert client.ask(headers="X: " + "y" * (server.MAX_HEAD // 2) + "\r\n") == (200, b"hello")


def test_requests_sent_at_once_are_answered_in_order(service):
    with Client(service.port) as client:
        client.send(100 * "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert [client.reply() for _ in range(100)] == [(200, b"hello")] * 100


def test_requests_sent_without_end_are_not_taken_in(service):
    """While one is being served, the next ones stay in the socket: the client cannot send any more."""
    with running(QUICK) as service, Client(service.port) as client:
        client.send("GET /v1/wait HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert service.app.state.asked.wait(PATIENCE)
        client.socket.settimeout(1)
        with pytest.raises(TimeoutError):
            client.send(1_000_000 * "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")


def test_a_client_that_hangs_up_on_many_requests_is_no_accident(monkeypatch):
    handler = listened(monkeypatch)
    with running(QUICK) as service:
        with Client(service.port) as client:
            client.send(10 * "POST /v1/search/batch HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\n\r\nx")
            client.socket.shutdown(socket.SHUT_WR)
            assert service.app.state.asked.wait(PATIENCE)
        service.app.state.go_on.set()
        assert until(lambda: service.connections == 0 and not service.server.server_state.tasks)
    assert not any("failed" in line for line in handler.lines)


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
def test_a_request_for_another_protocol_is_answered_and_its_body_is_not_taken_for_a_request(service, protocol):
    hidden = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with Client(service.port) as client:
        assert client.ask("GET", "/", hidden, f"Connection: Upgrade\r\nUpgrade: {protocol}\r\n") == (200, b"hello")
        assert client.ask("POST", "/v1/search", b"abc") == (200, b"3 bytes")


def test_too_many_connections_are_told_to_come_again():
    with running(replace(QUICK, max_connections=2)) as service:
        with Client(service.port), Client(service.port), Client(service.port) as third:
            third.send("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert third.rest().startswith(b"HTTP/1.1 503 ")
        assert until(lambda: service.connections < 2)
        with Client(service.port) as client:
            assert client.ask() == (200, b"hello")


# Bodies


def test_a_slow_body_is_broken_off(service):
    with Client(service.port) as client:
        client.send("POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nabc")
        status, body = client.reply()
        assert (status, code_of(body)) == (408, "timeout")
        assert client.closed()


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_large_is_refused_and_the_client_hears_why(service, chunked):
    """Even one that sends everything before it listens; and the connection can be used again."""
    size = 3_000_000
    with Client(service.port) as client:
        if chunked:
            head = "POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
            client.send(head.encode() + f"{size:x}\r\n".encode() + b"x" * size + b"\r\n0\r\n\r\n")
            status, body = client.reply()
        else:
            status, body = client.ask("POST", "/v1/search", b"x" * size)
        assert (status, code_of(body)) == (413, "too_large")
        assert client.ask() == (200, b"hello")


def test_a_refused_body_that_is_never_sent_does_not_keep_the_connection():
    with running(replace(QUICK, keep_alive=0.2)) as service, Client(service.port) as client:
        client.send("POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2000\r\n\r\n")
        assert client.reply()[0] == 413
        assert client.closed()


def test_a_client_that_expects_to_be_asked_for_its_body_is_not_asked_if_it_is_too_large(service):
    with Client(service.port) as client:
        head = "POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nExpect: 100-continue\r\nContent-Length: 2000\r\n\r\n"
        client.send(head)
        assert client.reply()[0] == 413


def test_a_connection_that_breaks_in_the_middle_of_a_body_leaves_the_service_well(service):
    for _ in range(20):
        with Client(service.port) as client:
            client.send("POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nabc")
    assert until(lambda: service.connections == 0)
    with Client(service.port) as client:
        assert client.ask("POST", "/v1/search", b"abc") == (200, b"3 bytes")


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux drops them")
def test_a_client_that_does_not_read_its_answer_is_dropped(service):
    with Client(service.port) as client:
        client.send("GET /v1/long HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert until(lambda: service.connections == 1)
        assert until(lambda: service.connections == 0)


def test_a_client_that_reads_a_long_answer_gets_it_all(service):
    with Client(service.port) as client:
        status, body = client.ask(path="/v1/long")
        assert (status, len(body)) == (200, 50_000_000)


# The log


def test_the_log_has_a_short_line_for_a_request_and_nothing_of_what_was_asked(service, monkeypatch):
    handler = listened(monkeypatch)
    with Client(service.port) as client:
        assert client.ask(path="/?q=my%20secret")[0] == 200
        assert client.ask(path="/a%0Ab%1B[1m")[0] == 404
    assert until(lambda: len(handler.lines) == 2)
    first, second = handler.lines
    assert first.startswith("127.0.0.1 GET / 200 ")
    assert second.startswith("127.0.0.1 GET /a%0Ab%1B[1m 404 ")
    assert len(first) < 80


def test_the_server_does_not_say_what_it_is(service):
    with Client(service.port) as client:
        client.send("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        everything = b""
        while piece := client.socket.recv(65_536):
            everything += piece
    assert b"server:" not in everything.lower()
    assert b"uvicorn" not in everything.lower()


# The beginning and the end


def serve_in_another_process(talk: Talk, seconds: float) -> str:
    """Tells its port and, of a request, that it has come in; lets it go on when it is told to."""
    settings = replace(QUICK, shutdown_seconds=seconds)
    app = small_app(settings)
    listener = server.listen(settings)

    def tell() -> None:
        talk.say((os.getpid(), listener.getsockname()[1]))
        threading.Thread(target=follow, daemon=True).start()

    def follow() -> None:
        app.state.asked.wait(PATIENCE)
        talk.say("asked")
        talk.hear()
        app.state.go_on.set()

    server.run(app, settings, listener, announce=tell)
    return "ended"


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_what_was_asked_before_the_end_is_answered(by):
    with other(serve_in_another_process, 20.0) as process:
        pid, port = process.hear()
        with Client(port) as client, Client(port) as idle:
            assert idle.ask() == (200, b"hello")
            client.send("GET /v1/wait HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert process.hear() == "asked"
            os.kill(pid, by)
            assert idle.closed()  # the end has begun
            with pytest.raises(ConnectionError):
                Client(port)
            process.say("go on")
            assert client.reply() == (200, b"done")
            assert client.closed()
        assert process.hear() == "ended"


def test_the_end_does_not_wait_for_ever():
    with other(serve_in_another_process, 0.3) as process:
        pid, port = process.hear()
        with Client(port) as client:
            client.send("GET /v1/wait HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert process.hear() == "asked"
            os.kill(pid, signal.SIGTERM)
            status, body = client.reply()
            assert (status, code_of(body)) == (503, "unavailable")
            process.say("go on")  # the thread of this request would otherwise be waited for
        assert process.hear() == "ended"


def test_a_taken_port_is_told():
    with socket.create_server(("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(GeniusError, match=f"port {port}: .*in use.*--port {port + 1}"):
            server.listen(Settings(port=port))


@pytest.mark.parametrize(
    ("number", "why"),
    [(errno.EACCES, "denied.*--port 8000"), (errno.EADDRNOTAVAIL, "assign.*--host 127"), (errno.EIO, "Cannot listen")],
)
def test_an_address_that_cannot_be_had_is_told(monkeypatch, number, why):
    class Refusing(socket.socket):
        def bind(self, address: Any) -> None:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "socket", Refusing)
    with pytest.raises(GeniusError, match=why):
        server.listen(Settings(port=80))


def test_a_host_that_is_not_there_is_told():
    with pytest.raises(GeniusError, match=r"There is no host.*--host 127\.0\.0\.1"):
        server.listen(Settings(host="no such host"))


def test_other_addresses_can_be_listened_at():
    for host, family in (("127.0.0.1", socket.AF_INET), ("localhost", socket.AF_INET), ("0.0.0.0", socket.AF_INET)):
        with server.listen(Settings(host=host, port=0)) as listener:
            assert listener.family == family


def test_the_service_is_announced_when_it_is_ready_and_only_once():
    ready, announced = threading.Event(), []
    listener = server.listen(QUICK)
    app = small_app(QUICK)
    one = server.Server(app, QUICK, ready.is_set, lambda: announced.append(1))
    thread = threading.Thread(target=one.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        assert until(lambda: one.started)
        with Client(listener.getsockname()[1]) as client:
            assert client.ask() == (200, b"hello")
        assert announced == []
        ready.set()
        assert until(lambda: announced == [1])
    finally:
        one.should_exit = True
        thread.join(PATIENCE)
    assert announced == [1]
