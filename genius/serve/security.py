"""Middleware that every request passes before a route: host, origin, key, rate and body limits.

docs/security.md describes the threat that each check answers.
"""

import asyncio
import ipaddress
import logging
import math
import random
import re
import time
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Literal

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from genius.errors import GeniusError
from genius.serve.forwarding import from_worker
from genius.serve.keys import digest, is_known
from genius.serve.responses import error_response
from genius.serve.settings import Settings

log = logging.getLogger("genius.serve")
_ids = random.Random()  # of requests: no secrets, and the system's generator would let another thread run first

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
"""Headers of every response."""

PROBES = frozenset({"/healthz", "/readyz"})
PUBLIC = PROBES | {"/", "/favicon.ico", "/docs", "/openapi.json"}
PUBLIC_FOLDERS = ("/page/", "/docs/")
SEARCHES = frozenset({"/v1/search", "/v1/search/batch"})
BULK = "/v1/items"
MIN_BYTES_PER_SECOND = 50_000
"""Each time this many bytes of a body arrive, its deadline moves by a second."""
MAX_CLIENTS = 10_000
"""Clients that the rate limiter remembers."""

_UNKNOWN_HOST = "The service does not know this host name. The operator can allow it: genius serve --allow-host NAME"
_OTHER_SITE = "Pages of other sites are not allowed. The operator can allow one: genius serve --allow-origin ORIGIN"
_NO_WRITE_KEY = "Nobody may write: there is no write key. The operator can add one: genius serve --keys FILE"

Permission = Literal["public", "read", "write"]


def required_permission(method: str, path: str) -> Permission:
    """The permission that a request needs. Routes that are not listed need "write"; "public" ones hold no data."""
    if method in ("GET", "HEAD", "OPTIONS"):
        return "public" if path in PUBLIC or path.startswith(PUBLIC_FOLDERS) else "read"
    return "read" if method == "POST" and path in SEARCHES else "write"


def install(app: FastAPI, settings: Settings) -> None:
    """Add the middleware. Call it once, after all routes and other middleware."""
    app.add_middleware(BodyLimits, settings=settings)
    app.add_middleware(AccessControl, settings=settings)
    if settings.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.origins,
            allow_methods=("GET", "POST", "PUT", "DELETE"),
            allow_headers=("Authorization",),
            expose_headers=("Location", "Retry-After", "X-Request-Id"),
            allow_private_network=True,
        )
    app.add_middleware(CsrfGuard, settings=settings)
    app.add_middleware(TrustedHosts, names=trusted_names(settings))
    app.add_middleware(SecurityHeaders)


@dataclass(frozen=True)
class Refusal:
    """An ASGI app that refuses a request. `reason` is its label in the metrics."""

    reason: str
    status: int
    message: str
    headers: dict[str, str] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count and send the refusal."""
        scope["app"].state.metrics.count_refusal(self.reason)
        await error_response(self.status, self.message, headers=self.headers)(scope, receive, send)


class RequestCheck:
    """Middleware that passes a request on or refuses it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check an HTTP request."""
        refusal = self.check(scope) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def check(self, scope: Scope) -> Refusal | None:
        """The refusal of a request; None if it may pass."""
        raise NotImplementedError


class SecurityHeaders:
    """Outermost middleware: adds HEADERS and a request id, and turns unexpected exceptions into plain errors."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request; WebSockets are refused."""
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008})
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        id = f"{_ids.getrandbits(64):016x}"
        scope.setdefault("state", {})["request_id"] = id
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message = {**message, "headers": _add_headers(message.get("headers", ()), id, scope["path"])}
            await send(message)

        try:
            await self._app(scope, receive, send_with_headers)
        except ClientDisconnect:
            log.info("Request %s: the client disconnected.", id)
        except Exception:
            log.exception("Request %s failed: %s %s", id, scope["method"], raw_path(scope))
            if not started:
                sentence = f"The service failed to answer this request. Its log has the reason: request id {id}."
                await error_response(500, sentence)(scope, receive, send_with_headers)


def raw_path(scope: Scope) -> str:
    """The path as it was sent: percent-encoded, so without line ends, and without the query string."""
    return str(scope.get("raw_path", b"").partition(b"?")[0].decode("ascii", "replace"))


def _add_headers(headers: Iterable[tuple[bytes, bytes]], id: str, path: str) -> list[tuple[bytes, bytes]]:
    kept = [(name, value) for name, value in headers if name.lower() not in HEADERS]
    added = [*HEADERS.items(), (b"x-request-id", id.encode())]
    if not any(name.lower() == b"cache-control" for name, _ in kept):
        added.append((b"cache-control", b"no-store" if path.startswith("/v1/") else b"no-cache"))
    return kept + added


