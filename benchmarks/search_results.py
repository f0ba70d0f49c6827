"""Results of `search.py`: a JSON file, tables, a plot, and docs/performance.md."""

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import throughput
from rich.table import Table

from genius.errors import GeniusError
from genius.evaluation.charts import COLOURS

METHODS = ("published", "flat", "hnsw", "ivfpq", "generate", "rerank", "fast", "encode")
OURS = ("generate", "rerank", "fast")
TARGETS = {"open": "", "given": ", target given", "int8": ", eight bits"}  # how our modes are asked, and called then
BASELINE = {"paper": "published", "mini": "flat"}  # the one that the others are compared with
DECODERS = {"paper": "Decoder of the paper's size", "mini": "`mini`"}
NAMES = {
    "published": "published path",
    "flat": "Faiss flat",
    "hnsw": "Faiss HNSW",
    "ivfpq": "Faiss IVF-PQ",
    "encode": "encoding the query",
}
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"

Key = tuple[str, int, int, int, str, str]


@dataclass(frozen=True)
class Row:
    """One method on one collection. target: one of TARGETS for our modes, "" for the others.

    found: the part of the ten nearest that it finds; limit: milliseconds a query of the matrix products alone.
    """

    decoder: str
    items: int
    threads: int
    batch: int
    method: str
    target: str
    milliseconds: float
    disturbed: bool
    found: float | None = None
    bytes_per_item: float | None = None
    build_seconds: float | None = None
    gflop: float | None = None
    limit: float | None = None

    @property
    def key(self) -> Key:
        return self.decoder, self.items, self.threads, self.batch, self.method, self.target


@dataclass(frozen=True)
class TrieRow:
    """Cost of a trie. code_bytes: bytes of the packed IDs alone."""

    decoder: str
    items: int
    build_seconds: float
    bytes_per_item: float
    code_bytes: float


@dataclass
class SearchResults:
    """All rows of a folder, written after every change."""

    path: Path
    machine: str = ""
    about: dict[str, str] = field(default_factory=dict)  # decoder -> what was searched
    rows: dict[Key, Row] = field(default_factory=dict)
    tries: dict[tuple[str, int], TrieRow] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)  # what -> why

    @classmethod
    def read(cls, path: Path) -> "SearchResults":
        """Read the file. No rows if there is no file."""
        if not path.exists():
            return cls(path)
        try:
            stored = json.loads(path.read_text())
            rows, tries = [Row(**row) for row in stored["rows"]], [TrieRow(**row) for row in stored["tries"]]
            results = cls(path, stored["machine"], stored["about"], skipped=stored["skipped"])
        except (ValueError, KeyError, TypeError) as error:
            raise GeniusError(
                f"{path} does not hold results of this version. Move it away and measure again."
            ) from error
        results.rows = {row.key: row for row in rows}
        results.tries = {(row.decoder, row.items): row for row in tries}
        return results

    def add(self, rows: Iterable[Row] = (), tries: Iterable[TrieRow] = ()) -> None:
        self.rows |= {row.key: row for row in rows}
        self.tries |= {(row.decoder, row.items): row for row in tries}
        self.write()

    def write(self) -> None:
        kept = {"machine": self.machine, "about": self.about, "skipped": self.skipped}
        throughput.write(self.path, {**kept, "rows": list(self.rows.values()), "tries": list(self.tries.values())})

    def get(self, decoder: str, items: int, threads: int, batch: int, method: str, target: str = "") -> Row | None:
        return self.rows.get((decoder, items, threads, batch, method, target))

    def values(self, name: str, decoder: str | None = None) -> list[int]:
        """The sizes, thread counts or batch sizes that were measured."""
        return sorted({getattr(row, name) for row in self.rows.values() if decoder in (None, row.decoder)})


@dataclass
class Sheet:
    """A table, for the terminal and for Markdown. The first `names` columns hold words."""

    title: str
    header: Sequence[str]
    rows: list[list[str]]
    names: int = 1

    def table(self) -> Table:
        result = Table(title=self.title.replace("`", ""), title_justify="left")
        for i, name in enumerate(self.header):
            result.add_column(name, justify="left" if i < self.names else "right")
        for row in self.rows:
            result.add_row(*row)
        return result

    def markdown(self) -> str:
        marks = ["---" if i < self.names else "---:" for i in range(len(self.header))]
        lines = ["| " + " | ".join(row) + " |" for row in ([*self.header], marks, *self.rows)]
        return f"### {self.title}\n\n" + "\n".join(lines)


def sheets(results: SearchResults) -> list[Sheet]:
    """All tables that have rows."""
    found = [in_short(results)]
    for decoder in DECODERS:
        for threads in results.values("threads", decoder):
            found.append(speeds(results, decoder, threads))
    found += [quality(results), limits(results), tries(results)]
    return [sheet for sheet in found if sheet.rows]


