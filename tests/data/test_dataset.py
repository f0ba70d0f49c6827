"""Items and pairs become a benchmark that passes the check: no item in two splits, nothing lost without a word."""

import csv
from collections import defaultdict
from itertools import product
from pathlib import Path

import pytest
from fakes import draw_image
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from genius.data.dataset import DatasetReport, make_dataset
from genius.data.items import Item, Query
from genius.data.mbeir import TASKS, Benchmark, MBQuery
from genius.data.mbeir_check import check
from genius.data.pairs import Pair
from genius.data.prompts import PROMPTS
from genius.errors import BadData

COLOURS = [(r, g, b) for r, g, b in product((0, 90, 180), (0, 120, 240), (10, 130, 250))]


def draw_photos(folder: Path, count: int = 20) -> Path:
    """Images of one colour each: 00.png, 01.png ..."""
    folder.mkdir()
    for number, colour in enumerate(COLOURS[:count]):
        draw_image("#{:02x}{:02x}{:02x}".format(*colour)).save(folder / f"{number:02}.png")
    return folder


def queries(root: Path) -> dict[tuple[str, int], list[MBQuery]]:
    """The queries of each split and task, after a check of all files."""
    found = check(root, own=True)
    assert found.whole, (found.missing, found.damaged)
    bench = Benchmark(root)
    return {(s, task.task_id): bench.queries(task, s) for s in bench.splits() for task in bench.tasks(s)}


def dids(root: Path, split: str) -> set[str]:
    return {candidate.did for candidate in Benchmark(root).global_pool(split)}


def contents(root: Path, split: str) -> set[tuple[str | None, str | None]]:
    return {(candidate.text, candidate.image_path) for candidate in Benchmark(root).global_pool(split)}


def assert_nothing_leaks(root: Path) -> None:
    for one, other in (("train", "val"), ("train", "test"), ("val", "test")):
        assert not dids(root, one) & dids(root, other)
        assert not contents(root, one) & contents(root, other)


def ids(root: Path) -> dict[str, set[str]]:
    """did -> item ids."""
    found = defaultdict(set)
    with open(root / "items.csv", newline="") as file:
        for row in csv.DictReader(file):
            found[row["did"]].add(row["id"])
    return found


def test_captions_ask_for_their_images_and_images_for_their_captions(tmp_path: Path) -> None:
    photos = draw_photos(tmp_path / "photos")
    rows = [f"{n:02}.png,caption {place} of {n:02}" for n in range(20) for place in range(2)]
    (tmp_path / "captions.csv").write_text("image,caption\n" + "\n".join(rows) + "\n")
    out = tmp_path / "out"
    report = make_dataset(out, photos, tmp_path / "captions.csv", both_ways=True)
    found = queries(out)
    assert {key: len(of_task) for key, of_task in found.items()} == {
        **{("train", 0): 32, ("val", 0): 4, ("test", 0): 4},
        **{("train", 3): 16, ("val", 3): 2, ("test", 3): 2},
    }
    assert_nothing_leaks(out)
    names = ids(out)
    for (split, task), of_task in found.items():
        pool = {one.did: one for one in Benchmark(out).global_pool(split)}
        for query in of_task:
            if task == 0:
                (did,) = query.positives
                assert query.text is not None
                assert names[did] == {query.text[-2:] + ".png"}
            else:
                (id,) = next(names[did] for did, one in pool.items() if one.image_path == query.image_path)
                assert [pool[did].text for did in query.positives] == [f"caption {n} of {id[:2]}" for n in range(2)]
    assert [(row.split, row.task.task_id, row.queries, row.candidates) for row in report.rows] == [
        ("train", 0, 32, 16),
        ("train", 3, 16, 32),
        ("val", 0, 4, 2),
        ("val", 3, 2, 4),
        ("test", 0, 4, 2),
        ("test", 3, 2, 4),
    ]
    assert not report.bad
    qids = [query.qid for of_task in found.values() for query in of_task]
    assert len(qids) == len(set(qids))
    rows_of_file = Benchmark(out).instructions
    assert [row.prompts for row in rows_of_file] == [PROMPTS[0], PROMPTS[3]]
    assert {row.dataset_id for row in rows_of_file} == {report.dataset_id}


