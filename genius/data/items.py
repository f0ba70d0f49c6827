"""What is searched (Item), what is asked (Query), and which kind each is (Modality).

Knows the meaning of text, image and instruction. Does not know where items come from, does not open images, and
knows nothing of vectors or codes.
"""

import json
import os
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, overload

from PIL import Image

from genius.errors import BadItem

ImageSource = str | os.PathLike[str] | bytes | Image.Image
"""An image: the path of a file, the bytes of a file, or a PIL image."""


class Modality(IntEnum):
    """The kind of an item or of a query's content. The value is the item's first code."""

    IMAGE = 0
    TEXT = 1
    IMAGE_TEXT = 2

    @property
    def label(self) -> str:
        """The name M-BEIR uses: "image", "text" or "image,text"."""
        return _LABELS[self]

    @overload
    @classmethod
    def parse(cls, value: "Modality | str") -> "Modality": ...

    @overload
    @classmethod
    def parse(cls, value: None) -> None: ...

    @classmethod
    def parse(cls, value: "Modality | str | None") -> "Modality | None":
        """The modality a word means: "image", "text", "image,text", "text,image", "pair" ... None stays None."""
        if value is None or isinstance(value, Modality):
            return value
        found = _NAMES.get("".join(value.split()).lower()) if isinstance(value, str) else None
        if found is None:
            raise BadItem("modality", f'{value!r} is not a kind of item. Use "image", "text" or "image,text".')
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
    """Text as the text encoders expect it (UniIR's rules).

    No carriage returns, no outer space or double quotes, a capital first letter, and a full stop unless the text ends
    in one of `.?!`. Nothing, or nothing but space and quotes, gives "".
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
    """Something that can be found: an image, a text, or an image with its text.

    `metadata` holds whatever the caller wants back with a hit; its values must be JSON values.
    Wrong types raise BadItem here; an item with neither text nor image raises BadItem when its `modality` is asked.
    """

    id: str
    text: str | None = None
    image: ImageSource | None = None
    metadata: dict[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.id, str):
            raise BadItem(repr(self.id), f"an item id must be a string, not {_kind(self.id)}. Use str(id).")
        if not self.id.strip():
            raise BadItem(repr(self.id), "an item id must not be empty. Give every item an id of its own.")
        name = printable(self.id)
        if name != self.id:
            raise BadItem(name, "the id holds characters that are not valid Unicode. Rename the item.")
        _check_text(name, "text", self.text)
        _check_image(name, self.image)
        _check_metadata(name, self.metadata)

    @property
    def modality(self) -> Modality:
        """Which of text and image the item has; blank text counts as absent."""
        found = _modality(self.text, self.image)
        if found is None:
            raise BadItem(self.id, "the item has neither text nor an image. Give it at least one of them.")
        return found


@dataclass(frozen=True)
class Query:
    """A question: text, an image or both, what to do with them, and which kind of item is wanted.

    instruction: a sentence such as "Find the product photo."; None derives one from `target`, "" uses none at all.
    target: the wanted kind ("image", "text", "image,text" or a Modality); None leaves it to the model.
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
        """Which of text and image the query has; blank text counts as absent, the instruction does not count."""
        found = _modality(self.text, self.image)
        assert found is not None  # checked on construction
        return found

    @property
    def target_modality(self) -> Modality | None:
        """The kind of item asked for, or None when any may come."""
        return Modality.parse(self.target)

    def prompt(self) -> str:
        """Instruction and text as the one string the text encoder reads."""
        instruction = _INSTRUCTIONS[self.target_modality] if self.instruction is None else self.instruction
        return clean_text(f"{clean_text(instruction)} {self.text or ''}")


def printable(text: str) -> str:
    """The text itself, or, where it cannot be written as UTF-8 (odd file names), a form of it that can."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _modality(text: str | None, image: ImageSource | None) -> Modality | None:
    has_text = bool(clean_text(text))
    if image is not None:
        return Modality.IMAGE_TEXT if has_text else Modality.IMAGE
    return Modality.TEXT if has_text else None


def _kind(value: object) -> str:
    return f"{type(value).__name__} ({str(value)[:40]!r})"


def _check_text(owner: str, what: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise BadItem(owner, f"the {what} must be a string or None, not {_kind(value)}.")
    if printable(value) != value:
        raise BadItem(owner, f"the {what} holds characters that are not valid Unicode. Save it as UTF-8.")


def _check_image(owner: str, value: object) -> None:
    if value is not None and not isinstance(value, str | os.PathLike | bytes | Image.Image):
        raise BadItem(owner, f"the image must be a path, bytes, a PIL image or None, not {_kind(value)}.")
    if isinstance(value, str) and not value.strip():
        raise BadItem(owner, "the image is an empty path. Use None for an item without an image.")


def _check_metadata(owner: str, value: object) -> None:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise BadItem(owner, f"the metadata must be a dict with string keys, not {_kind(value)}.")
    for key, entry in value.items():
        if printable(key) != key:
            raise BadItem(owner, f"the metadata key {printable(key)!r} holds characters that are not valid Unicode.")
        try:
            json.dumps(entry, allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise BadItem(
                owner, f"the metadata value {printable(key)!r} cannot be written as JSON ({error})."
            ) from error
