"""`genius train` with a small BLIP on a benchmark of drawings: stages 2 and 3 on joint vectors, and the model."""

import json
from dataclasses import replace
from pathlib import Path

import golden_blip
import numpy as np
import pytest
from rich.console import Console
from tiny_benchmark import write_tiny_benchmark

from genius.data.items import Query
from genius.data.mbeir import Benchmark
from genius.encoders.blip import BlipEncoder
from genius.errors import BadData
from genius.evaluation.evaluate import evaluate
from genius.index.index import Index
from genius.model.genius import Genius
from genius.networks.published import convert
from genius.train.clip import all_pairs
from genius.train.config import ClipStageConfig, DecoderStageConfig, QuantizerStageConfig, TrainConfig
from genius.train.data import TrainingData
from genius.train.run import train

QUIET = Console(quiet=True)
CONFIG = TrainConfig(
    seed=3,
    clip=ClipStageConfig(tune="none"),
    quantizer=QuantizerStageConfig(
        codes_per_level=8, levels=3, fusion_hidden=8, steps=20, batch=16, warmup=4, validate_every=10
    ),
    decoder=DecoderStageConfig(
        d_model=16, layers=1, heads=2, d_kv=8, d_ff=32, prefix=4, epochs=5, batch=16, warmup=4, validate_every=20
    ),
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    write_tiny_benchmark(folder, tasks=(0, 3, 7))
    return folder


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    folder = tmp_path_factory.mktemp("blip")
    file = golden_blip.write_checkpoint(folder / "blip_ff_large.pth", golden_blip.checkpoint(sharpness=20))
    convert(folder / "model", blip=file)
    return replace(CONFIG, clip=replace(CONFIG.clip, model=str(folder / "model")))


@pytest.fixture(scope="module")
def finished(root: Path, config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "finished"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("genius.train.run.draw_curves", lambda log, out: None)
        train([root], out, config, console=QUIET)
    return out


def test_stages_two_and_three_give_it_codebooks_and_a_decoder(finished: Path) -> None:
    log = [json.loads(line) for line in (finished / "training/log.jsonl").read_text().splitlines()]
    assert list(dict.fromkeys(line["stage"] for line in log)) == ["quantizer", "decoder"]
    assert all(np.isfinite(line["loss"]) for line in log)
    model = Genius.from_pretrained(finished)
    assert isinstance(model.encoder, BlipEncoder)
    assert (model.dim, model.sizes, model.encoder_only) == (64, (3, 8, 8, 8), False)


def test_the_cached_vectors_are_those_of_the_model(root: Path, finished: Path) -> None:
    model, bench = Genius.from_pretrained(finished), Benchmark(root)
    data = TrainingData([root], CONFIG.seed, CONFIG.derived_prompts)
    pairs = all_pairs(data)
    rows = np.load(next((finished / "training/cache").glob("pairs-*/vectors.npy")))[:-1]
    assert len(rows) == len(pairs) == len(np.unique(pairs, axis=0))
    for candidate in list(bench.global_pool("train"))[::13]:
        item = bench.item(candidate)
        prepared = model.prepare(item)
        text = data.texts.names.index(prepared.text) if prepared.text else -1
        image = data.images.names.index(str(item.image)) if item.image else -1
        row = np.flatnonzero((pairs == (text, image)).all(axis=1))
        vectors = model.encode([prepared])
        np.testing.assert_allclose(rows[row], vectors.image + vectors.text, atol=2e-3)


def test_the_model_generates_and_is_evaluated(root: Path, finished: Path, tmp_path: Path) -> None:
    model, bench = Genius.from_pretrained(finished), Benchmark(root)
    index = Index.create(tmp_path / "index", model)
    index.add([bench.item(candidate) for candidate in bench.global_pool("test")])
    found = index.search(Query(text="circle that is pink", target="image"), k=3, mode="generate")
    assert [hit.modality.label for hit in found] == ["image"] * 3
    results = evaluate(model, bench, settings=("global",), methods=("exact", "generate", "codes"), console=QUIET)
    assert len(results) == 3 * 3


def test_its_weights_are_not_trained(root: Path, config: TrainConfig, tmp_path: Path) -> None:
    tuned = replace(config, clip=replace(config.clip, tune="lora"))
    with pytest.raises(BadData, match=r'is a BLIP.*Set \[clip\] tune = "none"'):
        train([root], tmp_path / "out", tuned, console=QUIET)