def test_captions_beside_the_images_need_no_table(tmp_path: Path) -> None:
    photos = draw_photos(tmp_path / "photos")
    for n in range(18):
        (photos / f"{n:02}.txt").write_text(f"photo {n:02}")
    (photos / "notes.txt").write_text("no caption")
    make_dataset(tmp_path / "out", photos)
    found = queries(tmp_path / "out")
    assert {task for _, task in found} == {0}
    assert sum(map(len, found.values())) == 18
    assert sum(len(dids(tmp_path / "out", split)) for split in ("train", "val", "test")) == 21
    images = [one for split in ("train", "val", "test") for one in Benchmark(tmp_path / "out").global_pool(split)]
    assert [one.text for one in images if one.image_path is None] == ["no caption"]
    assert not [one for one in images if one.image_path and one.text]


def test_every_task_is_found_from_the_contents(tmp_path: Path) -> None:
    photos = draw_photos(tmp_path / "photos", 27)
    images = sorted(photos.iterdir())
    items = [Item(f"i{n}", image=path) for n, path in enumerate(images[:9])]
    items += [Item(f"t{n}", text=f"text {n}") for n in range(9)]
    items += [Item(f"b{n}", text=f"both {n}", image=path) for n, path in enumerate(images[9:18])]
    pairs = []
    for n, target in product(range(9), "itb"):
        image = images[18 + n]
        pairs += [Pair(Query(f"{target} {n}"), f"{target}{n}"), Pair(Query(f"as {target} {n}", image), f"{target}{n}")]
        pairs += [Pair(Query(image=image), f"{target}{n}", place=f"row {n}")]
    report = make_dataset(tmp_path / "out", items, pairs)
    found = queries(tmp_path / "out")
    assert {task for _, task in found} == TASKS.keys()
    assert {split for split, _ in found} == {"train", "val", "test"}
    assert len(found) == 24
    assert [(bad.id, "no task" in bad.reason) for bad in report.bad] == [(f"row {n}", True) for n in range(9)]
    for (_, task), of_task in found.items():
        assert {query.modality for query in of_task} == {TASKS[task][0]}


def test_clicks_of_a_log_add_up(tmp_path: Path) -> None:
    items = [Item(f"s{n}", text=f"shoe {n}") for n in range(10)]
    pairs = [Pair(Query(f"want  {n}"), f"s{n}") for n in range(10) for _ in range(2)]
    pairs += [Pair(Query("WANT 3"), "s3", clicks=4), Pair(Query("want 4"), "s5"), Pair(Query("want 6"), "s6", clicks=0)]
    report = make_dataset(tmp_path / "out", items, pairs, min_clicks=2)
    asked = {query.text: query.positives for of_task in queries(tmp_path / "out").values() for query in of_task}
    assert sorted(map(str, asked)) == [f"want {n}" for n in range(10)]
    assert all(len(positives) == 1 for positives in asked.values())
    assert report.few_clicks == 1


def test_bad_items_and_rows_are_reported_and_the_rest_is_used(tmp_path: Path) -> None:
    photos = draw_photos(tmp_path / "photos")
    (photos / "broken.png").write_bytes(b"no image")
    rows = [f"{n:02}.png,photo {n}" for n in range(20)]
    rows[4:4] = ["lost.png,a lost one", "00.png,", "broken.png,a broken one"]
    (tmp_path / "captions.csv").write_text("image,caption\n" + "\n".join(rows) + "\n")
    report = make_dataset(tmp_path / "out", photos, tmp_path / "captions.csv")
    assert [bad.id for bad in report.bad] == [
        "broken.png",
        "captions.csv, row 6",
        "captions.csv, row 7",
        "captions.csv, row 8",
    ]
    assert "'lost.png'" in report.bad[1].reason
    assert sum(map(len, queries(tmp_path / "out").values())) == 20


