"""Who may ask the service for what, and how much of it: the checks that a request passes before a route sees it.

Knows HTTP, the settings, and by method and path which requests write (`need`). Knows no index and no route's inside.
docs/security.md says against whom each check stands.
"""

import asyncio
import ipaddress
import logging
import math
import re
import secrets
import time
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Literal

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genius.errors import GeniusError
from genius.serve.keys import digest, known
from genius.serve.problems import error_answer
from genius.serve.settings import Settings

log = logging.getLogger("genius.serve")

HEADERS = {
    b"content-security-policy": (
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        b"form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    ),
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"permissions-policy": b"camera=(), microphone=(), geolocation=(), payment=(), usb=()",
}
"""Headers of every answer."""

PROBES = frozenset({"/healthz", "/readyz"})
OPEN = PROBES | {"/", "/favicon.ico", "/docs", "/openapi.json"}
OPEN_FOLDERS = ("/page/", "/docs/")
SEARCHES = frozenset({"/v1/search", "/v1/search/batch"})
BULK = "/v1/items"
SLOWEST = 50_000
"""Bytes a second: for so many bytes that have come, a body gets a second more to arrive."""
MOST_CLIENTS = 10_000
"""Clients whose requests are counted for the rate limit."""

_OTHER_NAME = "The service does not know this host name. The operator can add it: genius serve --allow-host NAME"
_OTHER_SITE = "Pages of other sites may not ask here. The operator can allow one: genius serve --allow-origin ORIGIN"
_NOBODY_WRITES = "Nobody may write here: there is no key for it. The operator can add one: genius serve --keys FILE"

Need = Literal["nothing", "read", "write"]


def need(method: str, path: str) -> Need:
    """What a request must be allowed to do. What is not known to read, writes. What needs nothing holds no data."""
    if method in ("GET", "HEAD", "OPTIONS"):
        return "nothing" if path in OPEN or path.startswith(OPEN_FOLDERS) else "read"
    return "read" if method == "POST" and path in SEARCHES else "write"


def install(app: FastAPI, settings: Settings) -> None:
    """Put the checks round `app`. Call it once, last in the making of the app."""
    app.add_middleware(Bodies, settings=settings)
    app.add_middleware(Access, settings=settings)
    if settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.origins,
            allow_methods=("GET", "POST", "PUT", "DELETE"),
            allow_headers=("Authorization",),
            expose_headers=("Location", "Retry-After", "X-Request-Id"),
            allow_private_network=True,
        )
    app.add_middleware(OwnPages, settings=settings)
    app.add_middleware(OwnNames, names=own_names(settings))
    app.add_middleware(Armour)


# What all checks share


@dataclass(frozen=True)
class Refusal:
    """reason: the word under which it is counted."""

    reason: str
    status: int
    message: str
    headers: dict[str, str] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        metrics = getattr(scope["app"].state, "metrics", None)
        if metrics is not None:
            metrics.refused(self.reason)
        await error_answer(self.status, self.message, headers=self.headers)(scope, receive, send)


class Check:
    """Middleware that lets a request go on or refuses it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self.refusal(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def refusal(self, scope: Scope) -> Refusal | None:
        raise NotImplementedError


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for key, value in scope["headers"] if key == name]


def _value(scope: Scope, name: bytes) -> str | None:
    return next(iter(_values(scope, name)), None)


# The outermost: every answer has an id and the headers, and no accident is shown


class Armour:
    """Puts the headers on every answer; what fails unexpectedly is logged with its trace, and answered without it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008})
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        id = secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = id
        started = False

        async def armoured(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message = {**message, "headers": _armoured(message.get("headers", ()), id, scope["path"])}
            await send(message)

        try:
            await self._app(scope, receive, armoured)
        except ClientDisconnect:
            log.info("Request %s: the client has gone.", id)
        except Exception:
            log.exception("Request %s failed: %s %s", id, scope["method"], shown_path(scope))
            if not started:
                sentence = f"The service failed at this request. Its log says why, under the request id {id}."
                await error_answer(500, sentence)(scope, receive, armoured)


def shown_path(scope: Scope) -> str:
    """The path as it was sent, so that it has no line ends; without the query, which may hold what is searched for."""
    return str(scope.get("raw_path", b"").partition(b"?")[0].decode("ascii", "replace"))


def _armoured(headers: Iterable[tuple[bytes, bytes]], id: str, path: str) -> list[tuple[bytes, bytes]]:
    theirs = [(name, value) for name, value in headers if name.lower() not in HEADERS]
    ours = [*HEADERS.items(), (b"x-request-id", id.encode())]
    if not any(name.lower() == b"cache-control" for name, _ in theirs):
        ours.append((b"cache-control", b"no-store" if path.startswith("/v1/") else b"no-cache"))
    return theirs + ours


# Web pages of others, in the browser of someone who can reach the service


_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,253}))(?::[0-9]{1,5})?")


