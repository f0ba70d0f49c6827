"""Session: an index folder as this process sees it. Many may read at once; one writes at a time.

Holds the snapshot that is read, looks for newer versions, and lets writers in one after the other, across processes.
"""

import json
import logging
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import lance
import numpy as np
import pyarrow as pa
from filelock import FileLock, Timeout
from lance.fragment import FragmentMetadata

from genius.errors import BadIndex, GeniusError
from genius.index.checksums import CHECKSUMS, Checksums, manifests
from genius.index.commits import (
    CompactReport,
    add_fields,
    adopt_fragments,
    change,
    compact,
    create_dataset,
    drop_fragments,
    merge_small,
    replace_all,
    writing_to,
)
from genius.index.lance_errors import Unreadable, lance_errors, lance_reason, reading
from genius.index.models import MODELS, remove_unused_models, source_of
from genius.index.restore import RestoreReport, restore, set_aside_damaged
from genius.index.snapshot import Snapshot, check_model
from genius.index.storage import ITEMS, Header, field_columns, metadata_fields
from genius.index.versions import check_folder, check_manifest, open_dataset
from genius.model.genius import Genius

LOCK = "write.lock"
UNFINISHED = "unfinished.json"
"""In an index whose creation was interrupted, see `genius.index.creation`."""
RETRIES = 5  # when another process removes files while they are read
_REMAINS = (ITEMS, CHECKSUMS, LOCK, UNFINISHED, MODELS)  # of an interrupted creation
_NONE = np.zeros(0, np.int64)
T = TypeVar("T")


@dataclass(frozen=True)
class Version:
    """A version of an index, which `Index.open(path, version=number)` opens."""

    number: int
    time: datetime
    items: int


