"""Batcher: one thread encodes and answers queries that arrive at the same time together.

The thread takes all waiting queries as soon as it is free and never waits for a batch to fill, so batches grow with the
load.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from genius.data.items import Query
from genius.encoders.base import Prepared
from genius.errors import GeniusError
from genius.index.index import Index
from genius.model.genius import Genius
from genius.runtime.wording import counted
from genius.search.options import SearchOptions
from genius.search.results import SearchResult
from genius.serve.limits import NOT_READY, QueryExpired, ServiceUnavailable
from genius.serve.settings import Settings
from genius.serve.threads import decoders, log_unexpected, resolve

QUERY_STAGES = ("queue", "prepare", "total")  # measured per query, all other stages per batch
MAX_ATTEMPTS = 3  # per batch, if the model is replaced in the meantime
_STOPPED = "The service stopped before it answered the query. Try again when it is back."


@dataclass(frozen=True)
class ServedResult(SearchResult):
    """A search result of the service. `seconds` has the stages of the query and of its batch (see `QUERY_STAGES`)."""

    batch: int  # queries encoded together
    version: int  # of the index
    items: int  # in the index


@dataclass(eq=False)
class _PendingQuery:
    """A query that is not answered yet. `prepared` holds the input of `model`'s encoder."""

    query: Query
    options: SearchOptions
    future: "asyncio.Future[ServedResult]"
    arrived: float = field(default_factory=time.monotonic)
    queued: float = 0.0
    model: Genius | None = None
    prepared: Prepared | None = None
    prepare_seconds: float = 0.0

    def prepare(self, model: Genius) -> Prepared:
        if self.prepared is None or self.model is not model:
            begun = time.monotonic()
            self.prepared, self.model = model.prepare_query(self.query), model
            self.prepare_seconds += time.monotonic() - begun
        return self.prepared


_Outcome = tuple[_PendingQuery, ServedResult | Exception]


