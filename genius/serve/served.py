"""ServedIndex: an open index with its query batcher, writer and jobs."""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from PIL import Image

from genius.data.items import Item, Query
from genius.errors import BadIndex, BadItem, GeniusError
from genius.index.index import Index
from genius.search.options import MODES, SearchOptions
from genius.serve.batching import Batcher, ServedResult
from genius.serve.jobs import JobQueue, WriteJob
from genius.serve.limits import ServiceBusy
from genius.serve.settings import Settings
from genius.serve.writer import Writer, WriteStatus


class ServedIndex:
    """An index as the service uses it. Call `start` before use.

    Attributes:
        name: Name of the index in the API.
        index: Opened with `refresh=settings.refresh`.
        on_batch: Called with the name and the results of each batch.
        on_write: Called with the name, an outcome ("created", "replaced", "unchanged", "deleted", "bad", "failed")
            and the number of items.
    """

    def __init__(self, name: str, index: Index, settings: Settings) -> None:
        self.name, self.index, self.settings = name, index, settings
        self.on_batch: Callable[[str, list[ServedResult]], None] = lambda name, results: None
        self.on_write: Callable[[str, str, int], None] = lambda name, outcome, count: None
        self._batcher = Batcher(index, settings, lambda results: self.on_batch(name, results))
        self._writer = Writer(index, settings, lambda outcome, count: self.on_write(name, outcome, count))
        self._ready = False

    def start(self) -> None:
        """Load the model, warm up and start the threads. Takes seconds: call it in a thread."""
        self._warm_up()
        self._batcher.start()
        self._writer.start()
        self._ready = True

    def _warm_up(self) -> None:
        """Load and compile everything that a first search would have to."""
        _ = self.index.searcher
        text, image = Query(text="warm up"), Query(image=Image.new("RGB", (64, 64)))
        try:
            for mode in MODES:
                self.index.search(text, mode=mode)
            self.index.search([text] * self.settings.max_batch)
            self.index.search(image)
        except BadIndex:
            raise
        except GeniusError:
            return  # some models encode only text, or nothing

    @property
    def ready(self) -> bool:
        """Whether the index is started and not stopping."""
        return self._ready

    async def stop(self, timeout: float) -> None:
        """Finish waiting work for at most `timeout` seconds and refuse the rest."""
        self._ready = False
        await asyncio.gather(self._batcher.stop(timeout), self._writer.stop(timeout))

    async def search(self, query: Query, options: SearchOptions) -> ServedResult:
        """Answer a query. See `Batcher.search`."""
        self._check_ready()
        return await self._batcher.search(query, options)

    async def search_many(self, queries: Sequence[tuple[Query, SearchOptions]]) -> list[ServedResult | GeniusError]:
        """Answer several queries. See `Batcher.search_many`."""
        self._check_ready()
        return await self._batcher.search_many(queries)

    @property
    def waiting_queries(self) -> int:
        """Number of queries in the queue."""
        return self._batcher.waiting

    async def put(self, item: Item) -> tuple[WriteStatus, int]:
        """Write an item. See `Writer.put`."""
        self._check_ready()
        return await self._writer.put(item)

    async def delete(self, id: str) -> bool:
        """Delete an item; False if there is none with this id."""
        self._check_ready()
        return await self._writer.delete(id)

    def add(self, items: Iterable[Item | BadItem], replace: bool = True) -> WriteJob:
        """Write many items in the background.

        Args:
            items: The items. A BadItem is counted as refused.
            replace: Replace items with the same id. If False, such items are refused.

        Raises:
            ServiceBusy: Too many jobs or bytes are waiting.
        """
        self._check_ready()
        return self._writer.add(items, replace)

    @property
    def jobs(self) -> JobQueue:
        """The bulk additions."""
        return self._writer.jobs

    @property
    def waiting_writes(self) -> int:
        """Number of single writes in the queue."""
        return self._writer.waiting

    def _check_ready(self) -> None:
        if not self._ready:
            raise ServiceBusy(f"The index {self.name!r} is loading, or the service is stopping. Try again in a moment.")