def test_items_are_found_by_file_name_if_only_one_has_it(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    photos = draw_photos(tmp_path / "in/photos")
    (photos / "more").mkdir()
    (photos / "19.png").rename(photos / "more/18.png")
    pairs = [
        Pair(Query(f"photo {n}"), name) for n, name in enumerate(["00.png", "01", "photos/02.png", "./photos/03.png"])
    ]
    report = make_dataset(tmp_path / "out", tmp_path / "in", [*pairs, Pair(Query("which"), "18.png")])
    assert sum(map(len, queries(tmp_path / "out").values())) == 4
    (bad,) = report.bad
    assert "several items have this file name" in bad.reason


def test_identical_items_are_one_candidate_with_the_relevance_of_all(tmp_path: Path) -> None:
    items = [Item(f"{copy}{n}", text=f"text {n}") for n in range(10) for copy in "ab"]
    items.append(Item("a1", text="another text"))
    report = make_dataset(tmp_path / "out", items, [Pair(Query(f"q {n}"), f"b{n}") for n in range(10)])
    assert report.merged == 10
    assert sum(report.candidates.values()) == 10
    assert sorted(map(sorted, ids(tmp_path / "out").values())) == [[f"a{n}", f"b{n}"] for n in range(10)]
    (bad,) = report.bad
    assert (bad.id, "same id" in bad.reason) == ("a1", True)


def test_a_query_of_many_items_is_in_the_splits_of_its_items(tmp_path: Path) -> None:
    items = [Item(f"{n}", text=f"text {n}") for n in range(40)]
    pairs = [Pair(Query(f"q {n}"), f"{n}") for n in range(40)] + [Pair(Query("all"), f"{n}") for n in range(40)]
    report = make_dataset(tmp_path / "out", items, pairs, both_ways=True)
    found = queries(tmp_path / "out")
    for split in ("train", "val", "test"):
        (query,) = [query for query in found[split, 1] if query.text == "all"]
        assert set(query.positives) == dids(tmp_path / "out", split) & ids(tmp_path / "out").keys()
    assert report.divided == 1
    assert report.one_way == 8  # "all" as an item is in train
    assert_nothing_leaks(tmp_path / "out")


def test_a_copy_of_an_image_with_another_text_is_in_the_same_split(tmp_path: Path) -> None:
    images = sorted(draw_photos(tmp_path / "photos").iterdir())
    items = [Item(f"{kind}{n}", text=kind, image=path) for n, path in enumerate(images) for kind in ("old", "new")]
    make_dataset(tmp_path / "out", items, [Pair(Query(f"q {item.id}"), item.id) for item in items], val=0.3, test=0.3)
    paths = [{one.image_path for one in Benchmark(tmp_path / "out").global_pool(s)} for s in ("train", "val", "test")]
    assert sum(map(len, paths)) == len(set.union(*paths)) == 20


@given(
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 14), st.integers(0, 2)), min_size=1, max_size=40),
    st.booleans(),
    st.integers(0, 3),
)
@settings(max_examples=30, deadline=None)
def test_no_pair_is_lost_and_no_item_leaks(
    tmp_path_factory: pytest.TempPathFactory, given: list[tuple[int, int, int]], both_ways: bool, seed: int
) -> None:
    out = tmp_path_factory.mktemp("any") / "out"
    items = [Item(f"{n}", text=f"text {n}") for n in range(15)]
    pairs = [Pair(Query(f"q {q}"), f"{n}", clicks) for q, n, clicks in given]
    wanted = {(f"q {q}", f"{n}") for q, n, _ in given if sum(c for a, b, c in given if (a, b) == (q, n)) >= 1}
    if not wanted:
        with pytest.raises(BadData, match="no query with a relevant item"):
            make_dataset(out, items, pairs)
        return
    make_dataset(out, items, pairs, both_ways=both_ways, seed=seed, val=0.2, test=0.2)
    names = ids(out)
    found = {
        (query.text, id)
        for of_task in queries(out).values()
        for query in of_task
        for did in query.positives
        for id in names.get(did, ())
        if str(query.text).startswith("q ")
    }
    assert found == wanted
    pools = [dids(out, split) for split in ("train", "val", "test") if (out / "query" / split).exists()]
    assert sum(map(len, pools)) == len(set().union(*pools))


