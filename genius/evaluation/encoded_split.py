"""A benchmark split for evaluation: read from files, then encoded. Each text and image is encoded once."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from rich.console import Console
from rich.progress import Progress

from genius.data.images import load_image
from genius.data.items import Query
from genius.data.mbeir import Benchmark
from genius.data.splits import SplitData, TaskData, Vocabulary, read_split
from genius.encoders.base import Prepared, Vectors
from genius.errors import BadData, BadImage
from genius.evaluation.runs import PROMPTS, SETTINGS, RunFolder, check_names
from genius.model.genius import Genius
from genius.train.data import FrozenVectors, JointVectors, StageVectors, distinct_pairs

TEXT_BLOCK, IMAGE_BLOCK, PAIR_BLOCK = 2048, 64, 256  # encoded at once
SAVE_SECONDS = 60  # between two saves of the vectors encoded so far


@dataclass
class EvaluationSplit:
    """A split before encoding."""

    data: SplitData  # texts and images are numbers, positions in the two lists below
    texts: list[str]
    images: list[str]  # paths
    prompts: dict[
        str, list[np.ndarray]
    ]  # task -> the texts (n,) of its queries with each prompt; empty with one prompt
    digest: str  # of the whole split, independent of the selected tasks and queries


def read_evaluation_split(
    benchmark: Benchmark,
    split: str,
    limit: int | None = None,
    tasks: Sequence[str] | None = None,
    prompts: str = "first",
) -> EvaluationSplit:
    """Read the tasks of a split with these names or prefixes, `limit` queries each. For arguments, see `evaluate`."""
    check_names([prompts], PROMPTS, "choice of prompts")
    if limit is not None and limit < 1:
        raise BadData(f"The limit is {limit} queries per task; it must be at least 1.")
    texts, images = Vocabulary(), Vocabulary()
    data = read_split([benchmark], split, texts, images)
    asked = {t.task.name: _all_prompts(benchmark, split, t, texts) for t in data.tasks} if prompts == "all" else {}
    digest = _digest(benchmark, data, texts.names, images.names)
    data.tasks = _selected(data.tasks, tasks)
    if limit is not None:
        rows = {task.task.name: sampled_rows(task, limit) for task in data.tasks}
        data.tasks = [task.select(rows[task.task.name]) for task in data.tasks]
        asked = {name: [text[rows[name]] for text in asked[name]] for name in rows if name in asked}
    return EvaluationSplit(data, texts.names, images.names, asked, digest)


def sampled_rows(task: TaskData, limit: int) -> np.ndarray:
    """Query numbers of a random sample of at most `limit` queries, in order. The same sample every time."""
    return np.sort(np.random.default_rng(0).permutation(len(task))[:limit])


def _all_prompts(benchmark: Benchmark, split: str, task: TaskData, texts: Vocabulary) -> list[np.ndarray]:
    queries, target = benchmark.queries(task.task, split), task.task.target_modality
    prompts = benchmark.prompts(task.task.dataset, task.task.query_modality, target)
    strings = [[Query(q.text, q.image_path, prompt, target).prompt() for q in queries] for prompt in prompts]
    return [np.array([texts.number(string) for string in of_one]) for of_one in strings]


def _digest(benchmark: Benchmark, data: SplitData, texts: list[str], images: list[str]) -> str:
    paths = [os.path.relpath(image, benchmark.root) for image in images]
    right = [(task.task.name, task.qids, [rows.tolist() for rows in task.positives]) for task in data.tasks]
    pools = [task.pool.tolist() for task in data.tasks if task.pool is not None]
    everything = [texts, paths, data.dids, data.text.tolist(), data.image.tolist(), right, pools]
    return hashlib.sha256(json.dumps(everything).encode()).hexdigest()[:16]


def _selected(tasks: list[TaskData], names: Sequence[str] | None) -> list[TaskData]:
    for name in names or ():
        if not any(task.task.name.startswith(name) for task in tasks):
            known = ", ".join(task.task.name for task in tasks)
            raise BadData(f"No task of the split begins with {name!r}. Choose from {known}.")
    return [task for task in tasks if names is None or task.task.name.startswith(tuple(names))]


def pool_rows(data: SplitData, task: TaskData, setting: str) -> np.ndarray:
    """The candidates that a task searches in a setting."""
    rows = np.arange(len(data.text)) if setting == "global" else task.pool
    if rows is None or not len(rows):
        raise BadData(f"{task.task.name} has no {setting} candidates to search. Check its candidate pool.")
    return rows


def searched_rows(data: SplitData, settings: Sequence[str]) -> np.ndarray:
    """The candidates that any task searches in any of these settings."""
    if "global" in settings:
        return np.arange(len(data.text))
    return np.unique(np.concatenate([pool_rows(data, task, setting) for setting in settings for task in data.tasks]))


@dataclass
class EncodedSplit:
    """Stage-1 vectors of a split, and the IDs of its candidates."""

    data: SplitData
    stage_vectors: StageVectors
    codes: np.ndarray  # (candidates, levels) uint16
    prompts: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def vectors(self, text: np.ndarray, image: np.ndarray) -> Vectors:
        """Vectors of n pairs of a text and an image, given by number; -1 for none."""
        return self.stage_vectors.vectors(text, image)

    def query_texts(self, task: TaskData) -> list[np.ndarray]:
        """The texts (n,) of a task's queries, once for each prompt."""
        return self.prompts.get(task.task.name, [task.text])


