"""Training with two processes against one: samples a second of each stage, in the same run.

    python benchmarks/scale.py OUT --sections ddp [--seconds 10]

Prints a table and writes OUT/ddp.json. Both train the same batches, of the size that `genius train` has by default, on
generated vectors and features, with the default shapes of `mini` and one thread a process. torchrun starts this file
as a script, with 1 and 2 processes in turn; the better of two measurements counts. A process that had less than nine
tenths of a core is marked: it may have waited for the other one, or for other work on the machine. The last column has
the ratio of samples a second of processor time of the busier process. It does not depend on other work, and leaves out
the time that processes wait for each other.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from genius.data.mbeir import Task
from genius.data.splits import SplitData, TaskData
from genius.encoders import efficientnet
from genius.encoders.minilm import WIDTH, TokenStates
from genius.errors import GeniusError
from genius.networks.heads import Heads
from genius.train import distributed
from genius.train.batches import PairStage
from genius.train.config import TrainConfig
from genius.train.data import FrozenVectors
from genius.train.decoder import DecoderStage
from genius.train.encoder import EncoderStage
from genius.train.loop import StageRun
from genius.train.quantizer import QuantizerStage

CANDIDATES, FEATURES, TOKENS = 20_000, 2_000, 12
ROUNDS, WARM_UP, CORE_SHARE = 2, 3, 0.9
SEED = 0
SAMPLE = 2_560  # vectors of k-means, which is not measured


def measure(out: Path, seconds: float, console: Console) -> None:
    """Measure, print and write."""
    out.mkdir(parents=True, exist_ok=True)
    runs: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
    for _ in range(ROUNDS):
        for processes, found in runs.items():
            with console.status(f"training with {processes} process{'es' * (processes > 1)}"):
                found.append(run_with(processes, out, seconds))
    best = {n: {stage: max((r[stage] for r in found), key=speed) for stage in found[0]} for n, found in runs.items()}
    (out / "ddp.json").write_text(json.dumps(best, indent=1) + "\n")
    table = Table(title="Training: samples a second, one thread a process", title_justify="left")
    for name in ("stage", "batch", "1 process", "2 processes", "ratio", "by processor time"):
        table.add_column(name, justify="left" if name == "stage" else "right")
    for stage, one in best[1].items():
        two = best[2][stage]
        marks = ["*" * (figures["core_share"] < CORE_SHARE) for figures in (one, two)]
        ratios = (two[name] / one[name] for name in ("samples_per_second", "samples_per_core_second"))
        cells = (f"{speed(one):,.0f}{marks[0]}", f"{speed(two):,.0f}{marks[1]}", *(f"{ratio:.2f}" for ratio in ratios))
        table.add_row(stage, str(one["batch"]), *cells)
    console.print(table)
    if any(figures["core_share"] < CORE_SHARE for stages in best.values() for figures in stages.values()):
        console.print("[yellow]* had less than nine tenths of a core.[/]")
    console.print(f"Written: {out / 'ddp.json'}")


def speed(figures: dict[str, Any]) -> float:
    return float(figures["samples_per_second"])


def run_with(processes: int, out: Path, seconds: float) -> dict[str, Any]:
    """What the script below finds, started by torchrun."""
    path = out / "ddp.part"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = [*torchrun, __file__, str(path), str(seconds)]
    done = subprocess.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise GeniusError(f"Training with {processes} processes failed: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(path.read_text())
    path.unlink()
    return found


# In the processes that torchrun starts


def script() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("seconds", type=float)
    arguments = parser.parse_args()
    with distributed.processes("cpu"):
        found = {name: measure_stage(stage, arguments.seconds) for name, stage in stages()}
        if distributed.is_main():
            arguments.out.write_text(json.dumps(found))


def stages() -> Iterator[tuple[str, PairStage]]:
    """The three stages with the settings of `mini`."""
    config, rng = TrainConfig(), np.random.default_rng(SEED)
    dim = config.heads.dim
    few, many = generated(FEATURES), generated(CANDIDATES)
    torch.manual_seed(SEED)
    yield "1, encoder", EncoderStage(Heads(config.heads), few, states(rng), [features(rng)], config.encoder, SEED)
    texts, images = (rng.standard_normal((CANDIDATES + 1, dim)).astype(np.float16) for _ in range(2))
    texts[-1] = images[-1] = 0
    vectors = FrozenVectors(texts, images)
    quantized = QuantizerStage(many, vectors, replace(config.quantizer, sample=SAMPLE), SEED)
    quantized.start()
    yield "2, quantizer", quantized
    quantized.module.eval()
    yield "3, decoder", DecoderStage(many, vectors, quantized.fusion, quantized.quantizer, config.decoder, SEED)


def generated(candidates: int) -> Any:
    """As many composed queries as candidates, which are images, texts and pairs in turn."""
    rows = np.arange(candidates)
    text, image = np.where(rows % 3 == 0, -1, rows), np.where(rows % 3 == 1, -1, rows)
    right = np.split(rows, candidates)
    task = TaskData(Task("generated", 8), [str(row) for row in rows], rows, rows[::-1].copy(), right, rows)
    train = SplitData([task], [str(row) for row in rows], text, image)
    few = TaskData(task.task, task.qids[:8], rows[:8], rows[:8], right[:8], rows[:8])
    return SimpleNamespace(train=train, val=SplitData([few], train.dids[:8], text[:8], image[:8]))


def states(rng: np.random.Generator) -> TokenStates:
    values = rng.standard_normal((FEATURES * TOKENS, WIDTH)).astype(np.float16)
    return TokenStates(values, np.arange(FEATURES + 1) * TOKENS)


def features(rng: np.random.Generator) -> Any:
    shapes = {
        "map": (efficientnet.CHANNELS, efficientnet.GRID),
        "pooled": (efficientnet.POOLED,),
        "logits": (efficientnet.CLASSES,),
    }
    return SimpleNamespace(
        **{
            name: rng.standard_normal((FEATURES, *shape), np.float32).astype(np.float16)
            for name, shape in shapes.items()
        }
    )


def measure_stage(stage: PairStage, seconds: float) -> dict[str, Any]:
    """Samples a second over whole steps, after some to warm up."""
    run = StageRun(stage, Path("unused"))
    stage.module.train()
    for _ in range(WARM_UP):
        run.take_step()
    distributed.barrier()
    start, worked, steps = time.perf_counter(), time.process_time(), 0
    while distributed.from_main(lambda: time.perf_counter() - start < seconds):
        for _ in range(WARM_UP):
            run.take_step()
        steps += WARM_UP
    spent, busy = time.perf_counter() - start, time.process_time() - worked
    busiest = max(distributed.by_name([str(rank) for rank in range(distributed.world())], lambda _: busy).values())
    samples = steps * stage.config.batch
    return {
        "batch": stage.config.batch,
        "samples_per_second": samples / spent,
        "samples_per_core_second": samples / busiest,
        "core_share": busy / spent,
    }


if __name__ == "__main__":
    script()
