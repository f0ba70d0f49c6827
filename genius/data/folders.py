"""Items in folders of images and texts, on this machine or in an object store.

`folder_entries` lists a folder; `read_entry` reads one item of it, also in another process.
"""

import json
import os
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from genius.data.images import SUFFIXES
from genius.data.items import Item, printable
from genius.data.locations import files_below, open_stream
from genius.data.rows import checked
from genius.errors import BadItem

# Images of unsupported formats become items too, so that they are reported instead of ignored.
IMAGES = SUFFIXES | {".svg", ".heic", ".heif"}
"""Suffixes of files that are images."""


class Entry(NamedTuple):
    """An item of a folder.

    Attributes:
        name: Path in the folder, with slashes: the id of the item.
        side: Names of the .txt and .json files beside it, in an object store; None where they are looked for.
        problem: Why there is no item.
    """

    name: str
    side: list[str] | None = None
    problem: str | None = None


def folder_entries(root: Path | str) -> Iterator[Entry]:
    """List images and texts below a folder or URL, sorted by name. Hidden files and folders are ignored."""
    return _remote_entries(root) if isinstance(root, str) else _local_entries(root)


def read_entry(root: Path | str, entry: Entry) -> Item | BadItem:
    """Read the texts of an item. Its image is not opened."""
    if entry.problem is not None:
        return BadItem(entry.name, entry.problem)
    try:
        if isinstance(root, str):
            return _remote_item(root, entry)
        path = root / entry.name
        if path.suffix.lower() in IMAGES:
            return image_file(path, entry.name)
        return checked(Item(entry.name, text=_text(path.name, _content(path))))
    except BadItem as bad:
        return BadItem(printable(entry.name), bad.reason)


def image_file(path: Path, id: str) -> Item | BadItem:
    """Return an image with the text and metadata of its side files."""
    try:
        side, text = _side_file(path, ".json"), _side_file(path, ".txt")
        return _image_item(id, str(path), side.name, _content(side), text.name, _content(text))
    except BadItem as error:
        return BadItem(printable(id), error.reason)


# On this machine


def _local_entries(root: Path) -> Iterator[Entry]:
    unreadable: list[OSError] = []
    for folder, subfolders, names in os.walk(root, onerror=unreadable.append):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in _items(sorted(names)):
            yield Entry(Path(folder, name).relative_to(root).as_posix())
    for error in unreadable:
        reason = f"the folder cannot be read ({error.strerror}). Check its permissions."
        yield Entry(printable(str(error.filename)), problem=reason)


def _items(names: list[str]) -> Iterator[str]:
    """The names of one folder that are items: images, and texts without an image."""
    visible = [PurePosixPath(name) for name in names if not name.startswith(".")]
    with_image = {name.stem for name in visible if name.suffix.lower() in IMAGES}
    for name in visible:
        if name.suffix.lower() in IMAGES or (name.suffix.lower() == ".txt" and name.stem not in with_image):
            yield str(name)


def _side_file(path: Path, suffix: str) -> Path:
    """Return `cat.txt` for `cat.jpg`, or `CAT.TXT` for `CAT.JPG`."""
    upper = path.with_suffix(suffix.upper())
    return upper if upper.is_file() else path.with_suffix(suffix)


def _content(path: Path) -> bytes | OSError | None:
    try:
        return path.read_bytes() if path.is_file() else None
    except OSError as error:
        return error


# In an object store


def _remote_entries(url: str) -> Iterator[Entry]:
    shown = (name for name in files_below(url) if not any(part.startswith(".") for part in name.split("/")))
    for folder, names in groupby(shown, lambda name: name.rpartition("/")[0]):
        here = [PurePosixPath(name).name for name in names]
        side: dict[str, list[str]] = {}
        for name in here:
            if PurePosixPath(name).suffix.lower() in (".txt", ".json"):
                side.setdefault(PurePosixPath(name).stem, []).append(name)
        for name in _items(here):
            yield Entry(f"{folder}/{name}".lstrip("/"), side.get(PurePosixPath(name).stem, []))


def _remote_item(root: str, entry: Entry) -> Item:
    url = f"{root.rstrip('/')}/{entry.name}"
    if PurePosixPath(entry.name).suffix.lower() not in IMAGES:
        return checked(Item(entry.name, text=_text(PurePosixPath(entry.name).name, _remote_content(url))))
    found = {".json": "", ".txt": ""} | {PurePosixPath(name).suffix.lower(): name for name in entry.side or []}
    contents = [_remote_content(f"{url.rpartition('/')[0]}/{name}") if name else None for name in found.values()]
    return _image_item(entry.name, url, found[".json"], contents[0], found[".txt"], contents[1])


def _remote_content(url: str) -> bytes | OSError:
    try:
        with open_stream(url) as file:
            return file.read()
    except OSError as error:
        return error


# Side files


def _image_item(
    id: str,
    image: str | bytes,
    json_name: str,
    json_content: bytes | OSError | None,
    text_name: str,
    text_content: bytes | OSError | None,
) -> Item:
    metadata = parse_metadata(json_name, json_content)
    text = metadata.pop("text", None)
    if text is None:
        text = metadata.pop("caption", None)
    if text is None:
        text = _text(text_name, text_content)
    return Item(id, text=text, image=image, metadata=metadata)


def _text(name: str, content: bytes | OSError | None) -> str | None:
    """The text of a side file. Raises BadItem."""
    try:
        if isinstance(content, OSError):
            raise content
        return None if content is None else content.decode("utf-8-sig").replace("\r\n", "\n").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadItem(name, f"the text file {name} cannot be read ({error}). Save it as UTF-8.") from error


def parse_metadata(name: str, content: bytes | OSError | None) -> dict[str, Any]:
    """The object in a side file. Raises BadItem."""
    try:
        if isinstance(content, OSError):
            raise content
        found = {} if content is None else json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        raise BadItem(name, f"the side file {name} is not JSON ({error}). Correct or remove it.") from error
    if not isinstance(found, dict):
        raise BadItem(name, f'the side file {name} must hold an object such as {{"text": "..."}}.')
    return found
