"""Connection to the HTTP service: requests, retries while it is busy, and its errors as exceptions."""

import random
from collections.abc import Callable
from time import sleep
from typing import Any, TypeVar

from genius.errors import GeniusError, MissingExtra
from genius.integrations.service_errors import NotFound, ServiceError, Unreachable, error_type

try:
    import httpx
except ImportError as error:
    raise MissingExtra("The client", "client") from error

RETRIES = 5
"""Maximum number of repetitions of a request when the service is busy."""

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MALFORMED = (ValueError, TypeError, LookupError, AttributeError, RecursionError, GeniusError)
T = TypeVar("T")


class Connection:
    """Sends requests to one service. Safe to use from several threads.

    Args:
        url: Address of the service.
        key: API key, if the service requires one.
        index: Name of a served index, sent with every request. None: the service's first one.
        timeout: Seconds to wait for a response, and in total for a busy service.
        transport: Replacement for httpx's transport.

    Raises:
        GeniusError: The address or the key is malformed.
    """

    def __init__(
        self, url: str, key: str | None, index: str | None, timeout: float, transport: httpx.BaseTransport | None
    ) -> None:
        parsed = _check_url(url)
        self.url = url.rstrip("/")
        self._timeout = timeout
        self._client = httpx.Client(
            base_url=parsed,
            headers=_headers(key),
            params={} if index is None else {"index": index},
            timeout=timeout,
            trust_env=parsed.host not in _LOOPBACK,  # a proxy cannot reach services on this machine
            transport=transport,
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def json(self, method: str, path: str, read: Callable[[Any], T], **request: Any) -> T:
        """Send a request and convert its JSON response with `read`.

        Raises:
            ServiceError: See `send`. Unreachable if `read` cannot convert the response.
        """
        response = self.send(method, path, **request)
        try:
            return read(response.json())
        except _MALFORMED as error:
            raise self.unexpected(f"{type(error).__name__}: {error}") from error

    def send(self, method: str, path: str, **request: Any) -> httpx.Response:
        """Send a request. A busy service is asked again after the time it names, within the timeout.

        Args:
            method: HTTP method.
            path: Path below the address of the service.
            **request: `params` or `json`, see `httpx.Client.build_request`.

        Returns:
            A response with a status of success.

        Raises:
            GeniusError: The body cannot be written as JSON.
            ServiceError: The service refused the request, was busy for too long, or did not respond.
        """
        try:
            built = self._client.build_request(method, path, **request)
        except (TypeError, ValueError) as error:
            raise GeniusError(f"The request is not valid JSON ({error}). Use plain numbers and strings.") from error
        waited = 0.0
        for attempt in range(RETRIES + 1):
            try:
                response = self._client.send(built)
            except (httpx.RemoteProtocolError, httpx.ReadError) as error:
                if attempt == 0:  # an idle connection that the service has closed
                    continue
                raise Unreachable(f"{self.url} broke off the connection. See the log of the service.") from error
            except httpx.TimeoutException as error:
                hint = "Try again, or set a longer timeout."
                raise Unreachable(f"{self.url} did not respond within {self._timeout:g} seconds. {hint}") from error
            except (httpx.TransportError, httpx.InvalidURL) as error:
                hint = "Check the address, and that genius serve is running there."
                raise Unreachable(f"{self.url} cannot be reached ({error}). {hint}") from error
            if response.is_success:
                return response
            pause = _retry_after(response, attempt)
            if response.status_code not in (429, 503) or waited + pause > self._timeout:
                break
            if attempt < RETRIES:
                sleep(pause)
            waited += pause
        raise self._error(response)

    def _error(self, response: httpx.Response) -> ServiceError:
        status = response.status_code
        try:
            problem = response.json()["error"]
            message, code, field = str(problem["message"]), str(problem["code"]), problem.get("field")
        except _MALFORMED:
            return self.unexpected(f"status {status}", status)
        return error_type(status)(message, status, code, field)

    def unexpected(self, what: str, status: int | None = None) -> Unreachable:
        """The error for a response that `genius serve` does not send."""
        hint = "Check the address and the version of the service."
        return Unreachable(f"{self.url} does not respond like genius serve ({what}). {hint}", status)


def none_if_missing(send: Callable[[], T]) -> T | None:
    """The result of a request, or None if the item does not exist. A missing index or address is still an error."""
    try:
        return send()
    except NotFound as error:
        if error.field != "id":
            raise
        return None


def _check_url(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
        known = parsed.scheme in ("http", "https") and parsed.host and 0 < (parsed.port or 80) < 1 << 16
    except (httpx.InvalidURL, TypeError):
        known = False
    if not known or parsed.userinfo:
        shown = "The given URL" if "@" in str(url) else repr(url)  # never show a password
        raise GeniusError(
            f"{shown} is not the address of a service. Write one like http://127.0.0.1:8000, without a password."
        )
    return parsed


def _headers(key: str | None) -> dict[str, str]:
    if key is None:
        return {}
    if not key.isascii() or not key.isprintable() or not key.strip():
        raise GeniusError("The key contains characters that keys do not have. Copy it again.")
    return {"Authorization": f"Bearer {key.strip()}"}


def _retry_after(response: httpx.Response, attempt: int) -> float:
    """Seconds to wait: as the service says, or exponential backoff. Jitter spreads the clients."""
    try:
        seconds = max(0.0, float(response.headers.get("Retry-After", "")))
    except ValueError:
        seconds = 0.25 * 2**attempt
    return seconds + random.uniform(0, 0.1)
