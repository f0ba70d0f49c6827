"""Threads: pools for blocking work, decoders of images, and results handed from a thread to the event loop."""

import asyncio
import heapq
import itertools
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from genius.errors import GeniusError
from genius.runtime.threads import thread_count
from genius.serve.limits import QueryExpired

T = TypeVar("T")

READERS = 4
DECODERS = max(1, (os.cpu_count() or 1) // 2)
"""Threads that decode images: at least half of the cores are left to searches."""
SIDE_BY_SIDE = 2  # one batch of queries is encoded while another one is searched
NICENESS = 10  # of decoders: with all cores busy, they get a tenth of the time of a search


def threads_of_stage(workers: int = 1) -> int:
    """Threads that encoding and searching may use each, in each of some processes."""
    return max(1, thread_count() // (SIDE_BY_SIDE * workers))


class ThreadPools:
    """Runs blocking work outside the event loop. The pools are small, which bounds the memory of parallel requests."""

    def __init__(self) -> None:
        self._readers = ThreadPoolExecutor(READERS, "genius-read")

    async def read(self, function: Callable[[], T]) -> T:
        """Run a function that waits for the disk or computes for more than about a millisecond."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, function)

    def close(self) -> None:
        """Cancel queued work; running work is not waited for."""
        self._readers.shutdown(wait=False, cancel_futures=True)


class Decoders:
    """Threads of low priority that decode images, smallest first: a large image does not delay small ones.

    Work is dropped before it begins if nobody waits for it any more.
    """

    def __init__(self, threads: int = DECODERS) -> None:
        self._threads = threads
        self._started = 0
        self._waiting: list[tuple[int, int, Callable[[], Any], asyncio.Future[Any]]] = []  # a heap
        self._order = itertools.count()
        self._wake = threading.Condition()

    async def run(self, function: Callable[[], T], pixels: int, timeout: float) -> T:
        """Run a function that decodes an image.

        Args:
            function: Is called by a thread of low priority.
            pixels: Size of the image; small images are decoded first.
            timeout: Seconds until the result is no longer wanted.

        Raises:
            QueryExpired: It did not end within `timeout` seconds.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._wake:
            heapq.heappush(self._waiting, (pixels, next(self._order), function, future))
            if self._started < self._threads:
                self._started += 1
                threading.Thread(target=self._run, name="genius-image", daemon=True).start()
            self._wake.notify()
        try:
            return await asyncio.wait_for(future, timeout)  # cancels the future if the time or the caller is gone
        except TimeoutError as error:
            raise QueryExpired(f"The image was not decoded within {timeout:.1f} seconds. Try again later.") from error

    def _run(self) -> None:
        lower_priority()
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._waiting)
                _, _, function, future = heapq.heappop(self._waiting)
            if not future.done():
                resolve([(future, _outcome(function))])
            del function, future  # they hold an image while the thread waits


def _outcome(function: Callable[[], Any]) -> Any:
    try:
        return function()
    except Exception as error:
        return error


decoders = Decoders()
"""The decoders of this process: cores and memory are shared by all indexes."""


def lower_priority() -> None:
    """Let the current thread, and threads that it starts, give way to others. Only Linux has priorities of threads."""
    if sys.platform == "linux":
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def resolve(outcomes: Iterable[tuple["asyncio.Future[Any]", Any]]) -> None:
    """Set the result or exception of futures from another thread. Each event loop is woken once."""
    of_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]] = {}
    for future, outcome in outcomes:
        of_loop.setdefault(future.get_loop(), []).append((future, outcome))
    for loop, settled in of_loop.items():
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(_set_outcomes, settled)


def _set_outcomes(outcomes: Iterable[tuple["asyncio.Future[Any]", Any]]) -> None:
    for future, outcome in outcomes:
        if future.done():
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def log_unexpected(error: Exception, message: str) -> None:
    """Log the traceback of an error that is not a GeniusError."""
    if not isinstance(error, GeniusError):
        logging.getLogger("genius.serve").error(message, exc_info=error)
