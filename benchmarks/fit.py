"""How good fitted models are (docs/fit.md).

    python benchmarks/fit.py bench BENCH --run RUN --cache FOLDER [--limit 300] [--model FOLDER]
    python benchmarks/fit.py backbones BENCH [--limit 300] [--items 10000]
    python benchmarks/fit.py shipped DATA [--encoder MODEL] [--limit 300]
    python benchmarks/fit.py size 30000 [--dim 256] [--vectors FILE]

bench: labels hidden. The collection is the candidates of train and val of BENCH as stage-1 vectors of `mini`, which
FOLDER keeps for the next time. Tested on the test split, whose vectors RUN holds: a run of `genius evaluate BENCH --out
RUN`, which also has the results of `mini` as shipped on the same queries.
backbones: the same for ready vectors of the frozen backbones alone: EfficientNet-Lite2 (image -> image tasks) and
MiniLM (text -> text tasks).
shipped: the codebooks and decoder of MODEL (`mini`) against those fitted to the candidates of a benchmark, with the
same encoder.
size: time and memory of a fit of N vectors: mixtures of two vectors of FILE, a .npy array, or random ones.

All queries are measured unless --limit samples some of each task.
"""

import argparse
import io
import json
import resource
import time
from pathlib import Path
from typing import cast

import numpy as np
from rich.console import Console

from genius import Genius
from genius.data.images import load_image
from genius.data.items import clean_text
from genius.data.mbeir import Benchmark
from genius.data.splits import SplitData, TaskData, Vocabulary, read_split
from genius.encoders.base import Encoder, Vectors
from genius.encoders.efficientnet import EfficientNetLite2, to_pixels
from genius.encoders.minilm import WIDTH, MiniLM
from genius.encoders.precomputed import PrecomputedEncoder
from genius.evaluation.encoded_split import EncodedSplit, EvaluationSplit, encode_split, read_evaluation_split
from genius.evaluation.evaluate import evaluate_encoded
from genius.fit.check import MODES, exact
from genius.fit.codebooks import Sample
from genius.fit.collection import Collection, normalised
from genius.fit.encoders import OpenedEncoder
from genius.fit.queries import PseudoQueries
from genius.fit.run import fit_vectors
from genius.fit.settings import FitSettings
from genius.runtime.threads import thread_count
from genius.search.options import Mode, SearchOptions
from genius.search.searcher import Searcher
from genius.train.data import FrozenVectors
from genius.train.features import image_rows, text_rows

METHODS = ("exact", "generate", "rerank", "fast", "codes")


def quiet() -> Console:
    return Console(file=io.StringIO())


def measured(model: Genius, data: SplitData, vectors: FrozenVectors, label: str) -> dict[str, float]:
    """Print Recall@5 of each method, the mean over tasks in their own pools, and its ratio to exact search."""
    codes = model.codes(vectors.vectors(data.text, data.image))
    results = evaluate_encoded(model, EncodedSplit(data, vectors, codes), ("local",), METHODS, console=quiet())
    recalls = {method: float(np.mean([r.recall[5] for r in results if r.method == method])) for method in METHODS}
    print(f"{label}: exact {recalls['exact']:.1f}; ", end="")
    print(", ".join(f"{m} {recalls[m]:.1f} ({recalls[m] / recalls['exact']:.3f})" for m in METHODS[1:]), flush=True)
    return recalls


def bench(given: argparse.Namespace) -> None:
    """Fit to the candidates of train and val; measure on the test split."""
    benchmark, mini = Benchmark(given.data.resolve()), Genius.from_pretrained("mini")
    asked = read_evaluation_split(benchmark, "test", given.limit)
    vectors = stored_vectors(given.run, asked, mini)
    collection = Collection.of(candidates(benchmark, mini.encoder, given.cache))
    fitted, _ = fit_vectors(collection, OpenedEncoder(mini.encoder, True), settings(given), console=Console())
    if given.model:
        fitted.save_pretrained(given.model)
    print(f"{sum(map(len, asked.data.tasks)):,} test queries of {len(asked.data.tasks)} tasks", flush=True)
    measured(fitted, asked.data, vectors, "fitted")
    modalities(fitted, asked.data, vectors, "fitted")


def stored_vectors(run: Path, asked: EvaluationSplit, model: Genius) -> FrozenVectors:
    """Vectors of the texts and images of a split, from the folder of an evaluation of the whole split."""
    facts = json.loads((run / "run.json").read_text())
    if (facts["digest"], facts["model"]["fingerprint"]) != (asked.digest, model.fingerprint):
        raise SystemExit(f"{run} is a run of another model or benchmark. Make one: genius evaluate BENCH --out RUN")
    tables = []
    for name in ("texts", "images"):
        if not np.load(run / f"vectors/{name}-known.npy")[:-1].all():  # the last row stands for none
            raise SystemExit(f"{run} does not hold all vectors of {name}. Evaluate all queries, in both settings.")
        tables.append(np.load(run / f"vectors/{name}.npy", mmap_mode="r"))
    return FrozenVectors(*tables)


