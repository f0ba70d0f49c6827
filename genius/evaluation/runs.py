"""Scores, the folder in which a run keeps them, and the tables that people read.

    run.json                                what was measured, all scores, how the codes are used
    scores/{setting}.{task}.{method}.json   one score each: what is here need not be computed again
    vectors.npz                             the encoded texts and images
    trec/{setting}/{task}.qrels             and {task}.{method}.run, for trec_eval and the like

Knows figures and files. Does not search, and knows nothing of benchmarks or encoders.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from genius.data.splits import SplitData, TaskData
from genius.errors import BadData
from genius.model.genius import Genius

METHODS = ("exact", "exact-modality", "fused", "generate", "rerank", "fast", "codes")
"""exact: all stage-1 vectors; exact-modality: those of the asked modality; fused: all fused vectors; the three modes of
search; codes: `fast` where no embeddings are kept."""
BASELINES = ("hnsw", "ivfpq", "opq", "rq")
"""Other people's searches (`genius.evaluation.baselines`), for which Faiss is needed."""
GROUPS = {"Exact search": METHODS[:3], "GENIUS": METHODS[3:], "Baselines": BASELINES}
SETTINGS = ("local", "global")
PROMPTS = ("first", "all")
CUTS = (1, 5, 10)
WIDE_CUTS = (1, 5, 10, 20, 50)
WIDE = ("fashion200k", "fashioniq")
"""Data sets that M-BEIR reports at 10, 20 and 50."""
FORMAT = 1


def cuts_of(dataset: str) -> tuple[int, ...]:
    """Where the recall of a data set is measured."""
    return WIDE_CUTS if dataset.casefold() in WIDE else CUTS


def headline(dataset: str) -> int:
    """The cut by which M-BEIR and the paper compare methods on a data set."""
    return 10 if dataset.casefold() in WIDE else 5


@dataclass(frozen=True)
class TaskResult:
    """One method on one task.

    modalities: of query and target, such as "text->image". recall: cut -> %; interval: cut -> its 95 % interval, %.
    mrr, ndcg: at 10, from 0 to 1. right_modality: how many of the first five answers (%) are of the wanted kind.
    seconds: of searching, a query, when many are asked at once. bytes: what the method must keep of an item: vectors as
    float32, codes packed. spread: cut -> standard deviation of the recall over the prompts, if more than one was used.
    """

    setting: str
    task: str
    dataset: str
    modalities: str
    method: str
    queries: int
    candidates: int
    recall: dict[int, float]
    interval: dict[int, tuple[float, float]]
    mrr: float
    ndcg: float
    right_modality: float
    seconds: float = field(compare=False)
    bytes: float
    spread: dict[int, float] | None = None

    def as_dict(self) -> dict[str, Any]:
        """As it stands in JSON files, where cuts are strings."""
        made: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return made

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TaskResult":
        spread = values["spread"]
        return cls(
            **values
            | {
                "recall": {int(cut): value for cut, value in values["recall"].items()},
                "interval": {int(cut): (low, high) for cut, (low, high) in values["interval"].items()},
                "spread": None if spread is None else {int(cut): value for cut, value in spread.items()},
            }
        )


def id_bytes(sizes: Sequence[int]) -> float:
    """Bytes of a packed ID with so many codes at each level: 12.25 for the paper's 3 and eight times 4096."""
    return sum(math.ceil(math.log2(size)) for size in sizes) / 8


def codebook_use(codes: np.ndarray, sizes: Sequence[int]) -> list[dict[str, float]]:
    """Of each level, from 1: how many of its codes (%) the items (n, levels) use, and the perplexity of that use."""
    levels = []
    for level, size in enumerate(sizes):
        counts = np.bincount(codes[:, level], minlength=size)
        share = counts[counts > 0] / counts.sum()
        perplexity = float(np.exp(-(share * np.log(share)).sum()))
        levels.append({"level": level + 1, "used": 100 * float((counts > 0).mean()), "perplexity": perplexity})
    return levels


def _weights(model: dict[str, Any]) -> str:
    """What names a model and how it searches."""
    return f"{model.get('fingerprint')}{' in eight bits' if model.get('int8') else ''}"


