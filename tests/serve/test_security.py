"""The security middleware (hosts, origins, keys, rates, bodies) and the key file.

The tests call the ASGI app without a server; test_server.py uses real sockets.
"""

import asyncio
import json
import logging
import math
import re
import string
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Mount

from genius.errors import BadData, GeniusError
from genius.serve import keys, limits, security, server
from genius.serve.problems import install_problems
from genius.serve.settings import Settings

HOST = "127.0.0.1:8000"
READ, WRITE = "r" * 21 + "-_READ-23456789", "w" * 21 + "-_WRITE-2345678"
KEYED = Settings(read_keys=frozenset({keys.digest(READ)}), write_keys=frozenset({keys.digest(WRITE)}))
PUBLIC = Settings(host="0.0.0.0")


@dataclass
class Reply:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def __getitem__(self, name: str) -> str | None:
        return dict(self.headers).get(name)

    @property
    def error(self) -> dict[str, Any]:
        """Of an answer in the one shape of errors; any other fails."""
        told = json.loads(self.body)
        assert set(told) == {"error"}
        assert set(told["error"]) == {"code", "message", "field"}
        assert told["error"]["message"].endswith((".", "NAME", "ORIGIN", "FILE"))
        return told["error"]


class Refusals:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def count_refusal(self, reason: str) -> None:
        self.reasons.append(reason)


def small_app(settings: Settings) -> FastAPI:
    """Routes like those of the service, without an index."""
    app = FastAPI(openapi_url=None, redirect_slashes=False)
    app.state.metrics = Refusals()

    async def echo(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"{len(await request.body())} bytes", headers={"Content-Security-Policy": "none"})

    @app.get("/boom")
    async def boom() -> None:
        raise RuntimeError("the secret is swordfish")

    for path, methods in {
        "/": ["GET"],
        "/page/{file:path}": ["GET"],
        "/healthz": ["GET"],
        "/readyz": ["GET"],
        "/metrics": ["GET"],
        "/docs": ["GET"],
        "/v1/search": ["POST"],
        "/v1/search/batch": ["POST"],
        "/v1/items": ["GET", "POST"],
        "/v1/items/{id:path}": ["GET", "PUT", "DELETE"],
    }.items():
        app.add_api_route(path, echo, methods=methods)
    app.state.routes = [route for route in app.routes if isinstance(route, APIRoute)]
    install_problems(app)
    security.install(app, settings)
    return app


def ask(
    app: FastAPI,
    method: str,
    path: str,
    headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    body: Iterable[bytes] = (),
    host: str | None = HOST,
    client: str = "192.0.2.1",
) -> Reply:
    """One request, the body in pieces. Its length is told only if `headers` tell it."""

    async def pieces() -> AsyncIterator[bytes]:
        for piece in body:
            yield piece

    return asyncio.run(ask_with(app, method, path, headers, pieces(), host, client))


async def ask_with(
    app: FastAPI,
    method: str,
    path: str,
    headers: Mapping[str, str] | Iterable[tuple[str, str]],
    pieces: AsyncIterator[bytes],
    host: str | None = HOST,
    client: str = "192.0.2.1",
) -> Reply:
    given = [*(headers.items() if isinstance(headers, Mapping) else headers), *([("Host", host)] if host else [])]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        async for piece in pieces:
            return {"type": "http.request", "body": piece, "more_body": True}
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(name.lower().encode(), value.encode()) for name, value in given],
        "client": (client, 1234),
        "server": ("127.0.0.1", 8000),
        "scheme": "http",
        "http_version": "1.1",
        "root_path": "",
        "asgi": {"version": "3.0"},
    }
    await app(scope, receive, send)
    start = sent[0]
    told = [(name.decode().lower(), value.decode()) for name, value in start["headers"]]
    return Reply(start["status"], told, b"".join(message["body"] for message in sent[1:]))


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


