"""Every metric on a small benchmark against one query at a time and plain sorting; what stops a run."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fakes import TinyJointEncoder, tiny_model, torch_decoder, torch_fusion
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from tiny_benchmark import COLOURS, DATASET, SHAPES, write_tiny_benchmark

from genius.data.items import Modality
from genius.data.mbeir import Benchmark, Candidate, Task
from genius.data.mbeir_writer import write_instructions, write_pool
from genius.data.splits import SplitData, TaskData
from genius.errors import BadData, GeniusError
from genius.evaluation import evaluate as module
from genius.evaluation import pool as pool_module
from genius.evaluation.encoded_split import encode_split, read_evaluation_split
from genius.evaluation.evaluate import evaluate, evaluate_encoded
from genius.evaluation.runs import BASELINES, CUTS, METHODS, PROTOCOLS, SETTINGS, TaskResult
from genius.model.encoder_only import encoder_only
from genius.model.genius import Genius
from genius.networks.quantizer import Quantizer
from genius.search.searcher import MIN_MODALITY_RATIO

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    return write_tiny_benchmark(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def model(bench: Benchmark) -> Genius:
    """Its fusion is not the sum of the two vectors, and its codes are made for the benchmark."""
    model = tiny_model(seed=4)
    fusion = torch_fusion(model.fusion)
    torch.nn.init.normal_(fusion.output_layer.weight, std=0.5, generator=torch.Generator().manual_seed(1))
    model.fusion = fusion.runtime()
    items = model.encode_items([bench.item(one) for one in bench.global_pool("test")])
    quantizer = Quantizer(model.dim, model.quantizer.codes_per_level, model.quantizer.levels, seed=4)
    quantizer.initialise(torch.from_numpy(model.fuse(items)), torch.from_numpy(items.modality.astype(np.int64)))
    model.quantizer = quantizer.runtime()
    model.decoder = model.decoder.with_codebooks(model.quantizer.codebooks)
    return model


@pytest.fixture(scope="module")
def scores(model: Genius, bench: Benchmark) -> list[TaskResult]:
    return evaluate(model, bench, "test", console=QUIET)


@dataclass
class Expected:
    recall: dict[int, float]
    right_modality: float
    mrr: float
    ndcg: float


def slowly(
    model: Genius,
    bench: Benchmark,
    task: Task,
    setting: str,
    method: str,
    split: str = "test",
    protocol: str = "usual",
) -> Expected:
    """One query after another, every candidate scored and sorted."""
    pool = list(bench.pool(task, split) if setting == "local" else bench.global_pool(split))
    if method == "exact-modality":
        pool = [one for one in pool if one.modality == task.target_modality]
    items = model.encode_items([bench.item(one) for one in pool])
    ids, which = np.unique(model.codes(items), axis=0, return_inverse=True)
    decoder, sums = torch_decoder(model.decoder), model.quantizer.decode(ids)
    queries = bench.queries(task, split)
    hits = dict.fromkeys(CUTS, 0)
    kinds, places, gains = [], [], []
    for query in queries:
        asked = model.encode_queries([bench.query(query)])
        z = torch.from_numpy(model.fuse(asked))
        if method in ("exact", "exact-modality", "rerank", "fast"):  # the beams hold so small a pool whole
            score = items.embedding(np.float16).astype(np.float32) @ asked.embedding()[0]
        elif method == "fused":
            score = model.fuse(items).astype(np.float16).astype(np.float32) @ z[0].numpy()
        elif method in ("codes", "rq"):
            score = (sums / np.linalg.norm(sums, axis=1, keepdims=True) @ z[0].numpy())[which]
        else:
            score = decoder(z.expand(len(ids), -1), torch.from_numpy(ids.astype(np.int64))).sum(dim=1).numpy()[which]
        ranking = [pool[row] for row in np.argsort(-score, kind="stable")]
        kept = query.image_path is None or protocol == "paper"
        answers = [c for c in ranking if kept or c.image_path != query.image_path][: CUTS[-1]]
        for cut in CUTS:
            hits[cut] += any(c.did in query.positives for c in answers[:cut])
        kinds += [c.modality == task.target_modality for c in answers[:5]]
        right = [place for place, c in enumerate(answers, 1) if c.did in query.positives]
        best = [place for place in range(1, 11) if place <= len(query.positives)]
        places.append(1 / right[0] if right else 0)
        gains.append(sum(1 / np.log2(1 + place) for place in right) / sum(1 / np.log2(1 + place) for place in best))
    recall = {cut: 100 * hits[cut] / len(queries) for cut in CUTS}
    return Expected(recall, 100 * float(np.mean(kinds)), float(np.mean(places)), float(np.mean(gains)))


def check(score: TaskResult, expected: Expected) -> None:
    assert score.recall == pytest.approx(expected.recall), score
    assert score.right_modality == pytest.approx(expected.right_modality), score
    assert score.mrr == pytest.approx(expected.mrr), score
    assert score.ndcg == pytest.approx(expected.ndcg), score


def test_every_method_and_setting_against_one_query_at_a_time(
    model: Genius, bench: Benchmark, scores: list[TaskResult]
) -> None:
    tasks = {task.name: task for task in bench.tasks("test")}
    asked = [(s.setting, s.task, s.method) for s in scores]
    assert asked == [(a, b, c) for a in SETTINGS for b in tasks for c in METHODS]
    for score in scores:
        check(score, slowly(model, bench, tasks[score.task], score.setting, score.method))
        low, high = score.interval[5]
        assert 0 <= low <= score.recall[5] <= high <= 100
        assert score.seconds > 0
        assert score.queries == 6
        assert score.candidates == (6 if score.setting == "local" else 18)


def test_the_methods_and_settings_are_not_all_alike(scores: list[TaskResult]) -> None:
    """Or the comparison above would not have told them apart."""
    by_method = [tuple(s.recall[1] for s in scores if s.method == m) for m in METHODS]
    assert len({by_method[METHODS.index(m)] for m in ("exact", "exact-modality", "fused", "generate", "codes")}) == 5
    local, everywhere = ([s.recall[1] for s in scores if s.setting == setting] for setting in SETTINGS)
    assert local != everywhere


def test_in_its_own_pool_every_answer_is_of_the_target_modality(scores: list[TaskResult]) -> None:
    assert {s.right_modality for s in scores if s.setting == "local"} == {100}
    assert min(s.right_modality for s in scores if s.setting == "global") < 100
    assert {s.right_modality for s in scores if s.method == "exact-modality"} == {100}


def test_what_a_method_keeps_of_an_item(scores: list[TaskResult]) -> None:
    """16 dimensions; 2 bits of modality and three times 3 of meaning."""
    vector, codes = 64, 11 / 8
    expected = {m: vector for m in ("exact", "exact-modality", "fused")} | {m: codes for m in ("generate", "codes")}
    assert {s.method: s.bytes for s in scores} == expected | {m: vector + codes for m in ("rerank", "fast")}


def test_the_querys_own_image_is_no_answer(model: Genius, bench: Benchmark) -> None:
    """From image to image with the same instruction for all, the nearest is the image itself."""
    task = Task(DATASET, 4)
    query = bench.queries(task, "test")[0]
    pool = list(bench.pool(task, "test"))
    items = model.encode_items([bench.item(one) for one in pool])
    images = model.encode_queries([bench.query(query)]).image
    assert pool[int(np.argmax(items.image @ images[0]))].image_path == query.image_path
    # With two images a shape, the right one is the only other; the own one would take a place of the first two.
    only = [c for c in pool if "circle" in c.did]
    data = SplitData(
        [TaskData(task, ["q"], np.array([0]), np.array([0]), [np.array([1])], np.arange(2))],
        [c.did for c in only],
        np.array([-1, -1]),
        np.array([0, 1]),
    )
    case = Case(data, np.arange(2), np.array([[0, 1]]))
    assert case.score().recall == {1: 100, 5: 100, 10: 100}
    assert case.score().ndcg == 1
    data.tasks[0].positives[0] = np.array([0])
    assert case.score().recall == {1: 0, 5: 0, 10: 0}
    assert case.score("paper").recall == {1: 100, 5: 100, 10: 100}
    data.tasks[0].positives[0] = np.array([0, 1])  # its own image is nothing that could have been found, either
    assert case.score().ndcg == 1
    data.tasks[0].positives[0] = np.array([1])  # in the paper's protocol it takes the first place
    assert case.score("paper").recall == {1: 0, 5: 100, 10: 100}


@dataclass
class Case:
    split: SplitData
    pool: np.ndarray
    ranked: np.ndarray

    @property
    def task(self) -> TaskData:
        return self.split.tasks[0]

    def score(self, protocol: str = "usual") -> TaskResult:
        cut = module.cuts_of(self.task.task.dataset)[-1]
        answers = module._candidates(self.split, self.task, self.pool, self.ranked, cut, protocol)
        right = module._right_pairs(self.split, self.task, self.pool, protocol)
        asked = module._Answers(self.pool, [answers], 0.0, 1.0)
        return module._result(self.split, self.task, "local", "exact", asked, right)


def make_case(seed: int, queries: int, candidates: int, answers: int) -> Case:
    """Random candidates, pool, own images, positives and rankings; some rankings end early."""
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


def answers_of(case: Case, query: int, protocol: str = "usual") -> list[int]:
    rows = [int(case.pool[row]) for row in case.ranked[query] if row >= 0]
    own = case.task.image[query]
    return [row for row in rows if own < 0 or case.split.image[row] != own or protocol == "paper"]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 30), st.integers(1, 20), st.sampled_from(PROTOCOLS))
def test_scores_against_a_loop(seed: int, queries: int, candidates: int, answers: int, protocol: str) -> None:
    case = make_case(seed, queries, candidates, answers)
    score = case.score(protocol)
    kinds = []
    found = [answers_of(case, query, protocol) for query in range(queries)]
    for cut in CUTS:
        hits = [bool(set(found[q][:cut]) & set(case.task.positives[q].tolist())) for q in range(queries)]
        assert score.recall[cut] == pytest.approx(100 * sum(hits) / queries)
    for query in range(queries):
        for row in found[query][:5]:
            kind = Modality.TEXT if case.split.image[row] < 0 else Modality.IMAGE
            kind = Modality.IMAGE_TEXT if kind == Modality.IMAGE and case.split.text[row] >= 0 else kind
            kinds.append(kind == case.task.task.target_modality)
    assert score.right_modality == pytest.approx(100 * float(np.mean(kinds)) if kinds else 0)


def test_fashion_data_sets_are_measured_at_20_and_50_too() -> None:
    case = make_case(seed=3, queries=40, candidates=90, answers=58)
    case.task.image[:] = -1
    case.task.task = Task("FashionIQ", 7)
    found = [answers_of(case, query) for query in range(40)]
    expected = {
        cut: 100 * np.mean([bool(set(f[:cut]) & {*p}) for f, p in zip(found, case.task.positives, strict=True)])
        for cut in (1, 5, 10, 20, 50)
    }
    assert case.score().recall == pytest.approx(expected)
    assert expected[10] < expected[20] < expected[50]


def test_answers_beyond_the_last_cut_make_up_for_own_images(model: Genius, bench: Benchmark, tmp_path: Path) -> None:
    """A narrow pool of copies: eight candidates show the query's own image, nine do not."""
    write_tiny_benchmark(tmp_path, tasks=(4,))
    copy = Benchmark(tmp_path)
    file = tmp_path / "cand_pool/global/mbeir_union_test_cand_pool.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    own = [{**rows[0], "did": f"test:copy{n}"} for n in range(7)]
    file.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *own]))
    scores = evaluate(model, copy, settings=("global",), methods=("exact",), console=QUIET)
    expected = slowly(model, copy, Task(DATASET, 4), "global", "exact")
    assert scores[0].recall == pytest.approx(expected.recall)


