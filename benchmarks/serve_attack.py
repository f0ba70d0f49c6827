"""Ordinary searches beside hostile images: how long 8 clients wait, and the memory of the service.

    python benchmarks/serve_attack.py OUT [--seconds 20] [--clients 8] [--attackers 16] [--pause 1] [--quick]

Builds a small index with the bundled model in OUT, serves it in a process of its own (`genius serve`), and measures
text queries three times in the same run: before an attack, during it, and directly after it. An attacker sends an
image, waits for its answer and then for `--pause` seconds, and sends it again. Each attack has a service of its own:

- `line`: a PNG of 74 bytes that claims 1 x 40,000,000 pixels;
- `jpeg`: an honest JPEG of 40 million pixels, the most that the service accepts;
- `png`: a PNG with transparency of the same size, which needs more memory and time.

Results go to OUT/attack.json. Run it on an idle machine.
"""

import argparse
import base64
import io
import json
import random
import signal
import struct
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageDraw
from rich.console import Console
from rich.table import Table
from serve import Queries, Service, drawing, service, vocabulary
from serve_load import Load, load

from genius import Genius, Index, Item
from genius.errors import GeniusError

TEXTS, IMAGES = 300, 100  # items of the index
SIDES = 8_000, 5_000  # of the largest image that is accepted
FASTEST = 400  # queries a second that are made in advance
WARM = 100  # queries before any that count
HEAD_START = 1.0  # seconds from the first hostile image to the first measured query
RATIO_BAR = 2.0  # p99 during an attack to p99 before it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for the index and attack.json")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each measurement lasts")
    parser.add_argument("--clients", type=int, default=8, help="ordinary clients")
    parser.add_argument("--attackers", type=int, default=16, help="hostile clients")
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between an answer and the next image")
    parser.add_argument("--attacks", default=",".join(ATTACKS), help="which attacks, separated by commas")
    parser.add_argument("--quick", action="store_true", help="5 seconds each")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the service does not outlive its measurement
    seconds, console = (5.0 if arguments.quick else arguments.seconds), Console()
    try:
        names = chosen_attacks(arguments.attacks)
        arguments.out.mkdir(parents=True, exist_ok=True)
        index = small_index(arguments.out / "attack.genius")
        results = {}
        for name in names:
            console.print(f"{name}: {arguments.clients} clients, {arguments.attackers} attackers, {seconds:g} seconds")
            image = ATTACKS[name]()
            results[name] = attack(index, image, seconds, arguments.clients, arguments.attackers, arguments.pause)
            (arguments.out / "attack.json").write_text(json.dumps(results, indent=1))
    except GeniusError as error:
        console.print(f"[red]{error}[/]")
        raise SystemExit(1) from error
    console.print(table(results))


def chosen_attacks(given: str) -> list[str]:
    names = given.split(",")
    if unknown := [name for name in names if name not in ATTACKS]:
        raise GeniusError(f"There is no attack {unknown[0]!r}. Choose from {', '.join(ATTACKS)}.")
    return names


# The attack


def attack(
    index: Path, image: bytes, seconds: float, clients: int, attackers: int, pause: float
) -> dict[str, float | str]:
    """Milliseconds of ordinary queries before, during and after; megabytes of the service; what the attackers got."""
    queries = Queries(0.0)

    def ordinary(one: Service) -> Load:
        found = load(one.url, queries.take(int(FASTEST * seconds)), clients, seconds)
        if not found.times:
            raise GeniusError(f"The service did not answer: {found.errors[:1]}")
        return found

    with service(index) as one:
        load(one.url, queries.take(WARM), clients)
        before = ordinary(one)
        usual = one.resident()
        with Hostile(one, image, attackers, seconds + 2 * HEAD_START, pause) as hostile:
            during = ordinary(one)
        tried = hostile.found
        after = ordinary(one)
        answers = ", ".join(f"{count} x {status}" for status, count in sorted(statuses(tried).items()))
        return {
            "image_bytes": len(image),
            "image_seconds": tried.percentile(0.5) if tried.times else float("nan"),
            "answers": answers,
            "p50_before": 1000 * before.percentile(0.5),
            "p99_before": 1000 * before.percentile(0.99),
            "p50_during": 1000 * during.percentile(0.5),
            "p99_during": 1000 * during.percentile(0.99),
            "p99_after": 1000 * after.percentile(0.99),
            "ratio": during.percentile(0.99) / before.percentile(0.99),
            "rate_before": before.rate,
            "rate_during": during.rate,
            "errors": len(before.errors) + len(during.errors) + len(after.errors),
            "usual_mb": usual / 1e6,
            "peak_mb": hostile.peak / 1e6,
            "after_mb": one.resident() / 1e6,
        }


