"""The M-BEIR file layout: queries, candidate pools, qrels and instructions.

root/query/{split}/mbeir_{dataset}_task{t}_{split}.jsonl          (train may mix tasks: mbeir_{dataset}_train.jsonl)
root/qrels/{split}/mbeir_{dataset}_task{t}_{split}_qrels.txt      qid 0 did 1 task_id
root/cand_pool/local/mbeir_{dataset}_task{t}[_{split}]_cand_pool.jsonl
root/cand_pool/global/mbeir_union_{split}_cand_pool.jsonl
root/instructions/query_instructions.tsv                          query_modality cand_modality dataset_name ...
"""

import csv
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from genius.data.items import Item, Modality, Query
from genius.errors import BadData, BadItem

_I, _T, _IT = Modality.IMAGE, Modality.TEXT, Modality.IMAGE_TEXT
TASKS = {0: (_T, _I), 1: (_T, _T), 2: (_T, _IT), 3: (_I, _T), 4: (_I, _I), 6: (_IT, _T), 7: (_IT, _I), 8: (_IT, _IT)}
"""Query modality and target modality of each task id. M-BEIR has no task 5."""

INSTRUCTIONS = "instructions/query_instructions.tsv"
INSTRUCTION_COLUMNS = ("query_modality", "cand_modality", "dataset_name", "dataset_id")


@dataclass(frozen=True)
class Task:
    """A retrieval task on one data set, such as text -> image on mscoco."""

    dataset: str
    task_id: int

    def __post_init__(self) -> None:
        if self.task_id not in TASKS:
            raise BadData(f"{self.dataset}: there is no task {self.task_id}; tasks are {', '.join(map(str, TASKS))}.")

    @property
    def name(self) -> str:
        """Name in file names, such as "mscoco_task0"."""
        return f"{self.dataset}_task{self.task_id}"

    @property
    def query_modality(self) -> Modality:
        """Modality of the queries."""
        return TASKS[self.task_id][0]

    @property
    def target_modality(self) -> Modality:
        """Modality of the relevant candidates."""
        return TASKS[self.task_id][1]


