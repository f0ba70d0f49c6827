"""The charts of a report, as SVG: no frame, no background, a colour for each method, names beside what they name.

Each function takes figures and gives a Chart. Knows nothing of runs, of what was measured, or of pages.
"""

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from genius.errors import GeniusError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {  # name: on a light page, on a dark one
    "ink": ("#2b2b30", "#dcdce4"),
    "soft": ("#74747d", "#9a9aa6"),
    "grid": ("#e3e2dd", "#34343b"),
    "exact": ("#45454d", "#c9c9d2"),
    "exact-modality": ("#85858f", "#92929e"),
    "fused": ("#94662d", "#d3a56f"),
    "generate": ("#2f6fde", "#7aa7ff"),
    "rerank": ("#0c8a6e", "#4fcfae"),
    "fast": ("#d4470e", "#ff8d52"),
    "codes": ("#7b4cd5", "#b79dff"),
    "hnsw": ("#b0307a", "#f27dbb"),
    "ivfpq": ("#6f7f00", "#c2d049"),
    "opq": ("#007f97", "#46c6dd"),
    "rq": ("#a13a3b", "#ef8585"),
}
"""Charts are drawn in a light page's colours; a page that can be dark replaces them."""
SQUARES, TRIANGLES = ("exact", "exact-modality", "fused", "flat"), ("hnsw", "ivfpq", "opq", "rq")
OURS = ("generate", "rerank", "fast", "codes")
MODALITIES = (("image", "#2c9672"), ("text", "#b47330"), ("image + text", "#7f65db"))
"""Pixels cannot change with the page: these colours are seen on light and on dark ones."""


@dataclass(frozen=True)
class Chart:
    name: str
    svg: str
    caption: str


@dataclass(frozen=True)
class Dot:
    """A method in a plane. low, high: where y may lie."""

    method: str
    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Share:
    """What a changed method keeps of its reference, %, with its interval; and the same in the paper, if it says so."""

    group: str
    label: str
    value: float
    low: float
    high: float
    paper: float | None


def need(package: str) -> None:
    """Refuses to go on without an optional package."""
    if find_spec(package) is None:
        raise GeniusError(f'A report is drawn with {package}: pip install "genius-search[report]"')


def trade_off(name: str, title: str, cost: str, dots: Sequence[Dot], caption: str) -> Chart:
    """Recall, with its intervals, against a cost on a logarithmic axis."""
    figure, axes = _empty(5.2, 3.9)
    for dot in dots:
        axes.vlines(dot.x, dot.low, dot.high, color=_colour(dot.method), linewidth=1.4, alpha=0.55)
        axes.plot(dot.x, dot.y, _marker(dot.method), color=_colour(dot.method), markersize=6.5)
    axes.set_xscale("log")
    low, high = min(dot.x for dot in dots), max(dot.x for dot in dots)
    room = max((high / low) ** 0.12, 1.3)
    axes.set_xlim(low / room, high * room**2)
    axes.margins(y=0.12)
    _logarithmic(axes.xaxis)
    _name(axes, title, cost, "mean recall, %")
    _label(figure, axes, [(dot.x, dot.y, dot.method) for dot in dots])
    return _draw(figure, name, caption)


