"""The paper's figures for any collection, as SVG, PDF and PNG: code galleries and UMAP of vectors."""

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from genius.atlas.atlas import Atlas
from genius.atlas.queries import Cloud
from genius.atlas.tree import Node
from genius.data.images import load_image
from genius.data.items import Modality
from genius.errors import GeniusError
from genius.evaluation import charts
from genius.index.index import Index

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".pdf", ".png")
DPI = 300
ROWS = 7  # codes of a gallery
IMAGES, TEXTS = 4, 3  # items of a code
PIXELS = 256  # of an image in a gallery
SHOWN_CODES = 12  # first semantic codes with a colour of their own
LINE = 30  # characters of a line of text


@contextmanager
def figure(path: Path, width: float, height: float) -> Iterator["Figure"]:
    """A figure that is written as path.svg, path.pdf and path.png at the end. Equal input gives equal files."""
    charts.require("matplotlib")
    import matplotlib
    from matplotlib.figure import Figure

    fixed: Any = {"svg.hashsalt": path.name, "pdf.fonttype": 42}
    with matplotlib.rc_context({**charts.STYLE, **fixed}):
        made = Figure(figsize=(width, height), layout="constrained")
        yield made
        for suffix in SUFFIXES:
            dates: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}[suffix]
            made.savefig(path.with_suffix(suffix), dpi=DPI, metadata=dates)


def draw_gallery(index: Index, atlas: Atlas, level: int, path: Path) -> bool:
    """Draw the clearest codes of a level, each with its nearest images and texts (supplement, Figs. 2 to 4).

    Args:
        index: The index, whose images are read.
        atlas: Its described codes.
        level: The level, counted from 1.
        path: File to write, without a suffix.

    Returns:
        Whether there was a code to draw.
    """
    chosen = clearest_codes(atlas, level)
    if not chosen:
        return False
    with figure(path, 7.2, 0.3 + 0.72 * len(chosen)) as made:
        grid = made.add_gridspec(len(chosen), 1 + IMAGES + TEXTS, width_ratios=[1.6, *[1] * IMAGES, *[1.8] * TEXTS])
        made.suptitle(f"Codes of level {level}", x=0.01, ha="left", fontsize=11, fontweight="bold")
        for row, node in enumerate(chosen):
            cells = [made.add_subplot(grid[row, column]) for column in range(1 + IMAGES + TEXTS)]
            for cell in cells:
                cell.set_axis_off()
            _write(cells[0], f"{node.name}\ncode {node.codes[-1]}")
            images, texts = _split(atlas, node)
            for cell, item in zip(cells[1:], index.get([atlas.collection.ids[one] for one in images]), strict=False):
                if item is not None and item.image is not None:
                    cell.imshow(_square(load_image(item.image)))
            for cell, one in zip(cells[1 + IMAGES :], texts, strict=False):
                _write(cell, atlas.collection.texts[one], 6)
    return True


def clearest_codes(atlas: Atlas, level: int) -> list[Node]:
    """The codes of a level whose names fit best, with images and texts, each name's first word once."""
    enough = max(4, len(atlas.collection) // 2000)
    nodes = [
        node
        for node in atlas.tree.codes
        if len(node.codes) == level and node.items >= enough and node.name.words and min(map(len, _split(atlas, node)))
    ]
    nodes.sort(key=lambda node: -node.name.purity * (1 - node.name.elsewhere) * np.log(node.items))
    by_word: dict[str, Node] = {}
    for node in nodes:
        by_word.setdefault(node.name.words[0].word.split(" ")[-1], node)
    return list(by_word.values())[:ROWS]


def _split(atlas: Atlas, node: Node) -> tuple[list[int], list[int]]:
    """The examples of a code that are shown as images, and those that are shown as texts."""
    modality = atlas.collection.modality
    images = [row for row in node.examples if modality[row] == Modality.IMAGE]
    pairs = [row for row in node.examples if modality[row] == Modality.IMAGE_TEXT]
    texts = [row for row in node.examples if modality[row] == Modality.TEXT]
    return (images + pairs)[:IMAGES], (texts + pairs)[:TEXTS]


def _square(image: Image.Image) -> np.ndarray:
    """The image as large as fits on a white square."""
    scale = PIXELS / max(image.size)
    image = image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))))
    square = Image.new("RGB", (PIXELS, PIXELS), "white")
    square.paste(image, ((PIXELS - image.width) // 2, (PIXELS - image.height) // 2))
    return np.asarray(square)


def _write(axes: Any, text: str, size: float = 8) -> None:
    """Text in the middle of a cell, broken into at most five lines. Dollar signs are no formulas."""
    lines = [line for part in text.split("\n") for line in textwrap.wrap(part, LINE if size < 8 else 20)]
    shown = lines[:5] if len(lines) <= 5 else [*lines[:4], lines[4] + " …"]
    axes.text(0, 0.5, "\n".join(shown).replace("$", "\\$"), va="center", fontsize=size, transform=axes.transAxes)


def draw_umap(clouds: dict[str, Cloud], colour: str, path: Path) -> None:
    """Draw queries and candidates together: for each model the fused and the quantized vectors, by UMAP.

    Args:
        clouds: The vectors by the name of their model.
        colour: What decides the colour: "modality" or "code", the first semantic code.
        path: File to write, without a suffix.
    """
    charts.require("umap")
    if colour not in ("modality", "code"):
        raise GeniusError(f"Vectors cannot be coloured by {colour!r}. Choose modality or code.")
    with figure(path, 7.2, 0.5 + 3.2 * len(clouds)) as made:
        cells = made.subplots(len(clouds), 2, squeeze=False)
        for row, (name, one) in zip(cells, clouds.items(), strict=True):
            for axes, vectors, what in zip(row, (one.fused, one.quantized), ("fused", "quantized"), strict=True):
                _scatter(axes, vectors, one, colour)
                axes.set_title(f"{name}: {what}", fontsize=9)
        handles, labels = cells[0][0].get_legend_handles_labels()
        made.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=3 if colour == "modality" else 6,
            fontsize=7,
            markerscale=1.5,
        )


def _scatter(axes: Any, vectors: np.ndarray, one: Cloud, colour: str) -> None:
    axes.set_axis_off()
    distinct, row = np.unique(vectors.round(5), axis=0, return_inverse=True)
    places = charts.flatten(distinct)[row.reshape(-1)]
    for label, mine, shade in _groups(one, colour):
        for is_query, marker, size in ((False, "o", 5), (True, "x", 9)):
            some = mine & (one.is_query == is_query)
            if some.any():
                kind = "queries for" if is_query else "items"
                x, y = places[some].T
                width = 0.7 if is_query else 0
                named = f"{kind}: {label}" if colour == "modality" else (None if is_query else label)
                axes.scatter(
                    x, y, s=size, c=shade, marker=marker, linewidths=width, alpha=0.75, label=named, rasterized=True
                )


def _groups(one: Cloud, colour: str) -> Iterator[tuple[str, np.ndarray, str]]:
    """Label, members and colour of each group."""
    if colour == "modality":
        for number, (label, shade) in enumerate(charts.MODALITIES.items()):
            yield label, one.modality == number, shade
        return
    import matplotlib

    codes = one.codes[:, 1]
    common = np.bincount(codes).argsort()[::-1][:SHOWN_CODES]
    yield "other codes", ~np.isin(codes, common), "#c8c8ce"
    shades: Sequence[Any] = matplotlib.colormaps["tab20"].colors  # type: ignore[attr-defined]
    for code, shade in zip(common.tolist(), shades, strict=False):
        yield f"code {code}", codes == code, matplotlib.colors.to_hex(shade)