@dataclass(frozen=True, slots=True)
class MBQuery:
    """A query as in the file; `image_path` is relative to the root of the benchmark."""

    qid: str
    text: str | None
    image_path: str | None
    modality: Modality
    positives: tuple[str, ...]
    task_id: int
    dataset: str
    negatives: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A candidate as in the file; `image_path` is relative to the root of the benchmark."""

    did: str
    text: str | None
    image_path: str | None
    modality: Modality


@dataclass(frozen=True)
class Instruction:
    """A row of the instructions file: the prompts of a data set for two modalities."""

    dataset: str
    dataset_id: int
    query_modality: Modality
    cand_modality: Modality
    prompts: tuple[str, ...]


class Benchmark:
    """A folder in M-BEIR layout, read on demand.

    Raises:
        BadData: A file is missing or cannot be read. The message has its path and line.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root)
        if not (self.root / "query").is_dir():
            what = "there is no `query` folder in it" if self.root.is_dir() else "there is no such folder"
            raise BadData(
                f"{self.root} is not in M-BEIR layout: {what}. Give the folder that holds query/ and cand_pool/."
            )

    def splits(self) -> list[str]:
        """List the splits that have queries, such as ["test", "train", "val"]."""
        return sorted(folder.name for folder in (self.root / "query").iterdir() if self.query_files(folder.name))

    def tasks(self, split: str) -> list[Task]:
        """List the tasks that have queries in a split, by task id and data set."""
        files = self.query_files(split)
        if not files:
            raise BadData(f"{self.root / 'query' / split}: no queries here; splits are {', '.join(self.splits())}.")
        found = set()
        for dataset, task_id in files:
            ids = {task_id} if task_id is not None else self._mixed_tasks(dataset, split)
            found |= {Task(dataset, id) for id in ids}
        return sorted(found, key=lambda task: (task.task_id, task.dataset))

    def queries(self, task: Task, split: str) -> list[MBQuery]:
        """Read the queries of a task, in the order of the file."""
        files = self.query_files(split)
        path = files.get((task.dataset, task.task_id))
        if path is not None:
            return list(_parse(path, lambda row: parse_query(row, task)))
        path = files.get((task.dataset, None))
        if path is None:
            raise BadData(f"{self.root / 'query' / split}: no queries for {task.name}. See tasks({split!r}).")
        return self._mixed_queries(path, task, split)

    def pool(self, task: Task, split: str) -> Iterator[Candidate]:
        """Read the candidates of a task one by one. M-BEIR has none for train alone: use `global_pool("train")`."""
        return _parse(self.pool_file(task, split), parse_candidate)

    def global_pool(self, split: str) -> Iterator[Candidate]:
        """Read the candidates of all tasks together (the universal setting) one by one: test has 5.6 million.

        A benchmark without a global pool has the candidates of the pools of its tasks, each once.
        """
        path = self.root / global_pool_path(split)
        return _parse(path, parse_candidate) if path.is_file() else self._union(split)

    def _union(self, split: str) -> Iterator[Candidate]:
        paths = self.local_pools(split)
        if not paths:
            local = f"cand_pool/local/mbeir_{self.tasks(split)[0].name}_{split}_cand_pool.jsonl"
            raise BadData(
                f"{self.root} has no candidates for {split}. Write those of all tasks to {global_pool_path(split)}, or "
                f"those of each task to a file such as {local}."
            )
        seen: dict[str, Candidate] = {}
        for path in paths:
            for candidate in _parse(path, parse_candidate):
                if candidate.did not in seen:
                    seen[candidate.did] = candidate
                    yield candidate
                elif seen[candidate.did] != candidate:
                    raise BadData(
                        f"{path}: the candidate {candidate.did} is another one in another pool. Use an id for one "
                        "candidate only."
                    )

    def local_pools(self, split: str) -> list[Path]:
        """Return the pools of the tasks of a split, as far as there are any."""
        found: dict[Path, None] = {}
        for task in self.tasks(split):
            with suppress(BadData):
                found[self.pool_file(task, split)] = None
        return list(found)

    def qrels(self, task: Task, split: str) -> dict[str, set[str]]:
        """Read the ids of the relevant candidates (dids) of each query id (qid)."""
        named = self.root / qrels_path(task.name, split)
        path = named if named.is_file() else self._file(qrels_path(task.dataset, split), instead_of=named)
        relevant: dict[str, set[str]] = {}
        for qid, did, task_id in read_qrels(path):
            if task_id is None or task_id == task.task_id:
                relevant.setdefault(qid, set()).add(did)
        return relevant

    @cached_property
    def instructions(self) -> list[Instruction]:
        """The rows of the instructions file."""
        return list(_read_instructions(self._file(INSTRUCTIONS)))

    def prompts(self, dataset: str, query_modality: Modality, cand_modality: Modality) -> tuple[str, ...]:
        """Return the prompts of a data set for two modalities. Evaluation uses the first one by default."""
        prompts = self._prompts.get((dataset.casefold(), query_modality, cand_modality))
        if prompts is None:
            task = f"{dataset}, {query_modality.label} -> {cand_modality.label}"
            raise BadData(f"{self.root / INSTRUCTIONS}: there is no row for {task}. Add one with its prompts.")
        return prompts

    @cached_property
    def _prompts(self) -> dict[tuple[str, Modality, Modality], tuple[str, ...]]:
        rows = self.instructions
        return {(row.dataset.casefold(), row.query_modality, row.cand_modality): row.prompts for row in rows}

    def image(self, image_path: str | None) -> str | None:
        """Return the path of an image as it can be opened."""
        return None if image_path is None else os.path.join(self.root, image_path)

    def item(self, candidate: Candidate) -> Item:
        """Convert a candidate to an Item."""
        return Item(candidate.did, text=candidate.text, image=self.image(candidate.image_path))

    def query(self, query: MBQuery, prompt: str | None = None) -> Query:
        """Convert a query to a Query with a prompt, by default the first one of its task.

        The Query has no target: the model has to understand the prompt.
        """
        if prompt is None:
            prompt = self.prompts(query.dataset, query.modality, TASKS[query.task_id][1])[0]
        return Query(text=query.text, image=self.image(query.image_path), instruction=prompt)

    def query_files(self, split: str) -> dict[tuple[str, int | None], Path]:
        """Return the query files of a split by data set and task id; None stands for several tasks."""
        pattern = re.compile(rf"mbeir_(?P<dataset>.+?)(?:_task(?P<task>\d+))?_{re.escape(split)}\.jsonl")
        matches = (
            (pattern.fullmatch(path.name), path) for path in sorted((self.root / "query" / split).glob("*.jsonl"))
        )
        return {(m["dataset"], int(m["task"]) if m["task"] else None): path for m, path in matches if m}

    def pool_file(self, task: Task, split: str) -> Path:
        """Return the pool of a task. MSCOCO has one per split; the other published sets share one."""
        with_split = f"cand_pool/local/mbeir_{task.name}_{split}_cand_pool.jsonl"
        without = self.root / f"cand_pool/local/mbeir_{task.name}_cand_pool.jsonl"
        if not (self.root / with_split).is_file() and without.is_file():
            return without
        return self._file(with_split)

    def _mixed_tasks(self, dataset: str, split: str) -> set[int]:
        """Return the task ids in a file of several tasks: from its lines or, if one has none, from the qrels."""
        queries = self.query_files(split)[dataset, None]
        named = set(_parse(queries, lambda row: -1 if row.get("task_id") is None else int(row["task_id"])))
        if named and -1 not in named:
            return named
        path = self._file(qrels_path(dataset, split))
        return {task_id for _, _, task_id in read_qrels(path) if task_id is not None}

    def _mixed_queries(self, path: Path, task: Task, split: str) -> list[MBQuery]:
        """Read the queries of one task from a file of several. Lines without `task_id` have it in the qrels."""
        relevant: dict[str, set[str]] | None = None

        def of_this_task(row: dict[str, Any]) -> MBQuery | None:
            nonlocal relevant
            if row.get("task_id") is not None:
                return parse_query(row, task) if int(row["task_id"]) == task.task_id else None
            relevant = self.qrels(task, split) if relevant is None else relevant
            return parse_query(row, task) if row["qid"] in relevant else None

        return list(_parse(path, of_this_task))

    def _file(self, name: str, instead_of: Path | None = None) -> Path:
        path = self.root / name
        if not path.is_file():
            raise BadData(f"{instead_of or path}: there is no such file. Check the folder of the benchmark.")
        return path


