"""Mapped arrays: processes of one machine share codes and embeddings through files that they map into memory.

The first process that needs the arrays of a version writes them to files; all map these. Mapped pages are in memory
once for all processes. Rows that a process appends later go to pages of its own (copy on write).
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import numpy as np
from filelock import FileLock

from genius.search.searcher import AppendBuffer

_FACTS = "facts.json"


def mapped_arrays(
    folder: Path, name: str, version: int, growing: Collection[str], load: Callable[[], Mapping[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Arrays of a version of an index, mapped from files.

    Args:
        folder: A private folder that the processes share.
        name: Name of the index, any string.
        version: The version. Files of other versions are removed; processes that have mapped them keep them.
        growing: Names of the arrays that get free rows at the end, see `AppendBuffer`.
        load: Makes the arrays, if no process has done so yet.
    """
    index = hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
    made = folder / f"{index}-{version}"
    with FileLock(folder / f"{index}.lock"):
        if not made.exists():
            for older in folder.glob(f"{index}-*"):
                shutil.rmtree(older, ignore_errors=True)
            unfinished = folder / f"{index}-unfinished"
            unfinished.mkdir()
            _write(unfinished, load(), growing)
            os.replace(unfinished, made)
        facts = json.loads((made / _FACTS).read_text(encoding="utf-8"))
        return {array: _map(made / array, **values) for array, values in facts.items()}


def _write(folder: Path, arrays: Mapping[str, np.ndarray], growing: Collection[str]) -> None:
    facts = {}
    for name, array in arrays.items():
        rows = AppendBuffer.capacity(len(array)) if name in growing else len(array)
        shape = (rows, *array.shape[1:])
        facts[name] = {"shape": shape, "dtype": array.dtype.str}
        with open(folder / name, "wb") as file:
            for block in np.array_split(array, max(1, array.nbytes >> 26)):
                file.write(np.ascontiguousarray(block).data)
            file.truncate(int(np.prod(shape)) * array.dtype.itemsize)  # free rows take no space
    (folder / _FACTS).write_text(json.dumps(facts), encoding="utf-8")


def _map(file: Path, shape: list[int], dtype: str) -> np.ndarray:
    if 0 in shape:
        return np.empty(shape, dtype)
    # A plain array: the class memmap would be passed on to every slice, which costs time.
    return np.asarray(np.memmap(file, dtype, "c", shape=tuple(shape)))