# Headers and accidents


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("GET", "/v1/items/a", 200),
        ("GET", "/no/such", 404),
        ("PATCH", "/", 405),
        ("GET", "/boom", 500),
    ],
)
def test_every_answer_has_the_headers(method, path, status):
    reply = ask(small_app(Settings()), method, path)
    assert reply.status == status
    names = [name for name, _ in reply.headers]
    for name, value in security.HEADERS.items():
        assert names.count(name.decode()) == 1
        assert reply[name.decode()] == value.decode()
    assert len(reply["x-request-id"] or "") == 16
    assert "access-control-allow-origin" not in names


def test_the_policy_allows_no_script_but_the_services_own():
    policy = dict(part.split(" ", 1) for part in security.HEADERS[b"content-security-policy"].decode().split("; "))
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' blob: data:",
        "connect-src": "'self'",
        "form-action": "'none'",
        "base-uri": "'none'",
        "frame-ancestors": "'none'",
    }


def test_data_is_not_kept_by_caches():
    app = small_app(Settings())
    assert ask(app, "GET", "/v1/items/a")["cache-control"] == "no-store"
    assert ask(app, "GET", "/")["cache-control"] == "no-cache"


@pytest.fixture
def logged(caplog):
    """What is logged, even if a server in this process has turned the log away from others."""
    logger = logging.getLogger("genius.serve")
    before = logger.propagate
    logger.propagate = True
    yield caplog
    logger.propagate = before


def test_an_accident_is_logged_and_not_shown(logged):
    reply = ask(small_app(Settings()), "GET", "/boom")
    assert reply.status == 500
    assert reply.error["code"] == "internal"
    assert b"swordfish" not in reply.body
    assert b"Traceback" not in reply.body
    assert reply["x-request-id"] in reply.error["message"]
    assert reply["x-request-id"] in logged.text
    assert "the secret is swordfish" in logged.text
    assert "Traceback" in logged.text


def test_routes_that_are_not_there_are_told_in_the_shape_of_errors():
    app = small_app(Settings())
    assert ask(app, "GET", "/no/such").error["code"] == "not_found"
    assert ask(app, "POST", "/").error["code"] == "method_not_allowed"


def test_web_sockets_are_refused():
    sent = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    asyncio.run(small_app(Settings())({"type": "websocket", "path": "/", "headers": []}, receive, send))
    assert sent == [{"type": "websocket.close", "code": 1008}]


# Names of the service


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8000", "127.0.0.1", "localhost:1", "LOCALHOST.", "[::1]:8000", "[::1]", "192.168.1.7:80"]
)
def test_addresses_and_localhost_are_own_names(host):
    assert ask(small_app(Settings()), "GET", "/", host=host).status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "a@127.0.0.1", "", "[::1",
     "127.0.0.1:8000:1", "localhost/", "0x7f.1", "testserver", None],
)  # fmt: skip
def test_other_names_are_refused(host):
    app = small_app(Settings())
    reply = ask(app, "GET", "/healthz", host=host)
    assert (reply.status, reply.error["code"]) == (400, "bad_request")
    assert app.state.metrics.reasons == ["host"]


def test_two_host_headers_are_refused():
    assert ask(small_app(Settings()), "GET", "/", headers=[("Host", HOST)], host=HOST).status == 400


def test_further_names_can_be_allowed():
    app = small_app(Settings(host="box.local", hosts=("Search.example.org",)))
    for host in ("box.local:8000", "search.example.org", "search.EXAMPLE.org:443"):
        assert ask(app, "GET", "/", host=host).status == 200
    assert ask(app, "GET", "/", host="example.org").status == 400


def test_what_is_no_name_cannot_be_allowed():
    with pytest.raises(GeniusError, match="not a host name"):
        small_app(Settings(hosts=("http://x",)))


# Pages of others

FROM_ELSEWHERE = [
    {"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:3000"},
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},  # a form
    {"Origin": "https://evil.example"},
    {"Origin": "http://127.0.0.1:3000"},
    {"Origin": "http://127.0.0.1:8000.evil.example"},
    {"Origin": "null"},
    {"Origin": ""},
]