_AUTHORITY = re.compile(r"(?:\[([0-9A-Fa-f:.]{2,45})\]|([A-Za-z0-9._-]{1,253}))(?::[0-9]{1,5})?")


def parse_host(authority: str) -> str | None:
    """The lower-case host of `host:port`; None if it is malformed."""
    found = _AUTHORITY.fullmatch(authority)
    return (found[1] or found[2]).lower().removesuffix(".") if found else None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def trusted_names(settings: Settings) -> frozenset[str]:
    """The host names by which clients may address the service."""
    names = {"localhost", settings.host.lower()}
    for name in settings.hosts:
        host = parse_host(name)
        if host is None:
            raise GeniusError(f"{name!r} is not a host name. Give a name such as search.example.org.")
        names.add(host)
    return frozenset(names)


class TrustedHosts(RequestCheck):
    """Refuses unknown host names, which prevents DNS rebinding.

    IP addresses always pass, since they cannot be rebound; the machine may have many. Starlette's
    TrustedHostMiddleware takes a fixed list and cannot parse IPv6 addresses.
    """

    def __init__(self, app: ASGIApp, names: frozenset[str]) -> None:
        super().__init__(app)
        self._names = names

    def check(self, scope: Scope) -> Refusal | None:
        """Check the Host header."""
        given = Headers(scope=scope).getlist("host")
        host = parse_host(given[0]) if len(given) == 1 else None
        if host is not None and (host in self._names or _is_address(host)):
            return None
        return Refusal("host", 400, _UNKNOWN_HOST)


class CsrfGuard(RequestCheck):
    """Refuses requests from web pages of other origins, unless the operator allows the origin.

    Browsers send `Sec-Fetch-Site`; older ones send `Origin` with every method but GET and HEAD. Links to the page may
    be followed. Clients that are not browsers send neither header and pass.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        super().__init__(app)
        self._origins = frozenset(settings.origins)

    def check(self, scope: Scope) -> Refusal | None:
        """Check the Sec-Fetch and Origin headers."""
        headers, reads = Headers(scope=scope), scope["method"] in ("GET", "HEAD")
        site, origin, own = headers.get("sec-fetch-site"), headers.get("origin"), headers.get("host", "").lower()
        if origin in self._origins:
            return None
        if site is not None:
            is_link = headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
            allowed = site in ("same-origin", "none") or (reads and is_link)
        else:
            allowed = reads or origin is None or origin.lower() in (f"http://{own}", f"https://{own}")
        return None if allowed else Refusal("origin", 403, _OTHER_SITE)


class AccessControl(RequestCheck):
    """Checks keys (`Authorization: Bearer KEY`) and the rate limit."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        super().__init__(app)
        self._settings = settings
        self._limiter = None if settings.rate_limit is None else RateLimiter(settings.rate_limit, settings.rate_burst)

    def check(self, scope: Scope) -> Refusal | None:
        """Check the rate and the key."""
        key = _key_digest(scope)
        can_write = key is not None and is_known(key, self._settings.write_keys)
        can_read = can_write or (key is not None and is_known(key, self._settings.read_keys))
        if scope["path"] not in PROBES and not from_worker(scope):
            refusal = self._check_rate(key if key is not None and can_read else _network(scope))
            if refusal:
                return refusal
        if not _is_routed(scope):  # answered with status 404 or 405, whatever the key
            return None
        match required_permission(scope["method"], scope["path"]):
            case "write":
                return self._check_write(key, can_read, can_write)
            case "read" if self._settings.read_keys and not can_read:
                return _unauthorized(key)
        return None

    def _check_rate(self, client: Hashable) -> Refusal | None:
        wait = 0.0 if self._limiter is None else self._limiter.take(client, time.monotonic())
        if wait == 0.0:
            return None
        seconds = math.ceil(wait)
        return Refusal("rate", 429, f"Too many requests. Try again in {seconds} s.", {"Retry-After": str(seconds)})

    def _check_write(self, key: bytes | None, can_read: bool, can_write: bool) -> Refusal | None:
        settings = self._settings
        if settings.read_only:
            return Refusal("key", 403, "This service is read-only.")
        if settings.write_keys:
            if can_read and not can_write:
                return Refusal("key", 403, "This key may only read. Use a write key.")
            return None if can_write else _unauthorized(key)
        if settings.read_keys or not settings.loopback:
            return Refusal("key", 403, _NO_WRITE_KEY)
        return None


