"""A split as index arrays: every number leads back to the string, image or candidate it stands for."""

import json
from pathlib import Path

import numpy as np
import pytest
from tiny_benchmark import DATASET, prompt, write_tiny_benchmark

from genius.data.items import Modality, Query, clean_text
from genius.data.mbeir import TASKS, Benchmark, Candidate, Task
from genius.data.mbeir_writer import write_global_pool, write_pool, write_queries
from genius.data.splits import SplitData, Vocabulary, read_split
from genius.errors import BadData


@pytest.fixture
def bench(tmp_path: Path) -> Benchmark:
    return write_tiny_benchmark(tmp_path)


def read(bench: Benchmark, split: str = "test") -> tuple[SplitData, Vocabulary, Vocabulary]:
    texts, images = Vocabulary(), Vocabulary()
    return read_split([bench], split, texts, images), texts, images


def named(vocabulary: Vocabulary, number: int) -> str | None:
    return None if number == -1 else vocabulary.names[number]


def test_a_vocabulary_numbers_each_name_once_and_nothing_with_minus_one() -> None:
    words = Vocabulary()
    assert [words.number(w) for w in ("b", "a", "b", None, "", "c", "a")] == [0, 1, 0, -1, -1, 2, 1]
    assert words.names == ["b", "a", "c"]


def test_candidates_are_the_global_pool(bench: Benchmark) -> None:
    data, texts, images = read(bench)
    pool = list(bench.global_pool("test"))
    assert data.dids == [one.did for one in pool]
    for row, one in enumerate(pool):
        assert named(texts, data.text[row]) == (clean_text(one.text) or None)
        assert named(images, data.image[row]) == bench.image(one.image_path)
        assert data.modality[row] == one.modality
    assert len(set(texts.names)) == len(texts.names)
    assert len(images.names) == 6  # an image alone, in a pair and in queries is one image


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_queries_positives_and_pools_lead_back_to_the_files(bench: Benchmark, split: str) -> None:
    data, texts, images = read(bench, split)
    assert [one.task for one in data.tasks] == bench.tasks(split)
    for one in data.tasks:
        queries = bench.queries(one.task, split)
        assert one.qids == [q.qid for q in queries]
        assert len(one) == len(queries)
        for row, query in enumerate(queries):
            assert named(images, one.image[row]) == bench.image(query.image_path)
            assert named(texts, one.text[row]) == bench.query(query).prompt()  # with the first prompt
            assert {data.dids[r] for r in one.positives[row]} == set(query.positives)
        if split == "train":
            assert one.pool is None
        else:
            assert one.pool is not None
            assert [data.dids[r] for r in one.pool] == [c.did for c in bench.pool(one.task, split)]
            assert (data.modality[one.pool] == one.task.target_modality).all()


def test_the_caller_chooses_the_prompt_of_each_query(bench: Benchmark) -> None:
    texts, seen = Vocabulary(), []

    def choose(prompts: tuple[str, ...]) -> str | None:
        seen.append(prompts)
        return None if len(seen) % 2 else prompts[2]

    data = read_split([bench], "test", texts, Vocabulary(), choose)
    task = next(one for one in data.tasks if one.task.task_id == 0)
    asked, wanted = TASKS[0]
    assert seen[0] == tuple(prompt(asked, wanted, n) for n in (1, 2, 3, 4))
    first, second = bench.queries(task.task, "test")[:2]
    assert texts.names[task.text[0]] == Query(first.text, target="image").prompt()
    assert texts.names[task.text[1]] == Query(second.text, instruction=prompt(asked, wanted, 3)).prompt()


def test_an_image_query_has_its_instruction_as_text(bench: Benchmark) -> None:
    data, texts, _ = read(bench)
    task = next(one for one in data.tasks if one.task.task_id == 3)
    assert {texts.names[n] for n in task.text} == {prompt(Modality.IMAGE, Modality.TEXT, 1)}


def test_two_benchmarks_share_strings_but_not_candidates_or_images(tmp_path: Path) -> None:
    one, two = (write_tiny_benchmark(tmp_path / name) for name in ("one", "two"))
    texts, images = Vocabulary(), Vocabulary()
    data = read_split([one, two], "test", texts, images)
    alone, half = len(read(one)[0].dids), len(data.tasks) // 2
    assert data.dids == 2 * data.dids[:alone]
    np.testing.assert_array_equal(data.text[:alone], data.text[alone:])
    assert len(images.names) == 12
    for first, second in zip(data.tasks[:half], data.tasks[half:], strict=True):
        np.testing.assert_array_equal(first.text, second.text)
        for mine, theirs in zip(first.positives, second.positives, strict=True):
            np.testing.assert_array_equal(mine + alone, theirs)
        assert first.pool is not None
        assert second.pool is not None
        np.testing.assert_array_equal(first.pool + alone, second.pool)


