"""`genius train` on a benchmark of small drawings with the real backbones: killed, resumed, and the same in the end."""

import io
import json
import multiprocessing
import random
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import load_file
from tiny_benchmark import DATASET, write_tiny_benchmark

from genius.data.items import Item
from genius.data.mbeir import Benchmark
from genius.encoders.mini import MiniEncoder
from genius.encoders.mini_heads import HeadsConfig
from genius.errors import BadData
from genius.model.genius import Genius
from genius.networks.heads import Heads
from genius.train import features, loop
from genius.train import run as run_module
from genius.train.config import DecoderStageConfig, EncoderStageConfig, QuantizerStageConfig, TrainConfig
from genius.train.data import TrainingData
from genius.train.encoder import image_vectors
from genius.train.features import ImageFeatures
from genius.train.run import train

QUIET = Console(quiet=True)
STAGES = ("encoder", "quantizer", "decoder")
CONFIG = TrainConfig(
    seed=3,
    heads=HeadsConfig(dim=16, hidden=8),
    encoder=EncoderStageConfig(steps=25, batch=12, warmup=4, validate_every=6, views=2),
    quantizer=QuantizerStageConfig(
        codes_per_level=8, levels=3, fusion_hidden=8, steps=35, batch=16, warmup=4, validate_every=15, code_beams=2
    ),
    decoder=DecoderStageConfig(
        d_model=16, layers=1, heads=2, d_kv=8, d_ff=32, prefix=4, epochs=9, batch=16, warmup=4, validate_every=20
    ),
)
DEADLINE = 600.0


def train_here(root: Path, out: Path, config: TrainConfig = CONFIG) -> None:
    """What a child process does: small blocks and a checkpoint every few steps, so that there is much to interrupt."""
    torch.set_num_threads(1)
    features.IMAGE_BLOCK = 8
    loop.CHECKPOINT_SECONDS = 0.05
    train([root], out, config, console=QUIET)


@dataclass
class Trainer:
    """Runs training in processes of their own, which share one import of everything."""

    context: Any
    root: Path

    def run(self, out: Path, when: Callable[[], bool] | None = None, after: float = 0.0) -> int:
        """The exit code; killed `after` seconds after `when` says yes, if it comes to that."""
        child = self.context.Process(target=train_here, args=(self.root, out))
        child.start()
        end = time.monotonic() + DEADLINE
        while when is not None and child.is_alive() and not when() and time.monotonic() < end:
            time.sleep(0.001)
        if when is not None:
            time.sleep(after)
            child.kill()  # SIGKILL: nothing is tidied up
        child.join(DEADLINE)
        return int(child.exitcode)


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    root = tmp_path_factory.mktemp("bench")
    write_tiny_benchmark(root, tasks=(0, 3, 7))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["genius.train.run", "matplotlib.pyplot"])
    return Trainer(context, root)


