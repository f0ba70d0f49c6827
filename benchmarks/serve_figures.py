"""What `serve.py` measured: kept in a JSON file, shown as tables with the bars beside them, written into docs/serve.md.

Knows figures and how to show them; knows nothing of how they were measured.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import scale
from figures import Sheet, fill_page, number
from index_figures import Bar

from genius.errors import GeniusError

NAMES = {"together": "batches as they come", "one by one": "batches of one", "memory": "memory"}
COLUMNS = {  # figure -> its name in the tables
    "requests": "requests",
    "rate": "requests/s",
    "p50": "p50, ms",
    "p99": "p99, ms",
    "longest": "longest, ms",
    "errors": "errors",
    "batch": "queries a batch",
    "service_cores": "cores, service",
    "client_cores": "cores, clients",
    "queue": "queue",
    "prepare": "prepare",
    "encode": "encode",
    "generate": "generate",
    "rerank": "re-rank",
    "read": "read",
    "started_mb": "when started, MB",
    "before_mb": "before, MB",
    "after_mb": "after, MB",
    "growth": "growth, %",
}
STAGES = ("queue", "prepare", "encode", "generate", "rerank", "read")


@dataclass(frozen=True)
class Row:
    """What came of one load. disturbed: other processes were at work."""

    values: dict[str, float]
    disturbed: bool


@dataclass
class Figures:
    """All that was measured in a folder. It is written after every change."""

    path: Path
    machine: str = ""
    about: str = ""  # what was served, and how it was asked
    rows: dict[str, Row] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Figures":
        """Those in the file, or none if there is no file."""
        if not path.exists():
            return cls(path)
        try:
            stored = json.loads(path.read_text())
            rows = {name: Row(**row) for name, row in stored.pop("rows").items()}
            return cls(path, rows=rows, **stored)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise GeniusError(
                f"{path} does not hold figures of this version. Move it away and measure again."
            ) from error

    def add(self, name: str, values: Mapping[str, float], disturbed: bool) -> None:
        self.rows[name] = Row(dict(values), disturbed)
        scale.write(self.path, {"machine": self.machine, "about": self.about, "rows": self.rows})

    def get(self, name: str, figure: str) -> float | None:
        return self.rows[name].values.get(figure) if name in self.rows else None

    @property
    def disturbed(self) -> bool:
        return any(row.disturbed for row in self.rows.values())


def bars(figures: Figures) -> Sheet:
    """Those that something was measured for."""
    together, alone = figures.get("together", "rate"), figures.get("one by one", "rate")
    ratio = None if together is None or alone is None else together / alone
    found = [Bar(f"errors, {NAMES[name]}", figures.get(name, "errors"), 0, "") for name in NAMES]
    found.append(Bar("throughput of batches to that of one by one", ratio, 3, "times", True, figures.disturbed))
    requests = figures.get("memory", "requests") or 0
    found.append(Bar(f"growth of memory over {requests:,.0f} requests", figures.get("memory", "growth"), 5, "%"))
    rows = [bar.cells() for bar in found if bar.value is not None]
    return Sheet("Against the bars", ("what", "bar", "measured", "reached"), rows)


def sheets(figures: Figures) -> list[Sheet]:
    """All tables that have something to show."""
    loads = ("together", "one by one")
    speed = ("requests", "rate", "p50", "p99", "longest", "errors", "batch", "service_cores", "client_cores")
    memory = ("requests", "started_mb", "before_mb", "after_mb", "growth", "errors")
    found = [
        bars(figures),
        sheet(figures, "Under load", loads, speed),
        sheet(
            figures,
            "Where the time goes: milliseconds in the middle, of a batch and of its place in the queue",
            loads,
            STAGES,
        ),
        sheet(figures, "Memory", ("memory",), memory),
    ]
    return [one for one in found if one.rows]


def sheet(figures: Figures, title: str, loads: tuple[str, ...], names: tuple[str, ...]) -> Sheet:
    rows = [
        [NAMES[load] + "*" * figures.rows[load].disturbed, *(cell(figures, load, name) for name in names)]
        for load in loads
        if load in figures.rows
    ]
    return Sheet(title, ("load", *(COLUMNS[name] for name in names)), rows)


def cell(figures: Figures, load: str, name: str) -> str:
    value = figures.get(load, name)
    return "–" if value is None else number(value)


def write_page(figures: Figures, page: Path) -> None:
    """Put the tables into the page, between its two marks; what stands around them stays."""
    parts = [f"Machine: {figures.machine}. {figures.about}"]
    parts += [one.markdown() for one in sheets(figures)]
    if figures.disturbed:
        parts.append("\\* Other processes were at work while this was measured.")
    fill_page(page, parts)
