"""From a thread back to the event loop: what became of the things that coroutines wait for. Knows nothing of them."""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from genius.errors import GeniusError

Outcome = tuple["asyncio.Future[Any]", Any]
"""A future, and its result or the exception that it is to raise."""


def hand_over(outcomes: Iterable[Outcome]) -> None:
    """Wake the event loop once for all of them."""
    loops: dict[asyncio.AbstractEventLoop, list[Outcome]] = {}
    for outcome in outcomes:
        loops.setdefault(outcome[0].get_loop(), []).append(outcome)
    for loop, its in loops.items():
        with suppress(RuntimeError):  # a loop that is closed has nobody waiting in it
            loop.call_soon_threadsafe(_set, its)


def _set(outcomes: list[Outcome]) -> None:
    for future, outcome in outcomes:
        if future.done():
            continue
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def log_unforeseen(error: Exception, what: str) -> None:
    """What nobody raised on purpose is worth a trace in the log."""
    if not isinstance(error, GeniusError):
        logging.getLogger("genius.serve").error(what, exc_info=error)
