"""Training data: every prompt is met, the derived instruction too, and validation always asks with the first."""

from pathlib import Path

import numpy as np
import pytest
from tiny_benchmark import prompt, write_tiny_benchmark

from genius.errors import BadData
from genius.items import Query
from genius.mbeir import Task
from genius.train.data import TrainingData


def strings(data: TrainingData, split: str, task_id: int) -> list[str]:
    task = next(t for t in getattr(data, split).tasks if t.task.task_id == task_id)
    return [data.texts.names[n] for n in task.text]


def test_training_queries_meet_all_prompts_and_the_derived_one(tmp_path: Path) -> None:
    write_tiny_benchmark(tmp_path, tasks=(0, 3))
    asked, wanted = Task("d", 3).query_modality, Task("d", 3).wanted
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
    first = prompt(Task("d", 3).query_modality, Task("d", 3).wanted, 1)
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
