"""Results of an evaluation, and the folder that stores them.

run.json                                 what was measured, all results, codebook use
results/{setting}.{task}.{method}.json   one result each; results found here are not measured again
vectors/                                 encoded texts and images, and what is derived from them (see `RowTable`)
trec/{setting}/{task}.qrels              and {task}.{method}.run, for trec_eval and similar tools
"""

import json
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from genius.data.splits import SplitData, TaskData
from genius.errors import BadData, GeniusError
from genius.evaluation.row_table import has_rows
from genius.train.files import write_json, write_text

METHODS = ("exact", "exact-modality", "fused", "generate", "rerank", "fast", "codes")
"""exact: all stage-1 vectors; exact-modality: those of the target modality; fused: all fused vectors; generate, rerank,
fast: the search modes; codes: `fast` without stored embeddings."""
BASELINES = ("hnsw", "ivfpq", "opq", "rq")
"""See `genius.evaluation.baselines`. All but rq need Faiss."""
GROUPS = {"Exact search": METHODS[:3], "GENIUS": METHODS[3:], "Baselines": BASELINES}
WITHOUT_CODEBOOKS = METHODS[:2]
"""What is measured of a model without codebooks, whose fused vectors are its stage-1 vectors."""
SETTINGS = ("local", "global")
PROMPTS = ("first", "all")
PROTOCOLS = ("usual", "paper")
"""usual: the image of a query is never an answer. paper: it may be one, and `rerank` searches every modality that the
beams reach, not only likely ones."""
CUTS = (1, 5, 10)
WIDE_CUTS = (1, 5, 10, 20, 50)
WIDE = ("fashion200k", "fashioniq")
"""Data sets that M-BEIR reports at 10, 20 and 50."""
FORMAT = 1


def check_names(given: Sequence[str], known: Sequence[str], what: str) -> None:
    """Raise GeniusError if a name is not known, or if there are none."""
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None or not given:
        problem = f"There is no {what} {unknown!r}" if unknown is not None else f"No {what} was given"
        raise GeniusError(f"{problem}. Choose from {', '.join(known)}.")


def cuts_of(dataset: str) -> tuple[int, ...]:
    """The values of k for which Recall@k of a data set is measured."""
    return WIDE_CUTS if dataset.casefold() in WIDE else CUTS


def headline(dataset: str) -> int:
    """The k of the Recall@k by which M-BEIR and the paper compare methods on a data set."""
    return 10 if dataset.casefold() in WIDE else 5


@dataclass(frozen=True)
class TaskResult:
    """Metrics of one method on one task. Recall, its interval and shares are in percent."""

    setting: str
    task: str
    dataset: str
    modalities: str  # of query and target, such as "text->image"
    method: str
    queries: int
    candidates: int
    recall: dict[int, float]  # k -> Recall@k
    interval: dict[int, tuple[float, float]]  # k -> 95 % interval
    mrr: float  # at 10
    ndcg: float  # at 10
    right_modality: float  # share of the first five answers that have the target modality
    seconds: float = field(compare=False)  # per query, with many queries per batch
    bytes: float  # stored per item: vectors as float32, codes packed
    spread: dict[int, float] | None = None  # k -> standard deviation of Recall@k over several prompts

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "TaskResult":
        """From its JSON form, in which the values of k are strings."""
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
    """Bytes of a packed ID with these codebook sizes: 12.25 for the paper's 3 and eight times 4096."""
    return sum(math.ceil(math.log2(size)) for size in sizes) / 8


def codebook_use(codes: np.ndarray, sizes: Sequence[int]) -> list[dict[str, float]]:
    """For each level of codes (n, levels): the share of its codes in use (%) and the perplexity of their use."""
    levels = []
    for level, size in enumerate(sizes):
        counts = np.bincount(codes[:, level], minlength=size)
        share = counts[counts > 0] / counts.sum()
        perplexity = float(np.exp(-(share * np.log(share)).sum()))
        levels.append({"level": level + 1, "used": 100 * float((counts > 0).mean()), "perplexity": perplexity})
    return levels


