"""Recall on a small benchmark against one query at a time and plain sorting, and against ranx."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tiny_benchmark import COLOURS, DATASET, SHAPES, write_tiny_benchmark

from genius import evaluate as module
from genius.errors import BadData
from genius.evaluate import CUTS, METHODS, SETTINGS, Score, evaluate, tables, write_scores
from genius.items import Modality
from genius.mbeir import Benchmark, Candidate, Task, write_pool
from genius.model import Genius
from genius.splits import SplitData, TaskData

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    return write_tiny_benchmark(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def model(bench: Benchmark) -> Genius:
    """Its fusion is not the sum of the two vectors, and its codes are made for the benchmark."""
    model = tiny_model(seed=4)
    torch.nn.init.normal_(model.fusion.output_layer.weight, std=0.5)
    items = model.encode_items([bench.item(one) for one in bench.global_pool("test")])
    model.quantizer.initialise(torch.from_numpy(model.fuse(items)), torch.from_numpy(items.modality.astype(np.int64)))
    return model


@pytest.fixture(scope="module")
def scores(model: Genius, bench: Benchmark) -> list[Score]:
    return evaluate(model, bench, "test", console=QUIET)


@dataclass
class Figures:
    recall: dict[int, float]
    right_kind: float


def slowly(model: Genius, bench: Benchmark, task: Task, setting: str, method: str, split: str = "test") -> Figures:
    """One query after another, every candidate scored and sorted."""
    pool = bench.pool(task, split) if setting == "local" else bench.global_pool(split)
    items = model.encode_items([bench.item(one) for one in pool])
    ids, which = torch.from_numpy(model.codes(items).astype(np.int64)).unique(dim=0, return_inverse=True)
    queries = bench.queries(task, split)
    hits = dict.fromkeys(CUTS, 0)
    kinds = []
    for query in queries:
        asked = model.encode_queries([bench.query(query)])
        z = torch.from_numpy(model.fuse(asked))
        if method in ("exact", "rerank", "fast"):  # the beams hold so small a pool whole
            score = items.embedding() @ asked.embedding()[0]
        elif method == "fused":
            score = model.fuse(items) @ z[0].numpy()
        elif method == "codes":
            score = (torch.nn.functional.normalize(model.quantizer.decode(ids), dim=1) @ z[0])[which].numpy()
        else:
            score = model.decoder(z.expand(len(ids), -1), ids).sum(dim=1)[which].numpy()
        ranking = [pool[row] for row in np.argsort(-score, kind="stable")]
        answers = [c for c in ranking if query.image_path is None or c.image_path != query.image_path][: CUTS[-1]]
        for cut in CUTS:
            hits[cut] += any(c.did in query.positives for c in answers[:cut])
        kinds += [c.modality == task.wanted for c in answers[:5]]
    return Figures({cut: 100 * hits[cut] / len(queries) for cut in CUTS}, 100 * float(np.mean(kinds)))


def test_every_method_and_setting_against_one_query_at_a_time(
    model: Genius, bench: Benchmark, scores: list[Score]
) -> None:
    tasks = {task.name: task for task in bench.tasks("test")}
    asked = [(s.setting, s.task, s.method) for s in scores]
    assert asked == [(a, b, c) for a in SETTINGS for b in tasks for c in METHODS]
    for score in scores:
        expected = slowly(model, bench, tasks[score.task], score.setting, score.method)
        assert score.recall == pytest.approx(expected.recall), score
        assert score.right_kind == pytest.approx(expected.right_kind), score
        assert score.queries == 6
        assert score.candidates == (6 if score.setting == "local" else 18)


def test_the_methods_and_settings_are_not_all_alike(scores: list[Score]) -> None:
    """Or the comparison above would not have told them apart."""
    by_method = [tuple(s.recall[1] for s in scores if s.method == m) for m in METHODS]
    assert len({by_method[METHODS.index(m)] for m in ("exact", "fused", "generate", "codes")}) == 4
    local, everywhere = ([s.recall[1] for s in scores if s.setting == setting] for setting in SETTINGS)
    assert local != everywhere


def test_in_its_own_pool_every_answer_is_of_the_wanted_kind(scores: list[Score]) -> None:
    assert {s.right_kind for s in scores if s.setting == "local"} == {100}
    assert min(s.right_kind for s in scores if s.setting == "global") < 100


def test_the_querys_own_picture_is_no_answer(model: Genius, bench: Benchmark) -> None:
    """From picture to picture with the same instruction for all, the nearest is the picture itself."""
    task = Task(DATASET, 4)
    query = bench.queries(task, "test")[0]
    pool = bench.pool(task, "test")
    items = model.encode_items([bench.item(one) for one in pool])
    pictures = model.encode_queries([bench.query(query)]).image
    assert pool[int(np.argmax(items.image @ pictures[0]))].image_path == query.image_path
    # With two pictures a shape, the right one is the only other; the own one would take a place of the first two.
    only = [c for c in pool if "circle" in c.did]
    data = SplitData(
        [TaskData(task, ["q"], np.array([0]), np.array([0]), [np.array([1])], np.arange(2))],
        [c.did for c in only],
        np.array([-1, -1]),
        np.array([0, 1]),
    )
    score = module._score(data, data.tasks[0], "local", "exact", np.arange(2), np.array([[0, 1]]))
    assert score.recall == {1: 100, 5: 100, 10: 100}
    data.tasks[0].positives[0] = np.array([0])
    score = module._score(data, data.tasks[0], "local", "exact", np.arange(2), np.array([[0, 1]]))
    assert score.recall == {1: 0, 5: 0, 10: 0}


@dataclass
class Case:
    split: SplitData
    pool: np.ndarray
    ranked: np.ndarray

    @property
    def task(self) -> TaskData:
        return self.split.tasks[0]


def make_case(seed: int, queries: int, candidates: int, answers: int) -> Case:
    """Random candidates, pool, own pictures, positives and rankings; some rankings end early."""
    rng = np.random.default_rng(seed)
    image = rng.integers(-1, 4, candidates)
    text = np.where(image < 0, 0, rng.integers(-1, 1, candidates))
    pool = rng.permutation(candidates)[: int(rng.integers(1, candidates + 1))]
    ranked = np.full((queries, answers), -1)
    for row in ranked:
        found = rng.permutation(len(pool))[: int(rng.integers(0, answers + 1))]
        row[: len(found)] = found
    positives = [rng.permutation(candidates)[: int(rng.integers(1, 4))] for _ in range(queries)]
    asked = rng.integers(-1, 4, queries)
    task = Task(DATASET, int(rng.choice([0, 1, 2, 3, 4, 6, 7, 8])))
    names = [f"q{n}" for n in range(queries)]
    data = TaskData(task, names, np.zeros(queries, int), asked, positives, pool)
    return Case(SplitData([data], [f"d{n}" for n in range(candidates)], text, image), pool, ranked)


def answers_of(case: Case, query: int) -> list[int]:
    rows = [int(case.pool[row]) for row in case.ranked[query] if row >= 0]
    own = case.task.image[query]
    return [row for row in rows if own < 0 or case.split.image[row] != own]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 30), st.integers(1, 20))
def test_scores_against_a_loop(seed: int, queries: int, candidates: int, answers: int) -> None:
    case = make_case(seed, queries, candidates, answers)
    score = module._score(case.split, case.task, "local", "exact", case.pool, case.ranked)
    kinds = []
    for cut in CUTS:
        hits = [bool(set(answers_of(case, q)[:cut]) & set(case.task.positives[q].tolist())) for q in range(queries)]
        assert score.recall[cut] == pytest.approx(100 * sum(hits) / queries)
    for query in range(queries):
        for row in answers_of(case, query)[:5]:
            kind = Modality.TEXT if case.split.image[row] < 0 else Modality.IMAGE
            kind = Modality.IMAGE_TEXT if kind == Modality.IMAGE and case.split.text[row] >= 0 else kind
            kinds.append(kind == case.task.task.wanted)
    assert score.right_kind == pytest.approx(100 * float(np.mean(kinds)) if kinds else 0)


def test_recall_is_ranx_hit_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")  # compiling takes a minute, running it a moment
    from ranx import Qrels, Run
    from ranx import evaluate as by_ranx

    case = make_case(seed=1, queries=80, candidates=60, answers=20)
    case.task.image[:] = -1
    for row in case.ranked:  # ranx knows no query without an answer
        row[0] = 0 if row[0] < 0 else row[0]
    score = module._score(case.split, case.task, "local", "exact", case.pool, case.ranked)
    right = {q: {f"d{row}": 1 for row in rows} for q, rows in zip(case.task.qids, case.task.positives, strict=True)}
    found = {
        q: {f"d{row}": 100.0 - rank for rank, row in enumerate(answers_of(case, number))}
        for number, q in enumerate(case.task.qids)
    }
    theirs = by_ranx(Qrels(right), Run(found), [f"hit_rate@{cut}" for cut in CUTS], threads=1)
    assert {cut: 100 * float(theirs[f"hit_rate@{cut}"]) for cut in CUTS} == pytest.approx(score.recall)
    assert 0 < score.recall[1] < score.recall[10] < 100


def test_answers_beyond_the_last_cut_make_up_for_own_pictures(model: Genius, bench: Benchmark, tmp_path: Path) -> None:
    """A narrow pool of copies: eight candidates show the query's own picture, nine do not."""
    write_tiny_benchmark(tmp_path, tasks=(4,))
    copy = Benchmark(tmp_path)
    file = tmp_path / "cand_pool/global/mbeir_union_test_cand_pool.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    own = [{**rows[0], "did": f"test:copy{n}"} for n in range(7)]
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *own]))
    scores = evaluate(model, copy, settings=("global",), methods=("exact",), console=QUIET)
    expected = slowly(model, copy, Task(DATASET, 4), "global", "exact")
    assert scores[0].recall == pytest.approx(expected.recall)


