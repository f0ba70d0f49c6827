"""The check of a downloaded M-BEIR finds what is missing, damaged or too few, and nothing else."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_benchmark import DATASET, write_tiny_benchmark
from typer.testing import CliRunner

from genius.cli.mbeir import mbeir_app
from genius.data import mbeir_check
from genius.data.mbeir import TASKS, Benchmark, Task
from genius.data.mbeir_check import PUBLISHED, PublishedCounts, check, fits
from genius.errors import BadData

COUNTS = {"train": 20, "val": 6, "test": 6}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small benchmark for whose counts the published ones are taken; its training queries are in one file."""
    write_tiny_benchmark(tmp_path)
    small = PublishedCounts(
        {split: f"{n / 1000:.3f}K" for split, n in COUNTS.items()}, dict.fromkeys(COUNTS, 1.0), "0.006K"
    )
    monkeypatch.setattr(mbeir_check, "PUBLISHED", {Task(DATASET, id): small for id in TASKS})
    monkeypatch.setattr(mbeir_check, "GLOBAL_COUNT", "0.018K")
    files = sorted((tmp_path / "query/train").glob("*.jsonl"))
    together = b"".join(file.read_bytes() for file in files)
    for file in files:
        file.unlink()
    (tmp_path / f"query/train/mbeir_{DATASET}_train.jsonl").write_bytes(together)
    return tmp_path


def edit(path: Path, change: Callable[[list[str]], list[str]]) -> None:
    path.write_text("".join(change(path.read_text().splitlines(keepends=True))))


def test_the_published_table_is_that_of_the_supplement() -> None:
    assert len(PUBLISHED) == 16
    assert PUBLISHED[Task("infoseek", 8)].relevant == {"train": 9.1, "val": 7.5, "test": 7.5}
    for split, total in (("train", 1.1e6), ("val", 182e3), ("test", 190e3)):
        found = sum(float(row.queries[split][:-1]) * 1000 for row in PUBLISHED.values())
        assert found == pytest.approx(total, rel=0.06)
    candidates = sum(float(r.candidates[:-1]) * {"K": 1e3, "M": 1e6}[r.candidates[-1]] for r in PUBLISHED.values())
    assert candidates == pytest.approx(5.6e6, rel=0.01)


@pytest.mark.parametrize(
    ("count", "figure", "right"),
    [
        (99_400, "99K", True),
        (98_499, "99K", False),
        (99_999, "99K", True),  # cut off, not rounded
        (100_000, "99K", False),
        (24_809, "24.8K", True),
        (25_000, "24.8K", False),
        (1_047_067, "1M", True),
        (400_000, "1M", False),
    ],
)
def test_rounded_figures(count: int, figure: str, right: bool) -> None:
    assert fits(count, figure) == right


def test_figures_of_several_tasks_are_summed() -> None:
    assert fits(213_500, "100K", "113K")
    assert not fits(216_000, "100K", "113K")


def test_a_whole_benchmark_is_whole(root: Path) -> None:
    found = check(root)
    assert found.whole, found
    assert found.global_pools == {"train": 60, "val": 18, "test": 18}
    assert {(row.split, row.queries) for row in found.rows} == set(COUNTS.items())
    assert len(found.rows) == 3 * len(TASKS)
    assert {row.candidates for row in found.rows if row.split != "train"} == {6}
    for row in found.rows:
        queries = Benchmark(root).queries(row.task, row.split)
        assert row.relevant == pytest.approx(sum(len(query.positives) for query in queries) / len(queries))
    assert found.images == 32


def test_missing_files_are_named(root: Path) -> None:
    gone = [
        "instructions/query_instructions.tsv",
        "cand_pool/global/mbeir_union_val_cand_pool.jsonl",
        "qrels/test/mbeir_shapes_task0_test_qrels.txt",
        "query/test/mbeir_shapes_task1_test.jsonl",
    ]
    for name in gone:
        (root / name).unlink()
    (root / "cand_pool/local/mbeir_shapes_task3_val_cand_pool.jsonl").unlink()
    found = check(root)
    assert sorted(found.missing) == sorted([*gone, "cand_pool/local/mbeir_shapes_task3_cand_pool.jsonl"])
    assert not found.damaged


def test_a_task_of_which_there_is_nothing_is_one_line(root: Path) -> None:
    for file in root.rglob("*shapes_task4_test*"):
        file.unlink()
    found = check(root, splits=["test"])
    assert found.absent == [("test", "shapes_task4")]
    assert not found.missing


def test_a_file_that_is_cut_off_is_named_with_its_line(root: Path) -> None:
    name = "cand_pool/local/mbeir_shapes_task0_test_cand_pool.jsonl"
    content = (root / name).read_bytes()
    (root / name).write_bytes(content[:-20])
    found = check(root, splits=["test"])
    assert any(sentence.startswith(f"{name}, line 6: this is not JSON") for sentence in found.damaged)
    assert any("1 relevant candidate not in the pool of the task" in sentence for sentence in found.damaged)


