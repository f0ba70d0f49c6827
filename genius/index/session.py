"""Session: an index folder as this process sees it. Many may read at once; one writes at a time.

Holds the snapshot that is read, looks for newer versions, and lets writers in one after the other, across processes.
"""

import json
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

import lance
import numpy as np
import pyarrow as pa
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
from genius.index.folder import LOCK, Folder
from genius.index.lance_errors import Unreadable, lance_errors, lance_reason, reading, store_errors
from genius.index.models import MODELS, remove_unused_models, source_of
from genius.index.restore import RestoreReport, restore, set_aside_damaged
from genius.index.snapshot import Snapshot, check_model
from genius.index.storage import ITEMS, Header, field_columns, metadata_fields
from genius.index.versions import check_folder, check_manifest, open_dataset
from genius.model.genius import Genius

UNFINISHED = "unfinished.json"
"""In an index whose creation was interrupted, see `genius.index.creation`."""
_CREATION_WAIT = 60.0  # seconds that a creation waits for another one
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
        self, folder: Folder, snapshot: Snapshot, pinned: bool = False, refresh: float | None = None, wait: float = 10.0
    ) -> None:
        self.folder = folder
        self._snapshot = snapshot
        self._pinned = pinned
        self._always = refresh == 0
        self._wait = wait
        self._changing = threading.RLock()  # guards the snapshot between threads
        if refresh and not pinned:
            threading.Thread(target=_keep_fresh, args=(weakref.ref(self), refresh), daemon=True).start()

    @classmethod
    def create(cls, folder: Folder, model: Genius, embeddings: bool, store_images: bool) -> "Session":
        """Create an empty index in a folder that is empty or does not exist."""
        check_free(folder)
        if max(model.sizes) > 1 << 16:
            raise BadIndex(
                f"The model has levels of {max(model.sizes)} codes; an index holds at most {1 << 16} per level."
            )
        header = Header(
            source_of(model, folder), model.fingerprint, tuple(model.sizes), model.dim, embeddings, store_images
        )
        try:
            folder.make()
            with folder.locked(_CREATION_WAIT):
                check_free(folder)  # another process may have been faster
                _clear(folder)
                try:
                    with store_errors():
                        dataset = create_dataset(folder, header)
                except OSError:
                    _clear(folder)
                    raise
        except OSError as error:
            raise BadIndex(
                f"{folder} cannot be created ({lance_reason(error)}). Check the path and its permissions."
            ) from error
        return cls(folder, Snapshot(folder, dataset, model))

    @classmethod
    def open(
        cls,
        folder: Folder,
        model: Genius | None,
        version: int | None,
        refresh: float | None,
        wait: float,
        shared: Path | None = None,
    ) -> "Session":
        """Open an index at its latest version, or pinned to an older one."""
        snapshot = Snapshot(folder, open_dataset(folder, version), model, shared)
        if model is not None:
            check_model(folder, snapshot.header, model)
        return cls(folder, snapshot, version is not None, refresh, wait)

    @staticmethod
    def restore(folder: Folder, version: int | None, wait: float) -> RestoreReport:
        """Go back to an earlier version. See `Index.restore`."""
        check_folder(folder)
        with _write_lock(folder, wait), writing_to(folder):
            return restore(folder, version)

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
                    with lance_errors(lambda reason: Unreadable(self.folder, None, reason)):
                        latest = before.dataset.latest_version
                        if latest != before.version:
                            check_manifest(self.folder, latest)
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
            for number in manifests(self.folder):
                check_manifest(self.folder, number)  # names the damaged one
            raise
        return [
            Version(one["version"], one["timestamp"].astimezone(), int(one["metadata"]["total_rows"])) for one in found
        ]

    # Writing

    def prepare_writing(self) -> Snapshot:
        """Return the latest version. Raises BadIndex if the session is pinned."""
        if self._pinned:
            raise BadIndex(
                f"{self.folder} was opened at version {self._snapshot.version}, which does not change. Open the index "
                "without a version to write to it."
            )
        self.refresh()
        return self._snapshot

    @contextmanager
    def writing(self) -> Iterator[Snapshot]:
        """Hold the write lock. Gives the latest version, which no other process or thread can change meanwhile."""
        self.prepare_writing()
        with _write_lock(self.folder, self._wait):
            self.refresh()
            yield self._snapshot

    def change(
        self, gone: np.ndarray, table: pa.Table | None = None, metadata: Sequence[dict[str, Any]] | None = None
    ) -> None:
        """Delete the rows with the row ids `gone` and append others in one commit. Call it inside `writing`."""
        with writing_to(self.folder):
            if table is not None:
                table = self._with_fields(table, [{}] * len(table) if metadata is None else metadata)
            before = self._snapshot.version
            dataset = change(self.folder, self._snapshot.dataset, gone, table)
            if dataset.version == before + 1:
                self._move_to(dataset, gone)
            else:  # Lance put the change behind one of another writer: the lease was lost since it was checked
                self._move_to(dataset)
                if table is not None:
                    self._remove_doubled(table["id"])
        with suppress(OSError):  # the change itself is committed; a later one can merge files
            merged = merge_small(self.folder, self._snapshot.dataset)
            if merged is not None:
                self._move_to(merged, _NONE)

    def _remove_doubled(self, ids: pa.ChunkedArray) -> None:
        """Of items that another writer has added at the same time, keep its rows."""
        found = self._snapshot.find(ids)
        later = np.array(sorted(row for rows in found.values() for row in sorted(rows)[1:]), np.int64)
        if len(later):
            self._move_to(change(self.folder, self._snapshot.dataset, later, None))
            raise BadIndex(
                f"Another process wrote to {self.folder} at the same time, and its items with these ids were kept: "
                f"{', '.join(id for id, rows in found.items() if len(rows) > 1)[:200]}. Repeat the command."
            )

    def _with_fields(self, table: pa.Table, metadata: Sequence[dict[str, Any]]) -> pa.Table:
        """Append the columns of the metadata fields; the dataset gets the new ones."""
        dataset, header = self._snapshot.dataset, self._snapshot.header
        known = metadata_fields(dataset, header)
        columns = field_columns(metadata, known, table.schema.names)
        new = [pa.field(name, column.type) for name, column in columns.items() if name not in known]
        if new:
            self._move_to(add_fields(self.folder, dataset, new), _NONE)
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
        with writing_to(self.folder):
            dataset = replace_all(self.folder, self._snapshot.dataset, header, tables)
        with self._changing:
            self._snapshot = Snapshot(self.folder, dataset, model, self._snapshot.shared)

    def adopt(self, schema: pa.Schema, fragments: Sequence[FragmentMetadata], checksums: Checksums) -> None:
        """Make fragments that other processes wrote the rows of an empty index. Call it inside `writing`."""
        with writing_to(self.folder):
            self._move_to(adopt_fragments(self.folder, self._snapshot.dataset, schema, fragments, checksums))

    def drop_fragments(self, numbers: Sequence[int]) -> int:
        """Remove fragments, readable or not, and set aside versions that need them. Returns the number of items."""
        with self.writing() as snapshot, writing_to(self.folder):
            self._move_to(drop_fragments(self.folder, snapshot.dataset, numbers))
            set_aside_damaged(self.folder)
            return len(snapshot) - len(self._snapshot)

    def compact(self, keep: timedelta | None) -> CompactReport:
        """Merge small files and remove versions older than `keep`; None keeps all."""
        with self.writing() as snapshot, writing_to(self.folder):
            dataset, report = compact(self.folder, snapshot.dataset, keep)
            self._move_to(dataset)
            remove_unused_models(self.folder, dataset)
        return report


