"""Queries a second against the size of the collection (the paper's Fig. 4), ours and Faiss in the same run.

    python benchmarks/scale.py RUN --sections throughput [--sizes 10000,30000,100000,300000,1000000] [--threads 1]

Prints a table and writes RUN/scale.json, size by size. Compared on the same vectors: `fast` (ours, from a query's
ready vectors to its answers), Faiss flat and Faiss HNSW. Encoding a query costs every method the same and is
not counted; how long it takes is printed below the table.

If RUN is a run of `genius evaluate`, the items are its images and the queries its texts, as in the paper. Otherwise
both are made-up sentences, encoded by the model. Collections larger than that are filled with mixtures of two items,
which lie where real ones do. "Found" is the part of the ten nearest, by flat search, that a method finds too: a fast
answer is worth little if it is another one.

Run it on an idle machine. Other work slows long searches more than short ones, so that it changes the order of the
methods too: rows during which this process had less than nine tenths of a core are marked, in scale.json as well.
"""

import itertools
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from genius import Genius, Query
from genius.encoders.base import Prepared, Vectors
from genius.errors import GeniusError
from genius.evaluation.baselines import build_baseline
from genius.runtime.threads import set_thread_count
from genius.search.options import SearchOptions
from genius.search.searcher import Searcher

SIZES = "10000,30000,100000,300000,1000000"
QUERIES, K, BEAM = 128, 10, 50
SENTENCES = 2_000
CORE_SHARE = 0.9  # of one core: below it, a measurement was disturbed
BLOCK = 8192
WORDS = (
    ("A man", "Two women", "A small dog", "The children", "An old car", "A black cat", "Some birds", "A red bus"),
    ("stand", "run", "are seen", "wait", "sit", "play", "rest", "move slowly"),
    ("near the river", "on a beach", "in a kitchen", "under a tree", "beside a table", "in the snow", "on a street"),
    ("at night", "in the morning", "with an umbrella", "behind a fence", "next to a bicycle", "before a crowd"),
    ("while it rains", "in bright light", "during a game", "after work", "on a holiday", "without a sound"),
)


def parse_sizes(text: str) -> list[int]:
    try:
        sizes = sorted({int(size) for size in text.split(",")})
    except ValueError as error:
        raise GeniusError(f"--sizes {text} is not a list of numbers. Write for example 10000,100000.") from error
    if sizes[0] < K:
        raise GeniusError(f"A collection of {sizes[0]} items is too small: give at least {K}.")
    return sizes


def measure(run: Path, name: str, sizes: list[int], threads: int, console: Console) -> None:
    if threads < 1:
        raise GeniusError(f"--threads is {threads}; it must be at least 1.")
    set_thread_count(threads)
    run.mkdir(parents=True, exist_ok=True)
    model = Genius.from_pretrained(name)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    rows: list[Row] = []
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        source, items, queries = base_vectors(model, run, progress)
        one_query = encode_seconds(model)
        for size in sizes:
            rows += measure_size(model, mixed(items, size), queries, threads, progress)
            write(run / "scale.json", {"threads": threads, "model": name, "items": source, "rows": rows})
    console.print(table(rows, f"{name}, {threads} thread{'s' * (threads > 1)}, {source}, {QUERIES} queries at once"))
    if any(row.disturbed for row in rows):
        console.print(
            "[yellow]* Other processes were running: these results are not reliable. Run again on an idle machine.[/]"
        )
    console.print(f"Encoding a query of ten words takes {1000 * one_query:.1f} ms more, with every method.")
    console.print(f"Written: {run / 'scale.json'}")


# The collection


