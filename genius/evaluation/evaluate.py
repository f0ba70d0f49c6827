"""The paper's protocols on a benchmark in M-BEIR layout: every method on the same vectors, in the same run.

Two settings: `local`, each task in its own pool, and `global`, all candidates together, where the instruction alone
says which kind of item is wanted. Recall@k is M-BEIR's: a query counts when any right candidate is among the first k.
The query's own image is never an answer. Knows nothing of training, of how baselines search, or of reports.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress

from genius.data.images import load_image
from genius.data.items import Query
from genius.data.mbeir import Benchmark
from genius.data.splits import SplitData, TaskData, Vocabulary, read_split
from genius.encoders.base import Prepared, Vectors
from genius.errors import BadData, BadImage, BadModel, GeniusError
from genius.evaluation.baselines import FAISS_BASELINES, FaissBaseline, NearestCodes, build_baseline
from genius.evaluation.metrics import interval, ndcg, recall, reciprocal_rank
from genius.evaluation.runs import (
    BASELINES,
    CUTS,
    METHODS,
    PROMPTS,
    SETTINGS,
    Run,
    TaskResult,
    codebook_use,
    cuts_of,
    headline,
    id_bytes,
    tables,
)
from genius.model.decoder_runtime import DecoderRuntime
from genius.model.genius import Genius
from genius.model.quantizer import Quantizer
from genius.search.options import Mode, SearchOptions
from genius.search.searcher import Searcher

__all__ = [
    "BASELINES",
    "CUTS",
    "METHODS",
    "SETTINGS",
    "Collection",
    "Run",
    "Searchable",
    "TaskResult",
    "check_names",
    "codebook_use",
    "cuts_of",
    "encode_questions",
    "evaluate",
    "headline",
    "id_bytes",
    "read_questions",
    "score_collection",
    "tables",
]

SPARE = 8  # answers beyond the last cut, to make up for the query's own image
BLOCK = 256
ROWS_AT_ONCE = 1 << 17  # candidates compared together by exact search
SAVE_EVERY = 60  # seconds between two savings of vectors


class Searchable(Protocol):
    """What of a model is needed to search ready vectors. Without a quantizer there are no `codes` and `rq`."""

    @property
    def decoder_runtime(self) -> DecoderRuntime: ...

    @property
    def quantizer(self) -> Quantizer | None: ...

    def fuse(self, vectors: Vectors) -> np.ndarray:
        """(n, d) float32."""
        ...


@dataclass
class Collection:
    """Vectors of everything in a split, and the IDs of its candidates.

    texts, images: (numbers + 1, d); the last row, that of -1, is zero. codes: (candidates, levels) uint16.
    prompts: task name -> the queries' texts (n,) with each of the task's prompts; where a task is not in it, its
    queries are asked as they stand in the split.
    """

    split: SplitData
    texts: np.ndarray
    images: np.ndarray
    codes: np.ndarray
    prompts: dict[str, list[np.ndarray]] = field(default_factory=dict)

    def vectors(self, text: np.ndarray, image: np.ndarray) -> Vectors:
        return Vectors(self.images[image], self.texts[text])

    def asked(self, task: TaskData) -> list[np.ndarray]:
        """The queries' texts, once for each prompt."""
        return self.prompts.get(task.task.name, [task.text])


# Searching ready vectors


def score_collection(
    model: Searchable,
    collection: Collection,
    settings: Sequence[str] = SETTINGS,
    methods: Sequence[str] = METHODS,
    beam: int = 50,
    budget: int = 1000,
    console: Console | None = None,
    run: Run | None = None,
) -> list[TaskResult]:
    """Every method on every task in each setting. What `run` has already is taken from there, and the rest is added."""
    _check(model, collection, settings, methods, beam, budget)
    split, scores = collection.split, []
    jobs = [(setting, task, method) for setting in settings for task in split.tasks for method in methods]
    pools: dict[str, _Pool] = {}
    with Progress(console=console or Console()) as progress:
        bar = progress.add_task("searching", total=sum(len(task) for _, task, _ in jobs))
        for setting, task, method in jobs:
            progress.update(bar, description=f"{setting} {task.task.name} {method}")
            score = run.score(setting, task.task.name, method) if run else None
            if score is None:
                key = "" if setting == "global" else task.task.name
                if key not in pools:  # one at a time is kept: a pool may be large
                    pools = {key: _Pool(model, collection, _pool_rows(split, task, setting), beam, budget)}
                asked = _ask(collection, task, pools[key], method, lambda n: progress.advance(bar, n))
                score = _score(split, task, setting, method, asked)
                if run:
                    run.keep(score, split, task, _right_pairs(split, task, asked.pool), asked.answers)
            else:
                progress.advance(bar, len(task))
            scores.append(score)
    return scores


