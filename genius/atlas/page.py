"""The atlas as one HTML page: data, images, style and script inside, nothing loaded from outside."""

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

PAGE_BYTES = 19_000_000
"""Size of a page up to which thumbnails are added. Base64 and markup stay below 20 MB."""


def render_page(content: Mapping[str, Any], thumbnails: Mapping[int, bytes]) -> str:
    """The page.

    Args:
        content: What `Atlas.to_json` gives.
        thumbnails: WebP images of examples, by their position in content["examples"].
    """
    encoded = {place: base64.b64encode(image).decode() for place, image in thumbnails.items()}
    script = _read("atlas.js")
    parts = {
        "title": escape(f"Atlas of {content['index']}"),
        "style": _read("atlas.css"),
        "script": script,
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "data": _embedded(content),
        "thumbnails": _embedded(encoded),
    }
    # Parts are joined once: text inside the data is never taken for a placeholder.
    pieces = _read("atlas.html").split("%%")
    return "".join(parts[piece] if number % 2 else piece for number, piece in enumerate(pieces))


def _read(name: str) -> str:
    return files("genius.atlas").joinpath(name).read_text(encoding="utf-8")


def _embedded(value: Any) -> str:
    """JSON that a script element can hold: without < it can neither end the element nor start a comment."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