def candidates(benchmark: Benchmark, encoder: Encoder, cache: Path) -> Vectors:
    """Vectors of the candidates of train and val. Each text and image is encoded once; the cache keeps them."""
    texts, images = Vocabulary(), Vocabulary()
    pool = [one for split in ("train", "val") for one in benchmark.global_pool(split)]
    text = np.array([texts.number(clean_text(one.text)) for one in pool])
    image = np.array([images.number(benchmark.image(one.image_path)) for one in pool])
    console, threads = Console(), thread_count()
    rows = FrozenVectors(
        text_rows(encoder, texts.names, cache, threads, console),
        image_rows(encoder, images.names, cache, threads, console),
    )
    return rows.vectors(text, image)


def modalities(model: Genius, data: SplitData, vectors: FrozenVectors, label: str) -> None:
    """Print the share of the first five answers that have the target modality: pool of all tasks, target given."""
    pool = vectors.vectors(data.text, data.image)
    codes, embeddings, shares = model.codes(pool), pool.embedding(np.float16), []
    for mode in MODES:
        searcher = Searcher(model, codes, None if mode == "codes" else embeddings)
        options, right = SearchOptions(k=5, mode=cast(Mode, "fast" if mode == "codes" else mode)), []
        for task in data.tasks:
            target = int(task.task.target_modality)
            for start in range(0, len(task), 256):
                some = slice(start, start + 256)
                asked = vectors.vectors(task.text[some], task.image[some])
                targets = np.full(len(asked), target)
                found = searcher.search(model.fuse(asked), asked.embedding(), targets, options).top.rows
                right.append((data.modality[found] == target)[found >= 0])
        shares.append(f"{mode} {np.concatenate(right).mean():.2%}")
    print(f"{label}, right modality, target given, {len(codes):,} items: {', '.join(shares)}", flush=True)


def shipped(given: argparse.Namespace) -> None:
    """The collection is the pool of the test split itself: what a user indexes."""
    mini = Genius.from_pretrained(given.encoder)
    asked = read_evaluation_split(Benchmark(given.data), "test", given.limit)
    encoded = encode_split(mini, asked, console=quiet())
    vectors = encoded.stage_vectors
    assert isinstance(vectors, FrozenVectors)
    collection = Collection.of(encoded.vectors(asked.data.text, asked.data.image))
    fitted, _ = fit_vectors(collection, OpenedEncoder(mini.encoder, True), settings(given), console=Console())
    for label, model in (("as shipped", mini), ("fitted", fitted)):
        measured(model, asked.data, vectors, label)
        neighbours(model, asked.data, vectors, label)


def neighbours(model: Genius, data: SplitData, vectors: FrozenVectors, label: str) -> None:
    """Print the share of the ten items nearest to each query, of the target modality, that each mode finds."""
    for task in data.tasks:
        pool = vectors.vectors(data.text[task.pool], data.image[task.pool])
        asked = vectors.vectors(task.text, task.image)
        items = Sample(pool.embedding(), pool.modality.astype(np.int64))
        queries = PseudoQueries(asked.embedding(), np.full(len(task), int(task.task.target_modality)), [])
        nearest, codes, shares = exact(items, queries), model.codes(pool), []
        for mode in MODES:
            searcher = Searcher(model, codes, None if mode == "codes" else items.z)
            options = SearchOptions(k=10, mode=cast(Mode, "fast" if mode == "codes" else mode))
            found = searcher.search(model.fuse(asked), queries.z, queries.target, options).top.rows
            share = np.mean([np.isin(right, rows).mean() for right, rows in zip(nearest, found, strict=True)])
            shares.append(f"{mode} {share:.3f}")
        print(f"{label}, nearest ten, {task.task.name}, {len(task.pool):,} items: {', '.join(shares)}", flush=True)


def backbones(given: argparse.Namespace) -> None:
    """Fit to vectors of the train split that one frozen backbone made; measure on the test split."""
    benchmark = Benchmark(given.data)
    asked = read_evaluation_split(benchmark, "test", given.limit)
    texts, images = Vocabulary(), Vocabulary()
    train = read_split([benchmark], "train", texts, images)
    for column, encode, names, own in (
        ("image", image_vectors, images.names, asked.images),
        ("text", text_vectors, texts.names, asked.texts),
    ):
        tasks = [task for task in asked.data.tasks if within(task, column)]
        if not tasks:
            continue
        numbers = np.unique(getattr(train, column))
        learned = encode([names[number] for number in numbers[numbers >= 0][: given.items]])
        opened = OpenedEncoder(PrecomputedEncoder(learned.shape[1]), False)
        collection = Collection.of(one_modality(column, learned))
        fitted, _ = fit_vectors(collection, opened, settings(given), console=Console())

        pool = np.unique(np.concatenate([task.pool for task in tasks]))
        rows = [getattr(asked.data, column)[pool], *(getattr(task, column) for task in tasks)]
        used = np.unique(np.concatenate(rows))
        table = np.zeros((len(own) + 1, learned.shape[1]), np.float32)
        table[used] = normalised(encode([own[number] for number in used]))
        data = SplitData(tasks, asked.data.dids, asked.data.text.copy(), asked.data.image.copy())
        outside = np.setdiff1d(np.arange(len(data.text)), pool)
        data.text[outside] = data.image[outside] = -1
        absent = np.zeros((len(asked.texts if column == "image" else asked.images) + 1, learned.shape[1]), np.float32)
        vectors = FrozenVectors(absent, table) if column == "image" else FrozenVectors(table, absent)
        measured(fitted, data, vectors, f"{column} -> {column}, {learned.shape[1]} dimensions")