@pytest.mark.parametrize("headers", FROM_ELSEWHERE, ids=str)
@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "/v1/items"), ("POST", "/v1/search"), ("PUT", "/v1/items/a"), ("OPTIONS", "/v1/items")],
)
def test_pages_of_other_sites_can_send_nothing(headers, method, path):
    app = small_app(Settings())
    form = {"Content-Type": "multipart/form-data; boundary=x"}  # needs no preflight
    reply = ask(app, method, path, {**headers, **form}, [b"--x--"])
    assert (reply.status, reply.error["code"]) == (403, "forbidden")
    assert app.state.metrics.reasons == ["origin"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "same-origin", "Origin": f"http://{HOST}"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": f"http://{HOST}"},
        {"Origin": f"https://{HOST}"},
    ],
    ids=str,
)
def test_the_own_page_and_other_programs_may_send(headers):
    assert ask(small_app(Settings()), "POST", "/v1/items", headers, [b"x"]).status == 200


def test_other_pages_can_link_to_the_page_but_not_load_from_it():
    app = small_app(Settings())
    clicked = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert ask(app, "GET", "/", clicked).status == 200
    assert ask(app, "GET", "/", {**clicked, "Sec-Fetch-Dest": "iframe"}).status == 403
    assert ask(app, "GET", "/v1/items", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}).status == 403


def test_pages_of_allowed_origins_may_do_all():
    ours, theirs = "https://pages.example", "https://evil.example"
    app = small_app(replace(KEYED, origins=(ours,)))
    preflight = {"Access-Control-Request-Method": "PUT", "Access-Control-Request-Headers": "authorization"}
    reply = ask(app, "OPTIONS", "/v1/items/a", {"Origin": ours, "Sec-Fetch-Site": "cross-site", **preflight})
    assert (reply.status, reply["access-control-allow-origin"]) == (200, ours)
    reply = ask(app, "PUT", "/v1/items/a", {"Origin": ours, "Sec-Fetch-Site": "cross-site", **bearer(WRITE)}, [b"x"])
    assert (reply.status, reply["access-control-allow-origin"]) == (200, ours)
    assert reply["access-control-allow-credentials"] is None
    reply = ask(app, "PUT", "/v1/items/a", {"Origin": ours, "Sec-Fetch-Site": "cross-site"}, [b"x"])
    assert (reply.status, reply["access-control-allow-origin"]) == (401, ours)  # the page can read why
    reply = ask(app, "OPTIONS", "/v1/items/a", {"Origin": theirs, "Sec-Fetch-Site": "cross-site", **preflight})
    assert (reply.status, reply["access-control-allow-origin"]) == (403, None)


# Keys

OPEN = [("GET", "/"), ("HEAD", "/"), ("GET", "/page/app.js"), ("GET", "/healthz"), ("GET", "/readyz"),
        ("GET", "/favicon.ico"), ("GET", "/docs"), ("GET", "/docs/docs.js"), ("GET", "/openapi.json")]  # fmt: skip
READS = [("GET", "/v1/items"), ("GET", "/v1/items/a"), ("POST", "/v1/search"), ("POST", "/v1/search/batch"),
         ("GET", "/metrics"), ("GET", "/page"), ("GET", "/docsx"), ("OPTIONS", "/v1/items")]  # fmt: skip
WRITES = [("POST", "/v1/items"), ("PUT", "/v1/items/a"), ("DELETE", "/v1/items/a"),
          ("POST", "/v1/search/"), ("POST", "//v1/search"), ("PUT", "/v1/search"), ("BREW", "/"), ("POST", "/page/x"),
          ("POST", "/no/such")]  # fmt: skip
EVERYTHING = [(*one, scope) for scope, some in (("public", OPEN), ("read", READS), ("write", WRITES)) for one in some]


@pytest.mark.parametrize(("method", "path", "needed"), EVERYTHING)
def test_what_each_request_needs(method, path, needed):
    assert security.required_permission(method, path) == needed


NOWHERE = [("POST", "/v1/search/"), ("POST", "//v1/search"), ("POST", "/v1//search"), ("POST", "/no/such"),
           ("GET", "/page"), ("GET", "/docsx"), ("HEAD", "/no/such"), ("GET", "/v1/items/"), ("OPTIONS", "/no/such"),
           ("PUT", "/v1/items/"), ("DELETE", "/v1/jobs/"), ("BREW", "/no/such"), ("GET", "/v1/../items/a")]  # fmt: skip
