"""Problems: every error as a status, a code, a sentence and a field.

Responses never show a traceback, a path of this machine or an unexpected error; these go to the log.
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

from genius.errors import BadImage, BadIndex, BadItem, BadModel, GeniusError
from genius.serve.limits import QueryExpired, ServiceUnavailable
from genius.serve.responses import error_response

log = logging.getLogger("genius.serve")

MAX_NAME = 100  # characters of an id or a name in a sentence
NOT_FOUND = "There is nothing at this address. /docs lists all addresses."
_UNEXPECTED = "The service failed to answer this request. The log of the service has the reason."
_UNAVAILABLE = "The index cannot be read or written at the moment. The log of the service has the reason."
_PATH = re.compile(r"(?<![\w:/*'])(?:file://)?/(?:[^\s/'\"`*(),:;]+/)+[^\s'\"`*(),:;]*")


class HttpProblem(Exception):
    """An error for the client. `field` names the wrong value, with dots: "queries.3.text"."""

    def __init__(self, status: int, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.field = status, message, field

    def within(self, place: str) -> "HttpProblem":
        """The same problem of a value nested at `place`."""
        return HttpProblem(self.status, self.message, place if self.field is None else f"{place}.{self.field}")


def problem_from(error: GeniusError) -> HttpProblem:
    """The problem that a client sees for an error of the package."""
    if isinstance(error, ServiceUnavailable | QueryExpired):
        return HttpProblem(503, mask_paths(str(error)))
    if isinstance(error, BadIndex | BadModel):
        log.error("%s", error)
        return HttpProblem(503, _UNAVAILABLE)
    if isinstance(error, BadItem):
        reason = mask_paths(error.reason)
        field = "image" if isinstance(error.__cause__, BadImage) else None
        return HttpProblem(422, reason[:1].upper() + reason[1:], field)
    return HttpProblem(422, mask_paths(str(error)), "where")  # schemas have checked all other values


def quote_name(name: str) -> str:
    """An id or a name for use in a sentence, quoted and shortened."""
    return repr(name if len(name) <= MAX_NAME else name[:MAX_NAME] + " ...")


def mask_paths(message: str) -> str:
    """Replace absolute paths by "(a path)"."""
    return _PATH.sub("(a path)", message)


def problem_from_validation(error: ValidationError | RequestValidationError, skip: int = 0) -> HttpProblem:
    """The problem of the first invalid value. `skip` leading parts of its location name the source, not the field."""
    first: Mapping[str, Any] = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][skip:]) or None
    return HttpProblem(422, _sentence(field, first), field)


_VALIDATION_MESSAGES = {
    "model_type": "must be a JSON object.",
    "model_attributes_type": "must be a JSON object.",
    "dict_type": "must be a JSON object.",
    "list_type": "must be a list.",
    "string_type": "must be a string.",
    "string_unicode": "is not valid Unicode. Send it as UTF-8.",
    "bytes_type": "must be a Base64 string, or a file of a form.",
    "int_type": "must be a whole number.",
    "int_parsing": "must be a whole number.",
    "int_parsing_size": "has too many digits.",
    "int_from_float": "must be a whole number.",
    "finite_number": "must be a finite number.",
    "bool_type": "must be true or false.",
    "missing": "is missing.",
    "literal_error": "must be {expected}.",
    "greater_than_equal": "must be at least {ge:,g}.",
    "less_than_equal": "must be at most {le:,.0f}.",
    "string_too_short": "is empty.",
    "string_too_long": "is too long: at most {max_length:,} characters are allowed.",
    "too_short": "is empty. Give at least one entry.",
    "too_long": "has too many entries: at most {max_length:,} are allowed.",
    "string_pattern_mismatch": "does not have the right form. /docs describes it.",
}


def _sentence(field: str | None, wrong: Mapping[str, Any]) -> str:
    """A validation error as a sentence."""
    name, error_type = f"`{field}`" if field else "The body", wrong["type"]
    if error_type == "extra_forbidden":
        return f"There is no field {name}. /docs lists the fields."
    if error_type in _VALIDATION_MESSAGES:
        return f"{name} {_VALIDATION_MESSAGES[error_type].format(**wrong.get('ctx') or {})}"
    return f"{name} {wrong['msg']}" if error_type == "genius" else f"{name}: {wrong['msg']}."


def _allowed_methods(request: Request) -> str:
    """All methods of an address. Starlette names only those of the first matching route."""
    routes: list[APIRoute] = request.app.state.routes
    found = {method for route in routes if route.path_regex.match(request.url.path) for method in route.methods or ()}
    return ", ".join(sorted(found | ({"HEAD"} if "GET" in found else set())))


def install_problems(app: FastAPI) -> None:
    """Turn every exception of a route into an error response."""
    for error in (HttpProblem, GeniusError, RequestValidationError, HTTPException, ClientDisconnect, Exception):
        app.add_exception_handler(error, _respond)


async def _respond(request: Request, error: Exception) -> Response:
    headers: Mapping[str, str] | None = None
    match error:
        case HttpProblem():
            problem = error
        case GeniusError():
            if isinstance(error, ServiceUnavailable | QueryExpired):
                request.app.state.metrics.count_refusal("busy" if isinstance(error, ServiceUnavailable) else "late")
            problem = problem_from(error)
        case RequestValidationError():
            problem = problem_from_validation(error, skip=1)
        case HTTPException(status_code=405):
            headers = {"Allow": _allowed_methods(request)}
            problem = HttpProblem(405, "This address does not support this method. /docs lists the methods.")
        case HTTPException(status_code=status):
            headers = error.headers
            problem = HttpProblem(status, NOT_FOUND if status == 404 else str(error.detail))
        case ClientDisconnect():
            problem = HttpProblem(400, "The body is incomplete. Send the request again.")
        case _:
            problem = HttpProblem(500, _UNEXPECTED)
    return error_response(problem.status, problem.message, problem.field, headers)
