"""Karpathy's splits of Flickr30K and COCO as a benchmark in M-BEIR layout, for text -> image search (Table 3).

His files (`dataset_flickr30k.json`, `dataset_coco.json`) list images, each with its split and its captions. Every
caption is a query, every image of a split a candidate. Knows these files; the images are only linked to.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from genius.data.items import Modality
from genius.data.mbeir import (
    Candidate,
    Instruction,
    MBQuery,
    Task,
    write_global_pool,
    write_instructions,
    write_pool,
    write_queries,
)
from genius.errors import BadData

SPLITS = {"train": "train", "restval": "train", "val": "val", "test": "test"}
"""His names of splits -> ours. `restval` are the images of COCO's own val split that neither val nor test took."""
PROMPTS = (
    "Find the image that this caption describes.",
    "Which photo shows what the text says?",
    "Look for an image that fits the description.",
    "Show me the image this sentence was written about.",
)
DATASET_IDS = {"flickr30k": 30, "coco": 9}


def write_karpathy(file: str | os.PathLike[str], images: str | os.PathLike[str], out: str | os.PathLike[str]) -> Task:
    """Writes the folder `out`, with a link to the folder of images in it; returns its only task.

    images: the folder in which the names of the images (with their `filepath`, if they have one) are found.
    """
    file, images, out = Path(file), Path(images), Path(out)
    name, entries = _read(file)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadData(f"{out} exists already. Name a folder that does not, so that nothing is overwritten.")
    if not images.is_dir():
        raise BadData(f"There is no folder {images}. Give the folder that holds the images.")
    lost = next((path for _, path, _ in entries if not (images / path).is_file()), None)
    if lost is not None:
        raise BadData(f"{images / lost} is missing. Give the folder in which {file.name} finds its images.")
    out.mkdir(parents=True, exist_ok=True)
    (out / "images").symlink_to(images.resolve(), target_is_directory=True)
    task = Task("mscoco" if name == "coco" else name, 0)
    number = DATASET_IDS.get(name, 99)
    write_instructions(out, [Instruction(task.dataset, number, Modality.TEXT, Modality.IMAGE, PROMPTS)])
    for split in ("train", "val", "test"):
        mine = [(i, path, captions) for i, (where, path, captions) in enumerate(entries) if where == split]
        if not mine:
            raise BadData(f"{file} has no images of the {split} split. Give one of Karpathy's files, as it stands.")
        pool = [Candidate(f"{number}:{i}", None, f"images/{path}", Modality.IMAGE) for i, path, _ in mine]
        write_queries(out, task, split, _queries(task, number, mine))
        write_global_pool(out, split, pool)
        if split != "train":
            write_pool(out, task, split, pool)
    return task


def _read(file: Path) -> tuple[str, list[tuple[str, str, list[str]]]]:
    """The data set's name, and (split, path, captions) of each image."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return str(content["dataset"]).casefold(), [_entry(entry) for entry in content["images"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadData(
            f"{file} cannot be read as one of Karpathy's files ({error!r}). Give dataset_flickr30k.json or "
            "dataset_coco.json."
        ) from error


def _entry(entry: dict[str, Any]) -> tuple[str, str, list[str]]:
    path = "/".join(part for part in (entry.get("filepath"), entry["filename"]) if part)
    return SPLITS[entry["split"]], path, [sentence["raw"] for sentence in entry["sentences"]]


def _queries(task: Task, number: int, images: list[tuple[int, str, list[str]]]) -> Iterator[MBQuery]:
    """One for each caption; its id tells the image and which of its captions it is."""
    for i, _, captions in images:
        for place, caption in enumerate(captions):
            if caption.strip():
                qid = f"{number}:{i}-{place}"
                yield MBQuery(qid, caption, None, Modality.TEXT, (f"{number}:{i}",), task.task_id, task.dataset)