WRONG = [("PUT", "/v1/search"), ("BREW", "/"), ("POST", "/page/x"), ("OPTIONS", "/v1/items"), ("DELETE", "/v1/search"),
         ("HEAD", "/v1/search"), ("GET", "/v1/search"), ("PATCH", "/v1/items/a")]  # fmt: skip


@pytest.mark.parametrize("status", [404, 405])
@pytest.mark.parametrize("keyed", [True, False])
def test_unknown_addresses_and_wrong_methods_are_named_as_such_for_every_key(status, keyed):
    from genius.serve.app import create_app

    app = create_app({}, KEYED if keyed else Settings(host="0.0.0.0"))
    for method, path in NOWHERE if status == 404 else WRONG:
        for headers in ({}, bearer(READ), bearer(WRITE), bearer("unknown")):
            reply = ask(app, method, path, headers)
            assert reply.status == status, (method, path, headers, reply.status)
            assert (reply["allow"] is not None) == (status == 405)


@pytest.mark.parametrize(("method", "path", "needed"), [one for one in EVERYTHING if one[:2] not in NOWHERE + WRONG])
def test_keys_open_what_they_are_for(method, path, needed):
    app = small_app(KEYED)
    allowed = {"public": (True, True, True), "read": (False, True, True), "write": (False, False, True)}[needed]
    for headers, may in zip(({}, bearer(READ), bearer(WRITE)), allowed, strict=True):
        status = ask(app, method, path, headers).status
        assert (status not in (401, 403)) == may, (headers, status)


@pytest.mark.parametrize("path", ["/v1/items", "/v1/search"])
def test_without_a_key_or_with_a_wrong_one_a_client_is_told_to_bring_one(path):
    app = small_app(KEYED)
    for headers in ({}, {"Authorization": f"Basic {READ}"}, {"Authorization": "Bearer"}, {"Authorization": "Bearer "}):
        reply = ask(app, "POST", path, headers)
        assert (reply.status, reply.error["code"]) == (401, "unauthorized")
        assert reply["www-authenticate"] == 'Bearer realm="genius"'
    for wrong in (READ[:-1], READ + "x", READ.swapcase(), "é" * 30, "x" * 100_000):
        reply = ask(app, "POST", path, bearer(wrong))
        assert reply.status == 401
        assert 'error="invalid_token"' in (reply["www-authenticate"] or "")
    assert set(app.state.metrics.reasons) == {"key"}


def test_two_keys_are_none():
    headers = [*bearer(WRITE).items(), *bearer(READ).items()]
    assert ask(small_app(KEYED), "GET", "/v1/items", headers).status == 401


def test_the_word_bearer_may_be_written_in_any_way():
    assert ask(small_app(KEYED), "GET", "/v1/items", {"Authorization": f"bEARER   {READ} "}).status == 200


def test_a_read_key_cannot_write():
    reply = ask(small_app(KEYED), "PUT", "/v1/items/a", bearer(READ))
    assert (reply.status, reply.error["code"]) == (403, "forbidden")


def test_a_wrong_key_does_no_harm_where_none_is_needed():
    assert ask(small_app(Settings()), "PUT", "/v1/items/a", bearer("nonsense")).status == 200


@pytest.mark.parametrize(
    ("settings", "read", "write"),
    [
        (Settings(), 200, 200),
        (Settings(host="localhost"), 200, 200),
        (Settings(host="::1"), 200, 200),
        (Settings(read_only=True), 200, 403),
        (PUBLIC, 200, 403),
        (Settings(host="192.0.2.7"), 200, 403),
        (Settings(host="box.local"), 200, 403),
        (replace(PUBLIC, write_keys=KEYED.write_keys), 200, 401),
        (Settings(write_keys=KEYED.write_keys), 200, 401),
        (Settings(read_keys=KEYED.read_keys), 401, 403),
        (replace(PUBLIC, read_keys=KEYED.read_keys), 401, 403),
        (KEYED, 401, 401),
        (replace(KEYED, read_only=True), 401, 403),
    ],
)
def test_what_strangers_may_do(settings, read, write):
    app = small_app(settings)
    assert ask(app, "POST", "/v1/search").status == read
    assert ask(app, "PUT", "/v1/items/a").status == write


