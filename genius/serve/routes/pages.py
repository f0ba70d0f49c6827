"""Pages for people: the search page, the reference of the API, and its description for programs.

All files are read when the module is imported: what a client asks for is looked up, never opened.
"""

import hashlib
import mimetypes
from dataclasses import dataclass
from importlib.resources import files

from fastapi import APIRouter, Request
from starlette.responses import Response

from genius.serve.json_answer import json_answer
from genius.serve.problems import Problem

router = APIRouter(include_in_schema=False)

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
}


@dataclass(frozen=True)
class File:
    data: bytes
    type: str
    tag: str


def _read(folder: str) -> dict[str, File]:
    """The files of a folder of this package, by name."""
    found = {}
    for entry in files("genius.serve").joinpath(folder).iterdir():
        suffix = "." + entry.name.rpartition(".")[2]
        kind = TYPES.get(suffix) or mimetypes.types_map.get(suffix)
        if entry.is_file() and kind is not None:
            data = entry.read_bytes()
            found[entry.name] = File(data, kind, f'"{hashlib.blake2b(data, digest_size=16).hexdigest()}"')
    return found


PAGE, REFERENCE = _read("page"), _read("reference")


@router.get("/")
async def page(request: Request) -> Response:
    return _answer(request, PAGE, "index.html")


@router.get("/page/{name}")
async def page_file(request: Request, name: str) -> Response:
    return _answer(request, PAGE, name)


@router.get("/favicon.ico")
async def icon(request: Request) -> Response:
    return _answer(request, PAGE, "icon.svg")


@router.get("/docs")
async def reference(request: Request) -> Response:
    return _answer(request, REFERENCE, "index.html")


@router.get("/docs/{name}")
async def reference_file(request: Request, name: str) -> Response:
    return _answer(request, REFERENCE, name)


@router.get("/openapi.json")
async def description(request: Request) -> Response:
    return json_answer(request.app.openapi())


def _answer(request: Request, found: dict[str, File], name: str) -> Response:
    file = found.get(name)
    if file is None:
        raise Problem(404, "There is nothing at this address. /docs lists what there is.")
    headers = {"ETag": file.tag, "Cache-Control": "no-cache", "Content-Type": file.type}
    if file.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.data, headers=headers)
