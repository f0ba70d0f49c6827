"""What may stand in a filter, and what is refused with a sentence."""

import pytest

from genius.errors import GeniusError
from genius.index.filters import (
    MAX_LENGTH,
    MAX_OPERATIONS,
    MAX_WILDCARDS,
    check_filter,
    filter_error,
    named_columns,
)


@pytest.mark.parametrize(
    "where",
    [
        "lang = 'en' AND year >= 2000",
        "year BETWEEN 1990 AND 2000 OR year IS NULL",
        "id IN ('a', 'it''s', \"quoted\", '-- no comment; repeat(1)')",
        "NOT (lower(lang) LIKE 'e%' AND `étage 2` <> -1.5e-3)",
        "try_cast(price AS double) < .5",
        "CASE WHEN ok THEN year > 1 ELSE (year < 1) END",
        "größe != 3",
        f"year IN ({','.join(['1'] * 4000)})",
        f"year IN ({', '.join(['-1'] * 1000)})",
        " AND ".join(["a = 1"] * (MAX_OPERATIONS // 3)),
        "cast(year AS int unsigned) = 5 OR day = date '2020-01-01' OR NOT (ok) AND year IS NOT DISTINCT FROM -5",
    ],
)
def test_filters_are_let_through(where):
    check_filter(where, hidden=["codes"])


@pytest.mark.parametrize(
    ("where", "sentence"),
    [
        ("", "is not a filter"),
        (" \n", "is not a filter"),
        (5, "5 is not a filter"),
        ("a = '" + "x" * MAX_LENGTH + "'", "10,006 characters"),
        ("repeat('x', 1000000000) = 'a'", "no function repeat; there are abs, cast"),
        ("repeat ('x', 1000000000) = 'a'", "no function repeat"),
        ("`repeat`('x', 1000000000) = 'a'", "no function `repeat`"),
        ("'repeat'('x', 1) = 'a'", "no function 'repeat'"),
        ("repeat/**/('x', 1) = 'a'", "'/' at character 7"),
        ("repeat--\n('x', 1) = 'a'", "'-' at character 7"),
        ("read_csv('/etc/passwd') = 'a'", "no function read_csv"),
        ("exists (select 1)", "no function exists"),
        ("id = 'a'; DROP TABLE items", "';' at character 9"),
        ("year + 1 > 2", "'\\+' at character 6"),
        ("text || text = 'a'", "'|' at character 6"),
        ("id = 'open", '"\'" at character 6'),
        ("id = E'a\\'b'", "must be a space before"),
        ("year" + "-1" * 400 + " > 0", "402 names and operators; at most 300"),
        ("year IS NULL" + " IS NULL" * 200, "names and operators"),
        ("text LIKE '" + "%a" * (MAX_WILDCARDS + 1) + "'", "at most 100 of the characters % and _"),
        ("codes IS NULL", "no field codes"),
        ("`Codes` IS NULL", "no field `Codes`"),
        ("_rowid = 0", "no field _rowid"),
        ("lang = 'en' year = 2000", "no operator such as = or AND before year"),  # Lance would pass over the rest
        ("lang = 'en' LIMIT 1", "before LIMIT"),
        ("lang = 'en' 'de'", "before 'de'"),
        ("year 5", "before 5"),
        ("year = 5 6", "before 6"),
        ("(year = 5) (year = 6)", "before \\("),
        ("lang IS NULL true", "before true"),
    ],
)
def test_anything_else_is_refused(where, sentence):
    with pytest.raises(GeniusError, match=sentence):
        check_filter(where, hidden=["codes"])


def test_what_lance_says_becomes_a_sentence():
    error = ValueError(
        "Invalid user input: No field named b. Valid fields are _rowid., /home/x/lance/scanner.rs:839:33"
    )
    assert str(filter_error("b = 1", error, {"id": "text", "shoe size": "number"})) == (
        "The filter 'b = 1' cannot be used: there is no field b. The fields of this index are id (text), `shoe size` "
        "(number)."
    )


@pytest.mark.parametrize(
    ("where", "advice"),
    [
        ("lang = New York", "If New York is a value, put quotes around it: 'New York'."),
        ("lang = en-GB", "If en-GB is a value, put quotes around it: 'en-GB'."),
        ("lang IN (en-GB, de)", "If en-GB is a value, put quotes around it: 'en-GB'."),
        ("lang LIKE e%", "If e% is a value, put quotes around it: 'e%'."),
        ("name = O'Brien", "If O'Brien is a value, put quotes around it: 'O''Brien'."),
        ("lang = ‘en’", "Use straight quotes: 'text'."),
    ],
)
def test_unquoted_values_are_recognised(where, advice):
    with pytest.raises(GeniusError) as caught:
        check_filter(where)
    assert advice in str(caught.value)


def test_an_operator_that_is_not_allowed_is_not_taken_for_a_value():
    with pytest.raises(GeniusError) as caught:
        check_filter("lang = 'en' & year")
    assert "put quotes" not in str(caught.value)


def test_the_columns_that_a_filter_names():
    assert named_columns("Lang = 'x' AND `shoe size` > 1", ["lang", "shoe size", "size", "x"]) == [
        "lang",
        "shoe size",
        "x",
    ]