def _check(
    model: Searchable,
    collection: Collection,
    settings: Sequence[str],
    methods: Sequence[str],
    beam: int,
    budget: int,
) -> None:
    """Refuses what could only give zeros, before anything is searched."""
    _check_asked(settings, methods, beam, budget)
    split, sizes, dim = collection.split, np.array(model.decoder_runtime.config.sizes), model.decoder_runtime.config.dim
    if model.quantizer is None and {"codes", "rq"} & set(methods):
        raise GeniusError("Without a quantizer there is no search by codes: leave out the methods codes and rq.")
    for name, vectors in (("texts", collection.texts), ("images", collection.images)):
        if vectors.shape[1] != dim:
            raise BadModel(
                f"The vectors of the {name} have {vectors.shape[1]} dimensions, the model's decoder has {dim}: they "
                "are another model's. Encode the split with this one."
            )
        if not np.isfinite(vectors).all():
            raise BadData(f"Some vectors of the {name} hold values that are not numbers (NaN). Check the model.")
    if collection.codes.shape != (len(split.text), len(sizes)) or (collection.codes >= sizes).any():
        raise BadModel(
            f"The candidates' IDs of shape {collection.codes.shape} do not fit {len(split.text)} candidates and the "
            f"decoder's levels {tuple(sizes.tolist())}: they are another model's. Make them with this one."
        )
    _check_answerable(split, settings)


def _check_asked(settings: Sequence[str], methods: Sequence[str], beam: int, budget: int) -> None:
    check_names(settings, SETTINGS, "setting")
    check_names(methods, METHODS + BASELINES, "method")
    SearchOptions(beam=beam, budget=budget)  # raises if one is out of range
    if set(methods) & set(FAISS_BASELINES) and find_spec("faiss") is None:
        raise GeniusError(
            'The baselines need Faiss. Install it with: pip install "genius-search[baselines]", or leave them out.'
        )


def check_names(given: Sequence[str], known: Sequence[str], what: str) -> None:
    """Refuses a name that is not known, and a list of none."""
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None or not given:
        problem = f"There is no {what} {unknown!r}" if unknown is not None else f"No {what} was given"
        raise GeniusError(f"{problem}. Choose from {', '.join(known)}.")


def _check_answerable(split: SplitData, settings: Sequence[str]) -> None:
    for setting in settings:
        for task in split.tasks:
            _check_task(split, task, setting)


def _check_ids(split: SplitData) -> None:
    for id in chain(split.dids, *(task.qids for task in split.tasks)):
        if len(id.split()) != 1:
            raise BadData(
                f"The id {id!r} is empty or holds white space, which TREC files cannot hold. Use another id, or keep "
                "no run folder."
            )


def _check_task(split: SplitData, task: TaskData, setting: str) -> None:
    rows = _pool_rows(split, task, setting)
    query = np.repeat(np.arange(len(task)), [len(positives) for positives in task.positives])
    there = np.isin(np.concatenate(task.positives), rows)
    missing = np.flatnonzero(np.bincount(query[there], minlength=len(task)) == 0)
    if len(missing):
        raise BadData(
            f"{task.task.name}: no right candidate of the query {task.qids[missing[0]]} (and of {len(missing) - 1} "
            f"more) is in the {setting} pool. The ids of queries and pool do not belong together: check these files."
        )
    if not _right_pairs(split, task, rows).size:
        raise BadData(
            f"{task.task.name}: every right candidate in the {setting} pool shows the image of its own query, which "
            "is never an answer. Check the image paths of queries and candidates."
        )


def _pool_rows(split: SplitData, task: TaskData, setting: str) -> np.ndarray:
    rows = np.arange(len(split.text)) if setting == "global" else task.pool
    if rows is None or not len(rows):
        raise BadData(f"{task.task.name} has no {setting} candidates to search. Check its candidate pool.")
    return rows


