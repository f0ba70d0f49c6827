"""Sentences on a terminal."""

import pytest

from genius.cli.console import complain, say

COMMAND = "genius index restore '/data/a folder with a long name/photos.genius' --version 7"


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")


def test_sentences_are_broken_between_words(terminal, capsys):
    sentence = "Interrupted. photos.genius holds 640 items; the same command adds the rest of the images and texts."
    say(sentence)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(len(line) <= 80 for line in lines)
    assert " ".join(lines) == sentence


def test_indents_are_kept(terminal, capsys):
    complain("  cat.jpg: the image is truncated or damaged (it ends too early). Copy or download it again.")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("  ") and len(line) <= 80 for line in lines)


def test_commands_are_left_whole(terminal, capsys):
    complain(f"The newest version is damaged. Go back to the version before it with: {COMMAND}")
    complain(f"  {COMMAND}")
    assert [line for line in capsys.readouterr().err.splitlines() if "genius" in line] == [COMMAND, f"  {COMMAND}"]


def test_a_pipe_gets_whole_sentences(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    say("word " * 100)
    assert capsys.readouterr().out == "word " * 100 + "\n"