def speeds(name: str, title: str, lines: dict[str, list[tuple[float, float]]], caption: str) -> Chart:
    """Queries per second against items, both logarithmic. lines: method -> (items, speed), fewest items first."""
    figure, axes = _empty(5.6, 3.9)
    for method, points in lines.items():
        xs, ys = zip(*points, strict=True)
        axes.plot(xs, ys, color=_colour(method), linewidth=2, marker=_marker(method), markersize=5.5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    items = [x for points in lines.values() for x, _ in points]
    low, high = min(items), max(items)
    axes.set_xlim(low / 1.25, high * max((high / low) ** 0.2, 1.5))
    _logarithmic(axes.xaxis)
    _logarithmic(axes.yaxis)
    _name(axes, title, "items in the collection", "queries per second")
    _label(figure, axes, [(*points[-1], method) for method, points in lines.items()], sides=(1,))
    return _draw(figure, name, caption)


def code_use(name: str, title: str, used: Sequence[float], perplexity: Sequence[float], sizes: Sequence[int]) -> Chart:
    """For each level: codes used (%), and perplexity as a share of the level's codes. The first level is modality."""
    figure, axes = _empty(5.6, 3.2)
    levels = list(range(1, len(used) + 1))
    evenness = [100 * value / size for value, size in zip(perplexity, sizes, strict=True)]
    axes.bar(levels, used, width=0.72, color=_colour("generate"), alpha=0.28, linewidth=0)
    axes.bar(levels, evenness, width=0.4, color=_colour("generate"), linewidth=0)
    for level, height, value in zip(levels, evenness, perplexity, strict=True):
        text, ink = f"{value:.0f}" if value >= 10 else f"{value:.1f}", _colour("ink")
        axes.annotate(text, (level, height), (0, 3), textcoords="offset points", ha="center", fontsize=8.5, color=ink)
    axes.grid(axis="x", visible=False)
    axes.set_ylim(0, 108)
    axes.set_yticks([0, 25, 50, 75, 100])
    axes.set_xticks(levels, ["1\nmodality", *map(str, levels[1:])])
    _name(axes, title, "level", "% of the level's codes")
    caption = "Pale: codes that any item uses. Full: perplexity, its value above the bar; 100 % if all are used alike."
    return _draw(figure, name, caption)


def shares(name: str, title: str, axis: str, rows: Sequence[Share], caption: str) -> Chart:
    """Rows under each other, in groups: filled circles with intervals, and the paper's open diamonds."""
    names: list[str] = []  # of the lines from above: groups, and the rows of each
    groups = list(dict.fromkeys(row.group for row in rows))
    figure, axes = _empty(5.6, 1.2 + 0.21 * (len(rows) + len(groups)))
    for group in groups:
        names.append(group)
        for row in (row for row in rows if row.group == group):
            y = len(names)
            axes.hlines(y, row.low, row.high, color=_colour("generate"), linewidth=1.8, alpha=0.5)
            axes.plot(row.value, y, "o", color=_colour("generate"), markersize=5.5)
            if row.paper is not None:
                axes.plot(row.paper, y, "D", markerfacecolor="none", markeredgecolor=_colour("fast"), markersize=5.5)
            names.append(row.label)
    axes.axvline(100, color=_colour("soft"), linewidth=1)
    axes.set_yticks(range(len(names)), names)
    for line, tick in zip(names, axes.get_yticklabels(), strict=True):
        tick.set_fontweight("bold" if line in groups else "normal")
    axes.set_ylim(len(names) - 0.4, -0.8)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0, labelsize=8.5)
    _name(axes, "", axis, "")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold", color=_colour("ink"))
    return _draw(figure, name, caption)


def cloud(name: str, title: str, vectors: np.ndarray, modality: np.ndarray) -> Chart:
    """vectors (n, d) in two dimensions, coloured by modality (n,)."""
    distinct, row = np.unique(vectors, axis=0, return_inverse=True)
    places = flatten(distinct)[row.reshape(-1)]
    figure, axes = _empty(4.9, 4.2)
    axes.grid(visible=False)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_xticks([])
    axes.set_yticks([])
    order = np.random.default_rng(0).permutation(len(places))  # no modality lies on top of the others
    x, y = places[order].T
    colours = np.array([colour for _, colour in MODALITIES])[modality.astype(int)]
    axes.scatter(x, y, s=7, c=colours[order].tolist(), alpha=0.7, linewidths=0, rasterized=True)
    for number, (label, colour) in enumerate(MODALITIES):
        if (modality == number).any():
            axes.scatter([], [], s=26, color=colour, label=label)
    legend = axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0), ncols=3, frameon=False, handletextpad=0.1)
    for text in legend.get_texts():
        text.set_color(_colour("ink"))
    _name(axes, title, "", "")
    return _draw(figure, name, f"{len(distinct):,} distinct vectors of {len(vectors):,} items.")


def flatten(vectors: np.ndarray) -> np.ndarray:
    """(n, d) distinct vectors -> (n, 2): UMAP, or the principal axes where there are too few for neighbourhoods."""
    centred = vectors - vectors.mean(axis=0)
    if len(vectors) < 10:
        axes = np.linalg.svd(centred, full_matrices=False)[2][:2]
        flat = np.zeros((len(vectors), 2))
        flat[:, : len(axes)] = centred @ axes.T
        return flat
    need("umap")
    import umap  # type: ignore[import-untyped]

    reducer = umap.UMAP(n_neighbors=min(15, len(vectors) - 1), init="pca", random_state=0, n_jobs=1)
    return np.asarray(reducer.fit_transform(centred))