def test_a_limit_takes_some_queries_of_each_task(model: Genius, bench: Benchmark, scores: list[TaskResult]) -> None:
    few = evaluate(model, bench, limit=2, settings=("local",), methods=("exact",), console=QUIET)
    assert [s.queries for s in few] == [2] * 8
    assert [s.candidates for s in few] == [6] * 8
    again = evaluate(model, bench, limit=2, settings=("local",), methods=("exact",), console=QUIET)
    assert few == again
    more = evaluate(model, bench, limit=10**6, settings=("local",), methods=("exact",), console=QUIET)
    assert more == [s for s in scores if s.setting == "local" and s.method == "exact"]
    with pytest.raises(BadData, match="limit is 0"):
        evaluate(model, bench, limit=0, console=QUIET)


def test_sampled_queries_keep_their_own_answers_and_prompts(bench: Benchmark) -> None:
    everything, some = (read_evaluation_split(bench, "test", limit, prompts="all") for limit in (None, 3))
    whole, part = everything.data.tasks[0], some.data.tasks[0]
    name = whole.task.name
    assert len(part) == len(part.image) == len(part.positives) == 3
    for row, qid in enumerate(part.qids):
        at = whole.qids.index(qid)
        assert (part.text[row], part.image[row]) == (whole.text[at], whole.image[at])
        np.testing.assert_array_equal(part.positives[row], whole.positives[at])
        assert [text[row] for text in some.prompts[name]] == [text[at] for text in everything.prompts[name]]


