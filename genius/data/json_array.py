"""JSON arrays of any length, read element by element."""

import json
import re
from collections.abc import Iterator
from typing import IO, Any

MAX_ELEMENT = 1 << 26
"""Maximum number of characters of an element."""

_BLOCK = 1 << 16  # characters read at once
_SPACE = re.compile(r"[ \t\r\n]*")


def array_elements(file: IO[str]) -> Iterator[Any]:
    """Yield the elements of the JSON array in a file. Holds one of them at a time.

    Raises:
        ValueError: The file is not a JSON array from here on, or an element is too long.
        RecursionError: An element is nested too deeply.
    """
    window = _Window(file)
    window.take("[", "an opening bracket is missing")
    if window.peek() == "]":
        window.take("]", "")
    else:
        while True:
            yield window.value()
            if window.peek() == "]":
                break
            window.take(",", "a comma or ] is missing after an element")
        window.take("]", "")
    if window.peek():
        raise ValueError("something follows the closing bracket")


class _Window:
    """The part of a file that is being read."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._decoder = json.JSONDecoder()
        self._text, self._position, self._ended = "", 0, False

    def peek(self) -> str:
        """The next character that is not space; "" at the end of the file."""
        while True:
            space = _SPACE.match(self._text, self._position)
            assert space is not None  # it matches nothing, too
            self._position = space.end()
            if self._position < len(self._text) or self._ended:
                return self._text[self._position : self._position + 1]
            self._read(_BLOCK)

    def take(self, character: str, otherwise: str) -> None:
        """Move past a character."""
        if self.peek() != character:
            raise ValueError(otherwise)
        self._position += 1

    def value(self) -> Any:
        """Parse the value that comes next. It ends where another character is seen: 12 may be the beginning of 123."""
        self.peek()
        while True:
            failure: ValueError | None = None
            end = len(self._text)
            try:
                value, end = self._decoder.raw_decode(self._text, self._position)
            except ValueError as error:
                failure = error
            length = len(self._text) - self._position
            if (failure is None and end < len(self._text)) or self._ended:
                break
            if length > MAX_ELEMENT:
                raise ValueError(f"an element is not complete after {MAX_ELEMENT:,} characters")
            self._read(max(_BLOCK, length))  # twice as much each time, so that the work stays linear
        if failure is not None:
            raise failure
        self._position = end
        return value

    def _read(self, characters: int) -> None:
        more = self._file.read(characters)
        self._text, self._position, self._ended = self._text[self._position :] + more, 0, not more
