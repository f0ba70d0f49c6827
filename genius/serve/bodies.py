"""Request bodies: JSON or multipart/form-data, validated against a request model.

The name of an uploaded file is a plain string: no file is opened or written under it.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, FormParser, parse_options_header

from genius.serve.limits import MAX_IDS, MAX_ITEMS
from genius.serve.problems import HttpProblem, problem_from_validation

INLINE = 32_768  # bytes; longer bodies are parsed in a thread
MAX_VALUES = 2_000_000  # JSON values in one body; empty brackets would take many times their size in memory
MAX_PARTS = 32 + max(MAX_ITEMS, MAX_IDS)  # of a form
JSON, FORM = "application/json", "multipart/form-data"
M = TypeVar("M", bound=BaseModel)

logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # malformed forms must not fill the log


@dataclass(frozen=True)
class FormPart:
    """A part of a form. `filename` is None for a plain field."""

    name: str
    filename: str | None
    content_type: str
    data: bytes

    def text(self) -> str:
        """The value of a plain field."""
        if self.filename is not None:
            raise HttpProblem(422, f"`{self.name}` is a file. Send it as a plain field of the form.", self.name)
        return decode_text(self.data, f"`{self.name}`", self.name)

    @property
    def is_text_file(self) -> bool:
        """Whether an uploaded file holds text rather than an image."""
        suffix = PurePosixPath(self.filename or "").suffix.lower()
        return self.content_type.partition(";")[0].strip().lower() == "text/plain" or suffix == ".txt"


def decode_text(data: bytes, what: str, field: str | None = None) -> str:
    """Decode UTF-8, with or without a byte order mark."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise HttpProblem(422, f"{what} is not UTF-8. Send it as UTF-8.", field) from error


async def read_body(
    request: Request, model: type[M], from_form: Callable[[list[FormPart]], dict[str, Any]] | None = None
) -> M:
    """Read and validate the body. `from_form` replaces `form_values`."""
    header = request.headers.get("content-type", "")
    content_type = header.partition(";")[0].strip().lower()
    if content_type not in (JSON, FORM):
        sent = f"not {content_type[:100]}" if content_type else "but the header Content-Type is missing"
        raise HttpProblem(415, f"The body must be {JSON} or {FORM}, {sent}.")
    body = await request.body()

    def parse() -> M:
        if content_type == JSON:
            data = parse_json(body)
        else:
            parts = parse_form(body, header)
            data = form_values(parts, model) if from_form is None else from_form(parts)
        try:
            return model.model_validate(data)
        except ValidationError as error:
            raise problem_from_validation(error) from error

    return parse() if len(body) <= INLINE else await request.app.state.pools.read(parse)


def parse_json(body: bytes, field: str | None = None) -> Any:
    """Parse strict JSON: no NaN, no lone surrogates, limited depth. `field` names the form field that holds it."""
    what = "The body" if field is None else f"`{field}`"
    if body.count(b",") + body.count(b"[") + body.count(b"{") > MAX_VALUES:
        raise HttpProblem(413, f"{what} holds more than {MAX_VALUES:,} values. Send several requests.", field)
    try:
        return from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise HttpProblem(400, f"{what} is not valid JSON: {error}.", field) from error


def parse_form(body: bytes, header: str) -> list[FormPart]:
    """The parts of a form in their order. Files stay in memory."""
    boundary = parse_options_header(header)[1].get(b"boundary")
    if not boundary:
        raise HttpProblem(400, "The header Content-Type has no boundary. Let the HTTP library set it.")
    parts: list[FormPart] = []
    complete = False

    def on_part(part: Field | File) -> None:
        if len(parts) >= MAX_PARTS:
            raise HttpProblem(413, f"The form has more than {MAX_PARTS:,} parts. Send several requests.")
        name, filename = decode_text(part.field_name or b"", "The name of a field"), None
        if isinstance(part, File):
            filename = decode_text(part.file_name or b"", "The name of a file")
            part.file_object.seek(0)
            data = part.file_object.read()
        else:
            data = part.value or b""
        parts.append(FormPart(name, filename, part.content_type or "", data))

    def on_end() -> None:
        nonlocal complete
        complete = True

    try:
        parser = FormParser(FORM, on_part, on_part, on_end, boundary, config={"MAX_MEMORY_FILE_SIZE": len(body)})
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise HttpProblem(400, "The form is malformed, or a part has no name. Send it again.") from error
    if not complete:
        raise HttpProblem(400, "The form is incomplete: its end is missing. Send it again.")
    return parts


@cache
def form_fields(model: type[BaseModel]) -> dict[str, dict[str, Any]]:
    """JSON schemas of a model's fields in a form: never null; images are files; objects are JSON strings."""
    return {name: _form_field(schema) for name, schema in model.model_json_schema()["properties"].items()}


def _form_field(schema: dict[str, Any]) -> dict[str, Any]:
    field = {key: value for key, value in schema.items() if key not in ("anyOf", "default", "examples")}
    for choice in schema.get("anyOf", ()):
        if choice.get("type") != "null":
            field |= choice
    if "contentEncoding" in field:
        return {"type": "string", "format": "binary", "description": "An image file."}
    if field.get("type") == "object" or "$ref" in field.get("items", {}):
        return {"type": "string", "contentMediaType": JSON, "description": field.get("description", "")}
    return field


def form_values(parts: list[FormPart], model: type[BaseModel]) -> dict[str, Any]:
    """Convert the parts of a form to the JSON object of the same request. Empty fields count as absent."""
    fields = form_fields(model)
    values: dict[str, Any] = {}
    for part in parts:
        if not part.data and not part.filename:
            continue
        field = fields.get(part.name, {})
        value: Any = part.data if field.get("format") == "binary" and part.filename is not None else part.text()
        if field.get("contentMediaType") == JSON:
            value = parse_json(value.encode(), part.name)
        elif field.get("type") in ("integer", "boolean"):
            with suppress(ValueError):  # validation refuses the string
                value = from_json(value, allow_inf_nan=False)
        if field.get("type") == "array":
            values.setdefault(part.name, []).append(value)
        elif part.name in values:
            raise HttpProblem(422, f"`{part.name}` occurs twice in the form. Send it once.", part.name)
        else:
            values[part.name] = value
    return values
