"""Batcher: queries that come at the same time are encoded and answered together, by one thread.

Nobody waits for a batch to fill: the thread takes whatever waits as soon as it is free, so batches grow with the load.
Knows queries, how to search, and an index; knows nothing of HTTP.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from genius.data.items import Query
from genius.encoders.base import Prepared, Vectors
from genius.errors import GeniusError
from genius.index.index import Index
from genius.model.genius import Genius
from genius.search.results import SearchResult
from genius.serve.handover import hand_over, log_unforeseen
from genius.serve.limits import Busy, TooLate
from genius.serve.settings import Settings

IMAGES = 2  # decoded at the same time
RETRIES = 3  # when another model takes over while queries are being answered
_STOPPED = "The service was stopped before the query could be answered. Ask again when it is back."


@dataclass(frozen=True)
class How:
    """How to search: queries that say the same are answered together. See `Index.search`."""

    k: int = 10
    mode: str = "fast"
    beam: int = 50
    budget: int = 1000
    ids: frozenset[str] | None = None
    where: str | None = None


@dataclass(frozen=True)
class Reply(SearchResult):
    """An answer, and how it came about.

    seconds: of this query, "queue", "prepare" and "total"; of the whole batch, "encode", "generate", "rerank", "read".
    batch: how many queries were encoded together; version, items: of the index.
    """

    batch: int
    version: int
    items: int


@dataclass(eq=False)
class _Asked:
    """A query on its way. model: the one that it is prepared for."""

    query: Query
    how: How
    future: "asyncio.Future[Reply]"
    arrived: float = field(default_factory=time.monotonic)
    queued: float = 0.0
    model: Genius | None = None
    prepared: Prepared | None = None
    preparing: float = 0.0  # seconds

    def prepare(self, model: Genius) -> Prepared:
        if self.prepared is None or self.model is not model:
            begun = time.monotonic()
            self.prepared, self.model = model.prepare_query(self.query), model
            self.preparing += time.monotonic() - begun
        return self.prepared


@dataclass(frozen=True)
class _Batch:
    """Queries that were encoded together: how many, since when, and how long it took."""

    size: int
    begun: float
    encoding: float

    def reply(self, one: _Asked, answer: SearchResult, version: int, items: int) -> Reply:
        seconds = {
            "queue": self.begun - one.queued,
            "prepare": one.preparing,
            "encode": self.encoding,
            **answer.seconds,
            "total": time.monotonic() - one.arrived,
        }
        return Reply(answer.hits, answer.branches, answer.candidates, seconds, self.size, version, items)


_Outcome = tuple[_Asked, Reply | Exception]


class Batcher:
    """seen: called by the thread with the answers of each batch, before they are given back."""

    def __init__(self, index: Index, settings: Settings, seen: Callable[[list[Reply]], None] = lambda _: None) -> None:
        self._index, self._settings, self._seen = index, settings, seen
        self._queue: queue.SimpleQueue[_Asked | None] = queue.SimpleQueue()
        self._images = ThreadPoolExecutor(IMAGES, thread_name_prefix="image")
        self._preparing = 0  # queries whose images are being decoded, or wait for that
        self._open = 0  # queries that are not answered yet
        self._closed = self._given_up = False
        self._items = (-1, 0)  # how many there are, by version
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self, timeout: float) -> None:
        """Take no more queries, answer those that wait within so many seconds, and refuse the rest."""
        self._closed = True
        end = time.monotonic() + timeout
        while self._open and time.monotonic() < end:
            await asyncio.sleep(0.01)
        self._given_up = True
        self._queue.put(None)
        self._images.shutdown(wait=False, cancel_futures=True)
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, max(1.0, end - time.monotonic()))

    @property
    def waiting(self) -> int:
        """Queries that are not being worked on yet."""
        return self._preparing + self._queue.qsize()

    # In the event loop

    async def ask(self, query: Query, how: How) -> Reply:
        """Raises BadItem for a bad image, GeniusError for a bad filter, Busy, TooLate."""
        self._admit(1)
        return await self._answered(query, how)

    async def ask_many(self, queries: Sequence[tuple[Query, How]]) -> list[Reply | GeniusError]:
        """What was wrong with a query stands in its place. Busy is raised where not all of them can wait."""
        self._admit(len(queries))
        found = await asyncio.gather(*(self._answered(*one) for one in queries), return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException) and not isinstance(one, GeniusError):
                raise one
        return [one for one in found if isinstance(one, Reply | GeniusError)]

    def _admit(self, count: int) -> None:
        if self._closed:
            raise Busy("The service is stopping. Ask again when it is back.")
        if self.waiting + count > self._settings.max_waiting:
            raise Busy(
                f"{self.waiting} queries wait already, of at most {self._settings.max_waiting}. Try again in a moment."
            )

    async def _answered(self, query: Query, how: How) -> Reply:
        loop = asyncio.get_running_loop()
        asked = _Asked(query, how, loop.create_future())
        self._open += 1
        try:
            if query.image is not None:
                await self._prepare(asked, loop)
            asked.queued = time.monotonic()
            self._queue.put(asked)
            return await asked.future
        finally:
            asked.future.cancel()  # whoever asked may be gone
            self._open -= 1

    async def _prepare(self, asked: _Asked, loop: asyncio.AbstractEventLoop) -> None:
        self._preparing += 1
        try:
            await loop.run_in_executor(self._images, lambda: asked.prepare(self._index.model))
        except (asyncio.CancelledError, RuntimeError):  # so says a pool that was shut down
            if not self._given_up:
                raise
        finally:
            self._preparing -= 1
        if self._given_up:
            raise Busy(_STOPPED)

    # In the thread

    def _run(self) -> None:
        while batch := self._take():
            hand_over((asked.future, outcome) for asked, outcome in self._outcomes(batch))

    def _take(self) -> list[_Asked]:
        """What waits: at least one query, or none when all is over."""
        batch: list[_Asked] = []
        one = self._queue.get()
        while one is not None:
            batch.append(one)
            if len(batch) == self._settings.max_batch:
                return batch
            try:
                one = self._queue.get_nowait()
            except queue.Empty:
                return batch
        if batch:
            self._queue.put(None)
        return batch

    def _outcomes(self, batch: list[_Asked]) -> list[_Outcome]:
        refused, live = self._sorted_out(batch)
        if not live:
            return refused
        try:
            for _ in range(RETRIES):
                model = self._index.model
                outcomes = self._answers(model, live)
                if self._index.model is model:  # else, other vectors than the index now has may have been compared
                    break
            self._seen([reply for _, reply in outcomes if isinstance(reply, Reply)])
        except Exception as error:  # whatever it is, the next batch may be better
            log_unforeseen(error, "A search failed.")
            outcomes = [(one, error) for one in live]
        return refused + outcomes

    def _sorted_out(self, batch: list[_Asked]) -> tuple[list[_Outcome], list[_Asked]]:
        """Without those that nobody waits for any more, or that have waited too long."""
        now = time.monotonic()
        refused: list[_Outcome] = []
        live: list[_Asked] = []
        for one in batch:
            waited = now - one.arrived
            if one.future.done():
                continue
            if self._given_up:
                refused.append((one, Busy(_STOPPED)))
            elif waited > self._settings.deadline:
                refused.append((one, TooLate(f"The query waited {waited:.1f} seconds in vain. Try again later.")))
            else:
                live.append(one)
        return refused, live

    def _answers(self, model: Genius, asked: list[_Asked]) -> list[_Outcome]:
        """Encoded together; if that cannot be done, each alone, so that a bad query harms no other."""
        begun = time.monotonic()
        try:
            vectors = model.encode([one.prepare(model) for one in asked])
        except Exception as error:
            return self._each_alone(error, asked, lambda one, _: self._answers(model, [one]))
        batch = _Batch(len(asked), begun, time.monotonic() - begun)
        groups: dict[How, list[int]] = {}
        for place, one in enumerate(asked):
            groups.setdefault(one.how, []).append(place)
        outcomes: list[_Outcome] = []
        for places in groups.values():
            outcomes += self._group([asked[place] for place in places], vectors[places], batch)
        return outcomes

    def _group(self, asked: list[_Asked], vectors: Vectors, batch: _Batch) -> list[_Outcome]:
        """Queries that are to be answered in the same way."""
        try:
            answers = self._index.answer_vectors(
                vectors, [one.query.target_modality for one in asked], **vars(asked[0].how)
            )
            state = self._state()
        except Exception as error:
            return self._each_alone(error, asked, lambda one, place: self._group([one], vectors[[place]], batch))
        return [(one, batch.reply(one, answer, *state)) for one, answer in zip(asked, answers, strict=True)]

    def _each_alone(
        self, error: Exception, asked: list[_Asked], work: Callable[[_Asked, int], list[_Outcome]]
    ) -> list[_Outcome]:
        if len(asked) == 1:
            log_unforeseen(error, "A search failed.")
            return [(asked[0], error)]
        return [outcome for place, one in enumerate(asked) for outcome in work(one, place)]

    def _state(self) -> tuple[int, int]:
        """Version of the index and number of its items."""
        version = self._index.version
        if self._items[0] != version:
            self._items = version, len(self._index)
        return self._items
