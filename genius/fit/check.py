"""The check after a fit: every search mode against exact search with the same encoder, on held-back pseudo-queries."""

import time
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from genius.data.items import Modality
from genius.fit.codebooks import Ints, Sample, quantization_error
from genius.fit.collection import Collection
from genius.fit.queries import PseudoQueries
from genius.model.fit_report import FitReport
from genius.model.genius import Genius
from genius.model.quantizer_runtime import MODALITIES, code_report
from genius.runtime.wording import counted
from genius.search.options import Mode, SearchOptions
from genius.search.searcher import Searcher

AT = 10  # recall is measured among the first ten results
BLOCK = 65_536  # items that are compared with all queries at once
MODES = ("generate", "rerank", "fast", "codes")  # codes: mode fast without stored embeddings
WEAK = {"fast": 0.95, "codes": 0.6, "generate": 0.6}
"""Recall of a mode below which the report suggests a change."""
MANY_SHARED = 0.05  # share of items with the same codes as another one, above which the report suggests more levels


@dataclass(frozen=True)
class CheckedItems:
    """Items to search: normalised vectors and modalities, and codes (n, levels)."""

    sample: Sample
    codes: Ints


def exact(items: Sample, queries: PseudoQueries, k: int = AT) -> list[Ints]:
    """Exact search: the nearest items of the target modality.

    Args:
        items: The n items to search.
        queries: The m queries.
        k: Maximum number of results for each query.

    Returns:
        For each query, the rows (at most k,) of its results in `items`, best first. Equal scores are ordered by row.
    """
    values = np.full((len(queries), k), -np.inf, np.float32)
    rows = np.full((len(queries), k), -1, np.int64)
    for start in range(0, len(items), BLOCK):
        block = slice(start, start + BLOCK)
        scores = queries.z @ items.z[block].T
        scores[items.modality[None, block] != queries.target[:, None]] = -np.inf
        most = min(k, scores.shape[1])
        best = np.argpartition(-scores, most - 1, axis=1)[:, :most]
        values = np.concatenate([values, np.take_along_axis(scores, best, 1)], 1)
        rows = np.concatenate([rows, best + start], 1)
        order = np.lexsort((rows, -values))[:, :k]
        values, rows = np.take_along_axis(values, order, 1), np.take_along_axis(rows, order, 1)
    return [found[np.isfinite(value)] for found, value in zip(rows, values, strict=True)]


def recall(model: Genius, items: CheckedItems, queries: PseudoQueries, nearest: list[Ints], mode: str) -> float:
    """Recall of a mode: the share of the exact results that are among its first ten, as the mean over the queries.

    Args:
        model: The model. Its encoder is not used.
        items: The items to search.
        queries: The queries.
        nearest: Results of `exact` for these queries. Queries without results do not count.
        mode: One of `MODES`.
    """
    embeddings = None if mode == "codes" else items.sample.z
    searcher = Searcher(model, items.codes, embeddings)
    options = SearchOptions(k=AT, mode=cast(Mode, "fast" if mode == "codes" else mode))
    found = searcher.search(queries.z, queries.z, queries.target, options).top.rows
    shares = [np.isin(right, rows).mean() for right, rows in zip(nearest, found, strict=True) if len(right)]
    return float(np.mean(shares)) if shares else 0.0


def check_model(
    model: Genius,
    collection: Collection,
    sample: Sample,
    held: Sample,
    queries: PseudoQueries,
    learned_from: int,
    started: float,
) -> FitReport:
    """Measure a fitted model.

    Args:
        model: The model.
        collection: The collection it was fitted to.
        sample: The items of the collection that are searched, held-back ones included.
        held: The held-back items, which measure the error of the codes.
        queries: Pseudo-queries made from the held-back items.
        learned_from: Number of items that the model was learned from.
        started: Value of `time.monotonic` at the start of the fit.
    """
    items = CheckedItems(sample, model.quantizer.encode(sample.z, sample.modality, model.code_beams))
    nearest = exact(sample, queries)
    codes = code_report(items.codes, model.sizes)
    means = model.quantizer.codebooks[0]
    counts = np.bincount(collection.modality, minlength=MODALITIES)
    report = FitReport(
        items=len(collection),
        modalities={one.label: int(count) for one, count in zip(Modality, counts, strict=True) if count},
        learned_from=learned_from,
        sizes=model.sizes,
        layers=model.decoder.config.layers,
        query_scale=model.decoder.config.query_scale,
        error=quantization_error(model.quantizer, held, model.code_beams),
        variance=float(np.square(held.z - means[held.modality]).sum(1).mean()),
        codes_used=float(np.mean(codes.utilisation[1:])) if len(codes.utilisation) > 1 else 1.0,
        shared_ids=codes.collisions / codes.items,
        checked_items=len(sample),
        queries=len(queries),
        recall={mode: recall(model, items, queries, nearest, mode) for mode in MODES},
        suggestions=(),
        seconds=round(time.monotonic() - started, 1),
    )
    return replace(report, suggestions=suggestions(report))


def suggestions(report: FitReport) -> tuple[str, ...]:
    """One sentence for each weak result: what a user can change."""
    recalls, more_levels = report.recall, f"--levels {len(report.sizes) - 1 + 4}"
    found = []
    if recalls["fast"] < WEAK["fast"]:
        found.append(
            "Mode fast misses items that exact search finds: search with a larger --budget, or fit more levels "
            f"({more_levels})."
        )
    if recalls["codes"] < WEAK["codes"]:
        found.append(
            f"The codes lose {report.lost:.0%} of what tells the items apart, which limits search without embeddings: "
            f"fit more levels ({more_levels}), or keep the embeddings (no --codes-only)."
        )
    if recalls["generate"] < min(WEAK["generate"], 0.9 * recalls["codes"]):
        wider = "Search with a larger --beam" + ("" if report.layers else ", or train layers (--layers 2)")
        found.append(f"The decoder finds fewer items than the codes allow. {wider}; modes fast and rerank are better.")
    if report.shared_ids > MANY_SHARED:
        found.append(
            f"{report.shared_ids:.0%} of the items share their codes with another one. If these are not duplicates, "
            f"fit more levels ({more_levels})."
        )
    return tuple(found)


def sentences(report: FitReport) -> list[str]:
    """The report as sentences for a terminal."""
    levels, codes = len(report.sizes) - 1, report.sizes[-1]
    held = counted(report.queries, "query", "queries")
    lines = [
        f"{counted(report.items, 'item')}; learned from {report.learned_from:,}. An ID has {counted(levels, 'level')} "
        f"of {codes:,} codes after the modality.",
        f"The codes keep {1 - report.lost:.0%} of what tells the items apart; {report.codes_used:.0%} of the codes are "
        f"in use; {report.shared_ids:.1%} of the items share their ID with another one.",
        f"Of the ten items that exact search finds for {held} made from held-back items, the modes find: "
        + ", ".join(f"{mode} {report.recall[mode]:.0%}" for mode in MODES if mode in report.recall)
        + ". (codes: without stored embeddings.)",
    ]
    return [*lines, *report.suggestions]
