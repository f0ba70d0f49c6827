"""SavedResults: the results that `genius evaluate`, `genius ablate` and benchmarks/scale.py left in a folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from genius.errors import BadData
from genius.evaluation.runs import FORMAT, TaskResult, read_json

ABLATIONS_FORMAT = 2


@dataclass(frozen=True)
class SavedResults:
    """The results of one folder; None for files that it does not hold."""

    run: dict[str, Any] | None
    scale: dict[str, Any] | None
    ablations: dict[str, Any] | None
    quantized: dict[str, np.ndarray] | None  # "with", "without": (n, d) vectors; "modality": (n,)

    @property
    def results(self) -> list[TaskResult]:
        """All results of run.json."""
        return [TaskResult.from_dict(result) for result in self.run["results"]] if self.run else []

    @classmethod
    def read(cls, path: Path) -> "SavedResults":
        """Read the files that are there. Raises BadData if there are none, or one cannot be read."""
        required = {"run": ("results", FORMAT), "scale": ("rows", FORMAT), "ablations": ("rows", ABLATIONS_FORMAT)}
        files = {name: path / f"{name}.json" for name in required}
        found = {
            name: read_json(files[name], *needs) if files[name].exists() else None for name, needs in required.items()
        }
        folder = cls(**found, quantized=_read_quantized(path / "quantized.npz"))
        if folder == cls(None, None, None, None):
            raise BadData(
                f"{path} holds nothing to report: no run.json, scale.json, ablations.json or quantized.npz. Create one "
                "with `genius evaluate DATA --out RUN`."
            )
        return folder


def _read_quantized(path: Path) -> dict[str, np.ndarray] | None:
    if not path.exists():
        return None
    try:
        with np.load(path) as arrays:
            return {name: arrays[name] for name in ("with", "without", "modality")}
    except (KeyError, ValueError, OSError) as error:
        raise BadData(f"{path} cannot be read ({error}). Run `genius ablate` again.") from error
