"""Queries and their hits as one HTML page: images embedded, nothing loaded from outside, light and dark."""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from genius.data.images import thumbnail
from genius.data.items import ImageSource, Modality, Query
from genius.search.cards import hue, shared_prefixes

if TYPE_CHECKING:
    from genius.search.results import Hit

MODALITY_NAMES = {Modality.IMAGE: "image", Modality.TEXT: "text", Modality.IMAGE_TEXT: "image + text"}
THUMBNAIL_SIZE = 128


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
        return shared_prefixes(hit.codes for hit in self.hits)

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
    """The whole page: `about` are paragraphs below the title, `credits` lines at the foot."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    helpers = {"modality_name": MODALITY_NAMES.__getitem__, "hit_name": hit_name, "hue": hue, "thumbnail": _thumbnail}
    template = environment.get_template("gallery.html", globals=helpers)
    return template.render(entries=entries, title=title, about=about, credits=credits)


def hit_name(hit: "Hit") -> str:
    """A name to show for a hit: its metadata's `name`, its text, or its id."""
    return str(hit.item.metadata.get("name") or hit.item.text or hit.id)


def _thumbnail(source: ImageSource) -> str:
    """A small copy of an image as a data URL."""
    return "data:image/webp;base64," + base64.b64encode(thumbnail(source, THUMBNAIL_SIZE)).decode()