def test_beam_and_budget_reach_the_search(model: Genius, bench: Benchmark, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    search = pool_module.Searcher.search

    def watched(self, fused, embedding, targets, options, ratio):  # type: ignore[no-untyped-def]
        seen.add((options.mode, options.beam, options.budget, self.embeddings is None, ratio))
        assert targets is None  # the model must understand the prompt
        return search(self, fused, embedding, targets, options, ratio)

    monkeypatch.setattr(pool_module.Searcher, "search", watched)
    asked = {"settings": ("global",), "tasks": ["shapes_task0"], "beam": 33, "budget": 44, "limit": 1}
    modes = [("generate", False), ("rerank", False), ("fast", False), ("fast", True)]
    for protocol in PROTOCOLS:
        seen.clear()
        evaluate(model, bench, console=QUIET, protocol=protocol, **asked)
        every = {"generate", "rerank"} if protocol == "paper" else set()  # modes that leave out no modality
        assert seen == {(mode, 33, 44, bare, 0.0 if mode in every else MIN_MODALITY_RATIO) for mode, bare in modes}


def test_the_papers_protocol_keeps_the_own_image(model: Genius, bench: Benchmark, scores: list[TaskResult]) -> None:
    """In tasks from images, it takes a place of the right ones."""
    tasks = [Task(DATASET, number) for number in (0, 4, 7)]
    paper = evaluate(model, bench, tasks=[task.name for task in tasks], console=QUIET, protocol="paper")
    assert len(paper) == 2 * 3 * len(METHODS)
    for score in paper:
        task = next(task for task in tasks if task.name == score.task)
        check(score, slowly(model, bench, task, score.setting, score.method, protocol="paper"))
    usual = {(s.setting, s.task, s.method): s for s in scores}
    changed = {s.task for s in paper if s.mrr < usual[s.setting, s.task, s.method].mrr}
    assert changed == {"shapes_task4", "shapes_task7"}
    assert all(s.mrr <= usual[s.setting, s.task, s.method].mrr for s in paper)
    with pytest.raises(GeniusError, match=r"no protocol 'authors'\. Choose from usual, paper"):
        evaluate(model, bench, protocol="authors", console=QUIET)


def test_a_beam_of_one_gives_one_answer(model: Genius, bench: Benchmark) -> None:
    asked = {"settings": ("global",), "tasks": ["shapes_task0"], "console": QUIET}
    one = evaluate(model, bench, methods=("generate", "rerank"), beam=1, **asked)
    assert [s.recall[1] for s in one] == [s.recall[10] for s in one]
    wide = evaluate(model, bench, methods=("generate", "rerank"), beam=50, **asked)
    assert all(a.recall[10] < b.recall[10] for a, b in zip(one, wide, strict=True))


def test_exact_search_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    queries, candidates = (rng.standard_normal((n, 8)).astype(np.float32) for n in (5, 23))
    monkeypatch.setattr(pool_module, "EXACT_BLOCK", 4)
    found = pool_module.nearest(queries, candidates, 6)
    np.testing.assert_array_equal(found, np.argsort(-queries @ candidates.T, axis=1)[:, :6])
    assert pool_module.nearest(queries, candidates[:0], 6).shape == (5, 0)


def test_all_prompts_are_the_mean_of_each_alone(model: Genius, bench: Benchmark, tmp_path: Path) -> None:
    asked = {"settings": ("global",), "methods": ("exact", "generate"), "tasks": ["shapes_task0", "shapes_task6"]}
    together = evaluate(model, bench, prompts="all", console=QUIET, **asked)
    alone = []
    for number in range(4):
        folder = tmp_path / str(number)
        copy = write_tiny_benchmark(folder)
        rows = [replace(row, prompts=row.prompts[number:] + row.prompts[:number]) for row in bench.instructions]
        write_instructions(folder, rows)
        alone.append(evaluate(model, copy, console=QUIET, **asked))
    assert len(together) == 4
    for score, *parts in zip(together, *alone, strict=True):
        recalls = [part.recall[5] for part in parts]
        assert score.recall[5] == pytest.approx(np.mean(recalls))
        assert score.spread is not None
        assert score.spread[5] == pytest.approx(np.std(recalls))
        assert score.mrr == pytest.approx(np.mean([part.mrr for part in parts]))
        assert score.ndcg == pytest.approx(np.mean([part.ndcg for part in parts]))
        assert parts[0].spread is None
    assert max(score.spread[5] for score in together if score.spread) > 0


def test_tasks_are_chosen_by_name_or_beginning(bench: Benchmark) -> None:
    def names(tasks: Sequence[str]) -> list[str]:
        return [task.task.name for task in read_evaluation_split(bench, "test", tasks=tasks).data.tasks]

    assert names(["shapes_task7", "shapes_task0"]) == ["shapes_task0", "shapes_task7"]
    assert len(names(["shapes"])) == 8
    with pytest.raises(BadData, match=r"begins with 'mscoco'.*shapes_task0, shapes_task1"):
        names(["shapes", "mscoco"])


def test_a_joint_encoder_is_given_each_text_with_its_image(bench: Benchmark, tmp_path: Path) -> None:
    model = tiny_model(seed=4, encoder=TinyJointEncoder())
    seen: list[tuple[bool, str]] = []
    encode = model.encoder.encode
    model.encoder.encode = lambda inputs, progress=False: (  # type: ignore[method-assign]
        seen.extend((p.pixels is not None, p.text) for p in inputs) or encode(inputs)
    )
    asked = {"methods": ("exact", "fused", "codes"), "out": tmp_path, "console": QUIET}
    first = evaluate(model, bench, "test", ("local",), tasks=["shapes_task0", "shapes_task7"], **asked)
    assert len(seen) == 6 + 6 + 6  # words, images with words, images
    results = evaluate(model, bench, "test", ("local",), **asked)
    assert sum(has_image and not text for has_image, text in seen) == 6  # read from the folder this time
    model.encoder.encode = encode  # type: ignore[method-assign]
    tasks = {task.name: task for task in bench.tasks("test")}
    assert [r for r in results if r.task in ("shapes_task0", "shapes_task7")] == first
    for result in results:
        check(result, slowly(model, bench, tasks[result.task], result.setting, result.method))


def test_baselines_on_the_same_vectors(model: Genius, bench: Benchmark) -> None:
    pytest.importorskip("faiss")
    task = Task(DATASET, 4)
    scores = evaluate(model, bench, tasks=[task.name], methods=(*METHODS, *BASELINES), console=QUIET)
    assert [s.method for s in scores] == [*METHODS, *BASELINES] * 2
    for score in scores:
        if score.method == "hnsw":  # in so small a pool a graph misses nothing
            check(score, slowly(model, bench, task, score.setting, "exact"))
            assert score.bytes > 64
        elif score.method == "rq":
            check(score, slowly(model, bench, task, score.setting, "rq"))
            assert score.bytes == 11 / 8
        elif score.method in BASELINES:
            assert score.bytes <= 11 / 8


# What stops a run


def test_without_faiss_baselines_are_refused_before_anything_is_encoded(
    model: Genius, bench: Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    monkeypatch.setattr(module, "encode_split", None)
    with pytest.raises(GeniusError, match=r"pip install \"genius-search\[baselines\]\""):
        evaluate(model, bench, methods=("exact", "hnsw"), console=QUIET)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"settings": ("lokal",)}, "no setting 'lokal'. Choose from local, global"),
        ({"settings": ()}, "No setting was given"),
        ({"methods": ("exact", "quick")}, "no method 'quick'. Choose from exact"),
        ({"prompts": "second"}, "'second'. Choose from first, all"),
        ({"beam": 0}, "beam is 0"),
        ({"budget": 0}, "budget is 0"),
    ],
)
def test_what_cannot_be_asked_is_named(model: Genius, bench: Benchmark, wrong: dict, sentence: str) -> None:
    with pytest.raises(GeniusError, match=sentence):
        evaluate(model, bench, console=QUIET, **wrong)


