"""Collection: an index folder as this process sees it. Many may read it at once, one writes at a time.

Holds the snapshot that is read from, looks for newer ones, and lets writers in one after the other, in this process and
in others. Knows nothing of how items become rows, or of searching.
"""

import logging
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

from genius.errors import BadIndex, GeniusError
from genius.index.commits import (
    CompactReport,
    add_fields,
    change,
    compact,
    drop_fragments,
    merge_small,
    replace_all,
    writing_to,
)
from genius.index.snapshot import Snapshot, Unreadable, reading
from genius.index.storage import Header, field_columns, metadata_fields
from genius.model.genius import Genius

LOCK = "write.lock"
RETRIES = 5  # when files are removed while they are being read
_NONE = np.zeros(0, np.int64)
T = TypeVar("T")


@dataclass(frozen=True)
class Version:
    """A state of the index that `Index.open(path, version=number)` opens."""

    number: int
    time: datetime
    items: int


class Collection:
    """pinned: an older version that is to stay as it is; every: seconds after which a newer version is looked for, in a
    thread beside the readers (0: before each reading; None: never); wait: seconds that a writer waits for another one.
    """

    def __init__(
        self, path: Path, snapshot: Snapshot, pinned: bool = False, every: float | None = None, wait: float = 10.0
    ) -> None:
        self.path = path
        self._snapshot = snapshot
        self._pinned = pinned
        self._always = every == 0
        self._wait = wait
        self._changing = threading.RLock()  # of the snapshot, by threads
        self._lock = FileLock(path / LOCK, timeout=wait)  # by processes, and by threads too
        if every and not pinned:
            threading.Thread(target=_keep_fresh, args=(weakref.ref(self), every), daemon=True).start()

    # Reading

    @property
    def snapshot(self) -> Snapshot:
        """What was last seen."""
        if self._always:
            self.refresh()
        return self._snapshot

    def refresh(self) -> bool:
        """Whether there was a newer version; it is read from now on."""
        if self._pinned:
            return False
        with self._changing:
            before = self._snapshot
            for left in reversed(range(RETRIES)):
                try:
                    latest = before.dataset.latest_version
                    if latest != before.version:
                        self._snapshot = before.after(before.dataset.checkout_version(latest))
                    return self._snapshot is not before
                except (OSError, ValueError, Unreadable) as error:  # it may have been removed while it was read
                    if not left:
                        raise error if isinstance(error, Unreadable) else Unreadable(before.dataset, error) from error
        raise AssertionError

    def read(self, read: Callable[[Snapshot], T]) -> T:
        """What `read` finds in the snapshot; in the latest one, if another process has removed this one's files."""
        for _ in range(RETRIES):
            snapshot = self.snapshot
            try:
                return read(snapshot)
            except Unreadable:
                if not self.refresh() and self._snapshot is snapshot:
                    raise
        return read(self.snapshot)

    def versions(self) -> list[Version]:
        """Those that can still be opened, oldest first."""
        dataset = self.snapshot.dataset
        with reading(dataset):
            found = cast(list[dict[str, Any]], dataset.versions())
        return [
            Version(one["version"], one["timestamp"].astimezone(), int(one["metadata"]["total_rows"])) for one in found
        ]

    # Writing

    def prepare_writing(self) -> Snapshot:
        """The latest version, if it may be changed."""
        if self._pinned:
            raise BadIndex(
                f"{self.path} was opened at version {self._snapshot.version}, which does not change. Open the index "
                "without a version to write to it."
            )
        self.refresh()
        return self._snapshot

    @contextmanager
    def writing(self) -> Iterator[Snapshot]:
        """Alone: no other process or thread writes, and the snapshot is the latest version."""
        self.prepare_writing()
        with writing_to(self.path):
            try:
                self._lock.acquire()
            except Timeout as error:
                raise BadIndex(
                    f"Another process is writing to {self.path}, and did not end in {self._wait:g} seconds. Try again "
                    "when it has finished, or open the index with a longer `wait`."
                ) from error
        try:
            self.refresh()
            yield self._snapshot
        finally:
            self._lock.release()

    def change(
        self, gone: np.ndarray, table: pa.Table | None = None, metadata: Sequence[dict[str, Any]] | None = None
    ) -> None:
        """Delete rows and append others in one commit. Call it inside `writing`.

        Args:
            gone: Row ids of the rows to delete.
            table: Rows to append.
            metadata: The metadata of each of these rows; None if they have none.
        """
        with writing_to(self.path):
            if table is not None:
                table = self._with_fields(table, [{}] * len(table) if metadata is None else metadata)
            self._go_on(change(self._snapshot.dataset, gone, table), gone)
        with suppress(OSError):  # the change is made; there will be another time to tidy up
            merged = merge_small(self._snapshot.dataset)
            if merged is not None:
                self._go_on(merged, _NONE)

    def _with_fields(self, table: pa.Table, metadata: Sequence[dict[str, Any]]) -> pa.Table:
        """Append the columns of the metadata fields; the dataset gets the new ones."""
        dataset, header = self._snapshot.dataset, self._snapshot.header
        known = metadata_fields(dataset, header)
        columns = field_columns(metadata, known, table.schema.names)
        new = [pa.field(name, column.type) for name, column in columns.items() if name not in known]
        if new:
            self._go_on(add_fields(dataset, new), _NONE)
        for name, column in columns.items():
            table = table.append_column(name, column)
        return table

    def _go_on(self, dataset: lance.LanceDataset, gone: np.ndarray | None = None) -> None:
        """Read from the version that was just written."""
        with self._changing:
            if self._snapshot.version < dataset.version:  # a thread that refreshes may have come first
                self._snapshot = self._snapshot.after(dataset, gone)

    def replace_all(self, header: Header, model: Genius, tables: Iterable[pa.Table]) -> None:
        """Other rows and another header in one step. To be called while `writing`."""
        with writing_to(self.path):
            dataset = replace_all(self._snapshot.dataset, header, tables)
        with self._changing:
            self._snapshot = Snapshot(dataset, model)

    def drop_fragments(self, numbers: Sequence[int]) -> int:
        """How many items went with these fragments."""
        with self.writing() as snapshot, writing_to(self.path):
            self._go_on(drop_fragments(snapshot.dataset, numbers))
            return len(snapshot) - len(self._snapshot)

    def compact(self, keep: timedelta | None) -> CompactReport:
        with self.writing() as snapshot, writing_to(self.path):
            dataset, report = compact(snapshot.dataset, keep)
            self._go_on(dataset)
        return report


def _keep_fresh(collection: "weakref.ref[Collection]", every: float) -> None:
    """Look for newer versions until nobody uses the collection any more. What cannot be read is said once, and tried
    again."""
    said = ""
    while True:
        time.sleep(every)
        there = collection()
        if there is None:
            return
        try:
            there.refresh()
            said = ""
        except GeniusError as error:
            if str(error) != said:
                said = str(error)
                logging.getLogger("genius").warning("%s The version seen before is still used.", said)
        del there