def in_short(results: SearchResults) -> Sheet:
    """Ratios of times measured in one run."""
    rows = []
    for threads in results.values("threads"):
        for batch in results.values("batch"):
            rows += [[*row, str(threads), str(batch)] for row in ratios(results, threads, batch)]
    return Sheet("In short", ("what", "ratio of times", "threads", "batch"), rows)


def ratios(results: SearchResults, threads: int, batch: int) -> list[list[str]]:
    def row(decoder: str, items: int, method: str, target: str = "") -> Row | None:
        return results.get(decoder, items, threads, batch, method, target)

    found: list[tuple[str, Row | None, Row | None]] = []
    for items in results.values("items", "paper"):
        published = row("paper", items, "published")
        for method in OURS:
            for target in ("open", "int8"):
                what = f"published path / {named(method, target)}, paper's size, {count(items)} IDs"
                found.append((what, published, row("paper", items, method, target)))
    for decoder in DECODERS:
        sizes = results.values("items", decoder)
        if len(sizes) > 1:
            small, large = (row(decoder, items, "fast", "open") for items in (sizes[0], sizes[-1]))
            found.append((f"`fast`, {decoder}, {count(sizes[-1])} / {count(sizes[0])} IDs", large, small))
    for items in results.values("items", "mini"):
        ours = row("mini", items, "fast", "open")
        found.append((f"Faiss flat / `fast`, mini, {count(items)} items", row("mini", items, "flat"), ours))
        found.append((f"encoding the query / `fast`, mini, {count(items)} items", row("mini", items, "encode"), ours))
    return [
        [what, f"{one.milliseconds / other.milliseconds:.2f}{'*' * (one.disturbed or other.disturbed)}"]
        for what, one, other in found
        if one and other
    ]


def speeds(results: SearchResults, decoder: str, threads: int) -> Sheet:
    """Milliseconds per query, and the speed-up over the baseline."""
    sizes, rows = results.values("items", decoder), []
    for batch in results.values("batch", decoder):
        for method, target in methods():
            cells = [speed_cell(results, decoder, items, threads, batch, method, target) for items in sizes]
            if any(cells):
                rows.append([named(method, target), str(batch), *cells])
    title = f"{DECODERS[decoder]}, {thread_count(threads)}: ms per query (speed-up over the {baseline(decoder)})"
    return Sheet(title, ("method", "batch", *(f"{count(items)} items" for items in sizes)), rows)


def speed_cell(
    results: SearchResults, decoder: str, items: int, threads: int, batch: int, method: str, target: str
) -> str:
    row = results.get(decoder, items, threads, batch, method, target)
    base = results.get(decoder, items, threads, batch, BASELINE[decoder])
    if row is None:
        return ""
    quicker = "" if base is None or base is row else f" ({number(base.milliseconds / row.milliseconds)}×)"
    return f"{number(row.milliseconds)}{'*' * row.disturbed}{quicker}"


def quality(results: SearchResults) -> Sheet:
    """Recall, bytes and build time. The same for all threads and batches."""
    rows = []
    for items in results.values("items", "mini"):
        for method, target in methods():
            rated = [row for row in results.rows.values() if row.found is not None and row.decoder == "mini"]
            of_method = [row for row in rated if (row.items, row.method, row.target) == (items, method, target)]
            for row in of_method[:1]:
                assert row.found is not None
                costs = [optional(row.bytes_per_item, "{:,.1f}"), optional(row.build_seconds, "{:,.1f}")]
                rows.append([named(method, target), f"{items:,}", f"{100 * row.found:.1f}", *costs])
    header = ("method", "items", "Recall@10, %", "bytes an item", "built in, s")
    return Sheet("`mini` and Faiss on the same vectors", header, rows)


def limits(results: SearchResults) -> Sheet:
    """Measured against the physical limit, for the largest collection that was measured."""
    rows = []
    for decoder in DECODERS:
        for items in results.values("items", decoder)[-1:]:
            chosen = [row for row in results.rows.values() if (row.decoder, row.items) == (decoder, items)]
            for row in sorted(chosen, key=lambda row: (row.threads, row.batch)):
                if row.limit is None or row.gflop is None or row.target not in ("", "open"):
                    continue
                rows.append(
                    [
                        named(row.method, ""),
                        f"{decoder}, {count(items)}",
                        str(row.threads),
                        str(row.batch),
                        f"{row.gflop:.2f}",
                        f"{row.gflop / row.limit * 1000:,.0f}",
                        number(row.limit),
                        f"{number(row.milliseconds)}{'*' * row.disturbed}",
                        f"{row.milliseconds / row.limit:.2f}",
                    ]
                )
    header = (
        "method",
        "decoder, IDs",
        "threads",
        "batch",
        "GFLOP",
        "GFLOP/s",
        "limit, ms",
        "took, ms",
        "times the limit",
    )
    return Sheet("Against the physical limit", header, rows, names=2)