def test_an_empty_pool_is_named(model: Genius, tmp_path: Path) -> None:
    bench = write_tiny_benchmark(tmp_path)
    write_pool(tmp_path, Task(DATASET, 2), "test", [])
    with pytest.raises(BadData, match=f"{DATASET}_task2 has no local candidates"):
        evaluate(model, bench, console=QUIET)


def test_a_query_whose_answers_are_not_in_its_pool_is_named(model: Genius, tmp_path: Path) -> None:
    bench = write_tiny_benchmark(tmp_path)
    task = Task(DATASET, 0)
    query = bench.queries(task, "test")[2]
    write_pool(tmp_path, task, "test", [c for c in bench.pool(task, "test") if c.did not in query.positives])
    said = f"{task.name}: .* without a right candidate in the local pool, such as {query.qid}"
    with pytest.raises(BadData, match=said):
        evaluate(model, bench, settings=("local",), console=QUIET)
    scores = evaluate(model, bench, settings=("global",), methods=("exact",), tasks=[task.name], console=QUIET)
    assert len(scores) == 1


def test_a_task_whose_every_answer_shows_the_querys_own_image_is_named(model: Genius, tmp_path: Path) -> None:
    bench = write_tiny_benchmark(tmp_path, tasks=(4,))
    file = tmp_path / f"query/test/mbeir_{DATASET}_task4_test.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    own = {c.image_path: c.did for c in bench.pool(Task(DATASET, 4), "test")}
    rows = [row | {"pos_cand_list": [own[row["query_img_path"]]]} for row in rows]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(BadData, match=f"{DATASET}_task4: every right candidate .* its own query"):
        evaluate(model, bench, console=QUIET)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("nan", "no vector for .*NaN"), ("!!!", "empty vector .* candidate test:text:brown_circle")],
)
def test_a_text_without_a_vector_is_named(model: Genius, tmp_path: Path, text: str, sentence: str) -> None:
    bench = write_tiny_benchmark(tmp_path)
    file = tmp_path / "cand_pool/global/mbeir_union_test_cand_pool.jsonl"
    file.write_text(file.read_text().replace("a brown circle on white", text))
    with pytest.raises(BadData, match=sentence):
        evaluate(model, bench, console=QUIET)


