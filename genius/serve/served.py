"""Served: one open index as the service uses it, with its queue of queries, its writer and its bulk additions.

Knows nothing of HTTP: takes queries and items, gives answers and outcomes, or raises a GeniusError.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from PIL import Image

from genius.data.items import Item, Query
from genius.errors import BadIndex, BadItem, GeniusError
from genius.index.index import Index
from genius.search.options import MODES
from genius.serve.batching import Batcher, How, Reply
from genius.serve.jobs import Job, Jobs
from genius.serve.limits import Busy, TooLate
from genius.serve.settings import Settings
from genius.serve.writer import Status, Writer

if TYPE_CHECKING:
    from genius.serve.metrics import Metrics

__all__ = ["Busy", "How", "Job", "Jobs", "Reply", "Served", "Status", "TooLate"]


class Served:
    """index: as `Index.open(path, refresh=settings.refresh)` gives it. To be started before it is used."""

    def __init__(self, name: str, index: Index, settings: Settings) -> None:
        self.name, self.index, self.settings = name, index, settings
        self._batcher = Batcher(index, settings, self._answered)
        self._writer = Writer(index, settings, self._wrote)
        self._metrics: Metrics | None = None
        self._ready = False

    def start(self) -> None:
        """Load the model and warm up. Takes seconds and blocks: call it in a thread. Raises what went wrong."""
        self._warm_up()
        self._batcher.start()
        self._writer.start()
        self._ready = True

    def _warm_up(self) -> None:
        """All that is loaded or compiled when it is first needed."""
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
            return  # there are models for words alone, and for ready vectors

    @property
    def ready(self) -> bool:
        """Whether it answers: started, and not stopping."""
        return self._ready

    async def stop(self, timeout: float) -> None:
        """Take nothing new, finish what waits within so many seconds, then refuse the rest."""
        self._ready = False
        await asyncio.gather(self._batcher.stop(timeout), self._writer.stop(timeout))

    # Queries

    async def search(self, query: Query, how: How) -> Reply:
        """Raises BadItem for a bad image, GeniusError for a bad filter, Busy, TooLate. Cancelled: not computed."""
        self._check_ready()
        return await self._batcher.ask(query, how)

    async def search_many(self, queries: Sequence[tuple[Query, How]]) -> list[Reply | GeniusError]:
        """Each query in its own way; what was wrong with one stands in its place. Raises Busy where not all fit."""
        self._check_ready()
        return await self._batcher.ask_many(queries)

    @property
    def waiting_queries(self) -> int:
        return self._batcher.waiting

    # Writing

    async def put(self, item: Item) -> tuple[Status, int]:
        """What became of the item, once it is safe on the disk, and the version that has it. Raises BadItem, Busy."""
        self._check_ready()
        return await self._writer.put(item)

    async def delete(self, id: str) -> bool:
        """Whether there was such an item; it is gone from the disk when this returns."""
        self._check_ready()
        return await self._writer.delete(id)

    def add(self, items: Iterable[Item | BadItem], replace: bool = True) -> Job:
        """Write many items in the background. Raises Busy when too much waits.

        replace: an item whose id is taken replaces the one that has it; otherwise it is refused.
        """
        self._check_ready()
        return self._writer.add(items, replace)

    @property
    def jobs(self) -> Jobs:
        return self._writer.jobs

    @property
    def waiting_writes(self) -> int:
        return self._writer.waiting

    def _check_ready(self) -> None:
        if not self._ready:
            raise Busy(f"The index {self.name!r} is being loaded, or the service is stopping. Try again in a moment.")

    # What is counted

    def watch(self, metrics: "Metrics") -> None:
        """Tell it of every batch and every write."""
        self._metrics = metrics

    def _answered(self, replies: list[Reply]) -> None:
        if self._metrics is not None:
            self._metrics.answered(self.name, replies)

    def _wrote(self, outcome: str, count: int) -> None:
        if self._metrics is not None and count:
            self._metrics.wrote(self.name, outcome, count)
