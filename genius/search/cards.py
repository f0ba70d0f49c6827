"""Cards: items as HTML for notebooks, a grid of thumbnails, texts and codes.

No scripts, no style sheets, nothing fetched. Inline styles inherit the notebook's colours, light or dark.
"""

import base64
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from html import escape
from typing import NamedTuple

from genius.data.images import thumbnail
from genius.data.items import Item, Modality, printable

MAX_CARDS = 50
"""Maximum number of hits shown. A notebook stores every thumbnail in its file."""

_LABELS = {Modality.IMAGE: "image", Modality.TEXT: "text", Modality.IMAGE_TEXT: "image + text", None: "vector only"}
_PIXELS = 192  # longer side of a thumbnail; shown smaller
_SNIPPET = 120  # characters of a text that are shown
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


class Card(NamedTuple):
    """Content of one card."""

    item: Item  # metadata is shown on hover
    modality: Modality | None  # None for an item that was added as a vector
    score: float | None = None
    codes: tuple[int, ...] = ()


def render_cards(cards: Sequence[Card], title: str, facts: Mapping[str, str] | None = None) -> str:
    """Render a grid of cards below a title and lines of facts.

    Prefixes of codes that several cards share are coloured.
    """
    shared = shared_prefixes(card.codes for card in cards)
    with ThreadPoolExecutor(max(8, os.cpu_count() or 1)) as pool:
        images = list(pool.map(_image, (card.item for card in cards)))
    lines = "".join(
        f'<div><span style="{_SOFT}">{escape(name)}:</span> <bdi>{_text(_cut(value, 400))}</bdi></div>'
        for name, value in (facts or {}).items()
    )
    shown = "".join(_card(card, image, shared) for card, image in zip(cards, images, strict=True))
    head = f'<div style="font-weight:600"><bdi>{_text(title)}</bdi></div>'
    grid = f'<div role="list" style="{_GRID}">{shown}</div>' if cards else ""
    # The class names keep notebooks from reading dollar signs as formulas.
    return f'<div class="tex2jax_ignore mathjax_ignore" style="{_BOX}">{head}{lines}{grid}</div>'


def shared_prefixes(ids: Iterable[Sequence[int]]) -> set[tuple[int, ...]]:
    """Prefixes of at least two codes that more than one ID has."""
    counts = Counter(tuple(codes[:length]) for codes in ids for length in range(2, len(codes) + 1))
    return {prefix for prefix, count in counts.items() if count > 1}


def _card(card: Card, image: str, shared: set[tuple[int, ...]]) -> str:
    item = card.item
    if not image and card.codes and card.modality is not Modality.TEXT:
        image = _gap("The image is not at hand.")
    score = "" if card.score is None else f'<span title="score">{card.score:.3f}</span>'
    text = item.text.strip() if item.text else ""
    parts = [
        image,
        f'<div style="{_ROW}"><b style="{_CUT}"><bdi>{_text(item.id)}</bdi></b>{score}</div>',
        f'<div style="{_SOFT}">{_LABELS[card.modality]}</div>',
        f'<div style="overflow-wrap:anywhere"><bdi>{_text(_cut(text, _SNIPPET))}</bdi></div>' if text else "",
        _codes(card.codes, shared) if card.codes else "",
    ]
    return f'<div role="listitem" style="{_CARD}" title="{_text(_tip(item))}">{"".join(parts)}</div>'


def _codes(codes: Sequence[int], shared: set[tuple[int, ...]]) -> str:
    chips = []
    for level, code in enumerate(codes):
        prefix = tuple(codes[: level + 1])
        colour = f"hsla({hue(prefix)},70%,50%,.4)" if prefix in shared else "rgba(128,128,128,.15)"
        chips.append(f'<span style="{_CODE}{colour}">{code}</span>')
    return f'<div style="{_CODES}" title="codes">{"".join(chips)}</div>'


def hue(prefix: tuple[int, ...]) -> int:
    """Equal prefixes have equal colours; siblings differ."""
    hue = 0
    for code in prefix:
        hue = (hue * 31 + code * 137) % 360
    return hue


def _tip(item: Item) -> str:
    return _cut("\n".join([item.id, *(f"{key}: {_value(value)}" for key, value in item.metadata.items())]), _TIP)


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _image(item: Item) -> str:
    try:
        source = item.image  # of a client: fetched now
        if source is None:
            return ""
        data = thumbnail(source, _PIXELS)
    except Exception as error:  # one broken image must not hide the others
        return _gap(str(error))
    url = f"data:image/webp;base64,{base64.b64encode(data).decode()}"
    return f'<img src="{url}" alt="{_text(_cut(item.text or item.id, _SNIPPET))}" style="{_IMAGE}">'


def _gap(reason: str) -> str:
    return f'<div style="{_GAP}" title="{_text(_cut(reason, _TIP))}"><bdi>{_text(_cut(reason, _SNIPPET))}</bdi></div>'


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1].rstrip() + "…"


def _text(text: str) -> str:
    """Escape text for HTML and drop control characters."""
    return escape("".join(c if c >= " " or c == "\n" else " " for c in printable(text)))
