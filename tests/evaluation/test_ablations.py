"""`genius ablate`: the list of ablations, and trainings and rows that are made once."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from fakes import DIM, tiny_model
from rich.console import Console
from tiny_benchmark import write_tiny_benchmark

from genius.cli.evaluation import ABLATION_TABLES
from genius.data.images import load_image
from genius.data.items import Item
from genius.encoders.base import Prepared, Vectors
from genius.errors import BadData, GeniusError
from genius.evaluation import ablation_rows
from genius.evaluation import ablations as module
from genius.evaluation.ablation_jobs import AblationJob, estimated_seconds
from genius.evaluation.ablation_results import RowFolder, difference
from genius.evaluation.ablation_rows import AblationRow, AblationTraining, read_ablations
from genius.evaluation.ablations import ablate
from genius.evaluation.estimate import Estimate
from genius.model.genius import Genius
from genius.networks.quantizer import Quantizer
from genius.train.config import TrainConfig
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
    "Ours": 2 * 6,
}


@pytest.fixture(scope="module", params=["quick", "medium", "full", "paper"])
def rows(request: pytest.FixtureRequest) -> dict[str, AblationRow]:
    return {row.name: row for row in read_ablations(request.param)}


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
    found = [row.table.title for row in rows.values()]
    assert {table: found.count(table) for table in TABLES} == TABLES
    assert len(found) == sum(TABLES.values())


def test_the_rows_train_the_papers_decoder(rows: dict[str, AblationRow]) -> None:
    """No residual input or score, hard labels, and augmented queries except in the row without augmentation."""
    for name, row in rows.items():
        decoder = row.training.config.decoder
        if row.table.title != "Ours" or name.startswith("learn-hard"):
            assert (decoder.residual_input, decoder.residual_gain, decoder.teacher) == (False, 0.0, "none"), name
            assert (decoder.unaugmented, decoder.alpha) == (0.0, 2.0), name
            assert decoder.augmentation == ("none" if name == "no-augmentation" else "interpolate"), name


@pytest.mark.parametrize("pools", ["", "-global"])
def test_the_rows_of_how_the_decoder_learns(rows: dict[str, AblationRow], pools: str) -> None:
    chosen = {
        name.removesuffix(pools): row.training.config.decoder
        for name, row in rows.items()
        if row.table.name == f"learning{pools}"
    }
    facts = {name: (d.residual_input, d.residual_gain, d.teacher, d.layers > 0) for name, d in chosen.items()}
    assert facts == {
        "learn-hard": (False, 0.0, "none", True),
        "learn-distil": (False, 0.0, "distil", True),
        "learn-both": (False, 0.0, "both", True),
        "learn-shipped": (True, 0.0, "distil", True),
        "learn-closed": (False, 10.0, "none", False),
        "learn-closed-layers": (True, 10.0, "distil", True),
    }
    assert rows[f"learn-hard{pools}"].training == rows["components"].training


def test_the_shipped_row_is_what_genius_train_makes() -> None:
    shipped = TrainConfig().decoder
    row = next(row for row in read_ablations("full") if row.name == "learn-shipped")
    assert replace(row.training.config.decoder, validate_every=shipped.validate_every) == shipped


def test_the_main_tables_have_the_size_of_mini_and_three_seeds() -> None:
    sizes = {row.table.name: (row.size.name, row.size.seeds, row.size.limit) for row in read_ablations()}
    full = {name for name, facts in sizes.items() if facts == ("full", 3, 1000)}
    assert full == {"components", "beams", "rerank-local", "rerank-global", "learning", "learning-global"}
    assert {facts for name, facts in sizes.items() if name not in full} == {("quick", 1, 100)}
    shipped = TrainConfig()
    base = next(row.training.config for row in read_ablations("full") if row.name == "components")
    kept = {"validate_every": shipped.quantizer.validate_every}
    assert replace(base.quantizer, **kept) == shipped.quantizer
    for size in ("d_model", "layers", "heads", "d_kv", "d_ff", "prefix", "epochs", "batch", "rate"):
        assert getattr(base.decoder, size) == getattr(shipped.decoder, size)


def test_the_paper_size_is_the_papers_recipe() -> None:
    recipe = TrainConfig.read(Path(__file__).parents[2] / "examples/paper.toml")
    rows = {row.name: row.training.config for row in read_ablations("paper")}
    base = rows["components"]
    for mine, theirs in ((base.quantizer, recipe.quantizer), (base.decoder, recipe.decoder)):
        assert replace(mine, validate_every=theirs.validate_every) == theirs
    assert base.derived_prompts == recipe.derived_prompts
    assert {row.size.protocol for row in read_ablations("paper")} == {"paper"}
    for name, label in (("codes-4096x7", "4096 × 7"), ("codes-256x5", "256 × 5"), ("more-8192x17", "8192 × 17")):
        quantizer = rows[name].quantizer
        assert f"{quantizer.codes_per_level} × {quantizer.levels + 1}" == label
    assert (rows["decoder-large"].decoder.d_model, rows["decoder-large"].decoder.layers) == (1024, 24)


@pytest.mark.parametrize("size", ["quick", "medium", "full"])
def test_rows_of_decoder_sizes_say_their_size(size: str) -> None:
    chosen = [row for row in read_ablations(size) if row.table.name == "decoder-size"]
    shapes = [row.training.config.decoder for row in chosen]
    assert [row.about["ours"] for row in chosen] == [f"{d.d_model} wide, {d.layers} layers" for d in shapes]


def test_rows_of_other_systems_ids_say_that_they_are_ours(rows: dict[str, AblationRow]) -> None:
    labels = {name: row.about["label"] for name, row in rows.items() if row.table.name == "ids"}
    assert labels.pop("ids-ours") == "GENIUS"
    assert set(labels.values()) == {"IRGen-style IDs", "GRACE-style structured IDs", "GRACE-style numeric IDs"}


def test_the_help_text_names_the_tables_and_their_sizes() -> None:
    tables = {row.table.name: row.table for row in read_ablations()}
    assert {name: f"{table.title}: {table.about}".lower() for name, table in tables.items()} == {
        name: about.lower() for name, about in ABLATION_TABLES.items()
    }


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
    for name in ("no-augmentation", "ids-semantic"):
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
decoder = "paper"
[paper_decoder]
residual_input = false
residual_gain = 0.0
teacher = "none"
[table.first]
title = "Table 1"
about = "the first"
size = "full"
[table.second]
title = "Table 2"
about = "the second"
size = "full"
[size.full]
seeds = 1
seconds = { quantizer_step = 3, decoder_step = 5, search = 7 }
[size.full.quantizer]
codes_per_level = 8
levels = 3
fusion_hidden = 8
steps = 8
batch = 16
warmup = 2
validate_every = 100
[size.full.decoder]
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
[size.quick]
seeds = 1
limit = 2
seconds = { quantizer_step = 1, decoder_step = 1, search = 1 }
[size.quick.quantizer]
codes_per_level = 8
levels = 2
fusion_hidden = 8
steps = 4
batch = 16
[size.quick.decoder]
d_model = 16
layers = 1
heads = 2
d_kv = 8
d_ff = 16
prefix = 2
epochs = 1
batch = 16
"""
ROWS = {
    "base": 'setting = "global"\nbeam = 5\ndirection = "reference"\nlabel = "Base"\npaper = {a = 1.5}',
    "wide": 'setting = "local"\nbeam = 20\ndirection = "helpful"\nagainst = "base"',
    "same": 'setting = "global"\nbeam = 5\ndirection = "unknown"',
    "plain": 'setting = "global"\nbeam = 5\ndirection = "harmful"\nagainst = "base"\nscheme = "plain"',
    "semantic": 'setting = "global"\nbeam = 5\ndirection = "harmful"\nagainst = "base"\nscheme = "semantic"',
    "random-start": 'setting = "global"\nbeam = 5\ndirection = "unknown"\nfusion = "random"',
    "closed": 'setting = "global"\nbeam = 5\ndirection = "unknown"\nagainst = "base"\n'
    "train = { decoder = { layers = 0, residual_gain = 10.0 } }",
    "no-contrastive": 'setting = "global"\nbeam = 5\ndirection = "harmful"\nagainst = "random-start"\n'
    'fusion = "random"\ntrain = { quantizer = { contrastive = 0.0 } }',
}


