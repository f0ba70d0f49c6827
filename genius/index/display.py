"""Hits and indexes as HTML for notebooks: a grid of small images, texts and codes.

Strings from objects. No scripts, no style sheets, nothing fetched: styles stand in the elements and take the notebook's
own colours, so that its theme, light or dark, decides. Knows nothing of searching.
"""

import base64
import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from genius.data.images import load_image
from genius.data.items import ImageSource, Item, Modality, printable
from genius.errors import BadItem
from genius.search.results import Hit

if TYPE_CHECKING:
    from genius.index.index import Index

SHOWN = 50
"""Hits that are shown; a notebook keeps every image in its file."""
SAMPLE = 6
"""Items of an index that are shown."""

_KINDS = {Modality.IMAGE: "image", Modality.TEXT: "text", Modality.IMAGE_TEXT: "image + text"}
_NOUNS = {Modality.IMAGE: "image", Modality.TEXT: "text", Modality.IMAGE_TEXT: "pair"}
_PIXELS = 192  # of a thumbnail's longer side; shown smaller
_SNIPPET = 120  # characters of a text
_TIP = 1500  # characters shown on hover

_LINE = "1px solid rgba(128,128,128,.4)"
_BOX = "font-family:system-ui,sans-serif;font-size:12px;line-height:1.4;color:inherit;text-align:left;margin:4px 0"
_GRID = "display:grid;grid-template-columns:repeat(auto-fill,minmax(136px,1fr));gap:8px;margin-top:6px"
_CARD = (
    f"border:{_LINE};border-radius:8px;padding:8px;min-width:0;display:flex;flex-direction:column;gap:4px;"
    "box-sizing:border-box"
)
_IMAGE = (
    "width:100%;height:104px;object-fit:contain;background:#fff;border-radius:6px;margin:0;padding:4px;"
    "box-sizing:border-box;display:block"
)
_GAP = (
    "height:104px;border:1px dashed rgba(128,128,128,.6);border-radius:6px;padding:6px;box-sizing:border-box;"
    "overflow:hidden;overflow-wrap:anywhere;font-size:11px;opacity:.75"
)
_ROW = "display:flex;justify-content:space-between;gap:6px;min-width:0"
_CUT = "overflow:hidden;text-overflow:ellipsis;white-space:nowrap;min-width:0"
_SOFT = "opacity:.7"
_CODES = "display:flex;flex-wrap:wrap;gap:2px;font:10px/1.5 ui-monospace,monospace;margin-top:auto"
_CODE = "padding:0 4px;border-radius:4px;background:"


def hits_html(hits: Sequence[Hit]) -> str:
    """A grid of the hits, best first. Codes are coloured where another hit has the same ones so far."""
    shown = hits[:SHOWN]
    shared = shared_prefixes(hit.codes for hit in shown)
    images = _images([hit.item for hit in shown])
    cards = [_hit(hit, image, shared) for hit, image in zip(shown, images, strict=True)]
    count = _counted(len(hits), "hit") if hits else "Nothing was found."
    return _box(count + (f", the first {SHOWN} shown" if len(hits) > SHOWN else ""), cards)


def hit_html(hit: Hit) -> str:
    """One hit: its image, id, score, kind, text and codes; all its metadata on hover."""
    return _box("", [_hit(hit, _image(hit.item), set())])


def index_html(index: "Index") -> str:
    """What an index holds, and its first items."""
    items = index.filter(limit=SAMPLE)
    kinds = {kind: index.count(f"modality = '{kind.label}'") for kind in Modality}
    facts = {
        "holds": ", ".join(_counted(count, _NOUNS[kind]) for kind, count in kinds.items() if count) or "nothing yet",
        "model": index.header.model or "one that was not saved",
        "codes of an item": ", ".join(_levels(index.header.sizes)),
        "re-ranked by": "embeddings" if index.header.embeddings else "codes",
        "version": str(index.version),
        "can be filtered by": ", ".join(f"{name} ({kind})" for name, kind in index.fields.items()) or "none",
    }
    lines = "".join(
        f'<div><span style="{_SOFT}">{escape(name)}:</span> <bdi>{_text(_cut(value, 400))}</bdi></div>'
        for name, value in facts.items()
    )
    cards = [_card(item, _kind(item), image, None, "") for item, image in zip(items, _images(items), strict=True)]
    return _box(f"{index.path.name}: {_counted(len(index), 'item')}", cards, lines)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + "s" * (count != 1)


