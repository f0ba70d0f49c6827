"""`genius ablate`: the list of ablations, and trainings and rows that are made once."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fakes import DIM, tiny_model
from rich.console import Console
from tiny_benchmark import write_tiny_benchmark

from genius.data.images import load_image
from genius.data.items import Item
from genius.encoders.base import Prepared
from genius.encoders.mini import MiniEncoder
from genius.errors import BadData, GeniusError
from genius.evaluation import ablation_rows
from genius.evaluation import ablations as module
from genius.evaluation.ablation_rows import AblationRow, AblationTraining, read_ablations
from genius.evaluation.ablations import ablate, means
from genius.evaluation.runs import TaskResult
from genius.model.genius import Genius
from genius.train.data import FrozenVectors

QUIET = Console(quiet=True)

# --- the list ---------------------------------------------------------------------------------------------------------

TABLES = {
    "Table 4": 5 + 1,  # and the reference of w/o L_cl
    "Table 5": 7,
    "Supplement, Table 3": 3,
    "Supplement, Table 4": 6,
    "Supplement, Table 5": 3,
    "Supplement, Table 6": 3,
    "Supplement, Table 7": 4,
    "Supplement, Table 8": 2,
    "Supplement, Table 9": 2,
    "Ours": 2,
}


@pytest.fixture(scope="module", params=[True, False], ids=["quick", "full"])
def rows(request: pytest.FixtureRequest) -> dict[str, AblationRow]:
    return {row.name: row for row in read_ablations(request.param).rows}


def changed(row: AblationRow, reference: AblationRow) -> set[str]:
    """Which settings of two rows differ."""
    mine, theirs = (flat(asdict(r.training)) for r in (row, reference))
    return {key for key in mine if mine[key] != theirs[key]}


def flat(values: dict[str, Any], before: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in values.items():
        out |= flat(value, f"{before}{key}.") if isinstance(value, dict) else {before + key: value}
    return {key.removeprefix("config."): value for key, value in out.items()}


def test_every_table_of_the_paper_has_its_rows(rows: dict[str, AblationRow]) -> None:
    found = [row.about["table"] for row in rows.values()]
    assert {table: found.count(table) for table in TABLES} == TABLES
    assert len(found) == sum(TABLES.values())


def test_the_rows_train_the_papers_decoder(rows: dict[str, AblationRow]) -> None:
    assert {name for name, row in rows.items() if row.training.config.decoder.decoder_levels} == {"decoder-levels-2"}
    assert {name for name, row in rows.items() if not row.training.config.decoder.linear_head} == {"no-linear-head"}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("no-modality", {"scheme"}),
        ("no-augmentation", {"decoder.augmentation"}),
        ("no-contrastive", {"quantizer.contrastive"}),
        ("no-mse", {"quantizer.gamma"}),
        ("modality-classifier", {"scheme"}),
        ("codes-4096x5", {"quantizer.levels"}),
        ("codes-256x9", {"quantizer.codes_per_level"}),
        ("shared", {"quantizer.shared"}),
        ("beam-1", set()),
        ("rerank-local-50", set()),
        ("ids-numeric", {"scheme"}),
        ("decoder-levels-2", {"decoder.decoder_levels"}),
        ("no-linear-head", {"decoder.linear_head"}),
    ],
)
def test_a_row_differs_from_its_reference_in_what_it_names(
    rows: dict[str, AblationRow], name: str, settings: set[str]
) -> None:
    row = rows[name]
    reference = rows[row.about["against"]]
    assert changed(row, reference) == settings
    assert row.setting == reference.setting
    assert (row.beam == reference.beam) != (name.startswith(("beam", "rerank")))


def test_rows_that_are_harmful_in_the_paper_have_lower_figures_there(rows: dict[str, AblationRow]) -> None:
    for row in rows.values():
        if row.about["direction"] == "harmful":
            reference = rows[row.about["against"]].about["paper"] or rows["components"].about["paper"]
            mine = row.about["paper"]
            assert sum(mine.values()) < sum(reference[task] for task in mine), row.name


def test_equal_trainings_are_one_and_different_ones_are_not(rows: dict[str, AblationRow]) -> None:
    base = rows["components"].training
    assert rows["beam-1"].training.decoder == rows["rerank-global-50"].training.decoder == base.decoder
    for name in ("no-augmentation", "ids-semantic", "decoder-levels-2"):
        assert rows[name].training.quantizer == base.quantizer
        assert rows[name].training.decoder != base.decoder
    for name in ("no-modality", "no-mse", "shared", "random-start"):
        assert rows[name].training.quantizer != base.quantizer
    assert rows["modality-classifier"].training.quantizer == rows["no-modality"].training.quantizer


SMALL = """
[defaults]
methods = ["exact", "generate"]
scheme = "modality"
fusion = "image+text"
[full]
minutes = 1
[full.quantizer]
codes_per_level = 8
levels = 3
fusion_hidden = 8
steps = 8
batch = 16
warmup = 2
validate_every = 100
[full.decoder]
decoder_levels = 0
d_model = 16
layers = 1
heads = 2
d_kv = 8
d_ff = 32
prefix = 4
epochs = 2
batch = 16
warmup = 2
validate_every = 100
[quick]
minutes = 1
limit = 2
"""
ROWS = {
    "base": 'setting = "global"\nbeam = 5\ndirection = "reference"\nlabel = "Base"\ntable = "T"\npaper = {a = 1.5}',
    "wide": 'setting = "local"\nbeam = 20\ndirection = "helpful"\nagainst = "base"',
    "same": 'setting = "global"\nbeam = 5\ndirection = "unknown"',
    "plain": 'setting = "global"\nbeam = 5\ndirection = "harmful"\nagainst = "base"\nscheme = "plain"',
    "semantic": 'setting = "global"\nbeam = 5\ndirection = "harmful"\nagainst = "base"\nscheme = "semantic"',
    "random-start": 'setting = "global"\nbeam = 5\ndirection = "unknown"\nfusion = "random"',
    "no-contrastive": 'setting = "global"\nbeam = 5\ndirection = "harmful"\nagainst = "random-start"\n'
    'fusion = "random"\ntrain = { quantizer = { contrastive = 0.0 } }',
}


def write_table(path: Path, rows: dict[str, str]) -> Path:
    path.write_text(SMALL + "".join(f'[[row]]\nname = "{name}"\n{text}\n' for name, text in rows.items()))
    return path


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('setting = "everywhere"\nbeam = 5\ndirection = "unknown"', "setting 'everywhere'.*local"),
        ('setting = "local"\nbeam = 5\ndirection = "bad"', "direction 'bad'"),
        ('setting = "local"\nbeam = 5\ndirection = "unknown"\nscheme = "string"', "scheme 'string'"),
        ('setting = "local"\nbeam = 5\ndirection = "unknown"\nbeems = 3', "setting 'beems'"),
        ('setting = "local"\nbeam = 5\ndirection = "unknown"\ntrain = {decoder = {sizes = 3}}', "no setting 'sizes'"),
        ('setting = "local"\nbeam = 5\ndirection = "unknown"\ntrain = {quantizer = {levels = 0}}', "at least 1"),
        ('setting = "local"\nbeam = 5\ndirection = "unknown"\nmethods = ["magic"]', "method 'magic'"),
    ],
)
def test_a_row_that_cannot_be_meant_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str, message: str
) -> None:
    table = write_table(tmp_path / "rows.toml", {"base": ROWS["base"], "odd": row})
    monkeypatch.setattr(ablation_rows, "TABLE", table)
    with pytest.raises(GeniusError, match=message):
        read_ablations(False)


def test_rows_have_names_of_their_own_and_are_compared_with_rows_that_exist() -> None:
    rows = read_ablations(True).rows
    names = {row.name for row in rows}
    assert len(names) == len(rows)
    assert {row.about["against"] for row in rows} <= {None, *names}


# --- training and measuring -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bench")
    write_tiny_benchmark(root, tasks=(0, 3, 4))
    return root


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tiny vectors, and trees and classifiers that so little data is enough for."""
    monkeypatch.setattr(ablation_rows, "TABLE", write_table(tmp_path / "rows.toml", ROWS))

    def encode_all(model: Genius, texts: list[str], images: list[str], *_: object) -> FrozenVectors:
        pixels = [Prepared(model.encoder.pixels(load_image(path)), "") for path in images]
        zero = np.zeros((1, DIM), np.float32)
        vectors = model.encode([Prepared(None, text) for text in texts]).text
        return FrozenVectors(np.concatenate([vectors, zero]), np.concatenate([model.encode(pixels).image, zero]))

    monkeypatch.setattr(module, "encode_all", encode_all)
    monkeypatch.setattr(Genius, "from_pretrained", lambda name: tiny_model(seed=0 if name == "mini" else 1))


