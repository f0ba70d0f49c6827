"""`genius train` on a benchmark of small drawings with the real backbones: killed, resumed, and the same in the end."""

import json
import multiprocessing
import random
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

from genius.encoders.mini import HeadsConfig
from genius.errors import BadData
from genius.items import Item
from genius.mbeir import Benchmark, Task, write_queries
from genius.model import Genius
from genius.train import features, loop
from genius.train.config import DecoderStageConfig, EncoderStageConfig, QuantizerStageConfig, TrainConfig
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


def test_a_run_killed_at_many_moments_ends_like_one_that_was_not(
    trainer: Trainer, finished: Path, tmp_path: Path
) -> None:
    """Killed while features are made, in every stage, between stages, and while the model is written."""
    out, chance = tmp_path / "killed", random.Random(0)
    training = out / "training"
    moments: list[Callable[[], Callable[[], bool]]] = [
        lambda: exists(training, "cache/texts*/progress.json"),
        lambda: changes(next(training.glob("cache/texts*")).with_name("x"), 1)
        if not list(training.glob("cache/images0*"))
        else exists(training, "cache/images1*/progress.json"),
        lambda: changes(training / "encoder.safetensors", 1),
        lambda: changes(training / "encoder.safetensors", chance.randint(1, 4)),
        lambda: changes(training / "log.jsonl", chance.randint(2, 3)),
        lambda: exists(training, "images.npy"),
        lambda: changes(training / "quantizer.safetensors", chance.randint(1, 2)),
        lambda: changes(training / "decoder.safetensors", 1),
        lambda: changes(training / "decoder.safetensors", chance.randint(1, 3)),
        lambda: exists(out, "model.safetensors"),
    ]
    codes = [trainer.run(out, moment(), after=chance.uniform(0, 0.03)) for moment in moments]
    assert set(codes) <= {-9, 0}
    assert codes.count(-9) >= 7, codes
    assert trainer.run(out) == 0

    whole, mended = (load_file(folder / "model.safetensors") for folder in (finished, out))
    assert whole.keys() == mended.keys()
    for name, value in whole.items():
        torch.testing.assert_close(mended[name], value, rtol=2e-3, atol=2e-3, msg=name)
    logs = [[{k: v for k, v in line.items() if k != "seconds"} for line in read_log(f)] for f in (finished, out)]
    assert [(line["stage"], line["step"]) for line in logs[1]] == [(line["stage"], line["step"]) for line in logs[0]]
    for ours, theirs in zip(*logs, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-3)
