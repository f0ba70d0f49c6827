"""Jobs: bulk additions that the writer works through chunk by chunk. Clients can follow and cancel them."""

import secrets
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Literal

from genius.data.items import Item
from genius.errors import BadItem
from genius.runtime.wording import counted
from genius.serve.limits import ByteBudget, ServiceUnavailable
from genius.serve.settings import Settings

MAX_ENDED = 100  # ended jobs that are remembered
MAX_LISTED = 100  # refused items listed per job

JobState = Literal["waiting", "running", "done", "failed", "cancelled"]


@dataclass(frozen=True)
class WriteJob:
    """State of a bulk addition at one moment.

    Attributes:
        done: Number of items that are written, unchanged or refused.
        bad: The first refused items.
    """

    id: str
    items: int
    state: JobState = "waiting"
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
        """Whether the job is done, failed or cancelled."""
        return self.finished is not None


@dataclass(frozen=True)
class JobChunk:
    """Items of a job. `replace`: whether they may replace items with the same id."""

    job: str
    items: deque[Item | BadItem]
    replace: bool


class JobQueue:
    """The jobs of an index. Thread-safe. `budget` is shared with single writes."""

    def __init__(self, settings: Settings, budget: ByteBudget) -> None:
        self._settings, self._budget = settings, budget
        self._lock = threading.RLock()
        self._jobs: dict[str, WriteJob] = {}  # oldest first
        self._remaining: dict[str, JobChunk] = {}  # of jobs that have not ended

    def add(self, items: Iterable[Item | BadItem], replace: bool = True) -> WriteJob:
        """Queue a job. Raises ServiceUnavailable if too many jobs or bytes are waiting."""
        given = deque(items)
        with self._lock:
            if len(self._remaining) >= self._settings.max_jobs:
                raise ServiceUnavailable(
                    f"More than {counted(len(self._remaining), 'bulk addition')} would have to wait. Try "
                    "again when one has ended."
                )
            self._budget.acquire(sum(map(size_of, given)))
            job = WriteJob(secrets.token_hex(8), len(given))
            self._jobs[job.id] = job
            self._remaining[job.id] = JobChunk(job.id, given, replace)
            return job

    def list(self) -> "list[WriteJob]":
        """All jobs, newest first."""
        with self._lock:
            return list(reversed(self._jobs.values()))

    def get(self, id: str) -> WriteJob | None:
        """A job by id."""
        with self._lock:
            return self._jobs.get(id)

    def cancel(self, id: str) -> bool:
        """Cancel a job; False if it has ended. A chunk that is being written is still written."""
        with self._lock:
            job = self._jobs.get(id)
            if job is None or job.ended:
                return False
            self._end(job, "cancelled")
            return True

    def fail_all(self, reason: str) -> None:
        """Fail every job that has not ended."""
        with self._lock:
            for id in list(self._remaining):
                self._end(self._jobs[id], "failed", reason)

    # For the writer

    @property
    def waiting(self) -> int:
        """Number of jobs that have not ended."""
        return len(self._remaining)

    def take(self, size: int) -> JobChunk | None:
        """The next items of the oldest job, at most `size`; None if no job has any."""
        with self._lock:
            for id, remaining in list(self._remaining.items()):
                job = self._jobs[id]
                if job.started is None:
                    job = self._jobs[id] = replace(job, state="running", started=datetime.now(UTC))
                if remaining.items:
                    items = deque(remaining.items.popleft() for _ in range(min(size, len(remaining.items))))
                    return JobChunk(id, items, remaining.replace)
                self._end(job, "done")  # a job without items
        return None

    def finish(
        self,
        chunk: JobChunk,
        added: int = 0,
        replaced: int = 0,
        unchanged: int = 0,
        bad: Sequence[BadItem] = (),
        error: str | None = None,
    ) -> None:
        """Count and release a chunk that was taken. An error fails the job."""
        with self._lock:
            self._budget.release(sum(map(size_of, chunk.items)))
            job = self._jobs.get(chunk.job)
            if job is None:  # cancelled and forgotten in the meantime
                return
            job = self._jobs[chunk.job] = replace(
                job,
                done=job.done + added + replaced + unchanged + len(bad),
                added=job.added + added,
                replaced=job.replaced + replaced,
                unchanged=job.unchanged + unchanged,
                bad=[*job.bad, *bad][:MAX_LISTED],
                bad_count=job.bad_count + len(bad),
            )
            if job.ended:  # cancelled in the meantime
                return
            if error is not None:
                self._end(job, "failed", error)
            elif not self._remaining[job.id].items:
                self._end(job, "done")

    def _end(self, job: WriteJob, state: JobState, error: str | None = None) -> None:
        remaining = self._remaining.pop(job.id)
        self._budget.release(sum(map(size_of, remaining.items)))
        self._jobs[job.id] = replace(job, state=state, error=error, finished=datetime.now(UTC))
        ended = [id for id, one in self._jobs.items() if one.ended]
        for id in ended[: max(0, len(ended) - MAX_ENDED)]:
            del self._jobs[id]


def size_of(item: Item | BadItem) -> int:
    """Approximate size of a waiting item in bytes."""
    if isinstance(item, BadItem):
        return len(item.reason) + 200
    image = len(item.image) if isinstance(item.image, bytes) else 0
    return len(item.text or "") + image + len(repr(item.metadata)) + 500
