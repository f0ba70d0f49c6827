"""Writer: puts, deletes and bulk additions, done by one thread, each acknowledged once it is safe on the disk.

What waits at the same time goes into one commit, and bulk additions are done in pieces, so that a single item never
waits long. Compacts the index by itself. Knows nothing of HTTP.
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
from genius.serve.handover import hand_over, log_unforeseen
from genius.serve.jobs import CHUNK, Chunk, Job, Jobs, size_of
from genius.serve.limits import Busy, Room
from genius.serve.settings import Settings

GROUP = 256  # writes that go into one commit, at most
PATIENCE = 1.0  # seconds that a piece of a bulk addition should take, so long a single item may have to wait
LAST_COMMIT = 5.0  # seconds that a commit which has begun is waited for when the service stops
COMPACT_AFTER = 200  # commits: every one leaves a version and small files behind
COMPACT_AT_LAST = 5 * COMPACT_AFTER  # even if there is never a quiet moment
KEEP = timedelta(hours=1)  # versions that readers may still have open
_STOPPING = "The service is stopping. Try again when it is back."
_STOPPED = "The service was stopped before it was written. Send it again when the service is back."

Status = Literal["created", "replaced", "unchanged"]


@dataclass(eq=False)
class _Write:
    """item: to be put; None: the item with this id is to be deleted."""

    id: str
    item: Item | None
    size: int
    future: "asyncio.Future[Any]"


class Writer:
    """seen: called by the thread with what became of how many items: "created", "replaced", "bad" and so on."""

    def __init__(self, index: Index, settings: Settings, seen: Callable[[str, int], None] = lambda *_: None) -> None:
        self._index, self._settings, self._seen = index, settings, seen
        self._room = Room(settings.max_waiting_bytes)
        self.jobs = Jobs(settings, self._room)
        self._writes: list[_Write] = []
        self._wake = threading.Condition()
        self._closed = self._given_up = False
        self._commits = 0  # since the index was compacted
        self._chunk = CHUNK // 8  # items of a bulk addition that can be written in good time
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self, timeout: float) -> None:
        """Take nothing more, write what waits within so many seconds, and refuse the rest."""
        self._close()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, timeout)
        self._refuse_rest()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, LAST_COMMIT)

    @property
    def waiting(self) -> int:
        """Single writes that are not being worked on yet."""
        return len(self._writes)

    # In the event loop

    async def put(self, item: Item) -> tuple[Status, int]:
        """What became of the item, and the version that has it. Raises BadItem for one that cannot be read, Busy."""
        status: tuple[Status, int] = await self._written(item.id, item, size_of(item))
        return status

    async def delete(self, id: str) -> bool:
        """Whether there was such an item."""
        found: bool = await self._written(id, None, len(id))
        return found

    def add(self, items: Iterable[Item | BadItem], replace: bool = True) -> Job:
        with self._wake:
            if self._closed:
                raise Busy(_STOPPING)
            job = self.jobs.add(items, replace)
            self._wake.notify()
        return job

    async def _written(self, id: str, item: Item | None, size: int) -> Any:
        write = _Write(id, item, size, asyncio.get_running_loop().create_future())
        with self._wake:
            if self._closed:
                raise Busy(_STOPPING)
            if len(self._writes) >= self._settings.max_waiting:
                raise Busy(f"{len(self._writes)} items wait to be written already. Try again in a moment.")
            self._room.take(size)
            self._writes.append(write)
            self._wake.notify()
        return await write.future

    def _close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify()

    def _refuse_rest(self) -> None:
        with self._wake:
            self._given_up = True
            rest, self._writes = self._writes, []
        self.jobs.fail_all(_STOPPED)
        self._settle(rest, [Busy(_STOPPED)] * len(rest))

    # In the thread

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._writes or self.jobs.waiting or self._closed)
                writes, self._writes = self._writes[:GROUP], self._writes[GROUP:]
            chunk = None
            if writes:
                self._write(writes)
            if not self._given_up:
                chunk = self.jobs.take(self._chunk)
            if chunk is not None:
                self._add(chunk)
            idle = not self._writes and not self.jobs.waiting
            if self._closed and (idle or self._given_up):
                return
            self._compact(idle)

    def _write(self, writes: list[_Write]) -> None:
        """One commit for all puts and one for all deletes; more only where an id is written to more than once."""
        rounds: list[tuple[list[_Write], list[_Write]]] = []
        before: Counter[str] = Counter()
        for write in writes:
            if write.future.done():  # nobody waits for it any more
                self._room.give_back(write.size)
                continue
            if before[write.id] == len(rounds):
                rounds.append(([], []))
            rounds[before[write.id]][write.item is None].append(write)
            before[write.id] += 1
        for puts, deletes in rounds:
            if puts:
                self._settle(puts, self._put([write.item for write in puts if write.item is not None]))
            if deletes:
                self._settle(deletes, self._delete([write.id for write in deletes]))

    def _settle(self, writes: list[_Write], outcomes: list[Any]) -> None:
        for write in writes:
            self._room.give_back(write.size)
        hand_over((write.future, outcome) for write, outcome in zip(writes, outcomes, strict=True))

    def _put(self, items: list[Item]) -> list[tuple[Status, int] | Exception]:
        """What became of each; ids differ."""
        committed: set[str] = set()
        there: set[str] = set()
        bad: dict[str, BadItem] = {}
        failure: Exception | None = None
        version = 0
        try:
            there = self._there([item.id for item in items])
            bad = {one.id: one for one in self._index.upsert(items, on_commit=committed.update).bad}
            version = self._index.version
        except Exception as error:
            log_unforeseen(error, "Items could not be written.")
            failure = error
        self._commits += bool(committed)
        outcomes: list[tuple[Status, int] | Exception] = []
        for item in items:
            if item.id in committed:
                outcomes.append(("replaced" if item.id in there else "created", version))
            elif item.id not in bad and failure is None and item.id in there:
                outcomes.append(("unchanged", version))
            else:
                outcomes.append(bad.get(item.id) or failure or BadItem(item.id, "the item was not written."))
            self._seen(_label(outcomes[-1]), 1)
        return outcomes

    def _delete(self, ids: list[str]) -> list[bool | Exception]:
        try:
            there = self._there(ids)
            gone = self._index.delete(ids)
        except Exception as error:
            log_unforeseen(error, "Items could not be deleted.")
            self._seen("failed", len(ids))
            return [error] * len(ids)
        self._commits += bool(gone)
        self._seen("deleted", gone)
        return [id in there for id in ids]

    def _there(self, ids: list[str]) -> set[str]:
        """Those of the ids that the latest version has."""
        self._index.refresh()
        return {item.id for item in self._index.get(ids) if item is not None}

    def _add(self, chunk: Chunk) -> None:
        """A piece of a bulk addition."""
        committed: list[str] = []
        begun = time.monotonic()
        write = self._index.upsert if chunk.replace else self._index.add
        try:
            report = write(chunk.items, on_commit=committed.extend)
        except Exception as error:
            log_unforeseen(error, "A bulk addition failed.")
            self.jobs.settled(chunk.job, len(committed), 0, 0, [])
            self.jobs.finished(chunk, _sentence(error))
            self._seen("created", len(committed))
            self._seen("failed", len(chunk.items) - len(committed))
            return
        finally:
            self._commits += bool(committed)
        counts = report.added - report.replaced, report.replaced, report.unchanged
        self.jobs.settled(chunk.job, *counts, report.bad)
        self.jobs.finished(chunk)
        for status, count in zip(("created", "replaced", "unchanged", "bad"), (*counts, len(report.bad)), strict=True):
            self._seen(status, count)
        self._learn(len(chunk.items), time.monotonic() - begun)

    def _learn(self, items: int, seconds: float) -> None:
        """How many items can be written in good time: images take longer than texts."""
        if seconds > PATIENCE:
            self._chunk = max(1, int(items * PATIENCE / seconds))
        elif items == self._chunk and seconds < PATIENCE / 2:
            self._chunk = min(CHUNK, 2 * self._chunk)

    def _compact(self, idle: bool) -> None:
        if self._commits < (COMPACT_AFTER if idle else COMPACT_AT_LAST):
            return
        self._commits = 0
        try:
            self._index.compact(keep=KEEP)
        except Exception as error:  # there will be another time
            log_unforeseen(error, "The index could not be compacted.")
            logging.getLogger("genius.serve").warning("The index was not compacted: %s", error)


def _label(outcome: tuple[Status, int] | Exception) -> str:
    if isinstance(outcome, tuple):
        return outcome[0]
    return "bad" if isinstance(outcome, BadItem) else "failed"


def _sentence(error: Exception) -> str:
    if isinstance(error, GeniusError):
        return str(error)
    return "An error that nobody foresaw. The log of the service says more; what was counted is written."