class Session:
    """An open index folder. A pinned session stays at its version and cannot write. See `Index.open`."""

    def __init__(
        self, path: Path, snapshot: Snapshot, pinned: bool = False, refresh: float | None = None, wait: float = 10.0
    ) -> None:
        self.path = path
        self._snapshot = snapshot
        self._pinned = pinned
        self._always = refresh == 0
        self._wait = wait
        self._changing = threading.RLock()  # guards the snapshot between threads
        self._lock = FileLock(path / LOCK, timeout=wait)  # lets in one writer among all processes and threads
        if refresh and not pinned:
            threading.Thread(target=_keep_fresh, args=(weakref.ref(self), refresh), daemon=True).start()

    @classmethod
    def create(cls, path: Path, model: Genius, embeddings: bool, store_images: bool) -> "Session":
        """Create an empty index in a folder that is empty or does not exist."""
        check_free(path)
        if max(model.sizes) > 1 << 16:
            raise BadIndex(
                f"The model has levels of {max(model.sizes)} codes; an index holds at most {1 << 16} per level."
            )
        header = Header(
            source_of(model, path), model.fingerprint, tuple(model.sizes), model.dim, embeddings, store_images
        )
        try:
            path.mkdir(parents=True, exist_ok=True)
            with FileLock(path / LOCK):
                check_free(path)  # another process may have been faster
                _clear(path)
                try:
                    dataset = create_dataset(path, header)
                except OSError:
                    _clear(path)
                    raise
        except OSError as error:
            raise BadIndex(
                f"{path} cannot be created ({lance_reason(error)}). Check the path and its permissions."
            ) from error
        return cls(path, Snapshot(dataset, model))

    @classmethod
    def open(
        cls, path: Path, model: Genius | None, version: int | None, refresh: float | None, wait: float
    ) -> "Session":
        """Open an index at its latest version, or pinned to an older one."""
        snapshot = Snapshot(open_dataset(path, version), model)
        if model is not None:
            check_model(path, snapshot.header, model)
        return cls(path, snapshot, version is not None, refresh, wait)

    @staticmethod
    def restore(path: Path, version: int | None, wait: float) -> RestoreReport:
        """Go back to an earlier version. See `Index.restore`."""
        check_folder(path)
        with _write_lock(FileLock(path / LOCK, timeout=wait), path, wait), writing_to(path):
            return restore(path, version)

    # Reading

    @property
    def snapshot(self) -> Snapshot:
        """The version that is read."""
        if self._always:
            self.refresh()
        return self._snapshot

    def refresh(self) -> bool:
        """Move on to the latest version. Returns whether there was a newer one."""
        if self._pinned:
            return False
        with self._changing:
            before = self._snapshot
            for left in reversed(range(RETRIES)):
                try:
                    with lance_errors(lambda reason: Unreadable(self.path, None, reason)):
                        latest = before.dataset.latest_version
                        if latest != before.version:
                            check_manifest(self.path, latest)
                            self._snapshot = before.after(before.dataset.checkout_version(latest))
                    return self._snapshot is not before
                except Unreadable:  # it may have been removed while it was read
                    if not left:
                        raise
        raise AssertionError

    def read(self, read: Callable[[Snapshot], T]) -> T:
        """Call `read` with the snapshot. If another process removed its files, call it again with the latest one."""
        for _ in range(RETRIES):
            snapshot = self.snapshot
            try:
                return read(snapshot)
            except Unreadable:
                if not self.refresh() and self._snapshot is snapshot:
                    raise
        return read(self.snapshot)

    def versions(self) -> list[Version]:
        """The versions that can still be opened, oldest first."""
        dataset = self.snapshot.dataset
        try:
            with reading(dataset):
                found = cast(list[dict[str, Any]], dataset.versions())
        except Unreadable:
            for number in manifests(self.path / ITEMS):
                check_manifest(self.path, number)  # names the damaged one
            raise
        return [
            Version(one["version"], one["timestamp"].astimezone(), int(one["metadata"]["total_rows"])) for one in found
        ]

    # Writing

    def prepare_writing(self) -> Snapshot:
        """Return the latest version. Raises BadIndex if the session is pinned."""
        if self._pinned:
            raise BadIndex(
                f"{self.path} was opened at version {self._snapshot.version}, which does not change. Open the index "
                "without a version to write to it."
            )
        self.refresh()
        return self._snapshot

    @contextmanager
    def writing(self) -> Iterator[Snapshot]:
        """Hold the write lock. Gives the latest version, which no other process or thread can change meanwhile."""
        self.prepare_writing()
        with _write_lock(self._lock, self.path, self._wait):
            self.refresh()
            yield self._snapshot

    def change(
        self, gone: np.ndarray, table: pa.Table | None = None, metadata: Sequence[dict[str, Any]] | None = None
    ) -> None:
        """Delete the rows with the row ids `gone` and append others in one commit. Call it inside `writing`."""
        with writing_to(self.path):
            if table is not None:
                table = self._with_fields(table, [{}] * len(table) if metadata is None else metadata)
            self._move_to(change(self._snapshot.dataset, gone, table), gone)
        with suppress(OSError):  # the change itself is committed; a later one can merge files
            merged = merge_small(self._snapshot.dataset)
            if merged is not None:
                self._move_to(merged, _NONE)

    def _with_fields(self, table: pa.Table, metadata: Sequence[dict[str, Any]]) -> pa.Table:
        """Append the columns of the metadata fields; the dataset gets the new ones."""
        dataset, header = self._snapshot.dataset, self._snapshot.header
        known = metadata_fields(dataset, header)
        columns = field_columns(metadata, known, table.schema.names)
        new = [pa.field(name, column.type) for name, column in columns.items() if name not in known]
        if new:
            self._move_to(add_fields(dataset, new), _NONE)
        for name, column in columns.items():
            table = table.append_column(name, column)
        return table

    def _move_to(self, dataset: lance.LanceDataset, gone: np.ndarray | None = None) -> None:
        """Read from the version that was just written. gone: deleted row ids, if known."""
        with self._changing:
            if self._snapshot.version < dataset.version:  # a refreshing thread may have been faster
                self._snapshot = self._snapshot.after(dataset, gone)

    def replace_all(self, header: Header, model: Genius, tables: Iterable[pa.Table]) -> None:
        """Replace header and rows in one commit. Call it inside `writing`."""
        with writing_to(self.path):
            dataset = replace_all(self._snapshot.dataset, header, tables)
        with self._changing:
            self._snapshot = Snapshot(dataset, model)

    def adopt(self, schema: pa.Schema, fragments: Sequence[FragmentMetadata], checksums: Checksums) -> None:
        """Make fragments that other processes wrote the rows of an empty index. Call it inside `writing`."""
        with writing_to(self.path):
            self._move_to(adopt_fragments(self._snapshot.dataset, schema, fragments, checksums))

    def drop_fragments(self, numbers: Sequence[int]) -> int:
        """Remove fragments, readable or not, and set aside versions that need them. Returns the number of items."""
        with self.writing() as snapshot, writing_to(self.path):
            self._move_to(drop_fragments(snapshot.dataset, numbers))
            set_aside_damaged(self.path)
            return len(snapshot) - len(self._snapshot)

    def compact(self, keep: timedelta | None) -> CompactReport:
        """Merge small files and remove versions older than `keep`; None keeps all."""
        with self.writing() as snapshot, writing_to(self.path):
            dataset, report = compact(snapshot.dataset, keep)
            self._move_to(dataset)
            remove_unused_models(dataset)
        return report


