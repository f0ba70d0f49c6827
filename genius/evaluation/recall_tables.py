"""Tables and charts of a run, for the report and the terminal: recall, ratio to exact search, storage, time, codes."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table as TerminalTable

from genius.evaluation import paper
from genius.evaluation.charts import Chart, trade_off
from genius.evaluation.estimate import Estimate, mean_percent
from genius.evaluation.report_sections import Cell, Section, Table
from genius.evaluation.runs import BASELINES, GROUPS, METHODS, TaskResult, headline

SETTINGS = {"local": "Task-specific", "global": "Universal"}
CUTS = (1, 5, 10)
PROTOCOL_NOTES = {
    "usual": "The image of a query is never an answer.",
    "paper": "The paper's protocol: the image of a query may be an answer, and no modality is left out but by `fast`.",
}
METRICS: dict[str, tuple[Callable[[TaskResult], float], str]] = {
    "MRR@10": (lambda result: result.mrr, ".3f"),
    "nDCG@10": (lambda result: result.ndcg, ".3f"),
    "target modality, %": (lambda result: result.right_modality, ".1f"),
    "bytes per item": (lambda result: result.bytes, ",.5g"),
    "ms per query": (lambda result: 1000 * result.seconds, ".2f"),
    "spread over prompts": (lambda r: r.spread[headline(r.dataset)] if r.spread else math.nan, ".2f"),
}
"""name -> (metric, number format)."""


class SettingResults:
    """The results of one run in one setting."""

    def __init__(self, setting: str, results: Sequence[TaskResult]) -> None:
        self.setting, self.name = setting, SETTINGS[setting]
        self.results = {(result.task, result.method): result for result in results if result.setting == setting}
        self.tasks = list(dict.fromkeys(task for task, _ in self.results))
        self.methods = [m for m in METHODS + BASELINES if any(method == m for _, method in self.results)]

    @staticmethod
    def all(results: Sequence[TaskResult]) -> "list[SettingResults]":
        """The settings that have results."""
        return [one for setting in SETTINGS if (one := SettingResults(setting, results)).results]

    def only(self, modalities: str) -> "SettingResults":
        """The results of the tasks with these modalities of query and target."""
        return SettingResults(self.setting, [r for r in self.results.values() if r.modalities == modalities])

    def any_result(self, task: str) -> TaskResult:
        """A result of the task, for its data set and its number of queries and items."""
        return next(result for result in self.results.values() if result.task == task)

    def recall(self, task: str, method: str, cut: int | None = None) -> Estimate | None:
        """Recall at a cut, or at the headline cut of the data set; None if it was not measured."""
        return recall(self.results[task, method], cut) if (task, method) in self.results else None

    def mean(self, method: str, cut: int | None = None) -> Estimate | None:
        """Mean recall over all tasks; None if a task is missing, since means over fewer tasks do not compare."""
        found = [one for task in self.tasks if (one := self.recall(task, method, cut))]
        return mean_percent(found) if found and len(found) == len(self.tasks) else None

    def average(self, method: str, metric: str) -> float:
        """Mean of a metric over all tasks; not a number if a task is missing."""
        values = [METRICS[metric][0](self.results[task, method]) for task in self.tasks if self.recall(task, method)]
        return float(np.mean(values)) if len(values) == len(self.tasks) else math.nan

    @property
    def metrics(self) -> dict[str, str]:
        """Names of the metrics that were measured -> number format."""
        spread = any(result.spread for result in self.results.values())
        return {name: form for name, (_, form) in METRICS.items() if spread or name != "spread over prompts"}

    @property
    def task_count(self) -> str:
        """Such as '8 tasks'."""
        return "one task" if len(self.tasks) == 1 else f"{len(self.tasks)} tasks"


def recall(result: TaskResult, cut: int | None = None) -> Estimate:
    """Recall at a cut, or at the headline cut of the data set."""
    cut = cut or headline(result.dataset)
    return Estimate(result.recall[cut], *result.interval[cut])


def recall_cell(estimate: Estimate | None, look: str = "") -> Cell:
    """Recall with its interval; a dash for None."""
    return Cell(estimate, estimate.interval, look) if estimate else Cell("–")


def terminal_tables(results: Sequence[TaskResult]) -> Iterator[TerminalTable]:
    """Recall of each setting with half the width of the 95 % interval, and means over the tasks.

    The baselines get a second table, beside exact search: all methods together do not fit a terminal.
    """
    for one in SettingResults.all(results):
        ours, baselines = ([m for m in group if m in one.methods] for group in (METHODS, BASELINES))
        if ours:
            yield _terminal_table(f"Recall@5, %, {one.setting} pools, ± half the 95 % interval", one, ours)
        if baselines:
            compared = ["exact"] * ("exact" in ours) + baselines
            yield _terminal_table(f"Baselines: Recall@5, %, {one.setting} pools", one, compared)


def _terminal_table(title: str, one: SettingResults, methods: Sequence[str]) -> TerminalTable:
    table = TerminalTable(title=title, box=box.SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("task", no_wrap=True)
    for method in methods:
        table.add_column(method.replace("-", "-\n"), justify="right")
    for task in one.tasks:
        result = one.any_result(task)
        cut = headline(result.dataset)
        label = f"{task if cut == 5 else f'{task} (@{cut})'}\n[dim]{result.queries:,} in {result.candidates:,}[/]"
        found = [one.recall(task, method) for method in methods]
        table.add_row(label, *(f"{e}\n[dim]±{e.half:.1f}[/]" if e else "–" for e in found))
    table.add_section()
    means = [one.mean(method) for method in methods]
    table.add_row("mean", *(f"[bold]{mean or '–'}[/]" for mean in means))
    if exact := one.mean("exact"):
        table.add_row("ratio to exact", *(_ratio(mean, exact, 3) for mean in means))
    for name, form in one.metrics.items():
        table.add_row(name, *(_format(one.average(method, name), form) for method in methods))
    return table


def run_sections(run: dict[str, Any], results: Sequence[TaskResult]) -> Iterator[Section]:
    """The sections about one run of `genius evaluate`."""
    model, settings = run["model"], SettingResults.all(results)
    limit = f"at most {run['limit']:,} queries per task" if run["limit"] else "all queries"
    budget = f"{run['budget']:,} candidates" if run["budget"] else "by the number of candidates"
    prompts = "averaged over all prompts" if run["prompts"] == "all" else "first prompt"
    protocol = PROTOCOL_NOTES[run.get("protocol", "usual")]
    yield Section(
        "Recall",
        text=f"Model {Path(model['name']).name}, fingerprint `{model['fingerprint'][:12]}`; {run['benchmark']}, "
        f"{run['split']} split, {limit}, {prompts}; beam {run['beam']}, budget {budget}. {protocol}",
    )
    for one in settings:
        pools = "each task in its own pool" if one.setting == "local" else "one pool for all tasks"
        title = f"{one.name}: {pools} (the paper's Table {1 if one.setting == 'local' else 2})"
        yield Section(title, 3, tables=[_recall_table(one)])
        if one.setting == "local" and (part := one.only("text->image")).results:
            title = "Text to image, one data set at a time (the paper's Table 3)"
            yield Section(title, 3, tables=[_text_to_image_table(part)])
    if (ratios := _ratio_table(settings)).rows:
        yield Section(
            "Ratio to exact search, beside the paper's",
            3,
            "Recall divided by the recall of exact search on the same vectors. Data and encoders differ from the "
            "paper's, so recall itself cannot be compared. The ratio can, with care: the paper's pools hold up to 5.6 "
            "million items.",
            tables=[ratios],
        )
    yield Section(
        "Means, storage and time of each method",
        text="Mean recall over all tasks against the bytes stored per item, and against the time per query.",
        charts=list(_trade_offs(settings)),
        tables=[_means_table(one) for one in settings],
    )
    if run.get("codebooks"):
        yield Section("Use of the codebooks", tables=[_codebook_table(run)])


def _recall_table(one: SettingResults) -> Table:
    """Tasks by methods. Bold: the best method apart from exact search."""
    table = Table(["task", *one.methods])
    found = dict.fromkeys(result.modalities for result in one.results.values())
    for modalities in sorted(found, key=[*paper.MODALITIES, *found].index):
        table.rows.append(arrow(modalities))
        part = one.only(modalities)
        for task in part.tasks:
            result = part.any_result(task)
            about = f"R@{headline(result.dataset)}, {result.queries:,} queries, {result.candidates:,} items"
            table.add(Cell(result.dataset, about), *_best_in_bold({m: one.recall(task, m) for m in one.methods}))
    means = {method: one.mean(method) for method in one.methods}
    table.add("mean", *_best_in_bold(means))
    if exact := one.mean("exact"):
        table.add("ratio to exact", *(_ratio(mean, exact, 3) for mean in means.values()))
    metric = "target modality, %"
    table.add(metric, *(_format(one.average(method, metric), ".1f") for method in one.methods))
    return table


def _best_in_bold(estimates: dict[str, Estimate | None]) -> list[Cell]:
    others = {method for method in estimates if method not in GROUPS["Exact search"]}
    best = max((e.value for method, e in estimates.items() if e and method in others), default=None)
    return [
        recall_cell(e, "strong" if e and method in others and e.value == best else "")
        for method, e in estimates.items()
    ]


def _means_table(one: SettingResults) -> Table:
    """Mean of every metric over the tasks, method by method."""
    table = Table([one.name, *(f"R@{cut}" for cut in CUTS), *one.metrics])
    for method in filter(one.mean, one.methods):
        values = [_format(one.average(method, name), form) for name, form in one.metrics.items()]
        table.add(method, *(recall_cell(one.mean(method, cut)) for cut in CUTS), *values)
    return table


def _text_to_image_table(one: SettingResults) -> Table:
    columns = {f"{result.dataset} R@{cut}": (task, cut) for (task, _), result in one.results.items() for cut in CUTS}
    table = Table(["method", *columns])
    for method in one.methods:
        table.add(method, *(recall_cell(one.recall(task, method, cut)) for task, cut in columns.values()))
    return table


def _ratio_table(settings: Sequence[SettingResults]) -> Table:
    """Recall of GENIUS divided by that of exact search, here and in the paper, by modalities of query and target."""
    methods = [m for m in GROUPS["GENIUS"] if any(m in one.methods for one in settings)]
    columns = [*(f"{method}, here" for method in methods), "GENIUS, in the paper", "GENIUS^R, in the paper"]
    table = Table(["query → target", *columns])
    for one in settings if methods else []:
        parts = {modalities: one.only(modalities) for modalities in paper.MODALITIES}
        rows = [(name, part, paper.mean_recall(one.setting, name), "") for name, part in parts.items()]
        table.rows.append(one.name)
        for name, part, published, look in [*rows, ("all", one, paper.mean_recall(one.setting), "strong")]:
            if exact := part.mean("exact") if part.results else None:
                ratios = [_ratio(part.mean(method), exact, 2) for method in methods]
                ratios += [f"{published[name] / published['CLIP-SF']:.2f}" for name in ("GENIUS", "GENIUS^R")]
                table.add(*(Cell(text, look=look) for text in (arrow(name), *ratios)))
    return table


def _trade_offs(settings: Sequence[SettingResults]) -> Iterator[Chart]:
    """Recall against bytes and against time, one chart per setting."""
    for name, title, metric in (("bytes", "storage", "bytes per item"), ("time", "time", "ms per query")):
        for one in settings:
            means = {m: (one.average(m, metric), mean) for m in one.methods if (mean := one.mean(m))}
            if points := {method: point for method, point in means.items() if point[0] > 0}:
                yield trade_off(
                    f"recall-{name}-{one.setting}",
                    f"Recall against {title}, {one.name.lower()}",
                    metric,
                    points,
                    f"Mean over {one.task_count}, 95 % intervals; queries in batches. Squares: exact search; circles: "
                    "GENIUS; triangles: baselines.",
                )


def _codebook_table(run: dict[str, Any]) -> Table:
    table = Table(["level", "codes", "used, %", "perplexity"])
    for level in run["codebooks"]:
        first = level["level"] == 1
        name, size = ("1 (modality)", 3) if first else (str(level["level"]), run["model"]["codes_per_level"])
        table.add(name, str(size), f"{level['used']:.1f}", f"{level['perplexity']:.1f}")
    return table


def arrow(modalities: str) -> str:
    """'image,text->text' as 'image + text → text'."""
    return modalities.replace(",", " + ").replace("->", " → ")


def _ratio(mean: Estimate | None, exact: Estimate, digits: int) -> str:
    return f"{mean.value / exact.value:.{digits}f}" if mean and exact.value else "–"


def _format(value: float, form: str) -> str:
    return "–" if math.isnan(value) else format(value, form)
