"""Pages: the search page, the API reference, and the OpenAPI description.

All files are read when the module is imported. Requests look them up by name and never open a file.
"""

import hashlib
import mimetypes
from dataclasses import dataclass
from importlib.resources import files

from fastapi import APIRouter, Request
from starlette.responses import Response

from genius.serve.problems import NOT_FOUND, HttpProblem
from genius.serve.responses import json_response

router = APIRouter(include_in_schema=False)

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
}


@dataclass(frozen=True)
class StaticFile:
    """A file of the page with its content type and ETag."""

    data: bytes
    content_type: str
    tag: str


def _read_folder(folder: str) -> dict[str, StaticFile]:
    """The files of a folder of this package, by name."""
    found = {}
    for entry in files("genius.serve").joinpath(folder).iterdir():
        suffix = "." + entry.name.rpartition(".")[2]
        content_type = TYPES.get(suffix) or mimetypes.types_map.get(suffix)
        if entry.is_file() and content_type is not None:
            data = entry.read_bytes()
            tag = f'"{hashlib.blake2b(data, digest_size=16).hexdigest()}"'
            found[entry.name] = StaticFile(data, content_type, tag)
    return found


PAGE, REFERENCE = _read_folder("page"), _read_folder("reference")
FILES = {
    "/": PAGE["index.html"],
    "/favicon.ico": PAGE["icon.svg"],
    "/docs": REFERENCE["index.html"],
    **{f"/page/{name}": file for name, file in PAGE.items()},
    **{f"/docs/{name}": file for name, file in REFERENCE.items()},
}


@router.get("/")
@router.get("/favicon.ico")
@router.get("/docs")
@router.get("/page/{name}")
@router.get("/docs/{name}")
async def static_file(request: Request) -> Response:
    """A file of the search page or of the API reference."""
    file = FILES.get(request.scope["path"])
    if file is None:
        raise HttpProblem(404, NOT_FOUND)
    headers = {"ETag": file.tag, "Cache-Control": "no-cache", "Content-Type": file.content_type}
    if file.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.data, headers=headers)


@router.get("/openapi.json")
async def description(request: Request) -> Response:
    """The OpenAPI description."""
    return json_response(request.app.openapi())
