"""Bodies of requests: JSON or multipart/form-data, as the values that `schemas` describe, or a Problem.

A file in a form is bytes and a name: the name is a plain string, and nothing is ever opened by it or written under it.
Knows nothing of what the values mean.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from genius.serve.problems import Problem, problem_of_values
from genius.serve.settings import Settings

SMALL = 32_768  # bytes; longer bodies are read in a thread
VALUES = 2_000_000  # in one body; a body of nothing but brackets would fill the memory many times over
PARTS = 32  # of a form, beside the files or ids that may be many
JSON, FORM = "application/json", "multipart/form-data"
M = TypeVar("M", bound=BaseModel)

logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # whoever sends nonsense could fill the log with it


@dataclass
class Part:
    """A field of a form. filename: None if it is not a file."""

    name: str
    filename: str | None = None
    type: str = ""
    data: bytearray = field(default_factory=bytearray)

    def text(self) -> str:
        if self.filename is not None:
            raise Problem(422, f"`{self.name}` is sent as a file. Send it as a plain field of the form.", self.name)
        return decoded(bytes(self.data), f"`{self.name}`", self.name)


def decoded(data: bytes, what: str, field: str | None = None) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise Problem(422, f"{what} is not UTF-8. Save and send it as UTF-8.", field) from error


async def read_body(request: Request, model: type[M], from_form: Callable[[list[Part]], dict[str, Any]]) -> M:
    """The values of a body. from_form: makes of the fields of a form what the same request would be in JSON."""
    settings: Settings = request.app.state.settings
    header = request.headers.get("content-type", "")
    kind = header.partition(";")[0].strip().lower()
    if kind not in (JSON, FORM):
        sent = f"not {kind[:100]}" if kind else "and the request does not say what it is"
        raise Problem(415, f"The body must be {JSON} or {FORM}, {sent}. Set the header Content-Type.")
    body = await request.body()

    def read() -> M:
        data = parse_json(body) if kind == JSON else from_form(parse_form(body, header, settings))
        return validated(model, data, settings)

    return read() if len(body) <= SMALL else await request.app.state.work.read(read)


def validated(model: type[M], data: Any, settings: Settings) -> M:
    try:
        return model.model_validate(data, context=settings)
    except ValidationError as error:
        raise problem_of_values(error) from error


def parse_json(body: bytes | bytearray | str, name: str | None = None) -> Any:
    """JSON as the standard has it: no NaN, no half characters, no depths. name: of the field that holds it."""
    what = "The body" if name is None else f"`{name}`"
    raw = body.encode() if isinstance(body, str) else body
    if raw.count(b",") + raw.count(b"[") + raw.count(b"{") > VALUES:
        raise Problem(413, f"{what} holds more than {VALUES:,} values. Send it in several requests.", name)
    try:
        return from_json(bytes(raw), allow_inf_nan=False)
    except ValueError as error:
        raise Problem(400, f"{what} is not JSON that can be read: {error}.", name) from error


def parse_form(body: bytes, header: str, settings: Settings) -> list[Part]:
    """The fields of a form in the order in which they came."""
    boundary = parse_options_header(header)[1].get(b"boundary")
    if not boundary:
        raise Problem(400, "The header Content-Type of the form names no boundary. Let the HTTP library set it.")
    reader = _FormReader(PARTS + max(settings.max_items, settings.max_ids))
    try:
        parser = MultipartParser(boundary, reader.callbacks())  # type: ignore[arg-type]
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise Problem(400, "The form cannot be read: it is cut off or damaged. Send it again.") from error
    if not reader.ended:
        raise Problem(400, "The form has no end: it is cut off. Send it again.")
    return reader.parts


class _FormReader:
    """Gathers what the parser finds."""

    def __init__(self, most: int) -> None:
        self.parts: list[Part] = []
        self.ended = False
        self._most = most
        self._name = self._value = b""  # of a part's header
        self._headers: dict[bytes, bytes] = {}
        self._part = Part("")

    def callbacks(self) -> dict[str, Callable[..., None]]:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._data,
            "on_part_end": lambda: self.parts.append(self._part),
            "on_end": self._end,
        }

    def _begin(self) -> None:
        if len(self.parts) >= self._most:
            raise Problem(413, f"The form has more than {self._most:,} fields. Send it in several requests.")
        self._headers = {}

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._headers[self._name.lower()] = self._value
        self._name = self._value = b""

    def _headers_finished(self) -> None:
        options = parse_options_header(self._headers.get(b"content-disposition"))[1]
        if b"name" not in options:
            raise Problem(400, "A field of the form has no name. Name every field.")
        filename = options.get(b"filename")
        self._part = Part(
            decoded(options[b"name"], "The name of a field"),
            None if filename is None else decoded(filename, "The name of a file"),
            parse_options_header(self._headers.get(b"content-type"))[0].decode("latin-1"),
        )

    def _data(self, data: bytes, start: int, end: int) -> None:
        self._part.data += memoryview(data)[start:end]

    def _end(self) -> None:
        self.ended = True


# From forms to what the same request would be in JSON


def plain_fields(
    parts: list[Part],
    files: Collection[str] = (),
    lists: Collection[str] = (),
    values: Collection[str] = (),
    json: Collection[str] = (),
) -> dict[str, Any]:
    """Fields by name; empty ones count as absent, and everything but files is text.

    files: those that are images; lists: those that may come again; values: those whose text stands for a number or
    for true or false (what does not is left as it is, to be refused); json: those that hold JSON.
    """
    found: dict[str, Any] = {}
    for part in parts:
        if not part.data and not part.filename:
            continue
        value: Any = bytes(part.data) if part.name in files and part.filename is not None else part.text()
        if part.name in json:
            value = parse_json(value, part.name)
        elif part.name in values:
            value = _value(value)
        if part.name in lists:
            found.setdefault(part.name, []).append(value)
        elif part.name in found:
            raise Problem(422, f"`{part.name}` comes twice in the form. Send it once.", part.name)
        else:
            found[part.name] = value
    return found


def _value(text: str) -> Any:
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        return text


def is_text(part: Part) -> bool:
    """Whether a file is a text rather than an image."""
    return part.type == "text/plain" or PurePosixPath(part.filename or "").suffix.lower() == ".txt"
