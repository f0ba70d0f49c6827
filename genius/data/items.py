"""Items, queries, and their modalities."""

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, cast, overload

from PIL import Image

from genius.errors import BadItem

ImageSource = str | os.PathLike[str] | bytes | Image.Image
"""An image: the path of a file, the bytes of a file, or a PIL image."""


class Modality(IntEnum):
    """Content of an item or query: image, text, or both. The value is the first code of an item."""

    IMAGE = 0
    TEXT = 1
    IMAGE_TEXT = 2

    @property
    def label(self) -> str:
        """M-BEIR's name: "image", "text" or "image,text"."""
        return _LABELS[self]

    @overload
    @classmethod
    def parse(cls, value: "Modality | str") -> "Modality": ...

    @overload
    @classmethod
    def parse(cls, value: None) -> None: ...

    @classmethod
    def parse(cls, value: "Modality | str | None") -> "Modality | None":
        """Parse a name such as "image", "text", "image,text", "text,image" or "pair". None stays None.

        Raises:
            BadItem: The value is not the name of a modality.
        """
        if value is None or isinstance(value, Modality):
            return value
        found = _NAMES.get("".join(value.split()).lower()) if isinstance(value, str) else None
        if found is None:
            raise BadItem("modality", f'{value!r} is not a modality. Use "image", "text" or "image,text".')
        return found


_LABELS = {Modality.IMAGE: "image", Modality.TEXT: "text", Modality.IMAGE_TEXT: "image,text"}
_NAMES = {
    **dict.fromkeys(("image", "images", "picture", "pictures"), Modality.IMAGE),
    **dict.fromkeys(("text", "texts"), Modality.TEXT),
    **dict.fromkeys(("image,text", "text,image", "pair", "pairs"), Modality.IMAGE_TEXT),
}
_INSTRUCTIONS = {
    Modality.IMAGE: "Find a picture.",
    Modality.TEXT: "Find a text.",
    Modality.IMAGE_TEXT: "Find a picture with its text.",
    None: "Find a match.",
}


def clean_text(text: str | None) -> str:
    """Normalise a text for the text encoders by UniIR's rules.

    Removes carriage returns and the white space and double quotes around the text, capitalises the first letter, and
    adds a full stop if the text does not end in `.`, `?` or `!`. None and blank texts give "".
    """
    text = (text or "").replace("\r", "").strip()
    while text and text != (bare := text.strip('"').strip()):
        text = bare
    if not text:
        return ""
    text = text[0].upper() + text[1:]
    return text if text[-1] in ".?!" else text + "."


@dataclass(frozen=True)
class Item:
    """An item of a collection: an image, a text, or an image with its text.

    An item with neither is valid until its `modality` is read.

    Attributes:
        id: Item id, unique in an index.
        text: Text, or None.
        image: Path, file content or PIL image, or None.
        metadata: JSON values by name. They are stored with the item, can be filtered by, and are returned with hits.

    Raises:
        BadItem: A value has the wrong type, is not valid Unicode, or is not JSON.
    """

    id: str
    text: str | None = None
    image: ImageSource | None = None
    metadata: dict[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.id, str):
            raise BadItem(repr(self.id), f"an item id must be a string, not {_type(self.id)}. Use str(id).")
        if not self.id.strip():
            raise BadItem(repr(self.id), "an item id must not be empty. Give every item its own id.")
        name = printable(self.id)
        if name != self.id:
            raise BadItem(name, "the id is not valid Unicode. Rename the item.")
        _check_text(name, "text", self.text)
        _check_image(name, self.image)
        _check_metadata(name, self.metadata)

    @property
    def modality(self) -> Modality:
        """Modality of the content; blank text counts as absent.

        Raises:
            BadItem: The item has neither text nor an image.
        """
        found = _modality(self.text, self.image)
        if found is None:
            raise BadItem(self.id, "the item has neither text nor an image. Give it at least one of them.")
        return found


