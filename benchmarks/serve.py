"""What the service can bear: many clients at once, with batches and without, and its memory after many requests.

    python benchmarks/serve.py OUT INDEX [--clients 64] [--seconds 120] [--requests 20000] [--images 0.2] [--quick]
    python benchmarks/serve.py OUT --page docs/serve.md     # write what was measured into the page

Service (`genius serve INDEX`) and clients are two processes on one machine and share its cores. Every client asks
again as soon as it has its answer. No text is asked twice: each is made of some of twenty thousand words. Three loads:

- `together`: as it comes;
- `one by one`: the same with `--max-batch 1`, so that every query is encoded and answered alone;
- `memory`: the memory of a new service before and after many requests.

Results go to OUT/serve.json after each load. Run it on an idle machine: rows during which other processes were at work
are marked.
"""

import argparse
import base64
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import onnxruntime
from index import busy_ticks
from PIL import Image, ImageDraw
from rich.console import Console
from search import processor
from serve_load import Load, load
from serve_results import STAGES, ServeResults, sheets, write_page

from genius.encoders.minilm import TOKENIZER
from genius.errors import GeniusError

WORDS = range(2, 8)  # in a query
WARM = 500  # requests before any that count
FASTEST = 1500  # queries a second that are made in advance
SIDE = 128  # of an image, in pixels
BUSY_CORE = 0.15  # of one core, used by others: measurements are disturbed
STARTING = 3.0  # seconds that the clients' process takes to start
ENDING = 30.0  # seconds that the service may take to end


@dataclass(frozen=True)
class Settings:
    """images: the part of the queries that have one."""

    index: Path
    clients: int
    seconds: float
    requests: int
    images: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for serve.json")
    parser.add_argument("index", type=Path, nargs="?", help="the index to serve")
    parser.add_argument("--clients", type=int, default=64, help="how many ask at the same time")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long each of the two loads lasts")
    parser.add_argument("--requests", type=int, default=20_000, help="after how many the memory is looked at")
    parser.add_argument("--images", type=float, default=0.0, help="the part of the queries that have an image")
    parser.add_argument("--quick", action="store_true", help="10 seconds and 2,000 requests")
    parser.add_argument("--page", type=Path, help="measure nothing; write OUT/serve.json into this page")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the service does not outlive its measurement
    console = Console()
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        results = ServeResults.read(arguments.out / "serve.json")
        if arguments.page is None:
            measure(results, settings_from(arguments), console)
        finish(results, arguments.page, console)
    except GeniusError as error:
        console.print(f"[red]{error}[/]")
        raise SystemExit(1) from error


def settings_from(arguments: argparse.Namespace) -> Settings:
    if arguments.index is None:
        raise GeniusError("Which index is to be served? python benchmarks/serve.py OUT INDEX")
    if arguments.clients < 1 or arguments.seconds <= 0 or arguments.requests < 1 or not 0 <= arguments.images <= 1:
        raise GeniusError("--clients, --seconds and --requests must be positive, --images between 0 and 1.")
    seconds, requests = (10.0, 2_000) if arguments.quick else (arguments.seconds, arguments.requests)
    return Settings(arguments.index, arguments.clients, seconds, requests, arguments.images)


def measure(results: ServeResults, settings: Settings, console: Console) -> None:
    results.machine = f"{processor()}, {os.cpu_count()} cores, ONNX Runtime {onnxruntime.__version__}"
    with_images = f", {settings.images:.0%} of them with an image" if settings.images else ""
    results.about = (
        f"{settings.clients} clients ask `{settings.index.name}` for {settings.seconds:g} seconds, every query another "
        f"one of {WORDS[0]} to {WORDS[-1]} words{with_images}; mode fast, k 10."
    )
    queries = Queries(settings.images)
    for name, options in (("together", ()), ("one by one", ("--max-batch", "1"))):
        console.print(f"{name}: {settings.clients} clients for {settings.seconds:g} seconds")
        results.add(name, *under_load(settings, queries, options))
    console.print(f"memory: {settings.requests:,} requests")
    results.add("memory", *memory(settings, queries))


def finish(results: ServeResults, page: Path | None, console: Console) -> None:
    """Print the tables and fill the page."""
    if not results.rows:
        raise GeniusError(f"{results.path} holds no results. Measure first: python benchmarks/serve.py OUT INDEX")
    if page is not None:
        write_page(results, page)
        console.print(f"Written: {page}")
        return
    for sheet in sheets(results):
        console.print(sheet.table())
    if results.disturbed:
        console.print(
            "[yellow]* Other processes were running: these results are not reliable. Run again on an idle machine.[/]"
        )
    console.print(f"Written: {results.path}")


# Loads


