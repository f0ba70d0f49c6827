"""Read items from a folder of images, a CSV, JSON, JSONL or Parquet table, or an M-BEIR candidate pool.

Reading is lazy. A row that cannot be read gives a BadItem and does not stop the others. Images are not opened.
"""

import csv
import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain, count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from genius.data.images import SUFFIXES
from genius.data.items import Item, printable
from genius.data.json_array import array_elements
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
_BEGINNING = 1 << 16  # bytes of a JSON file that tell an array from lines
_DELIMITERS = ",;\t|"
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?")


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
    elif suffix in _TABLES:
        items = _TABLES[suffix](path)
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
    count = _count_folder if path.is_dir() else _COUNTS.get(path.suffix.lower())
    if count is None:
        return 1 if path.suffix.lower() in _IMAGES else None
    try:
        return count(path)
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


@dataclass(frozen=True)
class _Place:
    """A row of a file."""

    file: Path
    number: int

    def __str__(self) -> str:
        return f"{printable(self.file.name)}, row {self.number}"

    @property
    def id(self) -> str:
        return f"{printable(self.file.name)}#{self.number}"


def _count_json(path: Path) -> int:
    if _beginning(path).startswith("["):
        with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
            return sum(1 for _ in array_elements(file))
    with open(path, "rb") as lines:
        return sum(1 for line in lines if not line.isspace())


def _count_parquet(path: Path) -> int:
    return int(pq.read_metadata(path).num_rows)


def _count_csv(path: Path) -> int:
    return sum(1 for _ in _csv_rows(path)) - 1


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str] | csv.Error]]:
    """Yield the header and the rows of a CSV file that are not empty, numbered as in a spreadsheet from 1 on."""
    csv.field_size_limit(max(csv.field_size_limit(), 1 << 24))  # the default is too small for long texts
    # surrogateescape: an invalid byte affects one row only
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        header_line = file.readline()
        delimiter = max(_DELIMITERS, key=lambda mark: len(CONTENT_COLUMNS & set(_header(header_line, mark))))
        yield 1, _header(header_line, delimiter)
        rows = csv.reader(file, delimiter=delimiter, strict=True)
        for number in count(2):
            try:
                cells = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                yield number, error
                continue
            if any(cells):
                yield number, cells


def _read_csv(path: Path) -> Iterator[Item | BadItem]:
    """Read a CSV file."""
    rows = _csv_rows(path)
    header = next(rows)[1]
    assert isinstance(header, list)
    _check_columns(path, header)
    for number, cells in rows:
        place = _Place(path, number)
        if isinstance(cells, csv.Error):
            yield BadItem(place.id, f"{place}: the row is not valid CSV ({cells}). Check its quotes.")
        elif len(cells) > len(header):
            reason = f"the row has {len(cells)} cells, the header {len(header)}. Put quotes around its text."
            yield BadItem(place.id, f"{place}: {reason}")
        else:
            yield _from_row({name: typed_cell(name, cell) for name, cell in zip(header, cells, strict=False)}, place)


def _header(line: str, delimiter: str) -> list[str]:
    return [_known(name) for name in next(csv.reader([line], delimiter=delimiter), [])]


def typed_cell(name: str, cell: str) -> Any:
    """Convert a metadata cell to a number or boolean if it is one, and an empty cell to None."""
    if not cell.strip():
        return None
    if name in CONTENT_COLUMNS:
        return cell
    if cell in ("true", "false") or (_NUMBER.fullmatch(cell) and math.isfinite(float(cell))):
        return json.loads(cell)
    return cell


def _read_json(path: Path) -> Iterator[Item | BadItem]:
    """Read a file that holds an array of objects, or one object per line."""
    beginning = _beginning(path)
    if beginning.startswith("["):
        yield from _read_json_array(path)
    elif path.suffix.lower() == ".json" and not _is_object(beginning.partition("\n")[0]):
        raise BadData(
            f"{printable(str(path))}: the file holds neither an array of objects, such as "
            '[{"id": "a", "text": "..."}], nor one object per line. Write it in one of these ways.'
        )
    else:
        yield from _read_jsonl(path)


def _beginning(path: Path) -> str:
    with open(path, "rb") as file:
        return file.read(_BEGINNING).decode("utf-8-sig", "replace").lstrip()


def _is_object(line: str) -> bool:
    """Whether a line is an object; a line longer than a block counts as one if it begins like one."""
    try:
        return len(line) > _BEGINNING // 2 or isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _read_json_array(path: Path) -> Iterator[Item | BadItem]:
    """Read the elements of an array one by one. What follows a syntax error cannot be read."""
    root = _benchmark_root(path)
    number = 0
    # surrogateescape: an invalid byte affects one element only
    with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
        try:
            for number, row in enumerate(array_elements(file), 1):
                yield _from_object(row, _Place(path, number), root)
        except (ValueError, RecursionError) as error:
            place = _Place(path, number + 1)
            if number == 0:
                raise BadData(f"{place}: the file is not a JSON array ({error}). Correct it.") from error
            yield BadItem(
                place.id, f"{place} and all rows after it cannot be read: the file is not JSON ({error}). Correct it."
            )