@dataclass(frozen=True)
class Query:
    """A query: text, an image or both, with an instruction and a target modality.

    Attributes:
        text: Text, or None.
        image: Path, file content or PIL image, or None.
        instruction: A sentence such as "Find the product photo."; None derives one from `target`, "" means none.
        target: Modality of the items to find: "image", "text", "image,text" or a Modality. None allows every modality.

    Raises:
        BadItem: A value has the wrong type, or there is neither text nor an image.
    """

    text: str | None = None
    image: ImageSource | None = None
    instruction: str | None = None
    target: Modality | str | None = None

    def __post_init__(self) -> None:
        _check_text("query", "text", self.text)
        _check_text("query", "instruction", self.instruction)
        _check_image("query", self.image)
        Modality.parse(self.target)
        if _modality(self.text, self.image) is None:
            raise BadItem("query", "there is neither text nor an image to search with. Give at least one of them.")

    @property
    def modality(self) -> Modality:
        """Modality of the content; blank text counts as absent, the instruction does not count."""
        found = _modality(self.text, self.image)
        assert found is not None  # checked on construction
        return found

    @property
    def target_modality(self) -> Modality | None:
        """`target` as a Modality; None allows every modality."""
        return Modality.parse(self.target)

    def prompt(self) -> str:
        """Return instruction and text as one string, the input of the text encoder."""
        instruction = _INSTRUCTIONS[self.target_modality] if self.instruction is None else self.instruction
        return clean_text(f"{clean_text(instruction)} {self.text or ''}")


QueryLike = Query | str | os.PathLike[str] | bytes | Image.Image
"""A query, or its content alone: a string is a text; a path object, bytes and a PIL image are an image."""


def to_query(content: QueryLike) -> Query:
    """Turn the content of a query into a query.

    A string is always a text, also if a file has this name: write `Path("cat.jpg")` to search with an image file.

    Raises:
        BadItem: The content is blank, or cannot be a query.
    """
    if isinstance(content, Query):
        return content
    if isinstance(content, str):
        return Query(text=content)
    if isinstance(content, os.PathLike | bytes | Image.Image):
        return Query(image=content)
    raise BadItem(
        "query",
        f"{_type(content)} cannot be searched with. Give a text, an image as a pathlib.Path, bytes or PIL image, a "
        "Query, or a list of these.",
    )


def to_queries(query: QueryLike | Iterable[QueryLike]) -> tuple[list[Query], bool]:
    """Turn one query or several into a list. Returns the list, and whether a single query was given."""
    if isinstance(query, Iterable) and not isinstance(query, Query | str | os.PathLike | bytes | Image.Image | Mapping):
        return [to_query(one) for one in query], False
    return [to_query(cast(QueryLike, query))], True


def printable(text: str) -> str:
    """Return the text with characters that UTF-8 cannot encode (odd file names) escaped."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _modality(text: str | None, image: ImageSource | None) -> Modality | None:
    has_text = bool(clean_text(text))
    if image is not None:
        return Modality.IMAGE_TEXT if has_text else Modality.IMAGE
    return Modality.TEXT if has_text else None


def _type(value: object) -> str:
    return f"{type(value).__name__} ({str(value)[:40]!r})"


def _check_text(owner: str, what: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise BadItem(owner, f"the {what} must be a string or None, not {_type(value)}.")
    if printable(value) != value:
        raise BadItem(owner, f"the {what} is not valid Unicode. Save it as UTF-8.")


def _check_image(owner: str, value: object) -> None:
    if value is not None and not isinstance(value, str | os.PathLike | bytes | Image.Image):
        raise BadItem(owner, f"the image must be a path, bytes, a PIL image or None, not {_type(value)}.")
    if isinstance(value, str) and not value.strip():
        raise BadItem(owner, "the image is an empty path. Use None for an item without an image.")


def _check_metadata(owner: str, value: object) -> None:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise BadItem(owner, f"the metadata must be a dict with string keys, not {_type(value)}.")
    with suppress(TypeError, ValueError, RecursionError):
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        return
    for key, entry in value.items():  # which one is it?
        try:
            json.dumps({key: entry}, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            reason = (
                f"the metadata value {printable(key)!r} is not JSON ({error}). Use strings, numbers, lists and dicts."
            )
            raise BadItem(owner, reason) from error