def test_a_pointer_instead_of_the_data_is_recognised(root: Path) -> None:
    name = "cand_pool/global/mbeir_union_test_cand_pool.jsonl"
    (root / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    found = check(root, splits=["test"])
    assert any("Git LFS pointer" in sentence and "(3 such lines)" in sentence for sentence in found.damaged)


def test_ids_that_come_twice(root: Path) -> None:
    name = "cand_pool/local/mbeir_shapes_task0_test_cand_pool.jsonl"
    edit(root / name, lambda lines: lines[:-1] + lines[:1])
    assert any(s.startswith(f"{name}: 1 repeated id.") for s in check(root, splits=["test"]).damaged)


def test_queries_and_qrels_that_do_not_belong_together(root: Path) -> None:
    edit(root / "qrels/val/mbeir_shapes_task0_val_qrels.txt", lambda lines: [*lines[1:], "9:999 0 x 1 0\n"])
    damaged = check(root, splits=["val"]).damaged
    assert any("1 query not in it" in sentence for sentence in damaged)
    assert any("1 query in it but not in the query file" in sentence for sentence in damaged)


def test_right_candidates_that_no_pool_holds(root: Path) -> None:
    edit(root / "cand_pool/global/mbeir_union_train_cand_pool.jsonl", lambda lines: lines[1:])
    (sentence,) = check(root, splits=["train"]).damaged
    assert "1 relevant candidate not in the global pool" in sentence


def test_counts_that_are_not_the_published_ones(root: Path) -> None:
    edit(root / "query/val/mbeir_shapes_task0_val.jsonl", lambda lines: lines[:3])
    edit(root / "qrels/val/mbeir_shapes_task0_val_qrels.txt", lambda lines: lines[:3])
    found = check(root, splits=["val"])
    assert found.differing == ["shapes_task0, val: 3 queries; the paper has 0.006K."]
    assert not found.damaged


def test_training_queries_that_do_not_say_their_task_are_counted_together(root: Path) -> None:
    def without_task(lines: list[str]) -> list[str]:
        rows = [json.loads(line) for line in lines]
        return [json.dumps({key: value for key, value in row.items() if key != "task_id"}) + "\n" for row in rows]

    edit(root / f"query/train/mbeir_{DATASET}_train.jsonl", without_task)
    found = check(root, splits=["train"])
    assert found.whole
    assert {row.queries for row in found.rows} == {None}
    edit(root / f"query/train/mbeir_{DATASET}_train.jsonl", lambda lines: lines[:50])
    (sentence,) = check(root, splits=["train"]).differing
    assert sentence.startswith("shapes, train, all tasks: 50 queries")


def test_images_that_cannot_be_opened(root: Path) -> None:
    for image in root.rglob("*.png"):
        image.write_bytes(b"")
    damaged = check(root, splits=["test"], tasks=["shapes_task0"]).damaged
    assert any("cannot open 6 of 6 images" in sentence for sentence in damaged)
    assert check(root, splits=["test"], images=0).whole


def test_only_some_tasks(root: Path) -> None:
    assert {row.task.name for row in check(root, tasks=["shapes_task0", "shapes_task8"]).rows} == {
        "shapes_task0",
        "shapes_task8",
    }
    with pytest.raises(BadData, match="No task begins with nothing"):
        check(root, tasks=["nothing"])
    with pytest.raises(BadData, match="no split 'dev'"):
        check(root, splits=["dev"])


def test_the_command(root: Path) -> None:
    run = CliRunner().invoke(mbeir_app, ["check", str(root)])
    assert run.exit_code == 0
    assert "shapes_task8" in run.stdout
    assert "(0.006K)" in run.stdout
    assert "have the published counts" in run.stdout
    (root / "query/test/mbeir_shapes_task1_test.jsonl").unlink()
    run = CliRunner().invoke(mbeir_app, ["check", str(root), "--splits", "test"])
    assert run.exit_code == 1
    assert "Missing: query/test/mbeir_shapes_task1_test.jsonl" in run.output
    run = CliRunner().invoke(mbeir_app, ["check", str(root), "--splits", "test", "--json"])
    assert run.exit_code == 1
    assert json.loads(run.stdout)["missing"] == ["query/test/mbeir_shapes_task1_test.jsonl"]


class TestOwn:
    """A benchmark of one's own has other data sets, tasks and counts, and need not have a global pool or qrels."""

    @pytest.fixture
    def own(self, tmp_path: Path) -> Path:
        write_tiny_benchmark(tmp_path, tasks=(0, 3))
        for file in [*(tmp_path / "qrels").rglob("*.txt"), *(tmp_path / "cand_pool/global").glob("*test*")]:
            file.unlink()
        for folder in ("query", "qrels"):
            shutil.rmtree(tmp_path / folder / "val")
        return tmp_path

    def test_it_is_whole(self, own: Path) -> None:
        found = check(own, own=True)
        assert found.whole, (found.absent, found.missing, found.damaged, found.differing)
        assert [(row.split, row.task.task_id) for row in found.rows] == [
            ("train", 0), ("train", 3), ("test", 0), ("test", 3),
        ]  # fmt: skip
        assert not check(own).whole  # it is not M-BEIR

    def test_what_is_wrong_is_found(self, own: Path) -> None:
        edit(own / f"query/test/mbeir_{DATASET}_task0_test.jsonl", lambda lines: [*lines, "{"])
        edit(own / f"cand_pool/local/mbeir_{DATASET}_task3_test_cand_pool.jsonl", lambda lines: lines[1:])
        (own / "cand_pool/global/mbeir_union_train_cand_pool.jsonl").unlink()
        found = check(own, own=True)
        assert not found.absent
        assert not found.differing
        assert found.missing == ["cand_pool/global/mbeir_union_train_cand_pool.jsonl (or a local pool for each task)"]
        assert len(found.damaged) == 2
        assert "Download" not in "".join(found.damaged)

    def test_the_command(self, own: Path) -> None:
        result = CliRunner().invoke(mbeir_app, ["check", str(own), "--own"])
        assert result.exit_code == 0, result.output
        assert "All files are complete." in result.output
        assert "Table 1" not in result.output
        result = CliRunner().invoke(mbeir_app, ["check", str(own), "--own", "--splits", "val"])
        assert isinstance(result.exception, BadData)
        assert "it has train, test" in str(result.exception)
