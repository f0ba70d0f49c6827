"""Write a benchmark in M-BEIR layout (see `genius.data.mbeir`)."""

import csv
import io
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from genius.data.mbeir import (
    INSTRUCTION_COLUMNS,
    INSTRUCTIONS,
    Candidate,
    Instruction,
    MBQuery,
    Task,
    global_pool_path,
    qrels_path,
)
from genius.errors import BadData


def check_new_folder(out: Path) -> None:
    """Raise BadData if a folder to write exists and is not empty."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadData(f"{out} exists already. Choose a new folder, so that nothing is overwritten.")


def write_queries(root: str | os.PathLike[str], task: Task, split: str, queries: Iterable[MBQuery]) -> None:
    """Write the queries of a task and its qrels, which come from their positives."""
    queries = list(queries)
    for query in queries:
        if (query.task_id, query.dataset) != (task.task_id, task.dataset):
            raise BadData(
                f"{query.qid}: a query of {query.dataset}_task{query.task_id} does not belong to {task.name}."
            )
    rows = [
        {
            "qid": query.qid,
            "query_txt": query.text,
            "query_img_path": query.image_path,
            "query_modality": query.modality.label,
            "query_src_content": None,
            "pos_cand_list": list(query.positives),
            "neg_cand_list": list(query.negatives),
            "task_id": query.task_id,
        }
        for query in queries
    ]
    lines = [
        f"{_word(query.qid)} 0 {_word(did)} 1 {query.task_id}\n"
        for query in queries
        for did in dict.fromkeys(query.positives)
    ]
    _write(Path(root, f"query/{split}/mbeir_{task.name}_{split}.jsonl"), map(_dump, rows))
    _write(Path(root, qrels_path(task.name, split)), lines)


def write_pool(root: str | os.PathLike[str], task: Task, split: str, candidates: Iterable[Candidate]) -> None:
    """Write the candidates of a task."""
    _write_pool(Path(root, f"cand_pool/local/mbeir_{task.name}_{split}_cand_pool.jsonl"), candidates)


def write_global_pool(root: str | os.PathLike[str], split: str, candidates: Iterable[Candidate]) -> None:
    """Write the candidates of all tasks together, without repeats."""
    unique: dict[str, Candidate] = {}
    for candidate in candidates:
        unique.setdefault(candidate.did, candidate)
    _write_pool(Path(root, global_pool_path(split)), unique.values())


def write_instructions(root: str | os.PathLike[str], instructions: Iterable[Instruction]) -> None:
    """Write the instructions file. All rows must have the same number of prompts."""
    instructions = list(instructions)
    counts = {len(row.prompts) for row in instructions}
    if len(counts) != 1 or 0 in counts:
        raise BadData(
            f"{INSTRUCTIONS}: every row needs the same number of prompts, at least one; got {sorted(counts)}."
        )
    header = [*INSTRUCTION_COLUMNS, *(f"prompt_{number + 1}" for number in range(counts.pop()))]
    rows = [
        [row.query_modality.label, row.cand_modality.label, row.dataset, str(row.dataset_id), *row.prompts]
        for row in instructions
    ]
    if not all(cell.strip() for row in rows for cell in row):
        raise BadData(f"{INSTRUCTIONS}: a name or prompt is empty. Every cell needs a value.")
    table = io.StringIO()
    csv.writer(table, delimiter="\t", lineterminator="\n").writerows([header, *rows])
    _write(Path(root, INSTRUCTIONS), [table.getvalue()])


def _word(id: str) -> str:
    if not id or re.search(r"\s", id):
        raise BadData(f"The id {id!r} is empty or holds white space, which qrels cannot hold. Use another id.")
    return id


def _write_pool(path: Path, candidates: Iterable[Candidate]) -> None:
    rows = (
        {
            "did": _word(c.did),
            "txt": c.text,
            "img_path": c.image_path,
            "modality": c.modality.label,
            "src_content": None,
        }
        for c in candidates
    )
    _write(path, map(_dump, rows))


def _dump(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n"


def _write(path: Path, lines: Iterable[str]) -> None:
    """Write a file; if that fails, the old file stays."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(path.name + ".part")
    try:
        with open(unfinished, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
