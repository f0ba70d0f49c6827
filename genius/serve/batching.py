"""Batcher: queries that arrive at the same time are encoded together and searched together, by two threads.

The encoding thread takes all waiting queries as soon as it is free and never waits for a batch to fill, so batches grow
with the load. While the searching thread answers one batch, the next one is encoded.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from genius.data.items import Query
from genius.encoders.base import Prepared, Vectors
from genius.errors import GeniusError
from genius.index.index import Index
from genius.model.genius import Genius
from genius.runtime.wording import counted
from genius.search.options import SearchOptions
from genius.search.results import SearchResult
from genius.serve.limits import NOT_READY, QueryExpired, ServiceUnavailable
from genius.serve.settings import Settings
from genius.serve.threads import decoders, log_unexpected, resolve

T = TypeVar("T")

QUERY_STAGES = ("queue", "prepare", "total")  # measured per query, all other stages per batch
MAX_ATTEMPTS = 3  # per batch, if the model is replaced in the meantime
MAX_TAKEN = 2  # batches: one is encoded while one is searched. Queries that come later wait together in the queue.
_STOPPED = "The service stopped before it answered the query. Try again when it is back."


@dataclass(frozen=True)
class ServedResult(SearchResult):
    """A search result of the service. `seconds` has the stages of the query and of its batch (see `QUERY_STAGES`)."""

    batch: int  # queries encoded and searched together
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


@dataclass(frozen=True)
class _EncodedBatch:
    """Queries and their vectors, made by `model`."""

    model: Genius
    pending: list[_PendingQuery]
    vectors: Vectors
    begun: float
    encode_seconds: float


_Outcome = tuple[_PendingQuery, ServedResult | Exception]


class Batcher:
    """Answers queries in batches. `on_batch` is called by the searching thread with the results of each batch."""

    def __init__(
        self, index: Index, settings: Settings, on_batch: Callable[[list[ServedResult]], None] = lambda _: None
    ) -> None:
        self._index, self._settings, self._on_batch = index, settings, on_batch
        self._queue: queue.SimpleQueue[_PendingQuery | None] = queue.SimpleQueue()
        self._preparing = 0  # queries whose images are waiting for a decoder, or being decoded
        self._decoding: set[asyncio.Future[Prepared]] = set()
        self._open = 0  # unanswered queries
        self._closed, self._given_up = True, False  # closed until `start`
        self._taken = threading.Semaphore(MAX_TAKEN)
        self._encoded: queue.SimpleQueue[_EncodedBatch | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._encode_batches, name="genius-encode", daemon=True),
            threading.Thread(target=self._search_batches, name="genius-search", daemon=True),
        ]

    def start(self) -> None:
        """Start the threads and accept queries."""
        for thread in self._threads:
            thread.start()
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
        end = max(end, time.monotonic() + 1)
        for thread in self._threads:
            if thread.is_alive():
                await asyncio.to_thread(thread.join, max(0.0, end - time.monotonic()))

    @property
    def waiting(self) -> int:
        """Number of queries that have not been taken to be encoded."""
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

    # In the encoding thread

    def _encode_batches(self) -> None:
        while True:
            self._taken.acquire()
            batch = self._take()
            if not batch:
                break
            encoded = None
            try:
                if live := self._refuse_expired(batch):
                    encoded = self._encode(live)
            except Exception as error:  # the thread must survive
                log_unexpected(error, "A search failed.")
                _settle((one, error) for one in batch)
            if encoded is None:
                self._taken.release()
            else:
                self._encoded.put(encoded)
        self._encoded.put(None)

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

    def _refuse_expired(self, batch: list[_PendingQuery]) -> list[_PendingQuery]:
        """Refuse expired queries and drop cancelled ones. Returns the remaining queries."""
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
        _settle(refused)
        return live

    def _encode(self, pending: list[_PendingQuery]) -> _EncodedBatch | None:
        """Encode queries together. Failed ones are settled with their errors; None if no other is left."""
        begun, model = time.monotonic(), self._index.model
        encoded: list[_PendingQuery] = []
        vectors: list[Vectors] = []
        for queries, outcome in _together_or_alone(
            pending, lambda queries: model.encode([one.prepare(model) for one in queries])
        ):
            if isinstance(outcome, Exception):
                _settle((one, outcome) for one in queries)
            else:
                encoded += queries
                vectors.append(outcome)
        if not encoded:
            return None
        return _EncodedBatch(model, encoded, Vectors.concatenate(vectors), begun, time.monotonic() - begun)

    # In the searching thread

    def _search_batches(self) -> None:
        while (batch := self._encoded.get()) is not None:
            try:
                self._answer_batch(batch)
            except Exception as error:  # the thread must survive
                log_unexpected(error, "A search failed.")
                _settle((one, error) for one in batch.pending)
            self._taken.release()

    def _answer_batch(self, batch: _EncodedBatch) -> None:
        outcomes: list[_Outcome] = []
        for _ in range(MAX_ATTEMPTS):
            if self._index.model is not batch.model:  # the vectors may not match the index
                again = self._encode(batch.pending)
                if again is None:
                    return
                batch = again
            outcomes = self._search(batch)
            if self._index.model is batch.model:
                break
        self._on_batch([result for _, result in outcomes if isinstance(result, ServedResult)])
        _settle(outcomes)

    def _search(self, batch: _EncodedBatch) -> list[_Outcome]:
        """Search per group of equal options."""
        places = {one: place for place, one in enumerate(batch.pending)}
        groups: dict[SearchOptions, list[_PendingQuery]] = {}
        for one in self._refuse_expired(batch.pending):
            groups.setdefault(one.options, []).append(one)
        outcomes: list[_Outcome] = []
        for options, group in groups.items():

            def answer(queries: list[_PendingQuery], options: SearchOptions = options) -> list[ServedResult]:
                targets = [one.query.target_modality for one in queries]
                vectors = batch.vectors[[places[one] for one in queries]]
                results = self._index.answer_vectors(vectors, targets, **vars(options))
                version, items = self._index.version, len(self._index)
                return [
                    _served(one, batch, result, version, items) for one, result in zip(queries, results, strict=True)
                ]

            for queries, found in _together_or_alone(group, answer):
                outcomes += zip(queries, [found] * len(queries) if isinstance(found, Exception) else found, strict=True)
        return outcomes


def _served(one: _PendingQuery, batch: _EncodedBatch, result: SearchResult, version: int, items: int) -> ServedResult:
    seconds = {
        "queue": batch.begun - one.queued,
        "prepare": one.prepare_seconds,
        "encode": batch.encode_seconds,
        **result.seconds,
        "total": time.monotonic() - one.arrived,
    }
    return ServedResult(**{**vars(result), "seconds": seconds}, batch=len(batch.pending), version=version, items=items)


def _together_or_alone(
    pending: list[_PendingQuery], work: Callable[[list[_PendingQuery]], T]
) -> list[tuple[list[_PendingQuery], T | Exception]]:
    """Do the work for all queries at once, or else for each alone, so that a bad query does not fail the others."""
    try:
        return [(pending, work(pending))]
    except Exception as error:
        if len(pending) == 1:
            log_unexpected(error, "A search failed.")
            return [(pending, error)]
        return [outcome for one in pending for outcome in _together_or_alone([one], work)]


def _settle(outcomes: Iterable[_Outcome]) -> None:
    resolve((pending.future, outcome) for pending, outcome in outcomes)