LINE_ERRORS = (ValueError, KeyError, TypeError, AttributeError, RecursionError, BadItem)
"""Errors that a malformed line of a JSONL file can cause."""

Row = TypeVar("Row")


def _parse(path: Path, make: Callable[[dict[str, Any]], Row | None]) -> Iterator[Row]:
    """Apply `make` to each line of a JSONL file and yield the results that are not None."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if line.isspace():
                continue
            try:
                made = make(json.loads(line))
            except LINE_ERRORS as error:
                raise BadData(f"{path}, line {number}: {describe_line_error(line, error)}") from error
            if made is not None:
                yield made


def describe_line_error(line: bytes, error: Exception) -> str:
    """Return why a line cannot be read, and what to do."""
    if line.startswith(b"version https://git-lfs"):
        return "this is a Git LFS pointer, not the data. Run `git lfs pull` to fetch it."
    if isinstance(error, KeyError):
        return f"the field {error} is missing. Add it."
    if isinstance(error, BadItem):
        return error.reason
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError):
        return f"this is not JSON ({error}). The file may be damaged or cut off: fetch it again."
    return f"this is not a record of the expected form ({error}). Correct the line."


def parse_query(row: dict[str, Any], task: Task) -> MBQuery:
    """Convert a line of a query file."""
    text, image = row.get("query_txt") or None, row.get("query_img_path") or None
    return MBQuery(
        qid=_string(row["qid"], "qid"),
        text=text,
        image_path=image,
        modality=_modality(row.get("query_modality"), text, image),
        positives=_dids(row["pos_cand_list"]),
        negatives=_dids(row.get("neg_cand_list") or []),
        task_id=task.task_id,
        dataset=task.dataset,
    )


def parse_candidate(row: dict[str, Any]) -> Candidate:
    """Convert a line of a candidate pool."""
    text, image = row.get("txt") or None, row.get("img_path") or None
    return Candidate(_string(row["did"], "did"), text, image, _modality(row.get("modality"), text, image))


def _modality(label: str | None, text: object, image: object) -> Modality:
    """Return the modality that the line states, by default that of its content."""
    for value in (text, image):
        if value is not None and not isinstance(value, str):
            raise ValueError(f"a text or image path is {type(value).__name__}, not a string")
    if text is None and image is None:
        raise ValueError("it has neither text nor an image")
    if label is not None:
        return Modality.parse(label)
    return _T if image is None else _I if text is None else _IT


def _dids(entries: list[Any]) -> tuple[str, ...]:
    """Read candidate ids that are strings or objects {"did": ...}."""
    return tuple(_string(entry["did"] if isinstance(entry, dict) else entry, "did") for entry in entries)


def _string(value: object, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{what} is {value!r}, not a string")
    return value


def global_pool_path(split: str) -> str:
    """Return the path of a global pool from the root of a benchmark."""
    return f"cand_pool/global/mbeir_union_{split}_cand_pool.jsonl"


def qrels_path(name: str, split: str) -> str:
    """Return the path of a qrels file from the root of a benchmark."""
    return f"qrels/{split}/mbeir_{name}_{split}_qrels.txt"


def read_qrels(path: Path) -> Iterator[tuple[str, str, int | None]]:
    """Yield query id, candidate id and task id (None if absent) of the lines with positive relevance."""
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            try:
                match line.decode().split():
                    case [qid, _, did, relevance]:
                        task_id = None
                    case [qid, _, did, relevance, last]:
                        task_id = int(last)
                    case []:
                        continue
                    case _:
                        raise ValueError
                relevant = int(relevance) > 0
            except ValueError as error:
                form = "`qid 0 did relevance task_id`"
                raise BadData(f"{path}, line {number}: {line[:80]!r} is not of the form {form}.") from error
            if relevant:
                yield qid, did, task_id


def _read_instructions(path: Path) -> Iterator[Instruction]:
    with open(path, encoding="utf-8-sig", newline="") as file:
        table = csv.DictReader(file, delimiter="\t")
        columns = table.fieldnames or ()
        if not {*INSTRUCTION_COLUMNS, "prompt_1"} <= set(columns):
            raise BadData(
                f"{path}, line 1: the columns must be {', '.join(INSTRUCTION_COLUMNS)}, prompt_1 ... (tab-separated)."
            )
        for row in table:
            prompts = (row[column] for column in columns if column.startswith("prompt_"))
            try:
                instruction = Instruction(
                    dataset=row["dataset_name"],
                    dataset_id=int(row["dataset_id"]),
                    query_modality=Modality.parse(row["query_modality"]),
                    cand_modality=Modality.parse(row["cand_modality"]),
                    prompts=tuple(prompt for prompt in prompts if prompt and prompt.strip()),
                )
                if not instruction.prompts:
                    raise ValueError("it has no prompt")
            except (TypeError, ValueError, BadItem) as error:
                raise BadData(f"{path}, line {table.line_num}: the row cannot be read ({error}).") from error
            yield instruction