def _is_routed(scope: Scope) -> bool:
    """Whether a route takes the method and path. The routes are no secret: /docs lists them."""
    method = "GET" if scope["method"] == "HEAD" else scope["method"]
    routes: list[APIRoute] = scope["app"].state.routes
    return any(method in (route.methods or ()) and route.path_regex.match(scope["path"]) for route in routes)


def _key_digest(scope: Scope) -> bytes | None:
    """The digest of the key of a request."""
    given = Headers(scope=scope).getlist("authorization")
    if len(given) != 1:
        return None
    scheme, _, key = given[0].partition(" ")
    return digest(key.strip()) if scheme.lower() == "bearer" and key.strip() else None


def _unauthorized(key: bytes | None) -> Refusal:
    if key is None:
        sentence = "A key is required. Send it in the header `Authorization: Bearer KEY`."
        return Refusal("key", 401, sentence, {"WWW-Authenticate": 'Bearer realm="genius"'})
    headers = {"WWW-Authenticate": 'Bearer realm="genius", error="invalid_token"'}
    return Refusal("key", 401, "This key is unknown, or does not allow this request.", headers)


def _network(scope: Scope) -> str:
    """The client's address; of IPv6 the /64 network, which usually belongs to one customer."""
    peer = scope.get("client")
    host = str(peer[0]) if peer else ""
    try:
        address = ipaddress.IPv6Address(host)
    except ValueError:
        return host
    return str(address.ipv4_mapped or ipaddress.IPv6Network((address, 64), strict=False))


class RateLimiter:
    """Token bucket per client: each request takes a token; `rate` tokens per second come back, up to `burst`.

    With more than `max_clients` clients, the one that was idle for the longest time is forgotten.
    """

    def __init__(self, rate: float, burst: int, max_clients: int = MAX_CLIENTS) -> None:
        self._rate, self._burst, self._max_clients = rate, burst, max_clients
        self._buckets: dict[Hashable, tuple[float, float]] = {}  # tokens and time of the last request, oldest first

    def take(self, client: Hashable, now: float) -> float:
        """Take a token. Returns 0, or the seconds to wait if there is none."""
        tokens, then = self._buckets.pop(client, (float(self._burst), now))
        tokens = min(float(self._burst), tokens + max(0.0, now - then) * self._rate)
        wait = 0.0 if tokens >= 1 else (1 - tokens) / self._rate
        self._buckets[client] = (tokens if wait else tokens - 1, max(now, then))
        if len(self._buckets) > self._max_clients:
            del self._buckets[next(iter(self._buckets))]
        return wait


class BodyRefused(Exception):
    """Ends the reading of a body. The response of the app is replaced by the refusal."""


class BodyLimits:
    """Refuses bodies that are too large or too slow, and limits the bytes of all bodies being served.

    Received bytes are counted; Content-Length only allows an earlier refusal.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self.held = 0  # bytes of all requests being served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request with a limited body."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        settings = self._settings
        bulk = (scope["method"], scope["path"]) == ("POST", BULK)
        limit = settings.max_bulk_body if bulk else settings.max_body
        too_large = Refusal(
            "size", 413, f"The body is too large: at most {limit:,} bytes are allowed. Send less at once."
        )
        length = Headers(scope=scope).get("content-length", "")
        if length.isdecimal() and int(length[:19]) > limit:
            return await too_large(scope, receive, send)
        size, complete, started = 0, False, False
        deadline: float | None = None
        refusal: Refusal | None = None

        async def limited_receive() -> Message:
            nonlocal size, complete, deadline, refusal
            if refusal is not None:
                raise BodyRefused
            if complete:
                return await receive()
            deadline = deadline or asyncio.get_running_loop().time() + settings.body_seconds
            try:
                async with asyncio.timeout_at(deadline + size / MIN_BYTES_PER_SECOND):
                    message = await receive()
            except TimeoutError:
                sentence = "The body arrived too slowly. Send it again."
                refusal = Refusal("slow", 408, sentence, {"Connection": "close"})
                raise BodyRefused from None
            if message["type"] == "http.request":
                length = len(message.get("body", b""))
                size += length
                self.held += length
                complete = not message.get("more_body", False)
                if size > limit:
                    refusal = too_large
                elif self.held > settings.max_bodies:
                    refusal = Refusal("busy", 503, "The service is receiving too much data at once. Try again later.")
                if refusal is not None:
                    raise BodyRefused
            return message

        async def limited_send(message: Message) -> None:
            nonlocal started
            if refusal is None:
                started = True
                await send(message)

        try:
            await self._app(scope, limited_receive, limited_send)
        except Exception:
            if refusal is None:
                raise
        finally:
            self.held -= size
        if refusal is not None and not started:
            await refusal(scope, receive, send)
