"""HostedIndex: an open index with the threads that answer queries and write items."""

import asyncio
from collections.abc import Callable

from PIL import Image

from genius.data.items import Query
from genius.errors import BadIndex, GeniusError
from genius.index.index import Index
from genius.search.options import MODES
from genius.serve.batching import Batcher, ServedResult
from genius.serve.names import CodeNames
from genius.serve.settings import Settings
from genius.serve.writer import Writer


class HostedIndex:
    """An index as the service uses it. Until `start` has returned, searches and writes raise ServiceUnavailable.

    Metrics set `on_batch` and `on_write`. Outcomes of writes are the `WriteStatus`es, "deleted", "bad" and "failed".
    """

    def __init__(self, name: str, index: Index, settings: Settings) -> None:
        self.name, self.index, self.settings = name, index, settings
        self.on_batch: Callable[[str, list[ServedResult]], None] = lambda name, results: None
        self.on_write: Callable[[str, str, int], None] = lambda name, outcome, count: None
        self.batcher = Batcher(index, settings, lambda results: self.on_batch(name, results))
        self.writer = Writer(index, settings, lambda outcome, count: self.on_write(name, outcome, count))
        self.names = CodeNames(index)
        self.ready = False

    def start(self) -> None:
        """Load the model, warm up and start the threads. Takes seconds: call it in a thread."""
        self._warm_up()
        self.batcher.start()
        self.writer.start()
        self.ready = True

    def _warm_up(self) -> None:
        """Load everything that a first search would have to."""
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

    async def stop(self, timeout: float) -> None:
        """Finish waiting work for at most `timeout` seconds and refuse the rest."""
        self.ready = False
        await asyncio.gather(self.batcher.stop(timeout), self.writer.stop(timeout))
