"""The emoji benchmark: every task, sound positives, and splits that share nothing."""

import hashlib
from pathlib import Path

import pytest

from genius.data.items import Modality
from genius.data.mbeir import TASKS, Benchmark, Candidate, Task
from genius.demo import collection
from genius.demo.benchmark import DATASET, write_emoji_benchmark

WORDS = (
    "cook",
    "firefighter",
    "mechanic",
    "heart",
    "square",
    "circle",
    "cow",
    "horse",
    "dog",
    "walking",
    "bowl",
    "fruit",
)
SPLITS = ("train", "val", "test")


def write_small_benchmark(root: Path) -> dict[str, int]:
    """The benchmark of some 150 emoji with many variants, and of flags that are drawn alike."""
    flags = {"1f1eb-1f1f7", "1f1f2-1f1eb", "1f1f3-1f1f4", "1f1e7-1f1fb"}
    some = [one for one in collection.list_emoji() if one.key in flags or set(one.name.split()) & set(WORDS)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collection, "list_emoji", lambda: some)
        return write_emoji_benchmark(root)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    root = tmp_path_factory.mktemp("bench")
    counts = write_small_benchmark(root)
    bench = Benchmark(root)
    assert counts == {split: sum(len(bench.queries(t, split)) for t in bench.tasks(split)) for split in SPLITS}
    return bench


@pytest.fixture(scope="module")
def pools(bench: Benchmark) -> dict[str, dict[str, Candidate]]:
    return {split: {one.did: one for one in bench.global_pool(split)} for split in SPLITS}


def test_all_eight_tasks_in_every_split_with_four_prompts(bench: Benchmark) -> None:
    for split in SPLITS:
        assert {task.task_id for task in bench.tasks(split)} == set(TASKS)
    for asked, wanted in TASKS.values():
        assert len(set(bench.prompts(DATASET, asked, wanted))) == 4


def test_positives_are_in_the_pools_and_of_the_wanted_kind(
    bench: Benchmark, pools: dict[str, dict[str, Candidate]]
) -> None:
    for split in SPLITS:
        for task in bench.tasks(split):
            local = {one.did for one in bench.pool(task, split)} if split != "train" else pools[split].keys()
            assert local <= pools[split].keys()
            for query in bench.queries(task, split):
                assert query.positives
                assert set(query.positives) <= local
                assert {pools[split][did].modality for did in query.positives} == {task.target_modality}
                assert bench.qrels(task, split)[query.qid] == set(query.positives)


def test_no_image_is_in_two_splits_or_its_own_answer(bench: Benchmark, pools: dict[str, dict[str, Candidate]]) -> None:
    def digest(path: str) -> bytes:
        return hashlib.sha256((bench.root / path).read_bytes()).digest()

    seen: dict[bytes, str] = {}
    for split in SPLITS:
        paths = {one.image_path for one in pools[split].values() if one.image_path}
        for task in bench.tasks(split):
            for query in bench.queries(task, split):
                if query.image_path:
                    paths.add(query.image_path)
                    answers = {pools[split][did].image_path for did in query.positives}
                    assert query.image_path not in answers
                    if task.task_id == 7:
                        assert digest(query.image_path) not in {digest(path) for path in answers if path}
        for path in paths:
            assert seen.setdefault(digest(path), split) == split


def test_texts_are_in_one_split_but_for_the_groups(pools: dict[str, dict[str, Candidate]]) -> None:
    texts = [{one.text for one in pools[split].values() if one.modality == Modality.TEXT} for split in SPLITS]
    groups = texts[0] & texts[1] & texts[2]
    assert groups
    assert all(", in the group " in str(text) for text in groups)
    assert texts[0] & texts[1] == texts[0] & texts[2] == texts[1] & texts[2] == groups


def test_composed_queries_ask_for_the_variant(bench: Benchmark, pools: dict[str, dict[str, Candidate]]) -> None:
    task = Task(dataset=DATASET, task_id=8)
    by_words = {
        query.text: pools[split][query.positives[0]].text for split in SPLITS for query in bench.queries(task, split)
    }
    assert "dark skin tone" in str(by_words["with dark skin tone"])
    assert "light skin tone" in str(by_words["with light skin tone"])


def test_drawn_alike_counts_as_found(bench: Benchmark) -> None:
    """France and St. Martin have one flag: its image is answered by the names of both."""
    task = Task(dataset=DATASET, task_id=3)
    queries = [query for split in SPLITS for query in bench.queries(task, split)]
    french = [query for query in queries if "1f1eb-1f1f7" in str(query.image_path).lower()]
    assert any(len(query.positives) == 2 for query in french)


def test_the_same_bytes_every_time(bench: Benchmark, tmp_path: Path) -> None:
    write_small_benchmark(tmp_path)
    for path in bench.root.rglob("*.*"):
        assert (tmp_path / path.relative_to(bench.root)).read_bytes() == path.read_bytes()