class Run:
    """A run folder. One folder holds one model on one benchmark, asked in one way; see the top of this module."""

    def __init__(self, folder: Path, model: Genius, facts: dict[str, Any]) -> None:
        """facts: what must not change between two starts."""
        about = {
            "name": model.source,
            "fingerprint": model.fingerprint,
            "dim": model.dim,
            "levels": model.quantizer.levels,
            "codes_per_level": model.quantizer.codes_per_level,
            "bytes_per_item": id_bytes(model.sizes),
            "int8": model.int8,
        }
        self.folder, self.started = folder, time.monotonic()
        self.facts: dict[str, Any] = {"format": FORMAT, "model": about, **facts}
        self.before = self._go_on()
        (folder / "results").mkdir(parents=True, exist_ok=True)
        self.scores = {}
        for path in (folder / "results").glob("*.json"):
            score = TaskResult.from_dict(json.loads(path.read_text()))
            self.scores[score.setting, score.task, score.method] = score
        self._write()

    def _go_on(self) -> float:
        """The seconds spent so far; refuses a folder that holds another run."""
        path = self.folder / "run.json"
        if not path.exists():
            return 0.0
        try:
            there = json.loads(path.read_text())
            seconds = float(there["seconds"])
        except (ValueError, KeyError, TypeError) as error:
            raise BadData(f"{path} is damaged ({error!r}). Delete the folder to start over.") from error
        names = {"digest": "state of the benchmark's files", "limit": "limit", "prompts": "choice of prompts"}
        for key, value in self.facts.items():
            old, new = there.get(key), value
            if key == "model":
                old, new = _weights(old or {}), _weights(new)
            if old != new:
                raise BadData(
                    f"{self.folder} holds a run with another {names.get(key, key)} ({old} there, {new} here). Give "
                    "another folder with --out, or delete that one to start over."
                )
        self.facts["codebooks"] = there.get("codebooks", [])
        return seconds

    def score(self, setting: str, task: str, method: str) -> TaskResult | None:
        return self.scores.get((setting, task, method))

    def keep(
        self, score: TaskResult, split: SplitData, task: TaskData, right: np.ndarray, answers: Sequence[np.ndarray]
    ) -> None:
        """Writes the answers, and then the score, which says that all is there.

        right: (2, pairs) queries and their right candidates; answers: for each prompt (q, k) candidates, -1 for none.
        """
        trec = self.folder / "trec" / score.setting
        trec.mkdir(parents=True, exist_ok=True)
        qrels = trec / f"{score.task}.qrels"
        if not qrels.exists():
            _write(qrels, (f"{task.qids[query]} 0 {split.dids[row]} 1\n" for query, row in right.T))
        for number, found in enumerate(answers, 1):
            name = f"{score.task}.{score.method}" + (f".prompt{number}" if number > 1 else "")
            _write(trec / f"{name}.run", _run_lines(split, task, score.method, found))
        name = f"{score.setting}.{score.task}.{score.method}.json"
        _write(self.folder / "results" / name, [json.dumps(score.as_dict(), indent=1) + "\n"])
        self.scores[score.setting, score.task, score.method] = score
        self._write()

    def _write(self) -> None:
        def place(score: TaskResult) -> tuple[int, int, str, int]:
            task, number = score.task.rsplit("_task", 1)
            return SETTINGS.index(score.setting), int(number), task, (METHODS + BASELINES).index(score.method)

        scores = [score.as_dict() for score in sorted(self.scores.values(), key=place)]
        seconds = round(self.before + time.monotonic() - self.started, 1)
        _write(
            self.folder / "run.json",
            [json.dumps(self.facts | {"seconds": seconds, "results": scores}, indent=1) + "\n"],
        )

    def load_vectors(self) -> dict[str, np.ndarray]:
        """What `save_vectors` was given last; nothing, if it never was."""
        path = self.folder / "vectors.npz"
        if not path.exists():
            return {}
        with np.load(path) as arrays:
            if (str(arrays["fingerprint"]), str(arrays["digest"])) != self._maker:
                raise BadData(f"{path} holds vectors of another model or benchmark. Delete it, and they are made anew.")
            return {name: arrays[name] for name in arrays if name not in ("fingerprint", "digest")}

    def save_vectors(self, **arrays: np.ndarray) -> None:
        fingerprint, digest = self._maker
        part = self.folder / "vectors.part.npz"
        kept: dict[str, Any] = {"fingerprint": fingerprint, "digest": digest, **arrays}
        np.savez(part, **kept)
        os.replace(part, self.folder / "vectors.npz")

    @property
    def _maker(self) -> tuple[str, str]:
        return self.facts["model"]["fingerprint"], self.facts["digest"]