def _right_pairs(split: SplitData, task: TaskData, rows: np.ndarray) -> np.ndarray:
    """(2, pairs): every query and every right candidate that can be an answer to it: in the pool, not its image."""
    query = np.repeat(np.arange(len(task)), [len(positives) for positives in task.positives])
    query, right = divmod(np.unique(query * len(split.text) + np.concatenate(task.positives)), len(split.text))
    own = (task.image[query] >= 0) & (split.image[right] == task.image[query])
    return np.stack([query, right])[:, np.isin(right, rows) & ~own]


Rank = Callable[[Vectors], np.ndarray]
"""Queries -> (q, answers) rows of a pool, best first, -1 where there are fewer."""


class _Pool:
    """One pool, ready for every method; what a method needs is made when it is first asked for."""

    def __init__(self, model: Searchable, collection: Collection, rows: np.ndarray, beam: int, budget: int) -> None:
        self.model, self.rows, self.beam, self.budget = model, rows, beam, budget
        self.vectors = collection.vectors(collection.split.text[rows], collection.split.image[rows])
        self.codes, self.modality = collection.codes[rows], collection.split.modality[rows]
        self._baselines: dict[str, FaissBaseline | NearestCodes] = {}

    @cached_property
    def embeddings(self) -> np.ndarray:
        return self.vectors.embedding()

    @cached_property
    def fused(self) -> np.ndarray:
        return self.model.fuse(self.vectors)

    @cached_property
    def searcher(self) -> Searcher:
        return Searcher(cast(Genius, self.model), self.codes, self.embeddings)

    @cached_property
    def searcher_by_codes(self) -> Searcher:
        return Searcher(cast(Genius, self.model), self.codes)

    def bytes(self, method: str) -> float:
        vector, codes = 4.0 * self.vectors.image.shape[1], id_bytes(self.model.decoder_runtime.config.sizes)
        if method in BASELINES:
            return float(self._baseline(method).bytes_per_item)
        kept = {"generate": codes, "codes": codes, "rerank": codes + vector, "fast": codes + vector}
        return kept.get(method, vector)

    def rank(self, method: str, wanted: int, k: int) -> Rank:
        """How a method finds k answers; `wanted` is for exact-modality alone: the others must understand the prompt."""
        if method == "exact":
            return lambda queries: _nearest(queries.embedding(), self.embeddings, k)
        if method == "exact-modality":
            rows = np.flatnonzero(self.modality == wanted)
            vectors = self.embeddings[rows]
            return lambda queries: rows[_nearest(queries.embedding(), vectors, k)]
        if method == "fused":
            return lambda queries: _nearest(self.model.fuse(queries), self.fused, k)
        if method == "rq":
            return lambda queries: self._found(method, self.model.fuse(queries), k)
        if method in BASELINES:
            return lambda queries: self._found(method, queries.embedding(), k)
        if method == "codes":
            return lambda queries: self._search(self.searcher_by_codes, "fast", queries, k)
        # A beam of b finds b answers: asking for more would widen it.
        most = k if method == "fast" else min(k, self.beam)
        return lambda queries: self._search(self.searcher, method, queries, most)

    def prepare(self, method: str) -> None:
        """Makes what is kept for a method, so that it does not count as searching."""
        self.rank(method, 0, 1)(self.vectors[:1])

    def _search(self, searcher: Searcher, mode: Mode, queries: Vectors, k: int) -> np.ndarray:
        fused, embedding = self.model.fuse(queries), queries.embedding()
        options = SearchOptions(k=k, mode=mode, beam=self.beam, budget=self.budget)
        return searcher.search(fused, embedding, None, options).top.rows

    def _found(self, method: str, queries: np.ndarray, k: int) -> np.ndarray:
        rows: np.ndarray = self._baseline(method).search(queries, min(k, len(self.rows)))
        return rows

    def _baseline(self, method: str) -> FaissBaseline | NearestCodes:
        if method not in self._baselines:
            self._baselines[method] = self._build(method)
        return self._baselines[method]

    def _build(self, method: str) -> FaissBaseline | NearestCodes:
        if method == "rq" and self.model.quantizer is not None:
            return NearestCodes(self.codes, [book.cpu().numpy() for book in self.model.quantizer.codebooks])
        size = id_bytes(self.model.decoder_runtime.config.sizes)
        return build_baseline(method, self.embeddings, size, threads=torch.get_num_threads())


