"""Recall that is kept when only some shards of a collection are asked: a simulation on a benchmark.

    python benchmarks/shards.py BENCH RUN [--limit 500] [--chart docs/shards.png]

BENCH is a benchmark in M-BEIR layout, RUN a run of `genius evaluate` on its test split, which lends its vectors. All
candidates are searched together. A shard holds the items, of every modality, of a group of first semantic codes. Groups
have about the same number of items; codes whose vectors are near each other are in one group.

For each query, the decoder's probability of the first semantic code, summed over the codes of a group and over
modalities, ranks the shards, and the s most probable of S are asked. Each answers with its nearest items of the
modalities that the decoder finds likely, as mode fast with a large budget does; the answers are merged by similarity.
Prints a Markdown table: Recall@5, as a part of that of all shards (mean over tasks), and the share of the items that
the asked shards hold.
"""

import argparse
from pathlib import Path

import numpy as np
from rich.console import Console

from genius import Genius
from genius.data.mbeir import Benchmark
from genius.data.splits import SplitData, TaskData
from genius.encoders.base import Vectors
from genius.evaluation.encoded_split import EncodedSplit, encode_split, read_evaluation_split
from genius.evaluation.runs import headline
from genius.search.searcher import MIN_MODALITY_RATIO

SHARDS = (4, 8, 16, 32)
DEPTH = 1000  # answers kept of a query, of which those of unasked shards are dropped
QUERIES = 256
BLOCK = 8192


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--model", default="mini")
    parser.add_argument("--limit", type=int, help="random queries of each task; default: all")
    parser.add_argument("--chart", type=Path, help="draw the table to this file")
    arguments = parser.parse_args()
    model = Genius.from_pretrained(arguments.model)
    encoded = read_run(model, arguments.bench, arguments.run, arguments.limit)
    rows = simulate(model, encoded)
    Console().print(markdown(rows), soft_wrap=True, markup=False, highlight=False)
    if arguments.chart:
        draw(rows, arguments.chart)


def read_run(model: Genius, bench: Path, run: Path, limit: int | None) -> EncodedSplit:
    """The test split with the vectors of a run. Codes are added to its folder if they are not there yet."""
    split = read_evaluation_split(Benchmark(bench), "test", limit)

    class Stored:
        """A run whose vectors are all there."""

        def vector_folder(self) -> Path:
            return run / "vectors"

    return encode_split(model, split, ("global",), run=Stored())  # type: ignore[arg-type]


def groups(codes: np.ndarray, code_vectors: np.ndarray, shards: int) -> np.ndarray:
    """(codes,) the group of each first semantic code. codes: (n,) those of the items.

    Halves again and again: along the direction in which the code vectors differ most, at half of the items.
    """
    items = np.bincount(codes, minlength=len(code_vectors))
    group = np.zeros(len(items), np.int64)
    for _ in range(shards.bit_length() - 1):
        group *= 2
        for number in np.unique(group):
            mine = np.flatnonzero(group == number)
            vectors = code_vectors[mine] - np.average(code_vectors[mine], axis=0, weights=items[mine] + 1e-6)
            direction = np.linalg.svd(vectors * np.sqrt(items[mine, None] + 1e-6), full_matrices=False)[2][0]
            order = mine[np.argsort(vectors @ direction)]
            before = np.cumsum(items[order]) - items[order] / 2
            group[order[before > items[mine].sum() / 2]] += 1
    return group


def probabilities(model: Genius, queries: Vectors) -> tuple[np.ndarray, np.ndarray]:
    """Of each query: log-probabilities of modalities (q, 3), and probabilities of first semantic codes (q, codes)."""
    fused = model.fuse(queries)
    prefixes = np.tile(np.arange(model.sizes[0])[:, None], (len(fused), 1, 1))
    _, (modality, code, *_) = model.decoder.open(fused, prefixes)
    return modality[:, 0], np.einsum("qm,qmc->qc", np.exp(modality[:, 0]), np.exp(code))


