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

from genius.data.locations import is_url, parent
from genius.errors import BadIndex, GeniusError

_SOURCE = re.compile(r",?\s*(?:location: )?(?:/|[A-Za-z]:[\\/])[^\s,()]*\.rs:\d+(?::\d+)?")
_WRAPPERS = re.compile(r"\b(?:External error: |Query Execution error: |LanceError\(\w+\): |Generic [\w/]+ error: )")
_ERRORS = (OSError, ValueError, RuntimeError, MemoryError, OverflowError, pa.ArrowException)
_LONGEST = 300  # characters of a reason; Lance quotes whole files


_STORE_PROBLEMS = {
    r"NoSuchBucket|ContainerNotFound|The specified bucket does not exist": (
        "The bucket of the index does not exist. Check the URL, or create the bucket."
    ),
    r"InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|ExpiredToken|AccessDenied|403 Forbidden|401 Unauthorized"
    r"|AuthenticationFailed|PermissionDenied|Unauthenticated": (
        "The object store refused the credentials. Check them (for S3 the variables AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, or storage_options), and that they allow to read and write the bucket."
    ),
    r"(?i)no providers in chain provided credentials|CredentialsNotLoaded|could not load credentials"
    r"|failed to load (?:aws )?credentials|instance metadata": (
        "There are no credentials for the object store. Set them: for S3 the variables AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, or storage_options in Python."
    ),
    r"(?i)error sending request|connection refused|dns error|client error \(Connect\)|error trying to connect": (
        "The object store cannot be reached. Check the network and the endpoint (for S3 the variable AWS_ENDPOINT_URL)."
    ),
    r"(?i)missing (?:bucket|region)|no scheme|Unable to (?:parse|recogni[sz]e) URL|unsupported (?:url|scheme)"
    r"|No object store provider": (
        "The URL of the index is not one of an object store. Give one such as s3://bucket/photos.genius, "
        "gs://bucket/photos.genius or az://container/photos.genius."
    ),
}
"""What object stores answer, and what users can do."""


class StoreError(BadIndex):
    """The object store of an index cannot be used."""


class Unreadable(BadIndex):
    """Files of a version are damaged, or another process has removed them.

    Args:
        folder: The index, or its path.
        version: Number of the version.
        reason: What is wrong, as part of a sentence.
        file: The damaged file, if it is known.
    """

    def __init__(self, folder: object, version: int | None, reason: str, file: str | None = None) -> None:
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


def store_error(error: BaseException) -> StoreError | None:
    """The error for users, if an object store is the reason of an error of Lance."""
    text = str(error)
    return next((StoreError(said) for found, said in _STORE_PROBLEMS.items() if re.search(found, text)), None)


@contextmanager
def store_errors() -> Iterator[None]:
    """Turn errors of Lance that an object store caused into StoreError."""
    try:
        yield
    except _ERRORS as error:
        store = store_error(error)
        if store is None:
            raise
        raise store from error


@contextmanager
def lance_errors(to_error: Callable[[str], GeniusError]) -> Iterator[None]:
    """Turn errors and panics of Lance into the error that `to_error` makes of the reason."""
    try:
        with store_errors():
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


def folder_name(dataset: lance.LanceDataset) -> str:
    """Path or URL of the index that a dataset belongs to."""
    return parent(dataset.uri) if is_url(dataset.uri) else str(Path(dataset.uri).parent)


@contextmanager
def reading(dataset: lance.LanceDataset) -> Iterator[None]:
    """Turn errors and panics of Lance into `Unreadable`."""
    with lance_errors(lambda reason: Unreadable(folder_name(dataset), dataset.version, reason)):
        yield
