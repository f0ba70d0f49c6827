"""Convert Karpathy's splits of Flickr30K and COCO to M-BEIR layout, for text -> image search (Table 3).

The files `dataset_flickr30k.json` and `dataset_coco.json` list images with their splits and captions. Each caption is a
query, and each image of a split is a candidate.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from genius.data.items import Modality
from genius.data.mbeir import Candidate, Instruction, MBQuery, Task
from genius.data.mbeir_writer import (
    check_new_folder,
    write_global_pool,
    write_instructions,
    write_pool,
    write_queries,
)
from genius.errors import BadData

SPLITS = {"train": "train", "restval": "train", "val": "val", "test": "test"}
"""Our names of his splits. `restval` has the images of COCO's val split that are in neither val nor test."""
PROMPTS = (
    "Find the image that this caption describes.",
    "Which photo shows what the text says?",
    "Look for an image that fits the description.",
    "Show me the image this sentence was written about.",
)
DATASET_IDS = {"flickr30k": 30, "coco": 9}


def write_karpathy(file: str | os.PathLike[str], images: str | os.PathLike[str], out: str | os.PathLike[str]) -> Task:
    """Write a benchmark in M-BEIR layout and return its task.

    Args:
        file: `dataset_flickr30k.json` or `dataset_coco.json`.
        images: Folder of the images; `filepath` and `filename` in the file are relative to it.
        out: Folder to write, empty or new. It links to `images`.

    Raises:
        BadData: A file or folder is missing, cannot be read, or exists already.
    """
    file, images, out = Path(file), Path(images), Path(out)
    name, entries = _read(file)
    check_new_folder(out)
    if not images.is_dir():
        raise BadData(f"There is no folder {images}. Give the folder that holds the images.")
    lost = next((path for _, path, _ in entries if not (images / path).is_file()), None)
    if lost is not None:
        raise BadData(f"{images / lost} is missing. Give the folder that the paths in {file.name} are relative to.")
    out.mkdir(parents=True, exist_ok=True)
    (out / "images").symlink_to(images.resolve(), target_is_directory=True)
    task = Task("mscoco" if name == "coco" else name, 0)
    number = DATASET_IDS.get(name, 99)
    write_instructions(out, [Instruction(task.dataset, number, Modality.TEXT, Modality.IMAGE, PROMPTS)])
    for split in ("train", "val", "test"):
        mine = [(i, path, captions) for i, (where, path, captions) in enumerate(entries) if where == split]
        if not mine:
            raise BadData(f"{file} has no images of the {split} split. Use the original file.")
        pool = [Candidate(f"{number}:{i}", None, f"images/{path}", Modality.IMAGE) for i, path, _ in mine]
        write_queries(out, task, split, _queries(task, number, mine))
        write_global_pool(out, split, pool)
        if split != "train":
            write_pool(out, task, split, pool)
    return task


def _read(file: Path) -> tuple[str, list[tuple[str, str, list[str]]]]:
    """Return the name of the data set, and (split, path, captions) of each image."""
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
    """Yield a query for each caption. Its id has the numbers of image and caption."""
    for i, _, captions in images:
        for place, caption in enumerate(captions):
            if caption.strip():
                qid = f"{number}:{i}-{place}"
                yield MBQuery(qid, caption, None, Modality.TEXT, (f"{number}:{i}",), task.task_id, task.dataset)