def base_vectors(model: Genius, run: Path, progress: Progress) -> tuple[str, Vectors, Vectors]:
    """What the items are, their vectors, and those of the queries: of the run if it has some, else of sentences."""
    rng = np.random.default_rng(0)
    folder = run / "vectors"
    if not (folder / "origin.json").exists():
        items = encode(model, sentences(rng, SENTENCES), "encoding items", progress)
        asked = [Query(text, target="text").prompt() for text in sentences(rng, QUERIES)]
        return "sentences", items, encode(model, asked, "encoding queries", progress)
    if json.loads((folder / "origin.json").read_text())[0] != model.fingerprint:
        raise GeniusError(f"{folder} holds vectors of another model. Name that model with --model, or another folder.")
    images, texts = (known_vectors(folder, name, model.dim) for name in ("images", "texts"))
    if len(images) < 2 or len(texts) < QUERIES:
        raise GeniusError(f"{folder} holds too few images or texts. Finish the run, or give another folder.")
    texts = texts[rng.permutation(len(texts))[:QUERIES]]
    return "images", Vectors(images, np.zeros_like(images)), Vectors(np.zeros_like(texts), texts)


def known_vectors(folder: Path, name: str, dim: int) -> np.ndarray:
    """The vectors (n, dim) that a run has encoded, without rows of zeros. A joint encoder's run has only pairs."""
    if not (folder / f"{name}.npy").exists():
        return np.empty((0, dim), np.float32)
    known = np.load(folder / f"{name}-known.npy")
    vectors: np.ndarray = np.load(folder / f"{name}.npy", mmap_mode="r")[known]
    return vectors[vectors.any(axis=1)]


def sentences(rng: np.random.Generator, count: int) -> list[str]:
    """Distinct sentences."""
    every = list(itertools.product(*WORDS))
    return [" ".join(every[i]) + "." for i in rng.choice(len(every), count, replace=False)]


def encode(model: Genius, texts: list[str], what: str, progress: Progress) -> Vectors:
    parts = []
    bar = progress.add_task(what, total=len(texts))
    for start in range(0, len(texts), 256):
        block = texts[start : start + 256]
        parts.append(model.encode([Prepared(None, text) for text in block]))
        progress.advance(bar, len(block))
    progress.remove_task(bar)
    return Vectors.concatenate(parts)


def mixed(items: Vectors, size: int) -> Vectors:
    """`size` items: the given ones in random order, then mixtures of two, as long as the first of them."""
    rng = np.random.default_rng(1)
    first, second = rng.integers(0, len(items), (2, size))
    real = rng.permutation(len(items))[:size]
    weight = rng.uniform(0.5, 0.9, size).astype(np.float32)
    first[: len(real)], weight[: len(real)] = real, 1
    return Vectors(*(mixture(part, first, second, weight) for part in (items.image, items.text)))


def mixture(part: np.ndarray, first: np.ndarray, second: np.ndarray, weight: np.ndarray) -> np.ndarray:
    result = np.empty((len(first), part.shape[1]), np.float32)
    for start in range(0, len(first), BLOCK):
        block = slice(start, start + BLOCK)
        one, share = part[first[block]], weight[block, None]
        both = share * one + (1 - share) * part[second[block]]
        lengths = np.linalg.norm(both, axis=1, keepdims=True)
        result[block] = both * np.linalg.norm(one, axis=1, keepdims=True) / np.maximum(lengths, 1e-12)
    return result


# The measurements


@dataclass(frozen=True)
class Row:
    """One method on one collection. found: the part of the nearest that it finds; disturbed: by other processes."""

    method: str
    items: int
    queries_per_second: float
    bytes_per_item: float
    build_seconds: float
    found: float
    disturbed: bool


def measure_size(model: Genius, items: Vectors, queries: Vectors, threads: int, progress: Progress) -> list[Row]:
    """Rows of one collection, flat first."""
    embeddings, asked = items.embedding(), queries.embedding()
    flat, nearest = measure_baseline("flat", embeddings, asked, None, threads, progress)
    hnsw, _ = measure_baseline("hnsw", embeddings, asked, nearest, threads, progress)
    return [flat, hnsw, measure_fast(model, items, embeddings, queries, nearest, progress)]


