"""Run folders: what is in them, going on, refusing what does not belong together; TREC files; tables."""

import hashlib
import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import pytrec_eval
from fakes import tiny_model
from rich.console import Console
from tiny_benchmark import write_tiny_benchmark

from genius.data.mbeir import Benchmark
from genius.errors import BadData
from genius.evaluation import encoded_split
from genius.evaluation import evaluate as evaluation
from genius.evaluation.encoded_split import read_evaluation_split
from genius.evaluation.evaluate import evaluate
from genius.evaluation.recall_tables import terminal_tables
from genius.evaluation.runs import BASELINES, TaskResult, codebook_use, headline, id_bytes
from genius.evaluation.runs import METHODS as ALL_METHODS
from genius.model.decoder_runtime import DecoderRuntime
from genius.model.genius import Genius

QUIET = Console(quiet=True)
TASKS, METHODS = ("shapes_task0", "shapes_task4"), ("exact", "fast")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    return write_tiny_benchmark(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def model() -> Genius:
    return tiny_model(seed=4)


def measure(model: Genius, bench: Benchmark, out: Path | None, **changes: object) -> list[TaskResult]:
    asked = {"tasks": TASKS, "methods": METHODS, "console": QUIET} | changes
    return evaluate(model, bench, out=out, **asked)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folder(model: Genius, bench: Benchmark, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; tests leave it as it is."""
    out = tmp_path_factory.mktemp("runs") / "mini"
    measure(model, bench, out)
    return out


def test_run_json_says_what_was_measured(folder: Path, model: Genius, bench: Benchmark) -> None:
    run = json.loads((folder / "run.json").read_text())
    assert run["format"] == 1
    assert run["model"] == {
        "name": None,
        "encoder": "tiny",
        "fingerprint": model.fingerprint,
        "dim": 16,
        "levels": 3,
        "codes_per_level": 8,
        "bytes_per_item": 11 / 8,
        "int8": False,
    }
    assert (run["benchmark"], run["split"], run["beam"], run["budget"]) == (bench.root.name, "test", 50, None)
    assert (run["limit"], run["prompts"]) == (None, "first")
    assert run["seconds"] > 0
    assert [one["level"] for one in run["codebooks"]] == [1, 2, 3, 4]
    assert run["codebooks"][0] == {"level": 1, "used": 100, "perplexity": pytest.approx(3)}
    assert [TaskResult.from_dict(one) for one in run["results"]] == measure(model, bench, None)
    assert not list(folder.rglob("*.part*"))


def test_trec_eval_reads_the_files_and_finds_the_same_metrics(folder: Path) -> None:
    for one in json.loads((folder / "run.json").read_text())["results"]:
        score = TaskResult.from_dict(one)
        trec = folder / "trec" / score.setting
        with open(trec / f"{score.task}.qrels") as file:
            qrels = pytrec_eval.parse_qrel(file)
        lines = (trec / f"{score.task}.{score.method}.run").read_text().splitlines()
        assert {len(line.split()) for line in lines} == {6}
        assert {line.split()[5] for line in lines} == {f"genius-{score.method}"}
        with open(trec / f"{score.task}.{score.method}.run") as file:
            run = pytrec_eval.parse_run(file)
        measures = {"success.1,5,10", "recip_rank", "ndcg_cut.10"}
        found = pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(run)
        assert len(found) == score.queries
        theirs = {name: float(np.mean([one[name] for one in found.values()])) for name in next(iter(found.values()))}
        assert {cut: 100 * theirs[f"success_{cut}"] for cut in score.recall} == pytest.approx(score.recall)
        assert theirs["recip_rank"] == pytest.approx(score.mrr)
        assert theirs["ndcg_cut_10"] == pytest.approx(score.ndcg)


def test_the_querys_own_image_is_not_in_the_files(folder: Path) -> None:
    """A query of task 4 is named after its image, and so are candidates."""
    for file in (folder / "trec").rglob("shapes_task4.*"):
        pairs = [line.split()[:3:2] for line in file.read_text().splitlines()]
        assert pairs
        assert not [1 for qid, did in pairs if did == f"test:image:{qid.removeprefix('4:')}"]


def test_an_interrupted_run_goes_on_and_ends_as_if_it_had_not_been(
    model: Genius, bench: Benchmark, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask, encode, asked = evaluation._search, Genius.encode, []

    def dying(*arguments):  # type: ignore[no-untyped-def]
        asked.append(arguments)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return ask(*arguments)

    monkeypatch.setattr(evaluation, "_search", dying)
    with pytest.raises(KeyboardInterrupt):
        measure(model, bench, tmp_path)
    assert len(list((tmp_path / "results").iterdir())) == 2
    assert len(json.loads((tmp_path / "run.json").read_text())["results"]) == 2

    def counting(*arguments):  # type: ignore[no-untyped-def]
        asked.append(arguments)
        return ask(*arguments)

    def never(*arguments):  # type: ignore[no-untyped-def]
        raise AssertionError("encoded again")

    asked.clear()
    monkeypatch.setattr(evaluation, "_search", counting)
    monkeypatch.setattr(Genius, "encode", never)
    scores = measure(model, bench, tmp_path)
    assert len(asked) == 8 - 2
    assert scores == measure(model, bench, tmp_path)
    assert len(asked) == 8 - 2  # the third time there was nothing to do
    for file in folder.rglob("*"):
        if file.suffix in (".run", ".qrels"):
            assert (tmp_path / file.relative_to(folder)).read_text() == file.read_text()
    monkeypatch.setattr(Genius, "encode", encode)
    assert scores == measure(model, bench, None)


def test_a_run_grows_by_tasks_settings_and_methods(
    model: Genius, bench: Benchmark, folder: Path, tmp_path: Path
) -> None:
    measure(model, bench, tmp_path, tasks=["shapes_task4"], settings=("local",), methods=("fast",))
    measure(model, bench, tmp_path, settings=("global",))
    whole = measure(model, bench, tmp_path)
    here, there = (json.loads((run / "run.json").read_text()) for run in (tmp_path, folder))
    assert [TaskResult.from_dict(one) for one in here["results"]] == whole
    assert [TaskResult.from_dict(one) for one in there["results"]] == whole
    assert here["codebooks"] == there["codebooks"]


def test_a_run_of_the_papers_protocol_is_not_continued_in_another(
    model: Genius, bench: Benchmark, folder: Path, tmp_path: Path
) -> None:
    asked = {"tasks": ["shapes_task4"], "settings": ("local",), "methods": ("exact",)}
    measure(model, bench, tmp_path, protocol="paper", **asked)
    assert json.loads((tmp_path / "run.json").read_text())["protocol"] == "paper"
    with pytest.raises(BadData, match=r"another protocol .paper there, usual here"):
        measure(model, bench, tmp_path, **asked)


def test_a_run_that_names_no_protocol_is_a_usual_one(model: Genius, bench: Benchmark, tmp_path: Path) -> None:
    asked = {"tasks": ["shapes_task4"], "settings": ("local",), "methods": ("exact",)}
    before = measure(model, bench, tmp_path, **asked)
    run = json.loads((tmp_path / "run.json").read_text())
    del run["protocol"]
    (tmp_path / "run.json").write_text(json.dumps(run))
    with pytest.raises(BadData, match=r"another protocol .usual there, paper here"):
        measure(model, bench, tmp_path, protocol="paper", **asked)
    assert measure(model, bench, tmp_path, **asked) == before


def test_all_prompts_have_a_file_each(model: Genius, bench: Benchmark, tmp_path: Path) -> None:
    measure(model, bench, tmp_path, prompts="all", tasks=["shapes_task0"], settings=("global",), methods=("exact",))
    names = {file.name for file in (tmp_path / "trec/global").iterdir()}
    runs = {f"shapes_task0.exact.{part}" for part in ("run", "prompt2.run", "prompt3.run", "prompt4.run")}
    assert names == {"shapes_task0.qrels", *runs}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"beam": 10}, "another beam .50 there, 10 here"),
        ({"budget": 10}, "another budget"),
        ({"limit": 2}, "another limit .None there, 2 here"),
        ({"split": "val"}, "another split .test there, val here"),
        ({"prompts": "all"}, "another choice of prompts"),
        ({"protocol": "paper"}, "another protocol .usual there, paper here"),
    ],
)
def test_other_settings_are_refused(
    model: Genius, bench: Benchmark, folder: Path, changes: dict[str, object], sentence: str
) -> None:
    before = (folder / "run.json").read_text()
    with pytest.raises(BadData, match=f"{sentence}.*--out"):
        measure(model, bench, folder, **changes)
    assert (folder / "run.json").read_text() == before


def test_another_model_is_refused(bench: Benchmark, folder: Path) -> None:
    other = tiny_model(seed=5)
    with pytest.raises(BadData, match=f"another model .*{other.fingerprint} here"):
        measure(other, bench, folder)


def test_weights_of_eight_bits_are_another_run(model: Genius, bench: Benchmark, folder: Path) -> None:
    rounded = tiny_model(seed=4)
    rounded.decoder = DecoderRuntime(rounded.decoder.config, rounded.decoder.weights, int8=True)
    assert rounded.fingerprint == model.fingerprint
    with pytest.raises(BadData, match=f"another model .{model.fingerprint} there, .* in eight bits here"):
        measure(rounded, bench, folder)


def test_a_benchmark_that_changed_is_refused(model: Genius, bench: Benchmark, folder: Path, tmp_path: Path) -> None:
    same = write_tiny_benchmark(tmp_path / bench.root.name)
    assert len(measure(model, same, folder)) == 8
    pool = tmp_path / bench.root.name / "cand_pool/global/mbeir_union_test_cand_pool.jsonl"
    pool.write_text(pool.read_text().replace("a pink bar", "a rosy bar"))
    with pytest.raises(BadData, match="another state of the benchmark's files"):
        measure(model, same, folder)


def test_vectors_of_another_model_are_refused(model: Genius, bench: Benchmark, tmp_path: Path) -> None:
    asked = {"tasks": ["shapes_task0"], "methods": ("exact",)}
    for name, maker in (("one", model), ("other", tiny_model(seed=5))):
        measure(maker, bench, tmp_path / name, **asked)
    shutil.rmtree(tmp_path / "one/vectors")
    (tmp_path / "other/vectors").rename(tmp_path / "one/vectors")
    with pytest.raises(BadData, match="vectors holds vectors of another model"):
        measure(model, bench, tmp_path / "one", **asked)


def test_an_id_that_trec_files_cannot_hold_is_named(model: Genius, tmp_path: Path) -> None:
    bench = write_tiny_benchmark(tmp_path)
    pool = tmp_path / "cand_pool/global/mbeir_union_test_cand_pool.jsonl"
    pool.write_text(pool.read_text() + '{"did": "test: stranger", "txt": "hello", "modality": "text"}\n')
    with pytest.raises(BadData, match=r"'test: stranger'.*white space"):
        measure(model, bench, tmp_path / "run")
    assert len(measure(model, bench, None)) == 8


def test_a_damaged_run_is_named(model: Genius, bench: Benchmark, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(BadData, match=r"run\.json is not valid JSON"):
        measure(model, bench, tmp_path)


def test_bytes_of_an_id() -> None:
    assert id_bytes((3, *[4096] * 8)) == 12.25  # the paper's: supplement, Sec. B.1
    assert id_bytes((3, *[256] * 12)) == 12.25
    assert id_bytes((5, 1)) == 3 / 8


def test_use_of_codebooks() -> None:
    codes = np.array([[0, 1], [0, 1], [1, 2], [1, 3]])
    first, second = codebook_use(codes, (3, 4))
    assert first == {"level": 1, "used": pytest.approx(200 / 3), "perplexity": pytest.approx(2)}
    assert second == {"level": 2, "used": 75, "perplexity": pytest.approx(np.exp(1.5 * np.log(2)))}


def score(task: str, method: str, recall: float, setting: str = "local", **more: object) -> TaskResult:
    values = {
        "dataset": "coco",
        "modalities": "text->image",
        "queries": 1234,
        "candidates": 5678,
        "mrr": 0.5,
        "ndcg": 0.25,
    }
    figures = {"recall": {1: 0.0, 5: recall, 10: 99.0}, "interval": {5: (recall - 3, recall + 1), 10: (98.0, 99.0)}}
    rest = {"right_modality": 100.0, "seconds": 0.002, "bytes": 12.25}
    return TaskResult(setting=setting, task=task, method=method, **values | figures | rest | more)  # type: ignore[arg-type]


def cells(table: object) -> list[list[str]]:
    return [list(column.cells) for column in table.columns]  # type: ignore[attr-defined]


def test_tables_show_intervals_means_ratios_and_what_they_cost() -> None:
    made = [score("a", "exact", 40), score("a", "fast", 30, right_modality=50.0)]
    made += [score("b", "exact", 60), score("b", "fast", 45, seconds=0.004)]
    made += [score("a", method, 10, setting="global") for method in ("exact", "fast")]
    first, second = terminal_tables(made)
    costs = ["MRR@10", "nDCG@10", "target modality, %", "bytes per item", "ms per query"]
    assert cells(first) == [
        [*(f"{task}\n[dim]1,234 in 5,678[/]" for task in "ab"), "mean", "ratio to exact", *costs],
        ["40.0\n[dim]±2.0[/]", "60.0\n[dim]±2.0[/]", "[bold]50.0[/]", "1.000", *figures("100.0", "2.00")],
        ["30.0\n[dim]±2.0[/]", "45.0\n[dim]±2.0[/]", "[bold]37.5[/]", "0.750", *figures("75.0", "3.00")],
    ]
    assert "local" in str(first.title)
    assert "global" in str(second.title)


def test_every_method_is_shown_whole_on_80_columns() -> None:
    """Baselines in a table of their own, with exact search to compare with."""
    made = [score("visualnews_task0", method, 30) for method in (*ALL_METHODS, *BASELINES)]
    ours, baselines = terminal_tables(made)
    assert [str(column.header).replace("\n", "") for column in ours.columns][1:] == list(ALL_METHODS)
    assert [str(column.header) for column in baselines.columns][1:] == ["exact", *BASELINES]
    shown = io.StringIO()
    Console(width=80, file=shown).print(ours, baselines)
    assert "…" not in shown.getvalue()
    assert shown.getvalue().count("±2.0") == 7 + 5


def figures(kind: str, milliseconds: str) -> list[str]:
    return ["0.500", "0.250", kind, "12.25", milliseconds]


def test_tables_without_exact_search_have_no_ratio_and_with_all_prompts_a_spread() -> None:
    plain, spread = (next(terminal_tables([score("a", "fast", 30, spread=s)])) for s in (None, {5: 1.26, 10: 0.0}))
    assert "ratio to exact" not in cells(plain)[0]
    assert "spread over prompts" not in cells(plain)[0]
    assert cells(spread)[1][cells(spread)[0].index("spread over prompts")] == "1.26"


def test_fashion_data_sets_are_shown_at_10() -> None:
    assert [headline(name) for name in ("mscoco", "fashion200k", "FashionIQ")] == [5, 10, 10]
    table = next(terminal_tables([score("fashioniq_task7", "fast", 30, dataset="fashioniq")]))
    assert cells(table)[0][0].startswith("fashioniq_task7 (@10)")
    assert cells(table)[1][0].startswith("99.0")


def test_the_digest_is_that_of_the_json_of_everything_read(bench: Benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is computed in parts, and must not depend on their size: stored runs would be refused."""
    digests = set()
    for size in (3, 65_536):
        monkeypatch.setattr(encoded_split, "DIGEST_BLOCK", size)
        split = read_evaluation_split(bench, "test")
        digests.add(split.digest)
    data = split.data
    right = [(task.task.name, task.qids, [rows.tolist() for rows in task.positives]) for task in data.tasks]
    images = [os.path.relpath(image, bench.root) for image in split.images]
    pools = [task.pool.tolist() for task in data.tasks]
    everything = [split.texts, images, data.dids, data.text.tolist(), data.image.tolist(), right, pools]
    assert digests == {hashlib.sha256(json.dumps(everything).encode()).hexdigest()[:16]}


def test_vectors_of_a_run_are_mapped_files(model: Genius, bench: Benchmark, tmp_path: Path) -> None:
    measure(model, bench, tmp_path)
    shapes = {path.stem: np.load(path, mmap_mode="r").shape for path in (tmp_path / "vectors").glob("*.npy")}
    split = read_evaluation_split(bench, "test")
    candidates = len(split.data.dids)
    assert shapes["texts"] == (len(split.texts) + 1, model.dim)
    assert shapes["images"] == (len(split.images) + 1, model.dim)
    assert shapes["codes"] == (candidates, len(model.sizes))
    assert shapes["embeddings"] == (candidates, model.dim)
