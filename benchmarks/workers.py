"""`genius serve --workers 2` against one process: requests a second, latency and memory.

Memory is the proportional set size (PSS) of all processes: a page that several have mapped counts once. The index holds
drawn vectors with embeddings, as many as `--items`; the queries are texts.
"""

import json
import time
import urllib.request
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from serve import Queries, Service, service
from serve_load import load

from genius.encoders.base import Vectors
from genius.index.index import Index
from genius.model.genius import Genius

COUNTS = (1, 2)
PATIENCE = 120.0  # seconds until all workers are ready


def measure(out: Path, items: int, model: str, clients: int, seconds: float, console: Console) -> None:
    """Measure each number of workers, print a table and write `workers.json`."""
    index = _index(out / f"workers-{items}.genius", items, model)
    rows = []
    for count in COUNTS:
        options = ("--workers", str(count)) if count > 1 else ()
        with service(index, *options) as running:
            _wait_for(running, count)
            queries = Queries(0)
            load(running.url, queries.take(20 * clients), clients)  # warm
            found = load(running.url, queries.take(200_000), clients, seconds)
            rows.append(
                {
                    "workers": count,
                    "requests": len(found.times),
                    "requests/s": found.rate,
                    "p50_ms": 1000 * found.percentile(0.5),
                    "p99_ms": 1000 * found.percentile(0.99),
                    "errors": len(found.errors),
                    **_memory(running.pid),
                }
            )
    results = {"items": items, "clients": clients, "seconds": seconds, "rows": rows}
    (out / "workers.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    table = Table(*(name.replace("_", " ") for name in rows[0]))
    for row in rows:
        table.add_row(*(f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in row.values()))
    console.print(table)


def _index(path: Path, items: int, model: str) -> Path:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = Genius.from_pretrained(model)
        drawn = np.random.default_rng(0).standard_normal((items, opened.dim)).astype(np.float32)
        drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
        index = Index.create(path, opened)
        index.add_vectors([f"i{number}" for number in range(items)], Vectors(np.zeros_like(drawn), drawn))
    return path


def _wait_for(running: Service, count: int) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        with urllib.request.urlopen(f"{running.url}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        if sum(line.startswith("genius_ready{") and line.endswith(" 1.0") for line in lines) == count:
            return
        assert time.monotonic() < end, "the workers do not get ready"
        time.sleep(0.2)


def _memory(parent: int) -> dict[str, float]:
    """Megabytes of a process and its children: proportional, and of mapped files of the index, counted once."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    pss = resident = mapped = 0
    for process in (str(parent), *children):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("Pss", "Rss"):
                pss += int(value.split()[0]) * (name == "Pss")
                resident += int(value.split()[0]) * (name == "Rss")
        mapped += _mapped(process)
    return {"pss_mb": pss / 1024, "rss_mb": resident / 1024, "shared_mb": mapped / 1024}


def _mapped(process: str) -> int:
    """Kilobytes of the files that workers share, the part of this process."""
    size, ours = 0, False
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        first = line.split(maxsplit=1)[0]
        if not first.endswith(":"):
            ours = "/genius-serve-" in line
        elif ours and first == "Pss:":
            size += int(line.split()[1])
    return size
