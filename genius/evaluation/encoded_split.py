"""A benchmark split for evaluation: read from files, then encoded. Each text and image is encoded once.

Vectors and codes are computed in blocks. In a run folder they are memory-mapped files.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress

from genius.data.images import load_image
from genius.data.items import Query
from genius.data.mbeir import Benchmark
from genius.data.splits import SplitData, TaskData, Vocabulary, read_split
from genius.encoders.base import Prepared, Vectors
from genius.errors import BadData, BadImage
from genius.evaluation.row_table import RowTable
from genius.evaluation.runs import PROMPTS, SETTINGS, RunFolder, check_names
from genius.model.genius import Genius
from genius.train.data import FrozenVectors, JointVectors, StageVectors, distinct_pairs

TEXT_BLOCK, IMAGE_BLOCK, PAIR_BLOCK = 2048, 64, 256  # encoded at once
DIGEST_BLOCK = 65_536  # values whose JSON form is held in memory at once
CANDIDATE_BLOCK = 8192  # candidates whose vectors are held in memory at once


@dataclass
class EvaluationSplit:
    """A split before encoding."""

    data: SplitData  # texts and images are numbers, positions in the two lists below
    texts: list[str]
    images: list[str]  # paths
    prompts: dict[
        str, list[np.ndarray]
    ]  # task -> the texts (n,) of its queries with each prompt; empty with one prompt
    pairs: np.ndarray  # (m, 2) `distinct_pairs` of the whole split
    digest: str  # of the whole split, as `pairs` independent of the selected tasks and queries


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
    pairs = distinct_pairs(*_numbers(data, np.arange(len(data.text)), asked))
    data.tasks = _selected(data.tasks, tasks)
    if limit is not None:
        rows = {task.task.name: sampled_rows(task, limit) for task in data.tasks}
        data.tasks = [task.select(rows[task.task.name]) for task in data.tasks]
        asked = {name: [text[rows[name]] for text in asked[name]] for name in rows if name in asked}
    return EvaluationSplit(data, texts.names, images.names, asked, pairs, digest)


def sampled_rows(task: TaskData, limit: int) -> np.ndarray:
    """Query numbers of a random sample of at most `limit` queries, in order. The same sample every time."""
    return np.sort(np.random.default_rng(0).permutation(len(task))[:limit])


def _all_prompts(benchmark: Benchmark, split: str, task: TaskData, texts: Vocabulary) -> list[np.ndarray]:
    queries, target = benchmark.queries(task.task, split), task.task.target_modality
    prompts = benchmark.prompts(task.task.dataset, task.task.query_modality, target)
    strings = [[Query(q.text, q.image_path, prompt, target).prompt() for q in queries] for prompt in prompts]
    return [np.array([texts.number(string) for string in of_one]) for of_one in strings]


def _numbers(data: SplitData, rows: np.ndarray, prompts: dict[str, list[np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the texts and of the images of the candidates in these rows, then of all queries with all prompts."""
    asked = [(text, task.image) for task in data.tasks for text in prompts.get(task.task.name, [task.text])]
    text, image = zip((data.text[rows], data.image[rows]), *asked, strict=True)
    return np.concatenate(text), np.concatenate(image)


def _digest(benchmark: Benchmark, data: SplitData, texts: list[str], images: list[str]) -> str:
    """Digest of the JSON form of everything that was read, which is never held in memory."""
    root = f"{benchmark.root}{os.sep}"
    digest = hashlib.sha256(b"[")
    tasks = data.tasks
    right = (json.dumps((t.task.name, t.qids, [rows.tolist() for rows in t.positives])) for t in tasks)
    pools = (f"[{', '.join(_elements(t.pool))}]" for t in tasks if t.pool is not None)
    parts: list[Iterable[str]] = [
        _elements(texts),
        _elements([image.removeprefix(root) for image in images]),
        _elements(data.dids),
        _elements(data.text),
        _elements(data.image),
        right,
        pools,
    ]
    for number, part in enumerate(parts):
        digest.update(b", [" if number else b"[")
        for place, piece in enumerate(part):
            digest.update(f"{', ' if place else ''}{piece}".encode())
        digest.update(b"]")
    digest.update(b"]")
    return digest.hexdigest()[:16]


