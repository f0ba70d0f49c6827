import numpy as np
import pytest

from genius.atlas.names import Name, name_groups
from genius.atlas.words import Words


def words(*items: str) -> Words:
    vocabulary = sorted({word for item in items for word in item.split(",") if word})
    pairs = [(row, vocabulary.index(word)) for row, item in enumerate(items) for word in item.split(",") if word]
    item, word = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    return Words(len(items), vocabulary, item, word, np.ones(len(pairs), np.float32))


def test_a_name_is_what_sets_a_group_apart_from_its_siblings():
    found = words("animal,cat", "animal,cat", "animal,dog", "animal,dog")
    names = name_groups(found, np.array([0, 0, 1, 1]), np.array([0, 0]))
    assert [str(name).split(", ")[0] for name in names] == ["cat", "dog"]
    assert (names[0].purity, names[0].elsewhere) == (1.0, 0.0)


def test_groups_are_compared_with_their_siblings_only():
    """Among animals "red" tells nothing; among things it does."""
    found = words("red,cat", "red,dog", "red,car", "blue,car")
    names = name_groups(found, np.array([0, 1, 2, 3]), np.array([0, 0, 1, 1]))
    assert [str(name).split(", ")[0] for name in names] == ["cat", "dog", "red", "blue"]


def test_shares_are_counted():
    found = words("cat", "cat", "cat", "dog", "cat", "dog", "dog", "dog")
    first = name_groups(found, np.repeat([0, 1], 4), np.zeros(2, np.int64))[0]
    assert first.words[0].word == "cat"
    assert first.purity == pytest.approx(0.75)
    assert first.elsewhere == pytest.approx(0.25)


def test_two_words_that_belong_together_are_one():
    found = words("teddy,bear,teddy bear", "teddy,bear,teddy bear", "cat", "cat")
    assert str(name_groups(found, np.array([0, 0, 1, 1]), np.zeros(2, np.int64))[0]) == "teddy bear"


def test_groups_without_words_have_no_name():
    found = words("cat", "")
    names = name_groups(found, np.array([0, 1]), np.zeros(2, np.int64))
    assert names[1] == Name()
    assert str(names[1]) == ""
    assert names[1].purity == 0.0


def test_only_wanted_groups_are_named_and_items_without_a_group_are_left_out():
    found = words("cat", "dog", "cow", "cat")
    every = name_groups(found, np.array([0, 1, 2, -1]), np.zeros(3, np.int64))
    some = name_groups(found, np.array([0, 1, 2, -1]), np.zeros(3, np.int64), np.array([2, 0]))
    assert some == [every[2], every[0]]
