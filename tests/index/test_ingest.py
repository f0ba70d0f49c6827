"""When additions commit."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes import tiny_model

from genius import Index, Item
from genius.index import ingest

SOME = [Item(str(n), text=f"number {n}") for n in range(20)]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    monkeypatch.setattr(ingest, "BATCH", 4)
    return Index.create(tmp_path / "index", tiny_model())


def until(number: int, error: type[BaseException]) -> Iterator[Item]:
    yield from SOME[:number]
    raise error("stop")


def test_an_interrupt_commits_what_is_encoded_and_reports_it(index: Index) -> None:
    with pytest.raises(KeyboardInterrupt, match="Interrupted after 8 items, all committed") as caught:
        index.add(until(10, KeyboardInterrupt))
    assert caught.value.report.added == len(index) == 8
    report = index.add(SOME)
    assert (report.unchanged, report.added) == (8, 12)


def test_an_error_of_the_source_loses_nothing_that_is_encoded(index: Index) -> None:
    with pytest.raises(ZeroDivisionError):
        index.upsert(until(10, ZeroDivisionError))
    assert len(index) == 8


def test_an_interrupt_during_a_commit_repeats_it(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    write, calls = ingest.write, []

    def interrupted(*arguments: object) -> None:
        calls.append(1)
        if len(calls) == 1:
            write(*arguments)  # type: ignore[arg-type]
            raise KeyboardInterrupt
        write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(ingest, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        index.add(SOME)
    assert len(index) == len(SOME)
    assert len(calls) == 2


def test_an_error_of_a_commit_is_not_tried_again(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def full(*arguments: object) -> None:
        calls.append(1)
        raise OSError("the disk is full")

    monkeypatch.setattr(ingest, "write", full)
    with pytest.raises(OSError, match="full"):
        index.add(SOME)
    assert len(calls) == 1


def test_slow_additions_commit_by_time(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[list[str]] = []
    monkeypatch.setattr(ingest, "COMMIT_SECONDS", 0.0)
    index.add(SOME, on_commit=commits.append)
    assert [len(ids) for ids in commits] == [4] * 5
    monkeypatch.setattr(ingest, "COMMIT_SECONDS", 30.0)
    index.upsert([Item(item.id, text="new") for item in SOME], on_commit=commits.append)
    assert [len(ids) for ids in commits[5:]] == [20]
