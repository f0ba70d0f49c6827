"""Problems: what a client is told when something is wrong. One shape for all: a status, a code, a sentence, a field.

Knows the package's errors and the web framework's. Never shows a trace, a path of this machine, or what it did not
expect: that goes to the log.
"""

import logging
import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from genius.data.items import printable
from genius.errors import BadImage, BadIndex, BadItem, BadModel, GeniusError
from genius.serve.json_answer import json_answer
from genius.serve.served import Busy, TooLate

log = logging.getLogger("genius.serve")

CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    409: "conflict",
    411: "length_required",
    413: "too_large",
    415: "unsupported_media_type",
    422: "invalid",
    429: "too_many_requests",
    431: "headers_too_large",
    500: "internal",
    503: "unavailable",
}
RETRY = {"Retry-After": "1"}
SHOWN = 1000  # characters of a sentence
NAMED = 100  # characters of a name in it
_PATH = re.compile(r"(?<![\w:/*'])(?:file://)?/(?:[^\s/'\"`*(),:;]+/)+[^\s'\"`*(),:;]*")
_SENTENCES = {
    404: "There is nothing at this address. /docs lists what there is.",
    405: "This address does not take this method. /docs lists what it takes.",
}
_UNEXPECTED = "The service failed at this request. The operator's log says why; the request can be tried again."
_UNAVAILABLE = "The index cannot be read or written at the moment. The operator's log says why; try again later."


class Problem(Exception):
    """Something the client is told. field: the name of the value that was wrong, with dots: "queries.3.text"."""

    def __init__(
        self, status: int, message: str, field: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.field, self.headers = status, message, field, dict(headers or {})

    def under(self, place: str) -> "Problem":
        """The same, of a value that is a part of another one."""
        return Problem(self.status, self.message, place if self.field is None else f"{place}.{self.field}")


def error_answer(
    status: int, message: str, field: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """The answer that tells of a problem."""
    message = printable(message if len(message) <= SHOWN else message[:SHOWN] + " ...")
    code = CODES.get(status, "error")
    body = {"error": {"code": code, "message": message, "field": None if field is None else printable(field)[:200]}}
    return json_answer(body, status, headers)


def problem_of(error: GeniusError) -> Problem:
    """What a client is told of an error that the package raised on purpose."""
    if isinstance(error, Busy | TooLate):
        return Problem(503, masked(str(error)), headers=RETRY)
    if isinstance(error, BadIndex | BadModel):
        log.error("%s", error)
        return Problem(503, _UNAVAILABLE, headers=RETRY)
    if isinstance(error, BadItem):
        reason = masked(error.reason)
        return Problem(422, reason[:1].upper() + reason[1:], "image" if isinstance(error.__cause__, BadImage) else None)
    return Problem(422, masked(str(error)), "where")  # all else that an index refuses has been checked before


def quoted(name: str) -> str:
    """An id or a name in a sentence."""
    return repr(name if len(name) <= NAMED else name[:NAMED] + " ...")


def masked(message: str) -> str:
    """Without the paths of files and folders, which are nobody's business."""
    return _PATH.sub("(a path)", message)


def problem_of_values(error: ValidationError | RequestValidationError, data_first: int = 0) -> Problem:
    """The first thing that is wrong with some values. data_first: how many parts of its place say where it came in."""
    first: Mapping[str, Any] = error.errors()[0]
    place = [str(part) for part in first["loc"]][data_first:]
    field = ".".join(place) or None
    return Problem(422, _sentence(field, first), field)


_WORDS = {
    "model_type": "must be a JSON object.",
    "model_attributes_type": "must be a JSON object.",
    "dict_type": "must be a JSON object.",
    "list_type": "must be a list.",
    "string_type": "must be a text.",
    "string_unicode": "holds characters that are not valid Unicode. Send it as UTF-8.",
    "bytes_type": "must be a text in Base64, or a file of a form.",
    "int_type": "must be a whole number.",
    "int_parsing": "must be a whole number.",
    "int_parsing_size": "is a number with too many digits.",
    "int_from_float": "must be a whole number.",
    "float_type": "must be a number.",
    "finite_number": "must be a number, and not infinite.",
    "bool_type": "must be true or false.",
    "missing": "is missing. Give a value for it.",
    "literal_error": "must be {expected}.",
    "greater_than_equal": "must be at least {ge:,g}.",
    "less_than_equal": "must be at most {le:,.0f}.",
    "string_too_short": "is empty. Give a value for it.",
    "string_too_long": "is too long: at most {max_length:,} characters are allowed.",
    "too_short": "is empty. Give at least one entry.",
    "string_pattern_mismatch": "does not have the right form. /docs describes it.",
}


def _sentence(field: str | None, wrong: Mapping[str, Any]) -> str:
    """A validation error in plain words."""
    name, kind = f"`{field}`" if field else "The body", wrong["type"]
    if kind == "extra_forbidden":
        return f"There is no field {name}. /docs lists the fields there are; check the spelling."
    if kind in _WORDS:
        return f"{name} {_WORDS[kind].format(**wrong.get('ctx') or {})}"
    return f"{name} {wrong['msg']}" if kind == "genius" else f"{name}: {wrong['msg']}."


def _allowed(request: Request) -> str:
    """The methods that an address takes; the framework names only those of the first route that has it."""
    routes: list[APIRoute] = request.app.state.routes
    found = {method for route in routes if route.path_regex.match(request.url.path) for method in route.methods or ()}
    return ", ".join(sorted(found | ({"HEAD"} if "GET" in found else set())))


def install_problems(app: FastAPI) -> None:
    """Every error of a route becomes an answer in the one shape."""

    async def on_problem(request: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return error_answer(error.status, error.message, error.field, error.headers)

    async def on_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, GeniusError)
        if isinstance(error, Busy | TooLate):
            request.app.state.metrics.refused("busy" if isinstance(error, Busy) else "late")
        return await on_problem(request, problem_of(error))

    async def on_values(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return await on_problem(request, problem_of_values(error, data_first=1))

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        headers = {"Allow": _allowed(request)} if error.status_code == 405 else error.headers
        return error_answer(error.status_code, _SENTENCES.get(error.status_code, str(error.detail)), headers=headers)

    async def on_gone(request: Request, error: Exception) -> Response:
        return error_answer(400, "The body ended too early. Send the request again.")

    async def on_anything(request: Request, error: Exception) -> Response:
        return error_answer(500, _UNEXPECTED)

    app.add_exception_handler(Problem, on_problem)
    app.add_exception_handler(GeniusError, on_error)
    app.add_exception_handler(RequestValidationError, on_values)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(ClientDisconnect, on_gone)
    app.add_exception_handler(Exception, on_anything)
