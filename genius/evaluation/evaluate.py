"""The paper's evaluation protocols on a benchmark in M-BEIR layout: every method on the same vectors, in one run.

There are two settings. In `local`, each task searches its own pool. In `global`, all candidates are searched together,
and the instruction alone tells the target modality. A query counts for Recall@k if any right candidate is among the
first k answers. The image of the query itself never counts as an answer, except in the paper's protocol: see PROTOCOLS.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Protocol

import numpy as np
from rich.console import Console
from rich.progress import Progress

from genius.data.mbeir import Benchmark
from genius.data.splits import SplitData, TaskData
from genius.errors import BadData, GeniusError
from genius.evaluation.baselines import FAISS_BASELINES, load_faiss
from genius.evaluation.encoded_split import (
    EncodedSplit,
    encode_split,
    pool_rows,
    read_evaluation_split,
    searched_rows,
)
from genius.evaluation.metrics import interval, ndcg, recall, reciprocal_rank
from genius.evaluation.pool import CandidatePool, VectorSearchModel
from genius.evaluation.runs import (
    BASELINES,
    METHODS,
    PROTOCOLS,
    SETTINGS,
    WITHOUT_CODEBOOKS,
    RunFolder,
    TaskResult,
    check_names,
    codebook_use,
    cuts_of,
    id_bytes,
)
from genius.model.genius import Genius
from genius.runtime.wording import counted
from genius.search.options import SearchOptions

NEED_CODEBOOKS = ("generate", "codes", "rq")
EXTRA_ANSWERS = 8  # beyond the last cut, to replace the query's own image


class ResultStore(Protocol):
    """Keeps results as they are measured. `RunFolder` is one."""

    results: dict[tuple[str, str, str], TaskResult]  # by setting, task and method

    def add(
        self, result: TaskResult, split: SplitData, task: TaskData, right: np.ndarray, answers: Sequence[np.ndarray]
    ) -> None:
        """Store a result and its answers: see `RunFolder.add`."""
        ...


def evaluate(
    model: Genius,
    benchmark: Benchmark,
    split: str = "test",
    settings: Sequence[str] = SETTINGS,
    methods: Sequence[str] | None = None,
    beam: int = SearchOptions.beam,
    budget: int | None = SearchOptions.budget,
    limit: int | None = None,
    tasks: Sequence[str] | None = None,
    prompts: str = "first",
    out: Path | None = None,
    console: Console | None = None,
    protocol: str = PROTOCOLS[0],
) -> list[TaskResult]:
    """Measure methods on every task of a split.

    Args:
        model: The model to evaluate.
        benchmark: The benchmark.
        split: Name of the split.
        settings: Some of "local" and "global".
        methods: Some of METHODS and BASELINES. Default: METHODS, or those that need no codebooks if there are none.
        beam: Beam width of the search modes.
        budget: Number of items that mode "fast" re-ranks at most. None: it follows the number of candidates.
        limit: Maximum number of queries per task, sampled with a fixed seed.
        tasks: Names of tasks such as "mscoco_task0", or prefixes. Default: all tasks.
        prompts: "first", or "all" for the mean over a task's prompts and the spread between them.
        out: Folder that keeps results, TREC files and vectors. An interrupted run continues where it stopped. Later
            runs can add tasks, settings and methods.
        console: Where progress is shown.
        protocol: One of PROTOCOLS: "usual", or "paper" for the authors' own.

    Returns:
        One result per setting, task and method.

    Raises:
        GeniusError: An argument is not valid, or the benchmark cannot be read or encoded.
    """
    check_names(settings, SETTINGS, "setting")
    check_names([protocol], PROTOCOLS, "protocol")
    if methods is None:
        methods = WITHOUT_CODEBOOKS if model.encoder_only else METHODS
    check_names(methods, METHODS + BASELINES, "method")
    if model.encoder_only and (lacking := [method for method in methods if method in NEED_CODEBOOKS]):
        raise GeniusError(
            f"The model has no codebooks, which {' and '.join(lacking)} would need. Choose from "
            f"{', '.join(m for m in METHODS + BASELINES if m not in NEED_CODEBOOKS)}; or train codebooks and a decoder."
        )
    SearchOptions(beam=beam, budget=budget)
    if set(methods) & set(FAISS_BASELINES):
        load_faiss()
    asked = read_evaluation_split(benchmark, split, limit, tasks, prompts)
    _check_tasks(asked.data, settings, protocol)
    run = None
    if out is not None:
        _check_ids(asked.data)
        facts = {"benchmark": benchmark.root.resolve().name, "split": split, "beam": beam, "budget": budget}
        facts |= {"limit": limit, "prompts": prompts, "protocol": protocol, "digest": asked.digest}
        run = RunFolder(out, {"model": _model_facts(model), **facts})
    encoded = encode_split(model, asked, settings, console, run)
    if run and not model.encoder_only and ("global" in settings or not run.facts.get("codebooks")):
        run.facts["codebooks"] = codebook_use(encoded.codes[searched_rows(asked.data, settings)], model.sizes)
    return evaluate_encoded(model, encoded, settings, methods, beam, budget, console, run, protocol)


def evaluate_encoded(
    model: VectorSearchModel,
    encoded: EncodedSplit,
    settings: Sequence[str] = SETTINGS,
    methods: Sequence[str] = METHODS,
    beam: int = SearchOptions.beam,
    budget: int | None = SearchOptions.budget,
    console: Console | None = None,
    run: "ResultStore | None" = None,
    protocol: str = PROTOCOLS[0],
) -> list[TaskResult]:
    """Measure methods on every task of an encoded split. Results that `run` holds are not measured again."""
    if model.quantizer is None and {"codes", "rq"} & set(methods):
        raise GeniusError("Without a quantizer there is no search by codes. Leave out the methods codes and rq.")
    _check_tasks(encoded.data, settings, protocol)
    data, results = encoded.data, []
    jobs = [(setting, task, method) for setting in settings for task in data.tasks for method in methods]
    pools: dict[str, CandidatePool] = {}
    with Progress(console=console or Console()) as progress:
        bar = progress.add_task("searching", total=sum(len(task) for _, task, _ in jobs))
        for setting, task, method in jobs:
            progress.update(bar, description=f"{setting} {task.task.name} {method}")
            result = run.results.get((setting, task.task.name, method)) if run else None
            if result is None:
                key = "" if setting == "global" else task.task.name
                if key not in pools:  # keep one pool only: it may be large
                    rows = pool_rows(data, task, setting)
                    pools = {key: CandidatePool(model, encoded, rows, beam, budget, protocol)}
                answers = _search(encoded, task, pools[key], method, lambda n: progress.advance(bar, n))
                right = _right_pairs(data, task, answers.pool, protocol)
                result = _result(data, task, setting, method, answers, right)
                if run:
                    run.add(result, data, task, right, answers.candidates)
            else:
                progress.advance(bar, len(task))
            results.append(result)
    return results


def _model_facts(model: Genius) -> dict[str, object]:
    return {
        "name": model.source,
        "encoder": model.encoder.kind,
        "fingerprint": model.fingerprint,
        "dim": model.dim,
        "levels": model.quantizer.levels,
        "codes_per_level": model.quantizer.codes_per_level,
        "bytes_per_item": id_bytes(model.sizes),
        "int8": model.decoder.int8,
    }


# Checks before anything is searched


def _check_tasks(data: SplitData, settings: Sequence[str], protocol: str) -> None:
    """Refuse tasks whose recall could only be zero."""
    for setting in settings:
        for task in data.tasks:
            rows = pool_rows(data, task, setting)
            query = np.repeat(np.arange(len(task)), [len(positives) for positives in task.positives])
            there = np.isin(np.concatenate(task.positives), rows)
            missing = np.flatnonzero(np.bincount(query[there], minlength=len(task)) == 0)
            if len(missing):
                raise BadData(
                    f"{task.task.name}: {counted(len(missing), 'query', 'queries')} without a right candidate in the "
                    f"{setting} pool, such as {task.qids[missing[0]]}. The ids of queries and pool do not belong "
                    "together: check these files."
                )
            if not _right_pairs(data, task, rows, protocol).size:
                raise BadData(
                    f"{task.task.name}: every right candidate in the {setting} pool shows the image of its own query, "
                    "which is never an answer in this protocol. Check the image paths of queries and candidates."
                )


def _check_ids(data: SplitData) -> None:
    for id in chain(data.dids, *(task.qids for task in data.tasks)):
        if len(id.split()) != 1:
            raise BadData(
                f"The id {id!r} is empty or holds white space, which TREC files cannot hold. Use another id, or run "
                "without a run folder."
            )


# One method on one task


@dataclass
class _Answers:
    """Answers of one method to the queries of one task.

    pool: (n,) candidates searched. candidates: for each prompt (q, last cut), -1 where there are fewer answers.
    seconds: search time per query, queries searched in blocks.
    """

    pool: np.ndarray
    candidates: list[np.ndarray]
    seconds: float
    bytes_per_item: float


def _search(
    encoded: EncodedSplit, task: TaskData, pool: CandidatePool, method: str, advance: Callable[[float], object]
) -> _Answers:
    cut = cuts_of(task.task.dataset)[-1]
    rank = pool.rank(method, int(task.task.target_modality), cut + EXTRA_ANSWERS)
    pool.prepare(method)
    seconds, answers = 0.0, []
    texts = encoded.query_texts(task)
    blocks = np.array_split(np.arange(len(task)), max(1, -(-len(task) // pool.query_block(method))))
    for text in texts:
        ranked = []
        for rows in blocks:
            queries = encoded.vectors(text[rows], task.image[rows])
            started = time.perf_counter()
            ranked.append(rank(queries))
            seconds += time.perf_counter() - started
            advance(len(rows) / len(texts))
        answers.append(_candidates(encoded.data, task, pool.rows, np.concatenate(ranked), cut, pool.protocol))
    return _Answers(pool.rows, answers, seconds / len(texts) / len(task), pool.bytes_per_item(method))


def _candidates(
    data: SplitData, task: TaskData, pool: np.ndarray, ranked: np.ndarray, cut: int, protocol: str
) -> np.ndarray:
    """Rows of the pool (q, k) -> candidates (q, cut) that may be answers, -1 at the end."""
    found = np.where(ranked >= 0, pool[ranked], -1)
    own = _own_image(data, task.image[:, None], found, protocol) & (found >= 0)
    order = np.argsort(own | (found < 0), axis=1, kind="stable")[:, :cut]  # own images and gaps to the end
    return np.take_along_axis(np.where(own, -1, found), order, axis=1)


def _own_image(data: SplitData, image: np.ndarray, candidates: np.ndarray, protocol: str) -> np.ndarray:
    """Whether candidates show the image of their query, which is then no answer. Never, in the paper's protocol."""
    own: np.ndarray = (image >= 0) & (data.image[candidates] == image)
    return own if protocol == "usual" else np.zeros_like(own)


