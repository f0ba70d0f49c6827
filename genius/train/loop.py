"""The loop that the three stages share: steps, schedule, validation, averaging, checkpoints, log and progress bar.

Knows nothing of what is trained. A stage is a module, its parameter groups, a loss for step `i` and a validation
score. Step `i` must depend on the seed, on `i` and on the weights alone (`step_rng`), so that a run that was killed and
resumed ends where an uninterrupted one does.
"""

import json
import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
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

CHECKPOINT_SECONDS = 60.0


class Stage(ABC):
    """One stage of training. `module` holds all of its state; `groups` are AdamW's parameter groups with rates."""

    name: str
    module: nn.Module
    groups: list[dict[str, Any]]
    steps: int
    warmup: int
    validate_every: int
    average: float  # decay of the moving average of the weights that is validated and kept; 0 keeps the last weights
    scaler: torch.amp.GradScaler | None = None  # keeps small gradients of a float16 loss from vanishing

    @abstractmethod
    def loss(self, step: int) -> tuple[Tensor, dict[str, float]]:
        """The loss of step `step` (from 0) and figures for the log."""

    @abstractmethod
    def validate(self) -> dict[str, float]:
        """Figures on the validation split; `score` (higher is better) chooses the weights that are kept."""


def step_rng(seed: int, stage: str, step: int) -> np.random.Generator:
    """The random numbers of one step; torch is seeded from them too, for dropout."""
    rng = np.random.default_rng([seed, *stage.encode(), step])
    torch.manual_seed(int(rng.integers(2**62)))
    return rng


def progress_bar(console: Console) -> Progress:
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


def write_atomically(path: Path, write: Any) -> None:
    """`write(temporary path)`, then make it durable and put it in place: a reader sees the old file or the new one."""
    temporary = path.with_name(path.name + ".part")
    write(temporary)
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


class _Run:
    """The state of one stage's run, and its checkpoint file."""

    def __init__(self, stage: Stage, path: Path) -> None:
        self.stage, self.path = stage, path
        self.parameters: list[Tensor] = [p for p in stage.module.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(stage.groups, betas=(0.9, 0.98))
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        self.average = [p.detach().clone() for p in self.parameters] if stage.average else []
        self.best: dict[str, Tensor] = {}
        self.facts: dict[str, Any] = {"step": 0, "best_score": None, "best_step": 0, "seconds": 0.0, "done": False}

    def save(self) -> None:
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

    def update(self, loss: Tensor) -> None:
        step = self.facts["step"]
        factor = rate_factor(step, self.stage.steps, self.stage.warmup)
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        self.optimizer.zero_grad(set_to_none=True)
        scaler = self.stage.scaler
        if scaler is None:
            loss.backward()
        else:
            scaler.scale(loss).backward()
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
        """Validates the averaged weights; remembers them if they are the best so far."""
        current = [p.clone() for p in self.parameters] if self.average else []
        for p, a in zip(self.parameters, self.average, strict=bool(self.average)):
            p.copy_(a)
        self.stage.module.eval()
        figures = self.stage.validate()
        if self.facts["best_score"] is None or figures["score"] > self.facts["best_score"]:
            self.facts |= {"best_score": figures["score"], "best_step": self.facts["step"]}
            self.best = {k: v.clone() for k, v in self.stage.module.state_dict().items()}
        self.stage.module.train()
        for p, c in zip(self.parameters, current, strict=bool(current)):
            p.copy_(c)
        return figures


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors as safetensors takes them: no two in one place, copied only where they are."""
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
    """Trains `stage` to its end, from its checkpoint in `folder` if there is one; leaves it with its best weights."""
    run = _Run(stage, folder / f"{stage.name}.safetensors")
    log = folder / "log.jsonl"
    if run.path.exists():
        try:
            run.load()
        except (SafetensorError, KeyError, RuntimeError) as error:
            raise BadData(
                f"The checkpoint {run.path} is damaged ({error}). Delete it to train its stage anew."
            ) from error
    _forget_later_lines(log, stage.name, run.facts["step"])
    started, saved = time.monotonic() - run.facts["seconds"], time.monotonic()
    stage.module.train()
    with progress_bar(console) as progress:
        bar = progress.add_task(stage.name, total=stage.steps, completed=run.facts["step"], note="")
        while not run.facts["done"]:
            loss, figures = stage.loss(run.facts["step"])
            run.update(loss)
            run.facts["step"] += 1
            step = run.facts["step"]
            last = step >= stage.steps
            figures = {"loss": float(loss.detach()), **figures}
            if last or step % stage.validate_every == 0:
                figures |= {f"val_{k}": v for k, v in run.validate().items()}
                progress.update(bar, note=f"val {figures['val_score']:.2f}")
            elif step % 10:
                figures = {}
            if figures:
                seconds = round(time.monotonic() - started, 1)
                _append(log, {"stage": stage.name, "step": step, "seconds": seconds, **figures})
            progress.update(bar, completed=step)
            if last or time.monotonic() - saved > CHECKPOINT_SECONDS:
                run.facts |= {"seconds": time.monotonic() - started, "done": last}
                run.save()
                saved = time.monotonic()
    stage.module.load_state_dict(run.best)
    stage.module.eval()
    console.print(
        f"[green]{stage.name}[/]: {run.facts['step']} steps in {run.facts['seconds'] / 60:.1f} min, "
        f"best validation score {run.facts['best_score']:.2f} at step {run.facts['best_step']}"
    )
    return run.facts


@torch.no_grad()
def as_saved(module: nn.Module) -> None:
    """Rounds to the float16 values that the model folder will hold, so that later stages learn from exactly these."""
    for value in (*module.parameters(), *module.buffers()):
        if value.is_floating_point():
            value.copy_(value.half())


def _append(log: Path, line: dict[str, Any]) -> None:
    with open(log, "a") as file:
        file.write(json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in line.items()}) + "\n")


def _forget_later_lines(log: Path, stage: str, step: int) -> None:
    """A killed run has logged steps that its checkpoint does not have; they will be made and logged again."""
    if not log.exists():
        return
    kept = [line for line in read_log(log) if line["stage"] != stage or line["step"] <= step]
    write_atomically(log, lambda p: p.write_text("".join(json.dumps(line) + "\n" for line in kept)))


def read_log(log: Path) -> Iterable[dict[str, Any]]:
    """The lines of a log; a last line that a kill cut short is left out."""
    lines = []
    for text in log.read_text().splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            break
    return lines


class Times:
    """Seconds spent in each part, over all starts of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}

    def __call__(self, part: str) -> "Times":
        self.part, self.started = part, time.monotonic()
        return self

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        spent = time.monotonic() - self.started
        self.seconds[self.part] = round(self.seconds.get(self.part, 0.0) + spent, 1)
        write_atomically(self.path, lambda p: p.write_text(json.dumps(self.seconds, indent=2) + "\n"))

    def __str__(self) -> str:
        return ", ".join(f"{part} {seconds / 60:.1f} min" for part, seconds in self.seconds.items())
