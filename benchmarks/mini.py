"""How fast `mini` starts, encodes images and texts, assigns codes and answers a query. Prints a table.

    python benchmarks/mini.py [--threads 2] [--items 20000]

--items is the size of the collection that is searched. Images are random noise (a network's speed does not depend on
what it sees) and texts are sentences of common words.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from genius import Genius, Index, Query
from genius.encoders.base import Prepared, Vectors
from genius.runtime.threads import set_thread_count

WORDS = ("a", "man", "dog", "is", "riding", "two", "red", "small", "on", "the", "street", "near", "table", "water")


BLOCK = 20_000  # vectors
QUERY = "Find an image that shows: a man in a red jacket riding a brown horse on the beach."
FIRST_VECTOR = """
import resource, sys
from genius import Genius
from genius.encoders.base import Prepared
Genius.from_pretrained(sys.argv[1]).encode([Prepared(None, "a cat asleep on a sofa")])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def first_vector(model: str, threads: int) -> tuple[float, float]:
    """Seconds that a new process takes to its first text vector, the best of three, and its peak memory in MB."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    times, peak = [], 0.0
    for _ in range(3):
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", FIRST_VECTOR, model], env=environment, capture_output=True, check=True
        )
        times.append(time.perf_counter() - start)
        peak = int(done.stdout) / 1024  # kilobytes on Linux
    return min(times), peak


def seconds(work: Callable[[], object], repeats: int = 3) -> float:
    """The best of some runs, after one to warm up."""
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def random_vectors(rng: np.random.Generator, count: int, dim: int) -> Vectors:
    """Vectors of texts, of length 1."""
    rows = rng.standard_normal((count, dim), dtype=np.float32)
    return Vectors(np.zeros_like(rows), rows / np.linalg.norm(rows, axis=1, keepdims=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", default="mini")
    parser.add_argument("--items", type=int, default=20_000)
    arguments = parser.parse_args()
    set_thread_count(arguments.threads)
    rng = np.random.default_rng(0)
    model = Genius.from_pretrained(arguments.model)
    table = Table("what", "result", title=f"{arguments.model}, {arguments.threads} threads", title_justify="left")

    took, peak = first_vector(arguments.model, arguments.threads)
    table.add_row("seconds from the start of Python to the first text vector", f"{took:.2f}")
    table.add_row("peak memory until then", f"{peak:.0f} MB")
    query = [Prepared(None, QUERY)]
    table.add_row(
        "text of a query encoded (22 tokens), best", f"{1000 * seconds(lambda: model.encode(query), 100):.1f} ms"
    )
    images = [Image.fromarray(rng.integers(0, 255, (480, 640, 3), dtype=np.uint8)) for _ in range(16)]
    prepared = [Prepared(model.encoder.pixels(p), "") for p in images]
    table.add_row("images encoded a second, batch 16", f"{16 / seconds(lambda: model.encode(prepared)):.0f}")
    texts = [Prepared(None, " ".join(rng.choice(WORDS, 10)).capitalize() + ".") for _ in range(512)]
    table.add_row("texts of ten words encoded a second", f"{512 / seconds(lambda: model.encode(texts)):.0f}")

    vectors = random_vectors(rng, BLOCK, model.dim)
    table.add_row(
        "codes assigned a second, from ready vectors", f"{BLOCK / seconds(lambda: model.codes(vectors)):,.0f}"
    )

    with tempfile.TemporaryDirectory() as folder:
        index = Index.create(f"{folder}/index", model)
        for start in range(0, arguments.items, BLOCK):
            numbers = range(start, min(start + BLOCK, arguments.items))
            index.add_vectors([f"item {n}" for n in numbers], random_vectors(rng, len(numbers), model.dim))
        index.compact()
        queries = [Query(text=" ".join(rng.choice(WORDS, 10))) for _ in range(120)]
        stages: dict[str, list[float]] = {}
        for query in queries:
            started = time.perf_counter()
            answer = index.answer(query)
            stages.setdefault("in all", []).append(time.perf_counter() - started)
            for stage, took in answer.seconds.items():
                stages.setdefault(stage, []).append(took)
    parts = {stage: 1000 * float(np.median(times)) for stage, times in stages.items()}
    table.add_row(f"a query from words to hits, {arguments.items:,} items, median", f"{parts.pop('in all'):.1f} ms")
    table.add_row("its stages", ", ".join(f"{stage} {took:.1f}" for stage, took in parts.items()) + " ms")

    Console().print(table)


if __name__ == "__main__":
    main()
