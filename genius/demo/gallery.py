"""Queries and their hits as one HTML page: images embedded, nothing loaded from outside, light and dark."""

import base64
import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from genius.data.images import load_image
from genius.data.items import ImageSource, Modality, Query

if TYPE_CHECKING:
    from genius.search.results import Hit

MODALITY_NAMES = {Modality.IMAGE: "image", Modality.TEXT: "text", Modality.IMAGE_TEXT: "image + text"}
THUMBNAIL = 128


@dataclass(frozen=True)
class GalleryEntry:
    """A query and its hits, best first."""

    query: Query
    hits: Sequence["Hit"]
    image_name: str = ""
    """Alternative text for the image of the query."""

    @property
    def task_name(self) -> str:
        """Such as 'image + text → text'; a query without a target looks for 'anything'."""
        target = self.query.target_modality
        return f"{MODALITY_NAMES[self.query.modality]} → {'anything' if target is None else MODALITY_NAMES[target]}"

    @property
    def shared_prefixes(self) -> set[tuple[int, ...]]:
        """Code prefixes longer than the modality that two or more hits have in common."""
        counts = Counter(tuple(hit.codes[:length]) for hit in self.hits for length in range(2, len(hit.codes) + 1))
        return {prefix for prefix, count in counts.items() if count > 1}

    @property
    def longest_shared_prefix(self) -> tuple[int, tuple[int, ...]]:
        """(number of hits, prefix): the prefix of the first hit that covers most codes of other hits."""
        first = tuple(self.hits[0].codes)
        counts = [
            sum(tuple(hit.codes[:length]) == first[:length] for hit in self.hits) for length in range(len(first) + 1)
        ]
        best = max(range(2, len(first) + 1), key=lambda length: (length - 1) * (counts[length] - 1), default=1)
        return counts[best], first[:best]


def gallery(entries: Sequence[GalleryEntry], title: str, about: Iterable[str] = (), credits: Iterable[str] = ()) -> str:
    """The whole page.

    Args:
        entries: Queries with their hits.
        title: Title of the page.
        about: Paragraphs below the title.
        credits: Lines at the foot of the page.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    helpers = {"modality_name": MODALITY_NAMES.__getitem__, "hit_name": hit_name, "hue": _hue, "thumbnail": _thumbnail}
    template = environment.get_template("gallery.html", globals=helpers)
    return template.render(entries=entries, title=title, about=about, credits=credits)


def hit_name(hit: "Hit") -> str:
    """A name to show for a hit: its metadata's `name`, its text, or its id."""
    return str(hit.item.metadata.get("name") or hit.item.text or hit.id)


def _hue(prefix: tuple[int, ...]) -> int:
    """A hue that depends on the codes alone: a prefix has the same colour everywhere on the page."""
    return int.from_bytes(hashlib.sha256(repr(prefix).encode()).digest()[:2], "big") % 360


def _thumbnail(source: ImageSource) -> str:
    """A small copy of an image as a data URL."""
    image = load_image(source)
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=80, method=4)
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()