class RunFolder:
    """A run folder: one model on one benchmark with one set of search options. The module docstring lists its files.

    A run in an existing folder continues if its facts are the same: benchmark, options, and the model's fingerprint.
    """

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder, self.started = folder, time.monotonic()
        self.facts: dict[str, Any] = {"format": FORMAT, **facts}
        self.seconds_before = self._continue()
        (folder / "results").mkdir(parents=True, exist_ok=True)
        stored = [TaskResult.from_dict(json.loads(path.read_text())) for path in (folder / "results").glob("*.json")]
        self.results = {(result.setting, result.task, result.method): result for result in stored}
        self._write_run()

    def _continue(self) -> float:
        """Check that the folder holds this run, and return the seconds spent on it so far."""
        path = self.folder / "run.json"
        if not path.exists():
            return 0.0
        stored = {"protocol": PROTOCOLS[0], **read_json(path, "results")}  # older runs do not name it
        if not has_rows(self.folder / "vectors") and not any((self.folder / "results").glob("*.json")):
            return 0.0  # it failed before anything was computed
        names = {"digest": "state of the benchmark's files", "limit": "limit", "prompts": "choice of prompts"}
        for key, value in self.facts.items():
            old, new = stored.get(key), value
            if key == "model":
                old, new = _model_name(old or {}), _model_name(new)
            if old != new:
                raise BadData(
                    f"{self.folder} holds a run with another {names.get(key, key)} ({old} there, {new} here). Give "
                    "another folder with --out, or delete that one to start over."
                )
        self.facts["codebooks"] = stored.get("codebooks", [])
        return float(stored["seconds"])

    def add(
        self, result: TaskResult, split: SplitData, task: TaskData, right: np.ndarray, answers: Sequence[np.ndarray]
    ) -> None:
        """Store a result and its answers. The result is written last: it marks the rest as complete.

        right: (2, pairs) queries and their right candidates. answers: for each prompt (q, k) candidates, -1 for none.
        """
        trec = self.folder / "trec" / result.setting
        trec.mkdir(parents=True, exist_ok=True)
        qrels = trec / f"{result.task}.qrels"
        if not qrels.exists():
            write_text(qrels, (f"{task.qids[query]} 0 {split.dids[row]} 1\n" for query, row in right.T))
        for number, found in enumerate(answers, 1):
            name = f"{result.task}.{result.method}" + (f".prompt{number}" if number > 1 else "")
            write_text(trec / f"{name}.run", _trec_lines(split, task, result.method, found))
        name = f"{result.setting}.{result.task}.{result.method}.json"
        write_json(self.folder / "results" / name, asdict(result), indent=1)
        self.results[result.setting, result.task, result.method] = result
        self._write_run()

    def _write_run(self) -> None:
        def place(result: TaskResult) -> tuple[int, int, str, int]:
            task, number = result.task.rsplit("_task", 1)
            return SETTINGS.index(result.setting), int(number), task, (METHODS + BASELINES).index(result.method)

        results = [asdict(result) for result in sorted(self.results.values(), key=place)]
        seconds = round(self.seconds_before + time.monotonic() - self.started, 3)
        run = self.facts | {"seconds": seconds, "results": results}
        write_json(self.folder / "run.json", run, indent=1)

    def vector_folder(self) -> Path:
        """Folder of the vectors of this model and benchmark.

        Raises:
            BadData: It holds vectors of others.
        """
        folder = self.folder / "vectors"
        origin = folder / "origin.json"
        if origin.exists() and json.loads(origin.read_text()) != list(self._origin):
            if has_rows(folder):
                raise BadData(f"{folder} holds vectors of another model or benchmark. Delete it to encode again.")
            shutil.rmtree(folder)
        folder.mkdir(exist_ok=True)
        write_json(origin, self._origin)
        return folder

    @property
    def _origin(self) -> tuple[str, str]:
        return self.facts["model"]["fingerprint"], self.facts["digest"]


def read_json(path: Path, required: str, format: int = FORMAT) -> dict[str, Any]:
    """A file of results. Raises BadData if it is damaged, has another format, or lacks the required key."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadData(f"{path} is not valid JSON ({error}). Delete it and run the command that wrote it.") from error
    if not isinstance(values, dict) or required not in values:
        raise BadData(f"{path} has no {required!r}, so it is not a file of results. Remove it from the folder.")
    if (found := values.get("format", format)) != format:
        raise BadData(f"{path} has format {found}, but this version reads format {format}. Measure again.")
    return values


def _model_name(model: dict[str, Any]) -> str:
    """Identifies a model's weights and their precision."""
    return f"{model.get('fingerprint')}{' in eight bits' if model.get('int8') else ''}"


def _trec_lines(split: SplitData, task: TaskData, method: str, answers: np.ndarray) -> Iterator[str]:
    """Lines `qid Q0 did rank score name`. The score is 1 / rank, because tools sort by score."""
    for qid, found in zip(task.qids, answers, strict=True):
        for rank, row in enumerate(found[found >= 0], 1):
            yield f"{qid} Q0 {split.dids[row]} {rank} {1 / rank:.6f} genius-{method}\n"
