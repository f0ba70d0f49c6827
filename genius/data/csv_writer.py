"""Write items as CSV, so that `read_items` reads the same items."""

import csv
import io
import json
from collections.abc import Sequence
from typing import IO, Any

from genius.data.rows import CONTENT_COLUMNS
from genius.data.tables import typed_cell


class CsvWriter:
    """A table with the columns id, text and image, one for each metadata field, and metadata.

    A metadata value stands in the column of its field if `read_items` reads it there as it is. All others, such as
    lists, and texts that look like numbers, stand in the column `metadata` as one JSON object.

    Args:
        file: A text file, open for writing with `newline=""`.
        fields: Metadata fields that get a column.
        first: Names of columns that stand before the others.
    """

    def __init__(self, file: IO[str], fields: Sequence[str], first: Sequence[str] = ()) -> None:
        reserved = {*CONTENT_COLUMNS, *first}
        self._fields = [name for name in dict.fromkeys(fields) if name not in reserved and _is_column(name)]
        self._file = file
        self._write([*first, "id", "text", "image", *self._fields, "metadata"])

    def write(
        self, id: str, text: str | None, image: str | None, metadata: dict[str, Any], first: Sequence[object] = ()
    ) -> None:
        """Write an item. first: the values of the first columns."""
        cells = {name: _cell(metadata[name]) for name in self._fields if name in metadata}
        own = {name for name, cell in cells.items() if _reads_as(name, cell, metadata[name])}
        rest = {name: value for name, value in metadata.items() if name not in own}
        shown = json.dumps(rest, ensure_ascii=False) if rest else ""
        columns = [cells[name] if name in own else "" for name in self._fields]
        self._write([*first, id, text, image, *columns, shown])

    def _write(self, cells: Sequence[object]) -> None:
        row = io.StringIO(newline="")
        csv.writer(row, lineterminator="\r\n").writerow(cells)  # with another end, csv would not quote a lone \r
        self._file.write(row.getvalue().removesuffix("\r\n") + "\n")


def _is_column(name: str) -> bool:
    """Whether a header with this name is read as this name."""
    return name == name.strip() and bool(name) and name.isprintable() and name.lower() not in CONTENT_COLUMNS


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _reads_as(name: str, cell: str, value: Any) -> bool:
    read = typed_cell(name, cell, CONTENT_COLUMNS)
    return type(read) is type(value) and read == value