def test_a_model_without_a_quantizer_searches_by_all_but_its_codes(model: Genius, bench: Benchmark) -> None:
    class Bare:
        decoder, quantizer = model.decoder, None
        fuse = staticmethod(model.fuse)

    made = encode_split(model, read_evaluation_split(bench, "test", tasks=["shapes_task0"]), console=QUIET)
    scores = evaluate_encoded(Bare(), made, methods=METHODS[:-1], console=QUIET)
    assert scores == evaluate_encoded(model, made, methods=METHODS[:-1], console=QUIET)
    with pytest.raises(GeniusError, match="Without a quantizer"):
        evaluate_encoded(Bare(), made, console=QUIET)


def test_only_what_is_searched_is_encoded(model: Genius, tmp_path: Path) -> None:
    """From text to text in its own pool, no image is opened."""
    bench = write_tiny_benchmark(tmp_path)
    for file in tmp_path.glob("images/test/*"):
        file.unlink()
    asked = {"tasks": ["shapes_task1"], "methods": ("exact",), "console": QUIET}
    assert len(evaluate(model, bench, settings=("local",), **asked)) == 1
    with pytest.raises(BadData, match="image of the benchmark cannot be read"):
        evaluate(model, bench, settings=("local", "global"), **asked)


@pytest.mark.parametrize("content", [None, b"", b"not an image"])
def test_a_image_that_cannot_be_read_is_named(model: Genius, tmp_path: Path, content: bytes | None) -> None:
    bench = write_tiny_benchmark(tmp_path)
    file = tmp_path / f"images/test/{COLOURS['test'][0]}_{SHAPES['test'][1]}.png"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadData, match=f"image of the benchmark cannot be read: {file}"):
        evaluate(model, bench, console=QUIET)


