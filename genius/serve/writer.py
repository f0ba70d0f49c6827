"""Writer: one thread writes items and acknowledges each write once it is on the disk.

Writes that wait at the same time share a commit. Bulk additions are written in chunks, so that a single item never
waits long. The writer also compacts the index.
"""

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from genius.data.items import Item
from genius.errors import BadItem, GeniusError
from genius.index.index import Index
from genius.runtime.wording import counted
from genius.serve.jobs import JobChunk, JobQueue, WriteJob, size_of
from genius.serve.limits import NOT_READY, ByteBudget, ServiceUnavailable
from genius.serve.settings import Settings
from genius.serve.threads import log_unexpected, lower_priority, resolve

MAX_GROUP = 256  # single writes per commit
MAX_CHUNK = 256  # items of a bulk addition per commit
CHUNK_SECONDS = 1.0  # intended duration of a chunk, during which single writes have to wait
LAST_COMMIT = 5.0  # seconds that `stop` waits for a commit in progress
COMPACT_AFTER = 200  # commits, if the writer is idle: every commit leaves a version and small files behind
COMPACT_BUSY = 5 * COMPACT_AFTER  # commits, even if it is never idle
KEEP = timedelta(hours=1)  # age up to which versions are kept for readers
_STOPPED = "The service stopped before the item was written. Send it again when the service is back."

WriteStatus = Literal["created", "replaced", "unchanged"]


@dataclass(eq=False)
class _PendingWrite:
    """A single write. Without an item, the item with this id is deleted; with a filter, the items that match it."""

    id: str
    item: Item | None
    size: int
    future: "asyncio.Future[Any]"
    where: str | None = None


