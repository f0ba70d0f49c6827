"""Jobs: additions of many items, done in the background piece by piece, that can be followed and cancelled.

Holds what waits and counts what was done; the writer does the work. Knows nothing of HTTP, or of how items are written.
"""

import secrets
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal

from genius.data.items import Item
from genius.errors import BadItem
from genius.serve.limits import Busy, Room
from genius.serve.settings import Settings

KEPT = 100  # jobs that have ended
LISTED = 100  # refused items of a job
CHUNK = 256  # items written in one step, at most

State = Literal["waiting", "running", "done", "failed", "cancelled"]


@dataclass(frozen=True)
class Job:
    """A bulk addition as it stands at one moment.

    done: items that are settled: on the disk, there before, or refused. bad: the first of the refused ones.
    """

    id: str
    items: int
    state: State = "waiting"
    done: int = 0
    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    bad: list[BadItem] = field(default_factory=list)
    bad_count: int = 0
    created: datetime = field(default_factory=lambda: datetime.now(UTC))
    started: datetime | None = None
    finished: datetime | None = None
    error: str | None = None

    @property
    def ended(self) -> bool:
        return self.finished is not None


@dataclass(frozen=True)
class Chunk:
    """Some items of a job, to be written now. replace: whether they may take the place of others."""

    job: str
    items: list[Item | BadItem]
    replace: bool


@dataclass
class _Waiting:
    """The items of a job that are still to be written."""

    items: deque[Item | BadItem]
    replace: bool


class Jobs:
    """Used from many threads. room: shared with others whose items wait."""

    def __init__(self, settings: Settings, room: Room) -> None:
        self._settings, self._room = settings, room
        self._lock = threading.RLock()
        self._jobs: dict[str, Job] = {}  # the oldest first
        self._waiting: dict[str, _Waiting] = {}  # of those that have not ended

    def add(self, items: Iterable[Item | BadItem], replace: bool = True) -> Job:
        """Raises Busy when too many jobs, or too many bytes, wait."""
        given = deque(items)
        with self._lock:
            if len(self._waiting) >= self._settings.max_jobs:
                raise Busy(f"{len(self._waiting)} bulk additions wait already. Try again when one of them has ended.")
            self._room.take(sum(map(size_of, given)))
            job = Job(secrets.token_hex(8), len(given))
            self._jobs[job.id] = job
            self._waiting[job.id] = _Waiting(given, replace)
            return job

    def list(self) -> "list[Job]":
        """The newest first."""
        with self._lock:
            return list(reversed(self._jobs.values()))

    def get(self, id: str) -> Job | None:
        with self._lock:
            return self._jobs.get(id)

    def cancel(self, id: str) -> bool:
        """Whether there was something to cancel. What is being written just now still is."""
        with self._lock:
            job = self._jobs.get(id)
            if job is None or job.ended:
                return False
            self._end(job, "cancelled")
            return True

    def fail_all(self, reason: str) -> None:
        """End every job that has not ended."""
        with self._lock:
            for id in list(self._waiting):
                self._end(self._jobs[id], "failed", reason)

    # For the writer

    @property
    def waiting(self) -> int:
        """Jobs that have not ended."""
        return len(self._waiting)

    def take(self, size: int) -> Chunk | None:
        """The next items of the oldest job, at most so many; None if there are none."""
        with self._lock:
            for id, waiting in list(self._waiting.items()):
                job = self._jobs[id]
                if job.started is None:
                    job = self._jobs[id] = replace(job, state="running", started=datetime.now(UTC))
                if waiting.items:
                    items = [waiting.items.popleft() for _ in range(min(size, len(waiting.items)))]
                    return Chunk(id, items, waiting.replace)
                self._end(job, "done")  # it had no items at all
        return None

    def settled(self, id: str, added: int, replaced: int, unchanged: int, bad: Sequence[BadItem]) -> None:
        """So many more items of a job are on the disk, were there before, or are refused."""
        with self._lock:
            job = self._jobs.get(id)
            if job is not None:
                self._jobs[id] = replace(
                    job,
                    done=job.done + added + replaced + unchanged + len(bad),
                    added=job.added + added,
                    replaced=job.replaced + replaced,
                    unchanged=job.unchanged + unchanged,
                    bad=[*job.bad, *bad][:LISTED],
                    bad_count=job.bad_count + len(bad),
                )

    def finished(self, chunk: Chunk, error: str | None = None) -> None:
        """The chunk that was taken is over. error: why the job cannot go on."""
        with self._lock:
            waiting = self._waiting.get(chunk.job)
            self._room.give_back(sum(map(size_of, chunk.items)))
            if waiting is None:  # cancelled in the meantime
                return
            if error is not None:
                self._end(self._jobs[chunk.job], "failed", error)
            elif not waiting.items:
                self._end(self._jobs[chunk.job], "done")

    def _end(self, job: Job, state: State, error: str | None = None) -> None:
        waiting = self._waiting.pop(job.id)
        self._room.give_back(sum(map(size_of, waiting.items)))
        self._jobs[job.id] = replace(job, state=state, error=error, finished=datetime.now(UTC))
        ended = [id for id, one in self._jobs.items() if one.ended]
        for id in ended[: max(0, len(ended) - KEPT)]:
            del self._jobs[id]


def size_of(item: Item | BadItem) -> int:
    """Bytes that an item takes while it waits, by and large."""
    if isinstance(item, BadItem):
        return len(item.reason) + 200
    image = len(item.image) if isinstance(item.image, bytes) else 0
    return len(item.text or "") + image + len(repr(item.metadata)) + 500