def _right_pairs(data: SplitData, task: TaskData, rows: np.ndarray, protocol: str) -> np.ndarray:
    """(2, pairs): queries and their right candidates in the pool that may be answers."""
    query = np.repeat(np.arange(len(task)), [len(positives) for positives in task.positives])
    query, right = divmod(np.unique(query * len(data.text) + np.concatenate(task.positives)), len(data.text))
    own = _own_image(data, task.image[query], right, protocol)
    return np.stack([query, right])[:, np.isin(right, rows) & ~own]


def right_answers(right_pairs: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Which answers are right, (q, k) bool.

    Args:
        right_pairs: (2, n) queries and their right candidates.
        found: (q, k) candidates, -1 for none.
    """
    size = 1 + max(right_pairs.max(initial=0), found.max(initial=0))
    owner = np.arange(len(found))[:, None] * size
    right: np.ndarray = np.isin(found + owner, right_pairs[0] * size + right_pairs[1]) & (found >= 0)
    return right


def _result(
    data: SplitData, task: TaskData, setting: str, method: str, answers: _Answers, right_pairs: np.ndarray
) -> TaskResult:
    """All metrics of one method on one task: means over queries and prompts."""
    positives = np.bincount(right_pairs[0], minlength=len(task))
    rights = [right_answers(right_pairs, found) for found in answers.candidates]
    hits = {cut: np.array([recall(right, cut) for right in rights]) for cut in cuts_of(task.task.dataset)}
    first = np.concatenate([found[:, :5] for found in answers.candidates])
    on_target = (data.modality[first] == int(task.task.target_modality))[first >= 0]
    bounds = {cut: interval(values.mean(axis=0)) for cut, values in hits.items()}
    spread = {cut: 100 * float(values.mean(axis=1).std()) for cut, values in hits.items()}
    return TaskResult(
        setting=setting,
        task=task.task.name,
        dataset=task.task.dataset,
        modalities=f"{task.task.query_modality.label}->{task.task.target_modality.label}",
        method=method,
        queries=len(task),
        candidates=len(answers.pool),
        recall={cut: 100 * float(values.mean()) for cut, values in hits.items()},
        interval={cut: (100 * low, 100 * high) for cut, (low, high) in bounds.items()},
        mrr=float(np.mean([reciprocal_rank(right, 10) for right in rights])),
        ndcg=float(np.mean([ndcg(right, positives, 10) for right in rights])),
        right_modality=100 * float(on_target.mean()) if len(on_target) else 0.0,
        seconds=answers.seconds,
        bytes=answers.bytes_per_item,
        spread=spread if len(rights) > 1 else None,
    )
