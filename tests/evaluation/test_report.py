import base64
import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from genius.errors import BadData, GeniusError
from genius.evaluation import charts
from genius.evaluation.ablation_tables import judge
from genius.evaluation.estimate import Estimate
from genius.evaluation.paper import METHODS, RECALL
from genius.evaluation.report import write_report

TASKS = (("mscoco_task0", "mscoco", "text->image"), ("fashion200k_task3", "fashion200k", "image->text"))
SIZES = {"exact": 128.0, "generate": 3.25, "fast": 131.25, "ivfpq": 3.0}


def score(
    setting: str, task: tuple[str, str, str], method: str, recall: float, half: float = 2.0, spread: float | None = None
) -> dict[str, Any]:
    cuts = (1, 5, 10, 20, 50) if task[1] == "fashion200k" else (1, 5, 10)
    values = {cut: recall + cut - 5 for cut in cuts}
    return {
        "setting": setting,
        "task": task[0],
        "dataset": task[1],
        "modalities": task[2],
        "method": method,
        "queries": 1234,
        "candidates": 5678,
        "recall": {str(cut): value for cut, value in values.items()},
        "interval": {str(cut): [value - half, value + half] for cut, value in values.items()},
        "mrr": 0.41,
        "ndcg": 0.52,
        "right_modality": 100.0 if setting == "local" or method != "exact" else 88.5,
        "seconds": 0.0021,
        "bytes": SIZES[method],
        "spread": None if spread is None else {str(cut): spread for cut in cuts},
    }


RECALLS = {"exact": 60.0, "generate": 45.0, "fast": 57.0, "ivfpq": 30.0}


