"""A small service for tests: an index of drawn things with the real `mini` model, in this process or in one of its own.

Import what you need: `from serving import service, drawn_index`. The model and the index are made once a process.

    drawn_items()                       42 items: images of shapes, texts, pairs; metadata shape, colour, number, tags
    drawn_index()                       path of an index of them, made once; never write to it
    copy_index(tmp_path)                a copy of it that may be written to
    service({"shapes": path})           a TestClient on the app in this process, started and ready, security included
    running_server(path)                `genius serve` in a process of its own on a free port, ready; `.url`, `.process`
    png("red circle")                   the bytes of an image
"""

import atexit
import functools
import io
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from PIL import Image, ImageDraw

from genius.data.items import Item

if TYPE_CHECKING:
    from fastapi import FastAPI
    from fastapi.testclient import TestClient

    from genius.model.genius import Genius

PATIENCE = 120.0  # seconds; what takes longer has come to a standstill

COLOURS = ("red", "green", "blue", "yellow", "purple")
SHAPES = ("circle", "square", "triangle", "star")
TEXTS = (
    "A red circle on a white page.",
    "How to draw a star with five points.",
    "Triangles have three corners and three sides.",
    "The square is the symbol of order.",
    "Blue is the colour of the sea and the sky.",
    "A recipe for tomato soup with basil.",
    "Grüße aus München: ein gelber Stern ✨",
    "猫が寝ています。",
    "Opening hours of the town library.",
    "Purple flowers bloom in late spring.",
)


@functools.cache
def png(what: str, size: int = 64) -> bytes:
    """An image of "COLOUR SHAPE" as PNG."""
    colour, shape = what.split()
    image = Image.new("RGB", (size, size), "white")
    draw, a, b = ImageDraw.Draw(image), size // 8, size - size // 8
    if shape == "circle":
        draw.ellipse((a, a, b, b), fill=colour)
    elif shape == "square":
        draw.rectangle((a, a, b, b), fill=colour)
    elif shape == "triangle":
        draw.polygon([(size // 2, a), (b, b), (a, b)], fill=colour)
    else:
        draw.regular_polygon((size // 2, size // 2, size // 3), 3, fill=colour)
        draw.regular_polygon((size // 2, size // 2, size // 3), 3, rotation=180, fill=colour)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def drawn_items() -> list[Item]:
    """20 images, 10 texts and 12 pairs."""
    made = []
    for number, (colour, shape) in enumerate((c, s) for c in COLOURS for s in SHAPES):
        metadata = {"colour": colour, "shape": shape, "number": number, "tags": [colour, shape]}
        made.append(Item(f"images/{colour}-{shape}.png", image=png(f"{colour} {shape}"), metadata=metadata))
    for number, text in enumerate(TEXTS):
        made.append(Item(f"text {number}", text=text, metadata={"number": 100 + number, "long": len(text) > 35}))
    for number, (colour, shape) in enumerate((c, s) for c in COLOURS[:3] for s in SHAPES):
        text = f"The {colour} {shape}, drawn by hand."
        metadata = {"colour": colour, "shape": shape, "number": 200 + number}
        made.append(Item(f"pair-{colour}-{shape}", text, png(f"{colour} {shape}", 96), metadata))
    return made


@functools.cache
def mini_model() -> "Genius":
    from genius.model.genius import Genius

    return Genius.from_pretrained("mini")


@functools.cache
def drawn_index() -> Path:
    """An index of `drawn_items()`. All tests of a process share it: make a copy to write."""
    from genius.index.index import Index

    folder = Path(tempfile.mkdtemp(prefix="genius-serving-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    report = Index.create(folder / "shapes.genius", mini_model()).add(drawn_items())
    assert not report.bad
    return folder / "shapes.genius"


def copy_index(folder: Path, name: str = "shapes.genius") -> Path:
    return Path(shutil.copytree(drawn_index(), folder / name))


def make_app(indexes: Mapping[str, Path], **limits: Any) -> "FastAPI":
    """The app over indexes by name, not started; they share one model. limits: fields of Settings."""
    from genius.index.index import Index
    from genius.serve.app import create_app
    from genius.serve.hosted import HostedIndex
    from genius.serve.settings import Settings

    settings = Settings(**{"refresh": 0.2, **limits})
    opened = {name: Index.open(path, mini_model(), refresh=settings.refresh) for name, path in indexes.items()}
    return create_app({name: HostedIndex(name, index, settings) for name, index in opened.items()}, settings)


@contextmanager
def service(indexes: Mapping[str, Path], **limits: Any) -> "Iterator[TestClient]":
    """A client of the app in this process, started and ready. A server's mistake is an answer 500, not an exception."""
    from fastapi.testclient import TestClient

    app = make_app(indexes, **limits)
    with TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False) as client:
        wait_until_ready(client)
        yield client


def wait_until_ready(client: httpx.Client) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            answer = client.get("/readyz")
            if answer.status_code == 200:
                return
            seen = answer.text
        except httpx.TransportError as error:
            seen = repr(error)
        assert time.monotonic() < deadline, f"the service does not get ready: {seen}"
        time.sleep(0.05)


@dataclass(frozen=True)
class RunningServer:
    """url: where it listens; log: what it has written so far, on standard output and error."""

    url: str
    port: int
    process: "subprocess.Popen[bytes]"
    log_file: Path

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def running_server(*indexes: str | Path, options: tuple[str, ...] = (), ready: bool = True) -> Iterator[RunningServer]:
    """`genius serve INDEX ... OPTIONS`, killed at the end if it has not ended by itself."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="genius-server-") as folder:
        log_file = Path(folder) / "log"
        command = [sys.executable, "-m", "genius.cli", "serve", *map(str, indexes), "--port", str(port), *options]
        with log_file.open("wb") as log:
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        server = RunningServer(f"http://127.0.0.1:{port}", port, process, log_file)
        try:
            if ready:
                _wait_for(server)
            yield server
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def _wait_for(server: RunningServer) -> None:
    deadline = time.monotonic() + PATIENCE
    with httpx.Client(base_url=server.url, timeout=10, trust_env=False) as client:
        while True:
            assert server.process.poll() is None, f"the server has ended:\n{server.log}"
            try:
                if client.get("/readyz").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            assert time.monotonic() < deadline, f"the server does not get ready:\n{server.log}"
            time.sleep(0.1)
