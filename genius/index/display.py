"""An index as HTML for notebooks."""

from itertools import groupby

from genius.data.items import Item, Modality
from genius.errors import BadItem
from genius.index.snapshot import Snapshot
from genius.runtime.wording import counted
from genius.search.cards import Card, render_cards

_SAMPLE = 6  # items shown
_NOUNS = {Modality.IMAGE: "image", Modality.TEXT: "text", Modality.IMAGE_TEXT: "pair"}


def index_html(snapshot: Snapshot) -> str:
    """Render the facts about an index and its first items."""
    header = snapshot.header
    counts = {modality: len(snapshot.row_ids(f"modality = '{modality.label}'")) for modality in Modality}
    held = [counted(count, _NOUNS[modality]) for modality, count in counts.items() if count]
    sizes = [f"{len(list(levels))} of {size}" for size, levels in groupby(header.sizes)]
    facts = {
        "holds": ", ".join(held) or "nothing yet",
        "model": header.model or "one that was not saved",
        "codes of an item": ", ".join(sizes),
        "re-ranked by": "embeddings" if header.embeddings else "codes",
        "version": str(snapshot.version),
        "can be filtered by": ", ".join(f"{name} ({type})" for name, type in snapshot.fields.items()) or "none",
    }
    cards = [Card(item, _modality(item)) for item in snapshot.items(limit=_SAMPLE)]
    return render_cards(cards, f"{snapshot.folder.name}: {counted(len(snapshot), 'item')}", facts)


def _modality(item: Item) -> Modality | None:
    """Return None for an item that was added as a vector."""
    try:
        return item.modality
    except BadItem:
        return None
