"""Ctrl-C, SIGTERM and SIGHUP during an addition: what is encoded is kept, and the same command adds the rest."""

import io
import os
import signal
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from fakes import TinyEncoder, tiny_model
from processes import Other, Talk, other

from genius import Index
from genius.cli.app import main
from genius.encoders.base import Prepared, Vectors
from genius.index import ingest
from genius.model.genius import Genius

ITEMS, BATCH = 60, 8
ENCODE = TinyEncoder.encode


def named_model() -> Genius:
    """A model that the command can load by its name."""
    model = tiny_model()
    model.source = "tiny"
    return model


def genius(talk: Talk, seconds: float, commit_seconds: float, arguments: list[str]) -> tuple[int, int, str]:
    """`genius` with a tiny model that says when it encodes a batch, and waits so that a signal comes in between.

    Returns the exit status, the number of encoded items, and what was printed.
    """
    count, printed = 0, io.StringIO()

    def encode(self: TinyEncoder, inputs: Sequence[Prepared], progress: bool = False) -> Vectors:
        nonlocal count
        time.sleep(seconds)
        count += len(inputs)
        talk.say(len(inputs))
        return ENCODE(self, inputs)

    TinyEncoder.encode = encode  # type: ignore[method-assign]
    Genius.from_pretrained = lambda *_, **__: named_model()  # type: ignore[assignment]
    ingest.BATCH, ingest.COMMIT_SECONDS = BATCH, commit_seconds
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite that runs in the background has them ignored
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    talk.say(os.getpid())
    with redirect_stdout(printed), redirect_stderr(printed), pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code, count, " ".join(printed.getvalue().split())  # type: ignore[return-value]


def finish(process: Other) -> tuple[int, int, str]:
    """What `genius` returned."""
    while not isinstance(heard := process.hear(), tuple):
        pass
    assert "Traceback" not in heard[2]
    return heard


def run(*arguments: object) -> tuple[int, int, str]:
    with other(genius, 0.0, 30.0, [str(one) for one in arguments]) as process:
        return finish(process)


def interrupted(number: signal.Signals, *arguments: object, batches: int = 3, **options: Any) -> tuple[int, int, str]:
    """Send a signal when this many batches are encoded."""
    with other(genius, 0.3, options.get("commit_seconds", 30.0), [str(one) for one in arguments]) as process:
        pid = process.hear()
        for _ in range(batches):
            assert process.hear() == BATCH
        os.kill(pid, number)
        return (-number, 0, "") if number == signal.SIGKILL else finish(process)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "texts.csv"
    file.write_text("id,text\n" + "".join(f"{n},text number {n}\n" for n in range(ITEMS)))
    return file


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("create", signal.SIGINT),
        ("create", signal.SIGTERM),
        ("create", signal.SIGHUP),
        ("add", signal.SIGTERM),
        ("upsert", signal.SIGINT),
    ],
)
def test_the_same_command_continues(tmp_path: Path, source: Path, command: str, number: signal.Signals) -> None:
    path = tmp_path / "texts.genius"
    if command != "create":
        Index.create(path, named_model())
    status, count, messages = interrupted(number, "index", command, path, source)
    kept = len(Index.open(path, tiny_model()))
    assert status == 128 + number
    assert 2 * BATCH <= kept <= count < ITEMS  # a batch that is not complete is not kept
    assert f"holds {kept} items;" in messages
    assert f"/{ITEMS}" in messages  # the progress bar has a total before all items are read
    assert "the same command adds the rest" in messages

    status, again, messages = run("index", command, path, source)
    assert status == 0, messages
    assert again == ITEMS - kept  # nothing is encoded twice
    assert len(Index.open(path, tiny_model())) == ITEMS
    if command == "create":
        assert f"was interrupted at {kept} items" in messages
        status, _, messages = run("index", "create", path, source)
        assert status == 1  # now it is complete
        assert "it is an index" in messages
        assert f"genius index add {path} {source}" in messages


def test_a_killed_creation_has_committed_by_time_and_continues(tmp_path: Path, source: Path) -> None:
    path = tmp_path / "texts.genius"
    interrupted(signal.SIGKILL, "index", "create", path, source, commit_seconds=0.0)
    kept = len(Index.open(path, tiny_model()))
    assert kept >= 2 * BATCH
    assert Index.open(path, tiny_model()).info().unfinished == (str(source),)
    for command in ("info", "verify"):
        status, _, messages = run("index", command, path)
        assert status == 0
        assert f"The creation from {source} was not completed." in messages
    status, again, _ = run("index", "create", path, source)
    assert (status, again) == (0, ITEMS - kept)
    assert "not completed" not in run("index", "verify", path)[2]


def test_an_unfinished_index_is_not_mixed_with_another_source(tmp_path: Path, source: Path) -> None:
    path, other = tmp_path / "texts.genius", tmp_path / "other.csv"
    other.write_text("id,text\na,another\n")
    interrupted(signal.SIGINT, "index", "create", path, source, batches=1)
    for arguments, said in (((path, other), "its creation from"), ((path, source, "--codes-only"), "other options")):
        status, again, messages = run("index", "create", *arguments)
        assert (status, again) == (1, 0)
        assert said in messages
        assert "delete the folder to start over" in messages
