"""What an index costs: building, disk, opening, memory, searching, changing, beside Faiss HNSW and Lance's own indexes.

    python benchmarks/index.py OUT [--sizes 10000,100000,1000000,5600000] [--indexes paper,mini,mini+,hnsw,lance-hnsw,
        lance-pq] [--vectors RUN] [--threads 2] [--quick]
    python benchmarks/index.py OUT --page docs/storage.md     # write what was measured into the page

Ours are made from ready vectors by `Index.add_vectors`. Three kinds:

- `paper`: codes only, eight levels of 4,096 behind the modality; a decoder of that size with random weights, and IDs
  drawn for it (see material.py), because giving millions of items their real codes would take long. How fast a model
  of that size really gives them is measured apart.
- `mini`: codes only, as the bundled model gives them to real vectors, mixed to many (see throughput.py).
  RUN is a run of `genius evaluate`, which lends its vectors; without one, sentences are encoded.
- `mini+`: the same with embeddings. The others have the same vectors: `hnsw` (Faiss, in memory only), `lance-hnsw` and
  `lance-pq` (what LanceDB uses). One that would take longer than a quarter of an hour to build, going by a smaller one,
  is left out.

Measured are: from vectors to a compact index on disk, on all threads; bytes on disk an item; in a fresh process, and
with the files out of the system's cache, opening until the first answer, and the memory that the process has more than
one which has searched an index of 2,000 items; searches one by one on one thread; 1,000 items added or deleted until a
search has seen it, and until another open index has, the longest of several times; searches by a reader that looks for
news every second, before, while and after another process adds 1,000 items after the other.

Results go to OUT/index.json after each of these steps, and what is there is not measured again. Run it on an idle
machine: rows during which other processes were at work are marked.
"""

import argparse
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import throughput
from index_baselines import Baseline, HnswBaseline, LanceBaseline, size_on_disk
from index_results import NAMES, OURS, IndexResults, sheets, write_page
from index_sources import Source, Sources
from material import PAPER, random_model, unit
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from search import processor

from genius import Genius
from genius.cli.console import lower_priority
from genius.encoders.base import Vectors
from genius.errors import GeniusError
from genius.index.index import Index
from genius.runtime.threads import set_thread_count
from genius.search.options import MODES

SIZES, QUICK_SIZES = "10000,100000,1000000,5600000", "10000"
K = throughput.K
BLOCK = 262_144  # items made and added at once
CHANGED = 1000  # items added or deleted
ROUNDS = 5
SMALL, WARM = 2000, 16  # items and searches before any that count
REFRESH = 1.0  # seconds between a reader's looks for news
LONGEST_BUILD = 900.0  # seconds
PROBE = 10_000  # items of the baseline that tells how long a larger one takes, if none is known
BUSY_CORE = 0.15  # of one core, used by others: measurements are disturbed

STEPS = {
    "build": ("build_seconds", "build_rate", "bytes"),
    "read": ("open_seconds", "resident_mb", "p50", "p99", "found"),
    "change": ("add_seconds", "delete_seconds", "refresh_seconds"),
    "busy": (
        "before_p99",
        "after_p99",
        "idle_p50",
        "idle_p99",
        "busy_p50",
        "busy_p99",
        "busy_longest",
        "added_rate",
        "errors",
    ),
}

Values = dict[str, float]


@dataclass(frozen=True)
class Settings:
    """seconds: that searches are repeated for; assigned: items that get codes to see how fast that is."""

    sizes: list[int]
    indexes: list[str]
    vectors: Path
    threads: int
    seconds: float
    assigned: dict[str, int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for index.json, and for indexes while they are measured")
    parser.add_argument("--sizes", help=f"numbers of items, with commas between them; {SIZES} if not given")
    parser.add_argument("--indexes", default=",".join(NAMES), help="which, with commas between them")
    parser.add_argument("--vectors", type=Path, help="a run of `genius evaluate`, which lends its vectors to mini")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads that build")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_SIZES} items, few repeats")
    parser.add_argument("--page", type=Path, help="measure nothing; write OUT/index.json into this page")
    arguments = parser.parse_args()
    console = Console()
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        results = IndexResults.read(arguments.out / "index.json")
        if arguments.page is None:
            measure(results, settings_from(arguments), console)
        finish(results, arguments.page, console)
    except GeniusError as error:
        console.print(f"[red]{error}[/]")
        raise SystemExit(1) from error


