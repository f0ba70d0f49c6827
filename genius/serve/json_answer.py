"""Answers as JSON: plain `json`, without a framework's second look at every value."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response


def as_json(value: Any) -> bytes:
    """The value must be made of JSON values; NaN and infinity are mistakes."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return json_bytes(as_json(value), status, headers)


def json_bytes(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """What is JSON already."""
    return Response(body, status, headers, "application/json")
