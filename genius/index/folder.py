"""Folder: the files of an index, on a disk or in an object store.

Everything that reads or writes files of an index beside Lance goes through it. Paths are relative to the folder, with
slashes. In an object store, Lance's own client does the work: it takes the same storage options, and the same
environment variables, as the dataset.
"""

import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from lance.file import LanceFileSession

from genius.data.locations import is_url
from genius.errors import BadIndex
from genius.index.lance_errors import lance_reason, store_error
from genius.index.lease import Lease

LOCK = "write.lock"
"""Name of the lock: a file on a disk, a dataset in an object store."""

_BLOCK = 1 << 20  # bytes read at once


class Folder(ABC):
    """Files of an index."""

    storage_options: dict[str, str] | None = None

    @property
    @abstractmethod
    def path(self) -> Path | str:
        """The folder as a path, or its URL."""

    @property
    def name(self) -> str:
        """Last part of the path."""
        return Path(str(self)).name

    def __str__(self) -> str:
        return str(self.path)

    @abstractmethod
    def uri(self, path: str) -> str:
        """Path or URL of a file or folder in it, for Lance and for messages."""

    @abstractmethod
    def make(self) -> None:
        """Create the folder if it does not exist."""

    @abstractmethod
    def exists(self) -> bool:
        """Whether there is anything at its path."""

    @abstractmethod
    def names(self, path: str = "") -> list[str]:
        """Names of the files and folders in a folder; none if there is no such folder."""

    @abstractmethod
    def has(self, path: str) -> bool:
        """Whether there is such a file."""

    @abstractmethod
    def blocks(self, path: str) -> Iterator[bytes]:
        """Read a file in blocks. Raises FileNotFoundError if there is none."""

    @abstractmethod
    def end(self, path: str, length: int, size: int | None) -> tuple[bytes, int]:
        """Read the last bytes of a file. Returns them and its size. size: what it should be, if known."""

    @abstractmethod
    def write(self, path: str, content: bytes) -> None:
        """Write a file atomically."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete a file if it exists."""

    @abstractmethod
    def delete_folder(self, path: str) -> None:
        """Delete a folder with all its files, as far as possible."""

    @abstractmethod
    def move(self, source: str, target: str) -> None:
        """Move a file."""

    @abstractmethod
    def keep(self, source: Path, path: str) -> None:
        """Copy a folder of this machine to a path where no folder is, or the same one."""

    @abstractmethod
    def local_copy(self, path: str) -> str:
        """Path on this machine of a folder; of a copy, if the folder is elsewhere."""

    @abstractmethod
    def sync(self, paths: Iterable[str]) -> None:
        """Bring new files, and their names, to the disk."""

    @abstractmethod
    def size(self) -> int | None:
        """Bytes of all files; None if it cannot be told without reading them."""

    @abstractmethod
    def locked(self, wait: float) -> AbstractContextManager[None]:
        """Context manager: hold the lock that lets in one writer. Raises BadIndex after `wait` seconds."""

    @abstractmethod
    def check_lock(self) -> None:
        """Raise BadIndex if the lock that this folder holds may be gone. Called right before a commit."""

    def read(self, path: str) -> bytes:
        """Read a file. Raises FileNotFoundError if there is none."""
        return b"".join(self.blocks(path))

    def _is_locked(self, wait: float) -> BadIndex:
        return BadIndex(
            f"Another process is writing to {self}, and did not end in {wait:g} seconds. Try again when it has "
            "finished, or open the index with a longer `wait`."
        )