class Hostile:
    """Attackers in a process of their own, and the largest memory of the service while they are at work."""

    def __init__(self, target: Service, image: bytes, attackers: int, seconds: float, pause: float) -> None:
        body = json.dumps({"image": base64.b64encode(image).decode(), "k": 1}).encode()
        self.peak, self.found = 0, Load()
        self._service, self._over = target, threading.Event()
        self._watching = threading.Thread(target=self._watch)
        self._attacking = threading.Thread(target=self._attack, args=(body, attackers, seconds, pause))

    def __enter__(self) -> "Hostile":
        self._watching.start()
        self._attacking.start()
        time.sleep(HEAD_START + 1.0)  # the attackers' process has to start
        return self

    def __exit__(self, *_: object) -> None:
        self._attacking.join()
        self._over.set()
        self._watching.join()

    def _attack(self, body: bytes, attackers: int, seconds: float, pause: float) -> None:
        self.found = load(self._service.url, [body], attackers, seconds, pause=pause)

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            self.peak = max(self.peak, self._service.resident())


def statuses(found: Load) -> Counter[str]:
    """How often each answer was given: "found", or the error's code."""
    counts = Counter({"found": len(found.times) - len(found.errors)})
    for error in found.errors:
        try:
            counts[json.loads(error)["error"]["code"]] += 1
        except (ValueError, KeyError, TypeError):
            counts[error[:40]] += 1
    return +counts


# Images


def png(width: int, height: int, colour_type: int, data: bytes) -> bytes:
    """A PNG file with 8 bits a channel around compressed data."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def line() -> bytes:
    """The header claims 40 million pixels, of which the file has one."""
    return png(1, 40_000_000, 0, zlib.compress(b"\0\0"))


def photo(mode: str, format: str) -> bytes:
    """An image of as many pixels as the service accepts."""
    image = Image.new(mode, SIDES, "white")
    draw, chosen = ImageDraw.Draw(image), random.Random(0)
    for _ in range(200):
        x, y, size = chosen.randrange(SIDES[0]), chosen.randrange(SIDES[1]), chosen.randrange(100, 2_000)
        draw.ellipse((x, y, x + size, y + size), fill=tuple(chosen.randrange(256) for _ in image.getbands()))
    file = io.BytesIO()
    image.save(file, format)
    return file.getvalue()


ATTACKS: dict[str, Callable[[], bytes]] = {
    "line": line,
    "jpeg": lambda: photo("RGB", "JPEG"),
    "png": lambda: photo("RGBA", "PNG"),
}


# The index


def small_index(path: Path) -> Path:
    """An index of texts and drawings, made if it is not there."""
    if not path.exists():
        chosen = random.Random(1)
        words = vocabulary()
        items = [Item(f"text {i}", text=" ".join(chosen.sample(words, 8))) for i in range(TEXTS)]
        items += [Item(f"image {i}", image=drawing(chosen)) for i in range(IMAGES)]
        Index.create(path, Genius.from_pretrained("mini")).add(items)
    return path


# Results


def table(results: dict[str, dict[str, float | str]]) -> Table:
    columns = ["image_seconds", "p50_before", "p50_during", "p99_before", "p99_during", "p99_after", "ratio"]
    columns += ["rate_before", "rate_during", "errors", "usual_mb", "peak_mb", "after_mb"]
    shown = Table("", *results, title=f"ordinary p99 at most {RATIO_BAR:g} times that before")
    for name in [*columns, "answers"]:
        shown.add_row(name, *(_cell(one[name]) for one in results.values()))
    return shown


def _cell(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:,.2f}" if value < 10 else f"{value:,.0f}"


if __name__ == "__main__":
    main()
