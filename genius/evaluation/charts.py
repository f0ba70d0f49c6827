"""Charts of a report, drawn with matplotlib as SVG on a transparent background."""

import base64
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from genius.errors import GeniusError
from genius.evaluation.estimate import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    "exact": "#45454d",
    "exact-modality": "#85858f",
    "fused": "#94662d",
    "generate": "#2f6fde",
    "rerank": "#0c8a6e",
    "fast": "#d4470e",
    "codes": "#7b4cd5",
    "hnsw": "#b0307a",
    "ivfpq": "#6f7f00",
    "opq": "#007f97",
    "rq": "#a13a3b",
}
"""The colour of each method in every chart."""
MODALITIES = {"image": "#2c9672", "text": "#b47330", "image + text": "#7f65db"}
SQUARES, TRIANGLES = ("exact", "exact-modality", "fused", "flat"), ("hnsw", "ivfpq", "opq", "rq")
STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#74747d",
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "font.family": "sans-serif",
    "font.size": 9,
    "grid.alpha": 0.4,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text
}


@dataclass(frozen=True)
class Chart:
    """An SVG drawing, and the name and the caption that a page gives it."""

    name: str
    svg: str
    caption: str

    @property
    def data_url(self) -> str:
        """The drawing as the source of an HTML image."""
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg.encode()).decode()


@dataclass(frozen=True)
class Share:
    """The share of its reference's recall that an ablation keeps, %, here and in the paper."""

    table: str
    row: str
    here: Estimate
    paper: float | None


def require(package: str) -> None:
    """Raises GeniusError if a package of the extra `report` is missing."""
    if find_spec(package) is None:
        raise GeniusError(f'A report needs {package}. Install it with: pip install "genius-search[report]"')


def trade_off(name: str, title: str, cost: str, points: dict[str, tuple[float, Estimate]], caption: str) -> Chart:
    """Recall with its interval against a cost on a logarithmic axis. points: method -> (cost, recall)."""
    with _axes(5.6, 3.9, title, cost, "mean recall, %") as axes:
        costs = [x for x, _ in points.values()]
        axes.set(xscale="log", xlim=(min(costs) / 1.5, max(costs) * 1.5))
        for method, (x, recall) in sorted(points.items(), key=lambda point: -point[1][1].value):
            interval = [[recall.value - recall.low], [recall.high - recall.value]]
            axes.errorbar(x, recall.value, interval, fmt=_marker(method), color=_colour(method), label=method)
        return _chart(axes, name, caption)


def speeds(name: str, title: str, lines: dict[str, list[tuple[int, float]]], caption: str) -> Chart:
    """Queries per second against items, both logarithmic. lines: method -> (items, speed), fewest items first."""
    with _axes(6.0, 3.9, title, "items in the collection", "queries per second") as axes:
        for method, points in sorted(lines.items(), key=lambda line: -line[1][-1][1]):
            axes.loglog(*zip(*points, strict=True), f"{_marker(method)}-", color=_colour(method), label=method)
        return _chart(axes, name, caption)


def shares(name: str, title: str, axis: str, rows: Sequence[Share], caption: str) -> Chart:
    """One line per ablation, grouped by table: filled circles with intervals, and the paper's open diamonds."""
    tables = list(dict.fromkeys(row.table for row in rows))
    with _axes(5.6, 1.2 + 0.21 * (len(rows) + len(tables)), title, axis, "") as axes:
        labels: list[str] = []  # top to bottom: the name of a table, then its rows
        for table in tables:
            labels.append(table)
            for row in (row for row in rows if row.table == table):
                y, here = len(labels), row.here
                axes.hlines(y, here.low, here.high, color=COLOURS["generate"], alpha=0.5)
                axes.plot(here.value, y, "o", color=COLOURS["generate"])
                if row.paper is not None:
                    axes.plot(row.paper, y, "D", color=COLOURS["fast"], markerfacecolor="none")
                labels.append(row.row)
        axes.axvline(100, color="black", linewidth=1)
        axes.set_yticks(range(len(labels)), labels)
        for tick in axes.get_yticklabels():
            tick.set_fontweight("bold" if tick.get_text() in tables else "normal")
        axes.set_ylim(len(labels) - 0.4, -0.8)
        axes.grid(axis="y", visible=False)
        return _chart(axes, name, caption)


def cloud(name: str, title: str, vectors: np.ndarray, modality: np.ndarray) -> Chart:
    """UMAP of vectors (n, d), coloured by modality (n,)."""
    distinct, row = np.unique(vectors, axis=0, return_inverse=True)
    places = flatten(distinct)[row.reshape(-1)]
    with _axes(5.6, 4.2, title, "", "") as axes:
        axes.set_axis_off()
        for number, (label, colour) in enumerate(MODALITIES.items()):
            if (mine := modality == number).any():
                x, y = places[mine].T
                axes.scatter(x, y, s=7, color=colour, alpha=0.7, linewidths=0, rasterized=True, label=label)
        return _chart(axes, name, f"{len(distinct):,} distinct vectors of {len(vectors):,} items.")


def flatten(vectors: np.ndarray) -> np.ndarray:
    """(n, d) distinct vectors -> (n, 2) by UMAP, or by PCA if there are too few for neighbourhoods."""
    centred = vectors - vectors.mean(axis=0)
    if len(vectors) < 10:
        axes = np.linalg.svd(centred, full_matrices=False)[2][:2]
        flat = np.zeros((len(vectors), 2))
        flat[:, : len(axes)] = centred @ axes.T
        return flat
    require("umap")
    import umap  # type: ignore[import-untyped]

    reducer = umap.UMAP(n_neighbors=min(15, len(vectors) - 1), init="pca", random_state=0, n_jobs=1)
    return np.asarray(reducer.fit_transform(centred))


@contextmanager
def _axes(width: float, height: float, title: str, x: str, y: str) -> "Iterator[Axes]":
    """Empty axes; everything drawn inside the `with` block has the style of the report."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        yield Figure(figsize=(width, height), layout="constrained").add_subplot(title=title, xlabel=x, ylabel=y)


def _chart(axes: "Axes", name: str, caption: str) -> Chart:
    """The finished drawing, with a legend if there are labels. Equal input gives equal bytes."""
    import matplotlib
    from matplotlib.figure import Figure

    figure = axes.figure
    assert isinstance(figure, Figure)
    if axes.get_legend_handles_labels()[1]:
        figure.legend(loc="outside right upper")
    text = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(text, format="svg", dpi=200, transparent=True, metadata={"Date": None, "Creator": None})
    return Chart(name, text.getvalue(), caption)


def _colour(method: str) -> str:
    return COLOURS.get("exact" if method == "flat" else method, "#74747d")


def _marker(method: str) -> str:
    return "s" if method in SQUARES else "^" if method in TRIANGLES else "o"