def short(value: float) -> str:
    """10k, 1M, 0.5."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _empty(width: float, height: float) -> "tuple[Figure, Axes]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_colour("soft"))
    axes.tick_params(which="both", color=_colour("soft"), labelcolor=_colour("ink"), labelsize=9)
    axes.set_axisbelow(True)
    axes.grid(color=_colour("grid"), linewidth=0.8)
    return figure, axes


def _colour(name: str) -> str:
    """A method's own, in every chart; flat search is exact search."""
    return COLOURS.get("exact" if name == "flat" else name, COLOURS["soft"])[0]


def _marker(method: str) -> str:
    return "s" if method in SQUARES else "^" if method in TRIANGLES else "o"


def _name(axes: "Axes", title: str, x: str, y: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=_colour("ink"), pad=10)
    axes.set_xlabel(x, fontsize=9.5, color=_colour("ink"))
    axes.set_ylabel(y, fontsize=9.5, color=_colour("ink"))


def _logarithmic(axis: Any) -> None:
    """Ticks as people write them: 1, 10, 100, 1k."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    few = math.log10(high / low) < 2  # one or two powers of ten in sight: name the steps between as well
    axis.set_major_locator(LogLocator(10, subs=(1,)))
    axis.set_minor_locator(LogLocator(10, subs=(2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axis.set_minor_formatter(FuncFormatter(lambda value, _: short(value)) if few else NullFormatter())
    axis.set_tick_params(which="minor", labelsize=9)


def _label(
    figure: "Figure", axes: "Axes", points: Sequence[tuple[float, float, str]], sides: tuple[int, ...] = (1, -1)
) -> None:
    """Names beside their points (x, y, method), where they cover neither each other nor a point; far ones get a line.

    Every name in turn takes the best of a few places, given where the others are now, until none wants to move.
    """
    figure.draw_without_rendering()
    scale = 72 / figure.dpi
    at = axes.transData.transform([point[:2] for point in points]) * scale
    frame = axes.get_window_extent()
    left, right, bottom, top = (edge * scale for edge in (frame.x0, frame.x1, frame.y0, frame.y1))
    widths = [6.0 * len(method) + 2 for _, _, method in points]
    places = [(side, 6.0 * step) for step in (0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6, -6) for side in sides]
    taken = [(1, 0.0)] * len(points)

    def box(i: int, place: tuple[int, float]) -> tuple[float, float, float]:
        side, shift = place
        start = at[i][0] + 8 if side > 0 else at[i][0] - 8 - widths[i]
        return start, start + widths[i], at[i][1] + shift

    def badness(i: int, place: tuple[int, float]) -> float:
        start, end, height = box(i, place)
        bad = abs(place[1]) + 5 * (place[0] < 0)
        bad += 500 * (start < left or end > right + 6 or height > top - 4 or height < bottom + 4)
        for j in range(len(points)):
            if j == i:
                continue
            other_start, other_end, other_height = box(j, taken[j])
            if start < other_end and other_start < end:
                bad += 20 * max(0.0, 11.5 - abs(height - other_height))
            if start - 4 < at[j][0] < end + 4:
                bad += 20 * max(0.0, 9 - abs(height - at[j][1]))
        return bad

    for _ in range(20):
        before = list(taken)
        for i in range(len(points)):
            taken[i] = min(places, key=lambda place: badness(i, place))
        if taken == before:
            break
    for (x, y, method), (side, shift) in zip(points, taken, strict=True):
        colour = _colour(method)
        line = {"arrowstyle": "-", "color": colour, "linewidth": 0.7, "alpha": 0.7, "shrinkA": 0, "shrinkB": 3}
        axes.annotate(
            method,
            (x, y),
            xytext=(8 * side, shift),
            textcoords="offset points",
            ha="left" if side > 0 else "right",
            va="center",
            fontsize=9,
            fontweight="bold" if method in OURS else "normal",
            color=colour,
            arrowprops=line if abs(shift) > 6 else None,
        )


def _draw(figure: "Figure", name: str, caption: str) -> Chart:
    """Text stays text; the same figures give the same file."""
    import matplotlib

    text = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(text, format="svg", dpi=200, transparent=True, metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    return Chart(name, svg[svg.index("<svg") :], caption)
