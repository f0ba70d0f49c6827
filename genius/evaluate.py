"""Recall on a benchmark in M-BEIR layout: exact search and the three modes on the same vectors, in the same run.

Two settings: `local`, each task in its own pool, and `global`, all candidates together, where the instruction alone
says which kind of item is wanted. Recall@k is M-BEIR's: a query counts when any right candidate is among the first k.
The query's own picture is never an answer. Knows nothing of training.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from genius.encoders import Prepared, Vectors
from genius.errors import BadData, BadImage
from genius.images import load_image
from genius.mbeir import Benchmark
from genius.model import Genius
from genius.searcher import Searcher
from genius.splits import SplitData, TaskData, Vocabulary, read_split

METHODS = ("exact", "fused", "generate", "rerank", "fast", "codes")
"""exact: all stage-1 vectors; fused: all fused vectors; the three modes; codes: `fast` where no embeddings are kept."""
CUTS = (1, 5, 10)
SPARE = 8  # answers beyond the last cut, to make up for the query's own picture
BLOCK = 256
SETTINGS = ("local", "global")


@dataclass(frozen=True)
class Score:
    """Recall (%) of one method on one task, and how many of its first five answers (%) are of the wanted kind."""

    setting: str
    task: str
    method: str
    queries: int
    candidates: int
    recall: dict[int, float]
    right_kind: float


@dataclass
class Collection:
    """Vectors of everything in a split, and the IDs of its candidates."""

    split: SplitData
    texts: np.ndarray  # (texts + 1, d); the last row, that of -1, is zero
    images: np.ndarray
    codes: np.ndarray

    def vectors(self, text: np.ndarray, image: np.ndarray) -> Vectors:
        return Vectors(self.images[image], self.texts[text])


def encode_split(model: Genius, benchmark: Benchmark, split: str, limit: int | None, console: Console) -> Collection:
    """Encodes every text and picture of a split once. `limit`: at most so many queries a task, drawn by seed 0."""
    if limit is not None and limit < 1:
        raise BadData(f"The limit is {limit} queries a task; it must be at least 1.")
    texts, images = Vocabulary(), Vocabulary()
    data = read_split([benchmark], split, texts, images)
    if limit is not None:
        data.tasks = [_sample(task, limit) for task in data.tasks]
    text_vectors = np.zeros((len(texts.names) + 1, model.dim), dtype=np.float32)
    image_vectors = np.zeros((len(images.names) + 1, model.dim), dtype=np.float32)
    used = np.unique(np.concatenate([data.text, *(task.text for task in data.tasks)]))
    with Progress(console=console) as progress:
        for rows in progress.track(_blocks(used[used >= 0], 2048), description="texts"):
            text_vectors[rows] = model.encode([Prepared(None, texts.names[i]) for i in rows]).text
        for rows in progress.track(_blocks(np.arange(len(images.names)), 64), description="pictures"):
            image_vectors[rows] = model.encode([Prepared(_pixels(model, images.names[i]), "") for i in rows]).image
    collection = Collection(data, text_vectors, image_vectors, np.empty((0, 0)))
    with console.status("codes"):
        collection.codes = model.codes(collection.vectors(data.text, data.image))
    return collection


def _pixels(model: Genius, path: str) -> np.ndarray:
    try:
        return model.encoder.pixels(load_image(path))
    except BadImage as error:
        raise BadData(f"The benchmark's picture cannot be read: {error}") from error


def _sample(task: TaskData, limit: int) -> TaskData:
    rows = np.sort(np.random.default_rng(0).permutation(len(task))[:limit])
    positives = [task.positives[row] for row in rows]
    return TaskData(task.task, [task.qids[r] for r in rows], task.text[rows], task.image[rows], positives, task.pool)


def evaluate(
    model: Genius,
    benchmark: Benchmark,
    split: str = "test",
    settings: tuple[str, ...] = SETTINGS,
    methods: tuple[str, ...] = METHODS,
    beam: int = 50,
    budget: int = 1000,
    limit: int | None = None,
    console: Console | None = None,
) -> list[Score]:
    """Recall of every method on every task of a split, in each setting."""
    console = console or Console()
    collection = encode_split(model, benchmark, split, limit, console)
    everything = np.arange(len(collection.split.text))
    scores: list[Score] = []
    with Progress(console=console) as progress:
        tasks = collection.split.tasks
        jobs = [(setting, task, method) for setting in settings for task in tasks for method in methods]
        bar = progress.add_task("searching", total=sum(len(task) for _, task, _ in jobs))
        searches: dict[str, dict[str, Rank]] = {}
        for setting, task, method in jobs:
            pool = everything if setting == "global" else task.pool
            if pool is None or not len(pool):
                raise BadData(f"{task.task.name} has no {setting} candidates to search in the {split} split.")
            key = setting if setting == "global" else f"{setting} {task.task.name}"
            if key not in searches:
                searches = {key: _ranks(model, collection, pool, beam, budget)}
            progress.update(bar, description=f"{setting} {task.task.name} {method}")
            ranked = []
            for rows in _blocks(np.arange(len(task)), BLOCK):
                vectors = collection.vectors(task.text[rows], task.image[rows])
                ranked.append(searches[key][method](vectors))
                progress.advance(bar, len(rows))
            scores.append(_score(collection.split, task, setting, method, pool, np.concatenate(ranked)))
    return scores


Rank = Callable[[Vectors], np.ndarray]
"""Queries -> (q, answers) rows of a pool, best first, -1 where there are fewer."""


def _ranks(model: Genius, collection: Collection, pool: np.ndarray, beam: int, budget: int) -> dict[str, Rank]:
    """How each method ranks one pool."""
    vectors = collection.vectors(collection.split.text[pool], collection.split.image[pool])
    embeddings, codes = vectors.embedding(), collection.codes[pool]
    with_embeddings, without = Searcher(model, codes, embeddings), Searcher(model, codes)
    k = CUTS[-1] + SPARE

    def by_mode(searcher: Searcher, mode: str) -> Rank:
        def rank(queries: Vectors) -> np.ndarray:
            fused, embedding = model.fuse(queries), queries.embedding()
            return searcher.search(fused, embedding, None, k, mode, beam, budget).rows

        return rank

    fused = model.fuse(vectors)
    return {
        "exact": lambda queries: _nearest(queries.embedding(), embeddings, k),
        "fused": lambda queries: _nearest(model.fuse(queries), fused, k),
        **{mode: by_mode(with_embeddings, mode) for mode in ("generate", "rerank", "fast")},
        "codes": by_mode(without, "fast"),
    }


def _nearest(queries: np.ndarray, candidates: np.ndarray, k: int) -> np.ndarray:
    scores = torch.from_numpy(queries) @ torch.from_numpy(candidates).T
    return scores.topk(min(k, len(candidates)), dim=1).indices.numpy()


def _score(split: SplitData, task: TaskData, setting: str, method: str, pool: np.ndarray, ranked: np.ndarray) -> Score:
    """ranked: (queries, answers) rows of the pool."""
    found = np.where(ranked >= 0, pool[ranked], -1)
    own = (task.image[:, None] >= 0) & (split.image[found] == task.image[:, None]) & (found >= 0)
    order = np.argsort(own | (found < 0), axis=1, kind="stable")[:, : CUTS[-1]]  # own pictures and gaps to the end
    answers = np.take_along_axis(np.where(own, -1, found), order, axis=1)
    right = np.array([np.isin(a, p) for a, p in zip(answers, task.positives, strict=True)])
    first = answers[:, :5]
    kinds = (split.modality[first] == int(task.task.wanted))[first >= 0]
    return Score(
        setting,
        task.task.name,
        method,
        len(task),
        len(pool),
        {cut: 100 * float(right[:, :cut].any(axis=1).mean()) for cut in CUTS},
        100 * float(kinds.mean()) if len(kinds) else 0.0,
    )


def _blocks(rows: np.ndarray, size: int) -> list[np.ndarray]:
    return np.array_split(rows, max(1, -(-len(rows) // size)))


def tables(scores: list[Score], cut: int = 5) -> Iterator[Table]:
    """For people: a table of Recall@`cut` for each setting, with the mean and its ratio to exact search."""
    methods = [m for m in METHODS if any(s.method == m for s in scores)]
    for setting in dict.fromkeys(s.setting for s in scores):
        mine = {(s.task, s.method): s for s in scores if s.setting == setting}
        table = Table(title=f"Recall@{cut}, %, {setting} pools", box=box.SIMPLE_HEAD, title_justify="left")
        table.add_column("task")
        for name in ("queries", "candidates", *methods):
            table.add_column(name, justify="right")
        for task in dict.fromkeys(task for task, _ in mine):
            first = mine[task, methods[0]]
            row = [f"{mine[task, method].recall[cut]:.1f}" for method in methods]
            table.add_row(task, f"{first.queries:,}", f"{first.candidates:,}", *row)
        means = [float(np.mean([s.recall[cut] for s in mine.values() if s.method == m])) for m in methods]
        kinds = [float(np.mean([s.right_kind for s in mine.values() if s.method == m])) for m in methods]
        table.add_section()
        table.add_row("mean", "", "", *(f"[bold]{mean:.1f}[/]" for mean in means))
        if methods[0] == "exact":
            table.add_row("ratio to exact", "", "", *(f"{mean / max(means[0], 1e-9):.3f}" for mean in means))
        table.add_row("answers of the wanted kind, %", "", "", *(f"{kind:.1f}" for kind in kinds))
        yield table


def write_scores(scores: list[Score], path: Path) -> None:
    path.write_text(json.dumps([asdict(s) for s in scores], indent=1) + "\n")
