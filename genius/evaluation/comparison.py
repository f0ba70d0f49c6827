"""Models side by side, in the layout of the paper's Tables 1 and 2: exact search with each encoder, and GENIUS."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from genius.evaluation import paper
from genius.evaluation.estimate import mean_percent
from genius.evaluation.recall_tables import SETTINGS, arrow, recall, recall_cell
from genius.evaluation.report_sections import Cell, Section, Table
from genius.evaluation.runs import TaskResult, headline

COMPARED = ("exact", "generate", "rerank")
"""The paper's embedding-based retrieval, GENIUS and GENIUS^R."""
PAPER_ENCODERS = ("clip", "blip-ff")
NOTE = "The paper's columns hold for the whole of M-BEIR and the published weights. With others they do not compare."


@dataclass
class _Model:
    """All results of one model on one split of one benchmark, from any number of runs."""

    name: str
    encoder: str | None
    results: dict[tuple[str, str, str], TaskResult] = field(default_factory=dict)  # by setting, task, method


@dataclass
class _Column:
    """Recall of one method: a cell for each task, and the mean, which is a dash if a task is missing."""

    title: str
    cells: list[Cell]
    mean: Cell


def comparison_sections(measured: Sequence[tuple[dict[str, Any], Sequence[TaskResult]]]) -> Iterator[Section]:
    """A table for each benchmark and setting that two models, or one with an encoder of the paper, were measured in."""
    benchmarks: dict[tuple[str, str, str], dict[str, _Model]] = {}
    for run, results in measured:
        about, protocol = run["model"], run.get("protocol", "usual")
        found = benchmarks.setdefault((run["benchmark"], run["split"], protocol), {})
        model = found.setdefault(about["fingerprint"], _Model(Path(about["name"] or "").name, about.get("encoder")))
        model.results |= {(r.setting, r.task, r.method): r for r in results if r.method in COMPARED}
    for (benchmark, split, protocol), found in benchmarks.items():
        for setting, title in SETTINGS.items():
            models = [model for model in found.values() if any(key[0] == setting for key in model.results)]
            published = any(model.encoder in PAPER_ENCODERS for model in models)
            if len(models) > 1 or published:
                number = 1 if setting == "local" else 2
                data = f"{benchmark}, {split} split" + ", the paper's protocol" * (protocol == "paper")
                yield Section(
                    f"{title}: models side by side (the paper's Table {number}), {data}",
                    3,
                    tables=[_table(models, setting, published)],
                    notes=[NOTE] * published,
                )


def _table(models: Sequence[_Model], setting: str, published: bool) -> Table:
    tasks = _tasks(models, setting)
    columns = [
        _measured(f"{model.name} {method}", [model.results.get((setting, task, method)) for task in tasks])
        for method in COMPARED
        for model in models
        if any((setting, task, method) in model.results for task in tasks)
    ]
    if published:
        printed = [paper.RECALL[setting].get(one.modalities, {}).get(one.dataset.casefold()) for one in tasks.values()]
        columns += [
            _printed(f"{name}, in the paper", [row and row[number] for row in printed])
            for number, name in enumerate(paper.METHODS)
        ]
    table = Table(["task", *(column.title for column in columns)])
    heading = ""
    for number, one in enumerate(tasks.values()):
        if one.modalities != heading:
            heading = one.modalities
            table.rows.append(arrow(heading))
        name = Cell(one.dataset, f"R@{headline(one.dataset)}")
        table.add(name, *(column.cells[number] for column in columns))
    table.add("mean", *(column.mean for column in columns))
    return table


def _tasks(models: Sequence[_Model], setting: str) -> dict[str, TaskResult]:
    """A result of each task of the setting, in the paper's order of modalities."""
    found = {key[1]: r for model in models for key, r in model.results.items() if key[0] == setting}
    order = [*paper.MODALITIES, *(r.modalities for r in found.values())]
    return dict(sorted(found.items(), key=lambda item: order.index(item[1].modalities)))


def _measured(title: str, results: Sequence[TaskResult | None]) -> _Column:
    known = [recall(result) for result in results if result]
    mean = recall_cell(mean_percent(known) if len(known) == len(results) else None)
    return _Column(title, [recall_cell(recall(result) if result else None) for result in results], mean)


def _printed(title: str, values: Sequence[float | None]) -> _Column:
    known = [value for value in values if value is not None]
    mean = Cell(f"{sum(known) / len(known):.1f}" if len(known) == len(values) else "–")
    return _Column(title, [Cell("–" if value is None else f"{value:.1f}") for value in values], mean)