def is_index(folder: Path) -> bool:
    """Whether a folder holds an index, of any state."""
    return bool(manifests(folder / ITEMS))


@contextmanager
def _write_lock(lock: FileLock, path: Path, wait: float) -> Iterator[None]:
    """Hold the lock that lets in one writer."""
    with writing_to(path):
        try:
            lock.acquire()
        except Timeout as error:
            raise BadIndex(
                f"Another process is writing to {path}, and did not end in {wait:g} seconds. Try again when it has "
                "finished, or open the index with a longer `wait`."
            ) from error
    try:
        yield
    finally:
        lock.release()


def _clear(folder: Path) -> None:
    """Remove the remains of an interrupted creation."""
    for name in (ITEMS, CHECKSUMS):
        shutil.rmtree(folder / name, ignore_errors=True)


def unfinished_sources(folder: Path) -> list[str] | None:
    """Read the sources of a creation that has not been completed; None if there is no such creation."""
    sources = _unfinished(folder).get("sources")
    return [str(source) for source in sources] if isinstance(sources, list) else None


def unfinished_engine(folder: Path) -> str:
    """The engine of a creation that has not been completed."""
    return str(_unfinished(folder).get("engine", "local"))


def _unfinished(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / UNFINISHED).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # interrupted before it was written
        return {}
    return found if isinstance(found, dict) else {}


def check_free(folder: Path) -> None:
    """Refuse a folder that holds anything but the remains of an interrupted creation."""
    if not folder.exists():
        return
    if is_index(folder):
        raise BadIndex(
            f"{folder} exists already: it is an index. Open it with Index.open to add to it, or choose another folder."
        )
    if not folder.is_dir() or any(entry.name not in _REMAINS for entry in folder.iterdir()):
        raise BadIndex(f"{folder} exists already and is not empty. Choose another folder.")


def _keep_fresh(session: "weakref.ref[Session]", seconds: float) -> None:
    """Look for newer versions until the session is garbage-collected. Repeated errors are logged once."""
    logged = ""
    while True:
        time.sleep(seconds)
        alive = session()
        if alive is None:
            return
        try:
            alive.refresh()
            logged = ""
        except GeniusError as error:
            if str(error) != logged:
                logged = str(error)
                logging.getLogger("genius").warning("%s The version seen before is still used.", logged)
        del alive