def host_of(authority: str) -> str | None:
    """The host of `host:port`, in small letters; None if it is no such thing."""
    found = _AUTHORITY.fullmatch(authority)
    return (found[1] or found[2]).lower().removesuffix(".") if found else None


def is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def own_names(settings: Settings) -> frozenset[str]:
    """The names by which clients may call the service."""
    names = {"localhost", settings.host.lower()}
    for name in settings.hosts:
        host = host_of(name)
        if host is None:
            raise GeniusError(f"{name!r} is not the name of a host. Give one such as search.example.org.")
        names.add(host)
    return frozenset(names)


class OwnNames(Check):
    """Only requests for a name of the service's own: no page can have its own name lead here (DNS rebinding).

    Addresses in figures all pass: no such trick can be played with them.
    """

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        super().__init__(app)
        self._names = names

    def refusal(self, scope: Scope) -> Refusal | None:
        given = _values(scope, b"host")
        host = host_of(given[0]) if len(given) == 1 else None
        if host is not None and (host in self._names or is_address(host)):
            return None
        return Refusal("host", 400, _OTHER_NAME)


class OwnPages(Check):
    """Only the service's own page and programs that are no browsers; pages of others only if they are allowed (CSRF).

    Browsers say where a request comes from: `Sec-Fetch-Site`, or, older ones, `Origin` on all that is not GET or HEAD.
    What a person clicks on is let through: it opens the page.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        super().__init__(app)
        self._origins = frozenset(settings.origins)

    def refusal(self, scope: Scope) -> Refusal | None:
        site, origin = _value(scope, b"sec-fetch-site"), _value(scope, b"origin")
        if origin in self._origins or self._own(scope, site, origin):
            return None
        return Refusal("origin", 403, _OTHER_SITE)

    def _own(self, scope: Scope, site: str | None, origin: str | None) -> bool:
        reads = scope["method"] in ("GET", "HEAD")
        if site is not None:
            clicked = reads and _value(scope, b"sec-fetch-mode") == "navigate"
            return site in ("same-origin", "none") or (clicked and _value(scope, b"sec-fetch-dest") == "document")
        own = (_value(scope, b"host") or "").lower()
        return reads or origin is None or origin.lower() in (f"http://{own}", f"https://{own}")


# Keys, and how often


class Access(Check):
    """Keys and the rate limit. A key comes as `Authorization: Bearer KEY`."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        super().__init__(app)
        self._settings = settings
        self._buckets = None if settings.rate_limit is None else Buckets(settings.rate_limit, settings.rate_burst)

    def refusal(self, scope: Scope) -> Refusal | None:
        given = _key(scope)
        writes = given is not None and known(given, self._settings.write_keys)
        reads = writes or (given is not None and known(given, self._settings.read_keys))
        if scope["path"] not in PROBES:
            refusal = self._too_often(given if given is not None and reads else _address(scope))
            if refusal:
                return refusal
        match need(scope["method"], scope["path"]):
            case "write":
                return self._may_write(given, reads, writes)
            case "read" if self._settings.read_keys and not reads:
                return _unknown(given)
        return None

    def _too_often(self, client: Hashable) -> Refusal | None:
        wait = 0.0 if self._buckets is None else self._buckets.take(client, time.monotonic())
        if wait == 0.0:
            return None
        seconds = math.ceil(wait)
        return Refusal("rate", 429, f"Too many requests. Try again in {seconds} s.", {"Retry-After": str(seconds)})

    def _may_write(self, given: bytes | None, reads: bool, writes: bool) -> Refusal | None:
        settings = self._settings
        if settings.read_only:
            return Refusal("key", 403, "This service is read-only.")
        if settings.write_keys:
            if reads and not writes:
                return Refusal("key", 403, "This key may read, but not write. Use one that may write.")
            return None if writes else _unknown(given)
        if settings.read_keys or not settings.loopback:
            return Refusal("key", 403, _NOBODY_WRITES)
        return None


def _key(scope: Scope) -> bytes | None:
    """The digest of the key that came with a request."""
    given = _values(scope, b"authorization")
    if len(given) != 1:
        return None
    scheme, _, key = given[0].partition(" ")
    return digest(key.strip()) if scheme.lower() == "bearer" and key.strip() else None