def _run_lines(split: SplitData, task: TaskData, method: str, answers: np.ndarray) -> Iterator[str]:
    """qid Q0 did rank score name. The score is 1 / rank: readers order by it, and equal ones as they like."""
    for qid, found in zip(task.qids, answers, strict=True):
        for rank, row in enumerate(found[found >= 0], 1):
            yield f"{qid} Q0 {split.dids[row]} {rank} {1 / rank:.6f} genius-{method}\n"


def _write(path: Path, lines: Iterable[str]) -> None:
    """All lines or, if that is interrupted, none: what is there is whole."""
    part = path.with_name(path.name + ".part")
    with open(part, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)
    os.replace(part, path)


# For people


def tables(scores: Sequence[TaskResult]) -> Iterator[Table]:
    """Tables of recall for each setting, with half the width of its 95 % interval, and means over the tasks.

    Recall is at 5, and at 10 for the data sets of which M-BEIR says so. Baselines have their own table, beside exact
    search: all methods together are too many for a terminal.
    """
    used = {score.method for score in scores}
    ours, baselines = ([method for method in group if method in used] for group in (METHODS, BASELINES))
    for setting in dict.fromkeys(score.setting for score in scores):
        mine = [score for score in scores if score.setting == setting]
        if ours:
            yield _table(f"Recall@5, %, {setting} pools, ± half the 95 % interval", mine, ours)
        if baselines:
            yield _table(f"Baselines: Recall@5, %, {setting} pools", mine, ["exact"] * ("exact" in used) + baselines)


def _table(title: str, scores: Sequence[TaskResult], methods: Sequence[str]) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("task", no_wrap=True)
    for name in methods:
        table.add_column(name.replace("-", "-\n"), justify="right")
    found = {(score.task, score.method): score for score in scores}
    for task in dict.fromkeys(score.task for score in scores):
        one = found[task, methods[0]]
        label = task if headline(one.dataset) == 5 else f"{task} (@{headline(one.dataset)})"
        pool = f"[dim]{one.queries:,} in {one.candidates:,}[/]"
        table.add_row(f"{label}\n{pool}", *(_cell(found[task, method]) for method in methods))
    table.add_section()
    for name, cells in _summary([[score for score in scores if score.method == method] for method in methods]):
        table.add_row(name, *cells)
    return table


def _cell(score: TaskResult) -> str:
    cut = headline(score.dataset)
    low, high = score.interval[cut]
    return f"{score.recall[cut]:.1f}\n[dim]±{(high - low) / 2:.1f}[/]"


def _summary(columns: list[list[TaskResult]]) -> Iterator[tuple[str, list[str]]]:
    """Rows below the tasks: means over them, method by method."""

    def row(name: str, figure: Callable[[TaskResult], float], form: str) -> tuple[str, list[str]]:
        return name, [format(float(np.mean([figure(score) for score in scores])), form) for scores in columns]

    def main_recall(score: TaskResult) -> float:
        return score.recall[headline(score.dataset)]

    name, means = row("mean", main_recall, ".1f")
    yield name, [f"[bold]{mean}[/]" for mean in means]
    if columns[0][0].method == "exact":
        exact = max(float(np.mean([main_recall(score) for score in columns[0]])), 1e-9)
        yield row("ratio to exact", lambda score: main_recall(score) / exact, ".3f")
    if any(score.spread for scores in columns for score in scores):
        yield row("spread over prompts", lambda s: s.spread[headline(s.dataset)] if s.spread else 0.0, ".1f")
    yield row("MRR@10", lambda score: score.mrr, ".3f")
    yield row("nDCG@10", lambda score: score.ndcg, ".3f")
    yield row("right modality, %", lambda score: score.right_modality, ".1f")
    yield row("ms a query", lambda score: 1000 * score.seconds, ".2f")
    yield row("bytes an item", lambda score: score.bytes, ",.4g")
