"""Searching an index within ids, filters and modalities: as if the other items were not there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import draw_image, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from genius.data.items import Item, Modality, Query
from genius.errors import BadIndex, GeniusError
from genius.index import snapshot
from genius.index.index import Index
from genius.index.snapshot import Snapshot, Unreadable
from genius.model.genius import Genius
from genius.search.options import MODES
from genius.search.results import Hit

WORDS = ["cat", "dog", "sofa", "beach", "mountain", "car", "tree", "river", "bread", "lamp", "violin", "snow"]
LANGUAGES = ["en", "de", "it's", None]
QUERIES = [
    Query(text="cat on a sofa"),
    Query(text="snow", target="text"),
    Query(image=draw_image("red"), target="image"),
]


def items(n: int, start: int = 0) -> list[Item]:
    """Texts, images and pairs; some are alike and share an ID."""
    made = []
    for i in range(start, start + n):
        text = f"{WORDS[i % 12]} {WORDS[i // 12 % 5]}" if i % 4 else None
        image = draw_image(["red", "green", "blue", "white"][i // 4 % 4]) if i % 4 in (0, 3) else None
        metadata = {"lang": LANGUAGES[i % 4], "year": 1990 + i, "good": i % 2 == 0, "tags": ["a", str(i)]}
        made.append(Item(f"i{i}", text, image, metadata))
    return made


@pytest.fixture(scope="module")
def model() -> Genius:
    return tiny_model()


@pytest.fixture
def index(tmp_path: Path, model: Genius) -> Index:
    index = Index.create(tmp_path / "things.genius", model)
    index.add(items(60))
    return index


def ids(hits: list[Hit]) -> list[str]:
    return [hit.id for hit in hits]


def matching(index: Index, where: str) -> list[str]:
    return [item.id for item in index.filter(where)]


# As if the others were not there


@pytest.mark.parametrize("embeddings", [True, False])
@pytest.mark.parametrize("mode", MODES)
def test_a_filtered_search_is_the_search_of_an_index_of_these_items(tmp_path, model, mode, embeddings):
    whole = Index.create(tmp_path / "whole", model, embeddings=embeddings)
    whole.add(items(60))
    whole.delete(["i0", "i31"])
    whole.add(items(5, start=60))
    whole.upsert(items(4, start=20))
    for number, where in enumerate(["lang = 'en'", "year < 1993", "year >= 1990", "good AND modality = 'text'"]):
        few = Index.create(tmp_path / f"few {number}", model, embeddings=embeddings)
        few.add(whole.filter(where))
        for k in (1, 4, 100):
            found = whole.search(QUERIES, k=k, mode=mode, beam=5, budget=8, where=where)
            expected = few.search(QUERIES, k=k, mode=mode, beam=5, budget=8)
            assert found == expected
        assert len(found[0]) == len(few)


CONDITIONS: list[tuple[str, Any]] = [
    ("lang = 'en'", lambda item: item.metadata["lang"] == "en"),
    ("lang <> 'en'", lambda item: item.metadata["lang"] not in ("en", None)),
    ("lang IS NULL", lambda item: item.metadata["lang"] is None),
    ("lang = 'it''s'", lambda item: item.metadata["lang"] == "it's"),
    ("year >= 2000.5", lambda item: item.metadata["year"] > 2000),
    ("year IN (1991, 1995, 7)", lambda item: item.metadata["year"] in (1991, 1995)),
    ("NOT good", lambda item: not item.metadata["good"]),
    ("good = true AND year < 2010", lambda item: item.metadata["good"] and item.metadata["year"] < 2010),
    ("modality = 'image,text'", lambda item: item.modality == Modality.IMAGE_TEXT),
    ("text LIKE 'cat%'", lambda item: (item.text or "").startswith("cat")),
    ("starts_with(id, 'i1')", lambda item: item.id.startswith("i1")),
    ("metadata LIKE '%\"17\"%'", lambda item: "17" in item.metadata["tags"]),
    ("1 = 1", lambda item: True),
    ("1 = 2", lambda item: False),
]


@pytest.mark.parametrize(("where", "holds"), CONDITIONS, ids=[where for where, _ in CONDITIONS])
def test_conditions_mean_what_they_say(index, where, holds):
    expected = {item.id for item in items(60) if holds(item)}
    assert set(matching(index, where)) == expected
    assert index.count(where) == len(expected)
    assert {hit.id for hit in index.search(Query(text="cat"), k=60, where=where)} == expected


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory, model: Genius) -> Index:
    index = Index.create(tmp_path_factory.mktemp("many") / "i", model)
    index.add(items(80))
    index.delete([f"i{i}" for i in range(0, 80, 7)])
    return index


@settings(max_examples=30, deadline=None)
@given(
    chosen=st.none() | st.sets(st.integers(0, 90).map(lambda i: f"i{i}"), max_size=90),
    where=st.none() | st.sampled_from(CONDITIONS),
    target=st.sampled_from([None, *Modality]),
    k=st.sampled_from([1, 7, 100]),
    mode=st.sampled_from(MODES),
)
def test_ids_conditions_and_kinds_together_leave_what_satisfies_all(many, chosen, where, target, k, mode):
    expected = {
        item.id
        for item in items(80)
        if int(item.id[1:]) % 7
        and (chosen is None or item.id in chosen)
        and (where is None or where[1](item))
        and (target is None or item.modality == target)
    }
    hits = many.search(
        Query(text="cat", target=target), k, mode=mode, beam=3, budget=5, ids=chosen, where=where and where[0]
    )
    assert set(ids(hits)) <= expected
    assert len(hits) == len(set(ids(hits))) == min(k, len(expected))


def test_ids_may_be_unknown_and_none_at_all(index):
    assert ids(index.search(Query(text="cat"), ids=["i5", "nobody", "i5"])) == ["i5"]
    assert index.search(Query(text="cat"), ids=[]) == []
    assert index.search([Query(text="cat")] * 2, ids={"nobody"}) == [[], []]


def test_ready_vectors_are_searched_with_filters_too(index, model):
    found = index.search_vectors(model.encode_queries([Query(text="cat")]), k=3, ids=["i7", "i9"], where="year = 1999")
    assert found.rows.tolist() == [[9, -1, -1]]


# Metadata of all sorts


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=5) | st.sampled_from(["a", "b", "id", "_rowid"]), VALUES), max_size=4))
def test_any_metadata_comes_back_and_every_field_can_be_named(tmp_path_factory, model, records):
    index = Index.create(tmp_path_factory.mktemp("any") / "i", model)
    given_items = [Item(f"i{i}", "text", metadata=record) for i, record in enumerate(records)]
    for item in given_items:
        index.add([item])
    index = Index.open(index.path, model)
    assert [index.get(item.id) for item in given_items] == given_items
    assert index.verify() == []
    for name in index.info().fields:
        filled = matching(index, f"`{name}` IS NOT NULL")
        assert set(filled) <= {item.id for item in given_items if item.metadata.get(name) is not None}
        assert filled


@pytest.mark.parametrize(
    ("value", "condition"),
    [
        ("it's", "field = 'it''s'"),
        ('say "hi"', "field = 'say \"hi\"'"),
        ("日本 \\ %", "field = '日本 \\ %'"),
        (-3, "field = -3"),
        (1.5, "field > 1 AND field < 2"),
        (2**70, "field > 1e20"),
        (True, "field"),
        (False, "field = false"),
    ],
)
def test_values_of_all_kinds_can_be_asked_for(index, value, condition):
    index.add([Item("x", "cat", metadata={"field": value, "a name: é": value})])
    for where in (condition, condition.replace("field", "`a name: é`")):
        assert matching(index, where) == ["x"]
        assert ids(index.search(Query(text="dog"), where=where)) == ["x"]


def test_a_field_keeps_the_kind_it_had_first(index):
    index.add([Item("text", "cat", metadata={"year": "unknown"}), Item("number", "cat", metadata={"lang": 7})])
    assert index.fields["year"] == "number"
    assert matching(index, "year IS NULL AND lang IS NULL") == ["text"]
    assert matching(index, "lang = '7'") == ["number"]
    assert index.get("text").metadata == {"year": "unknown"}


# Bad conditions


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ("colour = 'red'", "no field colour.*id .text., text .text., modality .text.*lang .text., year .number."),
        ("year = 'new'", "year .number., good .boolean."),
        ("lang > 5", "a field of texts is compared with 5. Put quotes around it: '5'"),
        ("good = 1", "true and false is compared with 1"),
        ("year >= '2000'", "a field of numbers is compared with '2000'. Write a number, without quotes"),
        ("lang = en", "no field en. If en is a value, put quotes around it: 'en'"),
        ("lang IN (en, de)", "If en is a value, put quotes around it: 'en'"),
        ("year >", "a value is missing at its end"),
        ("year", "it is not a condition"),
        ("cast(lang AS int) = 1", "Cannot cast string"),
        ("tags = 'a'", "no field tags"),
        ("image_bytes IS NULL", "no field image_bytes"),
        ("embedding IS NULL", "no field embedding"),
        ("repeat(lang, 1000000000) = 'a'", "no function repeat"),
        ("((((((((((((((((((((((((((((((((((((((((((((((((((((((((((((good", "recursion limit"),
        ("", "is not a filter"),
    ],
)
def test_bad_conditions_are_answered_with_a_sentence(index, where, sentence):
    asks = (index.count, index.filter, lambda where: index.search(Query(text="cat"), where=where))
    for ask in asks:
        with pytest.raises(GeniusError, match=sentence) as error:
            ask(where)
        assert ".rs:" not in str(error.value)


def test_a_string_is_no_list_of_ids(index):
    with pytest.raises(GeniusError, match="ids is the string 'i5'"):
        index.search(Query(text="cat"), ids="i5")


def test_limits(index):
    assert [item.id for item in index.filter("good", limit=3)] == ["i0", "i2", "i4"]
    with pytest.raises(GeniusError, match="limit is 0"):
        index.filter("good", limit=0)


# Changes


def test_remembered_filters_follow_the_index(index, model):
    def found(one: Index) -> set[str]:
        return set(ids(one.search(Query(text="cat"), k=100, where="year < 1995")))

    present = {f"i{i}" for i in range(5)}
    assert found(index) == found(index) == present
    index.delete("i1")
    assert found(index) == present - {"i1"}
    index.upsert([Item("i2", "now later", metadata={"year": 2020}), Item("i50", "now earlier", metadata={"year": 1})])
    assert found(index) == {"i0", "i3", "i4", "i50"}
    index.add([Item("new", "a cat", metadata={"year": 1994, "more": 1})])
    assert found(index) == found(Index.open(index.path, model)) == {"i0", "i3", "i4", "i50", "new"}
    assert index.count("more = 1") == index.count("more IS NOT NULL") == 1
    index.upsert([Item("new", "a cat")])
    assert index.count("more IS NOT NULL") == 0


def test_only_the_last_filters_are_remembered(index, monkeypatch):
    read = []
    rows = Snapshot.row_ids
    monkeypatch.setattr(Snapshot, "row_ids", lambda self, *key: read.append(key) or rows(self, *key))
    monkeypatch.setattr(snapshot, "FILTERS", 2)
    for year in (1, 2, 1, 3, 1, 2, 3):
        index.search(Query(text="cat"), where=f"year > {year}")
    assert [key[0][-1] for key in read] == ["1", "2", "3", "2", "3"]


def test_changes_do_not_make_the_index_read_itself_anew(index, monkeypatch):
    index.search(Query(text="cat"))
    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "_load", None)
        index.add([Item("new", "a cat", metadata={"brand new": "x"})])
        index.upsert([Item("i3", "changed"), Item("newer", "a cow", metadata={"newest": "x"})])
        index.delete("i4")
        index.compact()
        index.search(Query(text="cat"))
    assert ids(index.search(Query(text="dog"), where="`brand new` = 'x'")) == ["new"]
    assert (index.codes == Index.open(index.path, index.model).codes).all()


def test_two_writers_may_bring_different_fields(index, model):
    other = Index.open(index.path, model)
    other.add([Item("theirs", "a dog", metadata={"theirs": 1})])
    assert index.count() == 60  # a snapshot
    with pytest.raises(GeniusError, match="no field theirs"):
        index.count("theirs = 1")
    index.add([Item("ours", "a cat", metadata={"ours": "x", "theirs": 2})])
    assert matching(index, "theirs >= 1") == ["theirs", "ours"]
    assert matching(index, "ours = 'x'") == ["ours"]
    assert other.add([Item("more", "a cow", metadata={"theirs": 3})]).added == 1
    assert set(matching(other, "theirs >= 2")) == {"ours", "more"}


def test_counting_needs_no_model(index):
    assert Index.open(index.path).count("good") == 30
    assert len(Index.open(index.path).filter("good")) == 30


def test_fields_are_listed(index):
    assert index.info().fields == {"lang": "text", "year": "number", "good": "boolean"}
    assert index.fields == {"id": "text", "text": "text", "modality": "text", "metadata": "text", **index.info().fields}


def test_an_empty_index_has_no_fields(tmp_path, model):
    index = Index.create(tmp_path / "i", model)
    assert index.search(Query(text="cat"), where="modality = 'text'") == []
    assert index.count("id = 'a'") == 0
    with pytest.raises(GeniusError, match="no field lang"):
        index.search(Query(text="cat"), where="lang = 'en'")


def test_foreign_columns_are_refused(index, model):
    index.dataset.add_columns({"odd": "[1, 2]"})
    with pytest.raises(BadIndex, match=r"odd is .*, which is not the type of a metadata field"):
        Index.open(index.path, model)


def test_codes_and_rows_belong_together(index):
    for hit in index.search(Query(text="cat"), k=60, where="year > 2000", ids=[f"i{i}" for i in range(5, 30)]):
        assert hit.codes == tuple(index.codes[int(hit.id[1:])].tolist())
    assert isinstance(index.codes, np.ndarray)


def test_a_filter_is_not_blamed_for_damaged_files(index, model):
    """Lance reports damage and bad filters alike, as ValueError or OSError."""
    (file,) = (index.path / "items.lance" / "data").iterdir()
    data = file.read_bytes()
    file.write_bytes(b"\xff" * (len(data) - 1000) + data[-1000:])
    damaged = Index.open(index.path, model)
    for read in (damaged.count, damaged.filter, lambda where: list(damaged.items(where))):
        with pytest.raises(Unreadable, match="genius index verify"):
            read("lang = 'en'")
        with pytest.raises(GeniusError, match="there is no field wings"):
            read("wings = 2")


@pytest.mark.parametrize("error", [ValueError("Not found: file"), ValueError("invalid buffer"), OSError("no device")])
def test_a_filter_that_works_is_not_blamed(index, error, monkeypatch):
    def fail() -> None:
        raise error

    view = index._session.snapshot
    with pytest.raises(Unreadable):
        view._evaluate("lang = 'en'", fail)
    with pytest.raises(GeniusError, match="Cannot cast string"):  # known only when it is evaluated
        view._evaluate("cast(lang AS int) = 1", fail)


def test_items_are_read_lazily_in_blocks(index, monkeypatch):
    monkeypatch.setattr(Snapshot.batches, "__defaults__", (None, 7))
    assert list(index) == list(index.items()) == index.filter()
    assert [item.id for item in index.items("year < 2000")] == matching(index, "year < 2000")
    first = iter(index)
    assert next(first).id == "i0"
    index.delete("i1")
    assert [item.id for item in first][:2] == ["i1", "i2"]  # of the version that was begun
    with pytest.raises(GeniusError, match="no field wings"):
        list(index.items("wings = 2"))


def test_delete_by_a_filter(index):
    expected = [id for id in matching(index, "modality IS NOT NULL") if id not in matching(index, "year < 2000")]
    assert index.delete(where="year < 2000") == 10
    assert [item.id for item in index] == expected
    assert index.delete(where="year < 2000") == 0
    for arguments in ({}, {"ids": None, "where": None}, {"ids": ["i20"], "where": "year > 0"}):
        with pytest.raises(GeniusError, match="either ids or where"):
            index.delete(**arguments)
    for where in ("", " ", "year", "year > 0; --"):
        with pytest.raises(GeniusError, match="filter"):
            index.delete(where=where)
    assert [item.id for item in index] == expected
    assert index.delete([]) == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", [None, "lang = 'en'"])
def test_a_branch_of_the_code_tree_can_be_searched(tmp_path: Path, mode: Any, where: str | None):
    index = Index.create(tmp_path / "branches.genius", tiny_model())
    index.add(items(60))
    passing = None if where is None else {item.id for item in index.items(where)}
    for pattern, codes in (("1", (1,)), ("0-*", (0,)), ("*-3", (None, 3)), ("1-2", (1, 2))):
        expected = {
            item.id
            for item, row in zip(index, index.codes.tolist(), strict=True)
            if all(code in (None, row[level]) for level, code in enumerate(codes))
        } & (passing if passing is not None else {item.id for item in index})
        found = index.search(QUERIES[0], k=100, mode=mode, beam=100, branch=pattern, where=where)
        assert {hit.id for hit in found} == expected


@pytest.mark.parametrize("branch", ["", "a", "1-", "-1", "1--2", "1 2", "9999999", 1, "1-2-3-4-5-6-7-8"])
def test_a_branch_that_no_id_can_have_is_refused_with_a_sentence(tmp_path: Path, branch: Any):
    index = Index.create(tmp_path / "branches.genius", tiny_model())
    index.add(items(3))
    with pytest.raises(GeniusError, match="codes"):
        index.search("cat", branch=branch)
