"""Results of `index.py`: a JSON file, tables beside their targets, and docs/storage.md."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import throughput
from search_results import Sheet, count, fill_page, number

from genius.errors import GeniusError

NAMES = {
    "paper": "paper's size, codes only",
    "mini": "mini, codes only",
    "mini+": "mini, with embeddings",
    "hnsw": "Faiss HNSW",
    "lance-hnsw": "Lance IVF_HNSW_SQ",
    "lance-pq": "Lance IVF_PQ",
}
OURS, BASELINES = ("paper", "mini", "mini+"), ("hnsw", "lance-hnsw", "lance-pq")
COLUMNS = {  # figure -> its name in the tables
    "build_seconds": "built in, s",
    "build_rate": "items/s",
    "bytes": "bytes an item",
    "open_seconds": "opened in, s",
    "resident_mb": "memory, MB",
    "p50": "search p50, ms",
    "p99": "p99, ms",
    "found": "Recall@10, %",
    "add_seconds": "add of 1,000, s",
    "delete_seconds": "delete of 1,000, s",
    "refresh_seconds": "seen by others in, s",
    "before_p99": "idle p99 at first, ms",
    "after_p99": "idle p99 at last, ms",
    "idle_p50": "idle p50, ms",
    "idle_p99": "idle p99, ms",
    "busy_p50": "busy p50, ms",
    "busy_p99": "busy p99, ms",
    "busy_longest": "longest, ms",
    "added_rate": "added, items/s",
    "errors": "errors",
}

Key = tuple[str, int]


@dataclass(frozen=True)
class Row:
    """Results on one collection. disturbed: other processes were running."""

    collection: str
    items: int
    values: dict[str, float]
    disturbed: bool

    @property
    def key(self) -> Key:
        return self.collection, self.items


@dataclass
class IndexResults:
    """All rows of a folder, written after every change."""

    path: Path
    machine: str = ""
    about: dict[str, str] = field(default_factory=dict)  # collection -> what is in it
    rows: dict[Key, Row] = field(default_factory=dict)
    rates: dict[str, float] = field(default_factory=dict)  # model -> items per second that get codes
    skipped: dict[str, str] = field(default_factory=dict)  # what -> why

    @classmethod
    def read(cls, path: Path) -> "IndexResults":
        """Read the file. No rows if there is no file."""
        if not path.exists():
            return cls(path)
        try:
            stored = json.loads(path.read_text())
            rows = [Row(**row) for row in stored.pop("rows")]
            return cls(path, rows={row.key: row for row in rows}, **stored)
        except (ValueError, KeyError, TypeError) as error:
            raise GeniusError(
                f"{path} does not hold results of this version. Move it away and measure again."
            ) from error

    def add(self, collection: str, items: int, values: Mapping[str, float], disturbed: bool) -> None:
        """Add values of a collection."""
        old = self.rows.get((collection, items), Row(collection, items, {}, False))
        row = Row(collection, items, {**old.values, **values}, old.disturbed or disturbed)
        self.rows[row.key] = row
        self.write()

    def write(self) -> None:
        kept = {"machine": self.machine, "about": self.about, "rates": self.rates, "skipped": self.skipped}
        throughput.write(self.path, {**kept, "rows": list(self.rows.values())})

    def get(self, collection: str, items: int, name: str) -> float | None:
        row = self.rows.get((collection, items))
        return None if row is None else row.values.get(name)

    def sizes(self) -> list[int]:
        return sorted({items for _, items in self.rows})


@dataclass(frozen=True)
class Bar:
    """A target. limit: the maximum, or the minimum if `least`."""

    what: str
    value: float | None
    limit: float
    unit: str
    least: bool = False
    disturbed: bool = False

    def cells(self) -> list[str]:
        assert self.value is not None
        reached = self.value >= self.limit if self.least else self.value <= self.limit
        sign = "≥" if self.least else "≤"
        shown = f"{number(self.value)}{'*' * self.disturbed} {self.unit}".strip()
        return [self.what, f"{sign} {number(self.limit)} {self.unit}".strip(), shown, "yes" if reached else "no"]


def bars(results: IndexResults) -> Sheet:
    """Targets with a measured value."""
    found = [
        Bar("codes given to ready vectors, mini", results.rates.get("mini"), 50_000, "items/s", True),
        Bar("codes given to ready vectors, paper's size", results.rates.get("paper"), 3_000, "items/s", True),
    ]
    for items in results.sizes():
        found += bars_of_size(results, items)
    rows = [bar.cells() for bar in found if bar.value is not None]
    return Sheet("Against the bars", ("what", "bar", "measured", "reached"), rows)


def bars_of_size(results: IndexResults, items: int) -> list[Bar]:
    found: list[Bar] = []

    def bar(what: str, collection: str, value: float | None, limit: float, unit: str, least: bool = False) -> None:
        row = results.rows.get((collection, items))
        disturbed = row is not None and row.disturbed
        found.append(Bar(f"{what}, {count(items)} items ({NAMES[collection]})", value, limit, unit, least, disturbed))

    bar("bytes on disk an item", "paper", results.get("paper", items, "bytes"), 20, "B")
    opened = {1_000_000: 3, 5_600_000: 15}.get(items)
    for one in OURS:
        if opened:
            bar("opened, cold", one, results.get(one, items, "open_seconds"), opened, "s")
    if items == 5_600_000:
        for one in ("paper", "mini"):
            bar("memory beyond the model", one, results.get(one, items, "resident_mb"), 500, "MB")
    if items == 1_000_000:
        for one in OURS:
            bar("1,000 items added and visible", one, results.get(one, items, "add_seconds"), 1, "s")
            bar("1,000 items deleted", one, results.get(one, items, "delete_seconds"), 1, "s")
        bar("built, times as fast as Faiss HNSW", "mini+", build_ratio(results, items), 20, "times", True)
    for one in OURS:
        idle, busy = (results.get(one, items, name) for name in ("idle_p99", "busy_p99"))
        if idle is not None and busy is not None:
            bar("p99 of searches while another process adds, to idle", one, busy / idle, 2, "times")
            bar("errors meanwhile", one, results.get(one, items, "errors"), 0, "")
    return found


def build_ratio(results: IndexResults, items: int) -> float | None:
    """Build seconds of Faiss HNSW divided by ours (written and opened, with embeddings)."""
    graph = results.get("hnsw", items, "build_seconds")
    built, opened = (results.get("mini+", items, name) for name in ("build_seconds", "open_seconds"))
    return None if graph is None or built is None or opened is None else graph / (built + opened)


def sheets(results: IndexResults) -> list[Sheet]:
    """All tables that have rows."""
    space = ("build_seconds", "build_rate", "bytes", "open_seconds", "resident_mb")
    changes = ("add_seconds", "delete_seconds")
    idle = ("before_p99", "after_p99", "idle_p50", "idle_p99")
    busy = (*idle, "busy_p50", "busy_p99", "busy_longest", "added_rate", "errors")
    found = [
        bars(results),
        sheet(results, "Building, opening, memory", OURS, space),
        sheet(results, "Searching and changing", OURS, ("p50", "p99", *changes, "refresh_seconds")),
        sheet(results, "Searching while another process adds", OURS, busy),
        sheet(
            results,
            "Beside other indexes of the same vectors",
            ("mini+", *BASELINES),
            ("build_seconds", "bytes", "p50", "p99", "found", *changes),
        ),
    ]
    return [one for one in found if one.rows]


def sheet(results: IndexResults, title: str, collections: Iterable[str], names: Iterable[str]) -> Sheet:
    """A table with a row per collection and size that has one of these values."""
    names, rows = tuple(names), []
    for collection in collections:
        for items in results.sizes():
            row = results.rows.get((collection, items))
            if row is not None and any(name in row.values for name in names):
                cells = [cell(row, name) for name in names]
                rows.append([NAMES[collection] + "*" * row.disturbed, count(items), *cells])
    return Sheet(title, ("index", "items", *(COLUMNS[name] for name in names)), rows)


def cell(row: Row, name: str) -> str:
    if name not in row.values:
        return "–"
    return number(100 * row.values[name]) if name == "found" else number(row.values[name])


# The page


def write_page(results: IndexResults, page: Path) -> None:
    """Put the tables into the page, between its two marks. The rest of the page stays."""
    parts = [f"Machine: {results.machine}."]
    parts += [f"{NAMES[name]}: {about}." for name, about in sorted(results.about.items())]
    parts += [one.markdown() for one in sheets(results)]
    if any(row.disturbed for row in results.rows.values()):
        parts.append("\\* Other processes were at work while this was measured.")
    parts += [f"Not measured: {what} ({why})." for what, why in results.skipped.items()]
    fill_page(page, parts)