def encode_split(
    model: Genius,
    split: EvaluationSplit,
    settings: Sequence[str] = SETTINGS,
    console: Console | None = None,
    run: RunFolder | None = None,
) -> EncodedSplit:
    """Encode the texts and images that the settings need. Vectors stored in `run` are not computed again."""
    console = console or Console()
    data = split.data
    rows = searched_rows(data, settings)
    asked = [(text, t.image) for t in data.tasks for text in split.prompts.get(t.task.name, [t.text])]
    text, image = (np.concatenate(parts) for parts in zip((data.text[rows], data.image[rows]), *asked, strict=True))
    encode_numbers = _encode_pairs if model.encoder.joint else _encode_separately
    vectors = encode_numbers(model, split, text, image, console, run)
    codes = np.zeros((len(data.text), len(model.sizes)), np.uint16)
    encoded = EncodedSplit(data, vectors, codes, split.prompts)
    candidates = encoded.vectors(data.text[rows], data.image[rows])
    empty = np.flatnonzero(candidates.modality != data.modality[rows])
    if len(empty):
        did = data.dids[rows[empty[0]]]
        raise BadData(f"The model gives an empty vector for the text or image of the candidate {did}. Check both.")
    with console.status("codes"):
        codes[rows] = model.codes(candidates)
    return encoded