def run(bench: Path, out: Path, **options: Any) -> list[dict[str, Any]]:
    return ablate([bench], out, console=QUIET, **{"workers": 1} | options)


def forbid(*_: object) -> None:
    raise AssertionError("this was made already")


@pytest.mark.usefixtures("tiny")
def test_all_rows_are_measured_and_none_of_them_twice(
    bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = []
    search = module.evaluate_encoded
    monkeypatch.setattr(module, "evaluate_encoded", lambda *given: searches.append(given[2:5]) or search(*given))
    out = tmp_path / "out"
    results = run(bench, out)
    assert [row["name"] for row in results] == list(ROWS)
    assert len(list((out / "decoders").iterdir())) == 5  # base, wide and same are one
    assert len(list((out / "quantizers").iterdir())) == 4  # semantic IDs are on the vectors of the base
    assert len(searches) == 6  # base and same ask the same

    written = json.loads((out / "ablations.json").read_text())
    assert written["format"] == 1
    assert written["quick"] is False
    assert written["rows"] == results == json.loads(json.dumps(results))
    base, wide = results[0], results[1]
    about = {"name": "base", "table": "T", "label": "Base", "paper": {"a": 1.5}, "direction": "reference"}
    assert about.items() <= base.items()
    assert (base["setting"], base["beam"], base["scheme"], base["against"]) == ("global", 5, "modality", None)
    assert {score["task"] for score in base["results"]} == {"shapes_task0", "shapes_task3", "shapes_task4"}
    assert {score["setting"] for score in wide["results"]} == {"local"}
    assert [level["level"] for level in base["codebooks"]] == [1, 2, 3, 4]
    assert len(results[3]["codebooks"]) == 3  # no modality level
    exact = [score["recall"]["5"] for score in base["results"] if score["method"] == "exact"]
    assert base["mean"]["exact"] == pytest.approx(np.mean(exact))
    assert base["results"] == results[2]["results"]

    arrays = np.load(out / "quantized.npz")
    assert arrays["with"].shape == arrays["without"].shape == (18, DIM)  # every candidate of the test split
    assert not np.allclose(arrays["with"], arrays["without"])
    assert sorted(arrays["modality"].tolist()) == [0] * 6 + [1] * 6 + [2] * 6

    for name in ("train_decoder", "write_vectors", "evaluate_encoded"):
        monkeypatch.setattr(module, name, forbid)
    assert run(bench, out) == results


@pytest.mark.usefixtures("tiny")
def test_what_is_missing_is_made_without_training_again(
    bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    (first,) = run(bench, out, rows=["base"])
    assert not (out / "quantized.npz").exists()
    monkeypatch.setattr(module.DecoderStage, "loss", forbid)
    monkeypatch.setattr(module.QuantizerStage, "loss", forbid)
    monkeypatch.setattr(module.QuantizerStage, "start", forbid)
    results = run(bench, out, rows=["wide"])  # the model is there, the row is not
    assert [row["name"] for row in results] == ["base", "wide"]
    assert results[0] == first

    row_file = next((out / "rows").glob("base-*"))
    row_file.unlink()
    again = run(bench, out, rows=["base"])[0]
    for score in [*again["results"], *first["results"]]:
        score.pop("seconds")
    assert again["results"] == first["results"]


@pytest.mark.usefixtures("tiny")
def test_a_row_that_changed_is_made_anew(bench: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    table = write_table(tmp_path / "rows.toml", {"base": ROWS["base"]})
    run(bench, out)
    table.write_text(table.read_text().replace("beam = 5", "beam = 1"))
    (row,) = run(bench, out)
    assert row["beam"] == 1
    assert len(list((out / "rows").iterdir())) == 2
    assert len(list((out / "decoders").iterdir())) == 1


@pytest.mark.usefixtures("tiny")
def test_a_folder_holds_ablations_of_one_kind(bench: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(bench, out, rows=["base"], limit=2)
    assert {score["queries"] for score in json.loads((out / "ablations.json").read_text())["rows"][0]["results"]} == {2}
    for other in ({"limit": 3}, {"limit": 2, "model": "other"}):
        with pytest.raises(BadData, match=r"holds ablations with other data.*--out"):
            run(bench, out, rows=["base"], **other)


@pytest.mark.usefixtures("tiny")
def test_the_undivided_quantizer_is_not_told_the_modality(bench: Path, tmp_path: Path) -> None:
    """Its first code is the same for all items, and stage 2 of ours is not."""
    out = tmp_path / "out"
    run(bench, out, rows=["base", "plain"])
    rows = {row.name: row for row in read_ablations(False).rows}
    place = module.AblationRun((str(bench.resolve()),), str(out), None, 0, 0.2)
    ours, plain = (module.train_quantizer(place, rows[name].training) for name in ("base", "plain"))
    assert set(plain.data.train.modality.tolist()) == {0}
    assert set(ours.data.train.modality.tolist()) == {0, 1, 2}


@pytest.mark.usefixtures("tiny")
def test_a_random_fusion_does_not_start_at_the_sum(
    bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = {}
    start = module.QuantizerStage.start

    def watched(stage: Any) -> None:
        image, text = torch.randn(4, DIM), torch.randn(4, DIM)
        plain = torch.nn.functional.normalize(image + text, dim=1)
        started[len(started)] = torch.allclose(stage.fusion.eval()(image, text), plain, atol=1e-5)
        start(stage)

    monkeypatch.setattr(module.QuantizerStage, "start", watched)
    run(bench, tmp_path / "out", rows=["base"])
    run(bench, tmp_path / "out", rows=["random-start"])
    assert started == {0: True, 1: False}


@pytest.mark.usefixtures("tiny")
def test_wrong_requests_are_refused_before_any_work(bench: Path, tmp_path: Path) -> None:
    with pytest.raises(GeniusError, match=r"no ablation 'bass'\. Choose from base, wide"):
        run(bench, tmp_path / "out", rows=["bass"])
    with pytest.raises(BadData, match="limit is 0"):
        run(bench, tmp_path / "out", limit=0)
    assert not (tmp_path / "out").exists()


def test_vectors_of_other_encoders_are_their_own(bench: Path, tmp_path: Path) -> None:
    model, images = tiny_model(), sorted(str(path) for path in (bench / "images/test").iterdir())[:2]
    vectors = module.encode_all(model, ["a red bar", "a cat"], images, tmp_path, QUIET)
    texts, photos = vectors.texts, vectors.images
    expected = model.encode_items([Item("a", text="a red bar"), Item("b", text="a cat")]).text
    np.testing.assert_allclose(texts, [*expected, np.zeros(model.dim)], atol=1e-3)
    expected = model.encode_items([Item("c", image=images[0]), Item("d", image=images[1])]).image
    np.testing.assert_allclose(photos, [*expected, np.zeros(model.dim)], atol=1e-3)


def test_the_vectors_are_those_of_the_models_heads(bench: Path, tmp_path: Path, mini: Any) -> None:
    """By cached features as by the encoder itself, in training and test splits."""
    model = tiny_model()
    model.encoder = mini
    images = sorted(str(path) for path in (bench / "images/test").iterdir())[:3]
    vectors = module.encode_all(model, ["A red square.", "Find it."], images, tmp_path, QUIET)
    texts, photos = vectors.texts, vectors.images
    exact = MiniEncoder(mini.heads_config, mini.heads, int8=False)
    expected = exact.encode([Prepared(None, "Find it."), Prepared(mini.pixels(load_image(images[2])), "")])
    np.testing.assert_allclose(texts[1], expected.text[0], atol=2e-3)
    np.testing.assert_allclose(photos[2], expected.image[1], atol=2e-2)
    assert not texts[-1].any()
    assert not photos[-1].any()


@pytest.mark.slow
def test_workers_do_the_same_as_one_process(bench: Path, tmp_path: Path, tiny: None) -> None:
    names = ["base", "wide", "plain"]
    alone = run(bench, tmp_path / "alone", rows=names)
    together = run(bench, tmp_path / "two", rows=names, workers=2)
    assert [row["mean"] for row in together] == [row["mean"] for row in alone]


def test_the_interval_of_a_mean_is_narrower_than_those_of_its_tasks() -> None:
    def score(task: str, recall: float, half: float) -> TaskResult:
        span = {5: (recall - half, recall + half)}
        return TaskResult("local", task, "d", "text->image", "generate", 9, 9, {5: recall}, span, 0, 0, 0, 0, 0)

    found = means([score("a", 40.0, 6.0), score("b", 60.0, 8.0)])
    assert found["mean"] == {"generate": 50.0}
    assert found["interval"]["generate"] == pytest.approx((45.0, 55.0))  # sqrt(6^2 + 8^2) / 2
    assert means([score("a", 0.5, 2.0)])["interval"]["generate"] == (0.0, 2.5)


def test_a_training_is_named_by_what_decides_it() -> None:
    training = read_ablations(True).rows[0].training
    other_seed = AblationTraining(replace(training.config, seed=1), training.scheme, training.fusion)
    assert other_seed.quantizer != training.quantizer
    other_heads = replace(training.config, heads=replace(training.config.heads, dim=3))
    assert AblationTraining(other_heads, training.scheme, training.fusion).decoder == training.decoder


def test_failed_ablations_leave_nothing_that_blocks(
    bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "ablations"
    with pytest.raises(BadData, match="M-BEIR layout"):
        run(tmp_path / "mistyped", out)
    assert not out.exists()

    def fail(*arguments: object) -> None:
        raise BadData("An image cannot be read.")

    monkeypatch.setattr(module, "write_vectors", fail)
    for limit in (1, 2):  # the second has other settings
        with pytest.raises(BadData, match="An image"):
            run(bench, out, limit=limit)
