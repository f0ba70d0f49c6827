"""Rows of tables as items."""

import json
from pathlib import Path
from typing import Any

from genius.data.items import Item, printable
from genius.data.tables import Place, image_cell
from genius.errors import BadData, BadItem

CONTENT_COLUMNS = frozenset(("id", "text", "caption", "image", "metadata"))
"""Columns of a table that are not metadata fields."""


def check_columns(path: str | Path, columns: list[str]) -> None:
    """Raise BadData if a table has no column that can be the content of an item."""
    if not {"text", "caption", "image"} & set(columns):
        found = printable(", ".join(columns))[:200] or "none"
        raise BadData(
            f"{printable(str(path))}: there is no column `text` or `image` (found: {found}). "
            "Name the columns id, text and image, and save the file as UTF-8."
        )


def item_from_row(row: dict[str, Any], place: Place, root: str | Path | None = None) -> Item | BadItem:
    """Convert a row to an item. Image paths are relative to `root`, by default the folder of the file."""
    id = row.pop("id", None)
    id = place.id if id in (None, "") else str(id) if type(id) is int else id
    text = row.pop("text", None)
    if text is None:
        text = row.pop("caption", None)
    image = row.pop("image", None)
    nested = _as_object(row.pop("metadata", None))
    metadata = {**row, **nested} if isinstance(nested, dict) else {**row, "metadata": nested}
    try:
        return checked(
            Item(
                id,
                text=text,
                image=image_cell(image, root or place.file.parent),
                metadata={key: value for key, value in metadata.items() if value is not None},
            )
        )
    except BadItem as error:
        return BadItem(printable(str(id)), f"{place}: {error.reason}")


def _as_object(value: Any) -> Any:
    """Parse a `metadata` cell that is a JSON object, such as {"lang": "en"}."""
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def checked(item: Item) -> Item:
    """Return the item; raise BadItem if it has neither text nor an image."""
    _ = item.modality
    return item
