"""Locations: files on this machine and in object stores, read by their path or their URL.

URLs such as s3://bucket/photos/cat.jpg are read by pyarrow (S3, Google Cloud Storage, Azure, HDFS) or, for other
schemes, by fsspec if it is installed. Both take the usual environment variables, such as AWS_ENDPOINT_URL. Images are
never downloaded from http and https addresses.
"""

import functools
import os
import re
from collections.abc import Iterator
from typing import IO, Any

import pyarrow as pa
from pyarrow import fs

from genius.errors import BadData

_URL = re.compile(r"([a-z][a-z0-9+.-]+)://([^/]*)(.*)", re.IGNORECASE | re.DOTALL)  # a drive letter is no scheme


def is_url(path: object) -> bool:
    """Whether this is the URL of a file in an object store. Addresses of the web are not."""
    return isinstance(path, str) and _URL.match(path) is not None and not path.lower().startswith(("http:", "https:"))


def absolute(path: str | os.PathLike[str]) -> str:
    """A location that means the same in every working directory."""
    return path if isinstance(path, str) and is_url(path) else os.path.abspath(path)


def file_name(path: str | os.PathLike[str]) -> str:
    """Last part of a path or URL."""
    return os.path.basename(os.fspath(path).rstrip("/"))


def parent(url: str) -> str:
    """The URL of the folder that holds a file."""
    return url.rstrip("/").rpartition("/")[0]


def open_file(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file that can be read from any place. Raises OSError."""
    if not is_url(path):
        return open(path, "rb")
    system, inside = _resolve(os.fspath(path))
    opened: IO[bytes] = system.open_input_file(inside)
    return opened


def open_stream(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file that is read once, from its beginning to its end. Raises OSError."""
    if not is_url(path):
        return open(path, "rb")
    system, inside = _resolve(os.fspath(path))
    opened: IO[bytes] = system.open_input_stream(inside, compression=None, buffer_size=1 << 20)
    return opened


def file_size(path: str) -> int | None:
    """Size of a file at a URL; None if there is none. Raises OSError if the store cannot be asked."""
    system, inside = _resolve(path)
    found = system.get_file_info(inside)
    return int(found.size) if found.type == fs.FileType.File else None


def is_folder(url: str) -> bool:
    """Whether there are files below a URL. Raises OSError."""
    system, inside = _resolve(url)
    return bool(system.get_file_info(inside).type == fs.FileType.Directory)


def files_below(url: str) -> Iterator[str]:
    """Paths of all files below a URL, relative to it, sorted as `os.walk` with sorted names gives them."""
    system, inside = _resolve(url)
    base = inside.rstrip("/") + "/"
    found = system.get_file_info(fs.FileSelector(inside, recursive=True))
    names = [one.path.removeprefix(base) for one in found if one.type == fs.FileType.File]
    yield from sorted(names, key=_walking_order)


def _walking_order(name: str) -> list[tuple[bool, str]]:
    """Files of a folder come before those of its subfolders."""
    *folders, file = name.split("/")
    return [*((True, folder) for folder in folders), (False, file)]


def _resolve(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path there."""
    match = _URL.match(url)
    assert match is not None
    scheme, host, rest = match.groups()
    system, base = _file_system(scheme.lower(), host)
    return system, f"{base.rstrip('/')}{rest}" if base else rest


@functools.cache
def _file_system(scheme: str, host: str) -> tuple[Any, str]:
    """The file system for a scheme and host, and the path of the host's root there."""
    if scheme == "file":
        return fs.LocalFileSystem(), ""
    try:
        found: tuple[Any, str] = fs.FileSystem.from_uri(f"{scheme}://{host}/")
        return found
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        try:
            import fsspec

            return fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem(scheme))), host
        except (ImportError, ValueError):
            raise BadData(
                f"{scheme}://{host}: there is no reader for {scheme}:// ({error}). Use s3://, gs://, abfs:// or "
                "hdfs://, or install the fsspec package for it."
            ) from error
