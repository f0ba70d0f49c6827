"""RowTable: an array whose rows are computed block by block, in a memory-mapped file or in memory.

The vectors of millions of candidates need more memory than a machine has. In a file they need almost none: a search
reads them in blocks, and the system keeps in memory what is read often.
"""

import shutil
import time
from pathlib import Path

import numpy as np

from genius.errors import GeniusError

SAVE_SECONDS = 60  # between two saves of the rows computed so far
KNOWN = "-known.npy"  # at the end of the file that tells which rows are computed


class RowTable:
    """An array (rows, width) that starts as zeros, and which of its rows are known.

    An interrupted run continues with the rows that are not known. A row becomes known after it was written to disk.

    Args:
        folder: Folder of the files {name}.npy and {name}-known.npy, or None to stay in memory. Files are reused.
        name: Name of the table.
        shape: Rows and width.
        dtype: Type of the values.
    """

    def __init__(self, folder: Path | None, name: str, shape: tuple[int, int], dtype: type[np.generic]) -> None:
        self.folder = folder
        self.array = _open(None if folder is None else folder / f"{name}.npy", shape, dtype)
        self.known = _open(None if folder is None else folder / f"{name}{KNOWN}", shape[:1], np.bool_)
        self._put: list[np.ndarray] = []
        self._saved = time.monotonic()

    def missing(self, rows: np.ndarray, size: int) -> list[np.ndarray]:
        """Those of these rows that are not known, in blocks of at most `size`.

        Raises:
            GeniusError: They do not fit on the disk. Writing to a mapped file would end the process without a word.
        """
        left = rows[~self.known[rows]]
        if self.folder is not None:
            needed, free = len(left) * self.array[:1].nbytes, shutil.disk_usage(self.folder).free
            if needed > free:
                raise GeniusError(
                    f"The disk of {self.folder} has {free / 1e9:.1f} GB left, but {needed / 1e9:.1f} GB are needed. "
                    "Make room, or give a folder on another disk with --out."
                )
        return np.array_split(left, -(-len(left) // size)) if len(left) else []

    def put(self, rows: np.ndarray, values: np.ndarray) -> None:
        """Write rows. They become known with the next save, which follows within a minute or by `save`."""
        self.array[rows] = values
        self._put.append(rows)
        if time.monotonic() - self._saved >= SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        """Write everything to disk."""
        _flush(self.array)
        for rows in self._put:
            self.known[rows] = True
        _flush(self.known)
        self._put, self._saved = [], time.monotonic()


def has_rows(folder: Path) -> bool:
    """Whether any row of any table in a folder is known."""
    return any(np.load(path, mmap_mode="r").any() for path in folder.glob(f"*{KNOWN}"))


def _open(path: Path | None, shape: tuple[int, ...], dtype: type[np.generic]) -> np.ndarray:
    if path is None:
        return np.zeros(shape, dtype)
    return np.lib.format.open_memmap(path, "r+" if path.exists() else "w+", dtype, shape)


def _flush(array: np.ndarray) -> None:
    if isinstance(array, np.memmap):
        array.flush()