def test_an_unknown_split_is_refused(model: Genius, bench: Benchmark) -> None:
    with pytest.raises(BadData, match="dev"):
        evaluate(model, bench, "dev", console=QUIET)


def test_a_benchmark_of_texts_alone(model: Genius, tmp_path: Path) -> None:
    """No image anywhere: there is nothing to encode, and that is no mistake."""
    bench = write_tiny_benchmark(tmp_path, tasks=(1,))
    for split in ("global/mbeir_union_test", f"local/mbeir_{DATASET}_task1_test"):
        file = tmp_path / f"cand_pool/{split}_cand_pool.jsonl"
        rows = [row for row in map(json.loads, file.read_text().splitlines()) if row["modality"] == "text"]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    scores = evaluate(model, bench, methods=("exact",), console=QUIET)
    expected = slowly(model, bench, Task(DATASET, 1), "global", "exact")
    assert [s.recall for s in scores] == [pytest.approx(expected.recall)] * 2


def test_no_candidate_is_a_named_error_too(model: Genius, tmp_path: Path) -> None:
    bench = write_tiny_benchmark(tmp_path, tasks=(0,))
    stranger = Candidate("test:stranger", "a text", None, Modality.TEXT)
    write_pool(tmp_path, Task(DATASET, 0), "test", [stranger])
    with pytest.raises(BadData, match="test:stranger"):
        evaluate(model, bench, console=QUIET)


