"""Read the rows of a CSV, TSV, JSON, JSONL or Parquet table.

Reading is lazy. A row that cannot be read gives a BadItem and does not stop the others.
"""

import csv
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from genius.data.items import printable
from genius.data.json_array import array_elements
from genius.data.locations import file_name, is_url, open_file
from genius.errors import BadData, BadItem

Columns = AbstractSet[str]
"""Columns with a meaning, in lower case. Capitals and white space in a header do not matter, and cells stay strings."""
CheckColumns = Callable[[list[str]], None]
"""Raises BadData if a header lacks columns."""

CSV_SUFFIXES = frozenset((".csv", ".tsv"))
JSON_SUFFIXES = frozenset((".json", ".jsonl", ".ndjson"))
SUFFIXES = CSV_SUFFIXES | JSON_SUFFIXES | {".parquet"}
"""Suffixes of the tables that can be read."""

_BEGINNING = 1 << 16  # bytes of a JSON file that tell an array from lines
_DELIMITERS = ",;\t|"
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?")


@dataclass(frozen=True)
class Place:
    """A row of a file."""

    file: Path
    number: int

    def __str__(self) -> str:
        return f"{printable(self.file.name)}, row {self.number}"

    @property
    def id(self) -> str:
        """Short name of the row, the id of an item without one."""
        return f"{printable(self.file.name)}#{self.number}"


Row = tuple[Place, dict[str, Any]]


def read_rows(path: Path, columns: Columns, check: CheckColumns) -> Iterator[Row | BadItem]:
    """Yield the rows of a table as values by name. A row that cannot be read is a BadItem with its place.

    Args:
        path: A file with one of `SUFFIXES`.
        columns: Columns with a meaning. Cells of other columns of a CSV file become numbers and booleans if they
            are some.
        check: Called with the header of a CSV or Parquet file. JSON has none.

    Raises:
        BadData: The file as a whole cannot be read. Raised before the first row.
    """
    suffix = path.suffix.lower()
    if suffix in JSON_SUFFIXES:
        return _read_json(path, columns)
    return (read_parquet if suffix == ".parquet" else _read_csv)(path, columns, check)


def count_rows(path: Path, columns: Columns) -> int:
    """Count the rows of a table."""
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return int(pq.read_metadata(path).num_rows)
    return _count_json(path) if suffix in JSON_SUFFIXES else sum(1 for _ in _csv_rows(path, columns)) - 1


def typed_cell(name: str, cell: str, columns: Columns) -> Any:
    """Convert a cell to a number or boolean if it is one, and an empty cell to None. `columns` stay strings."""
    if not cell.strip():
        return None
    if name in columns:
        return cell
    if cell in ("true", "false") or (_NUMBER.fullmatch(cell) and math.isfinite(float(cell))):
        return json.loads(cell)
    return cell


def image_cell(value: Any, root: str | Path) -> Any:
    """Return bytes or a path from an image cell. Data-set libraries write {"bytes", "path"}."""
    if isinstance(value, dict):
        value = value.get("path") if value.get("bytes") is None else value["bytes"]
    if not isinstance(value, str):
        return value
    if not value.strip() or re.match(r"https?://", value) or is_url(value.strip()):
        return value.strip() or None
    return os.path.join(root, value.strip())


def known_name(name: str, columns: Columns) -> str:
    """Normalise the name of a column: " Text" is text."""
    return name.strip().lower() if name.strip().lower() in columns else name.strip()


# CSV


def _csv_rows(path: Path, columns: Columns) -> Iterator[tuple[int, list[str] | csv.Error]]:
    """Yield the header and the rows of a CSV file that are not empty, numbered as in a spreadsheet from 1 on."""
    csv.field_size_limit(max(csv.field_size_limit(), 1 << 24))  # the default is too small for long texts
    # surrogateescape: an invalid byte affects one row only
    with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        header_line = file.readline()
        delimiter = max(_DELIMITERS, key=lambda mark: len(columns & set(_header(header_line, mark, columns))))
        yield 1, _header(header_line, delimiter, columns)
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


def _read_csv(path: Path, columns: Columns, check: CheckColumns) -> Iterator[Row | BadItem]:
    rows = _csv_rows(path, columns)
    header = next(rows)[1]
    assert isinstance(header, list)
    check(header)
    for number, cells in rows:
        place = Place(path, number)
        if isinstance(cells, csv.Error):
            yield BadItem(place.id, f"{place}: the row is not valid CSV ({cells}). Check its quotes.")
        elif len(cells) > len(header):
            reason = f"the row has {len(cells)} cells, the header {len(header)}. Put quotes around its text."
            yield BadItem(place.id, f"{place}: {reason}")
        else:
            yield place, {name: typed_cell(name, cell, columns) for name, cell in zip(header, cells, strict=False)}


def _header(line: str, delimiter: str, columns: Columns) -> list[str]:
    return [known_name(name, columns) for name in next(csv.reader([line], delimiter=delimiter), [])]


# JSON


