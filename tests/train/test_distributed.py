"""Training in two processes: the same losses, weights and codebooks as in one, and one checkpoint for any number."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import processes
import pytest
import torch
from processes import Talk
from rich.console import Console
from safetensors.numpy import load_file
from tiny_benchmark import write_tiny_benchmark
from tiny_stages import STAGES, make_stage

from genius.errors import BadData
from genius.model.genius import Genius
from genius.train import distributed, features, loop
from genius.train.loop import StageRun, read_log, run_stage

STEPS = 50
QUIET = Console(quiet=True)


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE", 900.0)  # of a busy machine


def in_two_processes(work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What work(*arguments) returns in each of two processes that torchrun might have started."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with ExitStack() as stack:
        both = [stack.enter_context(processes.other(_join, rank, port, work, arguments)) for rank in (0, 1)]
        return [one.hear() for one in both]


def _join(talk: Talk, rank: int, port: int, work: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    torch.set_num_threads(1)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    os.environ |= place | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    with distributed.processes("cpu"):
        assert (distributed.rank(), distributed.world()) == (rank, 2)
        return work(*arguments)


# The same training


def train_stages(names: tuple[str, ...]) -> dict[str, tuple[list[float], dict[str, np.ndarray]]]:
    """Losses and the final weights of stages that train for some steps."""
    found = {}
    for name in names:
        stage = make_stage(name)
        run = StageRun(stage, Path("unused"))
        stage.module.train()
        losses = [distributed.averaged(run.take_step())["loss"] for _ in range(STEPS)]
        found[name] = losses, {key: value.numpy().copy() for key, value in stage.module.state_dict().items()}
    return found


def test_two_processes_train_as_one_does() -> None:
    """Losses, weights, codebooks and their averages: the batches are the same, and divided."""
    alone = train_stages(STAGES)
    first, second = in_two_processes(train_stages, STAGES)
    for name in STAGES:
        np.testing.assert_allclose(first[name][0], alone[name][0], rtol=1e-4, atol=1e-4, err_msg=name)
        assert alone[name][0][0] != alone[name][0][-1]
        for key, value in alone[name][1].items():
            np.testing.assert_allclose(first[name][1][key], value, rtol=1e-3, atol=1e-4, err_msg=f"{name} {key}")
            np.testing.assert_array_equal(second[name][1][key], first[name][1][key], err_msg=f"{name} {key}")


def test_codes_are_revived_while_these_stages_train() -> None:
    """What the test above relies on for dead codes."""
    stage: Any = make_stage("quantizer")
    moved = 0
    revive = type(stage.quantizer.book(1)).revive

    def watched(book: Any, *arguments: Any) -> None:
        nonlocal moved
        before = book.codes.clone()
        revive(book, *arguments)
        moved += int((before != book.codes).any(1).sum())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(stage.quantizer.book(1)), "revive", watched)
        stage.module.train()
        for step in range(STEPS):
            stage.loss(step)
    assert moved > 10


def accumulated() -> list[float]:
    stage = make_stage("quantizer", accumulate=2)
    run = StageRun(stage, Path("unused"))
    return [distributed.averaged(run.take_step())["loss"] for _ in range(5)]


def test_parts_and_processes_go_together() -> None:
    whole = make_stage("quantizer")
    run = StageRun(whole, Path("unused"))
    losses = [run.take_step()["loss"].item() for _ in range(5)]
    first, _ = in_two_processes(accumulated)
    np.testing.assert_allclose(first, losses, rtol=1e-4)


# Checkpoints


class Killed(Exception):
    pass


def run_until(name: str, folder: Path, last: int | None) -> dict[str, np.ndarray]:
    """Run a stage, up to a step at which it dies."""
    stage = make_stage(name)
    loss = stage.loss

    def deadly(step: int) -> Any:
        if step == last:
            raise Killed
        return loss(step)

    stage.loss = deadly  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
        try:
            run_stage(stage, folder, QUIET)
        except Killed:
            assert last is not None
    return {key: value.numpy().copy() for key, value in stage.module.state_dict().items()}


@pytest.mark.parametrize("name", ["quantizer", "distil"])
def test_a_run_continues_with_another_number_of_processes(name: str, tmp_path: Path) -> None:
    folders = [tmp_path / "alone", tmp_path / "mixed"]
    for folder in folders:
        folder.mkdir()
    alone = run_until(name, folders[0], None)
    in_two_processes(run_until, name, folders[1], 12)
    run_until(name, folders[1], 23)
    first, second = in_two_processes(run_until, name, folders[1], None)
    for key, value in alone.items():
        np.testing.assert_allclose(first[key], value, rtol=1e-3, atol=1e-4, err_msg=key)
        np.testing.assert_array_equal(second[key], first[key])  # the best weights are those of process 0
    logs = [read_log(folder / "log.jsonl") for folder in folders]
    assert [line["step"] for line in logs[1]] == [line["step"] for line in logs[0]]  # written once
    for ours, theirs in zip(*logs, strict=True):
        assert ours["val_score" if "val_score" in ours else "loss"] == pytest.approx(
            theirs["val_score" if "val_score" in theirs else "loss"], rel=1e-3
        )


# Shared work


class CountingEncoder:
    """Encodes a text as its length, and counts the texts."""

    dim, kind = 2, "counting"

    def __init__(self) -> None:
        self.count = 0

    def config(self) -> dict[str, Any]:
        return {}

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def encode(self, inputs: list[Any]) -> Any:
        self.count += len(inputs)
        return SimpleNamespace(text=np.array([[len(one.text), 1] for one in inputs], np.float32))


def encode_texts(cache: Path, texts: list[str]) -> tuple[int, np.ndarray]:
    encoder: Any = CountingEncoder()
    features.TEXT_BLOCK = 4
    rows = features.text_rows(encoder, texts, cache, 1, QUIET)
    return encoder.count, np.array(rows)


def test_processes_share_the_encoding(tmp_path: Path) -> None:
    texts = ["x" * (1 + number) for number in range(18)]  # five blocks: the last round has one
    (mine, rows), (theirs, same) = in_two_processes(encode_texts, tmp_path, texts)
    assert (mine, theirs) == (10, 8)
    np.testing.assert_array_equal(rows, same)
    np.testing.assert_array_equal(rows[:, 0], [*range(1, 19), 0])
    (progress,) = tmp_path.glob("*/progress.json")
    assert json.loads(progress.read_text()) == 18
    assert encode_texts(tmp_path, texts)[0] == 0  # one process finds the work of two


def gather(count: int) -> tuple[list[float], list[float]]:
    """Rows put together again, and the gradient of a loss of all of them by mine."""
    rows = distributed.own(torch.arange(float(count)))[:, None].requires_grad_()
    every = distributed.gathered(rows, count)
    every.square().sum().backward()
    assert rows.grad is not None
    return every[:, 0].tolist(), rows.grad[:, 0].tolist()


@pytest.mark.parametrize("count", [2, 5, 8])
def test_rows_are_gathered_in_their_order_with_gradients(count: int) -> None:
    (rows, first), (same, second) = in_two_processes(gather, count)
    assert rows == same == list(range(count))
    # Their mean over the processes, each of which has its own rows only, is 2 x.
    assert first == [2 * 2 * row for row in range(0, count, 2)]
    assert second == [2 * 2 * row for row in range(1, count, 2)]


def too_small() -> str:
    with pytest.raises(BadData) as raised:
        make_stage("heads", batch=1).loss(0)
    return str(raised.value)


def test_a_batch_with_fewer_rows_than_processes_is_refused() -> None:
    for said in in_two_processes(too_small):
        assert "cannot be divided among 2 processes" in said
        assert "larger batch" in said


def test_a_process_without_a_gpu_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with (
        pytest.raises(BadData, match=r"no GPU of its own: there are 1.*--nproc-per-node"),
        distributed.processes("cuda"),
    ):
        pass


# The command


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(
        "seed = 3\n[heads]\ndim = 16\nhidden = 8\ndropout = 0.0\n"
        "[encoder]\nsteps = 12\nbatch = 12\nwarmup = 4\nvalidate_every = 6\nviews = 2\n"
        "[quantizer]\ncodes_per_level = 8\nlevels = 3\nfusion_hidden = 8\ndropout = 0.0\nsteps = 12\nbatch = 16\n"
        "warmup = 4\nvalidate_every = 6\ncode_beams = 2\n"
        "[decoder]\nd_model = 16\nlayers = 1\nheads = 2\nd_kv = 8\nd_ff = 32\nprefix = 4\nepochs = 4\nbatch = 16\n"
        "warmup = 4\nvalidate_every = 10\n"
    )
    return path


@pytest.mark.slow
def test_torchrun_trains_a_whole_model(tmp_path: Path, settings: Path) -> None:
    """As one process does, and only the first of two prints."""
    root = tmp_path / "bench"
    write_tiny_benchmark(root, tasks=(0, 3, 7))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "genius"]
    said, models = [], []
    for name, command in (("one", [sys.executable, "-m", "genius"]), ("two", torchrun)):
        options = ["train", root, "--out", tmp_path / name, "--config", settings, "--device", "cpu"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            [*command, *map(str, options)], env=environment, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
        models.append(load_file(tmp_path / name / "model.safetensors"))
    assert said[1].count("Model saved in") == said[0].count("Model saved in") == 1
    assert models[0].keys() == models[1].keys()
    for key, value in models[0].items():
        np.testing.assert_allclose(models[1][key], value, rtol=5e-3, atol=5e-3, err_msg=key)
    assert Genius.from_pretrained(tmp_path / "two").dim == 16
