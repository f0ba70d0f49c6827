"""Items as tables and as JSON."""

import textwrap
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table
from rich.text import Text

from genius.cli.console import print_json, say, stdout

if TYPE_CHECKING:
    from genius.data.items import Item


def item_dict(item: "Item") -> dict[str, Any]:
    """An item as JSON. A stored image has no path; an item added as vectors has no modality."""
    return {
        "id": item.id,
        "modality": None if item.text is None and item.image is None else item.modality.label,
        "text": item.text,
        "image": None if item.image is None or isinstance(item.image, bytes) else str(item.image),
        "metadata": item.metadata,
    }


def show_items(items: "list[Item]", as_json: bool) -> None:
    """Prints items as a table or as JSON."""
    records = [item_dict(item) for item in items]
    if as_json:
        print_json(records)
        return
    if not records:
        say("No item matches.")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("id", overflow="fold", style="bold", min_width=12)
    table.add_column("modality", no_wrap=True)
    table.add_column("text", min_width=20)
    table.add_column("image", overflow="fold")
    table.add_column("metadata", overflow="fold")
    for item, record in zip(items, records, strict=True):
        image = "stored in the index" if isinstance(item.image, bytes) else record["image"] or ""
        metadata = ", ".join(f"{name}: {value}" for name, value in item.metadata.items())
        text = textwrap.shorten(item.text or "", 200, placeholder=" ...")
        table.add_row(Text(item.id), record["modality"] or "vector", Text(text), Text(image), Text(metadata))
    stdout().print(table)