def _count_json(path: Path) -> int:
    if _beginning(path).startswith("["):
        with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
            return sum(1 for _ in array_elements(file))
    with open(path, "rb") as lines:
        return sum(1 for line in lines if not line.isspace())


def _read_json(path: Path, columns: Columns) -> Iterator[Row | BadItem]:
    """Read a file that holds an array of objects, or one object per line."""
    beginning = _beginning(path)
    if beginning.startswith("["):
        yield from _read_json_array(path, columns)
    elif path.suffix.lower() == ".json" and not _is_object(beginning.partition("\n")[0]):
        raise BadData(
            f"{printable(str(path))}: the file holds neither an array of objects, such as "
            '[{"id": "a", "text": "..."}], nor one object per line. Write it in one of these ways.'
        )
    else:
        yield from _read_jsonl(path, columns)


def _beginning(path: Path) -> str:
    with open(path, "rb") as file:
        return file.read(_BEGINNING).decode("utf-8-sig", "replace").lstrip()


def _is_object(line: str) -> bool:
    """Whether a line is an object; a line longer than a block counts as one if it begins like one."""
    try:
        return len(line) > _BEGINNING // 2 or isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _read_json_array(path: Path, columns: Columns) -> Iterator[Row | BadItem]:
    """Read the elements of an array one by one. What follows a syntax error cannot be read."""
    number = 0
    # surrogateescape: an invalid byte affects one element only
    with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
        try:
            for number, row in enumerate(array_elements(file), 1):
                yield _from_object(row, Place(path, number), columns)
        except (ValueError, RecursionError) as error:
            place = Place(path, number + 1)
            if number == 0:
                raise BadData(f"{place}: the file is not a JSON array ({error}). Correct it.") from error
            yield BadItem(
                place.id, f"{place} and all rows after it cannot be read: the file is not JSON ({error}). Correct it."
            )


def _read_jsonl(path: Path, columns: Columns) -> Iterator[Row | BadItem]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.isspace():
                continue
            place = Place(path, number)
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield BadItem(place.id, f"{place}: the line is not JSON ({error}). Correct it.")
                continue
            yield _from_object(row, place, columns)


def _from_object(row: Any, place: Place, columns: Columns) -> Row | BadItem:
    """Convert a JSON value to a row."""
    if not isinstance(row, dict):
        return BadItem(place.id, f'{place}: there must be an object such as {{"id": "a", "text": "..."}}.')
    return place, {known_name(name, columns): value for name, value in row.items()}


# Parquet


def read_parquet(
    path: str | Path, columns: Columns, check: CheckColumns, start: int = 0, count: int | None = None
) -> Iterator[Row | BadItem]:
    """Read rows of a Parquet file, at a path or URL. start, count: the range of rows; groups before it are skipped."""
    number, file_path = start, Path(file_name(path)) if is_url(path) else Path(path)
    try:
        with open_file(path) as file:
            table = pq.ParquetFile(file)
            names = {name: known_name(name, columns) for name in table.schema_arrow.names}
            check(list(names.values()))
            stop = table.metadata.num_rows if count is None else min(start + count, table.metadata.num_rows)
            groups, skip = _row_groups(table, start, stop)
            for batch in table.iter_batches(batch_size=64, row_groups=groups):  # small: rows may hold whole images
                for row in batch.slice(min(skip, len(batch)), max(0, stop - number)).to_pylist():
                    number += 1
                    yield Place(file_path, number), cells(row, names, columns)
                skip = max(0, skip - len(batch))
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = f"the file is damaged or not Parquet ({' '.join(str(error).split())}). Write it again."
        if number == 0:
            raise BadData(f"{printable(str(path))}: {reason}") from error
        place = Place(file_path, number + 1)
        yield BadItem(place.id, f"{place} and all rows after it cannot be read: {reason}")


def _row_groups(table: pq.ParquetFile, start: int, stop: int) -> tuple[list[int], int]:
    """The row groups that hold a range of rows, and the number of rows before it in the first of them."""
    groups: list[int] = []
    first = skip = 0
    for group in range(table.num_row_groups):
        rows = table.metadata.row_group(group).num_rows
        if first < stop and first + rows > start:
            if not groups:
                skip = start - first
            groups.append(group)
        first += rows
    return groups, skip


def cells(row: dict[str, Any], names: dict[str, str], columns: Columns) -> dict[str, Any]:
    """Values of a row by normalised name. Images stay as they are; other values become JSON values."""
    return {known: _cell(known, row[name], columns) for name, known in names.items()}


def _cell(name: str, value: Any, columns: Columns) -> Any:
    """Return images as they are, and other values as JSON values."""
    return value if name in columns and name.endswith("image") else jsonable(value)


def jsonable(value: Any) -> Any:
    """Convert a value to a JSON value; None for NaN and for bytes."""
    match value:
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
            return [jsonable(entry) for entry in value]
        case dict():
            return {str(key): jsonable(entry) for key, entry in value.items()}
    return value
