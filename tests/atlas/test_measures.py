import numpy as np
import pytest

from genius.atlas.collection import Collection
from genius.atlas.measures import (
    agreement_rows,
    measure_collection,
    measures_json,
    modality_purity,
    name_purity,
    same_code,
    unique_ids,
    variance_explained,
)
from genius.atlas.words import words_of


@pytest.fixture(scope="module")
def collection(index):
    return Collection.read(index)


def test_all_measures_are_percentages_inside_their_intervals(index, collection):
    measures = measure_collection(index, collection, words_of(collection))
    assert {"modality", "variance", "unique", "caption"} <= measures.keys()
    for measure in measures.values():
        for row in measure.rows:
            assert row.low - 1e-9 <= row.value <= row.high + 1e-9, measure.title
    found = measures_json(measures)
    assert found["caption"]["chance"]
    assert not found["variance"]["chance"]


def test_the_first_code_of_an_item_is_its_modality(collection):
    rows = np.arange(len(collection))
    measure = modality_purity(collection, collection.quantized, rows)
    assert measure.rows[0].value == 100


def test_more_codes_explain_more_and_all_of_what_they_stand_for(collection):
    measure = variance_explained(collection, collection.quantized, collection.codes)
    values = [row.value for row in measure.rows]
    assert values[-1] == pytest.approx(100, abs=0.01)
    assert [row.level for row in measure.rows] == ["1", "1–2", "1–3", "1–4"]


def test_items_alone_under_their_codes_are_counted(collection):
    ids, counts = np.unique(collection.codes, axis=0, return_counts=True)
    expected = 100 * (counts == 1).sum() / len(collection)
    assert unique_ids(collection).rows[-1].value == pytest.approx(expected)
    assert len(ids) < len(collection)


def test_names_hold_for_other_items_if_codes_follow_the_words(collection):
    """Codes that are the colours are named perfectly; codes that were drawn are not."""
    colours = ["red", "green", "blue", "hostile"]
    colour = [colours.index(id.split("-")[0]) for id in collection.ids]
    right = collection.select(np.arange(len(collection)))
    right.codes[:, 1] = colour
    right.codes[:, 2] = np.random.default_rng(0).integers(0, 8, len(collection))
    spoken = np.flatnonzero([bool(text) and "host" not in id for text, id in zip(right.texts, right.ids, strict=True)])
    right = right.select(spoken)
    by_colour, drawn = name_purity(right, words_of(right)).rows[:2]
    assert by_colour.value == 100 > 60 > by_colour.chance
    assert drawn.value < 60


def test_a_code_that_means_the_same_everywhere_is_found_out(collection):
    """Level 2 is drawn, level 3 is the colour: items with the same third code share a word under all second codes."""
    random = np.random.default_rng(1)
    spoken = collection.select(np.flatnonzero([id.split("-")[1] == "text" for id in collection.ids]))
    spoken.codes[:, 1] = random.integers(0, 8, len(spoken))
    spoken.codes[:, 2] = [["red", "green", "blue"].index(id.split("-")[0]) for id in spoken.ids]
    texts = [id.split("-")[0] for id in spoken.ids]
    plain = spoken.select(np.arange(len(spoken)))
    plain.texts[:] = texts
    row = same_code(plain, words_of(plain)).rows[0]
    assert (row.level, row.value, row.chance) == ("3", 100, 0)


def test_agreement_counts_common_beginnings():
    codes = np.array([[0, 1, 2], [0, 5, 2], [1, 7, 7], [1, 3, 3]])
    answers = [np.array([[0, 1, 9], [0, 9, 9]]), np.array([[0, 5, 2]]), np.array([[0, 7, 7]]), np.array([[1, 3, 4]])]
    rows = agreement_rows(codes, answers)
    assert [(row.level, row.value) for row in rows] == [("1", 75), ("1–2", 75), ("1–3", 25)]
    assert [row.value for row in agreement_rows(codes, answers, start=1)] == [100, 50]