def _read_jsonl(path: Path) -> Iterator[Item | BadItem]:
    root = _benchmark_root(path)
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.isspace():
                continue
            place = _Place(path, number)
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield BadItem(place.id, f"{place}: the line is not JSON ({error}). Correct it.")
                continue
            yield _from_object(row, place, root)


def _from_object(row: Any, place: _Place, root: Path) -> Item | BadItem:
    """Convert a JSON value to an item."""
    if not isinstance(row, dict):
        return BadItem(place.id, f'{place}: there must be an object such as {{"id": "a", "text": "..."}}.')
    if "did" in row and "id" not in row:
        return _from_row(_from_candidate(row), place, root)
    return _from_row({_known(name): value for name, value in row.items()}, place)


def _from_candidate(row: dict[str, Any]) -> dict[str, Any]:
    """Rename the fields of an M-BEIR candidate."""
    rest = {name: row[name] for name in row.keys() - {"did", "txt", "img_path", "modality", "src_content"}}
    return {"id": row["did"], "text": row.get("txt"), "image": row.get("img_path"), "metadata": rest}


def _benchmark_root(path: Path) -> Path:
    """Return the parent folder that holds `cand_pool`; the folder of the pool if there is none."""
    parents = path.absolute().parents
    return next((folder for folder in parents if (folder / "cand_pool").is_dir()), path.parent)


def _read_parquet(path: Path) -> Iterator[Item | BadItem]:
    number = 0
    try:
        with open(path, "rb") as file:
            table = pq.ParquetFile(file)
            _check_columns(path, [_known(name) for name in table.schema_arrow.names])
            for batch in table.iter_batches(batch_size=64):  # small: rows may hold whole images
                for row in batch.to_pylist():
                    number += 1
                    named = {_known(name): _jsonable(_known(name), value) for name, value in row.items()}
                    yield _from_row(named, _Place(path, number))
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = f"the file is damaged or not Parquet ({' '.join(str(error).split())}). Write it again."
        if number == 0:
            raise BadData(f"{printable(str(path))}: {reason}") from error
        place = _Place(path, number + 1)
        yield BadItem(place.id, f"{place} and all rows after it cannot be read: {reason}")


def _jsonable(name: str, value: Any) -> Any:
    """Convert a cell to a JSON value; None for NaN and for bytes outside the image column."""
    match value:
        case _ if name == "image":
            return value
        case bytes():
            return None
        case float() if not math.isfinite(value):
            return None
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Decimal():
            return float(value)
        case list() | tuple():
            return [_jsonable("", entry) for entry in value]
        case dict():
            return {str(key): _jsonable("", entry) for key, entry in value.items()}
    return value


def _known(name: str) -> str:
    """Normalise the name of a column: " Text" is text."""
    return name.strip().lower() if name.strip().lower() in CONTENT_COLUMNS else name.strip()


def _check_columns(path: Path, columns: list[str]) -> None:
    if not {"text", "caption", "image"} & set(columns):
        found = printable(", ".join(columns))[:200] or "none"
        raise BadData(
            f"{printable(str(path))}: there is no column `text` or `image` (found: {found}). "
            "Name the columns id, text and image, and save the file as UTF-8."
        )


def _from_row(row: dict[str, Any], place: _Place, root: Path | None = None) -> Item | BadItem:
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
                image=_image(image, root or place.file.parent),
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


def _image(value: Any, root: Path) -> Any:
    """Return bytes or a path from an image cell. Data-set libraries write {"bytes", "path"}."""
    if isinstance(value, dict):
        value = value.get("path") if value.get("bytes") is None else value["bytes"]
    if not isinstance(value, str):
        return value
    if not value.strip() or re.match(r"https?://", value):
        return value.strip() or None
    return os.path.join(root, value.strip())


def _checked(item: Item) -> Item:
    """Return the item; raise BadItem if it has neither text nor an image."""
    _ = item.modality
    return item


_TABLES = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".json": _read_json,
    ".jsonl": _read_json,
    ".ndjson": _read_json,
    ".parquet": _read_parquet,
}
_COUNTS = {
    ".csv": _count_csv,
    ".tsv": _count_csv,
    ".json": _count_json,
    ".jsonl": _count_json,
    ".ndjson": _count_json,
    ".parquet": _count_parquet,
}
