"""Work that would hold up the event loop, done in threads: few of them, so that many requests cannot fill the memory.

Images have threads of their own: at most two are decoded at once. Knows nothing of what is done.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

READERS = 4
DECODERS = 2


class Work:
    def __init__(self) -> None:
        self._readers = ThreadPoolExecutor(READERS, "genius-read")
        self._decoders = ThreadPoolExecutor(DECODERS, "genius-image")

    async def read(self, function: Callable[[], T]) -> T:
        """What waits for a disk, or computes for more than a millisecond or so."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, function)

    async def decode(self, function: Callable[[], T]) -> T:
        """What opens images."""
        return await asyncio.get_running_loop().run_in_executor(self._decoders, function)

    def close(self) -> None:
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._decoders.shutdown(wait=False, cancel_futures=True)
