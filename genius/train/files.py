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


def check_same_run(path: Path, facts: dict[str, Any], folder: Path, what: str) -> None:
    """Record in `path` what decides the results of a run in `folder`. Raise BadData if it records other facts."""
    facts = json.loads(json.dumps(facts))
    if path.exists() and json.loads(path.read_text()) != facts:
        raise BadData(
            f"{folder} holds {what} (see {path}). Give another folder with --out, or delete that one to start over."
        )
    write_json(path, facts, indent=2)
