"""WebDataset shards: tar files in which the files of an item follow each other and share the name before the dot."""

import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

from genius.data.folders import IMAGES, parse_metadata
from genius.data.items import Item, printable
from genius.data.locations import file_name, open_stream
from genius.data.rows import checked
from genius.errors import BadData, BadItem

_SUFFIXES = (".tar", ".tar.gz", ".tgz")
_TEXTS = (".txt", ".text", ".caption")
_LABELS = (".cls", ".index")  # whole numbers


def is_tar(name: str) -> bool:
    """Whether a file is a shard, by its name."""
    return name.lower().endswith(_SUFFIXES)


def read_tar(path: str) -> Iterator[Item | BadItem]:
    """Read the items of a shard, at a path or URL, with their images. The id is SHARD/NAME.

    An image, a text (.txt) and an object (.json) that may have "text" or "caption", and metadata; .cls is a label.
    Files of other types are ignored.

    Raises:
        BadData: The file cannot be opened, or is not a tar.
    """
    shard, began = file_name(path), False
    try:
        with open_stream(path) as stream, tarfile.open(fileobj=stream, mode="r|*") as tar:
            began = True
            key, files = None, dict[str, bytes]()
            for member in tar:
                name = PurePosixPath(member.name)
                stem, dot, suffix = name.name.partition(".")
                if not member.isfile() or not stem or not dot:
                    continue
                at = str(name.with_name(stem))
                if at != key:
                    if key is not None:
                        yield from _item(f"{shard}/{key}", files)
                    key, files = at, {}
                opened = tar.extractfile(member)
                assert opened is not None
                files[f".{suffix.lower()}"] = opened.read()
            if key is not None:
                yield from _item(f"{shard}/{key}", files)
    except (OSError, EOFError, tarfile.TarError, ValueError) as error:
        reason = f"the file is damaged or not a tar ({error}). Write it again."
        if not began:
            raise BadData(f"{printable(path)}: {reason}") from error
        yield BadItem(printable(shard), f"what follows the last good item cannot be read: {reason}")


def _item(id: str, files: dict[str, bytes]) -> Iterator[Item | BadItem]:
    """The item of some files, by suffix; none if all are of other types."""
    images = [content for suffix, content in files.items() if f".{suffix.rpartition('.')[2]}" in IMAGES]
    texts = [files[suffix] for suffix in _TEXTS if suffix in files]
    if not images and not texts and ".json" not in files:
        return
    try:
        metadata: dict[str, Any] = parse_metadata(f"{id}.json", files.get(".json"))
        for suffix in _LABELS:
            with suppress(ValueError):
                metadata.setdefault(suffix[1:], int(files[suffix])) if suffix in files else None
        text = metadata.pop("text", None)
        if text is None:
            text = metadata.pop("caption", None)
        if text is None and texts:
            text = texts[0].decode("utf-8-sig").strip()
        yield checked(Item(id, text, images[0] if images else None, metadata))
    except UnicodeDecodeError as error:
        yield BadItem(printable(id), f"the text is not UTF-8 ({error}). Save it as UTF-8.")
    except BadItem as error:
        yield BadItem(printable(id), error.reason)
