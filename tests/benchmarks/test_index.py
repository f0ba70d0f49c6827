"""The benchmark of indexes: it measures what it says, results are kept, bars judged, the page written."""

import gc
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import DIM, tiny_model
from rich.progress import Progress

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import index as benchmark  # noqa: E402
import index_sources  # noqa: E402
from index_baselines import HnswBaseline, LanceBaseline  # noqa: E402
from index_results import Bar, IndexResults, bars, sheets, write_page  # noqa: E402
from index_sources import Drawn, Mixed  # noqa: E402
from search_results import BEGIN, END  # noqa: E402

from genius import Genius, Index  # noqa: E402
from genius.encoders.base import Vectors  # noqa: E402
from genius.errors import GeniusError  # noqa: E402
from genius.model.decoder_config import DecoderConfig  # noqa: E402


@dataclass(frozen=True)
class TinySource:
    """Random texts for the model of the tests."""

    about: str = "made up"

    @property
    def asked(self) -> Vectors:
        return self.block(1_000_000, 4)

    def model(self) -> Genius:
        return tiny_model()

    def block(self, start: int, count: int) -> Vectors:
        text = np.random.default_rng([2, start]).standard_normal((count, DIM)).astype(np.float32)
        return Vectors(np.zeros_like(text), text)


@pytest.fixture
def quiet() -> Progress:
    return Progress(disable=True)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "CHANGED", 20)
    monkeypatch.setattr(benchmark, "ROUNDS", 2)
    monkeypatch.setattr(benchmark, "BLOCK", 64)
    monkeypatch.setattr(benchmark, "WARM", 2)
    monkeypatch.setattr(benchmark, "others_at_work", lambda: False)


def settings(tmp_path: Path, sizes: list[int], indexes: list[str]) -> benchmark.Settings:
    return benchmark.Settings(sizes, indexes, tmp_path, 1, 0.05, {})


# What is indexed


def test_real_vectors_come_first_and_mixtures_after() -> None:
    real = TinySource().block(0, 30)
    source = Mixed("", real, real)
    block = source.block(0, 50)
    in_order = {tuple(row) for row in block.text[:30].round(4).tolist()}
    assert in_order == {tuple(row) for row in real.text.round(4).tolist()}
    assert not {tuple(row) for row in block.text[30:].round(4).tolist()} & in_order
    assert (source.block(0, 50).text == block.text).all()
    assert not block.image.any()


def test_drawn_items_have_the_modalities_of_their_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_sources, "SAMPLE", 500)
    config = DecoderConfig(8, (3, 4, 4), d_model=16, layers=1, heads=2, d_kv=8, d_ff=32, prefix=2)
    monkeypatch.setattr(index_sources, "PAPER", config)
    queries = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    source = Drawn("", Vectors(np.zeros_like(queries), queries))
    vectors = source.block(7, 300)
    codes = source.model().codes(vectors)
    assert codes.dtype == np.uint16
    assert (codes[:, 0] == vectors.modality).all()
    assert codes[:6, 0].tolist() == [1, 2, 0, 1, 2, 0]
    assert set(np.unique(codes[:, 1:])) == {0, 1, 2, 3}


# Measuring


def test_every_step_measures_the_index_that_was_built(tmp_path: Path, quiet: Progress) -> None:
    source, folder = TinySource(), tmp_path / "built.genius"
    built = benchmark.build(source, folder, True, 100, "building", quiet)
    assert built.keys() == set(benchmark.STEPS["build"])
    assert built["bytes"] * 100 == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert len(Index.open(folder, source.model())) == 100

    read = benchmark.read(source, folder, True, 0.05)
    truth = benchmark.nearest(source, 100, quiet)
    assert truth.shape == (4, benchmark.K)
    values = benchmark.with_found(read, "mini+", source, 100, quiet)
    assert values.keys() == set(benchmark.STEPS["read"])
    assert values["found"] > 0.8  # of so few items, nearly all are compared
    assert 0 < values["p50"] <= values["p99"]

    changed = benchmark.change(source, folder, True, 0.05)
    assert changed.keys() == set(benchmark.STEPS["change"])
    assert len(Index.open(folder, source.model())) == 100  # as before

    busy = benchmark.busy(source, folder, True, 0.5)
    assert busy.keys() == set(benchmark.STEPS["busy"])
    assert busy["errors"] == 0
    assert busy["added_rate"] > 0
    assert min(busy["before_p99"], busy["after_p99"]) <= busy["idle_p99"] <= max(busy["before_p99"], busy["after_p99"])
    assert len(Index.open(folder, source.model())) > 100