@pytest.fixture(scope="module")
def finished(trainer: Trainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model folder of a run that nobody interrupted."""
    out = tmp_path_factory.mktemp("runs") / "finished"
    assert trainer.run(out) == 0
    return out


def read_log(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "training/log.jsonl").read_text().splitlines()]


def exists(folder: Path, pattern: str) -> Callable[[], bool]:
    return lambda: any(folder.glob(pattern))


def changes(path: Path, times: int) -> Callable[[], bool]:
    """Whether a file has been written anew so many times since this was made."""
    seen: set[int] = set()

    def written() -> int:
        return path.stat().st_mtime_ns if path.exists() else 0

    seen.add(written())

    def enough() -> bool:
        seen.add(written())
        return len(seen) > times

    return enough


@pytest.mark.slow
def test_a_run_killed_at_many_moments_ends_like_one_that_was_not(
    trainer: Trainer, finished: Path, tmp_path: Path
) -> None:
    """Killed while features are made, in every stage, between stages, and while the model is written."""
    out, chance = tmp_path / "killed", random.Random(0)
    training = out / "training"
    moments: list[Callable[[], Callable[[], bool]]] = [
        lambda: exists(training, "cache/texts*/progress.json"),
        lambda: exists(training, "cache/images1*/progress.json"),
        lambda: changes(training / "encoder.safetensors", chance.randint(1, 4)),
        lambda: changes(training / "log.jsonl", chance.randint(2, 3)),
        lambda: exists(training, "images.npy"),
        lambda: changes(training / "quantizer.safetensors", chance.randint(1, 2)),
        lambda: changes(training / "decoder.safetensors", chance.randint(1, 3)),
        lambda: exists(out, "model.safetensors"),
    ]
    codes = [trainer.run(out, moment(), after=chance.uniform(0, 0.03)) for moment in moments]
    assert set(codes) <= {-9, 0}
    assert codes.count(-9) >= 6, codes
    assert trainer.run(out) == 0

    whole, mended = (load_file(folder / "model.safetensors") for folder in (finished, out))
    assert whole.keys() == mended.keys()
    for name, value in whole.items():
        torch.testing.assert_close(mended[name], value, rtol=2e-3, atol=2e-3, msg=name)
    for theirs, ours in zip(read_log(finished), read_log(out), strict=True):
        assert ours.pop("stage") == theirs.pop("stage")
        assert ours | {"seconds": 0} == pytest.approx(theirs | {"seconds": 0}, rel=1e-3, abs=1e-3)


def test_a_finished_run_trains_nothing_when_started_again(
    trainer: Trainer, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {name: (finished / name).read_bytes() for name in ("model.safetensors", "config.json")}
    log = (finished / "training/log.jsonl").read_text()
    for kind in ("encoder.EncoderStage", "quantizer.QuantizerStage", "decoder.DecoderStage"):
        monkeypatch.setattr(f"genius.train.{kind}.loss", None)
    monkeypatch.setattr(features, "EfficientNetLite2", None)
    model = train([trainer.root], finished, CONFIG, console=QUIET)
    assert {name: (finished / name).read_bytes() for name in before} == before
    assert (finished / "training/log.jsonl").read_text() == log
    assert model.fingerprint == Genius.from_pretrained(finished).fingerprint


def test_the_log_has_each_step_once_in_order_and_all_stages(finished: Path) -> None:
    log = read_log(finished)
    assert list(dict.fromkeys(line["stage"] for line in log)) == list(STAGES)
    for stage, steps in zip(STAGES, (25, 35, 34), strict=True):  # 9 epochs of 60 queries in batches of 16
        mine = [line for line in log if line["stage"] == stage]
        seen = [line["step"] for line in mine]
        assert seen == sorted(set(seen))
        assert seen[-1] == steps
        assert "val_score" in mine[-1]
        assert all(np.isfinite(line["loss"]) for line in mine)
        names = {f"val_{DATASET}_task{id}" for id in (0, 3, 7)}
        assert names <= mine[-1].keys()
        assert mine[-1]["val_score"] == pytest.approx(np.mean([mine[-1][name] for name in names]), abs=1e-3)
    assert log[-1]["loss"] < next(line["loss"] for line in log if line["stage"] == "decoder")


def test_a_run_leaves_curves_times_and_its_settings(finished: Path) -> None:
    with Image.open(finished / "training/curves.png") as curves:
        assert curves.format == "PNG"
        assert curves.width > curves.height  # three stages side by side
        pixels = np.asarray(curves.convert("L"))
    assert 0.005 < (pixels < 250).mean() < 0.9  # something is drawn
    times = json.loads((finished / "training/times.json").read_text())
    assert {"features", *STAGES} <= times.keys()
    assert json.loads((finished / "training/run.json").read_text())["config"]["seed"] == CONFIG.seed


def test_the_model_that_comes_out_works(trainer: Trainer, finished: Path) -> None:
    model = Genius.from_pretrained(finished)
    assert (model.dim, model.sizes, model.code_beams) == (16, (3, 8, 8, 8), 2)
    image = next(trainer.root.glob("images/test/*.png"))
    vectors = model.encode_items([Item("a", text="a red circle"), Item("b", image=image), Item("c", "x", image)])
    assert model.codes(vectors)[:, 0].tolist() == [1, 0, 2]
    assert np.isfinite(model.fuse(vectors)).all()


def test_a_model_of_learned_first_codes_says_so(trainer: Trainer, finished: Path, tmp_path: Path) -> None:
    """Its decoder learned the IDs that the model gives its items, and those look at the vectors alone."""
    out, made = tmp_path / "learned", []
    learned = replace(CONFIG, quantizer=replace(CONFIG.quantizer, first_code="nearest", epochs=2.0))
    original = run_module.DecoderStage

    def keep(*arguments: Any) -> Any:
        made.append(original(*arguments))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "DecoderStage", keep)
        model = train([trainer.root], out, learned, cache=finished / "training/cache", console=QUIET)
    assert (model.first_code, Genius.from_pretrained(finished).first_code) == ("nearest", "modality")
    (stage,) = made
    split = stage.data.val
    taught = stage.val_codes.numpy()
    assert (taught == model.codes(stage.vectors.vectors(split.text, split.image))).mean() > 0.99  # up to rounding
    assert (taught[:, 0] != split.modality).any()
    mine = [line for line in read_log(out) if line["stage"] == "quantizer"]
    assert mine[-1]["step"] == 8  # two passes over 60 queries in batches of 16
    assert 0 < mine[-1]["val_purity"] <= 1


def test_the_heads_see_in_a_cache_what_they_see_later(trainer: Trainer, finished: Path) -> None:
    """The stage-1 vectors that stages 2 and 3 were trained on are those the finished model gives."""
    model = Genius.from_pretrained(finished)
    images = np.load(finished / "training/images.npy")
    texts = np.load(finished / "training/texts.npy")
    train_pool = list(Benchmark(trainer.root).global_pool("train"))
    items = [c for c in train_pool if c.text is None][:4]  # the first images to be numbered
    vectors = model.encode_items([Benchmark(trainer.root).item(c) for c in items])
    np.testing.assert_allclose(vectors.image, images[:4], atol=0.02 * np.abs(images).max())
    words = [c for c in train_pool if c.text is not None][:4]  # and the first texts
    vectors = model.encode_items([Item(c.did, text=c.text) for c in words])
    np.testing.assert_allclose(vectors.text, texts[:4], atol=0.02 * np.abs(texts).max())
    assert not images[-1].any()
    assert not texts[-1].any()


def test_later_stages_learn_from_the_heads_as_they_are_saved(trainer: Trainer, finished: Path) -> None:
    """Not from the unrounded ones, whose vectors nobody will ever see again."""
    data = TrainingData([trainer.root], CONFIG.seed, CONFIG.derived_prompts)
    whole = ImageFeatures(data.images.names, finished / "training/cache", 0, 1, QUIET)
    encoder = Genius.from_pretrained(finished).encoder
    assert isinstance(encoder, MiniEncoder)
    made = image_vectors(Heads.of(encoder), whole, np.arange(len(data.images.names)))
    np.testing.assert_allclose(made, np.load(finished / "training/images.npy"), atol=1e-6)


def test_other_settings_and_other_data_are_refused_in_the_same_folder(
    trainer: Trainer, finished: Path, tmp_path: Path
) -> None:
    before = (finished / "training/run.json").read_text()
    with pytest.raises(BadData, match=f"{finished} holds a run with other data or settings.*--out"):
        train([trainer.root], finished, replace(CONFIG, seed=4), console=QUIET)
    write_tiny_benchmark(tmp_path, tasks=(0,))
    with pytest.raises(BadData, match=f"{finished} holds a run"):
        train([tmp_path], finished, CONFIG, console=QUIET)
    assert (finished / "training/run.json").read_text() == before


def test_a_failed_run_blocks_nothing(trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "model"
    with pytest.raises(BadData):
        train([tmp_path / "mistyped"], out, CONFIG, console=QUIET)
    assert not out.exists()

    def fail(*arguments: object) -> None:
        raise BadData("An image cannot be read.")

    monkeypatch.setattr(run_module, "text_features", fail)
    for seed in (1, 2):  # the second is another run in the same folder
        with pytest.raises(BadData, match="An image"):
            train([trainer.root], out, replace(CONFIG, seed=seed), console=QUIET)


def test_training_needs_no_matplotlib(
    trainer: Trainer, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "model"
    shutil.copytree(finished, out)
    (out / "training/curves.png").unlink()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(run_module, "find_spec", lambda name: None)
    said = Console(record=True, file=io.StringIO(), width=200)
    train([trainer.root], out, CONFIG, console=said)
    assert 'No curves were drawn, because matplotlib is not installed: pip install "genius-search[train]"' in " ".join(
        said.export_text().split()
    )
    assert not (out / "training/curves.png").exists()
    assert (out / "model.safetensors").exists()
