"""The check after a fit: every mode against exact search with the same encoder, on held-back pseudo-queries."""

from dataclasses import dataclass
from typing import cast

import numpy as np

from genius.fit.codebooks import Floats, Ints, Sample
from genius.fit.queries import PseudoQueries
from genius.model.fit_report import FitReport
from genius.model.genius import Genius
from genius.model.quantizer_runtime import MODALITIES, CodeReport
from genius.runtime.wording import counted
from genius.search.options import Mode, SearchOptions
from genius.search.searcher import Searcher

AT = 10
BLOCK = 65_536
WEAK = {"fast": 0.95, "codes": 0.6, "generate": 0.6}
"""Below these shares, the report suggests something."""
MODES = ("generate", "rerank", "fast", "codes")


@dataclass(frozen=True)
class CheckedItems:
    """Items with normalised vectors z (n, d), modalities (n,) and codes (n, levels)."""

    sample: Sample
    codes: Ints


def exact(items: Sample, queries: PseudoQueries, k: int = AT) -> list[Ints]:
    """The k nearest items of the target modality for each query, best first; fewer where there are fewer."""
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
    """Share of the nearest items that a mode finds among its first ten. nearest: see `exact`."""
    embeddings = None if mode == "codes" else items.sample.z
    searcher = Searcher(model, items.codes, embeddings)
    options = SearchOptions(k=AT, mode=cast(Mode, "fast" if mode == "codes" else mode))
    found = searcher.search(queries.z, queries.z, queries.target, options).top.rows
    shares = [np.isin(right, rows).mean() for right, rows in zip(nearest, found, strict=True) if len(right)]
    return float(np.mean(shares)) if shares else 0.0


def suggestions(recalls: dict[str, float], codes: CodeReport, levels: int, lost: float, layers: int) -> tuple[str, ...]:
    """What a user can change, for each weak result."""
    found = []
    if recalls["fast"] < WEAK["fast"]:
        found.append(
            "Mode fast misses items that exact search finds: search with a larger --budget, or fit more levels "
            f"(--levels {levels + 4})."
        )
    if recalls["codes"] < WEAK["codes"]:
        found.append(
            f"The codes lose {lost:.0%} of what tells the items apart, which limits search without embeddings: fit "
            f"more levels (--levels {levels + 4}), or keep the embeddings (no --codes-only)."
        )
    if recalls["generate"] < min(WEAK["generate"], 0.9 * recalls["codes"]):
        wider = "Search with a larger --beam" + ("" if layers else ", or train layers (--layers 2)")
        found.append(f"The decoder finds fewer items than the codes allow. {wider}; modes fast and rerank are better.")
    if codes.collisions > 0.05 * codes.items:
        found.append(
            f"{codes.collisions / codes.items:.0%} of the items share their codes with another one. If these are not "
            f"duplicates, fit more levels (--levels {levels + 4})."
        )
    return tuple(found)


def sentences(report: FitReport) -> list[str]:
    """The report in words."""
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


def used_codes(report: CodeReport) -> float:
    """Share of the semantic codes in use."""
    return float(np.mean(report.utilisation[1:])) if len(report.utilisation) > 1 else 1.0


def by_modality(modality: Ints) -> list[int]:
    """Number of items of each modality."""
    return [int(count) for count in np.bincount(modality, minlength=MODALITIES)]


def embedding_variance(z: Floats, modality: Ints, means: Floats) -> float:
    """Mean squared distance of vectors z (n, d) from the mean (3, d) of their modality."""
    return float(np.square(z - means[modality]).sum(1).mean())