def test_a_read_only_service_takes_no_key():
    assert ask(small_app(replace(KEYED, read_only=True)), "PUT", "/v1/items/a", bearer(WRITE)).status == 403


def routes_of(routes: Iterable[BaseRoute], before: str = "") -> Iterable[tuple[str, str]]:
    for route in routes:
        path = before + getattr(route, "path", "")
        inner = getattr(route, "routes", None) or getattr(getattr(route, "original_router", None), "routes", None)
        if inner and not isinstance(route, Mount):
            yield from routes_of(inner, before)
        for method in getattr(route, "methods", None) or ([] if inner else ["GET"]):
            yield method, path


def test_no_route_of_the_service_writes_without_a_write_key():
    """Every route there is, by name: a new one has to be put here, and so be thought about."""
    from genius.serve.app import create_app

    app = create_app({}, KEYED)
    needed: dict[str, set[tuple[str, str]]] = {"public": set(), "read": set(), "write": set()}
    for method, path in routes_of(app.routes):
        path = re.sub(r":\w+}", "}", path)
        needed[security.required_permission(method, path)].add((method, path))
        status = ask(app, method, re.sub(r"{\w+}", "0", path)).status
        assert (status == 401) == (security.required_permission(method, path) != "public"), (method, path, status)
    assert needed["write"] == {
        ("POST", "/v1/items"),
        ("DELETE", "/v1/items"),
        ("PUT", "/v1/items/{id}"),
        ("DELETE", "/v1/items/{id}"),
        ("DELETE", "/v1/jobs/{job}"),
    }
    assert {path for method, path in needed["read"] if method == "POST"} == security.SEARCHES
    pages = {"/", "/page/{name}", "/favicon.ico", "/docs", "/docs/{name}", "/openapi.json"}
    assert {path for _, path in needed["public"]} == pages | {"/healthz", "/readyz"}


# The key file


@given(
    st.lists(st.binary(min_size=32, max_size=32), max_size=6),
    st.binary(min_size=32, max_size=32),
    st.booleans(),
    st.randoms(),
)
def test_a_key_is_known_if_it_is_one_of_them(digests, one, is_in, random):
    digests = [*digests, one] if is_in else digests
    random.shuffle(digests)
    assert keys.is_known(one, digests) == (one in digests)


def test_all_keys_are_compared_whichever_it_is(monkeypatch):
    compared = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append(b)
        return a == b

    monkeypatch.setattr(keys, "hmac", SimpleNamespace(compare_digest=compare))
    digests = [keys.digest(str(i)) for i in range(5)]
    for i in range(5):
        compared.clear()
        assert keys.is_known(digests[i], digests)
        assert compared == digests


TOKEN = st.text(string.ascii_letters + string.digits + "._~+/=-", min_size=keys.MIN_LENGTH, max_size=keys.MAX_LENGTH)


@given(st.lists(TOKEN, min_size=1, max_size=4), st.lists(TOKEN, max_size=4))
def test_a_key_file_is_read(tmp_path_factory, read, write):
    file = tmp_path_factory.mktemp("keys") / "keys.txt"
    lines = ["# ours", "", *(f"read {key}" for key in read), *(f"  write\t{key}  # theirs" for key in write)]
    file.write_text("\n".join(lines))
    assert keys.read_keys(file, {}) == keys.Keys(frozenset(map(keys.digest, read)), frozenset(map(keys.digest, write)))