def test_a_limit_takes_some_queries_of_each_task(model: Genius, bench: Benchmark, scores: list[Score]) -> None:
    few = evaluate(model, bench, limit=2, settings=("local",), methods=("exact",), console=QUIET)
    assert [s.queries for s in few] == [2] * 8
    assert [s.candidates for s in few] == [6] * 8
    again = evaluate(model, bench, limit=2, settings=("local",), methods=("exact",), console=QUIET)
    assert few == again
    more = evaluate(model, bench, limit=10**6, settings=("local",), methods=("exact",), console=QUIET)
    assert more == [s for s in scores if s.setting == "local" and s.method == "exact"]
    with pytest.raises(BadData, match="limit is 0"):
        evaluate(model, bench, limit=0, console=QUIET)


def test_sampled_queries_keep_their_own_answers(model: Genius, bench: Benchmark) -> None:
    """Each query alone gives 0 or 100; the sample's recall is the mean of its queries'."""
    whole = module.encode_split(model, bench, "test", None, QUIET).split.tasks[0]
    part = module.encode_split(model, bench, "test", 3, QUIET).split.tasks[0]
    assert len(part) == len(part.image) == len(part.positives) == 3
    for row, qid in enumerate(part.qids):
        at = whole.qids.index(qid)
        assert (part.text[row], part.image[row]) == (whole.text[at], whole.image[at])
        np.testing.assert_array_equal(part.positives[row], whole.positives[at])


