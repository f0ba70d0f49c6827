"""The training loop that all stages share: schedule, validation, weight averaging, checkpoints, log, progress bar.

A stage is a module, its parameter groups, a loss for step `i` and a validation score. Step `i` may depend only on the
seed, on `i` and on the weights (see `step_rng`), so that a run that was killed and resumed gives the same result as an
uninterrupted one.
"""

import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from genius.errors import BadData
from genius.runtime.memory import keep_memory
from genius.train import distributed
from genius.train.files import write_atomically, write_json, write_text

CHECKPOINT_SECONDS = 60.0
Losses = tuple[Tensor, dict[str, Tensor]]
"""A loss, and more metrics: single numbers, left on the device until they are logged."""


class Stage(ABC):
    """One stage of training. For the settings, see `StageConfig`."""

    name: str  # of its checkpoint and its lines in the log
    module: nn.Module  # holds all state of the stage
    groups: list[dict[str, Any]]  # parameter groups of AdamW
    steps: int
    warmup: int
    validate_every: int
    average: float
    scaler: torch.amp.GradScaler | None = None  # for float16, where small gradients vanish

    @abstractmethod
    def loss(self, step: int) -> Losses:
        """The loss of step `step`, counted from 0, and more metrics for the log.

        Of several processes, each returns a loss of its own. The mean over all of them is the loss of the step.
        """

    def parts(self, step: int) -> list[Callable[[], Losses]]:
        """Calls that return losses whose gradients add up to that of `loss`, to compute a batch in parts.

        Metrics of the same name add up too. One of them is `loss`.
        """

        def whole() -> Losses:
            loss, metrics = self.loss(step)
            return loss, {"loss": loss.detach(), **metrics}

        return [whole]

    @abstractmethod
    def validate(self) -> dict[str, float]:
        """Metrics on the validation split. The weights with the highest `score` are kept."""


def step_seed(seed: int, stage: str, step: int) -> tuple[np.random.Generator, int]:
    """Random generator of one step, and a seed for torch's random numbers."""
    rng = np.random.default_rng([seed, *stage.encode(), step])
    return rng, int(rng.integers(2**62))


def step_rng(seed: int, stage: str, step: int) -> np.random.Generator:
    """Random generator of one step. Seeds torch as well."""
    rng, torch_seed = step_seed(seed, stage, step)
    torch.manual_seed(torch_seed)
    return rng


def progress_bar(console: Console) -> Progress:
    """A progress bar with counts, times and a field `note`."""
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
    )


def rate_factor(step: int, steps: int, warmup: int) -> float:
    """Linear warm-up, then cosine to zero."""
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))