def test_keys_come_from_the_environment_too(tmp_path):
    file = tmp_path / "keys"
    file.write_text(f"read {READ}")
    found = keys.read_keys(file, {"GENIUS_WRITE_KEY": WRITE, "OTHER_KEY": "x"})
    assert (found.read, found.write) == (KEYED.read_keys, KEYED.write_keys)
    assert keys.read_keys(None, {"GENIUS_READ_KEY": READ}) == keys.Keys(read=KEYED.read_keys)
    assert keys.read_keys(None, {}) == keys.Keys()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("read short", "Line 1 .* 20 to 200 letters, digits"),
        (f"# a\nwrite {'x' * 201}", "Line 2 .* 20 to 200 letters"),
        (f"read {'x' * 30}é", "letters, digits"),
        (f"admin {READ}", "neither `read KEY` nor `write KEY`"),
        (READ, "neither"),
        (f"read {READ} {READ}", "neither"),
        ("# nothing\n\n", "holds no key"),
        ("", "holds no key"),
    ],
)
def test_a_bad_key_file_is_refused_without_showing_a_key(tmp_path, content, why):
    file = tmp_path / "keys.txt"
    file.write_text(content)
    with pytest.raises(BadData, match=why) as raised:
        keys.read_keys(file, {})
    assert READ not in str(raised.value)


def test_a_key_file_that_cannot_be_read_is_told(tmp_path):
    with pytest.raises(BadData, match="cannot be read"):
        keys.read_keys(tmp_path / "none", {})
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadData, match="cannot be read"):
        keys.read_keys(tmp_path / "binary", {})


def test_an_empty_variable_is_not_taken_for_no_key():
    with pytest.raises(BadData, match="GENIUS_READ_KEY: a key has 20 to 200 letters"):
        keys.read_keys(None, {"GENIUS_READ_KEY": ""})


def test_others_that_can_read_the_file_are_noticed(tmp_path: Path):
    file = tmp_path / "keys"
    file.write_text("x")
    for mode, open_to_others in ((0o600, False), (0o400, False), (0o640, True), (0o644, True)):
        file.chmod(mode)
        assert keys.others_can_read(file) == open_to_others


def test_new_keys_are_good_ones(tmp_path):
    made = [keys.new_key() for _ in range(100)]
    assert len(set(made)) == 100
    file = tmp_path / "keys"
    file.write_text("\n".join(f"read {key}" for key in made))
    assert len(keys.read_keys(file, {}).read) == 100


def test_settings_do_not_show_keys():
    assert "keys" not in repr(KEYED)


# How often


class Model:
    """The bucket in whole small steps: one client, no table."""

    def __init__(self, rate: int, burst: int) -> None:
        self.rate, self.burst, self.tokens, self.now = rate, burst, float(burst), 0

    def take(self, now: int) -> bool:
        for _ in range(now - self.now):
            self.tokens = min(self.burst, self.tokens + self.rate)
        self.now = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


@given(
    st.integers(1, 5), st.integers(1, 10), st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc")), max_size=60)
)
def test_buckets_do_what_the_model_does(rate, burst, requests):
    buckets, models, now = security.RateLimiter(rate, burst), {name: Model(rate, burst) for name in "abc"}, 0
    for later, client in requests:
        now += later
        assert (buckets.take(client, float(now)) == 0) == models[client].take(now)


@given(
    st.floats(0.01, 100), st.integers(1, 20), st.lists(st.floats(0, 10, allow_subnormal=False), min_size=1, max_size=60)
)
def test_nobody_gets_more_than_burst_and_rate_and_who_waits_gets_on(rate, burst, pauses):
    buckets, now, granted = security.RateLimiter(rate, burst), 0.0, 0
    for pause in pauses:
        now += pause
        wait = buckets.take("a", now)
        granted += wait == 0
        assert granted <= burst + rate * now + 1e-6
        assert wait <= 1 / rate + 1e-9
        if wait:
            now += wait * (1 + 1e-9) + 1e-9
            assert buckets.take("a", now) == 0
            granted += 1


def test_time_that_goes_back_gives_no_tokens():
    buckets = security.RateLimiter(1, 1)
    assert buckets.take("a", 10.0) == 0
    assert buckets.take("a", 5.0) > 0
    assert buckets.take("a", 10.5) > 0
    assert buckets.take("a", 11.5) == 0