def test_beam_and_budget_reach_the_search(model: Genius, bench: Benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    search = module.Searcher.search

    def watched(self, fused, embedding, wanted, k, mode, beam, budget):  # type: ignore[no-untyped-def]
        seen.add((mode, beam, budget, self.embeddings is None))
        assert wanted is None  # what is wanted is for the model to understand from the prompt
        return search(self, fused, embedding, wanted, k, mode, beam, budget)

    monkeypatch.setattr(module.Searcher, "search", watched)
    evaluate(model, bench, settings=("global",), beam=33, budget=44, limit=1, console=QUIET)
    modes = [("generate", False), ("rerank", False), ("fast", False), ("fast", True)]
    assert seen == {(mode, 33, 44, bare) for mode, bare in modes}


def test_an_empty_pool_is_named(model: Genius, tmp_path: Path) -> None:
    bench = write_tiny_benchmark(tmp_path)
    write_pool(tmp_path, Task(DATASET, 2), "test", [])
    with pytest.raises(BadData, match=f"{DATASET}_task2 has no local candidates.*test"):
        evaluate(model, bench, console=QUIET)


@pytest.mark.parametrize("content", [None, b"", b"not a picture"])
def test_a_picture_that_cannot_be_read_is_named(model: Genius, tmp_path: Path, content: bytes | None) -> None:
    bench = write_tiny_benchmark(tmp_path)
    file = tmp_path / f"images/test/{COLOURS['test'][0]}_{SHAPES['test'][1]}.png"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadData, match=f"picture cannot be read: {file}"):
        evaluate(model, bench, console=QUIET)


