"""The loop: schedule, averaging, the best weights, and a run that is interrupted anywhere and ends the same."""

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from torch import Tensor, nn

from genius.errors import BadData
from genius.train import files, loop
from genius.train.files import write_atomically
from genius.train.loop import Stage, rate_factor, read_log, run_stage, step_rng

QUIET = Console(quiet=True)


class Toy(Stage):
    """A linear map learnt with dropout, and a buffer that follows the batches as codebooks do."""

    name = "toy"

    def __init__(self, average: float = 0.9, scores: tuple[float, ...] = (), steps: int = 25) -> None:
        torch.manual_seed(5)
        self.module = nn.Linear(4, 2)
        self.module.register_buffer("seen", torch.zeros(4))
        self.groups = [
            {"params": [self.module.weight], "lr": 0.1, "weight_decay": 0.01},
            {"params": [self.module.bias], "lr": 0.02, "weight_decay": 0.0},
        ]
        self.steps, self.warmup, self.validate_every, self.average = steps, 3, 7, average
        self.scores = scores
        self.validated: list[dict[str, Tensor]] = []

    def loss(self, step: int) -> tuple[Tensor, dict[str, float]]:
        rng = step_rng(1, self.name, step)
        x = torch.from_numpy(rng.standard_normal((8, 4))).float()
        self.module.seen.lerp_(x.mean(dim=0), 0.1)  # type: ignore[operator]
        out = self.module(F.dropout(x + self.module.seen, 0.2, self.module.training))
        return (out - x[:, :2]).square().mean(), {"extra": float(rng.random())}

    def validate(self) -> dict[str, float]:
        assert not self.module.training
        self.validated.append({k: v.clone() for k, v in self.module.state_dict().items()})
        if self.scores:
            return {"score": self.scores[len(self.validated) - 1]}
        return {"score": -float((self.module.weight - torch.eye(2, 4)).norm()), "other": 1.0}


def state(stage: Stage) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in stage.module.state_dict().items()}


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def lines(folder: Path) -> list[dict[str, Any]]:
    """The log but for the times."""
    return [{k: v for k, v in line.items() if k != "seconds"} for line in read_log(folder / "log.jsonl")]


# Schedule, averaging, the best


def test_the_rate_warms_up_and_falls_to_zero_along_a_cosine() -> None:
    factors = [rate_factor(step, 100, 10) for step in range(100)]
    np.testing.assert_allclose(factors[:10], np.arange(1, 11) / 10)
    assert factors[10] == 1
    assert factors[55] == pytest.approx(0.5)
    assert all(a > b for a, b in itertools.pairwise(factors[10:]))
    assert 0 < factors[99] < 1e-3
    assert rate_factor(0, 100, 0) == 1
    assert rate_factor(4, 5, 5) == 1  # nothing but warm-up


def test_each_group_follows_the_schedule_from_its_own_rate(tmp_path: Path) -> None:
    stage = Toy()
    run = loop.StageRun(stage, tmp_path / "x")
    for step in range(stage.steps):
        run.take_step()
        factor = rate_factor(step, stage.steps, stage.warmup)
        assert [g["lr"] for g in run.optimizer.param_groups] == pytest.approx([0.1 * factor, 0.02 * factor])