@given(st.lists(st.integers(0, 50), max_size=200))
def test_the_table_of_clients_is_bounded_and_forgets_the_oldest(clients):
    buckets = security.RateLimiter(0.001, 1, max_clients=10)
    latest: list[int] = []  # newest last
    for now, client in enumerate(clients):
        remembered = client in latest[-10:]
        assert (buckets.take(client, now / 1e6) > 0) == remembered
        latest = [*(one for one in latest if one != client), client]
        assert len(buckets._buckets) == min(10, len(latest))


def test_too_many_requests_are_told_when_to_come_again():
    app = small_app(Settings(rate_limit=0.01, rate_burst=3))
    assert [ask(app, "GET", "/").status for _ in range(3)] == [200] * 3
    reply = ask(app, "GET", "/")
    assert (reply.status, reply.error["code"]) == (429, "too_many_requests")
    assert 1 <= int(reply["retry-after"] or 0) <= 100
    assert ask(app, "GET", "/", client="192.0.2.2").status == 200  # another client
    assert {ask(app, "GET", path).status for path in ("/healthz", "/readyz")} == {200}
    assert app.state.metrics.reasons == ["rate"]


def test_clients_are_told_apart_by_key_and_by_network():
    app = small_app(replace(KEYED, rate_limit=0.01, rate_burst=1))

    def status(headers: dict[str, str], client: str) -> int:
        return ask(app, "GET", "/", headers, client=client).status

    assert status(bearer(READ), "192.0.2.1") == 200
    assert status(bearer(READ), "192.0.2.9") == 429  # the same key
    assert status(bearer(WRITE), "192.0.2.1") == 200
    assert status({}, "192.0.2.1") == 200
    assert status(bearer("wrong" * 5), "192.0.2.1") == 429  # a made-up key is no way out
    assert status({"X-Forwarded-For": "192.0.2.3"}, "192.0.2.1") == 429  # nor is a made-up address
    assert status({}, "2001:db8::1") == 200
    assert status({}, "2001:db8::ffff") == 429  # the same household
    assert status({}, "2001:db8:0:1::1") == 200
    assert status({}, "::ffff:192.0.2.1") == 429  # the first one again, in other words
    assert status({}, "") == 200


def test_without_a_limit_nothing_is_counted():
    app = small_app(Settings(rate_burst=1))
    assert {ask(app, "GET", "/").status for _ in range(5)} == {200}


# Bodies

SMALL = Settings(max_body=1000, max_bulk_body=5000)


@pytest.mark.parametrize(
    ("method", "path", "limit"),
    [("POST", "/v1/search", 1000), ("PUT", "/v1/items/a", 1000), ("POST", "/v1/items", 5000)],
)
def test_bodies_may_be_so_large(method, path, limit):
    app = small_app(SMALL)
    for told in ({}, {"Content-Length": str(limit)}):
        assert ask(app, method, path, told, [b"x" * limit]).body == f"{limit} bytes".encode()
    for told in ({}, {"Content-Length": str(limit + 1)}, {"Content-Length": "1"}):
        reply = ask(app, method, path, told, [b"x" * limit, b"x"])
        assert (reply.status, reply.error["code"]) == (413, "too_large")
        assert f"{limit:,}" in reply.error["message"]
    assert set(app.state.metrics.reasons) == {"size"}


@pytest.mark.parametrize("length", ["9" * 30, "10001"])
def test_what_is_announced_too_large_is_not_read(length):
    app = small_app(SMALL)

    async def never() -> AsyncIterator[bytes]:
        raise AssertionError("the body was read")
        yield b""

    reply = asyncio.run(ask_with(app, "POST", "/v1/items", {"Content-Length": length}, never()))
    assert reply.status == 413


@pytest.mark.parametrize("length", ["-1", "1e9", "²", "", "x"])
def test_a_length_that_is_no_number_is_of_no_account(length):
    assert ask(small_app(SMALL), "POST", "/v1/search", {"Content-Length": length}, [b"x"]).status == 200


def test_a_slow_body_is_not_waited_for():
    app = small_app(Settings(body_seconds=0.05))

    async def slow() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.sleep(60)

    reply = asyncio.run(ask_with(app, "POST", "/v1/search", {}, slow()))
    assert (reply.status, reply.error["code"]) == (408, "timeout")
    assert reply["connection"] == "close"
    assert app.state.metrics.reasons == ["slow"]


