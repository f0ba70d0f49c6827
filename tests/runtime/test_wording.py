"""Numbers with their nouns."""

import pytest

from genius.runtime.wording import counted


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((0, "item"), "0 items"),
        ((1, "item"), "1 item"),
        ((2, "item"), "2 items"),
        ((1234, "item"), "1,234 items"),
        ((1, "query", "queries"), "1 query"),
        ((2, "query", "queries"), "2 queries"),
    ],
)
def test_counted(arguments, expected):
    assert counted(*arguments) == expected
