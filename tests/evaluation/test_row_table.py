"""Tables of rows: known only once they are written, on disk or in memory."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from genius.errors import GeniusError
from genius.evaluation import row_table
from genius.evaluation.row_table import RowTable, has_rows

SHAPE = (10, 3)


def table(folder: Path | None) -> RowTable:
    return RowTable(folder, "texts", SHAPE, np.float32)


@pytest.mark.parametrize("on_disk", [True, False])
def test_rows_that_are_not_known_come_in_blocks(tmp_path: Path, on_disk: bool) -> None:
    made = table(tmp_path if on_disk else None)
    assert isinstance(made.array, np.memmap) == on_disk
    assert not made.array.any()
    made.put(np.array([2, 5]), np.ones((2, 3)))
    made.save()
    blocks = made.missing(np.arange(8), 4)
    assert np.concatenate(blocks).tolist() == [0, 1, 3, 4, 6, 7]
    assert max(map(len, blocks)) <= 4
    assert made.missing(np.array([5, 2]), 4) == []
    assert made.array[5].tolist() == [1, 1, 1]


def test_saved_rows_are_there_the_next_time(tmp_path: Path) -> None:
    made = table(tmp_path)
    assert not has_rows(tmp_path)
    made.put(np.array([1]), np.ones((1, 3)))
    assert not has_rows(tmp_path)  # a process that is killed here may have written half a row
    assert table(tmp_path).missing(np.arange(2), 9)[0].tolist() == [0, 1]
    made.save()
    again = table(tmp_path)
    assert has_rows(tmp_path)
    assert again.missing(np.arange(2), 9)[0].tolist() == [0]
    assert again.array[1].tolist() == [1, 1, 1]


def test_rows_are_saved_from_time_to_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_table, "SAVE_SECONDS", 0)
    table(tmp_path).put(np.array([7]), np.ones((1, 3)))
    assert table(tmp_path).known.tolist() == [row == 7 for row in range(10)]


def test_a_full_disk_is_named_before_anything_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = table(tmp_path)
    made.put(np.arange(8), np.ones((8, 3)))
    made.save()
    monkeypatch.setattr(row_table.shutil, "disk_usage", lambda folder: SimpleNamespace(free=3 * 12 - 1))
    assert made.missing(np.arange(10), 9)[0].tolist() == [8, 9]
    with pytest.raises(GeniusError, match=r"0\.0 GB left.*--out"):
        RowTable(tmp_path, "images", SHAPE, np.float32).missing(np.arange(10), 9)