def image_vectors(paths: list[str]) -> np.ndarray:
    """(n, d) pooled features of EfficientNet-Lite2."""
    network = EfficientNetLite2(1)
    blocks = [paths[start : start + 64] for start in range(0, len(paths), 64)]
    return np.concatenate(
        [network.features(np.stack([to_pixels(load_image(p)) for p in block]))[1] for block in blocks]
    )


def text_vectors(texts: list[str]) -> np.ndarray:
    """(n, d) mean token states of MiniLM."""
    network = MiniLM(True)
    ids = network.tokenize(texts)
    batches, offsets = network.plan(ids)
    states = np.zeros((int(offsets[-1]), WIDTH), np.float32)
    network.fill(states, offsets, ids, batches)
    return np.add.reduceat(states, offsets[:-1]) / np.diff(offsets)[:, None]


def one_modality(column: str, vectors: np.ndarray) -> Vectors:
    """Vectors of items that are all images, or all texts."""
    absent = np.zeros_like(vectors)
    return Vectors(vectors, absent) if column == "image" else Vectors(absent, vectors)


def within(task: TaskData, modality: str) -> bool:
    """Whether queries and answers of a task are of one modality."""
    return task.task.query_modality.label == modality == task.task.target_modality.label


def size(given: argparse.Namespace) -> None:
    rng = np.random.default_rng(0)
    path = given.out / f"vectors-{given.items}.npy"
    if not path.exists():
        if given.vectors:
            source = np.load(given.vectors, mmap_mode="r")[:-1]  # the last row of a table may be zero
            written = np.lib.format.open_memmap(path, "w+", np.float16, (given.items, source.shape[1]))
            for start in range(0, given.items, 65_536):
                count = min(65_536, given.items - start)
                first, second = (source[np.sort(rng.integers(len(source), size=count))] for _ in range(2))
                written[start : start + count] = normalised(
                    first + 0.5 * rng.random((count, 1)) * second[rng.permutation(count)]
                )
        else:
            centres = rng.standard_normal((1000, given.dim))
            np.save(
                path,
                (centres[rng.integers(1000, size=given.items)] + rng.standard_normal((given.items, given.dim))).astype(
                    np.float16
                ),
            )
    wall, cpu = time.monotonic(), time.process_time()
    collection = Collection.of(np.load(path, mmap_mode="r"))
    opened = OpenedEncoder(PrecomputedEncoder(collection.dim), False)
    fit_vectors(collection, opened, settings(given), console=Console())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"{given.items:,} vectors of {collection.dim} dimensions: {time.monotonic() - wall:.0f} s, "
        f"{time.process_time() - cpu:.0f} s of CPU, {peak:.2f} GB at most"
    )


def settings(given: argparse.Namespace) -> FitSettings:
    return FitSettings(layers=given.layers, steps=given.steps, levels=given.levels, sample=given.sample)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sections = parser.add_subparsers(dest="section", required=True)
    for section in (bench, backbones, shipped, size):
        one = sections.add_parser(section.__name__)
        one.set_defaults(run_section=section)
        if section is size:
            one.add_argument("items", type=int)
            one.add_argument("--dim", type=int, default=256)
            one.add_argument("--vectors", type=Path)
            one.add_argument("--out", type=Path, default=Path("."))
        else:
            one.add_argument("data", type=Path)
            one.add_argument("--limit", type=int)
        if section is bench:
            one.add_argument("--run", type=Path, required=True)
            one.add_argument("--cache", type=Path, required=True)
            one.add_argument("--model", type=Path)
        if section is backbones:
            one.add_argument("--items", type=int, default=10_000)
        if section is shipped:
            one.add_argument("--encoder", default="mini")
        one.add_argument("--layers", type=int, default=0)
        one.add_argument("--levels", type=int)
        one.add_argument("--steps", type=int, default=2000)
        one.add_argument("--sample", type=int, default=FitSettings.sample)
    given = parser.parse_args()
    given.run_section(given)


if __name__ == "__main__":
    main()
