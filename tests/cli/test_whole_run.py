"""Whole runs by the commands a user types. With a tiny CLIP: train three stages, index, search, evaluate, serve. With a
small BLIP-FF: convert, index, search, evaluate, report, serve.

Slow, so run with `-m slow`: on a benchmark of drawings; and, with GENIUS_BENCH set to a folder in M-BEIR layout, on a
slice of that.
"""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

import golden_blip
import pytest
import tiny_clip
from serving import running_server
from tiny_benchmark import write_tiny_benchmark

from genius.data.mbeir import Benchmark, Task
from genius.data.mbeir_writer import write_global_pool, write_instructions, write_pool, write_queries

pytestmark = pytest.mark.slow

CONFIG = """
[clip]
model = "{clip}"
tune = "lora"
steps = 12
batch = 12
warmup = 2
validate_every = 6

[quantizer]
codes_per_level = 16
levels = 3
fusion_hidden = 16
steps = 30
batch = 32
warmup = 5
validate_every = 15

[decoder]
d_model = 16
layers = 1
heads = 2
d_kv = 8
d_ff = 32
prefix = 4
epochs = 2
batch = 32
warmup = 5
validate_every = 20
"""
QUERIES = {"train": 40, "val": 10, "test": 10}  # of each task of a slice


def slice_of(bench: Benchmark, folder: Path) -> Path:
    """The first queries of every task, and the first candidates beside the right ones; the images are linked to."""
    (folder / "images").symlink_to((bench.root / "images").resolve())
    write_instructions(folder, bench.instructions)
    for split, n in QUERIES.items():
        everything = {candidate.did: candidate for candidate in bench.global_pool(split)}
        kept = {}
        for task in bench.tasks(split):
            queries = bench.queries(task, split)[:n]
            write_queries(folder, task, split, queries)
            right = [did for query in queries for did in query.positives]
            others = [did for did, other in everything.items() if other.modality == task.target_modality][: 2 * n]
            pool = {did: everything[did] for did in [*right, *others]}
            if split != "train":
                write_pool(folder, task, split, pool.values())
            kept |= pool
        write_global_pool(folder, split, kept.values())
    return folder


@pytest.fixture(params=["drawings", "slice"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Benchmark:
    folder = tmp_path / "bench"
    folder.mkdir()
    if request.param == "drawings":
        write_tiny_benchmark(folder, tasks=(0, 3, 7))
        return Benchmark(folder)
    if "GENIUS_BENCH" not in os.environ:
        pytest.skip("GENIUS_BENCH names no benchmark in M-BEIR layout.")
    return Benchmark(slice_of(Benchmark(os.environ["GENIUS_BENCH"]), folder))


def genius(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "genius.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def asked(address: str, query: dict[str, object]) -> list[str]:
    request = urllib.request.Request(
        f"{address}/v1/search", json.dumps(query).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return [hit["id"] for hit in json.load(answer)["hits"]]


def test_from_a_benchmark_to_a_service(bench: Benchmark, tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_clip, "LENGTH", 80)
        clip = tiny_clip.save("clip", tmp_path / "clip")
    (tmp_path / "clip.toml").write_text(CONFIG.format(clip=clip))
    model, index, run = tmp_path / "model", tmp_path / "things.genius", tmp_path / "run"

    genius("train", bench.root, "--out", model, "--config", tmp_path / "clip.toml")
    task: Task = bench.tasks("test")[0]
    pools = sorted((bench.root / "cand_pool" / "global").glob("*_test_*.jsonl"))
    genius("index", "create", index, pools[0], "--model", model)
    assert int(genius("index", "count", index)) == sum(1 for _ in bench.global_pool("test"))

    genius("evaluate", bench.root, "--model", model, "--out", run, "--tasks", task.name, "--setting", "local")
    assert (run / "results" / f"local.{task.name}.fast.json").exists()

    words = bench.queries(task, "test")[0].text or "a red thing"
    found = json.loads(genius("search", index, words, "--target", "image", "-k", "5", "--json"))
    assert len(found) == 5
    with running_server(index) as server:
        assert asked(server.url, {"text": words, "target": "image", "k": 5}) == [hit["id"] for hit in found]


def test_from_a_published_blip_to_a_service(tmp_path: Path) -> None:
    bench = write_tiny_benchmark(tmp_path / "bench")
    file = golden_blip.write_checkpoint(tmp_path / "blip_ff_large.pth", golden_blip.checkpoint(sharpness=20))
    model, index, run = tmp_path / "blip-ff", tmp_path / "things.genius", tmp_path / "run"
    assert "no codebooks, exact search" in genius("convert", "--blip", file, model)
    pool = bench.root / "cand_pool" / "global" / "mbeir_union_test_cand_pool.jsonl"
    genius("index", "create", index, pool, "--model", model)
    assert int(genius("index", "count", index)) == sum(1 for _ in bench.global_pool("test"))
    genius("index", "verify", index)

    genius("evaluate", bench.root, "--model", model, "--methods", "exact,exact-modality,fast", "--out", run)
    exact, fast = (
        [json.loads(path.read_text())["recall"] for path in sorted((run / "results").glob(f"*.{method}.json"))]
        for method in ("exact", "fast")
    )
    assert len(exact) == 2 * 8
    assert exact == fast
    genius("report", run, "--out", tmp_path / "report.html")
    assert "BLIP-FF, in the paper" in (tmp_path / "report.md").read_text()

    found = json.loads(genius("search", index, "a pink circle", "--target", "image", "-k", "5", "--json"))
    assert len(found) == 5
    with running_server(index) as server:
        assert asked(server.url, {"text": "a pink circle", "target": "image", "k": 5}) == [hit["id"] for hit in found]
