"""Metadata fields as columns: their kinds, and which values go into them."""

from typing import Any

import pyarrow as pa
import pytest

from genius.index.storage import MAX_FIELDS, field_columns


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
