"""Results of `serve.py`: a JSON file, tables beside their targets, and docs/serve.md."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import throughput
from index_results import Bar
from search_results import Sheet, fill_page, number

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
class ServeResults:
    """All that was measured in a folder. It is written after every change."""

    path: Path
    machine: str = ""
    about: str = ""  # what was served, and how it was asked
    rows: dict[str, Row] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "ServeResults":
        """Read the file. No rows if there is no file."""
        if not path.exists():
            return cls(path)
        try:
            stored = json.loads(path.read_text())
            rows = {name: Row(**row) for name, row in stored.pop("rows").items()}
            return cls(path, rows=rows, **stored)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise GeniusError(
                f"{path} does not hold results of this version. Move it away and measure again."
            ) from error

    def add(self, name: str, values: Mapping[str, float], disturbed: bool) -> None:
        self.rows[name] = Row(dict(values), disturbed)
        throughput.write(self.path, {"machine": self.machine, "about": self.about, "rows": self.rows})

    def get(self, name: str, figure: str) -> float | None:
        return self.rows[name].values.get(figure) if name in self.rows else None

    @property
    def disturbed(self) -> bool:
        return any(row.disturbed for row in self.rows.values())


def bars(results: ServeResults) -> Sheet:
    """Targets with a measured value."""
    together, alone = results.get("together", "rate"), results.get("one by one", "rate")
    ratio = None if together is None or alone is None else together / alone
    found = [Bar(f"errors, {NAMES[name]}", results.get(name, "errors"), 0, "") for name in NAMES]
    found.append(Bar("throughput of batches to that of one by one", ratio, 3, "times", True, results.disturbed))
    requests = results.get("memory", "requests") or 0
    found.append(Bar(f"growth of memory over {requests:,.0f} requests", results.get("memory", "growth"), 5, "%"))
    rows = [bar.cells() for bar in found if bar.value is not None]
    return Sheet("Against the bars", ("what", "bar", "measured", "reached"), rows)


def sheets(results: ServeResults) -> list[Sheet]:
    """All tables that have rows."""
    loads = ("together", "one by one")
    speed = ("requests", "rate", "p50", "p99", "longest", "errors", "batch", "service_cores", "client_cores")
    memory = ("requests", "started_mb", "before_mb", "after_mb", "growth", "errors")
    found = [
        bars(results),
        sheet(results, "Under load", loads, speed),
        sheet(
            results,
            "Where the time goes: milliseconds in the middle, of a batch and of its place in the queue",
            loads,
            STAGES,
        ),
        sheet(results, "Memory", ("memory",), memory),
    ]
    return [one for one in found if one.rows]


def sheet(results: ServeResults, title: str, loads: tuple[str, ...], names: tuple[str, ...]) -> Sheet:
    rows = [
        [NAMES[load] + "*" * results.rows[load].disturbed, *(cell(results, load, name) for name in names)]
        for load in loads
        if load in results.rows
    ]
    return Sheet(title, ("load", *(COLUMNS[name] for name in names)), rows)


def cell(results: ServeResults, load: str, name: str) -> str:
    value = results.get(load, name)
    return "–" if value is None else number(value)


def write_page(results: ServeResults, page: Path) -> None:
    """Put the tables into the page, between its two marks. The rest of the page stays."""
    parts = [f"Machine: {results.machine}. {results.about}"]
    parts += [one.markdown() for one in sheets(results)]
    if results.disturbed:
        parts.append("\\* Other processes were at work while this was measured.")
    fill_page(page, parts)