def report_of(folder: Path, **options: object) -> DatasetReport:
    items = [Item(f"{n}", text=f"text {n}") for n in range(20)]
    return make_dataset(folder, items, [Pair(Query(f"q {n}"), f"{n}") for n in range(20)], **options)  # type: ignore[arg-type]


def test_the_seed_decides_and_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    reports = [report_of(tmp_path / name, seed=seed, name="x") for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    pools = [dids(tmp_path / name, "test") for name in "abc"]
    assert pools[0] == pools[1] != pools[2]
    assert report_of(tmp_path / "d", seed=1, name="x", dry_run=True) == reports[0]
    assert not (tmp_path / "d").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


def test_a_share_of_zero_leaves_a_split_out(tmp_path: Path) -> None:
    report = report_of(tmp_path / "out", val=0, test=0.5)
    assert report.candidates == {"train": 10, "test": 10}
    assert Benchmark(tmp_path / "out").splits() == ["test", "train"]
    assert not report.missing


def test_a_task_with_too_few_items_is_named(tmp_path: Path) -> None:
    report = make_dataset(tmp_path / "out", [Item("a", "x"), Item("b", "y")], [Pair(Query("q"), "a")], name="few")
    assert report.missing == [("val", "few_task1"), ("test", "few_task1")]


@pytest.mark.parametrize(
    ("name", "plain"),
    [("My Photos!", "my_photos"), ("a_task3", "a_3"), ("Fotos à la carte", "fotos_la_carte"), ("猫", "dataset")],
)
def test_names_fit_into_file_names(tmp_path: Path, name: str, plain: str) -> None:
    assert report_of(tmp_path / name).name == plain
    assert {task.dataset for task in Benchmark(tmp_path / name).tasks("test")} == {plain}


def test_what_stops_it_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(BadData, match="exists already"):
        report_of(tmp_path / "full")
    with pytest.raises(BadData, match="leave nothing for train"):
        report_of(tmp_path / "out", val=0.5, test=0.5)
    with pytest.raises(BadData, match=r"no query with a relevant item.*no item 'b'"):
        make_dataset(tmp_path / "out", [Item("a", "x")], [Pair(Query("q"), "b")])
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


def test_images_are_linked_so_that_they_take_no_space(tmp_path: Path) -> None:
    photos = draw_photos(tmp_path / "photos")
    make_dataset(tmp_path / "out", photos, [Pair(Query("first"), "00.png")])
    made = list((tmp_path / "out/images").rglob("*.png"))
    assert len(made) == 20
    assert {path.stat().st_ino for path in made} == {path.stat().st_ino for path in photos.iterdir()}


@pytest.mark.slow
def test_a_model_is_trained_and_evaluated_on_it(tmp_path: Path) -> None:
    from genius.evaluation.evaluate import evaluate
    from genius.model.genius import Genius
    from genius.train.run import train
    from tests.train.test_run import CONFIG

    photos = draw_photos(tmp_path / "photos")
    pairs = [Pair(Query(f"colour {n}"), f"{n:02}.png") for n in range(20)]
    make_dataset(tmp_path / "out", photos, pairs, both_ways=True, val=0.2, test=0.2)
    train([tmp_path / "out"], tmp_path / "model", CONFIG, console=Console(quiet=True))
    model = Genius.from_pretrained(str(tmp_path / "model"))
    results = evaluate(model, Benchmark(tmp_path / "out"), "test", console=Console(quiet=True))
    assert {result.task for result in results} >= {"out_task0", "out_task3"}