def test_an_unknown_split_is_refused(model: Genius, bench: Benchmark) -> None:
    with pytest.raises(BadData, match="dev"):
        evaluate(model, bench, "dev", console=QUIET)


def test_a_benchmark_of_texts_alone(model: Genius, tmp_path: Path) -> None:
    """No picture anywhere: there is nothing to encode, and that is no mistake."""
    bench = write_tiny_benchmark(tmp_path, tasks=(1,))
    for split in ("global/mbeir_union_test", f"local/mbeir_{DATASET}_task1_test"):
        file = tmp_path / f"cand_pool/{split}_cand_pool.jsonl"
        rows = [row for row in map(json.loads, file.read_text().splitlines()) if row["modality"] == "text"]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    scores = evaluate(model, bench, methods=("exact",), console=QUIET)
    expected = slowly(model, bench, Task(DATASET, 1), "global", "exact")
    assert [s.recall for s in scores] == [pytest.approx(expected.recall)] * 2


def score(task: str, method: str, recall: float, kind: float = 100.0, setting: str = "local") -> Score:
    return Score(setting, task, method, 1234, 5678, {1: 0.0, 5: recall, 10: 99.0}, kind)


def cells(table: object) -> list[list[str]]:
    return [list(column.cells) for column in table.columns]  # type: ignore[attr-defined]


def test_tables_show_means_ratios_and_kinds() -> None:
    made = [score("a", "exact", 40), score("a", "fast", 30, 50), score("b", "exact", 60), score("b", "fast", 45)]
    made += [score("a", method, 10, setting="global") for method in ("exact", "fast")]
    first, second = tables(made)
    assert cells(first) == [
        ["a", "b", "mean", "ratio to exact", "answers of the wanted kind, %"],
        ["1,234", "1,234", "", "", ""],
        ["5,678", "5,678", "", "", ""],
        ["40.0", "60.0", "[bold]50.0[/]", "1.000", "100.0"],
        ["30.0", "45.0", "[bold]37.5[/]", "0.750", "75.0"],
    ]
    assert "local" in str(first.title)
    assert "global" in str(second.title)
    without_exact = next(tables([score("a", "fast", 30)]))
    assert cells(without_exact)[0] == ["a", "mean", "answers of the wanted kind, %"]


def test_scores_are_written_as_json(scores: list[Score], tmp_path: Path) -> None:
    write_scores(scores, tmp_path / "scores.json")
    read = json.loads((tmp_path / "scores.json").read_text())
    assert len(read) == len(scores)
    assert read[0]["task"] == scores[0].task
    assert read[0]["recall"] == {str(cut): value for cut, value in scores[0].recall.items()}


def test_no_candidate_is_a_named_error_too(model: Genius, tmp_path: Path) -> None:
    bench = write_tiny_benchmark(tmp_path, tasks=(0,))
    stranger = Candidate("test:stranger", "a text", None, Modality.TEXT)
    write_pool(tmp_path, Task(DATASET, 0), "test", [stranger])
    with pytest.raises(BadData, match="test:stranger"):
        evaluate(model, bench, console=QUIET)