def write_table(path: Path, rows: dict[str, str]) -> Path:
    second = ("plain", "semantic")
    path.write_text(
        SMALL
        + "".join(
            f'[[row]]\nname = "{name}"\ntable = "{"second" if name in second else "first"}"\n{text}\n'
            for name, text in rows.items()
        )
    )
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
        read_ablations("full")


def test_rows_have_names_of_their_own_and_are_compared_with_rows_that_exist() -> None:
    """Of the same table, so that a table alone has verdicts, and both have the same size."""
    rows = read_ablations()
    by_name = {row.name: row for row in rows}
    assert len(by_name) == len(rows)
    for row in rows:
        against = row.about["against"]
        assert against is None or by_name[against].table == row.table


# --- training and measuring -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bench")
    write_tiny_benchmark(root, tasks=(0, 3, 4))
    return root


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tiny rows and vectors."""
    tiny_ablations(monkeypatch, tmp_path)


def tiny_ablations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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


def scores(row: dict[str, Any], training: int = 0) -> list[dict[str, Any]]:
    """The metrics of one training of a row."""
    found: list[dict[str, Any]] = row["trainings"][training]["results"]
    return found


def without_times(value: Any) -> Any:
    """The same results but for how long they took."""
    if isinstance(value, dict):
        return {key: without_times(part) for key, part in value.items() if key != "seconds"}
    return [without_times(part) for part in value] if isinstance(value, list) else value


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
    trained = list((out / "decoders").glob("*/decoder.safetensors"))
    assert len(trained) == 5  # base, wide and same are one; the residual score has nothing to train
    assert len(list((out / "quantizers").iterdir())) == 4  # semantic IDs are on the vectors of the base
    assert len(searches) == 7  # base and same ask the same

    written = json.loads((out / "ablations.json").read_text())
    assert written["format"] == 2
    assert written["rows"] == results == json.loads(json.dumps(results))
    base, wide = results[0], results[1]
    about = {"name": "base", "table": "Table 1", "label": "Base", "paper": {"a": 1.5}, "direction": "reference"}
    about |= {"size": "full", "seeds": [0], "spread": {}, "limit": None, "difference": None}
    assert about.items() <= base.items()
    assert (base["setting"], base["beam"], base["scheme"], base["against"]) == ("global", 5, "modality", None)
    assert {score["task"] for score in scores(base)} == {"shapes_task0", "shapes_task3", "shapes_task4"}
    assert {score["setting"] for score in scores(wide)} == {"local"}
    assert [level["level"] for level in base["trainings"][0]["codebooks"]] == [1, 2, 3, 4]
    assert len(results[3]["trainings"][0]["codebooks"]) == 3  # no modality level
    exact = [score["recall"]["5"] for score in scores(base) if score["method"] == "exact"]
    assert base["mean"]["exact"]["value"] == pytest.approx(np.mean(exact))
    assert scores(base) == scores(results[2])
    assert results[3]["difference"]["value"] == pytest.approx(
        results[3]["mean"]["generate"]["value"] - base["mean"]["generate"]["value"]
    )

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

    next((out / "rows" / "full").glob("base-*.json")).unlink()
    again = run(bench, out, rows=["base"])[0]
    assert without_times(again) == without_times(first)


@pytest.mark.usefixtures("tiny")
def test_a_row_that_changed_is_made_anew(bench: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    table = write_table(tmp_path / "rows.toml", {"base": ROWS["base"]})
    run(bench, out)
    table.write_text(table.read_text().replace("beam = 5", "beam = 1"))
    (row,) = run(bench, out)
    assert row["beam"] == 1
    assert len(list((out / "rows" / "full").glob("*.json"))) == 2
    assert len(list((out / "decoders").iterdir())) == 1


@pytest.mark.usefixtures("tiny")
def test_a_folder_holds_ablations_of_one_kind(bench: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(bench, out, rows=["base"], limit=2)
    assert {score["queries"] for score in scores(json.loads((out / "ablations.json").read_text())["rows"][0])} == {2}
    table = ablation_rows.TABLE
    table.write_text(table.read_text().replace("[size.quick]", "[size.quick]\nderived_prompts = 0.5"))
    for other in ({"limit": 3}, {"limit": 2, "model": "other"}, {"limit": 2, "size": "quick"}):
        with pytest.raises(BadData, match=r"holds ablations with other data.*--out"):
            run(bench, out, rows=["base"], **other)


@pytest.mark.usefixtures("tiny")
def test_the_undivided_quantizer_is_not_told_the_modality(bench: Path, tmp_path: Path) -> None:
    """Its first code is the same for all items, and stage 2 of ours is not."""
    out = tmp_path / "out"
    run(bench, out, rows=["base", "plain"])
    rows = {row.name: row for row in read_ablations("full")}
    place = module.AblationRun((str(bench.resolve()),), str(out), None, 0, 0.2, "auto")
    ours, plain = (module.train_quantizer(place, rows[name].training) for name in ("base", "plain"))
    assert set(plain.data.train.modality.tolist()) == {0}
    assert set(ours.data.train.modality.tolist()) == {0, 1, 2}
    # Where ours learns its first code, this one still has none.
    training = rows["plain"].training
    learned = replace(training.config.quantizer, first_code="nearest")
    stage = module.train_quantizer(place, replace(training, config=replace(training.config, quantizer=learned)))
    assert stage.config.first_code == "modality"


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
    with pytest.raises(GeniusError, match=r"no ablation 'plain'\. Choose from base"):
        run(bench, tmp_path / "out", rows=["plain"], tables=["first"])
    with pytest.raises(GeniusError, match=r"no table 'third'\. Choose from first, second"):
        run(bench, tmp_path / "out", tables=["third"])
    with pytest.raises(GeniusError, match=r"no size 'huge'\. Choose from full, quick"):
        run(bench, tmp_path / "out", size="huge")
    for seeds in (0, 11):
        with pytest.raises(BadData, match="between 1 and 10"):
            run(bench, tmp_path / "out", seeds=seeds)
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
    expected = mini.encode([Prepared(None, "Find it."), Prepared(mini.pixels(load_image(images[2])), "")])
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


def test_a_training_is_named_by_what_decides_it() -> None:
    training = read_ablations("quick")[0].training
    other_seed = AblationTraining(replace(training.config, seed=1), training.scheme, training.fusion)
    assert other_seed.quantizer != training.quantizer
    assert training.seeded(1) == other_seed
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


# --- tables, seeds and sizes ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tiny")
def test_only_the_rows_of_the_tables_are_trained(bench: Path, tmp_path: Path) -> None:
    (plain, semantic) = run(bench, tmp_path / "out", tables=["second"])
    assert (plain["name"], semantic["name"]) == ("plain", "semantic")
    assert plain["difference"] is None  # its reference is in the other table


@pytest.mark.usefixtures("tiny")
def test_each_seed_is_a_training_and_a_row_is_their_mean(bench: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    rows = {row["name"]: row for row in run(bench, out, rows=["base", "plain"], seeds=2)}
    base, plain = rows["base"], rows["plain"]
    assert base["seeds"] == plain["seeds"] == plain["difference"]["seeds"] == [0, 1]
    assert len(list((out / "decoders").iterdir())) == len(list((out / "quantizers").iterdir())) == 4
    alone = [run(bench, tmp_path / f"alone{n}", rows=["base"], seeds=n)[0] for n in (1, 2)]
    assert without_times(alone[0]["trainings"]) == without_times(base["trainings"][:1])
    assert without_times(alone[1]) == without_times(base)

    means = {}
    for name, row in rows.items():
        recalls = [[s["recall"]["5"] for s in scores(row, n) if s["method"] == "generate"] for n in (0, 1)]
        means[name] = np.mean(recalls, axis=1)
        assert row["mean"]["generate"]["value"] == pytest.approx(means[name].mean())
        assert row["spread"]["generate"] == pytest.approx(means[name].std(ddof=1))
    assert plain["difference"]["value"] == pytest.approx(np.mean(means["plain"] - means["base"]))

    # One more seed of one row: the difference is still that of the seeds that both have.
    more = {row["name"]: row for row in run(bench, out, rows=["plain"], seeds=3)}["plain"]
    assert (more["seeds"], more["difference"]) == ([0, 1, 2], plain["difference"])


@pytest.mark.usefixtures("tiny")
def test_differences_are_paired_by_query(bench: Path, tmp_path: Path) -> None:
    """Which queries found something is kept: two rows that find the same have no difference and no doubt about it."""
    base, same, plain = (row for row in run(bench, tmp_path / "out", rows=["base", "same", "plain"]))
    assert same["against"] is None
    folder = RowFolder(tmp_path / "out" / "rows", None)
    rows = {row.name: row for row in read_ablations("full")}
    hits = {name: folder.hits(rows[name], [0])["generate"] for name in ("base", "same", "plain")}
    assert {task: found.shape for task, found in hits["base"].items()} == dict.fromkeys(hits["base"], (1, 6))
    for name, row in (("base", base), ("plain", plain)):
        recalls = {s["task"]: s["recall"]["5"] for s in scores(row) if s["method"] == "generate"}
        assert {task: 100 * found.mean() for task, found in hits[name].items()} == pytest.approx(recalls)
    assert difference(hits["same"], hits["base"]) == Estimate(0.0, 0.0, 0.0)
    found = difference(hits["plain"], hits["base"])
    assert plain["difference"] == {"value": found.value, "low": found.low, "high": found.high, "seeds": [0]}


@pytest.mark.usefixtures("tiny")
def test_sizes_share_a_folder_and_never_mix(bench: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    full = run(bench, out, rows=["base"])
    both = run(bench, out, rows=["plain"], size="quick")
    assert [(row["name"], row["size"], row["limit"]) for row in both] == [("base", "full", None), ("plain", "quick", 2)]
    assert both[0] == full[0]
    assert both[1]["difference"] is None  # its reference has been measured in full size only
    assert len(both[1]["trainings"][0]["codebooks"]) == 2
    rows = {(row["name"], row["size"]): row for row in run(bench, out, rows=["base"], size="quick")}
    assert rows["base", "full"] == full[0]
    assert rows["plain", "quick"]["difference"] is not None
    assert {score["queries"] for score in scores(rows["base", "quick"])} == {2}


@pytest.mark.usefixtures("tiny")
def test_the_estimate_counts_steps_and_searches(
    bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {row.name: row for row in read_ablations("full")}
    jobs = [AblationJob(rows[name], 0) for name in ("base", "wide", "same")]
    base = rows["base"].training
    changes: tuple[tuple[dict[str, Any], int], ...] = (({}, 1), ({"layers": 3}, 3), ({"teacher": "both"}, 2))
    for change, times in changes:  # both losses: each step has twice the IDs
        config = replace(base.config, decoder=replace(base.config.decoder, **change))
        job = AblationJob(replace(rows["base"], training=replace(base, config=config)), 0)
        assert estimated_seconds([], [[job]], 160) == 2 * 10 * 5 * times + 7
    # 8 steps of stage 2 at 3 s; 2 epochs of 160 queries in batches of 16 at 5 s; two different searches at 7 s
    assert estimated_seconds([jobs], [jobs], 160) == 8 * 3 + 2 * 10 * 5 + 2 * 7
    monkeypatch.setattr(module, "write_vectors", forbid)
    with pytest.raises(AssertionError):
        ablate([bench], tmp_path / "out", rows=["base"], seeds=2, workers=1, console=Console(width=1000))
    # Twice 8 steps, twice 2 epochs of 60 queries, two searches: 48 + 75 + 14 seconds
    said = capsys.readouterr().out
    assert (
        "2 trainings of 1 row, 0 of them finished; 2 decoders and 2 quantizers to train, 1 at a time: about 2 minutes"
        in said
    )


KILLED = """
import os, signal, sys
from pathlib import Path
import pytest, torch
torch.set_num_threads(1)
import test_ablations as tests
from genius.evaluation import ablations as module