def under_load(settings: Settings, queries: "Queries", options: tuple[str, ...]) -> tuple[dict[str, float], bool]:
    with service(settings.index, *options) as one:
        load(one.url, queries.take(min(WARM, 8 * settings.clients)), settings.clients)
        bodies = queries.take(int(FASTEST * settings.seconds))
        watch = Watch(one)
        found = load(one.url, bodies, settings.clients, settings.seconds)
        cores, disturbed = watch.stop(found)
    complain(found)
    return {**results_of(found), "service_cores": cores}, disturbed


def memory(settings: Settings, queries: "Queries") -> tuple[dict[str, float], bool]:
    with service(settings.index) as one:
        started = one.resident()
        warm = load(one.url, queries.take(WARM), settings.clients)
        before, watch = one.resident(), Watch(one)
        found = load(one.url, queries.take(settings.requests), settings.clients)
        _, disturbed = watch.stop(found)
        after = one.resident()
    complain(found)
    return {
        "requests": len(found.times),
        "errors": len(warm.errors) + len(found.errors),
        "started_mb": started / 1e6,
        "before_mb": before / 1e6,
        "after_mb": after / 1e6,
        "growth": 100 * (after - before) / before,
    }, disturbed


def results_of(found: Load) -> dict[str, float]:
    """Times in milliseconds."""
    if not found.times:
        raise GeniusError(f"The service did not answer at all: {found.errors[:1]}")
    return {
        "requests": len(found.times),
        "rate": found.rate,
        "p50": 1000 * found.percentile(0.5),
        "p99": 1000 * found.percentile(0.99),
        "longest": 1000 * max(found.times),
        "errors": len(found.errors),
        "batch": sum(found.batches) / max(1, len(found.batches)),
        "client_cores": found.cpu / found.seconds,
        **{stage: 1000 * found.stage(stage) for stage in STAGES},
    }


def complain(found: Load) -> None:
    if found.errors:
        print(f"{len(found.errors)} errors, such as: {found.errors[0]}", file=sys.stderr)


class Watch:
    """Processor use during a load."""

    def __init__(self, service: "Service") -> None:
        self._service = service
        self._began, self._busy, self._computed = time.perf_counter(), busy_ticks(), service.computed()

    def stop(self, found: Load) -> tuple[float, bool]:
        """Cores used by the service, and whether other processes were running."""
        lasted, used = time.perf_counter() - self._began, self._service.computed() - self._computed
        busy = (busy_ticks() - self._busy) / os.sysconf("SC_CLK_TCK")
        return used / found.seconds, busy - used - found.cpu > BUSY_CORE * lasted + STARTING


# The service


@dataclass(frozen=True)
class Service:
    url: str
    pid: int

    def resident(self) -> int:
        """Bytes of memory."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return 1024 * int(line.split()[1])
        raise GeniusError("This system does not tell how much memory a process has. Measure on Linux.")

    def computed(self) -> float:
        """Processor seconds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def service(index: Path, *options: str) -> Iterator[Service]:
    """A running `genius serve` process, yielded when it is ready."""
    command = [sys.executable, "-m", "genius.cli", "serve", str(index), "--port", "0", "--read-only", "--quiet"]
    process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()  # it says so when it is ready
        address = re.search(r"http://\S+", said)
        if address is None:
            raise GeniusError(f"The service did not start. Try it: {' '.join(['genius', *command[3:]])}")
        yield Service(address[0], process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(ENDING)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# What is asked


class Queries:
    """Bodies of searches, none of them twice. images: the part that has an image beside the words."""

    def __init__(self, images: float, seed: int = 0) -> None:
        self._random, self._images = random.Random(seed), images
        self._asked: set[str] = set()

    def take(self, count: int) -> list[bytes]:
        return [self._next() for _ in range(count)]

    def _next(self) -> bytes:
        chosen = self._random
        text = " ".join(chosen.sample(vocabulary(), chosen.choice(WORDS)))
        if text in self._asked:
            return self._next()
        self._asked.add(text)
        body = {"text": text}
        if chosen.random() < self._images:
            body["image"] = base64.b64encode(drawing(chosen)).decode()
        return json.dumps(body).encode()


@cache
def vocabulary() -> list[str]:
    """English words: those of the text backbone's tokenizer."""
    known = json.loads(TOKENIZER.read_text(encoding="utf-8"))["model"]["vocab"]
    return sorted(word for word in known if word.isascii() and word.isalpha() and len(word) > 2)


def drawing(chosen: random.Random) -> bytes:
    """A PNG of a few ellipses."""
    image = Image.new("RGB", (SIDE, SIDE), "white")
    draw = ImageDraw.Draw(image)
    for _ in range(5):
        x, y = chosen.randrange(SIDE), chosen.randrange(SIDE)
        size, colour = chosen.randrange(8, SIDE // 2), tuple(chosen.randrange(256) for _ in range(3))
        draw.ellipse((x, y, x + size, y + size), fill=colour)
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


if __name__ == "__main__":
    main()
