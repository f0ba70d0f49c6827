"""Cards on a terminal and in a pipe, and CSV."""

import csv
import io
import re

import pytest
from fakes import draw_image, tiny_model

from genius.cli.app import main
from genius.cli.items import one_line, shorten
from genius.data.items import Item
from genius.data.readers import read_items
from genius.index.index import Index
from genius.model.genius import Genius

LONG_ID = "holiday 2021/lake-constance/" + "_".join(f"IMG{number:05}" for number in range(12)) + ".jpg"
PLACE = "Lake Constance, near the landing stage of the ferry to the island of the flowers"
TEXT = " ".join(f"word{number}" for number in range(100))
CODE = "7" * 90
FILE = "a file with a name of many words, which a terminal of eighty columns would break.png"


@pytest.fixture
def path(tmp_path, monkeypatch):
    def from_pretrained(*_: object, **__: object) -> Genius:
        return tiny_model()

    monkeypatch.setattr(Genius, "from_pretrained", from_pretrained)
    model = tiny_model()
    model.source = "mini"
    index = Index.create(tmp_path / "a.genius", model)
    metadata = {"place": PLACE, "year": 2021, "tags": ["a", "b"], "code": CODE, "zip": "08001", "flag": True}
    file = tmp_path / FILE
    draw_image("red").save(file)
    index.add([Item(LONG_ID, TEXT, file, metadata), Item("t1", "cat \x1b[31m\n number 1", metadata={"zip": "12"})])
    return tmp_path / "a.genius"


@pytest.fixture
def shown(capsys, monkeypatch, path):
    """Runs a command on a terminal of 80 columns, or in a pipe. Returns what it prints, without colours."""
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str, terminal: bool) -> str:
        if terminal:
            monkeypatch.setenv("FORCE_COLOR", "1")
        else:
            monkeypatch.delenv("FORCE_COLOR", raising=False)
        with pytest.raises(SystemExit) as exit:
            main([str(argument) for argument in arguments])
        assert not exit.value.code
        out = capsys.readouterr().out
        return re.sub(r"\x1b\[[0-9;]*m", "", out) if terminal else out

    return run


LISTS = [["search", "PATH", "cat", "-k", "2"], ["index", "get", "PATH", LONG_ID, "t1"], ["index", "filter", "PATH"]]


@pytest.mark.parametrize("command", LISTS)
def test_a_terminal_of_80_columns_shows_every_field(shown, path, command):
    out = shown(*[path if word == "PATH" else word for word in command], terminal=True)
    lines = out.splitlines()
    assert sum(LONG_ID in line for line in lines) == 1  # not broken
    assert PLACE in " ".join(line.strip() for line in lines)
    assert CODE in out
    assert sum(FILE in line for line in lines) == 1
    assert not [line for line in lines if re.search(r"(place|year|tags|code|zip|flag):$", line)]
    for value in ("year: 2021", 'tags: ["a", "b"]', "word1 word2", "cat \ufffd[31m number 1"):
        assert value in " ".join(line.strip() for line in lines)
    assert re.search(r"word\d+ …$", out, re.MULTILINE)
    assert [line for line in lines if len(line) > 80 and not any(long in line for long in (LONG_ID, CODE, FILE))] == []


@pytest.mark.parametrize("command", LISTS)
def test_nothing_is_cut_or_wrapped_in_a_pipe(shown, path, command):
    out = shown(*[path if word == "PATH" else word for word in command], terminal=False)
    assert f"    {TEXT}\n" in out
    assert f"place: {PLACE} · year: 2021" in out
    assert "…" not in out


def test_tables_of_other_commands_are_not_wrapped_in_a_pipe(shown, path):
    facts = {line[:12].strip(): line[12:] for line in shown("index", "info", path, terminal=False).splitlines()}
    assert facts["fields"].count(",") == 4
    assert facts["items"] == "2 (1 text, 1 pair)"
    assert "level of 3 codes, " in facts["IDs"]


@pytest.mark.parametrize("terminal", [True, False])
def test_only_chosen_fields_are_shown(shown, path, terminal):
    out = shown("search", path, "cat", "--fields", "year, zip", terminal=terminal)
    assert "year: 2021 · zip: 08001" in out
    assert "place" not in out


def test_listed_csv_is_read_back_as_the_same_items(shown, path, tmp_path):
    for number, command in enumerate((["index", "filter"], ["index", "get"])):
        ids = [LONG_ID, "t1"] if number else []
        (tmp_path / "out.csv").write_text(shown(*command, path, *ids, "--csv", terminal=False), newline="")
        assert list(read_items(tmp_path / "out.csv")) == list(Index.open(path))


def test_csv_of_hits_has_their_scores_and_codes(shown, path):
    def rows(*options: str) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(shown("search", path, "cat", "--csv", *options, terminal=False))))

    hits = Index.open(path).search("cat")
    assert [row["id"] for row in rows()] == [hit.id for hit in hits]
    assert [float(row["score"]) for row in rows()] == pytest.approx([hit.score for hit in hits])
    assert "codes" not in rows()[0]
    assert [row["codes"] for row in rows("--codes")] == [" ".join(map(str, hit.codes)) for hit in hits]
    assert list(rows("--fields", "year")[0]) == ["score", "modality", "id", "text", "image", "year", "metadata"]


def test_json_and_csv_exclude_each_other(path, capsys):
    for command in (["search", path, "cat"], ["index", "filter", path], ["index", "get", path, "t1"]):
        with pytest.raises(SystemExit) as exit:
            main([*map(str, command), "--json", "--csv"])
        assert exit.value.code == 1
        assert "exclude each other" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("short", "short"),
        ("two words", "two words"),
        ("some words too many", "some words …"),
        ("x" * 20, "x" * 11 + "…"),
    ],
)
def test_a_cut_text_ends_with_an_ellipsis(text, expected):
    assert shorten(text, 13) == expected


def test_no_text_controls_the_terminal():
    assert one_line("a\tb\r\n c\x1b]0;d\x07\x9b") == "a b c\ufffd]0;d\ufffd\ufffd"
