"""`genius report`: what runs have measured, as one HTML page and as Markdown, laid out as in the paper.

Reads what `genius evaluate` (run.json), `genius ablate` (ablations.json, quantized.npz) and benchmarks/scale.py
(scale.json) leave in their folders; what is not there is left out, and the page says which command makes it. The page
fetches nothing. Knows nothing of models, benchmarks or searching: it never measures.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from rich.console import Console

from genius.errors import BadData, GeniusError
from genius.evaluation.charts import COLOURS, Chart, Dot, Share, cloud, code_use, need, shares, short, speeds, trade_off
from genius.evaluation.report_blocks import Block, Cell, Charts, Heading, Points, Table, Words, html, markdown
from genius.evaluation.runs import BASELINES, GROUPS, METHODS, TaskResult, headline

FORMAT = 1
PAGE = Path(__file__).parent / "report.html"
SETTINGS = {"local": "Task-specific", "global": "Universal"}
KINDS = (
    "text->image",
    "text->text",
    "text->image,text",
    "image->text",
    "image->image",
    "image,text->text",
    "image,text->image",
    "image,text->image,text",
)

PAPER: dict[str, dict[str, tuple[tuple[float, float, float], ...]]] = {
    "local": {
        "text->image": ((81.1, 68.1, 78.0), (42.6, 18.5, 27.4), (18.0, 13.7, 16.2)),
        "text->text": ((84.7, 32.5, 44.6),),
        "text->image,text": ((59.4, 37.0, 44.3), (78.7, 49.7, 60.6)),
        "image->text": ((92.3, 83.2, 91.1), (43.1, 18.7, 28.4), (18.3, 12.8, 16.3)),
        "image->image": ((32.0, 8.2, 30.2),),
        "image,text->text": ((45.5, 36.6, 41.9), (27.9, 11.2, 20.7)),
        "image,text->image": ((24.4, 13.2, 19.3), (44.6, 20.7, 39.5)),
        "image,text->image,text": ((67.6, 36.4, 52.5), (48.9, 14.6, 30.1)),
    },
    "global": {
        "text->image": ((42.6, 18.5, 27.3), (77.9, 55.1, 68.0), (17.8, 13.7, 16.2)),
        "text->text": ((84.7, 31.1, 42.9),),
        "text->image,text": ((59.4, 36.6, 44.1), (78.8, 49.0, 59.7)),
        "image->text": ((42.8, 18.4, 26.8), (92.3, 82.7, 90.6), (17.9, 12.8, 16.2)),
        "image->image": ((32.0, 8.1, 30.2),),
        "image,text->text": ((39.2, 34.6, 38.0), (24.0, 10.4, 18.0)),
        "image,text->image": ((24.3, 18.9, 19.2), (43.9, 20.1, 38.3)),
        "image,text->image,text": ((60.2, 36.5, 48.6), (44.6, 14.2, 28.6)),
    },
}
"""The paper's recall (%) of CLIP-SF, GENIUS and GENIUS^R with 50 beams on each data set of M-BEIR: Table 1, and
Table 9 of the supplement (of which Table 2 differs in three places; only Table 9 adds up to both tables' average)."""


@dataclass
class RunFolder:
    """What one folder holds; None where a part is missing."""

    path: Path
    run: dict[str, Any] | None
    scale: dict[str, Any] | None
    ablations: dict[str, Any] | None
    quantized: dict[str, np.ndarray] | None

    @property
    def scores(self) -> list[TaskResult]:
        return [TaskResult.from_dict(score) for score in self.run["results"]] if self.run else []


def write_report(runs: Sequence[Path], out: Path, console: Console | None = None) -> None:
    """Writes `out`, an HTML page, and beside it the same tables as Markdown (.md).

    runs: folders with any of run.json, scale.json, ablations.json and quantized.npz.
    """
    console = console or Console()
    need("matplotlib")
    if out.suffix.lower() not in (".html", ".htm"):
        raise GeniusError(f"The report is an HTML page, and {out.name} is not named so. Give --out a name with .html.")
    folders = [read_run(path) for path in runs]
    if not folders:
        raise GeniusError("There is nothing to report on. Name at least one folder written by `genius evaluate`.")
    with console.status("drawing the report"):
        blocks = list(_blocks(folders))
    out.parent.mkdir(parents=True, exist_ok=True)
    page = Template(PAGE.read_text(encoding="utf-8"))
    light, dark = (" ".join(f"--c-{name}: {both[i]};" for name, both in COLOURS.items()) for i in (0, 1))
    title = escape(next(block.text for block in blocks if isinstance(block, Heading)))
    written = page.substitute(title=title, light=light, dark=dark, body="\n".join(map(html, blocks)))
    out.write_text(written, encoding="utf-8", newline="\n")
    beside = out.with_suffix(".md")
    beside.write_text("\n\n".join(filter(None, map(markdown, blocks))) + "\n", encoding="utf-8", newline="\n")
    console.print(f"wrote {out} and {beside}", soft_wrap=True, highlight=False)


def read_run(path: Path) -> RunFolder:
    """The parts of a folder that are there. Refuses a folder without any, and files that are something else."""
    if not path.is_dir():
        raise BadData(f"{path} is not a folder. Name folders that `genius evaluate --out` or `genius ablate` wrote.")
    folder = RunFolder(
        path,
        _read_json(path / "run.json", "results", True),
        _read_json(path / "scale.json", "rows", False),
        _read_json(path / "ablations.json", "rows", True),
        _read_quantized(path / "quantized.npz"),
    )
    if folder.run is folder.scale is folder.ablations is folder.quantized is None:
        raise BadData(
            f"{path} holds nothing to report: no run.json, scale.json, ablations.json or quantized.npz. Make one with "
            "`genius evaluate DATA --out RUN`."
        )
    return folder


def _read_json(path: Path, needed: str, versioned: bool) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BadData(f"{path} is not whole JSON ({error}). Run the command that wrote it again.") from error
    if not isinstance(values, dict) or needed not in values:
        raise BadData(f"{path} has no {needed!r}: it was not written for a report. Take it out of the folder.")
    if versioned and values.get("format") != FORMAT:
        raise BadData(
            f"{path} has the format {values.get('format')}, and {FORMAT} is what this version reads. Measure again."
        )
    return values


def _read_quantized(path: Path) -> dict[str, np.ndarray] | None:
    if not path.exists():
        return None
    try:
        with np.load(path, allow_pickle=False) as arrays:
            made = {name: np.asarray(arrays[name]) for name in ("with", "without", "modality")}
    except (KeyError, ValueError, OSError) as error:
        raise BadData(f"{path} cannot be read ({error}). Run `genius ablate` again.") from error
    if len({len(array) for array in made.values()}) != 1:
        raise BadData(f"{path}: its arrays differ in length. Run `genius ablate` again.")
    return made


# The whole


def _blocks(folders: list[RunFolder]) -> Iterator[Block]:
    measured = [folder for folder in folders if folder.run]
    titles = [_title(folder.run) for folder in measured if folder.run]
    yield Heading(f"GENIUS, measured: {titles[0]}" if len(titles) == 1 else "GENIUS, measured", 1)
    yield Words("Recall is any-hit, in percent, with bootstrap 95 % intervals. All methods search the same vectors.")
    facts = [fact for folder in folders for fact in _facts(folder)]
    if facts:
        yield Heading("In short")
        yield Points(facts)
    for folder, title in zip(measured, titles, strict=True):
        if len(measured) > 1:
            yield Heading(title)
        yield from _evaluation(folder)
    for folder in folders:
        if folder.scale and folder.scale["rows"]:
            yield from _scale(folder.scale)
    for folder in folders:
        if folder.ablations and folder.ablations["rows"]:
            yield from _ablations(folder.ablations)
        if folder.quantized:
            yield from _clouds(folder.quantized)
    missing = list(_missing(folders))
    if missing:
        yield Heading("Not in this report")
        yield Points(missing)


def _title(run: dict[str, Any]) -> str:
    return f"{Path(run['model']['name']).name} on {run['benchmark']}, {run['split']} split"


def _missing(folders: list[RunFolder]) -> Iterator[str]:
    scores = [score for folder in folders for score in folder.scores]
    settings, methods = {score.setting for score in scores}, {score.method for score in scores}
    if not scores:
        yield "Recall, storage, latency and the use of codes: `genius evaluate DATA --out RUN`"
    else:
        for setting in [s for s in SETTINGS if s not in settings]:
            yield f"The {SETTINGS[setting].lower()} setting: `genius evaluate DATA --setting {setting} --out RUN`"
        if lacking := [m for m in METHODS if m not in methods]:
            yield f"Search by {_listed(lacking)}: `genius evaluate DATA --methods {','.join(lacking)} --out RUN`"
        if lacking := [m for m in BASELINES if m not in methods]:
            yield f"The baselines {_listed(lacking)}: `genius evaluate DATA --methods {','.join(lacking)} --out RUN`"
        if not any(score.spread for score in scores):
            yield "How much the prompt matters: `genius evaluate DATA --prompts all --out ANOTHER_RUN`"
    if not any(folder.scale and folder.scale["rows"] for folder in folders):
        yield "Queries per second against collection size: `python benchmarks/scale.py RUN`"
    if not any(folder.ablations and folder.ablations["rows"] for folder in folders):
        yield "Ablations: `genius ablate DATA --out RUN`, or with `--quick` in under an hour"
    if not any(folder.quantized for folder in folders):
        yield (
            "UMAP of quantized vectors: `genius ablate DATA --rows random-start,no-contrastive --out RUN`, "
            "which is part of every whole `genius ablate`"
        )


def _facts(folder: RunFolder) -> Iterator[str]:
    """The findings in a sentence each."""
    for setting, scores in _by_setting(folder.scores):
        means = {m: mean for m in _methods(scores) if (mean := _mean(scores, m))}
        paper = _paper_means(setting)
        if "exact" in means and means["exact"].value > 0:
            ratios = [
                f"`{m}` {means[m].value:.1f} ({100 * means[m].value / means['exact'].value:.0f} % of exact)"
                for m in GROUPS["GENIUS"]
                if m in means
            ]
            if ratios:
                yield (
                    f"{SETTINGS[setting]}, mean recall over {_tasks(scores)}: exact search {means['exact'].value:.1f}, "
                    f"{_listed(ratios)}. In the paper GENIUS has {100 * paper[1] / paper[0]:.0f} % and GENIUS^R "
                    f"{100 * paper[2] / paper[0]:.0f} % of CLIP-SF's recall."
                )
        kinds = {m: _plain_mean(scores, m, lambda s: s.right_modality) for m in means}
        if setting == "global" and "exact" in kinds and (mine := [m for m in GROUPS["GENIUS"] if m in kinds]):
            yield (
                "Universal, answers (of the first five) that have the modality the instruction asks for: "
                + _listed([f"`{m}` {kinds[m]:.1f} %" for m in mine])
                + f", exact search {kinds['exact']:.1f} %."
            )
    if folder.run:
        model = folder.run["model"]
        yield (
            f"An ID takes {_number(model['bytes_per_item'])} bytes, an embedding {4 * model['dim']:,}: "
            f"{4 * model['dim'] / model['bytes_per_item']:.0f} times as much."
        )
    if folder.ablations:
        rows = {row["name"]: row for row in folder.ablations["rows"]}
        judged = [v for row in rows.values() if row["direction"] == "harmful" and (v := judge(row, rows)).measured]
        if judged:
            agree = sum(v.agrees is True for v in judged)
            yield (
                f"{agree} of the {len(judged)} changes that the paper reports as harmful are harmful here too"
                + ("." if agree == len(judged) else "; the others are marked in the tables, with their intervals.")
            )


# Recall


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def span(self) -> str:
        return f"{self.low:.1f}–{self.high:.1f}"


def _mean_of(estimates: Sequence[Estimate]) -> Estimate:
    """Of figures from queries that are independent of each other; may not leave what recall can be."""
    value = float(np.mean([e.value for e in estimates]))
    half = math.sqrt(sum(((e.high - e.low) / 2) ** 2 for e in estimates)) / len(estimates)
    return Estimate(value, max(0.0, value - half), min(100.0, value + half))


def _recall(score: TaskResult, cut: int | None = None) -> Estimate:
    cut = cut or headline(score.dataset)
    return Estimate(score.recall[cut], *score.interval[cut])


def _by_setting(scores: list[TaskResult]) -> Iterator[tuple[str, list[TaskResult]]]:
    for setting in SETTINGS:
        if mine := [score for score in scores if score.setting == setting]:
            yield setting, mine


def _methods(scores: Iterable[TaskResult]) -> list[str]:
    there = {score.method for score in scores}
    return [method for method in METHODS + BASELINES if method in there]


def _of(scores: list[TaskResult], method: str) -> list[TaskResult]:
    """A method's scores, if it has one on every task: a mean over fewer tasks could not be compared."""
    mine = [score for score in scores if score.method == method]
    return mine if len(mine) == len({score.task for score in scores}) else []


def _mean(scores: list[TaskResult], method: str, cut: int | None = None) -> Estimate | None:
    mine = _of(scores, method)
    return _mean_of([_recall(score, cut) for score in mine]) if mine else None


def _plain_mean(scores: list[TaskResult], method: str, value: Callable[[TaskResult], float]) -> float:
    return float(np.mean([value(score) for score in _of(scores, method)]))


def _tasks(scores: list[TaskResult]) -> str:
    count = len({score.task for score in scores})
    return "one task" if count == 1 else f"{count} tasks"


def _evaluation(folder: RunFolder) -> Iterator[Block]:
    run, scores = folder.run, folder.scores
    assert run is not None
    model = run["model"]
    limit = f"at most {run['limit']:,} queries a task" if run["limit"] else "all queries"
    prompts = "averaged over all prompts" if run["prompts"] == "all" else "first prompt"
    yield Heading("Recall")
    yield Words(
        f"Model {Path(model['name']).name}, fingerprint `{model['fingerprint'][:12]}`; {run['benchmark']}, "
        f"{run['split']} split, {limit}, {prompts}; beam {run['beam']}, budget {run['budget']:,} candidates."
    )
    for setting, mine in _by_setting(scores):
        pools = "each task in its own pool" if setting == "local" else "one pool for all tasks"
        table = "Table 1" if setting == "local" else "Table 2"
        yield Heading(f"{SETTINGS[setting]}: {pools} (the paper's {table})", 3)
        yield _recall_table(mine)
        yield _details(setting, mine)
    if any(score.setting == "local" and score.modalities == "text->image" for score in scores):
        yield Heading("Text to image, one data set at a time (the paper's Table 3)", 3)
        yield _text_to_image([s for s in scores if s.setting == "local" and s.modalities == "text->image"])
    ratios = _ratios(scores)
    if ratios:
        yield Heading("Ratio to exact search, beside the paper's", 3)
        yield Words(
            "Recall as a share of exact search on the same vectors. Other data and other encoders than the paper's: "
            "recall itself cannot be compared with it, this can, with care; its pools hold up to 5.6 million items."
        )
        yield ratios
    yield Heading("What recall costs")
    yield Words("Mean recall over all tasks against what a method keeps of an item, and against its time for a query.")
    yield Charts(list(_trade_offs(scores)))
    yield Heading("Means, storage and time of each method", 3)
    for setting, mine in _by_setting(scores):
        yield _means(setting, mine)
    yield Heading("Storage per item (the paper's supplement, Table 2)", 3)
    yield _storage(model, scores)
    if run.get("codebooks"):
        yield Heading("Use of the codebooks")
        levels = run["codebooks"]
        used, perplexity = ([level[what] for level in levels] for what in ("used", "perplexity"))
        yield Charts([code_use("codebooks", "Codes in use at each level", used, perplexity, _sizes(run))])
        yield _codebook_table(run)


def _over(methods: list[str]) -> list[tuple[str, int]]:
    spans = [(name, sum(method in members for method in methods)) for name, members in GROUPS.items()]
    return [("", 1), *((name, span) for name, span in spans if span)]


def _kind(kind: str) -> str:
    return kind.replace(",", " + ").replace("->", " → ")


def _kind_order(kind: str) -> int:
    return KINDS.index(kind) if kind in KINDS else len(KINDS)


def _recall_table(scores: list[TaskResult]) -> Table:
    """Tasks as rows, by kind; methods as columns. Bold: the best but for exact search."""
    methods = _methods(scores)
    by = {(score.task, score.method): score for score in scores}
    table = Table(["task", *methods], [], _over(methods))
    kinds = sorted(dict.fromkeys(score.modalities for score in scores), key=_kind_order)
    for kind in kinds:
        table.rows.append(_kind(kind))
        for task in dict.fromkeys(score.task for score in scores if score.modalities == kind):
            one = next(score for score in scores if score.task == task)
            about = f"R@{headline(one.dataset)}, {one.queries:,} queries, {one.candidates:,} items"
            found = [_recall(by[task, m]) if (task, m) in by else None for m in methods]
            table.rows.append([Cell(one.dataset, about), *_marked(methods, found)])
    means = [_mean(scores, method) for method in methods]
    table.rows.append([Cell("mean"), *_marked(methods, means)])
    exact = _mean(scores, "exact")
    table.sums = 2
    if exact and exact.value:
        ratios = [Cell(f"{mean.value / exact.value:.3f}" if mean else "–") for mean in means]
        table.rows.append([Cell("ratio to exact"), *ratios])
        table.sums = 3
    kinds_found = [
        Cell(f"{_plain_mean(scores, m, lambda s: s.right_modality):.1f}" if _of(scores, m) else "–") for m in methods
    ]
    table.rows.append([Cell("of the asked modality, %"), *kinds_found])
    return table


def _marked(methods: list[str], estimates: Sequence[Estimate | None]) -> list[Cell]:
    exact = GROUPS["Exact search"]
    rest = [e.value for m, e in zip(methods, estimates, strict=True) if e and m not in exact]
    return [
        Cell(f"{e.value:.1f}", e.span, "strong" if m not in exact and e.value == max(rest) else "") if e else Cell("–")
        for m, e in zip(methods, estimates, strict=True)
    ]


def _details(setting: str, scores: list[TaskResult]) -> Table:
    """Everything that was measured, a line for each task and method."""
    cuts = sorted({cut for score in scores for cut in score.recall})
    spread = any(score.spread for score in scores)
    columns = ["task", "method", *(f"R@{cut}" for cut in cuts), "MRR@10", "nDCG@10", "asked modality, %", "ms a query"]
    table = Table(columns + ["spread over prompts"] * spread, [], folded=f"All figures, {SETTINGS[setting].lower()}")
    for score in sorted(
        scores, key=lambda s: (_kind_order(s.modalities), s.task, (METHODS + BASELINES).index(s.method))
    ):
        cells = [Cell(score.task), Cell(score.method)]
        cells += [_cell(_recall(score, cut)) if cut in score.recall else Cell("") for cut in cuts]
        cells += [Cell(f"{score.mrr:.3f}"), Cell(f"{score.ndcg:.3f}"), Cell(f"{score.right_modality:.1f}")]
        cells.append(Cell(f"{1000 * score.seconds:.2f}"))
        if spread:
            cells.append(Cell(f"{score.spread[headline(score.dataset)]:.2f}" if score.spread else ""))
        table.rows.append(cells)
    return table


def _cell(estimate: Estimate | None) -> Cell:
    return Cell(f"{estimate.value:.1f}", estimate.span) if estimate else Cell("–")


def _text_to_image(scores: list[TaskResult]) -> Table:
    datasets = list(dict.fromkeys(score.dataset for score in scores))
    cuts = (1, 5, 10)
    table = Table(
        ["method", *(f"R@{cut}" for _ in datasets for cut in cuts)],
        [],
        [("", 1), *((dataset, len(cuts)) for dataset in datasets)],
    )
    for method in _methods(scores):
        mine = {score.dataset: score for score in scores if score.method == method}
        cells = [_cell(_recall(mine[name], cut) if name in mine else None) for name in datasets for cut in cuts]
        table.rows.append([Cell(method), *cells])
    return table


def _paper_means(setting: str, kind: str | None = None) -> tuple[float, float, float]:
    """CLIP-SF, GENIUS and GENIUS^R over all data sets of the paper, or those of one kind."""
    rows = [row for name, part in PAPER[setting].items() if kind in (None, name) for row in part]
    exact, generate, rerank = np.mean(rows, axis=0)
    return float(exact), float(generate), float(rerank)


def _ratios(scores: list[TaskResult]) -> Table | None:
    """Of each kind of task: the ratio of GENIUS's recall to exact search's, ours and the paper's."""
    ours = [method for method in GROUPS["GENIUS"] if any(score.method == method for score in scores)]
    columns = ["kind of task", *ours, "GENIUS", "GENIUS^R"]
    table = Table(columns, [], [("", 1), ("here", len(ours)), ("in the paper", 2)])
    for setting, mine in _by_setting(scores):
        exact = {score.task: score for score in mine if score.method == "exact"}
        if not exact or not ours:
            continue
        table.rows.append(SETTINGS[setting])
        kinds = [kind for kind in KINDS if any(score.modalities == kind for score in exact.values())]
        for kind in [*kinds, None]:
            tasks = [task for task, score in exact.items() if kind in (None, score.modalities)]
            base = float(np.mean([_recall(exact[task]).value for task in tasks]))
            cells = [Cell(_kind(kind) if kind else "all")]
            for method in ours:
                values = [_recall(s).value for s in mine if s.method == method and s.task in tasks]
                there = len(values) == len(tasks) and base > 0
                cells.append(Cell(f"{np.mean(values) / base:.2f}" if there else "–"))
            paper = _paper_means(setting, kind)
            cells += [Cell(f"{value / paper[0]:.2f}") for value in paper[1:]]
            table.rows.append([Cell(c.text, look="strong") for c in cells] if kind is None else cells)
    return table if table.rows else None


def _means(setting: str, scores: list[TaskResult]) -> Table:
    """Methods as rows: what each finds, keeps and takes, as means over the tasks."""
    columns = [SETTINGS[setting], "R@1", "R@5", "R@10", "MRR@10", "nDCG@10", "asked modality, %"]
    spread = any(score.spread for score in scores)
    table = Table([*columns, "bytes an item", "ms a query"] + ["spread over prompts"] * spread, [])
    for method in [method for method in _methods(scores) if _of(scores, method)]:
        cells = [Cell(method), *(_cell(_mean(scores, method, cut)) for cut in (1, 5, 10))]
        cells += [Cell(f"{_plain_mean(scores, method, lambda s: s.mrr):.3f}")]
        cells += [Cell(f"{_plain_mean(scores, method, lambda s: s.ndcg):.3f}")]
        cells += [Cell(f"{_plain_mean(scores, method, lambda s: s.right_modality):.1f}")]
        cells += [Cell(_number(_plain_mean(scores, method, lambda s: s.bytes)))]
        cells += [Cell(f"{1000 * _plain_mean(scores, method, lambda s: s.seconds):.2f}")]
        if spread:
            spreads = [s.spread[headline(s.dataset)] for s in _of(scores, method) if s.spread]
            cells.append(Cell(f"{np.mean(spreads):.2f}" if spreads else ""))
        table.rows.append(cells)
    return table


def _storage(model: dict[str, Any], scores: list[TaskResult]) -> Table:
    bits = math.ceil(math.log2(model["codes_per_level"]))
    table = Table(["kept of an item", "what it is", "bytes", "a million items"], [])

    def add(name: str, what: str, size: float) -> None:
        table.rows.append([Cell(name), Cell(what, look="words"), Cell(_number(size)), Cell(_size(1e6 * size))])

    table.rows.append("in the paper")
    add("CLIP", "768 × 32 bits", 3072)
    add("GENIUS", "2 + 8 × 12 bits", 12.25)
    table.rows.append("here")
    add("embedding", f"{model['dim']} × 32 bits", 4 * model["dim"])
    add("ID", f"2 + {model['levels']} × {bits} bits", model["bytes_per_item"])
    table.rows.append("what each method keeps")
    about = {
        "exact": "stage-1 vectors",
        "exact-modality": "stage-1 vectors; only those of the asked modality are compared",
        "fused": "fused vectors",
        "generate": "IDs",
        "rerank": "IDs and stage-1 vectors",
        "fast": "IDs and stage-1 vectors",
        "codes": "IDs",
        "hnsw": "stage-1 vectors and a graph (Faiss)",
        "ivfpq": "product codes in lists (Faiss)",
        "opq": "rotated product codes (Faiss)",
        "rq": "IDs, each compared with the query",
    }
    for method in _methods(scores):
        add(method, about[method], float(np.mean([score.bytes for score in scores if score.method == method])))
    return table


def _codebook_table(run: dict[str, Any]) -> Table:
    table = Table(["level", "codes", "used, %", "perplexity"], [])
    for level, size in zip(run["codebooks"], _sizes(run), strict=True):
        name = f"{level['level']} (modality)" if size == 3 else str(level["level"])
        table.rows.append(
            [Cell(name), Cell(str(size)), Cell(f"{level['used']:.1f}"), Cell(f"{level['perplexity']:.1f}")]
        )
    return table


def _sizes(run: dict[str, Any]) -> list[int]:
    """Codes at each level; the first is the modality's."""
    return [3, *[run["model"]["codes_per_level"]] * (len(run["codebooks"]) - 1)]


# Speed


def _scale(scale: dict[str, Any]) -> Iterator[Block]:
    rows = scale["rows"]
    threads = "one thread" if scale["threads"] == 1 else f"{scale['threads']} threads"
    yield Heading("Queries per second against collection size (the paper's Fig. 4)")
    yield Words(f"All methods in the same run, {threads}. The paper measures on a graphics card.")
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in sorted(rows, key=lambda row: row["items"]):
        lines.setdefault(row["method"], []).append((row["items"], row["queries_per_second"]))
    caption = "Both axes are logarithmic. flat, hnsw: Faiss."
    yield Charts([speeds("scale", "Speed against collection size", lines, caption)])
    sizes = sorted({row["items"] for row in rows})
    table = Table(["method", *(short(size) for size in sizes), "bytes an item", "seconds to build, largest"], [])
    table.over = [("", 1), ("queries per second", len(sizes)), ("", 2)]
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = {row["items"]: row for row in rows if row["method"] == method}
        largest = mine[max(mine)]
        cells = [_speed(mine[n]) if n in mine else Cell("–") for n in sizes]
        table.rows.append(
            [Cell(method), *cells, Cell(_number(largest["bytes_per_item"])), Cell(_number(largest["build_seconds"]))]
        )
    yield table
    if any("found" in row for row in rows):
        yield Words("Small: how many of the ten nearest items, by flat search, the method finds too.")
    if any(row.get("disturbed") for row in rows):
        yield Words("†: measured while other work took a share of the processor; measure again on an idle machine.")


def _speed(row: dict[str, Any]) -> Cell:
    found = f"finds {100 * row['found']:.0f} %" if "found" in row else ""
    return Cell(_number(row["queries_per_second"]) + "†" * bool(row.get("disturbed")), found)


# Ablations


@dataclass(frozen=True)
class Verdict:
    """A row against its reference. agrees: with what the paper says; None where that has no direction."""

    text: str
    difference: Estimate | None = None
    agrees: bool | None = None

    @property
    def measured(self) -> bool:
        return self.difference is not None


def judge(row: dict[str, Any], rows: dict[str, dict[str, Any]]) -> Verdict:
    """What became of the paper's finding here. rows: all rows, by name.

    The difference is the mean over tasks of each task's difference. Its interval takes the two measurements of a task
    as independent; as both ask the same queries, it is wider than it need be, never narrower.
    """
    if row["direction"] == "reference":
        return Verdict("reference")
    reference = rows.get(row.get("against") or "")
    difference = _difference(row, reference) if reference else None
    if difference is None:
        return Verdict("its reference is not measured")
    low, high = difference.low, difference.high
    span = f"interval {_signed(low)} to {_signed(high)}"
    found = "worse" if high < 0 else "better" if low > 0 else "no clear difference"
    match row["direction"]:
        case "harmful":
            said = "harmful here too" if found == "worse" else f"not harmful here: {span}"
            return Verdict(said, difference, found == "worse")
        case "helpful":
            said = "helpful here too" if found == "better" else f"not helpful here: {span}"
            return Verdict(said, difference, found == "better")
        case "mixed":
            return Verdict(f"mixed in the paper; here {found}", difference)
        case "unknown":
            return Verdict(f"not in the paper; here {found}", difference)
    raise BadData(f"The ablation {row['name']} has the direction {row['direction']!r}, which is not known.")


def _difference(row: dict[str, Any], reference: dict[str, Any], method: str = "generate") -> Estimate | None:
    mine, theirs = _row_scores(row, method), _row_scores(reference, method)
    return _paired([(mine[task], theirs[task]) for task in mine if task in theirs])


def _paired(pairs: list[tuple[Estimate, Estimate]]) -> Estimate | None:
    if not pairs:
        return None
    value = float(np.mean([a.value - b.value for a, b in pairs]))
    half = math.sqrt(sum(((e.high - e.low) / 2) ** 2 for pair in pairs for e in pair)) / len(pairs)
    return Estimate(value, value - half, value + half)


def _row_scores(row: dict[str, Any], method: str) -> dict[str, Estimate]:
    """task -> Recall@5 of one method, as in all ablations of the paper."""
    scores = [TaskResult.from_dict(score) for score in row["results"]]
    return {score.task: _recall(score, 5) for score in scores if score.method == method}


def _ablations(ablations: dict[str, Any]) -> Iterator[Block]:
    rows = {row["name"]: row for row in ablations["rows"]}
    yield Heading("Ablations")
    size = "Quick size: short trainings of small models on part of the queries. " if ablations["quick"] else ""
    yield Words(
        f"{size}Mean Recall@5 over the tasks here, and over the figures that the paper gives. Each row is compared "
        "with its reference by `generate`, the paper's GENIUS; the interval of a difference pairs the tasks."
    )
    if chart := _ablation_chart(rows):
        yield Charts([chart])
    for name in dict.fromkeys(row["table"] for row in rows.values()):
        mine = [row for row in rows.values() if row["table"] == name]
        where = ", ".join(dict.fromkeys(SETTINGS[row["setting"]].lower() for row in mine))
        yield Heading(f"{name}: {where}", 3)
        yield _ablation_table(mine, rows)
        yield from (Words(text) for row in mine if (text := _reranking(row)))


def _ablation_table(mine: list[dict[str, Any]], rows: dict[str, dict[str, Any]]) -> Table:
    methods = [m for m in METHODS if any(m in row["mean"] for row in mine)]
    named = (("R@5", False), ("R@5, re-ranked", True))
    papers = [(name, reranked) for name, reranked in named if any(_paper(row, reranked) for row in mine)]
    theirs = [*(name for name, _ in papers), "to reference"] if papers else []
    over = [("", 1), *([("in the paper", len(theirs))] if papers else []), ("here", len(methods) + 2)]
    table = Table(["row", *theirs, *methods, "to reference", "verdict"], [], over)
    for row in mine:
        verdict = judge(row, rows)
        cells = [Cell(row["label"], row.get("ours") or "")]
        for _, reranked in papers:
            figures = _paper(row, reranked)
            cells.append(Cell(f"{np.mean(list(figures.values())):.1f}", _few(figures)) if figures else Cell("–"))
        if papers:
            pairs = _paper_pairs(row, rows)
            cells.append(Cell(_signed(float(np.mean([a - b for a, b in pairs]))) if pairs else ""))
        cells += [_cell(_mean_of(list(there.values())) if (there := _row_scores(row, m)) else None) for m in methods]
        difference = verdict.difference
        cells.append(
            Cell(_signed(difference.value), f"{_signed(difference.low)} to {_signed(difference.high)}")
            if difference
            else Cell("")
        )
        look = {True: "words good", False: "words bad", None: "words"}[verdict.agrees]
        table.rows.append([*cells, Cell(verdict.text, look=look)])
    return table


def _paper(row: dict[str, Any], reranked: bool) -> dict[str, float]:
    """The paper's figures by task, with or without re-ranking (", R")."""
    figures: dict[str, float] = row["paper"] or {}
    return {name.removesuffix(", R"): value for name, value in figures.items() if name.endswith(", R") == reranked}


def _paper_pairs(row: dict[str, Any], rows: dict[str, dict[str, Any]]) -> list[tuple[float, float]]:
    """The paper's figures of a row and of its reference, by task. A reference of ours alone stands for its own."""
    reference = rows.get(row.get("against") or "")
    passed = {row["name"]}
    while reference and not reference["paper"] and reference["name"] not in passed:
        passed.add(reference["name"])
        reference = rows.get(reference.get("against") or "")
    mine, theirs = _paper(row, False), _paper(reference, False) if reference else {}
    return [(mine[name], theirs[name]) for name in mine if name in theirs]


def _few(figures: dict[str, float]) -> str:
    """Where there is but one task, its name: a mean of one is not a mean."""
    return next(iter(figures)) if len(figures) == 1 else ""


def _reranking(row: dict[str, Any]) -> str | None:
    """What re-ranking adds, of rows for which the paper says it too."""
    without, reranked = _paper(row, False), _paper(row, True)
    here = [(e, _row_scores(row, "generate").get(task)) for task, e in _row_scores(row, "rerank").items()]
    gain = _paired([(after, before) for after, before in here if before])
    if not reranked or gain is None:
        return None
    paper = float(np.mean([reranked[name] - without[name] for name in reranked if name in without]))
    return (
        f"{row['label']}: re-ranking adds {gain.value:.1f} points here (interval {_signed(gain.low)} to "
        f"{_signed(gain.high)}), {paper:.1f} in the paper."
    )


# Charts


def _trade_offs(scores: list[TaskResult]) -> Iterator[Chart]:
    """Recall against bytes and against time, a chart for each setting."""
    costs: list[tuple[str, str, str, Callable[[TaskResult], float]]] = [
        ("bytes", "Recall against storage", "bytes an item", lambda score: score.bytes),
        ("time", "Recall against time", "milliseconds a query, asked in batches", lambda score: 1000 * score.seconds),
    ]
    for name, title, axis, cost in costs:
        for setting, mine in _by_setting(scores):
            dots = []
            for method in _methods(mine):
                mean = _mean(mine, method)
                if mean and (x := _plain_mean(mine, method, cost)) > 0:
                    dots.append(Dot(method, x, mean.value, mean.low, mean.high))
            if dots:
                caption = (
                    f"Mean over {_tasks(mine)}, 95 % interval. Squares: exact; circles: GENIUS; triangles: baselines."
                )
                full_title = f"{title}, {SETTINGS[setting].lower()}"
                yield trade_off(f"recall-{name}-{setting}", full_title, axis, dots, caption)


def _ablation_chart(rows: dict[str, dict[str, Any]]) -> Chart | None:
    """What is left of the reference's recall in each row, here and in the paper."""
    lines = []
    for row in rows.values():
        reference = rows.get(row.get("against") or "")
        difference = _difference(row, reference) if reference else None
        base = _mean_of(list(_row_scores(reference, "generate").values())).value if reference and difference else 0.0
        if reference is None or difference is None or base <= 0:
            continue
        pairs = _paper_pairs(row, rows)
        paper = 100 * sum(a for a, _ in pairs) / sum(b for _, b in pairs) if pairs else None
        value, low, high = (100 * (1 + d / base) for d in (difference.value, difference.low, difference.high))
        lines.append(Share(row["table"], row["name"], value, low, high, paper))
    if not lines:
        return None
    title, axis = "What each change leaves of the reference's recall", "% of the reference's mean Recall@5"
    caption = "Circles: here, `generate`, with 95 % interval. Diamonds: the paper. The line at 100 % is the reference."
    return shares("ablations", title, axis, lines, caption)


def _clouds(quantized: dict[str, np.ndarray]) -> Iterator[Block]:
    yield Heading("Quantized vectors with and without the contrastive loss (the paper's supplement, Fig. 1)")
    yield Words(
        "UMAP of test candidates rebuilt from their codes, each image fitted by itself. Where items collapse, few "
        "distinct vectors are left."
    )
    names = ("with", "without")
    yield Charts(
        [cloud(f"umap-{n}", f"{n.capitalize()} contrastive loss", quantized[n], quantized["modality"]) for n in names]
    )


# Words and numbers


def _number(value: float) -> str:
    """About three figures that matter: 12.25, 3,072, 0.034."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}".rstrip("0").rstrip(".") if value >= 1 or value == 0 else f"{value:.2g}"


def _size(value: float) -> str:
    for size, unit in ((1e9, "GB"), (1e6, "MB")):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value / 1e3:.2f} kB"


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def _listed(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