def settings_from(arguments: argparse.Namespace) -> Settings:
    sizes = throughput.parse_sizes(arguments.sizes or (QUICK_SIZES if arguments.quick else SIZES))
    indexes = arguments.indexes.split(",")
    unknown = sorted(set(indexes) - set(NAMES))
    if unknown:
        raise GeniusError(f"There is no index {', '.join(unknown)}. Choose among {', '.join(NAMES)}.")
    if arguments.threads < 1:
        raise GeniusError(f"--threads is {arguments.threads}; it must be at least 1.")
    quick = arguments.quick
    assigned = {"mini": 20_000, "paper": 2_000} if quick else {"mini": 500_000, "paper": 20_000}
    vectors = arguments.vectors or arguments.out
    return Settings(sizes, indexes, vectors, arguments.threads, 2.0 if quick else 20.0, assigned)


def measure(results: IndexResults, settings: Settings, console: Console) -> None:
    results.machine = f"{processor()}, {os.cpu_count()} cores, ONNX Runtime {onnxruntime.__version__}"
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        set_thread_count(settings.threads)
        sources = Sources(settings.vectors, progress)
        measure_rates(results, settings, sources, progress)
        for items in settings.sizes:
            for name in settings.indexes:
                if name in OURS:
                    measure_ours(results, settings, sources, name, items, progress)
                else:
                    measure_baseline(results, settings, sources, name, items, progress)


def finish(results: IndexResults, page: Path | None, console: Console) -> None:
    """Print the tables and fill the page."""
    if not results.rows:
        raise GeniusError(f"{results.path} holds no results. Measure first: python benchmarks/index.py OUT")
    if page is not None:
        write_page(results, page)
        console.print(f"Written: {page}")
        return
    for sheet in sheets(results):
        console.print(sheet.table())
    for what, why in results.skipped.items():
        console.print(f"Not measured: {what} ({why}).")
    if any(row.disturbed for row in results.rows.values()):
        console.print(
            "[yellow]* Other processes were running: these results are not reliable. Run again on an idle machine.[/]"
        )
    console.print(f"Written: {results.path}")


# Making what is measured


def names(start: int, count: int) -> list[str]:
    """Numbered ids in M-BEIR's style."""
    return [f"9:{number}" for number in range(start, start + count)]


def blocks(source: Source, items: int, what: str, progress: Progress) -> Iterator[tuple[int, Vectors]]:
    """Yield all vectors in blocks: the start of a block, and the block."""
    bar = progress.add_task(what, total=items)
    for start in range(0, items, BLOCK):
        vectors = source.block(start, min(BLOCK, items - start))
        yield start, vectors
        progress.advance(bar, len(vectors))
    progress.remove_task(bar)


def measure_rates(results: IndexResults, settings: Settings, sources: Sources, progress: Progress) -> None:
    """Items per second that get codes from ready vectors, on all threads."""
    for kind in ("mini", "paper"):
        if kind not in settings.indexes or kind in results.rates:
            continue
        count = settings.assigned[kind]
        if kind == "mini":
            model, vectors = Genius.from_pretrained("mini"), sources.of(kind).block(0, count)
        else:
            model = random_model(PAPER)
            text = unit(np.random.default_rng(1).standard_normal((count, PAPER.dim), dtype=np.float32))
            vectors = Vectors(np.zeros_like(text), text)
        bar = progress.add_task(f"{kind}: codes of {count:,} items", total=None)
        model.codes(vectors[:1024])
        began = time.perf_counter()
        model.codes(vectors)
        results.rates[kind] = count / (time.perf_counter() - began)
        progress.remove_task(bar)
        results.write()


# Ours


