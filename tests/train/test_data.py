"""Training data: every prompt is met, the derived instruction too, and validation always asks with the first."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_benchmark import prompt, write_tiny_benchmark

from genius.data.items import Query
from genius.data.mbeir import Task
from genius.data.splits import SplitData, Vocabulary, read_split
from genius.errors import BadData
from genius.train.data import JointVectors, TrainingData, distinct_pairs, sampled


def strings(data: TrainingData, split: str, task_id: int) -> list[str]:
    task = next(t for t in getattr(data, split).tasks if t.task.task_id == task_id)
    return [data.texts.names[n] for n in task.text]


def test_training_queries_meet_all_prompts_and_the_derived_one(tmp_path: Path) -> None:
    write_tiny_benchmark(tmp_path, tasks=(0, 3))
    asked, wanted = Task("d", 3).query_modality, Task("d", 3).target_modality
    derived = Query(image="x.png", target=wanted).prompt()
    prompts = {prompt(asked, wanted, n) for n in (1, 2, 3, 4)}
    seen = strings(TrainingData([tmp_path], seed=0, derived_prompts=0.3), "train", 3)
    assert set(seen) == {derived, *prompts}
    assert 1 <= seen.count(derived) <= 12  # of 20
    assert set(strings(TrainingData([tmp_path], seed=0, derived_prompts=1.0), "train", 3)) == {derived}
    assert derived not in strings(TrainingData([tmp_path], seed=0, derived_prompts=0.0), "train", 3)


def test_validation_asks_with_the_first_prompt(tmp_path: Path) -> None:
    write_tiny_benchmark(tmp_path, tasks=(3,))
    data = TrainingData([tmp_path], seed=0, derived_prompts=1.0)
    first = prompt(Task("d", 3).query_modality, Task("d", 3).target_modality, 1)
    assert set(strings(data, "val", 3)) == {first}


def test_data_without_a_validation_split_is_refused(tmp_path: Path) -> None:
    write_tiny_benchmark(tmp_path, tasks=(3,))
    for file in (tmp_path / "query/val").iterdir():
        file.unlink()
    with pytest.raises(BadData, match=r"no val queries; it has test, train"):
        TrainingData([tmp_path], seed=0, derived_prompts=0.0)


def test_a_seed_gives_the_same_prompts_every_time(tmp_path: Path) -> None:
    """Or a resumed run would look for other texts in its cache."""
    write_tiny_benchmark(tmp_path, tasks=(0, 3))
    one, two, other = (TrainingData([tmp_path], seed, 0.3) for seed in (0, 0, 1))
    assert one.texts.names == two.texts.names
    assert one.images.names == two.images.names
    assert one.texts.names != other.texts.names
    for mine, theirs in zip(one.train.tasks, two.train.tasks, strict=True):
        np.testing.assert_array_equal(mine.text, theirs.text)


# Samples of large validation tasks


def test_a_small_validation_split_is_left_as_it_is(tmp_path: Path) -> None:
    """Numbers come in the order of the files, as they do without sampling: caches are named by that order."""
    bench = write_tiny_benchmark(tmp_path, tasks=(0, 7))
    data = TrainingData([tmp_path], 0, 0.0)
    texts, images = Vocabulary(), Vocabulary()
    read_split([bench], "train", texts, images)
    whole = read_split([bench], "val", texts, images)
    assert set(data.texts.names) >= {texts.names[n] for n in whole.text if n >= 0}
    assert data.images.names == images.names
    np.testing.assert_array_equal(data.val.image, whole.image)
    assert [data.texts.names[n] for n in data.val.text if n >= 0] == [texts.names[n] for n in whole.text if n >= 0]
    assert sampled(data.val, 6, 6) is data.val  # six things of each kind


def meaning(split: SplitData, texts: Vocabulary, images: Vocabulary) -> dict[str, tuple[Any, ...]]:
    """qid with task -> what is asked, and what is right, in words."""

    def words(text: int, image: int) -> tuple[str, str]:
        return ("" if text < 0 else texts.names[text], "" if image < 0 else images.names[image])

    items = [(did, *words(t, i)) for did, t, i in zip(split.dids, split.text, split.image, strict=True)]
    return {
        f"{task.task.name} {qid}": (words(t, i), [items[row] for row in right])
        for task in split.tasks
        for qid, t, i, right in zip(task.qids, task.text, task.image, task.positives, strict=True)
    }


@pytest.mark.parametrize(("queries", "pool"), [(3, 100), (100, 4), (3, 4), (2, 1)])
def test_a_sample_keeps_what_queries_mean_and_their_right_answers(tmp_path: Path, queries: int, pool: int) -> None:
    bench = write_tiny_benchmark(tmp_path)
    texts, images = Vocabulary(), Vocabulary()
    whole = read_split([bench], "val", texts, images)
    full = meaning(whole, texts, images)
    sample = sampled(whole, queries, pool)
    assert meaning(sample, texts, images).items() <= full.items()
    assert len(sample.text) == len(np.unique(np.concatenate([t.pool for t in sample.tasks])))
    assert len(sample.text) < len(whole.text) or pool > 1
    for task in sample.tasks:
        assert len(task) == min(queries, 6)
        right = np.unique(np.concatenate(task.positives))
        assert task.pool is not None
        assert np.isin(right, task.pool).all()
        assert len(task.pool) == max(len(right), min(pool, 6))
    again = sampled(whole, queries, pool)
    assert [t.qids for t in again.tasks] == [t.qids for t in sample.tasks]


def test_what_a_sample_leaves_out_is_not_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it would be encoded."""
    write_tiny_benchmark(tmp_path, tasks=(0, 3))
    whole = TrainingData([tmp_path], 0, 0.0)
    monkeypatch.setattr("genius.train.data.VALIDATION_QUERIES", 1)
    monkeypatch.setattr("genius.train.data.VALIDATION_POOL", 2)
    data = TrainingData([tmp_path], 0, 0.0)
    assert len(data.images.names) < len(whole.images.names)
    assert len(data.texts.names) < len(whole.texts.names)
    used = np.concatenate([data.val.image, *(t.image for t in data.val.tasks)])
    assert used.max() == len(data.images.names) - 1
    full = meaning(whole.val, whole.texts, whole.images)
    assert meaning(data.val, data.texts, data.images).items() <= full.items()