class Answers:
    """The nearest items of the likely modalities for the queries of a task, and the probabilities of codes."""

    def __init__(self, model: Genius, encoded: EncodedSplit, task: TaskData, embeddings: np.ndarray) -> None:
        data, depth = encoded.data, min(DEPTH, len(embeddings))
        self.candidates = np.empty((len(task), depth), np.int64)
        self.allowed = np.empty((len(task), depth), bool)
        self.codes = np.empty((len(task), model.sizes[1]), np.float32)
        for start in range(0, len(task), QUERIES):
            block = slice(start, start + QUERIES)
            queries = encoded.vectors(task.text[block], task.image[block])
            modality, self.codes[block] = probabilities(model, queries)
            likely = modality >= modality.max(axis=1, keepdims=True) + np.log(MIN_MODALITY_RATIO)
            own = (task.image[block, None] >= 0) & (data.image == task.image[block, None])
            allowed = likely[:, data.modality] & ~own
            scores = np.where(allowed, queries.embedding() @ embeddings.T, -np.inf)
            best = np.argpartition(scores, -depth, axis=1)[:, -depth:]
            order = np.argsort(-np.take_along_axis(scores, best, 1), axis=1, kind="stable")
            self.candidates[block] = found = np.take_along_axis(best, order, 1)
            self.allowed[block] = np.take_along_axis(allowed, found, 1)

    def recall(self, task: TaskData, shard: np.ndarray, asked: np.ndarray) -> float:
        """Recall if only some shards are asked. shard: (n,) that of each item; asked: (q, shards) bool."""
        k = headline(task.task.dataset)
        kept = self.allowed & np.take_along_axis(asked, shard[self.candidates], 1)
        order = np.argsort(~kept, axis=1, kind="stable")[:, :k]
        found = np.where(np.take_along_axis(kept, order, 1), np.take_along_axis(self.candidates, order, 1), -1)
        return float(np.mean([np.isin(one, right).any() for one, right in zip(found, task.positives, strict=True)]))


def simulate(model: Genius, encoded: EncodedSplit) -> list[dict[str, float]]:
    """One row for each number of shards and of asked ones."""
    data: SplitData = encoded.data
    every = np.arange(len(data.text))
    blocks = np.array_split(every, -(-len(every) // BLOCK))
    embeddings = np.concatenate([encoded.candidates(block).embedding() for block in blocks])
    answers = [Answers(model, encoded, task, embeddings) for task in data.tasks]
    whole = [
        of_task.recall(task, np.zeros(len(every), np.int64), np.ones((len(task), 1), bool))
        for task, of_task in zip(data.tasks, answers, strict=True)
    ]
    rows = []
    for shards in SHARDS:
        group = groups(encoded.codes[:, 1].astype(np.int64), model.quantizer.codebooks[1], shards)
        shard = group[encoded.codes[:, 1]]
        sizes = np.bincount(shard, minlength=shards) / len(shard)
        count = 1
        while count < shards:
            kept, items = [], []
            for task, of_task, full in zip(data.tasks, answers, whole, strict=True):
                likely = of_task.codes @ (group[:, None] == np.arange(shards))  # (q, shards)
                asked = np.zeros(likely.shape, bool)
                np.put_along_axis(asked, np.argsort(-likely, axis=1)[:, :count], True, 1)
                kept.append(of_task.recall(task, shard, asked) / full)
                items.append((asked @ sizes).mean())
            row = {"shards": shards, "asked": count, "kept": float(np.mean(kept)), "least": min(kept)}
            rows.append(row | {"items": float(np.mean(items)), "largest": float(sizes.max() * shards)})
            count *= 2
    return rows


def markdown(rows: list[dict[str, float]]) -> str:
    lines = [
        "| shards | asked | Recall@5 kept, % | task that loses most, % | items searched, % | largest shard / mean |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        percent = " | ".join(f"{100 * row[name]:.1f}" for name in ("kept", "least", "items"))
        lines.append(f"| {row['shards']} | {row['asked']} | {percent} | {row['largest']:.2f} |")
    return "\n".join(lines)


def draw(rows: list[dict[str, float]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for shards in SHARDS:
        mine = [row for row in rows if row["shards"] == shards]
        share = [*(100 * row["items"] for row in mine), 100]
        axes.plot(share, [*(100 * row["kept"] for row in mine), 100], marker="o", label=f"{shards} shards")
    axes.set(xscale="log", xlabel="items searched, % (1, 2, 4, ... shards asked)", ylabel="Recall@5 kept, %")
    axes.set_xticks([3, 6, 12, 25, 50, 100], ["3", "6", "12", "25", "50", "100"])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