def write_run(folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    scores = [score(s, t, m, r) for s in ("local", "global") for t in TASKS for m, r in RECALLS.items()]
    model = {"name": "/far/away/tiny", "fingerprint": "0123456789abcdef", "dim": 32, "levels": 3}
    model |= {"codes_per_level": 256, "bytes_per_item": 3.25}
    codebooks = [{"level": 1, "used": 100.0, "perplexity": 2.5}]
    codebooks += [{"level": level, "used": 90.0 - level, "perplexity": 100.0 + level} for level in (2, 3, 4)]
    run = {"format": 1, "model": model, "benchmark": "shoes", "split": "test", "beam": 50, "budget": 1000}
    run |= {"limit": None, "prompts": "first", "seconds": 5.0, "results": scores, "codebooks": codebooks}
    (folder / "run.json").write_text(json.dumps(run | changes))
    return folder


def ablation(name: str, recall: float, direction: str, half: float = 2.0, **about: Any) -> dict[str, Any]:
    """A row whose reference has 50 %."""
    mean = {"value": recall, "low": recall - 2, "high": recall + 2}
    row: dict[str, Any] = {"name": name, "size": "quick", "table": "Table 4", "table_about": "parts", "label": name}
    row |= {"paper": None, "direction": direction, "against": "whole", "setting": "global", "beam": 30}
    row |= {"scheme": "modality", "limit": 100, "seeds": [0], "mean": {"exact": mean, "generate": mean}, "spread": {}}
    apart = {"value": recall - 50, "low": recall - 50 - half, "high": recall - 50 + half, "seeds": [0]}
    row |= {"difference": None if direction == "reference" else apart, "rerank_gain": None, "trainings": []}
    return row | about


def write_ablations(folder: Path, rows: list[dict[str, Any]]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "ablations.json").write_text(json.dumps({"format": 2, "rows": rows}))
    return folder


def write_scale(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    rows = [
        {"method": method, "items": items, "queries_per_second": speed, "bytes_per_item": 64.5, "build_seconds": 2.0}
        for method, speed in (("flat", 4321.0), ("fast", 210.0))
        for items in (10_000, 1_000_000)
    ]
    (folder / "scale.json").write_text(json.dumps({"threads": 1, "rows": rows}))
    return folder


@pytest.fixture
def quick_umap(monkeypatch: pytest.MonkeyPatch) -> None:
    """UMAP takes long to start: the first two dimensions do for all but its own test."""
    monkeypatch.setattr(charts, "flatten", lambda vectors: vectors[:, :2])


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes most of the time of a report: tests of words and tables go without."""
    monkeypatch.setattr(charts, "_chart", lambda _, name, caption: charts.Chart(name, "<svg ></svg>", caption))


def made(runs: list[Path], folder: Path) -> tuple[str, str]:
    out = folder / "out" / "report.html"
    write_report(runs, out, Console(quiet=True))
    return out.read_text(encoding="utf-8"), out.with_suffix(".md").read_text(encoding="utf-8")


class Tags(HTMLParser):
    """Checks that tags close in order, and keeps what could fetch something."""

    VOID = ("meta", "link", "br", "img", "use", "path", "image", "rect")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.counts: dict[str, int] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def rows_of(markdown: str, first: str) -> list[list[str]]:
    """The cells of every table row that begins with `first`."""
    lines = [line.strip("| ").split(" | ") for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines if line[0].startswith(first)]


def test_page_holds_every_part_and_fetches_nothing(tmp_path: Path, quick_umap: None) -> None:
    run = write_scale(write_run(tmp_path / "run"))
    other = write_ablations(tmp_path / "other", [ablation("whole", 50, "reference"), ablation("less", 20, "harmful")])
    vectors = np.random.default_rng(0).normal(size=(2, 30, 4)).astype(np.float32)
    np.savez(other / "quantized.npz", **{"with": vectors[0], "without": vectors[1], "modality": np.arange(30) % 3})
    page, markdown = made([run, other], tmp_path)
    tags = Tags(page)
    assert tags.open == []
    assert all(value.startswith(("#", "data:")) for value in tags.fetched)
    assert "url(http" not in page
    assert "@import" not in page
    for name in (
        *(f"recall-{cost}-{setting}" for cost in ("bytes", "time") for setting in ("local", "global")),
        *("scale", "ablations-quick", "umap-with", "umap-without"),
    ):
        assert page.count(f'alt="{name}"') == 1
    assert tags.counts["img"] == 8
    for text in (page, markdown):
        assert "/far/away" not in text
        for title in ("Table 1", "Table 2", "Table 3", "Fig. 4", "Table 4", "Storage per item", "tiny on shoes"):
            assert title in text
    assert "30 distinct vectors of 30 items" in page


def test_recall_table_is_in_the_papers_layout(tmp_path: Path, undrawn: None) -> None:
    page, markdown = made([write_run(tmp_path / "run")], tmp_path)
    assert rows_of(markdown, "task")[0] == ["task", "exact", "generate", "fast", "ivfpq"]
    local = rows_of(markdown, "mscoco (R@5")[0]
    assert local[0] == "mscoco (R@5, 1,234 queries, 5,678 items)"
    assert local[1:] == ["60.0 (58.0–62.0)", "45.0 (43.0–47.0)", "**57.0** (55.0–59.0)", "30.0 (28.0–32.0)"]
    assert rows_of(markdown, "fashion200k (R@10")[0][1] == "65.0 (63.0–67.0)"
    half = 2 / np.sqrt(2)  # of a mean over two tasks
    assert rows_of(markdown, "mean")[0][1] == f"62.5 ({62.5 - half:.1f}–{62.5 + half:.1f})"
    assert rows_of(markdown, "ratio to exact")[0][1:3] == ["1.000", "0.760"]
    assert [row[1] for row in rows_of(markdown, "target modality")] == ["100.0", "88.5"]
    assert page.index("text → image</span>") < page.index("image → text</span>")
    assert len(rows_of(markdown, "exact")) == 3  # text to image, means twice


def test_ratios_stand_beside_the_papers(tmp_path: Path, undrawn: None) -> None:
    _, markdown = made([write_run(tmp_path / "run")], tmp_path)
    table = markdown[markdown.index("### Ratio to exact") :]
    first = rows_of(table, "text → image")[0]
    exact, _, generate, rerank = np.mean(list(RECALL["local"]["text->image"].values()), axis=0)
    assert first[1:] == ["0.75", "0.95", f"{generate / exact:.2f}", f"{rerank / exact:.2f}"]
    assert "59 %" in markdown
    assert "79 %" in markdown


def test_models_stand_side_by_side_as_in_the_paper(tmp_path: Path, undrawn: None) -> None:
    def run(name: str, encoder: str, tasks: Sequence[tuple[str, str, str]], recalls: dict[str, float]) -> Path:
        model = {"name": f"/far/{name}", "encoder": encoder, "fingerprint": name, "dim": 32, "levels": 0}
        scores = [score("local", task, method, recall) for task in tasks for method, recall in recalls.items()]
        model |= {"codes_per_level": 1, "bytes_per_item": 0.25}
        return write_run(tmp_path / f"{name}{len(list(tmp_path.iterdir()))}", model=model, results=scores, codebooks=[])

    clip = [run("clip-sf", "clip", [task], {"exact": 80.0, "generate": 65.0}) for task in TASKS]  # one task a run
    blip = run("blip-ff", "blip-ff", TASKS, {"exact": 79.0})
    _, markdown = made([*clip, blip], tmp_path)
    table = markdown[markdown.index("models side by side (the paper's Table 1)") :]
    assert "models side by side (the paper's Table 2)" not in table
    titles = ["clip-sf exact", "blip-ff exact", "clip-sf generate"]
    assert rows_of(table, "task")[0] == ["task", *titles, *(f"{name}, in the paper" for name in METHODS)]
    recalls = ["80.0 (78.0–82.0)", "79.0 (77.0–81.0)", "65.0 (63.0–67.0)"]
    assert rows_of(table, "mscoco")[0][1:] == [*recalls, "81.1", "79.7", "68.1", "78.0"]
    assert rows_of(table, "fashion200k")[0][-4:] == ["18.3", "28.9", "12.8", "16.3"]
    means = [float(cell.split()[0]) for cell in rows_of(table, "mean")[0][1:]]
    assert means == pytest.approx([82.5, 81.5, 67.5, 49.7, 54.3, 40.45, 47.15], abs=0.06)
    assert "an ID takes" not in markdown  # none of them has codebooks

    _, alone = made([write_run(tmp_path / "mini")], tmp_path)
    assert "side by side" not in alone
    _, others = made([write_run(tmp_path / "mini"), run("own", "mini", TASKS[:1], {"exact": 50.0})], tmp_path)
    table = others[others.index("models side by side (the paper's Table 1)") :]
    assert rows_of(table, "task")[0] == ["task", "tiny exact", "own exact", "tiny generate"]
    assert rows_of(table, "fashion200k")[0][2] == rows_of(table, "mean")[0][2] == "–"


def test_protocols_are_named_and_not_mixed(tmp_path: Path, undrawn: None) -> None:
    """A run that names none is a usual one. The same model in both protocols is not two models side by side."""
    usual, paper = write_run(tmp_path / "usual"), write_run(tmp_path / "paper", protocol="paper")
    _, markdown = made([usual, paper], tmp_path)
    assert markdown.count("The image of a query is never an answer.") == 1
    assert markdown.count("The paper's protocol: the image of a query may be an answer") == 1
    assert "side by side" not in markdown
    model = json.loads((paper / "run.json").read_text())["model"] | {"encoder": "clip", "fingerprint": "other"}
    clip = [write_run(tmp_path / f"clip-{name}", model=model, protocol=name) for name in ("usual", "paper")]
    _, markdown = made([usual, paper, *clip], tmp_path)
    titles = [line for line in markdown.splitlines() if "Task-specific: models side by side" in line]
    assert [title.endswith("test split, the paper's protocol") for title in titles] == [False, True]


@pytest.mark.parametrize(("setting", "averages"), [("global", (48.9, 45.5, 28.8, 38.3))])
def test_papers_figures_give_the_papers_average(setting: str, averages: tuple[float, ...]) -> None:
    rows = [row for part in RECALL[setting].values() for row in part.values()]
    assert len(rows) == 16
    assert np.mean(rows, axis=0) == pytest.approx(averages, abs=0.06)


def test_a_method_without_all_tasks_has_no_mean(tmp_path: Path, undrawn: None) -> None:
    scores = [score("local", task, "exact", 60) for task in TASKS] + [score("local", TASKS[0], "fast", 99)]
    _, markdown = made([write_run(tmp_path / "run", results=scores)], tmp_path)
    assert rows_of(markdown, "mean")[0][2] == "–"
    assert rows_of(markdown, "fashion200k (R@10")[0][2] == "–"


def test_spread_over_prompts_is_shown(tmp_path: Path, undrawn: None) -> None:
    scores = [score("local", task, "exact", 60, spread=0.37) for task in TASKS]
    page, markdown = made([write_run(tmp_path / "run", results=scores, prompts="all")], tmp_path)
    assert "spread over prompts" in markdown
    assert "| 0.37 |" in markdown
    assert "--prompts all" not in page


def test_missing_parts_are_named_with_their_commands(tmp_path: Path, undrawn: None) -> None:
    scores = [score("local", task, method, 60) for task in TASKS for method in ("exact", "fast")]
    page, markdown = made([write_run(tmp_path / "run", results=scores)], tmp_path)
    missing = markdown[markdown.index("## Not in this report") :]
    for command in (
        "genius evaluate DATA --setting global --out RUN",
        "genius evaluate DATA --methods hnsw,ivfpq,opq,rq --out RUN",
        "genius ablate DATA --out RUN",
        "benchmarks/scale.py",
    ):
        assert f"{command}" in missing
        assert f"{command}" in page
    assert "Universal" not in markdown
    _, only_speed = made([write_scale(tmp_path / "speed")], tmp_path)
    assert "`genius evaluate DATA --out RUN`" in only_speed
    assert "benchmarks/scale.py" not in only_speed
    assert rows_of(only_speed, "flat")[0] == ["flat", "4,321", "4,321", "64.5", "2"]


def test_speeds_show_what_is_found_and_what_was_disturbed(tmp_path: Path, undrawn: None) -> None:
    rows = [
        {"method": name, "items": 100, "queries_per_second": 50.0, "bytes_per_item": 8, "build_seconds": 1} | more
        for name, more in (("flat", {"found": 1.0, "disturbed": False}), ("hnsw", {"found": 0.934, "disturbed": True}))
    ]
    (tmp_path / "scale.json").write_text(json.dumps({"threads": 1, "rows": rows}))
    _, markdown = made([tmp_path], tmp_path)
    assert rows_of(markdown, "flat")[0][1] == "50 (finds 100 %)"
    assert rows_of(markdown, "hnsw")[0][1] == "50† (finds 93 %)"
    assert "†: measured while" in markdown
    assert "†" not in made([write_scale(tmp_path / "calm")], tmp_path)[1]


def test_files_without_rows_are_named_as_missing(tmp_path: Path) -> None:
    (tmp_path / "scale.json").write_text(json.dumps({"threads": 1, "rows": []}))
    _, markdown = made([write_ablations(tmp_path, [])], tmp_path)
    assert "python benchmarks/scale.py RUN" in markdown
    assert "genius ablate DATA --out RUN" in markdown


@pytest.mark.parametrize(
    ("recall", "direction", "said", "agrees"),
    [
        (40, "harmful", "agrees with the paper: worse", True),
        (49, "harmful", "undecided (harmful in the paper)", None),
        (60, "harmful", "contradicts the paper: better", False),
        (60, "helpful", "agrees with the paper: better", True),
        (40, "helpful", "contradicts the paper: worse", False),
        (51, "helpful", "undecided (helpful in the paper)", None),
        (40, "mixed", "mixed in the paper; here worse", None),
        (60, "unknown", "not in the paper; here better", None),
        (50, "unknown", "not in the paper; here no clear difference", None),
    ],
)
def test_verdicts(recall: float, direction: str, said: str, agrees: bool | None) -> None:
    """The interval of the difference, 2 to each side here, decides."""
    verdict = judge(ablation("changed", recall, direction))
    assert (verdict.text, verdict.agrees) == (said, agrees)


def test_a_row_without_its_reference_is_not_judged() -> None:
    verdict = judge(ablation("changed", 10, "harmful", difference=None))
    assert (verdict.text, verdict.difference) == ("its reference is not measured in this size", None)


def test_ablation_tables_show_the_papers_numbers(tmp_path: Path, undrawn: None) -> None:
    rows = [
        ablation("whole", 50, "reference", against=None, paper={"COCO T→I": 60.0, "WebQA T→T": 20.0}),
        ablation("less", 20, "harmful", paper={"COCO T→I": 30.0, "WebQA T→T": 10.0}, ours="fewer <codes>"),
        ablation("alike", 50, "harmful", paper={"COCO T→I": 59.0, "WebQA T→T": 19.0}),
        ablation("more", 60, "harmful", paper={"COCO T→I": 58.0, "WebQA T→T": 18.0}),
        ablation("other", 50, "unknown"),
        ablation("none", 0, "mixed", against="other", paper={"COCO T→I": 0.0, "WebQA T→T": 0.0}),
    ]
    page, markdown = made([write_ablations(tmp_path / "run", rows)], tmp_path)
    less = rows_of(markdown, "less")[0]
    assert less[0] == "less (fewer <codes>)"
    assert less[1:3] == ["20.0", "−20.0"]
    assert less[-2:] == ["−30.0 (−32.0 to −28.0)", "agrees with the paper: worse"]
    assert rows_of(markdown, "none")[0][2] == "−40.0"  # its reference is ours alone; that one's is the paper's
    assert "fewer &lt;codes&gt;" in page
    said = "reports as harmful, quick size: 1 of 3 agree with the paper, 1 contradict it, 1 undecided."
    assert said in markdown
    assert page.count('class="words good"') == page.count('class="words bad"') == 1
    assert "Quick size" in page
    assert "### Table 4, parts: universal, 1 seed\n" in markdown


def test_sizes_and_seeds_of_ablations_are_told_apart(tmp_path: Path, undrawn: None) -> None:
    seeds = {"seeds": [0, 1, 2], "spread": {"generate": 0.42}, "size": "full"}
    rows = [
        ablation("less", 20, "harmful"),
        ablation("whole", 50, "reference", **seeds),
        ablation("less", 30, "harmful", **seeds),
    ]
    _, markdown = made([write_ablations(tmp_path / "run", rows)], tmp_path)
    assert markdown.index("Ablations in quick size") < markdown.index("Ablations in full size")
    quick, full = rows_of(markdown, "less")
    assert (quick[2], full[2]) == ("20.0 (18.0–22.0)", "30.0 ± 0.4 (28.0–32.0)")
    assert "quick size: 1 of 1 agree with the paper, 0 contradict it, 0 undecided. Changes that" in markdown
    assert "### Table 4, parts: universal, 3 seeds\n" in markdown


def test_tables_of_one_title_are_told_apart(tmp_path: Path, undrawn: None) -> None:
    rows = [ablation("whole", 50, "reference"), ablation("else", 50, "reference", table_about="other parts")]
    _, markdown = made([write_ablations(tmp_path / "run", rows)], tmp_path)
    assert "### Table 4, parts: universal" in markdown
    assert "### Table 4, other parts: universal" in markdown


def test_ablations_of_an_earlier_format_are_refused(tmp_path: Path) -> None:
    (tmp_path / "ablations.json").write_text(json.dumps({"format": 1, "quick": True, "rows": []}))
    with pytest.raises(BadData, match=r"format 1, but this version reads format 2"):
        made([tmp_path], tmp_path)


def test_reranking_is_compared_with_the_papers_gain(tmp_path: Path, undrawn: None) -> None:
    gain = {"value": 7.0, "low": 5.0, "high": 9.0}
    row = ablation("both", 40, "reference", paper={"COCO T→I": 60.0, "COCO T→I, R": 70.5}, rerank_gain=gain)
    _, markdown = made([write_ablations(tmp_path / "run", [row])], tmp_path)
    assert "both: re-ranking adds 7.0 points here (interval +5.0 to +9.0), 10.5 in the paper." in markdown
    assert rows_of(markdown, "both")[0][1:3] == ["60.0 (COCO T→I)", "70.5 (COCO T→I)"]


def test_charts_follow_the_theme_and_are_drawn_alike(tmp_path: Path) -> None:
    run = write_scale(tmp_path / "run")
    page, _ = made([run], tmp_path)
    assert "prefers-color-scheme: dark) { .chart img { filter: invert(1)" in page
    (drawing,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', page)
    assert charts.COLOURS["fast"] in base64.b64decode(drawing).decode()
    assert made([run], tmp_path)[0] == page


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("run.json", "{", "not valid JSON"),
        ("run.json", '{"format": 1}', "has no 'results'"),
        ("run.json", '{"format": 9, "results": []}', "format 9"),
        ("ablations.json", "[]", "has no 'rows'"),
        ("quantized.npz", "no", "genius ablate"),
        ("notes.txt", "", "holds nothing to report"),
    ],
)
def test_files_that_cannot_be_reported_stop_with_a_sentence(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(BadData, match=said):
        write_report([tmp_path], tmp_path / "report.html", Console(quiet=True))
    assert not (tmp_path / "report.html").exists()


def test_wrong_arguments_stop_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadData, match="holds nothing to report"):
        write_report([tmp_path / "no"], tmp_path / "report.html", Console(quiet=True))
    with pytest.raises(GeniusError, match=r"\.html"):
        write_report([write_run(tmp_path / "run")], tmp_path / "report.md", Console(quiet=True))
    with pytest.raises(GeniusError, match="nothing to report"):
        write_report([], tmp_path / "report.html", Console(quiet=True))
    monkeypatch.setattr(charts, "find_spec", lambda name: None)
    with pytest.raises(GeniusError, match=r"genius-search\[report\]"):
        write_report([tmp_path / "run"], tmp_path / "report.html", Console(quiet=True))


def test_a_run_that_has_just_begun_is_reported(tmp_path: Path, undrawn: None) -> None:
    _, markdown = made([write_run(tmp_path / "run", results=[], codebooks=[])], tmp_path)
    assert "genius evaluate DATA --out RUN" in markdown


def test_collapsed_vectors_are_drawn_without_umap() -> None:
    vectors = np.repeat(np.eye(3, 8), 20, axis=0)
    chart = charts.cloud("collapsed", "Collapsed", vectors, np.repeat([0, 1, 2], 20))
    assert chart.caption == "3 distinct vectors of 60 items."
    assert charts.flatten(np.ones((1, 8))).tolist() == [[0, 0]]


@pytest.mark.slow
def test_umap_keeps_clusters_apart() -> None:
    """Slow only because UMAP is compiled when it is first used."""
    near = np.random.default_rng(0).normal(size=(2, 40, 8))
    flat = charts.flatten(np.concatenate([near[0], near[1] + 50]))
    distance = np.linalg.norm(flat[:, None] - flat[None], axis=2) + np.diag(np.full(80, np.inf))
    assert ((distance.argmin(axis=1) < 40) == (np.arange(80) < 40)).all()


def test_every_method_is_in_the_legend() -> None:
    points = {name: (100.0 + i, Estimate(50 + i, 49 + i, 51 + i)) for i, name in enumerate([*charts.COLOURS, "flat"])}
    chart = charts.trade_off("crowd", "Crowd", "cost", points, "")
    assert all(f">{name}</text>" in chart.svg for name in points)
