"""Threads: pools for blocking work, and results handed from a thread to the event loop."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from genius.errors import GeniusError

T = TypeVar("T")

READERS = 4
DECODERS = 2


class ThreadPools:
    """Runs blocking work outside the event loop. The pools are small, which bounds the memory of parallel requests."""

    def __init__(self) -> None:
        self._readers = ThreadPoolExecutor(READERS, "genius-read")
        self._decoders = ThreadPoolExecutor(DECODERS, "genius-image")

    async def read(self, function: Callable[[], T]) -> T:
        """Run a function that waits for the disk or computes for more than about a millisecond."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, function)

    async def decode(self, function: Callable[[], T]) -> T:
        """Run a function that opens images."""
        return await asyncio.get_running_loop().run_in_executor(self._decoders, function)

    def close(self) -> None:
        """Cancel queued work; running work is not waited for."""
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._decoders.shutdown(wait=False, cancel_futures=True)


def resolve(outcomes: Iterable[tuple["asyncio.Future[Any]", Any]]) -> None:
    """Set the result or exception of futures from another thread."""
    for future, outcome in outcomes:
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            future.get_loop().call_soon_threadsafe(_set_outcome, future, outcome)


def _set_outcome(future: "asyncio.Future[Any]", outcome: Any) -> None:
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def log_unexpected(error: Exception, message: str) -> None:
    """Log the traceback of an error that is not a GeniusError."""
    if not isinstance(error, GeniusError):
        logging.getLogger("genius.serve").error(message, exc_info=error)
