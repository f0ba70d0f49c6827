"""`genius train` with a tiny CLIP on a benchmark of drawings: three stages, then an index, searches, an evaluation."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_clip
import torch
from rich.console import Console
from tiny_benchmark import write_tiny_benchmark

from genius.data.items import Query
from genius.data.mbeir import Benchmark
from genius.encoders.base import Prepared, Vectors
from genius.encoders.clip import ClipEncoder
from genius.evaluation.evaluate import evaluate
from genius.index.index import Index
from genius.model.genius import Genius
from genius.train import loop
from genius.train.clip import ClipStage, load_clip
from genius.train.config import ClipStageConfig, DecoderStageConfig, QuantizerStageConfig, TrainConfig
from genius.train.run import train

QUIET = Console(quiet=True)
CONFIG = TrainConfig(
    seed=3,
    precision="bf16",
    clip=ClipStageConfig(tune="lora", steps=8, batch=12, rate=1e-3, warmup=2, validate_every=4, temperature=0.05),
    quantizer=QuantizerStageConfig(
        codes_per_level=8, levels=3, fusion_hidden=8, steps=20, batch=16, warmup=4, validate_every=10
    ),
    decoder=DecoderStageConfig(
        d_model=16, layers=1, heads=2, d_kv=8, d_ff=32, prefix=4, epochs=5, batch=16, warmup=4, validate_every=20
    ),
)


@pytest.fixture(scope="module", autouse=True)
def _no_curves() -> Iterator[None]:
    """Half of the time of so small a training would be spent on its image."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("genius.train.run.draw_curves", lambda log, out: None)
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bench")
    write_tiny_benchmark(folder, tasks=(0, 3, 7))
    return folder


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny_clip, "LENGTH", 80)
        folder = tiny_clip.save("clip", tmp_path_factory.mktemp("clip"))
    return replace(CONFIG, clip=replace(CONFIG.clip, model=str(folder)))


@pytest.fixture(scope="module")
def finished(root: Path, config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "finished"
    train([root], out, config, console=QUIET)
    return out


def test_the_three_stages_leave_a_model_with_the_tuned_clip(finished: Path, config: TrainConfig) -> None:
    log = [json.loads(line) for line in (finished / "training/log.jsonl").read_text().splitlines()]
    assert list(dict.fromkeys(line["stage"] for line in log)) == ["encoder", "quantizer", "decoder"]
    assert all(np.isfinite(line["loss"]) for line in log)
    model = Genius.from_pretrained(finished)
    assert isinstance(model.encoder, ClipEncoder)
    assert (model.dim, model.sizes) == (24, (3, 8, 8, 8))
    untuned = ClipEncoder.from_hub(config.clip.model).model.state_dict()
    moved = {
        n for n, value in model.encoder.model.state_dict().items() if not torch.equal(value, untuned[n].half().float())
    }
    assert {name.split(".")[-2] for name in moved} <= {"q_proj", "k_proj", "v_proj", "out_proj"}
    assert moved
    assert {"encoder", "vectors", "quantizer", "decoder"} <= json.loads(
        (finished / "training/times.json").read_text()
    ).keys()


def test_the_model_indexes_and_searches_images_texts_and_pairs(root: Path, finished: Path, tmp_path: Path) -> None:
    model, bench = Genius.from_pretrained(finished), Benchmark(root)
    pool = list(bench.global_pool("test"))
    index = Index.create(tmp_path / "index", model)
    index.add([bench.item(candidate) for candidate in pool])
    assert len(index) == len(pool)
    imaged = next(c for c in pool if c.text is None)
    hits = index.search(Query(text="circle that is pink", target="image"), k=3)
    assert len(hits) == 3
    assert {hit.modality.label for hit in hits} == {"image"}
    both = index.search(Query(text="the same in brown", image=bench.image(imaged.image_path)), k=3, mode="generate")
    assert both
    itself = index.search(Query(image=bench.image(imaged.image_path), target="image", instruction=" "), k=2)
    assert itself


def test_the_model_is_evaluated_on_a_slice_of_the_benchmark(root: Path, finished: Path) -> None:
    scores = evaluate(
        Genius.from_pretrained(finished),
        Benchmark(root),
        settings=("local",),
        methods=("exact", "generate", "rerank", "fast"),
        tasks=["shapes_task0", "shapes_task7"],
        limit=4,
        beam=5,
        console=QUIET,
    )
    assert {(s.task, s.method) for s in scores} == {
        (f"shapes_task{id}", method) for id in (0, 7) for method in ("exact", "generate", "rerank", "fast")
    }


def test_nothing_is_encoded_after_its_vectors_are_made(
    root: Path, config: TrainConfig, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each text and image once for the later stages; another training with that encoder takes all from the cache."""
    seen: list[Prepared] = []
    encode = ClipEncoder.encode

    def counted(self: ClipEncoder, inputs: Any, progress: bool = False) -> Vectors:
        seen.extend(inputs)
        return encode(self, inputs, progress)

    monkeypatch.setattr(ClipEncoder, "encode", counted)
    before = (finished / "model.safetensors").read_bytes()
    train([root], finished, config, console=QUIET)
    assert not seen  # a finished run, started again
    assert (finished / "model.safetensors").read_bytes() == before

    frozen = replace(config, clip=replace(config.clip, tune="none"))
    train([root], tmp_path / "one", frozen, cache=tmp_path / "cache", console=QUIET)
    texts = [given.text for given in seen if given.pixels is None]
    assert len(texts) == len(set(texts))
    assert len(seen) == len(texts) + len([*root.glob("images/train/*.png"), *root.glob("images/val/*.png")])
    seen.clear()
    train([root], tmp_path / "two", replace(frozen, seed=3), cache=tmp_path / "cache", console=QUIET)
    heads = replace(config, clip=replace(config.clip, tune="heads"))
    train([root], tmp_path / "three", heads, cache=tmp_path / "cache", console=QUIET)
    assert not seen


def test_a_killed_stage_1_ends_in_the_same_model(
    root: Path, config: TrainConfig, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    loss = ClipStage.loss

    def deadly(self: ClipStage, step: int) -> Any:
        if step == 5:
            raise Killed
        return loss(self, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
        patch.setattr(ClipStage, "loss", deadly)
        with pytest.raises(Killed):
            train([root], tmp_path, config, console=QUIET)
    model = train([root], tmp_path, config, console=QUIET)
    assert model.fingerprint == Genius.from_pretrained(finished).fingerprint


def test_a_model_folder_is_a_start_for_another_training(finished: Path) -> None:
    """As with UniIR's weights, which `genius convert` makes into such a folder."""
    encoder = load_clip(str(finished), torch.device("cpu"))
    trained = Genius.from_pretrained(finished).encoder
    assert isinstance(trained, ClipEncoder)
    for name, value in trained.model.state_dict().items():
        assert torch.equal(encoder.model.state_dict()[name], value)