def tries(results: SearchResults) -> Sheet:
    rows = [
        [
            row.decoder,
            f"{row.items:,}",
            f"{row.build_seconds:.2f}",
            f"{row.bytes_per_item:.1f}",
            f"{row.code_bytes:.2f}",
        ]
        for row in sorted(results.tries.values(), key=lambda row: (row.decoder, row.items))
    ]
    return Sheet("The trie", ("decoder", "IDs", "built in, s", "bytes an item", "of which the ID, packed"), rows)


def methods() -> list[tuple[str, str]]:
    return [(method, target) for method in METHODS for target in (TARGETS if method in OURS else ("",))]


def named(method: str, target: str) -> str:
    return NAMES.get(method, f"`{method}`") + TARGETS.get(target, "")


def baseline(decoder: str) -> str:
    return NAMES[BASELINE[decoder]].replace("Faiss flat", "flat search")


def thread_count(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def count(items: int) -> str:
    """10k, 5.6M"""
    return f"{items / 1e6:.3g}M" if items >= 1_000_000 else f"{items / 1000:.3g}k"


def number(value: float) -> str:
    """Three digits, and all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def optional(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


# The plot


def plot(results: SearchResults, path: Path, threads: int, batch: int) -> None:
    """Milliseconds a query against the size of the collection, a panel for each decoder that was measured."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    decoders = [decoder for decoder in DECODERS if results.values("items", decoder)]
    figure, panels = pyplot.subplots(1, len(decoders), figsize=(5.4 * len(decoders), 4.2), sharey=True, squeeze=False)
    for axes, decoder in zip(panels[0], decoders, strict=True):
        sizes = results.values("items", decoder)
        ends: dict[str, tuple[int, float]] = {}
        for method in METHODS:
            rows = [
                results.get(decoder, items, threads, batch, method, "open" if method in OURS else "") for items in sizes
            ]
            points = [(row.items, row.milliseconds) for row in rows if row is not None]
            if points:
                style = "--" if method == "encode" else "-"
                axes.plot(*zip(*points, strict=True), style, marker="o", markersize=4, color=colour(method))
                ends[method] = points[-1]
        for method, height in apart({method: y for method, (_, y) in ends.items()}).items():
            name, place = NAMES.get(method, method), (ends[method][0], height)
            beside = {"xytext": (6, 0), "textcoords": "offset points", "va": "center", "fontsize": 9}
            axes.annotate(name, place, color=colour(method), **beside)
        axes.set(xscale="log", yscale="log", xlabel="items in the collection")
        axes.set_title(DECODERS[decoder].replace("`", ""), loc="left", fontsize=11)
        axes.set_xlim(sizes[0] / 1.4, sizes[-1] * max(4, (sizes[-1] / sizes[0]) ** 0.35))
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelleft=True)
    panels[0, 0].set_ylabel(f"milliseconds a query ({thread_count(threads)}, batch {batch})")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def apart(heights: dict[str, float], least: float = 1.6) -> dict[str, float]:
    """Names beside the ends of lines on a logarithmic axis: moved up where they would cover each other."""
    placed: dict[str, float] = {}
    below = 0.0
    for name, height in sorted(heights.items(), key=lambda pair: pair[1]):
        below = placed[name] = max(height, least * below)
    return placed


def colour(method: str) -> str:
    return COLOURS.get({"published": "rq", "flat": "exact", "encode": "exact-modality"}.get(method, method), "#2b2b30")


# The page


def write_page(results: SearchResults, page: Path, image: Path) -> None:
    """Put tables and plot into the page, between its two marks. The rest of the page stays."""
    parts = [f"Machine: {results.machine}."]
    parts += [f"Searched by `{decoder}`: {about}." for decoder, about in sorted(results.about.items())]
    if image.exists():
        copied = page.with_suffix(".png")
        shutil.copyfile(image, copied)
        parts.append(f"![Milliseconds a query against the size of the collection]({copied.name})")
    parts += [sheet.markdown() for sheet in sheets(results)]
    if any(row.disturbed for row in results.rows.values()):
        parts.append("\\* Other processes were at work while this was measured.")
    parts += [f"Not measured: {what} ({why})." for what, why in results.skipped.items()]
    fill_page(page, parts)


def fill_page(page: Path, parts: list[str]) -> None:
    """Paragraphs and tables between the page's two marks; what stands around them stays."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise GeniusError(f"{page} has no place for results. Add the lines {BEGIN} and {END} to it.")
    page.write_text(f"{before}{BEGIN}\n\n" + "\n\n".join(parts) + f"\n\n{END}{after}", encoding="utf-8")
