"""Metadata fields as columns: their kinds, and which values go into them. Rows by their row ids."""

from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

from genius.index.lance_errors import Unreadable
from genius.index.storage import MAX_FIELDS, field_columns, take


def columns(*records: dict[str, Any], known: dict[str, str] | None = None) -> dict[str, list[Any]]:
    made = field_columns(records, known or {}, ["id", "image"])
    assert all(isinstance(column, pa.Array) and len(column) == len(records) for column in made.values())
    return {name: column.to_pylist() for name, column in made.items()}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["en", None, ""], ["en", None, ""]),
        ([1, 2.5, None], [1.0, 2.5, None]),
        ([True, None, False], [True, None, False]),
        ([1984, "Emma", 2.5, True], ["1984", "Emma", "2.5", "true"]),
        ([True, 1], ["true", "1"]),
        ([2**70, 10**400, 3], [2.0**70, None, 3.0]),
        (["a", ["b"], {"c": 1}], ["a", None, None]),
    ],
)
def test_the_first_values_decide_the_kind(values, expected):
    assert columns(*({"field": value} for value in values)) == {"field": expected}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("text", ["a", "1", "2.5", "true", None, None]),
        ("number", [None, 1.0, 2.5, None, None, None]),
        ("boolean", [None, None, None, True, None, None]),
    ],
)
def test_a_known_field_keeps_its_kind(kind, expected):
    values = ["a", 1, 2.5, True, [], None]
    assert columns(*({"field": value} for value in values), known={"field": kind}) == {"field": expected}


def test_fields_that_are_missing_are_null():
    assert columns({"a": 1}, {"b": "x"}, known={"c": "number"}) == {"c": [None, None], "a": [1, None], "b": [None, "x"]}


@pytest.mark.parametrize("name", ["id", "ID", "Image", "_rowid", "a.b", "a`b", "", " a", "a\nb", "x" * 101, "\0"])
def test_names_that_cannot_be_used_get_no_column(name):
    assert columns({name: 1, "fine name é": 2}) == {"fine name é": [2]}


def test_what_is_no_scalar_anywhere_gets_no_column():
    assert columns({"a": [1], "b": None}, {"a": {"c": 1}}) == {}


def test_there_are_only_so_many_columns():
    made = columns({f"f{i}": i for i in range(MAX_FIELDS + 10)}, known={"old": "text"})
    assert len(made) == MAX_FIELDS
    assert made["old"] == [None]


def test_rows_are_read_in_the_order_of_their_row_ids_after_deletion_and_compaction(tmp_path: Path) -> None:
    for start in (0, 100):
        rows = pa.table({"id": [f"i{n}" for n in range(start, start + 100)], "n": range(start, start + 100)})
        mode = "append" if start else "create"
        dataset = lance.write_dataset(rows, tmp_path / "items.lance", mode=mode, enable_stable_row_ids=True)
    dataset.delete("n % 3 = 0")
    for step in ("deleted", "compacted"):
        if step == "compacted":
            dataset.optimize.compact_files()
            dataset = lance.dataset(tmp_path / "items.lance")
        assert take(dataset, np.array([199, 1, 100, 1]), ["id"]) == [{"id": f"i{n}"} for n in (199, 1, 100, 1)]
        with pytest.raises(Unreadable, match="1 of 2 rows are missing"):
            take(dataset, np.array([1, 3]), ["id"])
    assert take(dataset, np.zeros(0, np.int64), ["id"]) == []