class LocalFolder(Folder):
    """A folder on a disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = FileLock(path / LOCK)

    @property
    def path(self) -> Path:
        """The folder."""
        return self._path

    def uri(self, path: str) -> str:
        """Path of a file or folder in it."""
        return str(self._path / path)

    def make(self) -> None:
        """Create the folder if it does not exist."""
        self._path.mkdir(parents=True, exist_ok=True)

    def exists(self) -> bool:
        """Whether there is anything at its path."""
        return self._path.exists()

    def names(self, path: str = "") -> list[str]:
        """Names of the files and folders in a folder."""
        folder = self._path / path
        return os.listdir(folder) if folder.is_dir() or not path else []

    def has(self, path: str) -> bool:
        """Whether there is such a file."""
        return (self._path / path).is_file()

    def blocks(self, path: str) -> Iterator[bytes]:
        """Read a file in blocks."""
        with open(self._path / path, "rb", buffering=0) as opened:
            while block := opened.read(_BLOCK):
                yield block

    def end(self, path: str, length: int, size: int | None) -> tuple[bytes, int]:
        """Read the last bytes of a file."""
        with open(self._path / path, "rb") as opened:
            found = opened.seek(0, os.SEEK_END)
            opened.seek(max(found - length, 0))
            return opened.read(), found

    def write(self, path: str, content: bytes) -> None:
        """Write a file atomically. A power cut may lose it, but never leaves half of it."""
        file = self._path / path
        file.parent.mkdir(exist_ok=True)
        temporary = file.with_suffix(".tmp")
        with open(temporary, "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(temporary, file)

    def delete(self, path: str) -> None:
        """Delete a file if it exists."""
        (self._path / path).unlink(missing_ok=True)

    def delete_folder(self, path: str) -> None:
        """Delete a folder with all its files, as far as possible."""
        shutil.rmtree(self._path / path, ignore_errors=True)

    def move(self, source: str, target: str) -> None:
        """Move a file, and bring the move to the disk."""
        old, new = self._path / source, self._path / target
        new.parent.mkdir(parents=True, exist_ok=True)
        os.replace(old, new)
        above = list(new.parents)
        for changed in (old.parent, *above[: above.index(self._path) + 1]):
            _sync(changed)

    def keep(self, source: Path, path: str) -> None:
        """Copy a folder, completely or not at all."""
        home = self._path / path
        if home.is_dir():
            return
        part = home.with_name(f"{home.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(source, part)
        for file in (*part.iterdir(), part):
            _sync(file)
        os.replace(part, home)
        _sync(home.parent)

    def local_copy(self, path: str) -> str:
        """Path of a folder."""
        return self.uri(path)

    def sync(self, paths: Iterable[str]) -> None:
        """Bring new files, and their names, to the disk."""
        files = {self._path / path for path in paths}
        for file in [*files, *{file.parent for file in files}]:
            _sync(file)

    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.stat().st_size for file in self._path.rglob("*") if file.is_file())

    @contextmanager
    def locked(self, wait: float) -> Iterator[None]:
        """Hold the lock that lets in one writer among all processes and threads of this machine."""
        try:
            self._lock.acquire(timeout=wait)
        except Timeout as error:
            raise self._is_locked(wait) from error
        try:
            yield
        finally:
            self._lock.release()

    def check_lock(self) -> None:
        """The operating system holds the lock as long as the process lives."""


class ObjectFolder(Folder):
    """The objects under a URL such as s3://bucket/photos.genius. A put is atomic there, and durable when answered."""

    def __init__(self, url: str, storage_options: Mapping[str, str] | None) -> None:
        self._url = url.rstrip("/")
        self.storage_options = None if storage_options is None else dict(storage_options)
        self._session: LanceFileSession | None = None
        self._copies: dict[str, tempfile.TemporaryDirectory[str]] = {}
        self._lease = Lease(self.uri(LOCK), self.storage_options)

    @property
    def path(self) -> str:
        """The URL."""
        return self._url

    @contextmanager
    def _store(self) -> Iterator[LanceFileSession]:
        """Lance's client. Its errors become OSErrors, or StoreErrors with a sentence for users."""
        try:
            if self._session is None:
                self._session = LanceFileSession(self._url, self.storage_options)
            yield self._session
        except (OSError, RuntimeError, ValueError) as error:
            raise store_error(error) or OSError(lance_reason(error)) from error

    def uri(self, path: str) -> str:
        """URL of an object."""
        return f"{self._url}/{path}"

    def make(self) -> None:
        """Object stores have no folders."""

    def exists(self) -> bool:
        """Whether there is any object under the URL."""
        return bool(self.names())

    def names(self, path: str = "") -> list[str]:
        """Names of the objects and common prefixes under a path."""
        with self._store() as store:
            found = store.list_with_delimiter(path or None)
        return [one.rstrip("/").rsplit("/", 1)[-1] for one in (*found.common_prefixes, *found.objects)]

    def has(self, path: str) -> bool:
        """Whether there is such an object."""
        with self._store() as store:
            return store.contains(path)

    def blocks(self, path: str) -> Iterator[bytes]:
        """Read an object in blocks."""
        if not self.has(path):
            raise FileNotFoundError(f"There is no {self.uri(path)}.")
        with tempfile.TemporaryDirectory(prefix="genius-") as folder:
            copy = os.path.join(folder, "copy")
            with self._store() as store:
                store.download_file(path, copy)
            with open(copy, "rb", buffering=0) as opened:
                while block := opened.read(_BLOCK):
                    yield block

    def end(self, path: str, length: int, size: int | None) -> tuple[bytes, int]:
        """Read the last bytes of an object."""
        if size is None or size < length:
            content = self.read(path)
            return content[-length:], len(content)
        if not self.has(path):
            raise FileNotFoundError(f"There is no {self.uri(path)}.")
        with self._store() as store:
            return store.read_range(path, size - length, length), size

    def write(self, path: str, content: bytes) -> None:
        """Write an object."""
        with tempfile.TemporaryDirectory(prefix="genius-") as folder:
            copy = Path(folder, "copy")
            copy.write_bytes(content)
            with self._store() as store:
                store.upload_file(copy, path)

    def delete(self, path: str) -> None:
        """Delete an object if it exists."""
        if self.has(path):
            with self._store() as store:
                store.delete_file(path)

    def delete_folder(self, path: str) -> None:
        """Delete all objects under a path."""
        with self._store() as store:
            for file in store.list(path):
                store.delete_file(file)

    def move(self, source: str, target: str) -> None:
        """Copy an object and delete the first one: there is no rename."""
        self.write(target, self.read(source))
        self.delete(source)

    def keep(self, source: Path, path: str) -> None:
        """Upload the files of a folder."""
        with self._store() as store:
            for file in source.rglob("*"):
                if file.is_file():
                    store.upload_file(file, f"{path}/{file.relative_to(source).as_posix()}")

    def local_copy(self, path: str) -> str:
        """Download the files of a folder, once. The copy is removed when this object is gone."""
        if path not in self._copies:
            copy = tempfile.TemporaryDirectory(prefix="genius-")
            with self._store() as store:
                for file in store.list(path):
                    target = Path(copy.name, file.removeprefix(f"{path}/"))
                    target.parent.mkdir(parents=True, exist_ok=True)
                    store.download_file(file, target)
            self._copies[path] = copy
        return self._copies[path].name

    def sync(self, paths: Iterable[str]) -> None:
        """A put is durable when it is answered."""

    def size(self) -> None:
        """Lance's client does not tell the sizes of objects."""

    @contextmanager
    def locked(self, wait: float) -> Iterator[None]:
        """Hold the lease that lets in one writer among all machines."""
        with self._store():
            acquired = self._lease.acquire(wait)
        if not acquired:
            raise self._is_locked(wait)
        try:
            yield
        finally:
            self._lease.release()

    def check_lock(self) -> None:
        """Raise BadIndex if the lease may have passed to another writer."""
        if not self._lease.held:
            raise BadIndex(
                f"The connection to {self} was lost for so long that another process may have begun to write. This "
                "change was not made; earlier ones are safe. Repeat the command."
            )


def open_folder(path: "str | os.PathLike[str] | Folder", storage_options: Mapping[str, str] | None = None) -> Folder:
    """The folder at a path or URL. storage_options: of Lance, for URLs."""
    if isinstance(path, Folder):
        return path
    if isinstance(path, str) and is_url(path):
        if path.lower().startswith("file://"):
            raise BadIndex(f"{path} is on this machine. Give the path of the folder instead, without file://.")
        return ObjectFolder(path, storage_options)
    return LocalFolder(Path(path))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