class StageRun:
    """Optimizer, averaged weights and progress of a stage, and the checkpoint file that stores them."""

    def __init__(self, stage: Stage, path: Path) -> None:
        self.stage, self.path = stage, path
        self.parameters: list[Tensor] = [p for p in stage.module.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(stage.groups, betas=(0.9, 0.98))
        self.averaging = distributed.Averaging(stage.module)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.average = [p.detach().clone() for p in self.parameters] if stage.average else []
        self.best: dict[str, Tensor] = {}
        self.facts: dict[str, Any] = {"step": 0, "best_score": None, "best_step": 0, "seconds": 0.0, "done": False}

    def save(self) -> None:
        """Write the checkpoint."""
        tensors = {f"module.{k}": v for k, v in self.stage.module.state_dict().items()}
        tensors |= {f"best.{k}": v for k, v in self.best.items()}
        tensors |= {f"average.{i}": v for i, v in enumerate(self.average)}
        for i, state in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{i}.{k}": v for k, v in state.items()}
        if self.stage.scaler is not None:
            self.facts["scaler"] = self.stage.scaler.state_dict()
        tensors = _apart(tensors)
        write_atomically(self.path, lambda p: save_file(tensors, p, {"facts": json.dumps(self.facts)}))

    def load(self) -> None:
        """Read the checkpoint."""
        with safe_open(self.path, "pt") as file:
            self.facts = json.loads(file.metadata()["facts"])
            tensors = {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118 (not a dict)
        part = {p: {k[len(p) + 1 :]: v for k, v in tensors.items() if k.startswith(p + ".")} for p in _PARTS}
        self.stage.module.load_state_dict(part["module"])
        self.best = part["best"]
        self.average = [part["average"][str(i)].to(a.device) for i, a in enumerate(self.average)]
        states: dict[int, dict[str, Tensor]] = {}
        for name, value in part["optimizer"].items():
            i, key = name.split(".", 1)
            states.setdefault(int(i), {})[key] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": states, "param_groups": groups})
        if self.stage.scaler is not None and self.facts.get("scaler"):
            self.stage.scaler.load_state_dict(self.facts["scaler"])

    def take_step(self) -> dict[str, Tensor]:
        """Compute the loss of the next step, and update the weights. Returns the metrics."""
        self.optimizer.zero_grad(set_to_none=True)
        scaler, parts, metrics = self.stage.scaler, self.stage.parts(self.facts["step"]), dict[str, Tensor]()
        for number, part in enumerate(parts):
            with self.averaging.until_last(number == len(parts) - 1):
                loss, found = self.averaging(part)
                torch.autograd.backward(loss if scaler is None else scaler.scale(loss))
            for name, value in found.items():
                metrics[name] = metrics[name] + value if name in metrics else value
        self.update()
        self.facts["step"] += 1
        return metrics

    def update(self) -> None:
        """One step of AdamW, with the gradients that are there."""
        step = self.facts["step"]
        factor = rate_factor(step, self.stage.steps, self.stage.warmup)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        scaler = self.stage.scaler
        if scaler is not None:
            scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
            scaler.update()
        if self.average:
            decay = min(self.stage.average, (step + 1) / (step + 10))
            with torch.no_grad():
                torch._foreach_lerp_(self.average, self.parameters, 1 - decay)

    @torch.no_grad()
    def validate(self) -> dict[str, float]:
        """Validate the averaged weights, and remember them if they are the best so far."""
        current = [p.clone() for p in self.parameters] if self.average else []
        for p, a in zip(self.parameters, self.average, strict=bool(self.average)):
            p.copy_(a)
        self.stage.module.eval()
        metrics = distributed.averaged(self.stage.validate())  # the same everywhere, to the last digit
        if self.facts["best_score"] is None or metrics["score"] > self.facts["best_score"]:
            self.facts |= {"best_score": metrics["score"], "best_step": self.facts["step"]}
            self.best = {k: v.clone() for k, v in self.stage.module.state_dict().items()}
        self.stage.module.train()
        for p, c in zip(self.parameters, current, strict=bool(current)):
            p.copy_(c)
        return metrics


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copy tensors that share memory: safetensors refuses them."""
    seen: set[int] = set()
    apart = {}
    for name, value in tensors.items():
        value = value.detach().contiguous()
        place = value.untyped_storage().data_ptr()
        apart[name] = value.clone() if place in seen else value
        seen.add(place)
    return apart


_PARTS = ("module", "best", "average", "optimizer")


def run_stage(stage: Stage, folder: Path, console: Console) -> dict[str, Any]:
    """Train a stage, continuing from its checkpoint in `folder`. Leaves it with its best weights.

    Returns:
        Facts about the training. They are empty if the stage has no weights to train.
    """
    if not any(p.requires_grad for p in stage.module.parameters()):
        stage.module.eval()
        return {}
    keep_memory()
    run = StageRun(stage, folder / f"{stage.name}.safetensors")
    log = folder / "log.jsonl"
    if distributed.from_main(run.path.exists):
        try:
            run.load()
        except (SafetensorError, KeyError, RuntimeError) as error:
            raise BadData(
                f"The checkpoint {run.path} is damaged ({error}). Delete it to train its stage again."
            ) from error
    distributed.send_weights(stage.module)
    if distributed.is_main():
        _drop_later_lines(log, stage.name, run.facts["step"])
    started, saved = time.monotonic() - run.facts["seconds"], time.monotonic()
    stage.module.train()
    with progress_bar(console) as progress:
        bar = progress.add_task(stage.name, total=stage.steps, completed=run.facts["step"], note="")
        while not run.facts["done"]:
            on_device = run.take_step()
            step = run.facts["step"]
            last = step >= stage.steps
            validated = last or step % stage.validate_every == 0
            if validated or step % 10 == 0:
                metrics = distributed.averaged(on_device)
                _check_finite(metrics["loss"], stage.name, step)
                if validated:
                    metrics |= {f"val_{k}": v for k, v in run.validate().items()}
                    progress.update(bar, note=f"val {metrics['val_score']:.2f}")
                seconds = round(time.monotonic() - started, 1)
                if distributed.is_main():
                    _append(log, {"stage": stage.name, "step": step, "seconds": seconds, **metrics})
            progress.update(bar, completed=step)
            if distributed.is_main() and (last or time.monotonic() - saved > CHECKPOINT_SECONDS):
                _check_finite(float(on_device["loss"]), stage.name, step)
                run.facts |= {"seconds": time.monotonic() - started, "done": last}
                run.save()
                saved = time.monotonic()
            run.facts["done"] = last
    stage.module.load_state_dict(run.best)
    stage.module.eval()
    console.print(
        f"[green]{stage.name}[/]: {run.facts['step']} steps in {run.facts['seconds'] / 60:.1f} min, "
        f"best validation score {run.facts['best_score']:.2f} at step {run.facts['best_step']}"
    )
    return run.facts


def _check_finite(loss: float, stage: str, step: int) -> None:
    if not math.isfinite(loss):
        raise BadData(
            f"The loss of the stage {stage!r} is {loss} at step {step}. Set a lower rate, or "
            'precision = "float32", and start again with another --out.'
        )


@torch.no_grad()
def round_to_half(module: nn.Module) -> None:
    """Round weights to float16, as a model folder stores them, so that later stages train on the stored weights."""
    for value in (*module.parameters(), *module.buffers()):
        if value.is_floating_point():
            value.copy_(value.half())


def _append(log: Path, line: dict[str, Any]) -> None:
    with open(log, "a") as file:
        file.write(json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in line.items()}) + "\n")


def _drop_later_lines(log: Path, stage: str, step: int) -> None:
    """Drop lines of steps after the checkpoint. A killed run logged them, and they will be logged again."""
    if not log.exists():
        return
    kept = [line for line in read_log(log) if line["stage"] != stage or line["step"] <= step]
    write_text(log, (json.dumps(line) + "\n" for line in kept))


def read_log(log: Path) -> list[dict[str, Any]]:
    """The lines of a log, up to a line that is cut off."""
    lines = []
    for text in log.read_text().splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines


class StageTimes:
    """Seconds spent in each stage, over all starts of a run. Use as `with times("quantizer"):`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Count the time spent in the context."""
        started = time.monotonic()
        try:
            yield
        finally:
            spent = time.monotonic() - started
            self.seconds[stage] = round(self.seconds.get(stage, 0.0) + spent, 1)
            if distributed.is_main():
                write_json(self.path, self.seconds, indent=2)

    def __str__(self) -> str:
        return ", ".join(f"{stage} {seconds / 60:.1f} min" for stage, seconds in self.seconds.items())
