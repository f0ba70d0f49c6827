"""Questions and answers as one HTML page: images inside, nothing fetched, readable on a phone and in the dark.

A function from answered queries to a string. Knows nothing of models or indexes, and nothing of emoji.
"""

import base64
import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from genius.data.images import load_image
from genius.data.items import ImageSource, Modality, Query

if TYPE_CHECKING:
    from genius.index.index import Hit

KINDS = {Modality.IMAGE: "image", Modality.TEXT: "text", Modality.IMAGE_TEXT: "image + text"}
_THUMBNAIL = 128
_CSS = """
:root { color-scheme: light dark; --page: #f6f6f3; --card: #fff; --line: #e2e1dc; --ink: #1d1d1f; --soft: #63636a;
  --image: #0b6e4f; --text: #8a4b08; --both: #5b3cc4; --tint: 86%; --chip: #1d1d1f; --bare: #efeeea; }
@media (prefers-color-scheme: dark) { :root { --page: #131316; --card: #1d1d21; --line: #33333a; --ink: #ececf0;
  --soft: #a3a3ad; --image: #57c79d; --text: #e8a457; --both: #ab97f7; --tint: 27%; --chip: #fff; --bare: #29292e; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
body > * { max-width: 1120px; margin-inline: auto; padding-inline: clamp(16px, 4vw, 32px); }
header { padding-block: 40px 8px; }
h1 { margin: 0 0 8px; font-size: clamp(1.6rem, 5vw, 2.2rem); line-height: 1.15; letter-spacing: -.02em; }
h2 { margin: 0; font-size: 1.05rem; }
p { margin: 0; }
header p, footer { color: var(--soft); max-width: 72ch; }
header p + p { margin-top: 8px; }
footer { padding-block: 16px 40px; font-size: .85rem; max-width: 1120px; }
footer p + p { margin-top: 4px; }
section { margin-block: 20px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 16px; padding: clamp(14px, 3vw, 24px); }
.sides { display: grid; grid-template-columns: 216px 1fr; gap: 24px; margin-top: 14px; align-items: start; }
.label { font-size: .72rem; font-weight: 600; letter-spacing: .06em; text-transform: uppercase; color: var(--soft); }
.asked { display: grid; gap: 10px; }
.asked blockquote { margin: 0; font-size: 1.15rem; line-height: 1.35; font-weight: 600; overflow-wrap: anywhere; }
.asked .rule { color: var(--soft); font-size: .9rem; overflow-wrap: anywhere; }
.asked img { width: 112px; height: 112px; padding: 6px; }
img { display: block; object-fit: contain; background: #fff; border-radius: 12px; border: 1px solid var(--line); }
ol { list-style: none; margin: 8px 0 0; padding: 0; display: grid; gap: 12px;
  grid-template-columns: repeat(auto-fill, minmax(132px, 1fr)); }
li { border: 1px solid var(--line); border-radius: 12px; padding: 10px; display: flex; flex-direction: column; gap: 8px;
  min-width: 0; }
li img { width: 100%; aspect-ratio: 1; border: 0; padding: 6px; }
li .says { font-size: .88rem; line-height: 1.35; overflow-wrap: anywhere; }
li.words .says { flex: 1; font-size: .98rem; }
li .where { display: flex; justify-content: space-between; gap: 8px; font-size: .75rem; color: var(--soft);
  margin-top: auto; font-variant-numeric: tabular-nums; }
.codes { display: flex; flex-wrap: wrap; gap: 3px; font: 500 11px/1.55 ui-monospace, monospace; }
.codes span { padding: 0 5px; border-radius: 5px; background: var(--bare); color: var(--soft); }
.codes .same { background: hsl(var(--hue) 62% var(--tint)); color: var(--chip); }
.kind { padding: 0 6px; border-radius: 5px; background: none; font-weight: 600; }
.codes .kind, .share .kind { color: var(--card); }
.k0 { color: var(--image); } .k1 { color: var(--text); } .k2 { color: var(--both); }
.codes .k0, .share .k0 { background: var(--image); } .codes .k1, .share .k1 { background: var(--text); }
.codes .k2, .share .k2 { background: var(--both); }
.share { display: flex; flex-wrap: wrap; align-items: center; gap: 6px; margin-top: 12px; font-size: .85rem;
  color: var(--soft); }
@media (max-width: 640px) {
  .sides { grid-template-columns: 1fr; gap: 16px; }
  .asked img { width: 96px; height: 96px; }
  ol { grid-template-columns: repeat(2, 1fr); gap: 10px; }
}
"""


@dataclass(frozen=True)
class GalleryEntry:
    """One query and what was found for it, best first."""

    query: Query
    hits: Sequence["Hit"]
    image_name: str = ""
    """What the query's image shows, for those who cannot see it."""


