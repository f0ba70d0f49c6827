"""The benchmark of the service: clients count what they get, no query repeats, bars are judged, the page is written."""

import base64
import io
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import serve as benchmark  # noqa: E402
from search_results import BEGIN, END  # noqa: E402
from serve_load import Load, load  # noqa: E402
from serve_results import ServeResults, bars, sheets, write_page  # noqa: E402

from genius.errors import GeniusError  # noqa: E402

ANSWER = {"hits": [{"id": "a"}], "batch": 4, "seconds": {"queue": 0.001, "encode": 0.002, "total": 0.01}}


class Standin(BaseHTTPRequestHandler):
    """Answers every search; refuses those that say "refuse", and closes the connection on those that say "close"."""

    protocol_version = "HTTP/1.1"
    asked: list[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        text = json.loads(body)["text"]
        self.asked.append(text)
        if text == "close":
            self.close_connection = True
            return
        found = json.dumps({} if text == "refuse" else ANSWER, separators=(",", ":")).encode()
        self.send_response(503 if text == "refuse" else 200)
        self.send_header("Content-Length", str(len(found)))
        self.end_headers()
        self.wfile.write(found)

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def standin() -> Iterator[tuple[str, list[str]]]:
    """Its address, and what it is asked."""
    asked: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Asked", (Standin,), {"asked": asked}))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def bodies(*texts: str) -> list[bytes]:
    return [json.dumps({"text": text}).encode() for text in texts]


def test_clients_send_every_body_once_and_count_answers_and_errors() -> None:
    texts = [f"q{i}" for i in range(50)]
    with standin() as (url, asked):
        found = load(url, bodies(*texts, "refuse", "close"), clients=4)
    assert sorted(asked) == sorted([*texts, "refuse", "close"])
    assert len(found.times) == 51  # the refusal is an answer, too
    assert len(found.errors) == 2
    assert found.batches == [4, 4]  # every twentieth answer
    assert found.stage("encode") == 0.002
    assert found.rate == pytest.approx(51 / found.seconds)


def test_percentiles_are_those_of_the_times() -> None:
    found = Load(times=[i / 100 for i in range(100, 0, -1)])
    assert (found.percentile(0.5), found.percentile(0.99), found.percentile(1)) == (0.51, 1.0, 1.0)


def test_no_query_is_asked_twice_and_some_have_images() -> None:
    assert len(benchmark.vocabulary()) > 15_000
    queries = [json.loads(body) for body in benchmark.Queries(images=0.5).take(300)]
    assert len({query["text"] for query in queries}) == 300
    assert {len(query["text"].split()) for query in queries} == set(benchmark.WORDS)
    images = [query["image"] for query in queries if "image" in query]
    assert 100 < len(images) < 200
    assert len(set(images)) == len(images)
    assert Image.open(io.BytesIO(base64.b64decode(images[0]))).size == (benchmark.SIDE, benchmark.SIDE)
    assert not any("image" in json.loads(body) for body in benchmark.Queries(images=0).take(50))


@pytest.fixture
def results(tmp_path: Path) -> ServeResults:
    found = ServeResults(tmp_path / "serve.json", "a machine", "64 clients.")
    load = benchmark.results_of(Load(10.0, [0.1] * 1000, [], [30, 32], {"encode": [0.05]}, 1.0))
    found.add("together", load, False)
    found.add("one by one", {**load, "rate": 20.0, "errors": 3}, True)
    found.add("memory", {"requests": 20_000, "errors": 0, "before_mb": 1000, "after_mb": 1060, "growth": 6.0}, False)
    return found


def test_figures_are_kept_and_bars_judged(results: ServeResults) -> None:
    kept = ServeResults.read(results.path)
    assert kept == results
    assert [(row[2], row[3]) for row in bars(kept).rows] == [
        ("0", "yes"),
        ("3", "no"),
        ("0", "yes"),
        ("5* times", "yes"),
        ("6 %", "no"),
    ]
    assert [sheet.rows[0][0] for sheet in sheets(kept)[1:]] == [
        "batches as they come",
        "batches as they come",
        "memory",
    ]
    results.path.write_text("[]")
    with pytest.raises(GeniusError, match="does not hold results"):
        ServeResults.read(results.path)


def test_the_page_gets_the_tables_between_its_marks(results: ServeResults, tmp_path: Path) -> None:
    page = tmp_path / "serve.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write_page(results, page)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "Machine: a machine. 64 clients." in text
    assert "| batches as they come | 1,000 | 100 |" in text
    assert "Other processes were at work" in text


def test_all_loads_are_measured_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for the service, whose process is this one."""
    started: list[tuple[str, ...]] = []

    @contextmanager
    def fake_service(index: Path, *options: str) -> Iterator[Any]:
        import os

        started.append(options)
        with standin() as (url, _):
            yield benchmark.Service(url, os.getpid())

    monkeypatch.setattr(benchmark, "service", fake_service)
    monkeypatch.setattr(benchmark, "WARM", 4)
    monkeypatch.setattr(benchmark, "FASTEST", 10_000)
    results = ServeResults(tmp_path / "serve.json")
    benchmark.measure(results, benchmark.Settings(Path("x.genius"), 2, 0.2, 30, 0.0), Console(quiet=True))
    assert started == [(), ("--max-batch", "1"), ()]
    assert results.get("together", "errors") == results.get("memory", "errors") == 0
    assert results.get("memory", "requests") == 30
    assert results.get("together", "p50") <= results.get("together", "p99") <= results.get("together", "longest")  # type: ignore[operator]


def test_a_service_that_does_not_start_is_named(tmp_path: Path) -> None:
    with pytest.raises(GeniusError, match="did not start"), benchmark.service(tmp_path / "none.genius"):
        pass


@pytest.mark.slow
def test_the_real_service_bears_it(tmp_path: Path) -> None:
    from serving import drawn_index

    results = ServeResults(tmp_path / "serve.json")
    benchmark.measure(results, benchmark.Settings(drawn_index(), 16, 2.0, 100, 0.2), Console(quiet=True))
    assert [results.get(name, "errors") for name in results.rows] == [0, 0, 0]
    assert results.get("together", "batch") > 1  # type: ignore[operator]
    assert results.get("one by one", "batch") == 1