def _nearest(queries: np.ndarray, candidates: np.ndarray, k: int) -> np.ndarray:
    """(q, min(k, candidates)) rows of the nearest candidates, the lower row where two are equally near."""
    asked = torch.from_numpy(queries)
    values, rows = torch.empty(len(queries), 0), torch.empty(len(queries), 0, dtype=torch.int64)
    for start in range(0, len(candidates), ROWS_AT_ONCE):
        block = torch.from_numpy(candidates[start : start + ROWS_AT_ONCE])
        best = (asked @ block.T).topk(min(k, len(block)), dim=1)
        values, rows = torch.cat([values, best.values], 1), torch.cat([rows, best.indices + start], 1)
        order = np.lexsort((rows.numpy(), -values.numpy()))[:, :k]
        values, rows = (torch.from_numpy(np.take_along_axis(t.numpy(), order, 1)) for t in (values, rows))
    found: np.ndarray = rows.numpy()
    return found


@dataclass
class _Asked:
    """What a method answered: for each prompt (q, last cut) candidates, -1 where there are fewer."""

    pool: np.ndarray
    answers: list[np.ndarray]
    seconds: float
    bytes: float


def _ask(
    collection: Collection, task: TaskData, pool: _Pool, method: str, advance: Callable[[float], object]
) -> _Asked:
    cut = cuts_of(task.task.dataset)[-1]
    rank = pool.rank(method, int(task.task.target_modality), cut + SPARE)
    pool.prepare(method)
    seconds, answers = 0.0, []
    texts = collection.asked(task)
    for text in texts:
        ranked = []
        for rows in _blocks(np.arange(len(task)), BLOCK):
            queries = collection.vectors(text[rows], task.image[rows])
            started = time.perf_counter()
            ranked.append(rank(queries))
            seconds += time.perf_counter() - started
            advance(len(rows) / len(texts))
        answers.append(_answers(collection.split, task, pool.rows, np.concatenate(ranked), cut))
    return _Asked(pool.rows, answers, seconds / len(texts) / len(task), pool.bytes(method))


def _answers(split: SplitData, task: TaskData, pool: np.ndarray, ranked: np.ndarray, cut: int) -> np.ndarray:
    """ranked: (q, answers) rows of the pool -> (q, cut) candidates without the query's own image, -1 at the end."""
    found = np.where(ranked >= 0, pool[ranked], -1)
    own = (task.image[:, None] >= 0) & (split.image[found] == task.image[:, None]) & (found >= 0)
    order = np.argsort(own | (found < 0), axis=1, kind="stable")[:, :cut]  # own images and gaps to the end
    return np.take_along_axis(np.where(own, -1, found), order, axis=1)


def _score(split: SplitData, task: TaskData, setting: str, method: str, asked: _Asked) -> TaskResult:
    """All figures of one method on one task: means over queries and prompts."""
    query, right_row = _right_pairs(split, task, asked.pool)
    positives = np.bincount(query, minlength=len(task))
    known = query * len(split.text) + right_row
    owner = np.arange(len(task))[:, None] * len(split.text)
    rights = [np.isin(found + owner, known) & (found >= 0) for found in asked.answers]
    hits = {cut: np.array([recall(right, cut) for right in rights]) for cut in cuts_of(task.task.dataset)}
    first = np.concatenate([found[:, :5] for found in asked.answers])
    kinds = (split.modality[first] == int(task.task.target_modality))[first >= 0]
    bounds = {cut: interval(values.mean(axis=0)) for cut, values in hits.items()}
    return TaskResult(
        setting=setting,
        task=task.task.name,
        dataset=task.task.dataset,
        modalities=f"{task.task.query_modality.label}->{task.task.target_modality.label}",
        method=method,
        queries=len(task),
        candidates=len(asked.pool),
        recall={cut: 100 * float(values.mean()) for cut, values in hits.items()},
        interval={cut: (100 * low, 100 * high) for cut, (low, high) in bounds.items()},
        mrr=float(np.mean([reciprocal_rank(right, 10) for right in rights])),
        ndcg=float(np.mean([ndcg(right, positives, 10) for right in rights])),
        right_modality=100 * float(kinds.mean()) if len(kinds) else 0.0,
        seconds=asked.seconds,
        bytes=asked.bytes,
        spread={cut: 100 * float(values.mean(axis=1).std()) for cut, values in hits.items()}
        if len(rights) > 1
        else None,
    )