def test_what_is_measured_is_not_measured_again(
    tmp_path: Path, quiet: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def fresh(work: Any, *arguments: Any) -> dict[str, Any]:
        steps.append(work.__name__)
        assert arguments[1].is_dir()
        values: dict[str, Any] = dict.fromkeys(benchmark.STEPS[work.__name__], 1.0)
        return {**values, "answers": []} if work is benchmark.read else values

    def build(source: Any, folder: Path, *arguments: Any) -> dict[str, float]:
        steps.append("build")
        folder.mkdir()
        return {name: float(len(steps)) for name in benchmark.STEPS["build"]}

    class FakeSources:
        def of(self, index: str) -> TinySource:
            return TinySource()

    monkeypatch.setattr(benchmark, "in_fresh_process", fresh)
    monkeypatch.setattr(benchmark, "build", build)
    results, chosen = IndexResults(tmp_path / "index.json"), settings(tmp_path, [50], ["mini"])
    for _ in range(2):
        benchmark.measure_ours(results, chosen, FakeSources(), "mini", 50, quiet)  # type: ignore[arg-type]
    assert steps == ["build", "read", "change", "busy"]
    assert not list(tmp_path.glob("*.genius"))
    assert results.rows["mini", 50].values["build_rate"] == 1

    results = IndexResults.read(results.path)
    del results.rows["mini", 50].values["busy_p99"]
    benchmark.measure_ours(results, chosen, FakeSources(), "mini", 50, quiet)  # type: ignore[arg-type]
    assert steps[4:] == ["build", "busy"]
    assert IndexResults.read(results.path).rows["mini", 50].values["build_rate"] == 1


@pytest.mark.parametrize("name", ["hnsw", "lance-hnsw"])
def test_peers_find_the_nearest(name: str, tmp_path: Path, quiet: Progress) -> None:
    pytest.importorskip("faiss")
    source = TinySource()
    baseline = HnswBaseline(1) if name == "hnsw" else LanceBaseline(tmp_path / "baseline.lance", name)
    values = benchmark.baseline_values(baseline, source, 300, 0.05, "building", quiet)
    assert values["found"] > 0.9
    assert values["bytes"] > 4 * DIM
    assert ("delete_seconds" in values) == (name != "hnsw")


def test_a_peer_that_takes_too_long_is_left_out(tmp_path: Path, quiet: Progress) -> None:
    results = IndexResults(tmp_path / "index.json")
    results.add("hnsw", 100_000, {"build_seconds": 60.0}, False)
    assert benchmark.estimate(results, "hnsw", 1_000_000) == pytest.approx(60 * 10 * 6 / 5)
    assert benchmark.estimate(results, "hnsw", 10_000) is None
    sources: Any = None  # nothing is made
    benchmark.measure_baseline(results, settings(tmp_path, [], []), sources, "hnsw", 5_600_000, quiet)
    assert "about 76 minutes" in IndexResults.read(results.path).skipped["Faiss HNSW of 5,600,000 items"]


def test_a_failed_search_is_counted(tmp_path: Path) -> None:
    class Broken:
        def search_vectors(self, vectors: Vectors, k: int) -> None:
            raise OSError("gone")

    broken: Any = Broken()
    times, errors = benchmark.search_for(broken, TinySource().asked, 0.02)
    assert errors == len(times) > 0


def test_memory_is_what_this_process_has() -> None:
    gc.collect()  # what earlier tests left would be freed in between
    before = benchmark.resident()
    held = np.ones(50_000_000, np.uint8)
    assert benchmark.resident() - before > 0.8 * held.nbytes


# Showing


def some_figures(path: Path) -> IndexResults:
    results = IndexResults(path, "a machine", {"mini": "made up"}, rates={"mini": 60_000.0})
    results.add("paper", 1_000_000, {"bytes": 16.5, "open_seconds": 4.0}, False)
    results.add("mini+", 1_000_000, {"build_seconds": 8.0, "open_seconds": 2.0, "idle_p99": 2.0, "busy_p99": 3.0}, True)
    results.add("mini+", 1_000_000, {"errors": 0.0, "found": 0.991}, False)
    results.add("hnsw", 1_000_000, {"build_seconds": 400.0, "found": 0.95}, False)
    return results


def test_figures_survive_their_file(tmp_path: Path) -> None:
    results = some_figures(tmp_path / "index.json")
    assert IndexResults.read(results.path) == results
    assert not IndexResults.read(tmp_path / "none.json").rows
    results.path.write_text('{"rows": 3}')
    with pytest.raises(GeniusError, match="measure again"):
        IndexResults.read(results.path)


def test_bars_are_judged(tmp_path: Path) -> None:
    text = bars(some_figures(tmp_path / "index.json")).markdown()
    assert "| codes given to ready vectors, mini | ≥ 50,000 items/s | 60,000 items/s | yes |" in text
    assert "| bytes on disk an item, 1M items (paper's size, codes only) | ≤ 20 B | 16.5 B | yes |" in text
    assert "| opened, cold, 1M items (paper's size, codes only) | ≤ 3 s | 4 s | no |" in text
    assert "Faiss HNSW, 1M items (mini, with embeddings) | ≥ 20 times | 40* times | yes |" in text
    assert "to idle, 1M items (mini, with embeddings) | ≤ 2 times | 1.5* times | yes |" in text
    assert "| errors meanwhile, 1M items (mini, with embeddings) | ≤ 0 | 0* | yes |" in text
    assert "memory" not in text
    assert Bar("", 1.0, 1, "s").cells()[-1] == Bar("", 1.0, 1, "s", least=True).cells()[-1] == "yes"


def test_page_is_written_between_its_marks(tmp_path: Path) -> None:
    results, page = some_figures(tmp_path / "index.json"), tmp_path / "index.md"
    results.skipped["Faiss HNSW of 5,600,000 items"] = "too long"
    page.write_text(f"Before.\n{BEGIN}\nbefore\n{END}\nAfter.\n")
    write_page(results, page)
    written = page.read_text()
    assert written.startswith(f"Before.\n{BEGIN}\n")
    assert written.endswith(f"{END}\nAfter.\n")
    assert "before" not in written
    assert "a machine" in written
    assert "Not measured: Faiss HNSW of 5,600,000 items (too long)." in written
    assert "| mini, with embeddings* | 1M | 8 |" in written
    assert "| Faiss HNSW | 1M | 400 | – | – | – | 95 | – | – |" in written
    write_page(results, page)
    assert page.read_text() == written
    page.write_text("No marks.")
    with pytest.raises(GeniusError, match="no place"):
        write_page(results, page)
    assert len(sheets(results)) == 4  # nothing was searched alone


def test_the_page_in_docs_has_a_place_for_figures() -> None:
    text = (ROOT / "docs/storage.md").read_text(encoding="utf-8")
    assert text.index(BEGIN) < text.index(END)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "many"], "not a list of numbers"),
        (["--threads", "0"], "at least 1"),
        (["--indexes", "giant"], "giant"),
        (["--page", "x.md"], "Measure first"),
    ],
)
def test_bad_arguments_are_refused(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["index.py", str(tmp_path), *arguments])
    with pytest.raises(SystemExit):
        benchmark.main()
    assert message in " ".join(capsys.readouterr().out.split())