def _levels(sizes: Sequence[int]) -> list[str]:
    """ "1 of 3", "8 of 4096": levels of the same size together."""
    return [f"{len(list(alike))} of {size}" for size, alike in groupby(sizes)]


def shared_prefixes(ids: Iterable[Sequence[int]]) -> set[tuple[int, ...]]:
    """The beginnings, longer than the kind alone, that more than one ID has."""
    counts = Counter(tuple(codes[:length]) for codes in ids for length in range(2, len(codes) + 1))
    return {prefix for prefix, count in counts.items() if count > 1}


def _box(title: str, cards: Sequence[str], lines: str = "") -> str:
    """The class names keep a notebook from reading dollar signs in texts as formulas."""
    head = f'<div style="font-weight:600"><bdi>{_text(title)}</bdi></div>' if title else ""
    grid = f'<div role="list" style="{_GRID}">{"".join(cards)}</div>' if cards else ""
    return f'<div class="tex2jax_ignore mathjax_ignore" style="{_BOX}">{head}{lines}{grid}</div>'


def _hit(hit: Hit, image: str, shared: set[tuple[int, ...]]) -> str:
    if not image and hit.modality is not Modality.TEXT:
        image = _gap("The image is not at hand.")
    return _card(hit.item, _KINDS[hit.modality], image, hit.score, _codes(hit.codes, shared))


def _card(item: Item, kind: str, image: str, score: float | None, codes: str) -> str:
    score_html = "" if score is None else f'<span title="score">{score:.3f}</span>'
    text = item.text.strip() if item.text else ""
    parts = [
        image,
        f'<div style="{_ROW}"><b style="{_CUT}"><bdi>{_text(item.id)}</bdi></b>{score_html}</div>',
        f'<div style="{_SOFT}">{kind}</div>',
        f'<div style="overflow-wrap:anywhere"><bdi>{_text(_cut(text, _SNIPPET))}</bdi></div>' if text else "",
        codes,
    ]
    return f'<div role="listitem" style="{_CARD}" title="{_text(_tip(item))}">{"".join(parts)}</div>'


def _codes(codes: Sequence[int], shared: set[tuple[int, ...]]) -> str:
    chips = []
    for level, code in enumerate(codes):
        prefix = tuple(codes[: level + 1])
        colour = f"hsla({_hue(prefix)},70%,50%,.4)" if prefix in shared else "rgba(128,128,128,.15)"
        chips.append(f'<span style="{_CODE}{colour}">{code}</span>')
    return f'<div style="{_CODES}" title="codes">{"".join(chips)}</div>'


def _hue(prefix: tuple[int, ...]) -> int:
    """The same codes have the same colour everywhere; neighbours differ."""
    hue = 0
    for code in prefix:
        hue = (hue * 31 + code * 137) % 360
    return hue


def _tip(item: Item) -> str:
    return _cut("\n".join([item.id, *(f"{key}: {_value(value)}" for key, value in item.metadata.items())]), _TIP)


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _kind(item: Item) -> str:
    """An item that was added by its vector alone has neither text nor image."""
    try:
        return _KINDS[item.modality]
    except BadItem:
        return "vector only"


def _images(items: Sequence[Item]) -> list[str]:
    """What stands in the place of each item's image; nothing where there is none."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(_image, items))


def _image(item: Item) -> str:
    if item.image is None:
        return ""
    try:
        data = thumbnail(item.image, _PIXELS)
    except Exception as error:  # whatever is wrong with one image, the others are shown
        return _gap(str(error))
    source = f"data:image/webp;base64,{base64.b64encode(data).decode()}"
    return f'<img src="{source}" alt="{_text(_cut(item.text or item.id, _SNIPPET))}" style="{_IMAGE}">'


def thumbnail(source: ImageSource, pixels: int) -> bytes:
    """The image as a WebP file whose sides are at most so long. Raises BadImage where there is none."""
    image = load_image(source)
    image.thumbnail((pixels, pixels))
    file = io.BytesIO()
    image.save(file, "WEBP", quality=80, method=2)
    return file.getvalue()


def _gap(reason: str) -> str:
    return f'<div style="{_GAP}" title="{_text(_cut(reason, _TIP))}"><bdi>{_text(_cut(reason, _SNIPPET))}</bdi></div>'


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def _text(text: str) -> str:
    """Text that can stand anywhere in HTML: escaped, without control characters."""
    return escape("".join(c if c >= " " or c == "\n" else " " for c in printable(text)))
