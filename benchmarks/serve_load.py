"""Many clients at once: each asks the service over a connection of its own, and asks again when it has its answer.

As light as can be, because clients and service share the machine: HTTP/1.1 by hand over asyncio. Runs in a process of
its own (`load`). Knows nothing of what is asked, and of the answers only what every search must have.
"""

import asyncio
import json
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import cycle
from typing import cast
from urllib.parse import urlsplit

READ_EVERY = 20  # one answer in 20 is parsed completely
TIMEOUT = 60.0  # seconds without an answer


@dataclass
class Load:
    """What came of it.

    times: seconds from each request to its answer, at most TIMEOUT; stages: of the answers that were looked at.
    """

    seconds: float = 0.0
    times: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    stages: dict[str, list[float]] = field(default_factory=dict)
    cpu: float = 0.0  # seconds that the clients computed

    @property
    def rate(self) -> float:
        return len(self.times) / self.seconds

    def percentile(self, share: float) -> float:
        """Seconds."""
        ordered = sorted(self.times)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def stage(self, name: str) -> float:
        """Seconds, in the middle."""
        values = sorted(self.stages.get(name, [0.0]))
        return values[len(values) // 2]


def load(
    url: str, bodies: Sequence[bytes], clients: int, seconds: float | None = None, pause: float | None = None
) -> Load:
    """Send these bodies to POST /v1/search, one after the other, for so long; without `seconds`, until all are sent.

    With `pause`, they are sent again and again, and every client waits this number of seconds after each answer.
    """
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_load, url, list(bodies), clients, seconds, pause).result()


def _load(url: str, bodies: list[bytes], clients: int, seconds: float | None, pause: float | None) -> Load:
    try:
        import uvloop

        return uvloop.run(_drive(url, bodies, clients, seconds, pause))
    except ImportError:
        return asyncio.run(_drive(url, bodies, clients, seconds, pause))


async def _drive(url: str, bodies: list[bytes], clients: int, seconds: float | None, pause: float | None) -> Load:
    address = urlsplit(url)
    found, loop, rest = Load(), asyncio.get_running_loop(), iter(bodies) if pause is None else cycle(bodies)
    began, computed = time.perf_counter(), _computed()
    until = None if seconds is None else began + seconds
    over = [loop.create_future() for _ in range(clients)]
    head = f"POST /v1/search HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n".encode()
    for end in over:
        await loop.create_connection(
            lambda end=end: _Client(head, rest, until, found, end, pause or 0.0), address.hostname, address.port
        )
    await asyncio.gather(*over)
    found.seconds, found.cpu = time.perf_counter() - began, _computed() - computed
    return found


def _computed() -> float:
    times = os.times()
    return times.user + times.system


class _Client(asyncio.Protocol):
    def __init__(
        self,
        head: bytes,
        bodies: Iterator[bytes],
        until: float | None,
        found: Load,
        over: "asyncio.Future[None]",
        pause: float,
    ) -> None:
        self._pause = pause
        self._head, self._bodies, self._until, self._found, self._over = head, bodies, until, found, over
        self._received = bytearray()
        self._needed = 0  # bytes of the whole answer, once they are known
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def _ask(self) -> None:
        body = next(self._bodies, None)
        self._sent = time.perf_counter()
        if body is None or (self._until is not None and self._sent >= self._until):
            self._end()
            return
        self._transport.write(b"%bContent-Length: %d\r\n\r\n%b" % (self._head, len(body), body))
        self._waiting = asyncio.get_running_loop().call_later(TIMEOUT, self._give_up)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._needed:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                return
            self._needed = end + 4 + _length(bytes(self._received[:end]))
        if len(self._received) < self._needed:
            return
        self._waiting.cancel()
        self._found.times.append(time.perf_counter() - self._sent)
        self._look_at(bytes(self._received))
        self._received.clear()
        self._needed = 0
        if self._pause:
            asyncio.get_running_loop().call_later(self._pause, self._ask)
        else:
            self._ask()

    def _look_at(self, answer: bytes) -> None:
        if not answer.startswith(b"HTTP/1.1 200") or b'"hits":[{' not in answer:
            self._found.errors.append(answer.partition(b"\r\n\r\n")[2][-300:].decode(errors="replace"))
        elif len(self._found.times) % READ_EVERY == 0:
            told = json.loads(answer.partition(b"\r\n\r\n")[2])
            self._found.batches.append(told["batch"])
            for stage, seconds in told["seconds"].items():
                self._found.stages.setdefault(stage, []).append(seconds)

    def _give_up(self) -> None:
        self._found.times.append(TIMEOUT)
        self._end("no answer came in time")

    def connection_lost(self, error: Exception | None) -> None:
        self._end(f"the connection was closed ({error})")

    def _end(self, error: str | None = None) -> None:
        if self._over.done():
            return
        if error is not None:
            self._found.errors.append(error)
        self._over.set_result(None)
        self._transport.close()


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    raise ValueError("the answer does not say how long it is")
