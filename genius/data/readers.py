"""Read items from a folder of images, a CSV, JSON, JSONL or Parquet table, or an M-BEIR candidate pool.

Reading is lazy. A row that cannot be read gives a BadItem and does not stop the others. Images are not opened.
"""

import json
import os
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from genius.data import tables
from genius.data.images import SUFFIXES
from genius.data.items import Item, printable
from genius.data.tables import Place, image_cell
from genius.errors import BadData, BadItem

UNDERSTOOD = (
    "a folder of images (with captions in .txt or .json files of the same name) or of .txt files, a single image, "
    "a table with the columns id, text, image (.csv, .tsv, .json, .jsonl, .parquet), or an M-BEIR candidate pool "
    "(.jsonl)"
)
"""The sources of `read_items`, for error messages."""

# Images of unsupported formats become items too, so that they are reported instead of ignored.
_IMAGES = SUFFIXES | {".svg", ".heic", ".heif"}
CONTENT_COLUMNS = frozenset(("id", "text", "caption", "image", "metadata"))
"""Columns of a table that are not metadata fields."""


def read_items(path: str | os.PathLike[str]) -> Iterator[Item | BadItem]:
    """Yield the items at `path`. An item that cannot be read is a BadItem with its file and row.

    - A folder: all images below it. The id is the path in the folder. `name.txt` beside `name.jpg` is its text;
      `name.json` may have "text" (or "caption") and metadata. A .txt file without an image is a text item.
    - A table: columns (or keys) `id`, `text` (or `caption`) and `image`; all others are metadata. Image paths are
      relative to the table. Parquet files may have images as bytes. A row without id gets one from its row number.
      A JSON file holds an array of objects, or one object per line.
    - An M-BEIR candidate pool: `did`, `txt`, `img_path`, the latter relative to the folder that holds `cand_pool`.

    Raises:
        BadData: There are no items at the path, or its format is not supported. Raised before the first item.
    """
    path = Path(path)
    if not path.exists():
        raise BadData(f"{printable(str(path))}: there is no such file or folder. Check the path.")
    suffix = path.suffix.lower()
    if path.is_dir():
        items = _read_folder(path)
    elif suffix in _IMAGES:
        items = iter([_image_file(path, path.name)])
    elif suffix in tables.SUFFIXES:
        items = _read_table(path)
    else:
        raise BadData(f"{printable(str(path))}: the file format is not supported. Give {UNDERSTOOD}.")
    first = next(items, None)
    if first is None:
        raise BadData(f"{printable(str(path))}: there are no items in it. Give {UNDERSTOOD}.")
    return chain([first], items)


def count_items(path: str | os.PathLike[str]) -> int | None:
    """Count what `read_items` yields without reading the items; None if that takes as long as reading them.

    A file that changes meanwhile, or is damaged, can have more or fewer items.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    try:
        if path.is_dir():
            return _count_folder(path)
        if suffix in tables.SUFFIXES:
            return tables.count_rows(path, CONTENT_COLUMNS)
        return 1 if suffix in _IMAGES else None
    except (OSError, ValueError, RecursionError, pa.ArrowException):  # reported by `read_items`
        return None


# Folders


def _walk(root: Path, unreadable: list[OSError]) -> Iterator[tuple[Path, bool]]:
    """Yield the files below `root` that are items, sorted by name, and whether each is an image."""
    for folder, subfolders, names in os.walk(root, onerror=unreadable.append):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        paths = [Path(folder, name) for name in sorted(names) if not name.startswith(".")]
        with_image = {path.stem for path in paths if path.suffix.lower() in _IMAGES}
        for path in paths:
            if path.suffix.lower() in _IMAGES:
                yield path, True
            elif path.suffix.lower() == ".txt" and path.stem not in with_image:
                yield path, False


def _count_folder(root: Path) -> int:
    unreadable: list[OSError] = []
    return sum(1 for _ in _walk(root, unreadable)) + len(unreadable)


def _read_folder(root: Path) -> Iterator[Item | BadItem]:
    """Yield images and texts below `root`, sorted by name. Hidden files and folders are ignored."""
    unreadable: list[OSError] = []
    for path, is_image in _walk(root, unreadable):
        id = path.relative_to(root).as_posix()
        if is_image:
            yield _image_file(path, id)
            continue
        try:
            yield _checked(Item(id, text=_side_text(path)))
        except BadItem as bad:
            yield BadItem(printable(id), bad.reason)
    for error in unreadable:
        yield BadItem(
            printable(str(error.filename)), f"the folder cannot be read ({error.strerror}). Check its permissions."
        )


def _image_file(path: Path, id: str) -> Item | BadItem:
    """Return an image with the text and metadata of its side files."""
    try:
        metadata = _side_metadata(_side_file(path, ".json"))
        text = metadata.pop("text", None)
        if text is None:
            text = metadata.pop("caption", None)
        if text is None:
            text = _side_text(_side_file(path, ".txt"))
        return Item(id, text=text, image=str(path), metadata=metadata)
    except BadItem as error:
        return BadItem(printable(id), error.reason)


def _side_file(path: Path, suffix: str) -> Path:
    """Return `cat.txt` for `cat.jpg`, or `CAT.TXT` for `CAT.JPG`."""
    upper = path.with_suffix(suffix.upper())
    return upper if upper.is_file() else path.with_suffix(suffix)


def _side_text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8-sig").strip() if path.is_file() else None
    except (OSError, UnicodeDecodeError) as error:
        raise BadItem(path.name, f"the text file {path.name} cannot be read ({error}). Save it as UTF-8.") from error


def _side_metadata(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise BadItem(path.name, f"the side file {path.name} is not JSON ({error}). Correct or remove it.") from error
    if not isinstance(content, dict):
        raise BadItem(path.name, f'the side file {path.name} must hold an object such as {{"text": "..."}}.')
    return content


# Tables


def _read_table(path: Path) -> Iterator[Item | BadItem]:
    is_json = path.suffix.lower() in tables.JSON_SUFFIXES
    root = _benchmark_root(path)
    for row in tables.read_rows(path, CONTENT_COLUMNS, partial(_check_columns, path)):
        if isinstance(row, BadItem):
            yield row
            continue
        place, values = row
        if is_json and "did" in values and "id" not in values:
            yield _from_row(_from_candidate(values), place, root)
        else:
            yield _from_row(values, place)


def _from_candidate(row: dict[str, Any]) -> dict[str, Any]:
    """Rename the fields of an M-BEIR candidate."""
    rest = {name: row[name] for name in row.keys() - {"did", "txt", "img_path", "modality", "src_content"}}
    return {"id": row["did"], "text": row.get("txt"), "image": row.get("img_path"), "metadata": rest}


def _benchmark_root(path: Path) -> Path:
    """Return the parent folder that holds `cand_pool`; the folder of the pool if there is none."""
    parents = path.absolute().parents
    return next((folder for folder in parents if (folder / "cand_pool").is_dir()), path.parent)


def _check_columns(path: Path, columns: list[str]) -> None:
    if not {"text", "caption", "image"} & set(columns):
        found = printable(", ".join(columns))[:200] or "none"
        raise BadData(
            f"{printable(str(path))}: there is no column `text` or `image` (found: {found}). "
            "Name the columns id, text and image, and save the file as UTF-8."
        )


def _from_row(row: dict[str, Any], place: Place, root: Path | None = None) -> Item | BadItem:
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
        return _checked(
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


def _checked(item: Item) -> Item:
    """Return the item; raise BadItem if it has neither text nor an image."""
    _ = item.modality
    return item
