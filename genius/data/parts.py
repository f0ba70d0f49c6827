"""Parts: pieces of a source that can be read on their own, in any process, and give the items of `read_items`.

A part is plain JSON, so that a plan of them can be kept on disk.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from genius.data.columnar import count_lance, count_parquet, is_lance, lance_version, read_lance, read_parquet
from genius.data.folders import IMAGES, Entry, folder_entries, read_entry
from genius.data.items import Item, printable
from genius.data.locations import absolute, file_name, is_url
from genius.data.readers import read_items
from genius.data.webdataset import is_tar, read_tar
from genius.errors import BadData, BadItem

T = TypeVar("T")


@dataclass(frozen=True)
class Part:
    """A piece of a source.

    Attributes:
        kind: "files" of a folder, "rows" of a table that cannot be read from the middle, ranges of "parquet" and
            "lance" rows, or a whole "tar".
        source: Absolute path or URL.
        count: Number of items; None if unknown.
        start: Number of the first row of a range.
        version: Version of a Lance dataset.
        entries: The files or rows themselves.
    """

    kind: str
    source: str
    count: int | None = None
    start: int = 0
    version: int | None = None
    entries: tuple[Any, ...] = ()

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Part":
        """The inverse of `dataclasses.asdict`, also after JSON."""
        return cls(**{**values, "entries": tuple(values["entries"])})


def split_source(source: str | os.PathLike[str], size: int) -> Iterator[Part]:
    """Split a source into parts of at most `size` items. A tar is one part. The order is that of `read_items`.

    Raises:
        BadData: There are no items, or the format is not supported. Raised before the first part.
    """
    where = absolute(source)
    name, local = file_name(where), not is_url(where)
    suffix = Path(name).suffix.lower()
    if local and not os.path.exists(where):
        raise BadData(f"{printable(where)}: there is no such file or folder. Check the path.")
    if suffix == ".lance" or (local and is_lance(Path(where))):
        version = lance_version(where)
        return _ranges("lance", where, count_lance(where), size, version)
    if is_tar(name):
        return iter([Part("tar", where)])
    if suffix == ".parquet":
        next(read_items(where))  # raises BadData if it cannot be read
        return _ranges("parquet", where, count_parquet(where), size)
    if os.path.isdir(where) or (not local and suffix not in IMAGES and "." not in name):
        next(read_items(where))
        entries = folder_entries(Path(where) if local else where)
        return (Part("files", where, len(some), entries=tuple(some)) for some in _blocks(entries, size))
    rows = (_to_row(item) for item in read_items(where))
    return (Part("rows", where, len(some), entries=tuple(some)) for some in _blocks(rows, size))


def read_part(part: Part) -> Iterator[Item | BadItem]:
    """Read the items of a part."""
    match part.kind:
        case "files":
            root = part.source if is_url(part.source) else Path(part.source)
            return (read_entry(root, Entry(*entry)) for entry in part.entries)
        case "rows":
            return map(_from_row, part.entries)
        case "parquet":
            return read_parquet(part.source, part.start, part.count)
        case "lance":
            return read_lance(part.source, part.start, part.count, part.version)
        case "tar":
            return read_tar(part.source)
    raise ValueError(part.kind)


def _ranges(kind: str, source: str, rows: int, size: int, version: int | None = None) -> Iterator[Part]:
    if rows == 0:
        raise BadData(f"{printable(source)}: there are no rows in it.")
    return (Part(kind, source, min(size, rows - at), at, version) for at in range(0, rows, size))


def _blocks(entries: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(entries)
    while some := list(islice(rest, size)):
        yield some


def _to_row(item: Item | BadItem) -> list[Any]:
    """An item of a CSV or JSON file. Its image is a path or URL."""
    return [item.id, item.reason] if isinstance(item, BadItem) else [item.id, item.text, item.image, item.metadata]


def _from_row(row: list[Any]) -> Item | BadItem:
    return BadItem(*row) if len(row) == 2 else Item(*row)