# Models without codebooks


def test_a_model_without_codebooks_is_searched_exactly(bench: Benchmark) -> None:
    model = encoder_only(TinyJointEncoder())
    results = evaluate(model, bench, "test", console=QUIET)
    assert {result.method for result in results} == {"exact", "exact-modality"}
    same = evaluate(model, bench, "test", methods=("exact", "rerank", "fast", "fused"), console=QUIET)
    for setting in SETTINGS:
        for task in bench.tasks("test"):
            mine = [r for r in [*results, *same] if (r.setting, r.task) == (setting, task.name)]
            found = {r.method: r for r in mine}
            assert found["exact"].recall == found["rerank"].recall == found["fast"].recall == found["fused"].recall
            check(found["exact"], slowly(model, bench, task, setting, "exact"))


@pytest.mark.parametrize("method", ["generate", "codes", "rq"])
def test_methods_that_need_codebooks_are_refused_without_them(bench: Benchmark, method: str, tmp_path: Path) -> None:
    sentence = f"no codebooks, which {method} would need. Choose from exact, exact-modality, fused, rerank"
    with pytest.raises(GeniusError, match=sentence):
        evaluate(
            encoder_only(TinyJointEncoder()), bench, methods=("exact", method), out=tmp_path / "run", console=QUIET
        )
    assert not (tmp_path / "run").exists()
