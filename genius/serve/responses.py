"""JSON responses, including errors. FastAPI's own responses would validate every value a second time."""

from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response

from genius.data.items import printable

CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    409: "conflict",
    413: "too_large",
    415: "unsupported_media_type",
    422: "invalid",
    429: "too_many_requests",
    500: "internal",
    503: "unavailable",
}
MAX_MESSAGE = 1000  # characters


def encode_json(value: Any) -> bytes:
    """Encode a value as compact UTF-8 JSON. NaN and infinity, which JSON does not have, become null."""
    return to_json(value, inf_nan_mode="null")


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response with a JSON value. `bytes` are sent as they are: they hold JSON already."""
    body = value if isinstance(value, bytes) else encode_json(value)
    return Response(body, status, headers, "application/json")


def error_response(
    status: int, message: str, field: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """The response of a refused or failed request, in the one shape of all errors."""
    message = printable(message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + " ...")
    field = None if field is None else printable(field)[:200]
    error = {"code": CODES.get(status, "error"), "message": message, "field": field}
    retry = {"Retry-After": "1"} if status == 503 else {}
    return json_response({"error": error}, status, {**retry, **(headers or {})})
