"""How an index says what it found and how: beams, items looked at, the time of stages; and what has which codes."""

from collections import Counter
from pathlib import Path

import pytest
from fakes import LEVELS as CONTENT_LEVELS
from fakes import tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from genius.data.items import Item, Query
from genius.errors import GeniusError
from genius.index.index import Index
from genius.search.options import MODES

LEVELS = CONTENT_LEVELS + 1
WORDS = ["cat", "dog", "sofa", "beach", "mountain", "car", "tree", "river", "bread", "lamp", "violin", "snow"]
ITEMS = [Item(f"t{i}", f"{WORDS[i % 12]} {WORDS[i // 12 % 5]}", metadata={"number": i}) for i in range(90)]
QUERIES = [Query(text="cat on a sofa"), Query(text="snow", target="text")]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    made: Index = Index.create(tmp_path_factory.mktemp("answers") / "things.genius", tiny_model())
    made.add(ITEMS)
    made.delete(["t7", "t8"])
    return made


@pytest.fixture(scope="module")
def codes(index: Index) -> dict[str, tuple[int, ...]]:
    ids = [item.id for item in index.items()]
    return {id: tuple(row) for id, row in zip(ids, index.codes.tolist(), strict=True)}


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_has_the_hits_of_a_search_and_the_way_to_them(index, codes, mode):
    how = {"k": 5, "mode": mode, "beam": 6, "budget": 20}
    answers = index.answer(QUERIES, **how)
    assert [answer.hits for answer in answers] == index.search(QUERIES, **how)
    for answer in answers:
        assert set(answer.seconds) == {"encode", "generate", "rerank", "read"}
        assert all(seconds >= 0 for seconds in answer.seconds.values())
        assert [branch.logprob for branch in answer.branches] == sorted(
            (branch.logprob for branch in answer.branches), reverse=True
        )
        for branch in answer.branches:
            having = [id for id, row in codes.items() if row[: len(branch.codes)] == branch.codes]
            assert 0 < branch.items <= len(having)
            assert branch.items == len(having) or mode == "fast"  # which takes the nearest of them
        under = sum(branch.items for branch in answer.branches)
        assert len(answer.hits) <= under == answer.candidates <= len(index)
        if mode == "generate":
            assert answer.hits[0].codes[: len(answer.branches[0].codes)] == answer.branches[0].codes


def test_encoded_queries_get_the_same_answers(index):
    model = index.model
    vectors = model.encode([model.prepare_query(query) for query in QUERIES])
    answers = index.answer_vectors(vectors, [query.target_modality for query in QUERIES], k=4)
    assert [answer.hits for answer in answers] == index.search(QUERIES, k=4)
    assert set(answers[0].seconds) == {"generate", "rerank", "read"}


def test_an_empty_index_answers_with_nothing(tmp_path: Path):
    empty = Index.create(tmp_path / "empty.genius", tiny_model())
    answer = empty.answer(QUERIES[0])
    assert (answer.hits, list(answer.branches), answer.candidates) == ([], [], 0)
    page = empty.browse_codes()
    assert (page.total, page.ids, page.children, page.items) == (0, 0, [], [])


def test_an_option_that_does_not_exist_is_refused(index):
    with pytest.raises(GeniusError, match="no option 'breadth'"):
        index.search(QUERIES[0], breadth=3)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_browsing_codes_is_counting(index, codes, data):
    like = data.draw(st.sampled_from(sorted(codes.values())))
    pattern = [code if data.draw(st.booleans()) else None for code in like[: data.draw(st.integers(0, LEVELS))]]
    offset, limit = data.draw(st.integers(0, 20)), data.draw(st.integers(0, 30))
    having = {
        id: row
        for id, row in codes.items()
        if all(wanted in (None, code) for wanted, code in zip(pattern, row, strict=False))
    }
    page = index.browse_codes(pattern, limit, offset)
    assert page.total == len(having)
    assert page.ids == len(set(having.values()))
    if len(pattern) < LEVELS:
        assert {child.code: child.items for child in page.children} == Counter(
            row[len(pattern)] for row in having.values()
        )
        assert [child.items for child in page.children] == sorted((c.items for c in page.children), reverse=True)
        assert all(having[child.example][len(pattern)] == child.code for child in page.children)
    else:
        assert page.children == []
    assert len(page.items) == max(0, min(limit, len(having) - offset))
    assert all(having[coded.item.id] == coded.codes for coded in page.items)
    everything = index.browse_codes(pattern, len(codes)).items
    assert everything[offset : offset + limit] == page.items
    assert {coded.item.id for coded in everything} == set(having)


def test_an_item_with_its_codes(index, codes):
    found = index.get_coded("t3")
    assert (found.item, found.codes) == (ITEMS[3], codes["t3"])
    assert index.get_coded("t7") is None
    several = index.get_coded(["t4", "t7", "t3", "t4"])
    assert [coded and (coded.item.id, coded.codes) for coded in several] == [
        ("t4", codes["t4"]),
        None,
        ("t3", codes["t3"]),
        ("t4", codes["t4"]),
    ]


def test_items_can_be_read_page_by_page(index):
    left = [item for item in ITEMS if item.id not in ("t7", "t8")]
    assert index.filter(limit=10, offset=5) == left[5:15]
    assert index.filter("number >= 50", limit=10, offset=35) == left[-5:]
    assert index.filter(offset=200, limit=3) == []
    with pytest.raises(GeniusError, match="offset is -1"):
        index.filter(offset=-1)


def test_codes_that_no_id_can_have(index):
    with pytest.raises(GeniusError, match=f"{LEVELS + 1} codes were given"):
        index.browse_codes([0] * (LEVELS + 1))
    assert index.browse_codes([0, 60_000]).total == 0


def test_replaced_items_are_counted(tmp_path: Path):
    index = Index.create(tmp_path / "i.genius", tiny_model())
    index.add(ITEMS[:4])
    report = index.upsert([Item("t0", "other"), ITEMS[1], ITEMS[5]])
    assert (report.added, report.replaced, report.unchanged) == (2, 1, 1)
