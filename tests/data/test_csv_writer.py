"""What is written as CSV is read as the same items."""

import io
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from genius.data.csv_writer import CsvWriter
from genius.data.items import Item
from genius.data.readers import read_items

NAMES = st.one_of(
    st.sampled_from(["lang", "year", "Text", " id", "metadata", "a,b", 'q"', "a\nb", "größe", "x;y", "caption"]),
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5),
)
VALUES = st.recursive(
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        st.sampled_from(["12", "012", "true", "1e5", "", " ", "{", '{"a": 1}', "x, y", "line\nbreak", "cr\r"]),
        st.integers(-(2**60), 2**60),
        st.floats(allow_nan=False, allow_infinity=False),
        st.booleans(),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text("ab"), inner, max_size=2)),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None)
@example(metadata={"lang": "0\r"}, fields=[])
@given(metadata=st.dictionaries(NAMES, VALUES, max_size=5), fields=st.lists(NAMES, max_size=5))
def test_items_survive(tmp_path_factory, metadata, fields):
    item = Item('an id, "quoted"\n', "text; with\r\nlines", metadata=metadata)
    file = io.StringIO(newline="")
    CsvWriter(file, [*fields, *metadata]).write(item.id, item.text, None, item.metadata)
    path = Path(tmp_path_factory.mktemp("csv"), "items.csv")
    path.write_text(file.getvalue(), encoding="utf-8", newline="")
    assert list(read_items(path)) == [item]


def test_a_lone_carriage_return_does_not_end_a_row(tmp_path):
    file = io.StringIO(newline="")
    CsvWriter(file, []).write("a", "one\rtwo", None, {})
    path = tmp_path / "items.csv"
    path.write_text(file.getvalue(), encoding="utf-8", newline="")
    assert list(read_items(path)) == [Item("a", "one\rtwo")]


@pytest.mark.parametrize(("value", "cell"), [("en", "en"), (2021, "2021"), (True, "true"), (0.5, "0.5")])
def test_a_value_stands_in_the_column_of_its_field(value, cell):
    file = io.StringIO()
    CsvWriter(file, ["field", "other"], ["score"]).write("a", None, "a.png", {"field": value}, [0.25])
    assert file.getvalue() == f"score,id,text,image,field,other,metadata\n0.25,a,,a.png,{cell},,\n"
