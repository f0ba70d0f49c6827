"""A benchmark in M-BEIR layout for tests: small drawn images of coloured shapes, all eight tasks, three splits."""

from itertools import product
from pathlib import Path

from PIL import Image, ImageDraw

from genius.data.items import Modality
from genius.data.mbeir import TASKS, Benchmark, Candidate, Instruction, MBQuery, Task
from genius.data.mbeir_writer import write_global_pool, write_instructions, write_pool, write_queries

DATASET = "shapes"
COLOURS = {
    "train": ("red", "green", "blue", "orange", "purple"),
    "val": ("yellow", "gray"),
    "test": ("brown", "pink"),
}
SHAPES = {
    "train": ("circle", "square", "cross", "triangle"),
    "val": ("circle", "square", "bar"),
    "test": ("circle", "square", "bar"),
}
_I, _T, _IT = Modality.IMAGE, Modality.TEXT, Modality.IMAGE_TEXT


def write_tiny_benchmark(root: Path, tasks: tuple[int, ...] = tuple(TASKS)) -> Benchmark:
    """In each split every (colour, shape) is an image, a text and a pair, and asks one query of each task."""
    write_instructions(root, [_instruction(asked, wanted) for asked, wanted in TASKS.values()])
    for split in COLOURS:
        things = list(product(COLOURS[split], SHAPES[split]))
        pools = {kind: [_candidate(split, kind, *thing) for thing in things] for kind in Modality}
        for thing in things:
            _draw(root / _path(split, *thing), *thing)
        for id in tasks:
            task = Task(DATASET, id)
            write_queries(root, task, split, [_query(split, task, *thing) for thing in things])
            if split != "train":
                write_pool(root, task, split, pools[task.target_modality])
        write_global_pool(root, split, [one for pool in pools.values() for one in pool])
    return Benchmark(root)


def prompt(asked: Modality, wanted: Modality, number: int) -> str:
    return f"Prompt {number} for {asked.label} to {wanted.label}."


def _instruction(asked: Modality, wanted: Modality) -> Instruction:
    return Instruction(DATASET, 99, asked, wanted, tuple(prompt(asked, wanted, n) for n in (1, 2, 3, 4)))


def _path(split: str, colour: str, shape: str) -> str:
    return f"images/{split}/{colour}_{shape}.png"


def _did(split: str, kind: Modality, colour: str, shape: str) -> str:
    return f"{split}:{kind.label}:{colour}_{shape}"


def _candidate(split: str, kind: Modality, colour: str, shape: str) -> Candidate:
    text = {_I: None, _T: f"a {colour} {shape} on white", _IT: f"buy this {shape} in {colour}"}[kind]
    path = None if kind == _T else _path(split, colour, shape)
    return Candidate(_did(split, kind, colour, shape), text, path, kind)


def _query(split: str, task: Task, colour: str, shape: str) -> MBQuery:
    """Right is the same thing; from image to image, all of one shape; a composed query changes the colour."""
    asked, wanted = task.query_modality, task.target_modality
    colours = COLOURS[split]
    other = colours[(colours.index(colour) + 1) % len(colours)]
    text = {_T: f"{shape} that is {colour}", _I: None, _IT: f"the same in {other}"}[asked]
    if asked == wanted == _I:
        right = [_did(split, wanted, c, shape) for c in colours if c != colour]
    else:
        right = [_did(split, wanted, other if asked == _IT else colour, shape)]
    path = None if asked == _T else _path(split, colour, shape)
    return MBQuery(f"{task.task_id}:{colour}_{shape}", text, path, asked, tuple(right), task.task_id, task.dataset)


def _draw(path: Path, colour: str, shape: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", (48, 40), "white")
    pen = ImageDraw.Draw(image)
    match shape:
        case "circle":
            pen.ellipse((8, 4, 40, 36), fill=colour)
        case "square":
            pen.rectangle((8, 4, 40, 36), fill=colour)
        case "triangle":
            pen.polygon([(24, 2), (6, 36), (42, 36)], fill=colour)
        case "bar":
            pen.rectangle((2, 16, 46, 24), fill=colour)
        case "cross":
            pen.line((8, 4, 40, 36), fill=colour, width=8)
            pen.line((8, 36, 40, 4), fill=colour, width=8)
    image.save(path)