def is_index(folder: Folder) -> bool:
    """Whether a folder holds an index, of any state."""
    return bool(manifests(folder))


@contextmanager
def _write_lock(folder: Folder, wait: float) -> Iterator[None]:
    """Hold the lock that lets in one writer."""
    with ExitStack() as stack:
        with writing_to(folder):
            stack.enter_context(folder.locked(wait))
        yield


def _clear(folder: Folder) -> None:
    """Remove the remains of an interrupted creation."""
    for name in (ITEMS, CHECKSUMS):
        folder.delete_folder(name)


def unfinished_sources(folder: Folder) -> list[str] | None:
    """Read the sources of a creation that has not been completed; None if there is no such creation."""
    sources = _unfinished(folder).get("sources")
    return [str(source) for source in sources] if isinstance(sources, list) else None


def unfinished_engine(folder: Folder) -> str:
    """The engine of a creation that has not been completed."""
    return str(_unfinished(folder).get("engine", "local"))


def _unfinished(folder: Folder) -> dict[str, Any]:
    try:
        found = json.loads(folder.read(UNFINISHED))
    except (OSError, ValueError):  # interrupted before it was written
        return {}
    return found if isinstance(found, dict) else {}


def check_free(folder: Folder) -> None:
    """Refuse a folder that holds anything but the remains of an interrupted creation."""
    if not folder.exists():
        return
    if is_index(folder):
        raise BadIndex(
            f"{folder} exists already: it is an index. Open it with Index.open to add to it, or choose another folder."
        )
    try:
        empty = set(_REMAINS).issuperset(folder.names())
    except NotADirectoryError:
        empty = False
    if not empty:
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