def _blocks(rows: np.ndarray, size: int) -> list[np.ndarray]:
    return np.array_split(rows, max(1, -(-len(rows) // size)))


# From a benchmark to vectors


@dataclass
class Questions:
    """A split as it is asked: some tasks, some queries of each, one prompt or all. `digest` names the whole split."""

    split: SplitData
    texts: list[str]
    images: list[str]
    prompts: dict[str, list[np.ndarray]]
    digest: str


def read_questions(
    benchmark: Benchmark,
    split: str,
    limit: int | None = None,
    tasks: Sequence[str] | None = None,
    prompts: str = "first",
) -> Questions:
    """limit: at most so many queries a task, drawn by seed 0. tasks: names, or how they begin."""
    check_names([prompts], PROMPTS, "choice of prompts")
    if limit is not None and limit < 1:
        raise BadData(f"The limit is {limit} queries a task; it must be at least 1.")
    texts, images = Vocabulary(), Vocabulary()
    data = read_split([benchmark], split, texts, images)
    asked = {t.task.name: _with_each_prompt(benchmark, split, t, texts) for t in data.tasks} if prompts == "all" else {}
    digest = _digest(benchmark, data, texts.names, images.names)
    data.tasks = _chosen(data.tasks, tasks)
    for number, task in enumerate(data.tasks):
        if limit is not None:
            rows = np.sort(np.random.default_rng(0).permutation(len(task))[:limit])
            data.tasks[number] = _some(task, rows)
            asked |= {name: [text[rows] for text in asked[name]] for name in (task.task.name,) if name in asked}
    return Questions(data, texts.names, images.names, asked, digest)


def _with_each_prompt(benchmark: Benchmark, split: str, task: TaskData, texts: Vocabulary) -> list[np.ndarray]:
    queries, wanted = benchmark.queries(task.task, split), task.task.target_modality
    prompts = benchmark.prompts(task.task.dataset, task.task.query_modality, wanted)
    strings = [[Query(q.text, q.image_path, prompt, wanted).prompt() for q in queries] for prompt in prompts]
    return [np.array([texts.number(string) for string in of_one]) for of_one in strings]


def _digest(benchmark: Benchmark, data: SplitData, texts: list[str], images: list[str]) -> str:
    paths = [os.path.relpath(image, benchmark.root) for image in images]
    right = [(task.task.name, task.qids, [rows.tolist() for rows in task.positives]) for task in data.tasks]
    pools = [task.pool.tolist() for task in data.tasks if task.pool is not None]
    everything = [texts, paths, data.dids, data.text.tolist(), data.image.tolist(), right, pools]
    return hashlib.sha256(json.dumps(everything).encode()).hexdigest()[:16]


def _chosen(tasks: list[TaskData], wanted: Sequence[str] | None) -> list[TaskData]:
    for name in wanted or ():
        if not any(task.task.name.startswith(name) for task in tasks):
            known = ", ".join(task.task.name for task in tasks)
            raise BadData(f"No task of the split begins with {name!r}. Choose from {known}.")
    return [task for task in tasks if wanted is None or task.task.name.startswith(tuple(wanted))]


def _some(task: TaskData, rows: np.ndarray) -> TaskData:
    positives = [task.positives[row] for row in rows]
    return TaskData(task.task, [task.qids[r] for r in rows], task.text[rows], task.image[rows], positives, task.pool)


def encode_questions(
    model: Genius,
    questions: Questions,
    settings: Sequence[str] = SETTINGS,
    console: Console | None = None,
    run: Run | None = None,
) -> Collection:
    """Encodes every text and image that is needed once; those that `run` holds, not again."""
    console = console or Console()
    data = questions.split
    rows = _needed_rows(data, settings)
    asked = [text for task in data.tasks for text in questions.prompts.get(task.task.name, [task.text])]
    texts = _Encoded(len(questions.texts), model.dim, np.concatenate([data.text[rows], *asked]))
    images = _Encoded(
        len(questions.images), model.dim, np.concatenate([data.image[rows], *(task.image for task in data.tasks)])
    )
    stores = {"texts": texts, "images": images}
    kept = run.load_vectors() if run else {}
    for name, store in stores.items() if kept else ():
        store.put(kept[f"{name}_rows"], kept[name])
    saved = time.monotonic()

    def save() -> None:
        if run:
            rows = {f"{name}_rows": np.flatnonzero(store.done) for name, store in stores.items()}
            run.save_vectors(**rows, **{name: store.vectors[:-1][store.done] for name, store in stores.items()})

    def encoded(store: _Encoded, block: np.ndarray, vectors: np.ndarray, names: list[str]) -> None:
        nonlocal saved
        bad = block[~np.isfinite(vectors).all(axis=1)]
        if len(bad):
            raise BadData(
                f"The model makes no vector of {names[bad[0]]!r}: it holds values that are not numbers (NaN)."
            )
        store.put(block, vectors)
        if time.monotonic() - saved > SAVE_EVERY:
            save()
            saved = time.monotonic()

    with Progress(console=console) as progress, ThreadPoolExecutor(os.cpu_count()) as pool:
        for block in progress.track(texts.blocks(2048), description="texts"):
            strings = [questions.texts[i] for i in block]
            encoded(texts, block, model.encode([Prepared(None, s) for s in strings]).text, questions.texts)
        for block in progress.track(images.blocks(64), description="images"):
            pixels = pool.map(lambda path: _pixels(model, path), [questions.images[i] for i in block])
            encoded(images, block, model.encode([Prepared(p, "") for p in pixels]).image, questions.images)
    save()
    codes = np.zeros((len(data.text), len(model.sizes)), np.uint16)
    collection = Collection(data, texts.vectors, images.vectors, codes, questions.prompts)
    candidates = collection.vectors(data.text[rows], data.image[rows])
    changed = np.flatnonzero(candidates.modality != data.modality[rows])
    if len(changed):
        did = data.dids[rows[changed[0]]]
        raise BadData(f"The model makes an empty vector of the text or image of the candidate {did}. Check these.")
    with console.status("codes"):
        codes[rows] = model.codes(candidates)
    return collection


def _needed_rows(split: SplitData, settings: Sequence[str]) -> np.ndarray:
    """The candidates that are searched in any of these settings."""
    if "global" in settings:
        return np.arange(len(split.text))
    return np.unique(np.concatenate([_pool_rows(split, task, setting) for setting in settings for task in split.tasks]))


class _Encoded:
    """Vectors of numbered things, which of them are needed, and which are there. The last row, that of -1, is zero."""

    def __init__(self, count: int, dim: int, needed: np.ndarray) -> None:
        self.vectors = np.zeros((count + 1, dim), np.float32)
        self.done = np.zeros(count, bool)
        self.needed = np.unique(needed[needed >= 0])

    def put(self, rows: np.ndarray, vectors: np.ndarray) -> None:
        self.vectors[rows], self.done[rows] = vectors, True

    def blocks(self, size: int) -> list[np.ndarray]:
        missing = self.needed[~self.done[self.needed]]
        return _blocks(missing, size) if len(missing) else []


def _pixels(model: Genius, path: str) -> np.ndarray:
    try:
        return model.encoder.pixels(load_image(path))
    except BadImage as error:
        raise BadData(f"The benchmark's image cannot be read: {error}") from error


# The whole, and its folder


def evaluate(
    model: Genius,
    benchmark: Benchmark,
    split: str = "test",
    settings: Sequence[str] = SETTINGS,
    methods: Sequence[str] = METHODS,
    beam: int = 50,
    budget: int = 1000,
    limit: int | None = None,
    tasks: Sequence[str] | None = None,
    prompts: str = "first",
    out: Path | None = None,
    console: Console | None = None,
) -> list[TaskResult]:
    """Every method on every task of a split, in each setting.

    tasks: names such as "mscoco_task0", or how they begin; all unless given. prompts: "first", or "all": the mean over
    a task's prompts, and the spread between them. limit: at most so many queries a task. out: a run folder, to keep
    everything; started again, it goes on where it stopped, and can grow by tasks, settings and methods.
    """
    _check_asked(settings, methods, beam, budget)
    questions = read_questions(benchmark, split, limit, tasks, prompts)
    _check_answerable(questions.split, settings)
    run = None
    if out is not None:
        _check_ids(questions.split)
        facts = {"benchmark": benchmark.root.resolve().name, "split": split, "beam": beam, "budget": budget}
        run = Run(out, model, facts | {"limit": limit, "prompts": prompts, "digest": questions.digest})
    collection = encode_questions(model, questions, settings, console, run)
    if run and ("global" in settings or not run.facts.get("codebooks")):
        run.facts["codebooks"] = codebook_use(collection.codes[_needed_rows(questions.split, settings)], model.sizes)
    return score_collection(model, collection, settings, methods, beam, budget, console, run)