def _elements(values: Sequence[str] | np.ndarray) -> Iterator[str]:
    """The JSON forms of parts of a list, without its brackets."""
    for start in range(0, len(values), DIGEST_BLOCK):
        block = values[start : start + DIGEST_BLOCK]
        yield json.dumps(block.tolist() if isinstance(block, np.ndarray) else block)[1:-1]


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
    """Stage-1 vectors of a split, and the IDs of its candidates.

    folder: keeps what is derived from them for one model, or None to compute it in memory.
    """

    data: SplitData
    stage_vectors: StageVectors
    codes: np.ndarray  # (candidates, levels) uint16
    prompts: dict[str, list[np.ndarray]] = field(default_factory=dict)
    folder: Path | None = None

    def vectors(self, text: np.ndarray, image: np.ndarray) -> Vectors:
        """Vectors of n pairs of a text and an image, given by number; -1 for none."""
        return self.stage_vectors.vectors(text, image)

    def candidates(self, rows: np.ndarray) -> Vectors:
        """Vectors of the candidates in some rows."""
        return self.vectors(self.data.text[rows], self.data.image[rows])

    def derived(self, name: str, rows: np.ndarray, derive: Callable[[Vectors], np.ndarray]) -> np.ndarray:
        """(n, dim) float16 vectors that are derived from those of the candidates in these rows (n,).

        Args:
            name: Name of the table that keeps them.
            rows: Rows of candidates.
            derive: Derives vectors (m, dim) from those of m candidates.
        """
        every = len(self.data.text)
        table = RowTable(self.folder, name, (every, self.stage_vectors.dim), np.float16)
        for block in table.missing(rows, CANDIDATE_BLOCK):
            table.put(block, derive(self.candidates(block)))
        table.save()
        return table.array if np.array_equal(rows, np.arange(every)) else table.array[rows]

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
    data, folder = split.data, run.vector_folder() if run else None
    rows = searched_rows(data, settings)
    text, image = _numbers(data, rows, split.prompts)
    encode_numbers = _encode_pairs if model.encoder.joint else _encode_separately
    vectors = encode_numbers(model, split, text, image, console, folder)
    codes = RowTable(folder, "codes", (len(data.text), len(model.sizes)), np.uint16)
    encoded = EncodedSplit(data, vectors, codes.array, split.prompts, folder)
    with Progress(console=console) as progress:
        for block in progress.track(codes.missing(rows, CANDIDATE_BLOCK), description="codes"):
            candidates = encoded.candidates(block)
            empty = np.flatnonzero(candidates.modality != data.modality[block])
            if len(empty):
                did = data.dids[block[empty[0]]]
                raise BadData(
                    f"The model gives an empty vector for the text or image of the candidate {did}. Check both."
                )
            codes.put(block, model.codes(candidates))
    codes.save()
    return encoded


def _encode(
    table: RowTable,
    needed: np.ndarray,
    size: int,
    encode: Callable[[np.ndarray], np.ndarray],
    name: Callable[[int], str],
    track: Callable[[list[np.ndarray]], Iterable[np.ndarray]],
) -> None:
    """Fill the rows of a table that are needed and not known, block by block.

    Args:
        table: Vectors of numbered inputs.
        needed: Numbers of inputs, in any order; -1 for none.
        size: Inputs of a block.
        encode: Vectors of the inputs with these numbers.
        name: The input with a number, for error messages.
        track: Shows the progress.
    """
    for rows in track(table.missing(np.unique(needed[needed >= 0]), size)):
        vectors = encode(rows)
        bad = rows[~np.isfinite(vectors).all(axis=1)]
        if len(bad):
            raise BadData(
                f"The model gives no vector for {name(bad[0])!r}: it holds values that are not numbers (NaN)."
            )
        table.put(rows, vectors)
    table.save()


def _encode_separately(
    model: Genius, split: EvaluationSplit, text: np.ndarray, image: np.ndarray, console: Console, folder: Path | None
) -> FrozenVectors:
    """Encode the texts (n,) and images (n,) with these numbers. Vectors stored in `folder` are not computed again."""
    # The last row of a table, which number -1 selects, stays zero.
    texts, images = (
        RowTable(folder, name, (len(names) + 1, model.dim), np.float32)
        for name, names in (("texts", split.texts), ("images", split.images))
    )
    with Progress(console=console) as progress, ThreadPoolExecutor(os.cpu_count()) as pool:

        def encode_texts(rows: np.ndarray) -> np.ndarray:
            return model.encode([Prepared(None, split.texts[row]) for row in rows]).text

        def encode_images(rows: np.ndarray) -> np.ndarray:
            pixels = pool.map(lambda path: _pixels(model, path), [split.images[row] for row in rows])
            return model.encode([Prepared(p, "") for p in pixels]).image

        track = partial(progress.track, description="texts")
        _encode(texts, text, TEXT_BLOCK, encode_texts, split.texts.__getitem__, track)
        track = partial(progress.track, description="images")
        _encode(images, image, IMAGE_BLOCK, encode_images, split.images.__getitem__, track)
    return FrozenVectors(texts.array, images.array)


def _encode_pairs(
    model: Genius, split: EvaluationSplit, text: np.ndarray, image: np.ndarray, console: Console, folder: Path | None
) -> JointVectors:
    """The same for a joint encoder: encode each pair of a text and an image."""

    def content(row: int) -> tuple[str, str]:
        """The text and the path of the image, "" for none."""
        text, image = split.pairs[row]
        return split.texts[text] if text >= 0 else "", split.images[image] if image >= 0 else ""

    table = RowTable(folder, "pairs", (len(split.pairs), model.dim), np.float32)
    vectors = JointVectors(split.pairs, table.array)
    with Progress(console=console) as progress, ThreadPoolExecutor(os.cpu_count()) as pool:

        def encode(rows: np.ndarray) -> np.ndarray:
            block = [content(row) for row in rows]
            paths = list(dict.fromkeys(path for _, path in block if path))  # each image is read once
            pixels = dict(zip(paths, pool.map(lambda path: _pixels(model, path), paths), strict=True))
            encoded = model.encode([Prepared(pixels.get(path), text) for text, path in block])
            return np.asarray(encoded.image + encoded.text)

        track = partial(progress.track, description="texts with images")
        _encode(table, vectors.find(text, image), PAIR_BLOCK, encode, lambda row: " ".join(content(row)).strip(), track)
    return vectors


def _pixels(model: Genius, path: str) -> np.ndarray:
    try:
        return model.encoder.pixels(load_image(path))
    except BadImage as error:
        raise BadData(f"An image of the benchmark cannot be read: {error}") from error