def measure_ours(
    results: IndexResults, settings: Settings, sources: Sources, name: str, items: int, progress: Progress
) -> None:
    """Measure the missing steps. Builds the index for them and removes it afterwards."""
    known = results.rows[name, items].values if (name, items) in results.rows else {}
    missing = [step for step, values in STEPS.items() if not known.keys() >= set(wanted(values, name))]
    if not missing:
        return
    source, folder = sources.of(name), results.path.parent / f"{name}-{items}.genius"
    results.about[name] = source.about
    shutil.rmtree(folder, ignore_errors=True)
    try:
        disturbed = others_at_work()
        built = build(source, folder, name == "mini+", items, f"{name}: building {items:,} items", progress)
        if "build" in missing:
            results.add(name, items, built, disturbed)
        for step in missing:
            if step != "build":
                bar = progress.add_task(f"{name}, {items:,} items: {step}", total=None)
                disturbed = others_at_work()
                values = in_fresh_process(FRESH[step], source, folder, name == "mini+", settings.seconds)
                if step == "read":
                    values = with_found(values, name, source, items, progress)
                results.add(name, items, values, disturbed)
                progress.remove_task(bar)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def wanted(values: tuple[str, ...], name: str) -> list[str]:
    """Recall means nothing without embeddings or with random codes."""
    return [value for value in values if value != "found" or name == "mini+"]


def build(source: Source, folder: Path, embeddings: bool, items: int, what: str, progress: Progress) -> Values:
    """Build a compact index on disk from vectors. The time to make the vectors does not count."""
    index = Index.create(folder, source.model(), embeddings=embeddings)
    spent = 0.0
    for start, vectors in blocks(source, items, what, progress):
        ids = names(start, len(vectors))
        began = time.perf_counter()
        index.add_vectors(ids, vectors)
        spent += time.perf_counter() - began
    began = time.perf_counter()
    index.compact(keep=timedelta(0))
    spent += time.perf_counter() - began
    return {"build_seconds": spent, "build_rate": items / spent, "bytes": size_on_disk(folder) / items}


def with_found(values: dict[str, Any], name: str, source: Source, items: int, progress: Progress) -> Values:
    """Replace the answers by the share of the nearest items that they hold."""
    answers = values.pop("answers")
    if name == "mini+":
        values["found"] = found(answers, nearest(source, items, progress))
    return values


def found(answers: list[list[str]], truth: np.ndarray) -> float:
    right = [np.isin(names_of, ids).mean() for names_of, ids in zip(truth, answers, strict=True)]
    return float(np.mean(right))


def nearest(source: Source, items: int, progress: Progress) -> np.ndarray:
    """(q, K) ids of the nearest items of each query, by exhaustive search."""
    asked = source.asked.embedding()
    rows, scores = np.empty((len(asked), 0), np.int64), np.empty((len(asked), 0), np.float32)
    for start, vectors in blocks(source, items, f"the nearest of {items:,} items", progress):
        near = asked @ vectors.embedding().T
        scores = np.concatenate([scores, near], axis=1)
        rows = np.concatenate([rows, np.broadcast_to(np.arange(start, start + len(vectors)), near.shape)], axis=1)
        best = np.argpartition(-scores, K - 1, axis=1)[:, :K]
        rows, scores = np.take_along_axis(rows, best, axis=1), np.take_along_axis(scores, best, axis=1)
    return np.array([[f"9:{row}" for row in of_query] for of_query in rows])


# In fresh processes


def in_fresh_process(work: Callable[..., Any], *arguments: Any) -> Any:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def read(source: Source, folder: Path, embeddings: bool, seconds: float) -> dict[str, Any]:
    """Measure opening, memory and searching. answers: ids found for all queries."""
    model = warm_model(source, embeddings)
    drop_from_cache(folder)
    before, began = resident(), time.perf_counter()
    index = Index.open(folder, model)
    index.search_vectors(source.asked[:1], k=K)
    opened = time.perf_counter() - began
    times, _ = search_for(index, source.asked, seconds)
    more = max(0, resident() - before)  # what the small index has left may be enough
    rows = index.search_vectors(source.asked, k=K).rows
    answers = [index.ids(of_query[of_query >= 0]) for of_query in rows]
    p50, p99 = percentiles(times)
    return {"open_seconds": opened, "resident_mb": more / 1e6, "p50": p50, "p99": p99, "answers": answers}


