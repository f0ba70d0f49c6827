"""Pairs of a query and a relevant item, from a table of captions, judgements or clicks."""

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from genius.data.items import Query, printable
from genius.data.tables import SUFFIXES, Place, image_cell, read_rows
from genius.errors import BadData, BadItem

NAMES: dict[str, tuple[tuple[str, ...], ...]] = {
    "query": (("query", "query_text", "query_txt"), ("caption",), ("text",)),
    "query_image": (("query_image", "query_img_path"),),
    "item": (("item", "item_id", "did"), ("image", "file", "file_name", "filename", "path"), ("id",)),
    "clicks": (("clicks", "count"),),
}
"""Names of the columns of each role. The first group with a column in the table counts."""


@dataclass(frozen=True)
class Pair:
    """A query and an item that is relevant to it.

    Attributes:
        query: The query. Its instruction and target are not used.
        item: Item id.
        clicks: How often the item was chosen.
        place: Row of the pair, for messages.
    """

    query: Query
    item: str
    clicks: float = 1
    place: str = ""


class PairTable:
    """The pairs of a CSV, TSV, JSON, JSONL or Parquet table. Iterating yields each Pair, or a BadItem with its row.

    Args:
        path: The table. Image paths are relative to it.
        columns: Names of columns by role (query, query_image, item, clicks), by default one of `NAMES`.

    Attributes:
        unused: Columns without a role, known after iterating.

    Raises:
        BadData: The table cannot be read, or has no column for items or queries.
    """

    def __init__(self, path: str | os.PathLike[str], columns: Mapping[str, str] | None = None) -> None:
        self.path = Path(path)
        self.unused: list[str] = []
        if not self.path.is_file() or self.path.suffix.lower() not in SUFFIXES:
            raise BadData(
                f"{printable(str(path))} is not a table. Give a file that ends in {', '.join(sorted(SUFFIXES))}."
            )
        unknown = next((role for role in columns or {} if role not in NAMES), None)
        if unknown is not None:
            raise BadData(f"There is no role {unknown!r} of a column. Roles are {', '.join(NAMES)}.")
        self._names = NAMES | {role: ((name.strip().lower(),),) for role, name in (columns or {}).items()}
        self._roles: dict[tuple[str, ...], dict[str, str]] = {}

    def __iter__(self) -> Iterator[Pair | BadItem]:
        known = frozenset(name for groups in self._names.values() for group in groups for name in group)
        for row in read_rows(self.path, known, self._check):
            yield row if isinstance(row, BadItem) else self._pair(*row)

    def _check(self, header: list[str]) -> None:
        self._find_roles(tuple(header))

    def _find_roles(self, header: tuple[str, ...]) -> dict[str, str]:
        """Return the column of each role."""
        if header not in self._roles:
            found = {role: self._column(role, header) for role in self._names}
            roles = {role: name for role, name in found.items() if name is not None}
            for role, other in (("item", "item"), ("query", "query_image")):
                if not {role, other} & roles.keys():
                    raise BadData(
                        f"{printable(self.path.name)}: there is no column `{role}` "
                        f"(found: {printable(', '.join(header))[:200] or 'none'}). Say which one it is with "
                        f"--columns {role}=NAME."
                    )
            self._roles[header] = roles
            self.unused += [name for name in header if name not in (*roles.values(), *self.unused)]
        return self._roles[header]

    def _column(self, role: str, header: tuple[str, ...]) -> str | None:
        for group in self._names[role]:
            match [name for name in header if name in group]:
                case [name]:
                    return name
                case [name, other, *_]:
                    raise BadData(
                        f"{printable(self.path.name)}: both {name} and {other} could be the column of the {role}. "
                        f"Say which one it is with --columns {role}=NAME."
                    )
        return None

    def _pair(self, place: Place, row: dict[str, Any]) -> Pair | BadItem:
        try:
            roles = self._find_roles(tuple(row))
        except BadData as error:  # of an object in a JSON file, which has no header
            return BadItem(str(place), str(error))
        value = {role: row.get(roles.get(role, "")) for role in self._names}
        try:
            text, item = (None if value[role] is None else str(value[role]).strip() for role in ("query", "item"))
            if not item:
                raise BadItem("item", "the item id is missing. Add it.")
            query = Query(text, image_cell(value["query_image"], self.path.parent))
            return Pair(query, item, _clicks(value["clicks"]), str(place))
        except BadItem as error:
            return BadItem(str(place), error.reason)


def _clicks(value: Any) -> float:
    """Return a number of clicks; a row without one is one click."""
    if value is None:
        return 1
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise BadItem("clicks", f"the number of clicks is {str(value)[:40]!r}. Write a number such as 3.")
    return number
