"""Every stage on any device, in any precision, and in parts.

No GPU is at hand. torch's device "meta" has no numbers: it refuses to mix its tensors with those of the CPU, and to
copy anything back, as `.item()`, `.numpy()` and shapes that depend on numbers do. A step that it takes never makes a
GPU wait.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from tiny_stages import STAGES, make_stage, to_meta
from torch import Tensor

from genius.errors import BadData
from genius.train.batches import PairStage
from genius.train.compute import CPU, Compute, reading_threads
from genius.train.loop import StageRun, run_stage

BF16, FP16 = Compute(CPU.device, torch.bfloat16), Compute(CPU.device, torch.float16)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("name", STAGES)
def test_a_step_copies_nothing_back_from_its_device(name: str, accumulate: int) -> None:
    stage = make_stage(name, dropout=0.1, accumulate=accumulate)
    to_meta(stage)
    run = StageRun(stage, Path("unused"))
    stage.module.train()
    for _ in range(2):  # the second batch comes from the thread
        metrics = run.take_step()
        assert all(value.device.type == "meta" for value in metrics.values())
    assert run.facts["step"] == 2
    for parameter in stage.module.parameters():
        if parameter.numel():
            assert parameter.grad is not None
            assert parameter.grad.device.type == "meta"


def test_the_meta_device_refuses_what_a_gpu_would_wait_for() -> None:
    """What the test above relies on."""
    stage = make_stage("quantizer")
    to_meta(stage)
    metrics = StageRun(stage, Path("unused")).take_step()
    with pytest.raises(RuntimeError, match="meta"):
        metrics["loss"].item()
    with pytest.raises(RuntimeError, match="meta"):
        _ = metrics["loss"] + torch.ones(3)
    with pytest.raises(NotImplementedError):
        stage.module["quantizer"].codebooks[1].nonzero()  # type: ignore[index]


def gradients(stage: PairStage, step: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a step and all gradients, as one vector."""
    stage.module.train()
    stage.module.zero_grad()
    metrics: dict[str, Any] = {}
    for part in stage.parts(step):
        loss, found = part()
        loss.backward()
        for name, value in found.items():
            metrics[name] = metrics.get(name, 0) + value
    return torch.cat([p.grad.flatten() for p in stage.module.parameters() if p.grad is not None]), metrics


@pytest.mark.parametrize("name", STAGES)
def test_half_precision_is_near(name: str) -> None:
    """Of the networks only: losses, codes and teachers are computed in float32."""
    exact, metrics = gradients(make_stage(name))
    half, about = gradients(make_stage(name, BF16))
    assert not torch.equal(half, exact)
    assert half.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(half, exact, dim=0) > 0.98
    for key, value in metrics.items():
        assert about[key].item() == pytest.approx(value.item(), rel=0.05, abs=0.02), key


@pytest.mark.parametrize("name", ["encoder", "quantizer", "both"])
def test_float16_trains_with_a_scaler_that_a_checkpoint_keeps(name: str, tmp_path: Path) -> None:
    stage = make_stage(name, FP16)
    assert stage.scaler is not None
    before = [value.clone() for value in stage.module.parameters()]
    stage.steps = 4
    run_stage(stage, tmp_path, Console(quiet=True))
    assert all(value.isfinite().all() for value in stage.module.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, stage.module.parameters(), strict=True))
    again = make_stage(name, FP16)
    again.steps = 4
    run = StageRun(again, tmp_path / f"{stage.name}.safetensors")
    run.load()
    assert run.facts["scaler"] == stage.scaler.state_dict()


@pytest.mark.parametrize("name", STAGES)
def test_a_batch_in_parts_has_the_gradients_of_the_whole(name: str) -> None:
    whole, metrics = gradients(make_stage(name), 4)
    stage = make_stage(name, accumulate=3)
    assert len(stage.parts(4)) == 3
    parts, found = gradients(make_stage(name, accumulate=3), 4)
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)
    assert found.keys() == metrics.keys()
    for key, value in metrics.items():
        assert found[key].item() == pytest.approx(value.item(), rel=1e-5), key


def test_parts_have_the_same_dropout_in_both_passes() -> None:
    """The vectors that the loss is derived by are those that are derived by the weights."""
    stage = make_stage("quantizer", dropout=0.5, accumulate=2)
    seen: list[Tensor] = []
    embed = stage.embed  # type: ignore[attr-defined]
    stage.embed = lambda inputs: seen.append(embed(inputs)[0]) or embed(inputs)  # type: ignore[attr-defined]
    gradients(stage)
    first, second = seen[:2], seen[2:]
    for one, two in zip(first, second, strict=True):
        assert torch.equal(one, two)


def test_a_batch_that_was_read_ahead_is_the_same() -> None:
    plain, ahead = make_stage("both"), make_stage("both")
    ahead.reads_files = True
    for step in (0, 1, 2, 30, 31, 7):  # in order, then not; new candidates from step 25 on
        assert ahead.loss(step)[0].item() == plain.loss(step)[0].item()
    assert plain._next is None
    assert ahead._next is not None


def test_a_loss_that_is_not_a_number_ends_the_training(tmp_path: Path) -> None:
    stage = make_stage("heads")
    with torch.no_grad():
        next(iter(stage.module.parameters())).fill_(torch.nan)
    with pytest.raises(BadData, match=r"'encoder' is nan at step 10.*lower rate"):
        run_stage(stage, tmp_path, Console(quiet=True))
    assert not list(tmp_path.glob("*.safetensors"))


def test_images_are_read_by_as_many_threads_as_a_process_has_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)), raising=False)
    assert reading_threads(torch.device("cuda")) == 16
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert reading_threads(torch.device("cuda")) == 4
    assert reading_threads(torch.device("cpu")) == torch.get_num_threads()
