"""Measured ablation rows on disk, and their comparison: means over seeds, differences paired by query and seed.

A folder `rows/SIZE` holds one training of a row each:

    NAME-DIGEST-SEED.npz    which queries found a right answer, a bool array for each task and method
    NAME-DIGEST-SEED.json   all metrics; written last
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from genius.data.splits import SplitData, TaskData
from genius.evaluation.ablation_rows import AblationRow, digest, read_ablations, size_names
from genius.evaluation.estimate import Estimate, seed_spread, seeded_percent
from genius.evaluation.evaluate import right_answers
from genius.evaluation.metrics import recall
from genius.evaluation.runs import TaskResult
from genius.evaluation.saved_results import ABLATIONS_FORMAT
from genius.train.files import write_arrays, write_json

CUT = 5  # all ablations of the paper are Recall@5
COMPARED = "generate"
"""The method by which a row is compared with its reference: the paper's GENIUS."""
Hits = dict[str, dict[str, np.ndarray]]
"""method -> task -> (queries,) or, of several trainings, (seeds, queries): whether a right answer was found."""


class SearchedRow:
    """Keeps the results of one search, and which queries had a hit. A `ResultStore`."""

    def __init__(self) -> None:
        self.results: dict[tuple[str, str, str], TaskResult] = {}
        self.hits: Hits = {}

    def add(
        self, result: TaskResult, split: SplitData, task: TaskData, right: np.ndarray, answers: Sequence[np.ndarray]
    ) -> None:
        """See `ResultStore`. Ablations search with one prompt per query."""
        self.results[result.setting, result.task, result.method] = result
        found = recall(right_answers(right, answers[0]), CUT) > 0
        self.hits.setdefault(result.method, {})[result.task] = found


class RowFolder:
    """The measured rows of one `genius ablate`."""

    def __init__(self, folder: Path, limit: int | None) -> None:
        self.folder, self.limit = folder, limit  # limit: replaces that of the sizes

    def limit_of(self, row: AblationRow) -> int | None:
        """The maximum number of queries per task of a row."""
        return row.size.limit if self.limit is None else self.limit

    def path(self, row: AblationRow, seed: int) -> Path:
        """The file that is there when a training of a row has been measured."""
        return self.folder / row.size.name / f"{self._stem(row)}-{seed}.json"

    def _stem(self, row: AblationRow) -> str:
        facts = (row.training.decoder, row.setting, row.beam, row.methods, self.limit_of(row), row.size.protocol)
        return f"{row.name}-{digest(*facts)}"

    def seeds(self, row: AblationRow) -> list[int]:
        """The seeds with which the row has been measured."""
        name = re.compile(re.escape(self._stem(row)) + r"-(\d+)\.json")
        found = (name.fullmatch(path.name) for path in (self.folder / row.size.name).glob(f"{row.name}-*"))
        return sorted(int(match[1]) for match in found if match)

    def write(self, row: AblationRow, seed: int, search: SearchedRow, facts: dict[str, Any]) -> None:
        """Store the search of a training. facts: what else to keep."""
        path = self.path(row, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = {f"{task}.{method}": hits for method, found in search.hits.items() for task, hits in found.items()}
        write_arrays(path.with_suffix(".npz"), arrays)
        results = [asdict(result) for result in search.results.values()]
        write_json(path, {"seed": seed, **facts, "results": results}, indent=1)

    def hits(self, row: AblationRow, seeds: Sequence[int]) -> Hits:
        """Hits of all methods: (seeds, queries) for each task."""
        found: Hits = {method: {} for method in row.methods}
        trainings = []
        for seed in seeds:
            with np.load(self.path(row, seed).with_suffix(".npz")) as arrays:
                trainings.append({name: arrays[name] for name in arrays})
        for name in trainings[0]:
            task, method = name.rsplit(".", 1)
            found[method][task] = np.stack([training[name] for training in trainings])
        return found

    def write_results(self, path: Path) -> list[dict[str, Any]]:
        """Write the measured rows of all sizes to ablations.json, and return them."""
        results = []
        for size in size_names():
            rows = {row.name: row for row in read_ablations(size)}
            results += [self._result(row, rows) for row in rows.values() if self.seeds(row)]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"format": ABLATIONS_FORMAT, "rows": results}, indent=1)
        return results

    def _result(self, row: AblationRow, rows: dict[str, AblationRow]) -> dict[str, Any]:
        """Everything about a row for ablations.json. rows: all rows of its size."""
        seeds = self.seeds(row)
        hits = self.hits(row, seeds)
        tasks = {method: list(found.values()) for method, found in hits.items()}
        means = {method: _numbers(seeded_percent(found), 0.0, 100.0) for method, found in tasks.items()}
        spread = {method: seed_spread(found) for method, found in tasks.items()} if len(seeds) > 1 else {}
        gain = None
        if {"rerank", COMPARED} <= hits.keys():
            gain = _numbers(difference(hits["rerank"], hits[COMPARED]))
        return {
            "name": row.name,
            "size": row.size.name,
            "table": row.table.title,
            "table_about": row.table.about,
            **row.about,
            "setting": row.setting,
            "beam": row.beam,
            "scheme": row.training.scheme,
            "limit": self.limit_of(row),
            "protocol": row.size.protocol,
            "seeds": seeds,
            "mean": means,
            "spread": spread,
            "difference": self._difference(row, rows.get(row.about["against"] or ""), seeds),
            "rerank_gain": gain,
            "trainings": [json.loads(self.path(row, seed).read_text(encoding="utf-8")) for seed in seeds],
        }

    def _difference(self, row: AblationRow, reference: AblationRow | None, seeds: list[int]) -> dict[str, Any] | None:
        """The row minus its reference, on the seeds that both were trained with."""
        both = [seed for seed in (self.seeds(reference) if reference else []) if seed in seeds]
        if reference is None or not both or COMPARED not in row.methods or COMPARED not in reference.methods:
            return None
        pair = (self.hits(one, both)[COMPARED] for one in (row, reference))
        return {**_numbers(difference(*pair)), "seeds": both}


def difference(mine: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> Estimate:
    """Mean over tasks of mine - theirs, in percent, paired by query and seed. Both: task -> (seeds, queries)."""
    return seeded_percent([mine[task].astype(np.float64) - theirs[task] for task in mine])


def _numbers(estimate: Estimate, least: float = -100.0, most: float = 100.0) -> dict[str, float]:
    """The values for JSON. The interval is clipped to possible values."""
    return {"value": estimate.value, "low": max(least, estimate.low), "high": min(most, estimate.high)}
