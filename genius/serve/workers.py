"""Workers: several processes that serve the same indexes on one port.

The parent opens the port, starts the workers, restarts those that end, and stops all of them. It loads no index.
Workers share codes and embeddings (`genius.index.mapped`) and talk to each other (`genius.serve.forwarding`) through
files in a private folder, which the parent removes at the end.
"""

import contextlib
import logging
import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from genius.errors import GeniusError
from genius.index.index import Index
from genius.runtime.threads import set_thread_count
from genius.serve.app import create_app
from genius.serve.forwarding import socket_of
from genius.serve.hosted import HostedIndex
from genius.serve.server import log_to_stderr, run
from genius.serve.settings import Settings
from genius.serve.threads import threads_of_stage

log = logging.getLogger("genius.serve")

MAX_FAILURES = 3
"""A worker that ends this many times in a row before it was ready is not started again."""
EXTRA_SECONDS = 10.0
"""Time for a worker to end after `shutdown_seconds`. Then it is killed."""

_RESTART_SECONDS = 1.0  # pause before a worker that was ready is started again


class _Worker:
    """A worker process, as the parent sees it. `ready` once it has said so."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: Any = None
        self.ready = False
        self.failures = 0
        self.start_at = 0.0


def run_workers(
    paths: Mapping[str, str],
    settings: Settings,
    listener: socket.socket,
    workers: int,
    announce: Callable[[dict[str, int]], None],
    access_log: bool = True,
) -> bool:
    """Serve with several processes until SIGTERM or SIGINT.

    Args:
        paths: Folder or URL of each index, by name.
        settings: Settings of each worker.
        listener: The bound socket.
        workers: Number of processes.
        announce: Called with the number of items of each index, when the first worker is ready.
        access_log: Whether requests are logged.

    Returns:
        False if the workers could not be started.
    """
    log_to_stderr()
    context = multiprocessing.get_context("spawn")
    told, tell = context.Pipe(duplex=False)
    alive, held = context.Pipe(duplex=False)  # workers stop when the parent's end is gone
    stopping = threading.Event()
    threads = threads_of_stage(workers)

    def start(worker: _Worker) -> None:
        worker.ready = False
        worker.process = context.Process(
            target=_work,
            args=(dict(paths), settings, listener, folder, worker.number, workers, threads, access_log, tell, alive),
            name=f"genius-worker-{worker.number}",
        )
        worker.process.start()

    listener.listen(1024)
    with _private_folder() as folder, _signals(stopping):
        everyone = [_Worker(number) for number in range(workers)]
        announced = failed = False
        try:
            for worker in everyone:
                start(worker)
            while not stopping.is_set() and not failed:
                running = [worker for worker in everyone if worker.process is not None]
                wait([told, *(worker.process.sentinel for worker in running)], 0.2)
                while told.poll():
                    number, items = told.recv()
                    everyone[number].ready, everyone[number].failures = True, 0
                    if not announced:
                        announced = True
                        announce(items)
                failed = _restart(everyone, start, stopping)
        finally:
            _stop(everyone, settings)
            for end in (told, tell, alive, held):
                end.close()
    return not failed


def _restart(everyone: list[_Worker], start: Callable[[_Worker], None], stopping: threading.Event) -> bool:
    """Start workers again that have ended. Returns whether one cannot be started."""
    now = time.monotonic()
    for worker in everyone:
        if worker.process is None:
            if now >= worker.start_at and not stopping.is_set():
                start(worker)
        elif not worker.process.is_alive():
            if stopping.is_set():
                return False
            worker.failures += not worker.ready
            code = worker.process.exitcode
            worker.process.close()
            worker.process, worker.start_at = None, now + _RESTART_SECONDS * (1 + worker.failures)
            if worker.failures >= MAX_FAILURES or code == _FAILED:
                log.error("Worker %d cannot be started. The service ends.", worker.number)
                return True
            log.error("Worker %d ended (%s). It is started again.", worker.number, _how(code))
    return False


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"status {code}"


def _stop(everyone: list[_Worker], settings: Settings) -> None:
    """Let all workers finish their requests; kill those that take too long."""
    running = [worker.process for worker in everyone if worker.process is not None]
    for process in running:
        process.terminate()
    end = time.monotonic() + settings.shutdown_seconds + EXTRA_SECONDS
    for process in running:
        process.join(max(0.0, end - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


@contextlib.contextmanager
def _private_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="genius-serve-"))  # only this user can read it
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _signals(stopping: threading.Event) -> Iterator[None]:
    """Set the event at SIGTERM and SIGINT."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: stopping.set()) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


# In a worker

_FAILED = 3  # exit status of a worker that can serve no index: starting it again would not help


def _work(
    paths: dict[str, str],
    settings: Settings,
    listener: socket.socket,
    folder: Path,
    number: int,
    workers: int,
    threads: int,
    access_log: bool,
    tell: Connection,
    alive: Connection,
) -> None:
    log_to_stderr()
    set_thread_count(threads)
    threading.Thread(target=_stop_with_parent, args=(alive, folder), daemon=True).start()
    served, failed = {}, []
    for name, path in paths.items():
        try:
            served[name] = HostedIndex(name, Index.open(path, refresh=settings.refresh, shared=folder), settings)
        except GeniusError as error:
            log.error("The index %s cannot be served. %s", name, error)
            failed.append(name)
    if not served:
        raise SystemExit(_FAILED)
    app = create_app(served, settings, failed, default=next(iter(paths)), worker=(folder, number, workers))
    loaded = app.state.served

    def ready() -> bool:
        return bool(loaded) and all(one.ready for one in loaded.values())

    def announce() -> None:
        tell.send((number, {name: len(one.index) for name, one in loaded.items()}))

    with contextlib.suppress(FileNotFoundError):  # of the process that this one replaces
        os.unlink(socket_of(folder, number))
    run(app, settings, listener, ready, announce, access_log, lambda: not loaded, socket_of(folder, number))
    if not loaded:
        raise SystemExit(_FAILED)


def _stop_with_parent(alive: Connection, folder: Path) -> None:
    """End when the parent was killed: it would have stopped this process and removed the folder."""
    with contextlib.suppress(EOFError, OSError):
        alive.recv()
    shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)