def test_the_average_of_the_weights_is_validated_and_the_weights_go_on(tmp_path: Path) -> None:
    """Averaged by hand, with a decay that starts low; the training itself must not notice."""
    averaged, plain = Toy(average=0.9), Toy(average=0.0)
    by_hand: list[Tensor] = []
    average = state(plain)["weight"]
    original = plain.loss

    def watched(step: int) -> tuple[Tensor, dict[str, float]]:
        nonlocal average
        if step:
            decay = min(0.9, step / (step + 9))
            average = decay * average + (1 - decay) * plain.module.weight.detach()
            by_hand.append(average)
        return original(step)

    plain.loss = watched  # type: ignore[method-assign]
    for name, stage in (("a", averaged), ("p", plain)):
        (tmp_path / name).mkdir()
        run_stage(stage, tmp_path / name, QUIET)
    for validated, step in zip(averaged.validated[:3], (7, 14, 21), strict=True):
        torch.testing.assert_close(validated["weight"], by_hand[step - 1], rtol=1e-4, atol=1e-5)
        assert not torch.allclose(validated["weight"], plain.validated[step // 7 - 1]["weight"], atol=1e-3)
    losses = [[line["loss"] for line in lines(tmp_path / name)] for name in ("a", "p")]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("average", [0.0, 0.9])
def test_the_weights_of_the_best_validation_are_kept(tmp_path: Path, average: float) -> None:
    stage = Toy(average, scores=(3.0, 9.0, 5.0, 9.0))  # the first of equals
    facts = run_stage(stage, tmp_path, QUIET)
    assert len(stage.validated) == 4
    assert same(state(stage), stage.validated[1])
    assert (facts["best_step"], facts["best_score"], facts["step"], facts["done"]) == (14, 9.0, 25, True)
    assert not stage.module.training


def test_the_log_has_every_tenth_step_and_every_validation(tmp_path: Path) -> None:
    run_stage(Toy(), tmp_path, QUIET)
    log = lines(tmp_path)
    assert [line["step"] for line in log] == [7, 10, 14, 20, 21, 25]
    assert [line["step"] for line in log if "val_score" in line] == [7, 14, 21, 25]
    assert all({"stage", "step", "loss", "extra"} <= line.keys() for line in log)
    assert log[0]["val_other"] == 1


@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_of_almost_no_steps_ends(tmp_path: Path, steps: int) -> None:
    assert run_stage(Toy(steps=steps), tmp_path, QUIET)["done"]


def test_random_numbers_belong_to_seed_stage_and_step() -> None:
    def draws(*key: Any) -> tuple[float, float]:
        return float(step_rng(*key).random()), float(torch.rand(()))

    first = draws(0, "encoder", 5)
    assert draws(0, "encoder", 5) == first
    others = [draws(1, "encoder", 5), draws(0, "decoder", 5), draws(0, "encoder", 6)]
    assert len({first, *others}) == 4
    assert len({torch_draw for _, torch_draw in (first, *others)}) == 4


# Interrupted and resumed


class Killed(BaseException):
    """Not an Exception: nothing may catch it and tidy up."""


class Fate:
    """Counts the moments at which a run can be killed, and kills it at the given one."""

    def __init__(self, moment: int | None) -> None:
        self.left = moment

    def now(self) -> bool:
        if self.left is None:
            return False
        self.left -= 1
        return self.left == 0

    def tick(self) -> None:
        if self.now():
            raise Killed


def run_until(
    moment: int | None, folder: Path, checkpoint_seconds: float, stage: Callable[[], Stage] = Toy
) -> Stage | None:
    """Runs the stage; killed at a moment: before a step, in the middle of a log line, or around a checkpoint's rename.

    Every look at the clock is a second. The stage, or None where it was killed.
    """
    fate, clock, made = Fate(moment), itertools.count(), stage()
    loss = made.loss

    def deadly_loss(step: int) -> tuple[Tensor, dict[str, float]]:
        fate.tick()
        return loss(step)

    def deadly_append(log: Path, line: dict[str, Any]) -> None:
        fate.tick()
        if fate.now():
            with open(log, "a") as file:
                file.write(json.dumps(line)[: 5 + line["step"]])
            raise Killed
        append(log, line)

    def deadly_replace(source: Path, target: Path) -> None:
        if fate.now():
            Path(source).write_bytes(Path(source).read_bytes()[:100])
            raise Killed
        os.replace(source, target)
        fate.tick()

    append = loop._append
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made, "loss", deadly_loss)
        patch.setattr(loop, "_append", deadly_append)
        patch.setattr(files, "os", SimpleNamespace(replace=deadly_replace, fsync=lambda file: None))
        patch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
        patch.setattr(loop, "CHECKPOINT_SECONDS", checkpoint_seconds)
        try:
            run_stage(made, folder, QUIET)
        except Killed:
            return None
    return made


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Weights and log of a run that nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    stage = Toy()
    run_stage(stage, folder, QUIET)
    return state(stage), lines(folder)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 70), max_size=5), st.sampled_from([-1.0, 3.0, 10.0]))
def test_a_run_killed_anywhere_ends_like_one_that_was_not(
    tmp_path_factory: pytest.TempPathFactory,
    whole: tuple[dict[str, Tensor], list[dict[str, Any]]],
    moments: list[int],
    checkpoint_seconds: float,
) -> None:
    folder = tmp_path_factory.mktemp("killed")
    for moment in moments:
        run_until(moment, folder, checkpoint_seconds)
    stage = run_until(None, folder, checkpoint_seconds)
    assert stage is not None
    assert same(state(stage), whole[0])
    assert lines(folder) == whole[1]


def test_a_run_is_killed_and_does_not_start_over(tmp_path: Path) -> None:
    """What the test above relies on: kills happen, and checkpoints carry the run over them."""
    assert run_until(40, tmp_path, -1.0) is None
    made = Toy()
    run = loop.StageRun(made, tmp_path / "toy.safetensors")
    run.load()
    assert run.facts["step"] > 5
    steps: list[int] = []
    loss = made.loss
    made.loss = lambda step: (steps.append(step), loss(step))[1]  # type: ignore[method-assign]
    run_stage(made, tmp_path, QUIET)
    assert steps == list(range(run.facts["step"], 25))


def test_a_finished_stage_is_not_trained_again(tmp_path: Path, whole: tuple[dict[str, Tensor], Any]) -> None:
    run_stage(Toy(), tmp_path, QUIET)
    before = (tmp_path / "log.jsonl").read_text()
    again = Toy()
    again.loss = None  # type: ignore[assignment, method-assign]
    facts = run_stage(again, tmp_path, QUIET)
    assert facts["done"]
    assert same(state(again), whole[0])
    assert (tmp_path / "log.jsonl").read_text() == before


def test_stages_share_a_log_and_leave_each_others_lines_alone(tmp_path: Path) -> None:
    class Second(Toy):
        name = "second"

    run_stage(Toy(), tmp_path, QUIET)
    assert run_until(30, tmp_path, 10.0, Second) is None
    first = Toy()
    run_stage(first, tmp_path, QUIET)
    assert run_until(None, tmp_path, 10.0, Second) is not None
    steps = [(line["stage"], line["step"]) for line in lines(tmp_path)]
    assert steps == [(stage, step) for stage in ("toy", "second") for step in (7, 10, 14, 20, 21, 25)]


def test_a_log_cut_off_in_the_middle_of_a_line_is_read_up_to_there(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text('{"stage": "a", "step": 1}\n{"stage": "a", "st')
    assert list(read_log(log)) == [{"stage": "a", "step": 1}]


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, lambda p: p.write_text("old"))

    def fail(part: Path) -> None:
        part.write_text("half")
        raise Killed

    with pytest.raises(Killed):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    write_atomically(path, lambda p: p.write_text("new"))
    assert path.read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    run_stage(Toy(), tmp_path, QUIET)
    path = tmp_path / "toy.safetensors"
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(BadData, match=r"toy\.safetensors is damaged.*Delete it"):
        run_stage(Toy(), tmp_path, QUIET)