def change(source: Source, folder: Path, embeddings: bool, seconds: float) -> Values:
    """Maximum seconds until 1,000 added items are found, are seen by another open index, and are deleted."""
    model = warm_model(source, embeddings)
    index, other = Index.open(folder, model), Index.open(folder, model)
    spent: dict[str, list[float]] = {name: [] for name in STEPS["change"]}

    def timed(name: str, work: Callable[[], object], open_index: Index, items: int) -> None:
        began = time.perf_counter()
        work()
        open_index.search_vectors(source.asked[:1], k=K)
        spent[name].append(time.perf_counter() - began)
        if searched(open_index) != items:
            raise GeniusError(f"{searched(open_index)} items are searched where there should be {items}. Report this.")

    items = len(index)
    for one in (index, other):
        one.search_vectors(source.asked[:1], k=K)
    for round_number in range(ROUNDS):
        start = items + CHANGED * round_number
        ids, vectors = names(start, CHANGED), source.block(start, CHANGED)
        timed("add_seconds", lambda: index.add_vectors(ids, vectors), index, items + CHANGED)  # noqa: B023 (called now)
        timed("refresh_seconds", other.refresh, other, items + CHANGED)
        timed("delete_seconds", lambda: index.delete(ids), index, items)  # noqa: B023
        timed("refresh_seconds", other.refresh, other, items)
    return {name: max(values) for name, values in spent.items()}


def busy(source: Source, folder: Path, embeddings: bool, seconds: float) -> Values:
    """Search times while another process adds items. Idle times are the mean of before and after."""
    index = Index.open(folder, warm_model(source, embeddings), refresh=REFRESH)
    index.search_vectors(source.asked[:1], k=K)
    before, _ = search_for(index, source.asked, seconds)
    context = multiprocessing.get_context("spawn")
    added, stop = context.Value("q", 0), context.Event()
    writer = context.Process(target=keep_adding, args=(source, folder, len(index), added, stop))
    writer.start()
    try:
        while not added.value:
            if not writer.is_alive():
                raise GeniusError("The process that adds has ended. Its error is above.")
            time.sleep(0.01)
        first, began = added.value, time.perf_counter()
        meanwhile, errors = search_for(index, source.asked, seconds)
        rate = (added.value - first) / (time.perf_counter() - began)
        failed = errors + (not writer.is_alive())
    finally:
        stop.set()
        writer.join()
    index.refresh()
    after, _ = search_for(index, source.asked, seconds)
    alone = (percentiles(before)[1], percentiles(after)[1], *percentiles(before + after))
    values = (*alone, *percentiles(meanwhile), 1000 * max(meanwhile), rate, float(failed))
    return dict(zip(STEPS["busy"], values, strict=True))


def keep_adding(source: Source, folder: Path, start: int, added: Any, stop: Any) -> None:
    """Add 1,000 items at a time until stopped, on one core and with low priority, as `genius index add` does."""
    lower_priority()
    set_thread_count(1)
    index = Index.open(folder, source.model())
    while not stop.is_set():
        index.add_vectors(names(start + added.value, CHANGED), source.block(start + added.value, CHANGED))
        added.value += CHANGED


FRESH: dict[str, Callable[..., Any]] = {"read": read, "change": change, "busy": busy}


def warm_model(source: Source, embeddings: bool) -> Genius:
    """A model that has searched a small index before and after a change, so that everything is loaded."""
    set_thread_count(1)
    model = source.model()
    with tempfile.TemporaryDirectory() as folder:
        index = Index.create(Path(folder) / "small", model, embeddings=embeddings)
        index.add_vectors(names(0, SMALL), source.block(0, SMALL))
        for change in (lambda: index.delete(names(0, 1)), lambda: index.add_vectors(names(0, 1), source.block(0, 1))):
            for mode in MODES:  # one of them goes through all levels
                for query in range(WARM):
                    index.search_vectors(source.asked[query : query + 1], k=K, mode=mode, budget=K)
            change()
    return model


def searched(index: Index) -> int:
    """Number of items that a search covers."""
    return len(index.searcher.trie)


def search_for(index: Index, asked: Vectors, seconds: float) -> tuple[list[float], int]:
    """Search queries one by one for this many seconds. Returns their times and the number of errors."""
    times: list[float] = []
    errors, number, end = 0, 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        query = asked[number % len(asked) : number % len(asked) + 1]
        began = time.perf_counter()
        try:
            index.search_vectors(query, k=K)
        except (GeniusError, OSError, ValueError):
            errors += 1
        times.append(time.perf_counter() - began)
        number += 1
    return times, errors