def gallery(answers: Sequence[GalleryEntry], title: str, about: Iterable[str] = (), credits: Iterable[str] = ()) -> str:
    """The whole page. `about` are paragraphs below the title, `credits` lines at the foot."""
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>{escape(title)}</title>\n<style>{_CSS}</style>\n<body>\n"
        f"<header><h1>{escape(title)}</h1>{_paragraphs(about)}</header>\n<main>\n"
        + "".join(_section(answer) for answer in answers)
        + f"</main>\n<footer>{_paragraphs(credits)}</footer>\n</body>\n</html>\n"
    )


def task_name(query: Query) -> str:
    """'image + text → text'; an open target is 'anything'."""
    return (
        f"{KINDS[query.modality]} → {KINDS[query.target_modality] if query.target_modality is not None else 'anything'}"
    )


def hit_name(hit: "Hit") -> str:
    """What to call a hit in a list: its name if its metadata has one, its text, or its id."""
    return str(hit.item.metadata.get("name") or hit.item.text or hit.id)


def _section(answer: GalleryEntry) -> str:
    shared = _shared_prefixes(answer.hits)
    hits = "".join(_hit(hit, shared) for hit in answer.hits) or "<li>Nothing was found.</li>"
    return (
        f'<section class="card"><h2>{escape(task_name(answer.query))}</h2><div class="sides">{_asked(answer)}'
        f'<div><p class="label">Found</p><ol>{hits}</ol>{_sharing(answer.hits)}</div></div></section>\n'
    )


def _asked(answer: GalleryEntry) -> str:
    query, parts = answer.query, ['<p class="label">Asked</p>']
    if query.image is not None:
        parts.append(_image(query.image, answer.image_name or "the image of the query"))
    if query.text:
        parts.append(f"<blockquote>{escape(query.text)}</blockquote>")
    if query.instruction:
        parts.append(f'<p class="rule">{escape(query.instruction)}</p>')
    if query.target_modality is not None:
        parts.append(f'<p class="rule">Wanted: {_kind(query.target_modality)}</p>')
    return f'<div class="asked">{"".join(parts)}</div>'


def _hit(hit: "Hit", shared: set[tuple[int, ...]]) -> str:
    name, parts = hit_name(hit), []
    if hit.item.image is not None:
        parts.append(_image(hit.item.image, name))
    parts.append(f'<p class="says">{escape(hit.item.text or name)}</p>')
    artist = hit.item.metadata.get("artist")
    where = f'<span title="{escape(hit.id)}">{escape(str(artist or KINDS[hit.modality]))}</span>'
    parts.append(f'<p class="where">{where}<span title="score">{hit.score:.3f}</span></p>')
    parts.append(_codes(hit.codes, shared))
    opening = '<li class="words">' if hit.item.image is None else "<li>"
    return f"{opening}{''.join(parts)}</li>"


def _codes(codes: Sequence[int], shared: set[tuple[int, ...]]) -> str:
    """The ID as chips. A chip is coloured when another answer has the same codes up to and including it."""
    chips = [_kind(Modality(codes[0]))]
    for level in range(1, len(codes)):
        prefix = tuple(codes[: level + 1])
        style = f' class="same" style="--hue:{_hue(prefix)}"' if prefix in shared else ""
        chips.append(f"<span{style}>{codes[level]}</span>")
    return f'<div class="codes" role="group" aria-label="generated codes">{"".join(chips)}</div>'


def _sharing(hits: Sequence["Hit"]) -> str:
    """One sentence: how many answers begin with the same codes as the first one, and with which."""
    if len(hits) < 2:
        return ""
    best = max(
        range(1, len(hits[0].codes) + 1),
        key=lambda length: (length - 1) * (sum(hit.codes[:length] == hits[0].codes[:length] for hit in hits) - 1),
    )
    prefix = hits[0].codes[:best]
    count = sum(hit.codes[:best] == prefix for hit in hits)
    if best == 1 or count == 1:
        return f'<p class="share">Beyond the kind, {_kind(Modality(prefix[0]))}, the first answer shares no code.</p>'
    chips = _codes(prefix, {tuple(prefix[:level]) for level in range(2, best + 1)})
    return f'<div class="share">{count} of {len(hits)} answers begin with {chips}</div>'


def _shared_prefixes(hits: Sequence["Hit"]) -> set[tuple[int, ...]]:
    counts = Counter(tuple(hit.codes[:length]) for hit in hits for length in range(2, len(hit.codes) + 1))
    return {prefix for prefix, count in counts.items() if count > 1}


def _hue(prefix: tuple[int, ...]) -> int:
    """A colour that depends on the codes alone: the same prefix has it everywhere on the page."""
    return int.from_bytes(hashlib.sha256(repr(prefix).encode()).digest()[:2], "big") % 360


def _kind(modality: Modality) -> str:
    return f'<span class="kind k{int(modality)}">{KINDS[modality]}</span>'


def _image(source: ImageSource, name: str) -> str:
    image = load_image(source)
    image.thumbnail((_THUMBNAIL, _THUMBNAIL))
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=80, method=4)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img src="data:image/webp;base64,{data}" alt="{escape(name)}" loading="lazy">'


def _paragraphs(lines: Iterable[str]) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in lines)
