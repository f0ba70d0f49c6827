"""Other processes for tests: they start in a tenth of a second, can be talked to, and can be killed at any moment.

They are forked from a server that has imported the package and has not used it yet, so each is as good as new.
"""

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

PATIENCE = 60.0  # seconds; what takes longer has come to a standstill

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    ["genius.index.index", "genius.networks.decoder", "genius.networks.quantizer", "pytest"]
)


class Other:
    """`function(talk, *arguments)` in a process of its own; `talk` is a Talk, and what it says is heard here."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._talk, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=_run, args=(function, theirs, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def say(self, message: Any) -> None:
        with suppress(BrokenPipeError):  # it has ended; why, is heard
            self._talk.send(message)

    def hear(self) -> Any:
        """The next thing the function says; after all of these, what it returned. Its errors are raised here."""
        assert self._talk.poll(PATIENCE), "the other process has come to a standstill"
        message, trace = self._talk.recv()
        assert trace is None, f"the other process failed:\n{trace}"
        return message

    def silent(self, seconds: float) -> bool:
        """Whether nothing can be heard for so long."""
        return not self._talk.poll(seconds)

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.join()
        self._talk.close()


class Talk:
    """The end of the conversation that the function has."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def say(self, message: Any) -> None:
        self._connection.send((message, None))

    def hear(self) -> Any:
        return self._connection.recv()

    def told(self) -> bool:
        """Whether there is something to hear."""
        return self._connection.poll()


@contextmanager
def other(function: Callable[..., Any], *arguments: Any) -> Iterator[Other]:
    """An Other that does not outlive the block."""
    process = Other(function, *arguments)
    try:
        yield process
    finally:
        process.kill()


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    """A folder for indexes; in memory where there is such a place: to other processes, dead or alive, it is a disk like
    any other, and nothing waits for a real one."""
    place = Path("/dev/shm")
    with TemporaryDirectory(dir=place if os.access(place, os.W_OK) else None) as folder:
        yield Path(folder)


def _run(function: Callable[..., Any], connection: Connection, arguments: tuple[Any, ...]) -> None:
    try:
        connection.send((function(Talk(connection), *arguments), None))
    except BaseException:  # whatever it is, the test should show it
        connection.send((None, traceback.format_exc()))
