"""Tables and charts of ablations: every change against its reference, here and in the paper."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from genius.evaluation import charts
from genius.evaluation.estimate import Estimate, signed
from genius.evaluation.recall_tables import SETTINGS, recall_cell
from genius.evaluation.report_sections import Cell, Section, Table
from genius.evaluation.runs import METHODS
from genius.runtime.wording import counted

Ablation = dict[str, Any]
"""A row of ablations.json."""


SIZES = {
    "quick": "Quick size: short trainings of small models on part of the queries. They show directions.",
    "medium": "Medium size: decoder and codes are as large as those of `mini`; the decoder learns a quarter as long.",
    "full": "Full size: the decoder and codes are as large, and are trained as long, as those of `mini`.",
    "paper": "The paper's size (Sec. 5.2).",
}


@dataclass(frozen=True)
class Verdict:
    """A row compared with its reference."""

    text: str
    difference: Estimate | None = None  # in Recall@5, mean over the tasks; None if the reference was not measured
    agrees: bool | None = None  # whether the paper's finding holds here; None if undecided or if the paper has none


def judge(row: Ablation) -> Verdict:
    """Whether the paper's finding about a row holds here: the interval of the difference decides."""
    if row["direction"] == "reference":
        return Verdict("reference")
    difference = _estimate(row["difference"])
    if difference is None:
        return Verdict("its reference is not measured in this size")
    found = "worse" if difference.high < 0 else "better" if difference.low > 0 else "no clear difference"
    match row["direction"]:
        case "harmful" | "helpful" as claim:
            agrees = None if found == "no clear difference" else (found == "worse") == (claim == "harmful")
            if agrees is None:
                return Verdict(f"undecided ({claim} in the paper)", difference)
            return Verdict(f"{'agrees with' if agrees else 'contradicts'} the paper: {found}", difference, agrees)
        case "mixed":
            return Verdict(f"mixed in the paper; here {found}", difference)
        case _:  # "unknown"
            return Verdict(f"not in the paper; here {found}", difference)


def agreement(ablations: dict[str, Any]) -> str | None:
    """One sentence for each size: how many of the paper's harmful changes are harmful here."""
    sentences = []
    for size in SIZES:
        verdicts = [judge(row) for row in ablations["rows"] if row["size"] == size and row["direction"] == "harmful"]
        measured = [verdict.agrees for verdict in verdicts if verdict.difference]
        if measured:
            agree, contradict = measured.count(True), measured.count(False)
            sentences.append(
                f"Changes that the paper reports as harmful, {size} size: {agree} of {len(measured)} agree with the "
                f"paper, {contradict} contradict it, {len(measured) - agree - contradict} undecided."
            )
    return " ".join(sentences) or None


def ablation_sections(ablations: dict[str, Any]) -> Iterator[Section]:
    """The sections about one ablations.json."""
    yield Section(
        "Ablations",
        text="Mean Recall@5 over the tasks here, and over the values that the paper gives. Each row is compared with "
        "its reference in mode `generate`, the paper's GENIUS: same size, same queries, same seeds, and the interval "
        "of the difference pairs the queries. Rows of several seeds show the mean over seeds and, after ±, their "
        "standard deviation; their intervals cover queries and seeds. Intervals of rows of one seed cover the "
        "queries only: training again may change more. A verdict follows from the interval of the difference: it "
        "agrees with the paper, contradicts it, or is undecided if the interval holds 0.",
    )
    for size, words in SIZES.items():
        rows = {row["name"]: row for row in ablations["rows"] if row["size"] == size}
        if not rows:
            continue
        yield Section(f"Ablations in {size} size", text=words, charts=_shares_chart(rows, size))
        for name, about in dict.fromkeys((row["table"], row["table_about"]) for row in rows.values()):
            mine = [row for row in rows.values() if (row["table"], row["table_about"]) == (name, about)]
            settings = ", ".join(dict.fromkeys(SETTINGS[row["setting"]].lower() for row in mine))
            notes = [text for row in mine if (text := _reranking(row))]
            title = f"{name}, {about}: {settings}, {_counts(mine)}"
            yield Section(title, 3, tables=[_table(mine, rows)], notes=notes)


def _counts(mine: Sequence[Ablation]) -> str:
    """Such as '3 seeds'."""
    return " or ".join(counted(count, "seed") for count in sorted({len(row["seeds"]) for row in mine}))


def _table(mine: Sequence[Ablation], rows: dict[str, Ablation]) -> Table:
    methods = [m for m in METHODS if any(m in row["mean"] for row in mine)]
    names = (("R@5, in the paper", False), ("R@5 re-ranked, in the paper", True))
    published = [(name, reranked) for name, reranked in names if any(_paper(row, reranked) for row in mine)]
    columns = [name for name, _ in published] + ["to reference, in the paper"] * bool(published)
    table = Table(["row", *columns, *methods, "to reference", "verdict"])
    for row in mine:
        verdict = judge(row)
        cells: list[str | Cell] = [Cell(row["label"], row.get("ours") or "")]
        for _, reranked in published:
            values = _paper(row, reranked)
            only = next(iter(values)) if len(values) == 1 else ""  # a mean of one task: name the task
            cells.append(Cell(f"{_mean(values.values()):.1f}", only) if values else "–")
        if published:
            pairs = _paper_pairs(row, rows)
            cells.append(signed(_mean(a - b for a, b in pairs)) if pairs else "")
        cells += [_recall_cell(row, method) for method in methods]
        difference = verdict.difference
        cells.append(Cell(signed(difference.value), _span(difference)) if difference else "")
        look = {True: "words good", False: "words bad", None: "words"}[verdict.agrees]
        table.add(*cells, Cell(verdict.text, look=look))
    return table


def _recall_cell(row: Ablation, method: str) -> Cell:
    """Recall with the spread over seeds, and its interval."""
    estimate = _estimate(row["mean"].get(method))
    if estimate is None or method not in row["spread"]:
        return recall_cell(estimate)
    return Cell(f"{estimate} ± {row['spread'][method]:.1f}", estimate.interval)


def _shares_chart(rows: dict[str, Ablation], size: str) -> list[charts.Chart]:
    """The share of the reference's recall that each row keeps."""
    shares = []
    for row in rows.values():
        reference, difference = rows.get(row["against"] or ""), _estimate(row["difference"])
        base = reference["mean"]["generate"]["value"] if reference and difference else 0.0
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
    return [charts.shares(f"ablations-{size}", title, axis, shares, caption)]


def _estimate(numbers: dict[str, float] | None) -> Estimate | None:
    return Estimate(numbers["value"], numbers["low"], numbers["high"]) if numbers else None


def _reranking(row: Ablation) -> str | None:
    """The gain by re-ranking, for rows where the paper states it."""
    without, reranked = _paper(row, False), _paper(row, True)
    gain = _estimate(row["rerank_gain"])
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