def _unknown(given: bytes | None) -> Refusal:
    if given is None:
        sentence = "A key is needed. Send it in the header `Authorization: Bearer KEY`."
        return Refusal("key", 401, sentence, {"WWW-Authenticate": 'Bearer realm="genius"'})
    headers = {"WWW-Authenticate": 'Bearer realm="genius", error="invalid_token"'}
    return Refusal("key", 401, "This key is not known here, or may not do this. Check it.", headers)


def _address(scope: Scope) -> str:
    """Where a request comes from. Of an IPv6 address the half that one household has for itself."""
    peer = scope.get("client")
    host = str(peer[0]) if peer else ""
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    return str(address.ipv4_mapped or ipaddress.IPv6Network((address, 64), strict=False))


class Buckets:
    """A bucket of tokens for each client: a request takes one, and they come back at `rate` a second up to `burst`.

    Whoever has asked nothing for the longest time is forgotten when there are more than `most` clients.
    """

    def __init__(self, rate: float, burst: int, most: int = MOST_CLIENTS) -> None:
        self._rate, self._burst, self._most = rate, burst, most
        self._buckets: dict[Hashable, tuple[float, float]] = {}  # tokens, and when there were so many

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, client: Hashable, now: float) -> float:
        """0 if the client may go on; otherwise the seconds after which it may."""
        tokens, then = self._buckets.pop(client, (float(self._burst), now))
        tokens = min(float(self._burst), tokens + max(0.0, now - then) * self._rate)
        wait = 0.0 if tokens >= 1 else (1 - tokens) / self._rate
        self._buckets[client] = (tokens if wait else tokens - 1, max(now, then))  # the newest stands last
        if len(self._buckets) > self._most:
            del self._buckets[next(iter(self._buckets))]
        return wait


# Bodies: how large, how slow, and how many at once


def body_limit(method: str, path: str, settings: Settings) -> int:
    return settings.max_bulk_body if (method, path) == ("POST", BULK) else settings.max_body


class Bodies:
    """Refuses bodies that are too large or come too slowly. Counts what comes, whatever the headers say."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self.held = 0  # bytes of all requests in work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        limit = body_limit(scope["method"], scope["path"], self._settings)
        if _declared(scope) > limit:
            return await _too_large(limit)(scope, receive, send)
        body = Body(self, self._settings, limit, receive, send)
        try:
            await self._app(scope, body.receive, body.send)
        except Exception:
            if body.refusal is None:
                raise
        finally:
            self.held -= body.size
        if body.refusal is not None and not body.answered:
            await body.refusal(scope, receive, send)


def _declared(scope: Scope) -> int:
    """The length that the header tells; what comes is counted all the same."""
    length = _value(scope, b"content-length") or ""
    return int(length[:19]) if length.isascii() and length.isdigit() else 0


class BodyRefused(Exception):
    """Ends the reading of a body. What the app makes of it is not sent."""


class Body:
    """The body of one request as the app reads it."""

    def __init__(self, bodies: Bodies, settings: Settings, limit: int, receive: Receive, send: Send) -> None:
        self._bodies, self._settings, self._limit = bodies, settings, limit
        self._receive, self._send = receive, send
        self._deadline: float | None = None
        self._complete = False
        self.size = 0
        self.refusal: Refusal | None = None
        self.answered = False

    async def receive(self) -> Message:
        if self.refusal is not None:
            raise BodyRefused
        if self._complete:
            return await self._receive()
        message = await self._next()
        if message["type"] == "http.request":
            self._count(len(message.get("body", b"")))
            self._complete = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if self.refusal is None:
            self.answered = True
            await self._send(message)

    async def _next(self) -> Message:
        now = asyncio.get_running_loop().time()
        if self._deadline is None:
            self._deadline = now + self._settings.body_seconds
        try:
            async with asyncio.timeout_at(self._deadline + self.size / SLOWEST):
                return await self._receive()
        except TimeoutError:
            raise self._refuse(
                Refusal("slow", 408, "The body came too slowly. Send it again.", {"Connection": "close"})
            ) from None

    def _count(self, size: int) -> None:
        self.size += size
        self._bodies.held += size
        if self.size > self._limit:
            raise self._refuse(_too_large(self._limit))
        if self._bodies.held > self._settings.max_bodies:
            raise self._refuse(Refusal("busy", 503, "Too much is being sent at once. Try again.", {"Retry-After": "1"}))

    def _refuse(self, refusal: Refusal) -> BodyRefused:
        self.refusal = refusal
        return BodyRefused(refusal.message)


def _too_large(limit: int) -> Refusal:
    return Refusal("size", 413, f"The body is too large: {limit:,} bytes are allowed here. Send less at once.")