# Vectors of a joint encoder


def test_pairs_are_found_by_the_numbers_of_text_and_image() -> None:
    text, image = np.array([2, 0, -1, 2, 0]), np.array([1, -1, 0, 1, 7])
    pairs = distinct_pairs(text, image)
    assert pairs.tolist() == [[0, -1], [-1, 0], [2, 1], [0, 7]]
    rows = np.arange(8, dtype=np.float32).reshape(4, 2) + 1
    vectors = JointVectors(pairs, rows).vectors(text, image)
    np.testing.assert_array_equal(vectors.image + vectors.text, rows[[2, 0, 1, 2, 3]])
    assert vectors.modality.tolist() == [2, 1, 0, 2, 2]


@pytest.mark.parametrize("pair", [(0, 0), (2, -1), (3, 0), (-1, 8), (7, 1)])
def test_a_pair_that_was_not_encoded_is_refused(pair: tuple[int, int]) -> None:
    pairs = distinct_pairs(np.array([2, 0, -1, 0]), np.array([1, -1, 0, 7]))
    with pytest.raises(BadData, match="not encoded together"):
        JointVectors(pairs, np.ones((4, 2))).vectors(np.array([0, pair[0]]), np.array([7, pair[1]]))
    with pytest.raises(BadData, match="not encoded together"):
        JointVectors(pairs[:0], np.ones((0, 2))).vectors(*np.array([pair]).T)
