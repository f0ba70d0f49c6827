"""Read items from image folders, CSV, JSON, JSONL and Parquet tables, M-BEIR pools, WebDataset tars and Lance datasets.

Reading is lazy. A row that cannot be read gives a BadItem and does not stop the others. Images are not opened.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from genius.data import tables
from genius.data.columnar import count_lance, count_parquet, is_lance, read_lance, read_parquet
from genius.data.folders import IMAGES, folder_entries, image_file, read_entry
from genius.data.items import Item, printable
from genius.data.locations import file_name, is_folder, is_url, open_stream, parent
from genius.data.rows import CONTENT_COLUMNS, check_columns, item_from_row
from genius.data.webdataset import is_tar, read_tar
from genius.errors import BadData, BadItem

UNDERSTOOD = (
    "a folder of images (with captions in .txt or .json files of the same name) or of .txt files, a single image, "
    "a table with the columns id, text, image (.csv, .tsv, .json, .jsonl, .parquet, or a Lance dataset), a WebDataset "
    "shard (.tar), or an M-BEIR candidate pool (.jsonl)"
)
"""The sources of `read_items`, for error messages."""


def read_items(path: str | os.PathLike[str]) -> Iterator[Item | BadItem]:
    """Yield the items at `path`. An item that cannot be read is a BadItem with its file and row.

    - A folder: all images below it. The id is the path in the folder. `name.txt` beside `name.jpg` is its text;
      `name.json` may have "text" (or "caption") and metadata. A .txt file without an image is a text item.
    - A table: columns (or keys) `id`, `text` (or `caption`) and `image`; all others are metadata. Image paths are
      relative to the table. Parquet files may have images as bytes. A row without id gets one from its row number.
      A JSON file holds an array of objects, or one object per line.
    - A WebDataset shard: files of a tar with the same name before the first dot are one item: an image, a text (.txt),
      and a .json like that of a folder. The id is SHARD/NAME.
    - A Lance dataset: columns as in a table. Vectors and other binary columns are ignored.
    - An M-BEIR candidate pool: `did`, `txt`, `img_path`, the latter relative to the folder that holds `cand_pool`.

    All of these can be in an object store: s3://bucket/photos. Only the paths of images there are in the items.

    Raises:
        BadData: There are no items at the path, or its format is not supported. Raised before the first item.
    """
    location = os.fspath(path)
    items = _open_url(location) if is_url(location) else _open_path(Path(path))
    first = next(items, None)
    if first is None:
        raise BadData(f"{printable(location)}: there are no items in it. Give {UNDERSTOOD}.")
    return chain([first], items)


def _open_path(path: Path) -> Iterator[Item | BadItem]:
    suffix = path.suffix.lower()
    if not path.exists():
        raise BadData(f"{printable(str(path))}: there is no such file or folder. Check the path.")
    if is_lance(path):
        return read_lance(str(path))
    if path.is_dir():
        return (item for entry in folder_entries(path) for item in [read_entry(path, entry)])
    if is_tar(path.name):
        return read_tar(str(path))
    if suffix == ".parquet":
        return read_parquet(str(path))
    if suffix in IMAGES:
        return iter([image_file(path, path.name)])
    if suffix in tables.SUFFIXES:
        return _read_table(path)
    raise BadData(f"{printable(str(path))}: the file format is not supported. Give {UNDERSTOOD}.")


def _open_url(url: str) -> Iterator[Item | BadItem]:
    name = file_name(url)
    suffix = Path(name).suffix.lower()
    if suffix == ".lance":
        return read_lance(url)
    if is_tar(name):
        return read_tar(url)
    if suffix == ".parquet":
        return read_parquet(url)
    if suffix in IMAGES:
        return iter([Item(name, image=url)])
    if suffix in tables.SUFFIXES:
        return _read_remote_table(url)
    try:
        found = is_folder(url)
    except OSError as error:
        raise BadData(f"{printable(url)} cannot be read ({error}). Check the URL and the credentials.") from error
    if not found:
        raise BadData(f"{printable(url)}: there is no such folder. Check the URL. Give {UNDERSTOOD}.")
    return (item for entry in folder_entries(url) for item in [read_entry(url, entry)])


def _read_remote_table(url: str) -> Iterator[Item | BadItem]:
    """Read a copy of a CSV or JSON file. Its images stay where they are."""
    with tempfile.TemporaryDirectory(prefix="genius-") as folder:
        copy = Path(folder, file_name(url))
        try:
            with open_stream(url) as source, open(copy, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        except OSError as error:
            raise BadData(f"{printable(url)} cannot be read ({error}). Check the URL and the credentials.") from error
        for item in _read_table(copy):
            if isinstance(item, Item) and isinstance(item.image, str) and item.image.startswith(folder + os.sep):
                item = replace(item, image=f"{parent(url)}/{item.image.removeprefix(folder + os.sep)}")
            yield item


def count_items(path: str | os.PathLike[str]) -> int | None:
    """Count what `read_items` yields without reading the items; None if that takes as long as reading them.

    A file that changes meanwhile, or is damaged, can have more or fewer items.
    """
    location = os.fspath(path)
    suffix = Path(location).suffix.lower()
    try:
        if suffix == ".lance":
            return count_lance(location)
        if suffix == ".parquet":
            return count_parquet(location)
        if is_url(location):
            return None
        if os.path.isdir(location):
            return count_lance(location) if is_lance(Path(location)) else sum(1 for _ in folder_entries(Path(location)))
        if suffix in tables.SUFFIXES:
            return tables.count_rows(Path(location), CONTENT_COLUMNS)
    except (OSError, ValueError, RecursionError, pa.ArrowException):  # reported by `read_items`
        return None
    return 1 if suffix in IMAGES else None


# Tables


def _read_table(path: Path) -> Iterator[Item | BadItem]:
    is_json = path.suffix.lower() in tables.JSON_SUFFIXES
    root = _benchmark_root(path)
    for row in tables.read_rows(path, CONTENT_COLUMNS, partial(check_columns, path)):
        if isinstance(row, BadItem):
            yield row
            continue
        place, values = row
        if is_json and "did" in values and "id" not in values:
            yield item_from_row(_from_candidate(values), place, root)
        else:
            yield item_from_row(values, place)


def _from_candidate(row: dict[str, Any]) -> dict[str, Any]:
    """Rename the fields of an M-BEIR candidate."""
    rest = {name: row[name] for name in row.keys() - {"did", "txt", "img_path", "modality", "src_content"}}
    return {"id": row["did"], "text": row.get("txt"), "image": row.get("img_path"), "metadata": rest}


def _benchmark_root(path: Path) -> Path:
    """Return the parent folder that holds `cand_pool`; the folder of the pool if there is none."""
    parents = path.absolute().parents
    return next((folder for folder in parents if (folder / "cand_pool").is_dir()), path.parent)