def measure_baseline(
    name: str, embeddings: np.ndarray, asked: np.ndarray, nearest: np.ndarray | None, threads: int, progress: Progress
) -> tuple[Row, np.ndarray]:
    """The row and the answers. `nearest` is None for exact search, which finds the nearest items itself."""
    size = len(embeddings)
    bar = progress.add_task(f"{name}: building", total=size)
    baseline = build_baseline(name, embeddings, 0, threads=threads, added=lambda count: progress.advance(bar, count))
    progress.update(bar, description=f"{name}: searching {size:,} items")
    found, spent, disturbed = timed(lambda: baseline.search(asked, K))
    progress.remove_task(bar)
    right = shared(found, found if nearest is None else nearest)
    return Row(name, size, len(asked) / spent, baseline.bytes_per_item, baseline.build_seconds, right, disturbed), found


def measure_fast(
    model: Genius, items: Vectors, embeddings: np.ndarray, queries: Vectors, nearest: np.ndarray, progress: Progress
) -> Row:
    """Built: from vectors to codes and trie. Kept: embeddings and trie."""
    size, asked = len(items), queries.embedding()
    start = time.perf_counter()
    searcher = Searcher(model, assign(model, items, progress), embeddings)
    kept = embeddings.nbytes + searcher.trie.nbytes
    built = time.perf_counter() - start
    bar = progress.add_task(f"fast: searching {size:,} items", total=None)
    found, spent, disturbed = timed(
        lambda: searcher.search(model.fuse(queries), asked, None, SearchOptions(k=K, beam=BEAM)).top.rows
    )
    progress.remove_task(bar)
    return Row("fast", size, len(asked) / spent, kept / size, built, shared(found, nearest), disturbed)


def assign(model: Genius, items: Vectors, progress: Progress) -> np.ndarray:
    bar = progress.add_task(f"codes of {len(items):,} items", total=len(items))
    parts = []
    for start in range(0, len(items), BLOCK):
        parts.append(model.codes(items[start : start + BLOCK]))
        progress.advance(bar, len(parts[-1]))
    progress.remove_task(bar)
    return np.concatenate(parts)


def timed(search: Callable[[], np.ndarray]) -> tuple[np.ndarray, float, bool]:
    """The answers, the best time after one run to warm up, and whether other processes took part of the time.

    At least three runs and one second, so that short searches meet what long ones meet.
    """
    found = search()
    times: list[float] = []
    start, worked = time.perf_counter(), time.process_time()
    while len(times) < 3 or time.perf_counter() - start < 1:
        began = time.perf_counter()
        search()
        times.append(time.perf_counter() - began)
    share = (time.process_time() - worked) / (time.perf_counter() - start)
    return found, min(times), share < CORE_SHARE


def encode_seconds(model: Genius) -> float:
    prepared = [Prepared(None, text) for text in sentences(np.random.default_rng(2), 32)]
    return timed(lambda: model.encode(prepared).text)[1] / len(prepared)


def shared(found: np.ndarray, truth: np.ndarray) -> float:
    return float(np.mean([np.isin(right, row).mean() for row, right in zip(found, truth, strict=True)]))


# The results


def write(path: Path, result: dict[str, object]) -> None:
    """Write all or, if interrupted, nothing."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(result, indent=1, default=asdict) + "\n")
    os.replace(part, path)


def table(rows: list[Row], title: str) -> Table:
    result = Table(title=title, title_justify="left")
    for name in ("items", "method", "queries/s", "times flat", "found, %", "bytes an item", "built in, s"):
        result.add_column(name, justify="left" if name == "method" else "right")
    flat = {row.items: row.queries_per_second for row in rows if row.method == "flat"}
    for row in rows:
        result.add_row(
            f"{row.items:,}",
            row.method,
            f"{row.queries_per_second:,.1f}{'*' * row.disturbed}",
            f"{row.queries_per_second / flat[row.items]:.2f}",
            f"{100 * row.found:.1f}",
            f"{row.bytes_per_item:,.1f}",
            f"{row.build_seconds:,.2f}",
            end_section=row.method == "fast",
        )
    return result
