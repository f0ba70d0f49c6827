"""`genius dataset make` shows what it made and which rows it could not use, and says so by its exit status."""

import json
from pathlib import Path

import pytest

from genius.cli.app import main
from genius.data.mbeir_check import check


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shoes = "".join(f"s{n},shoe number {n}\n" for n in range(20))
    Path("shoes.csv").write_text("id,text\n" + shoes)
    clicks = "".join(f"want {n},s{n},3,2026-01-01\nseldom {n},s{n},1,2026-01-02\n" for n in range(20))
    Path("clicks.csv").write_text("term,sku,clicks,timestamp\n" + clicks + "lost,s99,3,\n")
    return tmp_path


ARGUMENTS = [
    "dataset",
    "make",
    "bench",
    "--items",
    "shoes.csv",
    "--pairs",
    "clicks.csv",
    "--columns",
    "query=term,item=sku",
]


def status(arguments: list[str]) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


def test_a_click_log_becomes_a_benchmark(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status([*ARGUMENTS, "--min-clicks", "2", "--test", "0.2"]) == 2
    shown = capsys.readouterr()
    assert "test: 4 candidates" in shown.out
    assert "20 pairs left out: too few clicks." in shown.out
    assert "Columns without a role: timestamp." in shown.out
    assert "Wrote bench." in shown.out
    assert "1 bad item, not used:" in shown.err
    assert "clicks.csv, row 42: there is no item 's99'" in shown.err
    found = check("bench", own=True)
    assert found.whole
    assert sum(row.queries or 0 for row in found.rows) == 20


def test_json_lists_everything_and_a_dry_run_writes_nothing(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status([*ARGUMENTS, "--dry-run", "--json"]) == 2
    shown = json.loads(capsys.readouterr().out)
    assert not Path("bench").exists()
    assert [bad["id"] for bad in shown["bad"]] == ["clicks.csv, row 42"]
    assert [(row["split"], row["task"], row["queries"]) for row in shown["tasks"]] == [
        ("train", "bench_task1", 32),
        ("val", "bench_task1", 4),
        ("test", "bench_task1", 4),
    ]
    assert shown["candidates"] == {"train": 16, "val": 2, "test": 2}


def test_columns_need_a_role(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status([*ARGUMENTS[:-1], "term"]) == 1
    assert "'term' in --columns is not of the form ROLE=NAME" in capsys.readouterr().err