def test_a_body_that_comes_steadily_may_take_its_time():
    """2 MB in 0.2 s, where 0.1 s are allowed at first: what has come gives time for more."""

    async def steady() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 100_000
            await asyncio.sleep(0.01)

    app = small_app(Settings(body_seconds=0.1))
    assert asyncio.run(ask_with(app, "POST", "/v1/search", {}, steady())).body == b"2000000 bytes"


def bodies_of(app: FastAPI) -> security.BodyLimits:
    """The outermost middleware is built at the first request."""
    layer: Any = app.middleware_stack
    while not isinstance(layer, security.BodyLimits):
        layer = getattr(layer, "_app", None) or layer.app
    return layer


def test_all_bodies_together_are_limited_and_given_back():
    app = small_app(replace(SMALL, max_bodies=1500))

    async def two() -> list[Reply]:
        first_came, go_on = asyncio.Event(), asyncio.Event()

        async def waiting() -> AsyncIterator[bytes]:
            yield b"x" * 900
            first_came.set()
            await go_on.wait()

        async def second() -> AsyncIterator[bytes]:
            yield b"x" * 700

        first = asyncio.create_task(ask_with(app, "POST", "/v1/search", {}, waiting()))
        await first_came.wait()
        refused = await ask_with(app, "POST", "/v1/search", {}, second())
        go_on.set()
        return [refused, await first]

    refused, answered = asyncio.run(two())
    assert (refused.status, refused["retry-after"]) == (503, "1")
    assert answered.status == 200
    assert bodies_of(app).held == 0
    assert ask(app, "POST", "/v1/search", body=[b"x" * 700]).status == 200
    ask(app, "POST", "/v1/search", body=[b"x" * 1001])
    assert bodies_of(app).held == 0


def test_a_client_that_goes_away_leaves_nothing_behind(logged):
    app = small_app(SMALL)

    async def gone() -> None:
        messages = iter([{"type": "http.request", "body": b"x" * 10, "more_body": True}, {"type": "http.disconnect"}])

        async def receive() -> dict[str, Any]:
            return next(messages)

        async def send(message: dict[str, Any]) -> None:
            pass

        scope = {"type": "http", "method": "POST", "path": "/v1/search", "raw_path": b"", "query_string": b"",
                 "headers": [(b"host", HOST.encode())], "client": None, "root_path": "", "scheme": "http"}  # fmt: skip
        await app(scope, receive, send)

    asyncio.run(gone())
    assert bodies_of(app).held == 0
    assert "Traceback" not in logged.text


def test_retry_after_is_a_whole_number_of_seconds():
    app = small_app(Settings(rate_limit=0.3, rate_burst=1))
    ask(app, "GET", "/")
    assert int(ask(app, "GET", "/")["retry-after"] or 0) == math.ceil(1 / 0.3)


# The note


def test_the_note_has_the_limits_as_they_are():
    note = (Path(__file__).parents[2] / "docs/security.md").read_text()
    settings = Settings()
    table = {row[1]: row[2] for row in re.finditer(r"^\| (.+?) \| (.+?) \| .+ \|$", note, re.MULTILINE)}
    found = 0
    for what, told in table.items():
        names = [name for name in re.findall(r"`(\w+)`", what) if hasattr(settings, name)]
        for name, value in zip(names, told.split(", ") if "," in what else [told], strict=False):
            real = getattr(settings, name)
            if real is None:
                assert value.startswith("off")
            else:
                assert float(value.split()[0].replace(",", "")) * (1e6 if "MB" in value else 1) == real, name
            found += 1
    assert found >= 9
    assert f"{server.MAX_HEAD:,} bytes" in table["head of a request"]
    assert f"each {security.MIN_BYTES_PER_SECOND:,} bytes" in note
    assert f"| pixels | {limits.MAX_PIXELS // 1_000_000} million over HTTP" in note
    assert f"less than {keys.MIN_LENGTH} characters" in note
