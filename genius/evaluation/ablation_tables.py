"""Tables and charts of ablations: every change against its reference, here and in the paper."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from genius.evaluation import charts
from genius.evaluation.estimate import Estimate, mean_difference, mean_percent, signed
from genius.evaluation.recall_tables import SETTINGS, recall, recall_cell
from genius.evaluation.report_sections import Cell, Section, Table
from genius.evaluation.runs import METHODS, TaskResult

Ablation = dict[str, Any]
"""A row of ablations.json."""


@dataclass(frozen=True)
class Verdict:
    """A row compared with its reference."""

    text: str
    difference: Estimate | None = None  # in Recall@5, mean over the tasks; None if the reference was not measured
    agrees: bool | None = None  # whether the paper's finding holds here; None if the paper has none


def judge(row: Ablation, rows: dict[str, Ablation]) -> Verdict:
    """Whether the paper's finding about `row` holds here. rows: name -> row, for the reference."""
    if row["direction"] == "reference":
        return Verdict("reference")
    reference = rows.get(row.get("against") or "")
    difference = _difference(row, reference) if reference else None
    if difference is None:
        return Verdict("its reference is not measured")
    found = "worse" if difference.high < 0 else "better" if difference.low > 0 else "no clear difference"
    match row["direction"]:
        case "harmful" | "helpful" as claim:
            agrees = found == {"harmful": "worse", "helpful": "better"}[claim]
            text = f"{claim} here too" if agrees else f"not {claim} here: interval {_span(difference)}"
            return Verdict(text, difference, agrees)
        case "mixed":
            return Verdict(f"mixed in the paper; here {found}", difference)
        case _:  # "unknown"
            return Verdict(f"not in the paper; here {found}", difference)


def agreement(ablations: dict[str, Any]) -> str | None:
    """One sentence: how many of the paper's harmful changes are harmful here."""
    rows = {row["name"]: row for row in ablations["rows"]}
    verdicts = [judge(row, rows) for row in rows.values() if row["direction"] == "harmful"]
    measured = [verdict for verdict in verdicts if verdict.difference]
    if not measured:
        return None
    agree = sum(verdict.agrees is True for verdict in measured)
    rest = "." if agree == len(measured) else "; the others are marked in the tables, with their intervals."
    return f"{agree} of the {len(measured)} changes that the paper reports as harmful are harmful here too{rest}"


def ablation_sections(ablations: dict[str, Any]) -> Iterator[Section]:
    """The sections about one ablations.json."""
    rows = {row["name"]: row for row in ablations["rows"]}
    size = "Quick size: short trainings of small models on part of the queries. " if ablations["quick"] else ""
    yield Section(
        "Ablations",
        text=f"{size}Mean Recall@5 over the tasks here, and over the values that the paper gives. Each row is compared "
        "with its reference in mode `generate`, the paper's GENIUS; the interval of a difference pairs the tasks.",
        charts=_shares_chart(rows),
    )
    for name in dict.fromkeys(row["table"] for row in rows.values()):
        mine = [row for row in rows.values() if row["table"] == name]
        settings = ", ".join(dict.fromkeys(SETTINGS[row["setting"]].lower() for row in mine))
        notes = [text for row in mine if (text := _reranking(row))]
        yield Section(f"{name}: {settings}", 3, tables=[_table(mine, rows)], notes=notes)