class _VectorTable:
    """Vectors of numbered inputs: which are needed and which are known. The last row is zero."""

    def __init__(self, size: int, dim: int, needed: np.ndarray, name: Callable[[int], str]) -> None:
        """name: the input with this number, for error messages."""
        self.name = name
        self.vectors = np.zeros((size + 1, dim), np.float32)
        self.known = np.zeros(size, bool)
        self.needed = np.unique(needed[needed >= 0])

    def put(self, rows: np.ndarray, vectors: np.ndarray) -> None:
        bad = rows[~np.isfinite(vectors).all(axis=1)]
        if len(bad):
            raise BadData(
                f"The model gives no vector for {self.name(bad[0])!r}: it holds values that are not numbers (NaN)."
            )
        self.vectors[rows], self.known[rows] = vectors, True

    def missing(self, size: int) -> list[np.ndarray]:
        """Numbers still to encode, in blocks."""
        rows = self.needed[~self.known[self.needed]]
        return np.array_split(rows, -(-len(rows) // size)) if len(rows) else []


class _Saver:
    """Saves the vectors that are known to a run folder, every minute and at the end."""

    def __init__(self, run: RunFolder | None, arrays: Callable[[], dict[str, np.ndarray]]) -> None:
        self.run, self.arrays, self.saved = run, arrays, time.monotonic()

    def save(self, every: float = SAVE_SECONDS) -> None:
        if self.run and time.monotonic() - self.saved >= every:
            self.run.save_vectors(**self.arrays())
            self.saved = time.monotonic()


def _encode_separately(
    model: Genius, split: EvaluationSplit, text: np.ndarray, image: np.ndarray, console: Console, run: RunFolder | None
) -> FrozenVectors:
    """Encode the texts (n,) and images (n,) with these numbers. Vectors stored in `run` are not computed again."""
    texts = _VectorTable(len(split.texts), model.dim, text, split.texts.__getitem__)
    images = _VectorTable(len(split.images), model.dim, image, split.images.__getitem__)
    tables = {"texts": texts, "images": images}
    stored = run.load_vectors() if run else {}
    for name, table in tables.items() if stored else ():
        table.put(stored[f"{name}_rows"], stored[name])

    def known() -> dict[str, np.ndarray]:
        rows = {f"{name}_rows": np.flatnonzero(table.known) for name, table in tables.items()}
        return rows | {name: table.vectors[:-1][table.known] for name, table in tables.items()}

    saver = _Saver(run, known)
    with Progress(console=console) as progress, ThreadPoolExecutor(os.cpu_count()) as pool:
        for rows in progress.track(texts.missing(TEXT_BLOCK), description="texts"):
            texts.put(rows, model.encode([Prepared(None, split.texts[row]) for row in rows]).text)
            saver.save()
        for rows in progress.track(images.missing(IMAGE_BLOCK), description="images"):
            pixels = pool.map(lambda path: _pixels(model, path), [split.images[row] for row in rows])
            images.put(rows, model.encode([Prepared(p, "") for p in pixels]).image)
            saver.save()
    saver.save(every=0)
    return FrozenVectors(texts.vectors, images.vectors)


def _encode_pairs(
    model: Genius, split: EvaluationSplit, text: np.ndarray, image: np.ndarray, console: Console, run: RunFolder | None
) -> JointVectors:
    """The same for a joint encoder: encode each pair of a text and an image."""
    stored = run.load_vectors() if run else {}
    known = stored.get("pairs", np.empty((0, 2), np.int64))
    pairs = distinct_pairs(np.concatenate([known[:, 0], text]), np.concatenate([known[:, 1], image]))

    def content(row: int) -> tuple[str, str]:
        """The text and the path of the image, "" for none."""
        text, image = pairs[row]
        return split.texts[text] if text >= 0 else "", split.images[image] if image >= 0 else ""

    table = _VectorTable(len(pairs), model.dim, np.arange(len(pairs)), lambda row: " ".join(content(row)).strip())
    vectors = JointVectors(pairs, table.vectors[:-1])
    if len(known):
        table.put(vectors.find(*known.T), stored["joint"])
    saver = _Saver(run, lambda: {"pairs": pairs[table.known], "joint": vectors.rows[table.known]})
    with Progress(console=console) as progress, ThreadPoolExecutor(os.cpu_count()) as pool:
        for rows in progress.track(table.missing(PAIR_BLOCK), description="texts with images"):
            block = [content(row) for row in rows]
            paths = list(dict.fromkeys(path for _, path in block if path))  # each image is read once
            pixels = dict(zip(paths, pool.map(lambda path: _pixels(model, path), paths), strict=True))
            encoded = model.encode([Prepared(pixels.get(path), text) for text, path in block])
            table.put(rows, encoded.image + encoded.text)
            saver.save()
    saver.save(every=0)
    return vectors


def _pixels(model: Genius, path: str) -> np.ndarray:
    try:
        return model.encoder.pixels(load_image(path))
    except BadImage as error:
        raise BadData(f"An image of the benchmark cannot be read: {error}") from error
