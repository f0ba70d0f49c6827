"""How fast `mini` starts, encodes images and texts, assigns codes and answers a query. Prints a table.

    python benchmarks/mini.py [--threads 2]

Images are random noise (a network's speed does not depend on what it sees) and texts are sentences of common words.
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--model", default="mini")
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

    vectors = Vectors(*(rng.standard_normal((20_000, model.dim), dtype=np.float32) for _ in range(2)))
    table.add_row(
        "codes assigned a second, from ready vectors", f"{20_000 / seconds(lambda: model.codes(vectors)):,.0f}"
    )

    with tempfile.TemporaryDirectory() as folder:
        index = Index.create(f"{folder}/index", model)
        rows = vectors.text / np.linalg.norm(vectors.text, axis=1, keepdims=True)
        index.add_vectors([f"item {n}" for n in range(len(rows))], Vectors(np.zeros_like(rows), rows))
        queries = [Query(text=" ".join(rng.choice(WORDS, 10))) for _ in range(120)]
        times = [seconds(lambda query=query: index.search(query), repeats=1) for query in queries]
    table.add_row("a query from words to hits, 20,000 items, median", f"{1000 * np.median(times):.1f} ms")

    Console().print(table)


if __name__ == "__main__":
    main()
