"""Karpathy's splits become a benchmark that training and evaluation can read."""

import json
from pathlib import Path
from typing import Any

import pytest
from fakes import draw_image
from typer.testing import CliRunner

from genius.cli.mbeir import mbeir_app
from genius.data.karpathy import write_karpathy
from genius.data.mbeir import Benchmark
from genius.data.mbeir_check import check
from genius.data.splits import Vocabulary, read_split
from genius.errors import BadData


def write_file(folder: Path, dataset: str = "flickr30k", **more: Any) -> tuple[Path, Path]:
    """Six images, two captions each."""
    (folder / "images").mkdir()
    images = []
    for i, split in enumerate(["train", "restval", "train", "val", "test", "test"]):
        draw_image("red").save(folder / f"images/{i}.png")
        sentences = [{"raw": f"caption {place} of {i}."} for place in range(2)]
        images.append({"filename": f"{i}.png", "split": split, "sentences": sentences, **more})
    (folder / "dataset.json").write_text(json.dumps({"dataset": dataset, "images": images}))
    return folder / "dataset.json", folder / "images"


def test_every_caption_asks_for_its_image(tmp_path: Path) -> None:
    task = write_karpathy(*write_file(tmp_path), tmp_path / "out")
    benchmark = Benchmark(tmp_path / "out")
    assert task.name == "flickr30k_task0"
    for split, images in (("train", 3), ("val", 1), ("test", 2)):
        data = read_split([benchmark], split, Vocabulary(), Vocabulary())
        assert len(data.dids) == images
        assert len(data.tasks[0].qids) == 2 * images
    for query in benchmark.queries(task, "test"):
        (did,) = query.positives
        found = next(one for one in benchmark.pool(task, "test") if one.did == did)
        assert found.image_path is not None
        assert query.text is not None
        assert query.text.endswith(f"of {Path(found.image_path).stem}.")
        assert Path(str(benchmark.image(found.image_path))).is_file()
    found = check(tmp_path / "out", tasks=["flickr30k"])
    assert found.whole


def test_cocos_folders_are_kept_and_its_name_is_m_beirs(tmp_path: Path) -> None:
    file, images = write_file(tmp_path, "coco", filepath="val2014")
    images.rename(tmp_path / "val2014")
    assert write_karpathy(file, tmp_path, tmp_path / "out").name == "mscoco_task0"


def test_missing_images_and_other_files_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    file, images = write_file(tmp_path)
    (images / "3.png").unlink()
    with pytest.raises(BadData, match=r"3\.png is missing"):
        write_karpathy(file, images, tmp_path / "out")
    file.write_text("{}")
    with pytest.raises(BadData, match=r"dataset_flickr30k\.json"):
        write_karpathy(file, images, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    file, images = write_file(tmp_path)
    with pytest.raises(BadData, match="exists already"):
        write_karpathy(file, images, images)


def test_the_command(tmp_path: Path) -> None:
    file, images = write_file(tmp_path)
    run = CliRunner().invoke(mbeir_app, ["karpathy", str(file), str(images), str(tmp_path / "out")])
    assert run.exit_code == 0
    assert "flickr30k_task0" in run.stdout