def percentiles(times: list[float]) -> tuple[float, float]:
    """p50 and p99, in milliseconds."""
    p50, p99 = np.percentile(times, (50, 99)) * 1000
    return float(p50), float(p99)


# Baselines


def measure_baseline(
    results: IndexResults, settings: Settings, sources: Sources, name: str, items: int, progress: Progress
) -> None:
    if (name, items) in results.rows:
        return
    what = f"{NAMES[name]} of {items:,} items"
    if items > PROBE and estimate(results, name, items) is None:
        measure_baseline(results, settings, sources, name, PROBE, progress)
    seconds = estimate(results, name, items)
    if seconds is not None and seconds > LONGEST_BUILD:
        results.skipped[f"{NAMES[name]} of {items:,} items"] = (
            f"it would take about {seconds / 60:.0f} minutes to build"
        )
        results.write()
        return
    source, folder = sources.of(name), results.path.parent / f"{name}-{items}.lance"
    disturbed = others_at_work()
    baseline: Baseline = HnswBaseline(settings.threads) if name == "hnsw" else LanceBaseline(folder, name)
    try:
        values = baseline_values(
            baseline, source, items, settings.seconds, f"{name}: building {items:,} items", progress
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    results.skipped.pop(what, None)
    results.add(name, items, values, disturbed)


def estimate(results: IndexResults, name: str, items: int) -> float | None:
    """Estimated build seconds, from the largest known build that is not larger. None if there is none."""
    known = {size: row.values["build_seconds"] for (baseline, size), row in results.rows.items() if baseline == name}
    smaller = [size for size in known if size <= items]
    if not smaller:
        return None
    size = max(smaller)
    return float(known[size] * items * np.log(items) / (size * np.log(size)))


def baseline_values(
    baseline: Baseline, source: Source, items: int, seconds: float, what: str, progress: Progress
) -> Values:
    spent = 0.0
    for start, vectors in blocks(source, items, what, progress):
        embeddings = vectors.embedding()
        began = time.perf_counter()
        baseline.add(start, embeddings)
        spent += time.perf_counter() - began
    bar = progress.add_task(f"{what}: finishing and searching", total=None)
    began = time.perf_counter()
    baseline.finish()
    spent += time.perf_counter() - began
    asked = source.asked.embedding()
    answers = [[f"9:{row}" for row in baseline.search(query)] for query in asked]
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        query = asked[len(times) % len(asked)]
        began = time.perf_counter()
        baseline.search(query)
        times.append(time.perf_counter() - began)
    p50, p99 = percentiles(times)
    values = {"build_seconds": spent, "bytes": baseline.bytes / items, "p50": p50, "p99": p99}
    values |= baseline_changes(baseline, source, items, asked[0])
    progress.remove_task(bar)
    return values | {"found": found(answers, nearest(source, items, progress))}


def baseline_changes(baseline: Baseline, source: Source, items: int, query: np.ndarray) -> Values:
    """Maximum of several times, each with a search."""
    added, deleted = [], []
    for round_number in range(ROUNDS):
        start = items + CHANGED * round_number
        embeddings = source.block(start, CHANGED).embedding()
        began = time.perf_counter()
        baseline.add(start, embeddings)
        baseline.search(query)
        added.append(time.perf_counter() - began)
        began = time.perf_counter()
        if baseline.delete(start, CHANGED):
            baseline.search(query)
            deleted.append(time.perf_counter() - began)
    return {"add_seconds": max(added), **({"delete_seconds": max(deleted)} if deleted else {})}


# The machine


def resident() -> int:
    """Resident memory of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return 1024 * int(line.split()[1])
    raise GeniusError("This system does not tell how much memory a process has. Measure on Linux.")


def drop_from_cache(folder: Path) -> None:
    """Drop files from the page cache, so that they are read from disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def others_at_work() -> bool:
    """Whether other processes use the processors."""
    began, before = time.perf_counter(), busy_ticks()
    time.sleep(0.5)
    used = (busy_ticks() - before) / os.sysconf("SC_CLK_TCK")
    return used > BUSY_CORE * (time.perf_counter() - began)


def busy_ticks() -> int:
    """Busy ticks of all processors since boot, without idle and I/O wait."""
    times = [int(value) for value in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(times) - times[3] - times[4]


if __name__ == "__main__":
    main()
