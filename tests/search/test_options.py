"""Search options: what is refused, and with which sentence."""

import itertools

import numpy as np
import pytest

from genius.errors import GeniusError
from genius.search.options import SearchOptions, search_options


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *itertools.product(["k", "beam", "budget"], [1.5, True, "3", [3], float("nan"), np.float32(2)]),
        *[("k", None), ("beam", None)],  # a budget of None follows the number of items
    ],
)
def test_what_is_no_whole_number_is_refused(name, value):
    with pytest.raises(GeniusError, match=f"{name} is .*; it must be a whole number"):
        SearchOptions(**{name: value})


@pytest.mark.parametrize("name", ["k", "beam", "budget"])
def test_numbers_of_numpy_become_ints(name):
    assert type(getattr(SearchOptions(**{name: np.int64(3)}), name)) is int
    with pytest.raises(GeniusError, match=f"{name} is 0; it must be at least 1"):
        SearchOptions(**{name: np.int64(0)})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ids": "a"}, "ids is the string 'a'"),
        ({"ids": 5}, "list of strings"),
        ({"ids": [1, 2]}, "list of strings"),
        ({"where": 5}, "where is 5; it must be a string"),
        ({"mode": "quick"}, "no search mode 'quick'"),
        ({"target": "image"}, r"target belongs to the query. Write Query\(text=..., target='image'\)"),
        ({"instruction": "Find."}, "instruction belongs to the query"),
        ({"top_k": 3}, "no option 'top_k'. The options are k, mode, beam, budget, where, ids"),
    ],
)
def test_other_options_are_refused(options, sentence):
    with pytest.raises(GeniusError, match=sentence):
        search_options(10, **options)
