"""Tables of queries and items: columns are found by name, bad rows are named, nothing stops at them."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from genius.data.pairs import Pair, PairTable
from genius.errors import BadData, BadItem


def write(folder: Path, name: str, content: str) -> Path:
    (folder / name).write_text(content, encoding="utf-8")
    return folder / name


def read(path: Path, **columns: str) -> list[tuple[str | None, str, float]]:
    pairs = list(PairTable(path, columns))
    assert all(isinstance(pair, Pair) for pair in pairs), pairs
    return [(pair.query.text, pair.item, pair.clicks) for pair in pairs if isinstance(pair, Pair)]


@pytest.mark.parametrize(
    "header",
    [
        "image,caption",
        "Query,Item_ID",
        "item;text",
        "did\tquery_txt",
        "query,file_name,id",
        "caption|id",
        "text,item,image",
    ],
)
def test_columns_are_found_by_their_usual_names(tmp_path: Path, header: str) -> None:
    delimiter = next(mark for mark in ",;\t|" if mark in header)
    values = {"query": "a cat", "item_id": "7", "item": "7", "file_name": "7", "did": "7"}
    values |= {"caption": "a cat", "text": "a cat", "query_txt": "a cat", "image": "7", "id": "7"}
    row = delimiter.join(values[name] for name in header.lower().split(delimiter))
    assert read(write(tmp_path, "pairs.csv", f"{header}\n{row}\n")) == [("a cat", "7", 1)]


def test_named_columns_and_the_rest(tmp_path: Path) -> None:
    path = write(tmp_path, "log.csv", "Term,sku,n,timestamp\nshoe,0012,3,2026-01-01\n")
    table = PairTable(path, {"query": "term", "item": "SKU", "clicks": "n"})
    (pair,) = table
    assert isinstance(pair, Pair)
    assert (pair.query.text, pair.item, pair.clicks, pair.place) == ("shoe", "0012", 3, "log.csv, row 2")
    assert table.unused == ["timestamp"]


def test_json_and_parquet(tmp_path: Path) -> None:
    rows = [{"query": "a", "item": 1, "clicks": 2}, {"query": "b", "item": "x"}]
    assert read(write(tmp_path, "p.json", json.dumps(rows))) == [("a", "1", 2), ("b", "x", 1)]
    assert read(write(tmp_path, "p.jsonl", "\n".join(map(json.dumps, rows)))) == [("a", "1", 2), ("b", "x", 1)]
    table = {"query_image": [b"png", None], "query": [None, "b"], "item": [1, 2]}
    pq.write_table(pa.table(table), tmp_path / "p.parquet")
    first, second = PairTable(tmp_path / "p.parquet")
    assert isinstance(first, Pair)
    assert isinstance(second, Pair)
    assert (first.query.image, first.item) == (b"png", "1")
    assert (second.query.text, second.item) == ("b", "2")


def test_bad_rows_are_named_and_the_others_are_read(tmp_path: Path) -> None:
    rows = ["a,1,2", ",2,1", "c,,1", "d,4,many", "e,5,-1", "f,6,1,7", "g,7,nan", "h,8,"]
    found = list(PairTable(write(tmp_path, "p.csv", "query,item,clicks\n" + "\n".join(rows) + "\n")))
    assert [pair.query.text for pair in found if isinstance(pair, Pair)] == ["a", "h"]
    bad = [error for error in found if isinstance(error, BadItem)]
    for error, words in zip(bad, ("neither text", "item id", "'many'", "'-1'", "4 cells", "'nan'"), strict=True):
        assert words in str(error)
    assert [f"p.csv, row {row}: " in str(error) for row, error in enumerate(bad, 3)] == [True] * 6


def test_objects_without_the_keys_are_bad_rows(tmp_path: Path) -> None:
    path = write(tmp_path, "p.jsonl", '{"query": "a", "item": "1"}\n{"words": "b"}\n')
    good, bad = PairTable(path)
    assert isinstance(good, Pair)
    assert isinstance(bad, BadItem)
    assert str(bad).startswith("p.jsonl, row 2: ")


@pytest.mark.parametrize(
    ("header", "columns", "message"),
    [
        ("words,item", {}, r"no column `query` \(found: words, item\).*--columns query=NAME"),
        ("query,thing", {}, "no column `item`"),
        ("query,item,item_id", {}, "both item and item_id could be"),
        ("query,item", {"item": "sku"}, "no column `item`"),
        ("query,item", {"price": "item"}, "no role 'price'"),
    ],
)
def test_columns_that_cannot_be_told_stop_it(
    tmp_path: Path, header: str, columns: dict[str, str], message: str
) -> None:
    path = write(tmp_path, "p.csv", f"{header}\na,b,c\n")
    with pytest.raises(BadData, match=message):
        list(PairTable(path, columns))


@pytest.mark.parametrize("name", ["missing.csv", "notes.txt"])
def test_what_is_no_table(tmp_path: Path, name: str) -> None:
    write(tmp_path, "notes.txt", "x")
    with pytest.raises(BadData, match="is not a table"):
        PairTable(tmp_path / name)
