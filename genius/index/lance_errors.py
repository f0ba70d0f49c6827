"""Errors of Lance as errors of this package.

Lance raises errors of many types on damaged files, and panics on some: a panic is a BaseException, which
`except Exception` does not catch. Every call into Lance that reads files of an index goes through `reading` or
`lance_errors`.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import lance
import pyarrow as pa

from genius.errors import BadIndex, GeniusError

_SOURCE = re.compile(r",?\s*(?:location: )?(?:/|[A-Za-z]:[\\/])[^\s,()]*\.rs:\d+(?::\d+)?")
_WRAPPERS = re.compile(r"\b(?:External error: |Query Execution error: |LanceError\(\w+\): |Generic [\w/]+ error: )")
_ERRORS = (OSError, ValueError, RuntimeError, MemoryError, OverflowError, pa.ArrowException)
_LONGEST = 300  # characters of a reason; Lance quotes whole files


class Unreadable(BadIndex):
    """Files of a version are damaged, or another process has removed them.

    Args:
        folder: The index.
        version: Number of the version.
        reason: What is wrong, as part of a sentence.
        file: The damaged file, if it is known.
    """

    def __init__(self, folder: Path, version: int | None, reason: str, file: Path | None = None) -> None:
        self.file = file
        which = "The newest version" if version is None else f"Version {version}"
        what = (
            f"{which} of {folder} cannot be read ({reason})."
            if file is None
            else f"{which} of {folder} cannot be read: {file} {reason}."
        )
        super().__init__(
            f"{what} `genius index verify {folder}` lists all damage and the commands that repair it; "
            f"`genius index restore {folder}` goes back to the newest version without damage."
        )


def lance_reason(error: BaseException) -> str:
    """Return the text of an error of Lance without file names of Rust sources and names of wrapping errors.

    Lance appends the file and line of its source to each text, as they were on the machine that built it.
    """
    return " ".join(_WRAPPERS.sub("", _SOURCE.sub("", str(error))).split())


@contextmanager
def lance_errors(to_error: Callable[[str], GeniusError]) -> Iterator[None]:
    """Turn errors and panics of Lance into the error that `to_error` makes of the reason."""
    try:
        yield
    except _ERRORS as error:
        raise to_error(lance_reason(error)[:_LONGEST]) from error
    except BaseException as error:
        if not is_panic(error):
            raise
        raise to_error("Lance cannot parse it") from error


def is_panic(error: BaseException) -> bool:
    """Whether an exception is a panic of Rust code. Its type cannot be imported."""
    return type(error).__name__ == "PanicException"


@contextmanager
def reading(dataset: lance.LanceDataset) -> Iterator[None]:
    """Turn errors and panics of Lance into `Unreadable`."""
    with lance_errors(lambda reason: Unreadable(Path(dataset.uri).parent, dataset.version, reason)):
        yield