def test_a_second_split_goes_on_numbering(bench: Benchmark) -> None:
    texts, images = Vocabulary(), Vocabulary()
    train = read_split([bench], "train", texts, images)
    known = list(texts.names)
    val = read_split([bench], "val", texts, images)
    assert texts.names[: len(known)] == known
    assert train.image.max() == 19
    assert sorted(set(val.image) - {-1}) == list(range(20, 26))


def test_a_positive_that_no_pool_holds_is_named(bench: Benchmark) -> None:
    file = bench.root / f"query/test/mbeir_{DATASET}_task0_test.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[4]["pos_cand_list"].append("test:nowhere")
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(BadData, match=f"{bench.root}.*test.*{DATASET}_task0.*test:nowhere"):
        read(bench)


def test_a_local_candidate_that_the_global_pool_does_not_hold_is_named(bench: Benchmark) -> None:
    task = Task(DATASET, 0)
    write_pool(bench.root, task, "test", [Candidate("test:alone", "a text", None, Modality.TEXT)])
    with pytest.raises(BadData, match=f"{DATASET}_task0.*test:alone"):
        read(bench)


def test_candidates_of_local_val_pools_are_added_to_the_global_one(bench: Benchmark) -> None:
    """The published global val pool holds only candidates that queries name."""
    task, before = Task(DATASET, 0), read(bench, "val")[0].dids
    alone = Candidate("val:alone", "a text", None, Modality.TEXT)
    write_pool(bench.root, task, "val", [*bench.pool(task, "val"), alone])
    split, texts, _ = read(bench, "val")
    assert split.dids == [*before, "val:alone"]
    assert named(texts, split.text[-1]) == "A text."
    assert [split.dids[row] for row in split.tasks[0].pool][-1] == "val:alone"


def test_a_query_without_a_right_candidate_is_named(bench: Benchmark) -> None:
    """Training would take another query's candidate for it."""
    file = bench.root / f"query/train/mbeir_{DATASET}_task0_train.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[4]["pos_cand_list"] = []
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(BadData, match=f"train.*{DATASET}_task0.*{rows[4]['qid']}"):
        read(bench, "train")


def test_a_task_without_queries_is_named(bench: Benchmark) -> None:
    write_queries(bench.root, Task(DATASET, 4), "test", [])
    with pytest.raises(BadData, match=f"test.*{DATASET}_task4 has no queries"):
        read(bench)


def test_an_empty_local_pool_is_an_array_of_rows_all_the_same(bench: Benchmark) -> None:
    write_pool(bench.root, Task(DATASET, 0), "test", [])
    data, _, _ = read(bench)
    pool = data.tasks[0].pool
    assert pool is not None
    assert len(data.image[pool]) == 0


def test_an_unknown_split_is_refused_with_those_there_are(bench: Benchmark) -> None:
    with pytest.raises(BadData, match=r"dev.*test, train, val"):
        read(bench, "dev")


def test_a_global_pool_without_the_candidates_is_refused(bench: Benchmark) -> None:
    write_global_pool(bench.root, "test", [])
    with pytest.raises(BadData, match="in no pool of the split"):
        read(bench)


def test_without_a_global_pool_the_candidates_are_those_of_the_local_pools(bench: Benchmark) -> None:
    whole, _, _ = read(bench)
    (bench.root / "cand_pool/global/mbeir_union_test_cand_pool.jsonl").unlink()
    data, _, _ = read(bench)
    assert sorted(data.dids) == sorted(whole.dids)  # each once, though several tasks share a pool
    for one, other in zip(data.tasks, whole.tasks, strict=True):
        assert [data.dids[row] for row in one.pool] == [whole.dids[row] for row in other.pool]
        assert [data.dids[row] for rows in one.positives for row in rows] == [
            whole.dids[row] for rows in other.positives for row in rows
        ]


def test_without_any_pool_the_error_says_what_to_write(bench: Benchmark) -> None:
    (bench.root / "cand_pool/global/mbeir_union_train_cand_pool.jsonl").unlink()
    with pytest.raises(BadData, match=r"no candidates for train. Write .*mbeir_union_train.*, or .*_train_cand_pool"):
        read(bench, "train")
    pool = [Candidate(did, "a text", None, Modality.TEXT) for did in _positives(bench, "train")]
    for task in bench.tasks("train"):
        write_pool(bench.root, task, "train", pool)
    data, _, _ = read(bench, "train")
    assert len(data.dids) == len(pool)


def test_a_candidate_that_differs_between_pools_is_named(bench: Benchmark) -> None:
    (bench.root / "cand_pool/global/mbeir_union_test_cand_pool.jsonl").unlink()
    first, other = bench.tasks("test")[:2]
    mine = list(bench.pool(first, "test"))
    write_pool(bench.root, other, "test", [Candidate(mine[0].did, "another", None, Modality.TEXT)])
    with pytest.raises(BadData, match=f"{mine[0].did} is another one in another pool"):
        list(bench.global_pool("test"))


def _positives(bench: Benchmark, split: str) -> list[str]:
    return sorted({did for task in bench.tasks(split) for q in bench.queries(task, split) for did in q.positives})