class Batcher:
    """Answers queries in batches. `on_batch` is called by the thread with the results of each batch."""

    def __init__(
        self, index: Index, settings: Settings, on_batch: Callable[[list[ServedResult]], None] = lambda _: None
    ) -> None:
        self._index, self._settings, self._on_batch = index, settings, on_batch
        self._queue: queue.SimpleQueue[_PendingQuery | None] = queue.SimpleQueue()
        self._preparing = 0  # queries whose images are waiting for a decoder, or being decoded
        self._decoding: set[asyncio.Future[Prepared]] = set()
        self._open = 0  # unanswered queries
        self._closed, self._given_up = True, False  # closed until `start`
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)

    def start(self) -> None:
        """Start the thread and accept queries."""
        self._thread.start()
        self._closed = False

    async def stop(self, timeout: float) -> None:
        """Accept no more queries, answer the waiting ones for at most `timeout` seconds, and refuse the rest."""
        self._closed = True
        end = time.monotonic() + timeout
        while self._open and time.monotonic() < end:
            await asyncio.sleep(0.01)
        self._given_up = True
        for decoding in self._decoding:
            decoding.cancel()
        self._queue.put(None)
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, max(1.0, end - time.monotonic()))

    @property
    def waiting(self) -> int:
        """Number of queries that the thread has not taken yet."""
        return self._preparing + self._queue.qsize()

    # In the event loop

    async def search(self, query: Query, options: SearchOptions, pixels: int = 0) -> ServedResult:
        """Answer a query. Raises ServiceUnavailable or QueryExpired, and GeniusError for a bad image or filter.

        `pixels`: of the query's image. Smaller images are decoded first.
        """
        self._admit([query])
        return await self._answer(query, options, pixels)

    async def search_many(
        self, queries: Sequence[tuple[Query, SearchOptions, int]]
    ) -> list[ServedResult | GeniusError]:
        """Answer several queries, each with its options and pixels (see `search`).

        A failed query gives its error. Raises ServiceUnavailable.
        """
        self._admit([query for query, _, _ in queries])
        found = await asyncio.gather(*(self._answer(*one) for one in queries), return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException) and not isinstance(one, GeniusError):
                raise one
        return [one for one in found if isinstance(one, ServedResult | GeniusError)]

    def _admit(self, queries: Sequence[Query]) -> None:
        """Raise ServiceUnavailable if too many queries wait. Images may take half of the places, texts the rest."""
        if self._closed:
            raise ServiceUnavailable(NOT_READY)
        images = sum(query.image is not None for query in queries)
        if images and self._preparing + images > self._settings.max_waiting_images:
            raise ServiceUnavailable(
                f"More than {counted(self._settings.max_waiting_images, 'image')} would have to wait. Try "
                "again in a moment."
            )
        if self.waiting + len(queries) > self._settings.max_waiting:
            raise ServiceUnavailable(
                f"More than {counted(self._settings.max_waiting, 'query', 'queries')} would have to wait. Try "
                "again in a moment."
            )

    async def _answer(self, query: Query, options: SearchOptions, pixels: int) -> ServedResult:
        loop = asyncio.get_running_loop()
        pending = _PendingQuery(query, options, loop.create_future())
        self._open += 1
        try:
            if query.image is not None:
                await self._prepare(pending, pixels)
            pending.queued = time.monotonic()
            self._queue.put(pending)
            return await pending.future
        finally:
            pending.future.cancel()  # the client may have disconnected
            self._open -= 1

    async def _prepare(self, pending: _PendingQuery, pixels: int) -> None:
        """Decode the image of a query. Nothing is decoded for a query that has expired or was cancelled."""
        self._preparing += 1
        decoding = asyncio.ensure_future(
            decoders.run(lambda: pending.prepare(self._index.model), pixels, self._settings.deadline)
        )
        self._decoding.add(decoding)
        try:
            await decoding
        except asyncio.CancelledError:
            if self._given_up:  # cancelled by `stop`
                raise ServiceUnavailable(_STOPPED) from None
            raise
        finally:
            decoding.cancel()
            self._decoding.discard(decoding)
            self._preparing -= 1

    # In the thread

    def _run(self) -> None:
        while batch := self._take():
            resolve((pending.future, outcome) for pending, outcome in self._outcomes(batch))

    def _take(self) -> list[_PendingQuery]:
        """Wait for a query and take all that are queued. Empty after `stop`."""
        batch: list[_PendingQuery] = []
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

    def _outcomes(self, batch: list[_PendingQuery]) -> list[_Outcome]:
        refused, live = self._split_expired(batch)
        if not live:
            return refused
        try:
            for _ in range(MAX_ATTEMPTS):
                model = self._index.model
                outcomes = self._encode_and_search(model, live)
                if self._index.model is model:  # otherwise the vectors may not match the index
                    break
            self._on_batch([result for _, result in outcomes if isinstance(result, ServedResult)])
        except Exception as error:  # the thread must survive
            log_unexpected(error, "A search failed.")
            outcomes = [(one, error) for one in live]
        return refused + outcomes

    def _split_expired(self, batch: list[_PendingQuery]) -> tuple[list[_Outcome], list[_PendingQuery]]:
        """Refuse expired queries and drop cancelled ones. Returns the refusals and the remaining queries."""
        now = time.monotonic()
        refused: list[_Outcome] = []
        live: list[_PendingQuery] = []
        for one in batch:
            waited = now - one.arrived
            if one.future.done():
                continue
            if self._given_up:
                refused.append((one, ServiceUnavailable(_STOPPED)))
            elif waited > self._settings.deadline:
                refused.append((one, QueryExpired(f"The query expired after {waited:.1f} seconds. Try again later.")))
            else:
                live.append(one)
        return refused, live

    def _encode_and_search(self, model: Genius, pending: list[_PendingQuery]) -> list[_Outcome]:
        """Encode the queries together and search per group of equal options."""
        begun = time.monotonic()
        try:
            vectors = model.encode([one.prepare(model) for one in pending])
        except Exception as error:
            return self._retry_alone(model, pending, error)
        encode_seconds = time.monotonic() - begun
        groups: dict[SearchOptions, list[int]] = {}
        for place, one in enumerate(pending):
            groups.setdefault(one.options, []).append(place)
        outcomes: list[_Outcome] = []
        for options, places in groups.items():
            group = [pending[place] for place in places]
            try:
                targets = [one.query.target_modality for one in group]
                results = self._index.answer_vectors(vectors[places], targets, **vars(options))
                version, items = self._index.version, len(self._index)
            except Exception as error:
                outcomes += self._retry_alone(model, group, error)
                continue
            for one, result in zip(group, results, strict=True):
                seconds = {
                    "queue": begun - one.queued,
                    "prepare": one.prepare_seconds,
                    "encode": encode_seconds,
                    **result.seconds,
                    "total": time.monotonic() - one.arrived,
                }
                served = {**vars(result), "seconds": seconds, "batch": len(pending), "version": version, "items": items}
                outcomes.append((one, ServedResult(**served)))
        return outcomes

    def _retry_alone(self, model: Genius, pending: list[_PendingQuery], error: Exception) -> list[_Outcome]:
        """Answer each query of a failed batch alone, so that a bad query does not fail the others."""
        if len(pending) == 1:
            log_unexpected(error, "A search failed.")
            return [(pending[0], error)]
        return [outcome for one in pending for outcome in self._encode_and_search(model, [one])]