def _table(mine: Sequence[Ablation], rows: dict[str, Ablation]) -> Table:
    methods = [m for m in METHODS if any(m in row["mean"] for row in mine)]
    names = (("R@5, in the paper", False), ("R@5 re-ranked, in the paper", True))
    published = [(name, reranked) for name, reranked in names if any(_paper(row, reranked) for row in mine)]
    columns = [name for name, _ in published] + ["to reference, in the paper"] * bool(published)
    table = Table(["row", *columns, *methods, "to reference", "verdict"])
    for row in mine:
        verdict = judge(row, rows)
        cells: list[str | Cell] = [Cell(row["label"], row.get("ours") or "")]
        for _, reranked in published:
            values = _paper(row, reranked)
            only = next(iter(values)) if len(values) == 1 else ""  # a mean of one task: name the task
            cells.append(Cell(f"{_mean(values.values()):.1f}", only) if values else "–")
        if published:
            pairs = _paper_pairs(row, rows)
            cells.append(signed(_mean(a - b for a, b in pairs)) if pairs else "")
        recalls = [_recalls(row, method) for method in methods]
        cells += [recall_cell(mean_percent(list(found.values())) if found else None) for found in recalls]
        difference = verdict.difference
        cells.append(Cell(signed(difference.value), _span(difference)) if difference else "")
        look = {True: "words good", False: "words bad", None: "words"}[verdict.agrees]
        table.add(*cells, Cell(verdict.text, look=look))
    return table


def _shares_chart(rows: dict[str, Ablation]) -> list[charts.Chart]:
    """The share of the reference's recall that each row keeps."""
    shares = []
    for row in rows.values():
        reference = rows.get(row.get("against") or "")
        difference = _difference(row, reference) if reference else None
        base = mean_percent(list(_recalls(reference, "generate").values())).value if reference and difference else 0.0
        if difference is None or base <= 0:
            continue
        here = Estimate(*(100 * (1 + d / base) for d in (difference.value, difference.low, difference.high)))
        pairs = _paper_pairs(row, rows)
        published = 100 * sum(a for a, _ in pairs) / sum(b for _, b in pairs) if pairs else None
        shares.append(charts.Share(row["table"], row["name"], here, published))
    if not shares:
        return []
    title, axis = "Recall that each change keeps", "% of the reference's mean Recall@5"
    caption = "Circles: `generate` here, with 95 % intervals. Diamonds: the paper. The line at 100 % is the reference."
    return [charts.shares("ablations", title, axis, shares, caption)]


def _recalls(row: Ablation, method: str) -> dict[str, Estimate]:
    """Task -> Recall@5, the metric of all ablations in the paper."""
    results = [TaskResult.from_dict(result) for result in row["results"]]
    return {result.task: recall(result, 5) for result in results if result.method == method}


def _difference(row: Ablation, reference: Ablation) -> Estimate | None:
    mine, theirs = _recalls(row, "generate"), _recalls(reference, "generate")
    return mean_difference([(mine[task], theirs[task]) for task in mine if task in theirs])


def _reranking(row: Ablation) -> str | None:
    """The gain by re-ranking, for rows where the paper states it."""
    without, reranked = _paper(row, False), _paper(row, True)
    before, after = _recalls(row, "generate"), _recalls(row, "rerank")
    gain = mean_difference([(after[task], before[task]) for task in after if task in before])
    if not reranked or gain is None:
        return None
    published = _mean(reranked[name] - without[name] for name in reranked if name in without)
    return f"{row['label']}: re-ranking adds {gain} points here (interval {_span(gain)}), {published:.1f} in the paper."


def _paper(row: Ablation, reranked: bool) -> dict[str, float]:
    """Task -> the paper's recall, without or with re-ranking (stored as 'TASK, R')."""
    values: dict[str, float] = row["paper"] or {}
    return {name.removesuffix(", R"): value for name, value in values.items() if name.endswith(", R") == reranked}


def _paper_pairs(row: Ablation, rows: dict[str, Ablation]) -> list[tuple[float, float]]:
    """The paper's recall of a row and of its reference, per task.

    A reference that is not in the paper is replaced by its own reference.
    """
    reference, seen = rows.get(row.get("against") or ""), {row["name"]}
    while reference and not reference["paper"] and reference["name"] not in seen:
        seen.add(reference["name"])
        reference = rows.get(reference.get("against") or "")
    mine, theirs = _paper(row, False), _paper(reference, False) if reference else {}
    return [(mine[name], theirs[name]) for name in mine if name in theirs]


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))


def _span(difference: Estimate) -> str:
    return f"{signed(difference.low)} to {signed(difference.high)}"