root, work, steps = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
patch = pytest.MonkeyPatch()
tests.tiny_ablations(patch, work)
loss, count = module.DecoderStage.loss, 0

def counted(stage, step):
    global count
    count += 1
    if count > steps:
        os.kill(os.getpid(), signal.SIGKILL)
    return loss(stage, step)

patch.setattr(module.DecoderStage, "loss", counted)
tests.run(root, work / "out", rows=["base", "plain"], seeds=2)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
@pytest.mark.usefixtures("tiny")
def test_killed_ablations_continue(bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies in the training of the third of four decoders."""
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support"), *sys.path]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(folders), "OMP_NUM_THREADS": "1"}
    code = [sys.executable, "-c", KILLED, str(bench), str(tmp_path)]
    steps = 2 * 60 * 2 // 16  # of two decoders
    killed = subprocess.run([*code, str(steps + 3)], env=env, capture_output=True, check=False, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    out = tmp_path / "out"
    found = json.loads((out / "ablations.json").read_text())["rows"]
    assert [(row["name"], row["seeds"]) for row in found] == [("base", [0]), ("plain", [0])]

    trained = []
    loss = module.DecoderStage.loss
    monkeypatch.setattr(
        module.DecoderStage, "loss", lambda stage, step: trained.append(stage.seed) or loss(stage, step)
    )
    resumed = run(bench, out, rows=["base", "plain"], seeds=2)
    assert set(trained) == {1}
    assert without_times(resumed[0]["trainings"][0]) == without_times(found[0]["trainings"][0])
    whole = run(bench, tmp_path / "whole", rows=["base", "plain"], seeds=2)
    assert without_times(resumed) == without_times(whole)


ASLEEP = """
import time
from rich.console import Console
from genius.evaluation.ablations import _work
_work([(time.sleep, (300,))] * 2, "asleep", 2, Console(quiet=True), lambda: None)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_workers_end_with_the_main_process() -> None:
    """They would go on to write folders that the next run writes."""
    main = psutil.Popen([sys.executable, "-c", ASLEEP], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while len(workers := spawned(main)) < 2:
            assert time.monotonic() < end, "the workers did not start"
            time.sleep(0.1)
    finally:
        main.kill()
        main.wait()
    _, alive = psutil.wait_procs(workers, timeout=60)
    for process in alive:
        process.kill()
    assert not alive


def spawned(main: psutil.Process) -> list[psutil.Process]:
    """Worker processes of a pool."""
    return [child for child in main.children() if any("spawn_main" in part for part in child.cmdline())]


@pytest.mark.usefixtures("tiny")
def test_items_get_their_codes_as_in_training(bench: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the beams of the setting code_beams, in the search as in the training of the decoder."""
    table = ablation_rows.TABLE
    table.write_text(table.read_text().replace("levels = 3\n", "levels = 3\ncode_beams = 4\n"))
    row = next(row for row in read_ablations("full") if row.name == "base")
    place = module.AblationRun((str(bench.resolve()),), str(tmp_path / "out"), None, 0, 0.2, "auto")
    run(bench, tmp_path / "out", rows=["base"])
    model = module.train_decoder(place, row.training)
    beams = []
    encode = Quantizer.encode
    monkeypatch.setattr(Quantizer, "encode", lambda *given: beams.append(given[-1]) or encode(*given))
    model.codes(Vectors(np.ones((2, DIM), np.float32), np.ones((2, DIM), np.float32)))
    assert beams == [4]
