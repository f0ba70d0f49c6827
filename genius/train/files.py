"""Files of a run: written completely or not at all."""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, cast

import numpy as np

from genius.errors import BadData


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` with a temporary path, flush the file to disk, and move it to `path`."""
    temporary = path.with_name(path.name + ".part")
    write(temporary)
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_text(path: Path, lines: Iterable[str]) -> None:
    """Write lines, which end in line feeds, as UTF-8."""

    def write(part: Path) -> None:
        with open(part, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)

    write_atomically(path, write)


def write_json(path: Path, value: Any, indent: int | None = None) -> None:
    """Write a value as JSON."""
    write_text(path, [json.dumps(value, indent=indent) + "\n"])


def write_arrays(path: Path, arrays: np.ndarray | dict[str, np.ndarray]) -> None:
    """Write one array as .npy, or several by name as .npz."""

    def write(part: Path) -> None:
        with open(part, "wb") as file:  # a file, because numpy would append its suffix to a path
            if isinstance(arrays, dict):
                np.savez(file, **cast(dict[str, Any], arrays))
            else:
                np.save(file, arrays)

    write_atomically(path, write)


def check_same_run(path: Path, facts: dict[str, Any], folder: Path, what: str, begun: bool) -> None:
    """Raise BadData if `path` records other facts about the run in `folder`, and that run has begun.

    A run that failed before anything was computed does not count. Nothing is written: `record_run` does that.
    """
    if begun and path.exists() and json.loads(path.read_text()) != json.loads(json.dumps(facts)):
        raise BadData(
            f"{folder} holds {what} (see {path}). Give another folder with --out, or delete that one to start over."
        )


def record_run(path: Path, facts: dict[str, Any]) -> None:
    """Record in `path` what decides the results of a run. Call it when all inputs have been read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, facts, indent=2)