class Writer:
    """Writes to an index. `on_write` is called by the thread with outcomes ("created", "bad", ...) and their counts."""

    def __init__(
        self, index: Index, settings: Settings, on_write: Callable[[str, int], None] = lambda *_: None
    ) -> None:
        self._index, self._settings, self._on_write = index, settings, on_write
        self._budget = ByteBudget(settings.max_waiting_bytes)
        self.jobs = JobQueue(settings, self._budget)
        self._writes: list[_PendingWrite] = []
        self._wake = threading.Condition()
        self._closed, self._given_up = True, False  # closed until `start`
        self._commits = 0  # since the index was compacted
        self._chunk_size = MAX_CHUNK // 8  # adapts to CHUNK_SECONDS
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def start(self) -> None:
        """Start the thread and accept writes."""
        self._closed = False
        self._thread.start()

    async def stop(self, timeout: float) -> None:
        """Accept no more writes, write the waiting ones for at most `timeout` seconds, and refuse the rest."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, timeout)
        self._refuse_rest()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, LAST_COMMIT)

    @property
    def waiting(self) -> int:
        """Number of single writes that the thread has not taken yet."""
        return len(self._writes)

    # In the event loop

    async def put(self, item: Item) -> tuple[WriteStatus, int]:
        """Write an item. Returns the status and the version that holds it. Raises BadItem, ServiceUnavailable."""
        status: tuple[WriteStatus, int] = await self._submit(item.id, item, size_of(item))
        return status

    async def delete(self, id: str) -> bool:
        """Delete an item; False if there is none with this id. Raises ServiceUnavailable."""
        found: bool = await self._submit(id, None, len(id))
        return found

    async def delete_where(self, where: str) -> tuple[int, int]:
        """Delete the items that match a filter. Returns their number and the version without them.

        Raises GeniusError for a bad filter, ServiceUnavailable.
        """
        deleted: tuple[int, int] = await self._submit("", None, len(where), where)
        return deleted

    def add(self, items: Iterable[Item | BadItem], replace: bool = True) -> WriteJob:
        """Queue a bulk addition. Raises ServiceUnavailable."""
        with self._wake:
            if self._closed:
                raise ServiceUnavailable(NOT_READY)
            job = self.jobs.add(items, replace)
            self._wake.notify()
        return job

    async def _submit(self, id: str, item: Item | None, size: int, where: str | None = None) -> Any:
        write = _PendingWrite(id, item, size, asyncio.get_running_loop().create_future(), where)
        with self._wake:
            if self._closed:
                raise ServiceUnavailable(NOT_READY)
            if len(self._writes) >= self._settings.max_waiting:
                raise ServiceUnavailable(
                    f"More than {counted(len(self._writes), 'change')} would have to wait. Try again in a moment."
                )
            self._budget.acquire(size)
            self._writes.append(write)
            self._wake.notify()
        return await write.future

    def _refuse_rest(self) -> None:
        with self._wake:
            self._given_up = True
            rest, self._writes = self._writes, []
        self.jobs.fail_all(_STOPPED)
        self._finish(rest, [ServiceUnavailable(_STOPPED)] * len(rest))

    # In the thread

    def _run(self) -> None:
        lower_priority()  # of the threads that decode the images of items, too
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._writes or self.jobs.waiting or self._closed)
                writes, self._writes = self._writes[:MAX_GROUP], self._writes[MAX_GROUP:]
            chunk = None
            if writes:
                self._write(writes)
            if not self._given_up:
                chunk = self.jobs.take(self._chunk_size)
            if chunk is not None:
                self._add(chunk)
            idle = not self._writes and not self.jobs.waiting
            if self._closed and (idle or self._given_up):
                return
            self._compact(idle)

    def _write(self, writes: list[_PendingWrite]) -> None:
        """Write in order: what stands before a deletion by filter is written before it, so that it is seen by it."""
        single: list[_PendingWrite] = []
        for write in writes:
            if write.where is None:
                single.append(write)
                continue
            self._write_single(single)
            single = []
            if write.future.done():  # cancelled
                self._budget.release(write.size)
            else:
                self._finish([write], [self._delete_where(write.where)])
        self._write_single(single)

    def _write_single(self, writes: list[_PendingWrite]) -> None:
        """One commit for all puts and one for all deletes; further rounds for ids that are written more than once."""
        rounds: list[tuple[list[_PendingWrite], list[_PendingWrite]]] = []
        seen: Counter[str] = Counter()
        for write in writes:
            if write.future.done():  # cancelled
                self._budget.release(write.size)
                continue
            if seen[write.id] == len(rounds):
                rounds.append(([], []))
            rounds[seen[write.id]][write.item is None].append(write)
            seen[write.id] += 1
        for puts, deletes in rounds:
            if puts:
                self._finish(puts, self._put([write.item for write in puts if write.item is not None]))
            if deletes:
                self._finish(deletes, self._delete([write.id for write in deletes]))

    def _finish(self, writes: list[_PendingWrite], outcomes: list[Any]) -> None:
        for write in writes:
            self._budget.release(write.size)
        resolve((write.future, outcome) for write, outcome in zip(writes, outcomes, strict=True))

    def _put(self, items: list[Item]) -> list[tuple[WriteStatus, int] | Exception]:
        """Write items with distinct ids. Returns the outcome of each."""
        committed: set[str] = set()
        existing: set[str] = set()
        bad: dict[str, BadItem] = {}
        failure: Exception | None = None
        version = 0
        try:
            existing = self._existing([item.id for item in items])
            bad = {one.id: one for one in self._index.upsert(items, on_commit=committed.update).bad}
            version = self._index.version
        except Exception as error:
            log_unexpected(error, "Items could not be written.")
            failure = error
        self._commits += bool(committed)
        outcomes: list[tuple[WriteStatus, int] | Exception] = []
        for item in items:
            if item.id in committed:
                outcomes.append(("replaced" if item.id in existing else "created", version))
            elif item.id not in bad and failure is None and item.id in existing:
                outcomes.append(("unchanged", version))
            else:
                outcomes.append(bad.get(item.id) or failure or BadItem(item.id, "the item was not written."))
            self._on_write(_label(outcomes[-1]), 1)
        return outcomes

    def _delete(self, ids: list[str]) -> list[bool | Exception]:
        try:
            existing = self._existing(ids)
            deleted = self._index.delete(ids)
        except Exception as error:
            log_unexpected(error, "Items could not be deleted.")
            self._on_write("failed", len(ids))
            return [error] * len(ids)
        self._commits += bool(deleted)
        self._on_write("deleted", deleted)
        return [id in existing for id in ids]

    def _delete_where(self, where: str) -> tuple[int, int] | Exception:
        try:
            deleted = self._index.delete(where=where)
            version = self._index.version
        except Exception as error:
            log_unexpected(error, "Items could not be deleted.")
            self._on_write("failed", 1)
            return error
        self._commits += bool(deleted)
        self._on_write("deleted", deleted)
        return deleted, version

    def _existing(self, ids: list[str]) -> set[str]:
        """The ids that exist in the latest version."""
        self._index.refresh()
        return {item.id for item in self._index.get(ids) if item is not None}

    def _add(self, chunk: JobChunk) -> None:
        """Write a chunk of a bulk addition."""
        committed: list[str] = []
        begun = time.monotonic()
        write = self._index.upsert if chunk.replace else self._index.add
        try:
            report = write(chunk.items, on_commit=committed.extend)
        except Exception as error:
            log_unexpected(error, "A bulk addition failed.")
            self.jobs.finish(chunk, added=len(committed), error=_sentence(error))
            self._on_write("created", len(committed))
            self._on_write("failed", len(chunk.items) - len(committed))
            return
        finally:
            self._commits += bool(committed)
        counts = report.added - report.replaced, report.replaced, report.unchanged
        self.jobs.finish(chunk, *counts, report.bad)
        for outcome, count in zip(("created", "replaced", "unchanged", "bad"), (*counts, len(report.bad)), strict=True):
            self._on_write(outcome, count)
        self._adapt_chunk_size(len(chunk.items), time.monotonic() - begun)

    def _adapt_chunk_size(self, items: int, seconds: float) -> None:
        """Aim at CHUNK_SECONDS per chunk: images take longer than texts."""
        if seconds > CHUNK_SECONDS:
            self._chunk_size = max(1, int(items * CHUNK_SECONDS / seconds))
        elif items == self._chunk_size and seconds < CHUNK_SECONDS / 2:
            self._chunk_size = min(MAX_CHUNK, 2 * self._chunk_size)

    def _compact(self, idle: bool) -> None:
        if self._commits < (COMPACT_AFTER if idle else COMPACT_BUSY):
            return
        self._commits = 0
        try:
            self._index.compact(keep=KEEP)
        except Exception:  # the next attempt may succeed
            logging.getLogger("genius.serve").exception("The index could not be compacted.")


def _label(outcome: tuple[WriteStatus, int] | Exception) -> str:
    if isinstance(outcome, tuple):
        return outcome[0]
    return "bad" if isinstance(outcome, BadItem) else "failed"


def _sentence(error: Exception) -> str:
    if isinstance(error, GeniusError):
        return str(error)
    return "An unexpected error occurred. The log of the service has the reason; counted items are written."
