"""`genius report`: results of runs, ablations and speed measurements as one HTML page and as Markdown.

Parts without results are left out; the page names the commands that measure them. The page loads nothing from outside.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from genius.errors import GeniusError
from genius.evaluation import charts, paper
from genius.evaluation.ablation_tables import ablation_sections, agreement
from genius.evaluation.comparison import comparison_sections
from genius.evaluation.recall_tables import SETTINGS, SettingResults, run_sections
from genius.evaluation.report_sections import Cell, Section, Table, render
from genius.evaluation.runs import BASELINES, GROUPS, METHODS
from genius.evaluation.saved_results import SavedResults


def write_report(runs: Sequence[Path], out: Path, console: Console | None = None) -> None:
    """Writes the page, and beside it the same tables as Markdown (.md).

    Args:
        runs: Folders with any of run.json, scale.json, ablations.json and quantized.npz.
        out: The page to write, an .html file.
        console: Where to print progress.

    Raises:
        BadData: A folder holds no results, or a file in it cannot be read.
        GeniusError: `out` is not an .html file, `runs` is empty, or matplotlib is missing.
    """
    console = console or Console()
    charts.require("matplotlib")
    if out.suffix.lower() not in (".html", ".htm"):
        raise GeniusError(f"The report is an HTML page, but {out.name} does not end in .html.")
    folders = [SavedResults.read(path) for path in runs]
    if not folders:
        raise GeniusError("There is nothing to report. Give at least one folder written by `genius evaluate --out`.")
    with console.status("drawing the report"):
        sections = list(_sections(folders))
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_suffix(".md")
    for file, template in ((out, "report.html"), (beside, "report.md")):
        file.write_text(render(template, sections=sections), encoding="utf-8", newline="\n")
    console.print(f"wrote {out} and {beside}", soft_wrap=True, highlight=False)


def _sections(folders: Sequence[SavedResults]) -> Iterator[Section]:
    measured = [(folder.run, folder.results) for folder in folders if folder.run]
    titles = [f"{Path(run['model']['name']).name} on {run['benchmark']}, {run['split']} split" for run, _ in measured]
    yield Section(
        f"GENIUS results: {titles[0]}" if len(titles) == 1 else "GENIUS results",
        1,
        "Recall is any-hit, in percent, with bootstrap 95 % intervals. All methods search the same vectors.",
    )
    if facts := [fact for folder in folders for fact in _facts(folder)]:
        yield Section("In short", points=facts)
    for title, (run, results) in zip(titles, measured, strict=True):
        if len(titles) > 1:
            yield Section(title)
        yield from run_sections(run, results)
    yield from comparison_sections(measured)
    for folder in folders:
        if folder.scale and folder.scale["rows"]:
            yield _speed_section(folder.scale)
    for folder in folders:
        if folder.ablations and folder.ablations["rows"]:
            yield from ablation_sections(folder.ablations)
        if folder.quantized:
            vectors, modality = folder.quantized, folder.quantized["modality"]
            yield Section(
                "Quantized vectors with and without the contrastive loss (the paper's supplement, Fig. 1)",
                text="UMAP of test candidates reconstructed from their codes, each chart fitted separately. Where "
                "items collapse, few distinct vectors are left.",
                charts=[
                    charts.cloud(f"umap-{name}", f"{name.capitalize()} contrastive loss", vectors[name], modality)
                    for name in ("with", "without")
                ],
            )
    if missing := list(_missing(folders)):
        yield Section("Not in this report", points=missing)


def _facts(folder: SavedResults) -> Iterator[str]:
    """The main findings, one sentence each."""
    for one in SettingResults.all(folder.results):
        exact, published = one.mean("exact"), paper.mean_recall(one.setting)
        generated, reranked = (100 * published[name] / published["CLIP-SF"] for name in ("GENIUS", "GENIUS^R"))
        means = {method: mean for method in GROUPS["GENIUS"] if (mean := one.mean(method))}
        if not exact or not exact.value or not means:
            continue
        ratios = [f"`{m}` {mean} ({100 * mean.value / exact.value:.0f} % of exact)" for m, mean in means.items()]
        yield (
            f"{one.name}, mean recall over {one.task_count}: exact search {exact}, {_listed(ratios)}. In the paper "
            f"GENIUS has {generated:.0f} % and GENIUS^R {reranked:.0f} % of CLIP-SF's recall."
        )
    if folder.run and folder.run["model"]["levels"]:
        model = folder.run["model"]
        code = math.ceil(math.log2(model["codes_per_level"]))
        yield (
            f"Storage per item: an ID takes {model['bytes_per_item']:g} bytes (2 + {model['levels']} × {code} bits), "
            f"an embedding {4 * model['dim']:,} ({model['dim']} × 32 bits). In the paper 12.25 (2 + 8 × 12 bits) and "
            "3,072 (768 × 32 bits)."
        )
    if folder.ablations and (fact := agreement(folder.ablations)):
        yield fact


def _speed_section(scale: dict[str, Any]) -> Section:
    by_method: dict[str, dict[int, dict[str, Any]]] = {}
    for row in sorted(scale["rows"], key=lambda row: row["items"]):
        by_method.setdefault(row["method"], {})[row["items"]] = row
    sizes = sorted({row["items"] for row in scale["rows"]})
    table = Table(["queries per second", *(f"{size:,} items" for size in sizes), "bytes per item", "seconds to build"])
    for method, rows in by_method.items():
        largest = rows[max(rows)]
        cells = [_speed_cell(rows[size]) if size in rows else Cell("–") for size in sizes]
        table.add(method, *cells, f"{largest['bytes_per_item']:,.5g}", f"{largest['build_seconds']:,.3g}")
    lines = {m: [(size, row["queries_per_second"]) for size, row in rows.items()] for m, rows in by_method.items()}
    notes = ["Bytes and seconds: of the largest collection."]
    if any("found" in row for row in scale["rows"]):
        notes.append("Small: the share of the ten nearest items, by flat search, that the method finds.")
    if any(row.get("disturbed") for row in scale["rows"]):
        notes.append("†: measured while other work used the processor. Measure again on an idle machine.")
    threads = "one thread" if scale["threads"] == 1 else f"{scale['threads']} threads"
    return Section(
        "Queries per second against collection size (the paper's Fig. 4)",
        text=f"All methods in the same run, {threads}. The paper measures on a GPU.",
        charts=[charts.speeds("scale", "Speed against collection size", lines, "flat, hnsw: Faiss.")],
        tables=[table],
        notes=notes,
    )


def _speed_cell(row: dict[str, Any]) -> Cell:
    speed = row["queries_per_second"]
    text = f"{speed:,.0f}" if speed >= 100 else f"{speed:.3g}"
    return Cell(text + "†" * bool(row.get("disturbed")), f"finds {100 * row['found']:.0f} %" if "found" in row else "")


def _missing(folders: Sequence[SavedResults]) -> Iterator[str]:
    """What was not measured, with the command that measures it."""
    results = [result for folder in folders for result in folder.results]
    settings, methods = {result.setting for result in results}, {result.method for result in results}
    if not results:
        yield "Recall, storage, latency and the use of codes: `genius evaluate DATA --out RUN`"
    else:
        for setting in (s for s in SETTINGS if s not in settings):
            yield f"The {SETTINGS[setting].lower()} setting: `genius evaluate DATA --setting {setting} --out RUN`"
        for name, group in (("methods", METHODS), ("baselines", BASELINES)):
            if lacking := [method for method in group if method not in methods]:
                command = f"genius evaluate DATA --methods {','.join(lacking)} --out RUN"
                yield f"The {name} {_listed(lacking)}: `{command}`"
        if not any(result.spread for result in results):
            yield "How much the prompt matters: `genius evaluate DATA --prompts all --out ANOTHER_RUN`"
    if not any(folder.scale and folder.scale["rows"] for folder in folders):
        yield "Queries per second against collection size: `python benchmarks/scale.py RUN`"
    if not any(folder.ablations and folder.ablations["rows"] for folder in folders):
        yield "Ablations: `genius ablate DATA --out RUN`, or with `--size quick` in about an hour"
    if not any(folder.quantized for folder in folders):
        yield (
            "UMAP of quantized vectors: `genius ablate DATA --table components --rows random-start,no-contrastive "
            "--out RUN`, which is part of every whole `genius ablate`"
        )


def _listed(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
