"""SavedResults: the results that `genius evaluate`, `genius ablate` and benchmarks/scale.py left in a folder."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from genius.errors import BadData
from genius.evaluation.runs import FORMAT, TaskResult


@dataclass(frozen=True)
class SavedResults:
    """The results of one folder.

    Attributes:
        run: run.json of `genius evaluate`, or None.
        scale: scale.json of benchmarks/scale.py, or None.
        ablations: ablations.json of `genius ablate`, or None.
        quantized: "with", "without": (n, d) vectors; "modality": (n,). quantized.npz of `genius ablate`, or None.
    """

    run: dict[str, Any] | None
    scale: dict[str, Any] | None
    ablations: dict[str, Any] | None
    quantized: dict[str, np.ndarray] | None

    @property
    def results(self) -> list[TaskResult]:
        """All results of run.json."""
        return [TaskResult.from_dict(result) for result in self.run["results"]] if self.run else []

    @classmethod
    def read(cls, path: Path) -> "SavedResults":
        """Reads the files that are there.

        Raises:
            BadData: The folder holds no results, or a file cannot be read.
        """
        if not path.is_dir():
            raise BadData(
                f"{path} is not a folder. Give folders written by `genius evaluate --out` or `genius ablate`."
            )
        folder = cls(
            _read_json(path / "run.json", "results"),
            _read_json(path / "scale.json", "rows"),
            _read_json(path / "ablations.json", "rows"),
            _read_quantized(path / "quantized.npz"),
        )
        if folder == cls(None, None, None, None):
            raise BadData(
                f"{path} holds nothing to report: no run.json, scale.json, ablations.json or quantized.npz. Create one "
                "with `genius evaluate DATA --out RUN`."
            )
        return folder


def _read_json(path: Path, required: str) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadData(f"{path} is not valid JSON ({error}). Run the command that wrote it again.") from error
    if not isinstance(values, dict) or required not in values:
        raise BadData(f"{path} has no {required!r}, so it is not a file of results. Remove it from the folder.")
    if (found := values.get("format", FORMAT)) != FORMAT:
        raise BadData(f"{path} has format {found}, but this version reads format {FORMAT}. Measure again.")
    return values


def _read_quantized(path: Path) -> dict[str, np.ndarray] | None:
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as arrays:
            vectors = {name: np.asarray(arrays[name]) for name in ("with", "without", "modality")}
    except (KeyError, ValueError, OSError) as error:
        raise BadData(f"{path} cannot be read ({error}). Run `genius ablate` again.") from error
    if len({len(array) for array in vectors.values()}) != 1:
        raise BadData(f"The arrays in {path} differ in length. Run `genius ablate` again.")
    return vectors
