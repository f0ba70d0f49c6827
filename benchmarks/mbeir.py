"""Evaluation at M-BEIR's size: 5.6 million candidates and 190,000 test queries, with seconds and memory of each part.

    python benchmarks/scale.py OUT --sections mbeir [--candidates 5600000] [--asked 25]

Texts and vectors are generated; their numbers and lengths are those of M-BEIR. Each part runs in a process of its own:

- read: the files of the test split, as `genius evaluate` reads them
- index: codes assigned, items committed to an index
- open: the index opened, its codes and embeddings read into memory
- search: queries one by one, mode fast
- evaluate: `genius evaluate` over the candidates of all tasks, exact and fast, on some queries of each task. Vectors
  are in its run folder already, as after an interrupted run

If OUT is a run of `genius evaluate`, vectors are mixtures of its vectors, otherwise of encoded sentences. A query is
the vector of its right candidate with noise, and does not say which modality it asks for: recall tells nothing about
the model. Codes are assigned with one beam.
"""

import json
import multiprocessing
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import throughput
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from genius import Genius, Index
from genius.data.items import Modality
from genius.data.mbeir import TASKS, Benchmark, global_pool_path
from genius.encoders.base import Vectors
from genius.evaluation.encoded_split import read_evaluation_split
from genius.evaluation.evaluate import evaluate
from genius.evaluation.row_table import RowTable
from genius.runtime.threads import set_thread_count

CANDIDATES = 5_600_000
QUERIES_PER_CANDIDATE = 190_000 / CANDIDATES
SHARES = {0: 0.88 / 5.55, 1: 2.45 / 5.55, 2: 2.22 / 5.55}  # of images, texts and pairs in M-BEIR
PASSAGES = 0.45  # share of the texts that are passages of Wikipedia
LENGTHS = (90, 600)  # characters of a caption and of a passage
NOISE = 0.6  # of a query, relative to the length of a vector
BLOCK = 65_536
DATASET = "generated"


@dataclass(frozen=True)
class Files:
    """What the parts share. All of it is in one folder."""

    out: Path
    candidates: int
    asked: int  # queries per task that are searched
    model: str
    threads: int

    @property
    def folder(self) -> Path:
        return self.out / "mbeir"

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def index(self) -> Path:
        return self.folder / "index.genius"

    def load_model(self) -> Genius:
        set_thread_count(self.threads)
        model = Genius.from_pretrained(self.model)
        model.code_beams = 1
        return model


def measure(files: Files, console: Console) -> None:
    """Run all parts and write OUT/mbeir.json, part by part."""
    if files.folder.exists():
        shutil.rmtree(files.folder)
    write_benchmark(files)
    in_process(write_vectors, files)
    rows: dict[str, dict[str, float]] = {}
    for name, part in PARTS.items():
        rows[name] = in_process(part, files)
        console.print(f"{name}: {rows[name]}")
        about = {"candidates": files.candidates, "model": files.model, "threads": files.threads, "parts": rows}
        throughput.write(files.out / "mbeir.json", about)
        if name == "search":
            shutil.rmtree(files.index)  # disk for the embeddings of the next part
    shutil.rmtree(files.folder)
    console.print(table(rows))


# Generated data


def modalities(count: int) -> np.ndarray:
    """(candidates,) values of Modality, in the order of the pool: images, texts, pairs."""
    edges = np.cumsum([round(count * SHARES[0]), round(count * SHARES[1])])
    return np.searchsorted(edges, np.arange(count), side="right")


def write_benchmark(files: Files) -> None:
    """Files in M-BEIR layout: the global pool, a pool of each task, queries."""
    of_modality = [np.flatnonzero(modalities(files.candidates) == modality) for modality in range(3)]
    words = " ".join(throughput.sentences(np.random.default_rng(0), 2000))
    for folder in ("query/test", "cand_pool/local", "cand_pool/global", "instructions"):
        (files.data / folder).mkdir(parents=True)
    by_task = dict.fromkeys(TASKS, np.empty(0, np.int64))
    for modality, rows in enumerate(of_modality):  # each candidate is in the pool of one task
        tasks = [task for task, (_, target) in TASKS.items() if target == modality]
        by_task |= dict(zip(tasks, np.array_split(rows, len(tasks)), strict=True))
    write_lines(files.data / global_pool_path("test"), candidate_lines(np.arange(files.candidates), files, words))
    instructions = ["query_modality\tcand_modality\tdataset_name\tdataset_id\tprompt_1\n"]
    for task, rows in by_task.items():
        query, target = TASKS[task]
        name = f"mbeir_{DATASET}_task{task}"
        write_lines(files.data / f"cand_pool/local/{name}_cand_pool.jsonl", candidate_lines(rows, files, words))
        count = max(files.asked, round(files.candidates * QUERIES_PER_CANDIDATE / len(TASKS)))
        right = np.random.default_rng(task).choice(rows, count)
        lines = (query_line(task, number, row) for number, row in enumerate(right.tolist()))
        write_lines(files.data / f"query/test/{name}_test.jsonl", lines)
        instructions.append(f"{query.label}\t{target.label}\t{DATASET}\t{task}\tFind it.\n")
    write_lines(files.data / "instructions/query_instructions.tsv", instructions)


def write_lines(path: Path, lines: "Iterator[str] | list[str]") -> None:
    with open(path, "w") as file:
        file.writelines(lines)


def candidate_lines(rows: np.ndarray, files: Files, words: str) -> Iterator[str]:
    kinds = modalities(files.candidates)[rows]
    for row, kind in zip(rows.tolist(), kinds.tolist(), strict=True):
        length = LENGTHS[row % 100 < 100 * PASSAGES]
        start = row * 7919 % (len(words) - length)
        text = f"Item {row}: {words[start : start + length]}." if kind else None
        image = f"mbeir_images/generated_images/{row:08}.jpg" if kind != 1 else None
        label = ("image", "text", "image,text")[kind]
        yield json.dumps({"did": f"1:{row}", "txt": text, "img_path": image, "modality": label}) + "\n"


def query_line(task: int, number: int, right: int) -> str:
    """A text, or an image with a text: its own number, so that it is encoded on its own."""
    image = f"mbeir_images/generated_queries/{task}-{number}.jpg" if TASKS[task][0] != 1 else None
    text = f"Question {task}-{number}" if TASKS[task][0] != 0 else None
    line = {"qid": f"{task}:{number}", "query_txt": text, "query_img_path": image, "pos_cand_list": [f"1:{right}"]}
    return json.dumps({**line, "query_modality": TASKS[task][0].label}) + "\n"


def write_vectors(files: Files) -> dict[str, float]:
    """Fill the run folder with vectors of all texts and images, so that nothing is left to encode."""
    model = files.load_model()
    with Progress(disable=True) as progress:
        _, items, queries = throughput.base_vectors(Genius.from_pretrained(files.model), files.out, progress)
    bases = {"images": items.embedding(), "texts": np.concatenate([items.embedding()[:1000], queries.embedding()])}
    split = read_evaluation_split(Benchmark(files.data), "test")
    folder = files.run / "vectors"
    folder.mkdir(parents=True)
    throughput.write(folder / "origin.json", [model.fingerprint, split.digest])  # type: ignore[arg-type]
    tables = {}
    for number, (name, base) in enumerate(bases.items()):
        count = len(getattr(split, name))
        tables[name] = RowTable(folder, name, (count + 1, model.dim), np.float32)
        for start in range(0, count, BLOCK):
            rows = np.arange(start, min(start + BLOCK, count))
            rng = np.random.default_rng([number, start])
            first, second = rng.integers(0, len(base), (2, len(rows)))
            weight = rng.uniform(0.5, 0.9, len(rows)).astype(np.float32)
            tables[name].put(rows, throughput.mixture(base, first, second, weight))
    texts, images = tables["texts"], tables["images"]
    for task in split.data.tasks:  # a query is like its right candidate
        right = np.concatenate(task.positives)
        wanted = images.array[split.data.image[right]] + texts.array[split.data.text[right]]
        wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
        noise = np.random.default_rng(task.task.task_id).standard_normal(wanted.shape, dtype=np.float32)
        wanted += NOISE * noise / np.linalg.norm(noise, axis=1, keepdims=True)
        texts.put(task.text, wanted)
        shown = task.image >= 0
        images.put(task.image[shown], wanted[shown])
    for made in tables.values():
        made.save()
    return {}


# The parts


def read(files: Files) -> dict[str, float]:
    split = read_evaluation_split(Benchmark(files.data), "test")
    return {"candidates": len(split.data.dids), "queries": sum(map(len, split.data.tasks))}


def stored(files: Files, name: str) -> np.ndarray:
    array: np.ndarray = np.load(files.run / f"vectors/{name}.npy", mmap_mode="r")
    return array


def item_block(files: Files, rows: np.ndarray) -> Vectors:
    """Vectors of candidates: numbers of texts and images follow the order of the pool."""
    kinds = modalities(files.candidates)
    image = np.where(kinds == 1, -1, np.cumsum(kinds != 1) - 1)[rows]
    text = np.where(kinds == 0, -1, np.cumsum(kinds != 0) - 1)[rows]
    return Vectors(stored(files, "images")[image], stored(files, "texts")[text])


def build_index(files: Files) -> dict[str, float]:
    index = Index.create(files.index, files.load_model())
    for start in range(0, files.candidates, BLOCK):
        rows = np.arange(start, min(start + BLOCK, files.candidates))
        index.add_vectors([f"1:{row}" for row in rows.tolist()], item_block(files, rows))
    return {"items": len(index), "bytes": sum(file.stat().st_size for file in files.index.rglob("*") if file.is_file())}


def open_index(files: Files) -> dict[str, float]:
    return {"items": len(Index.open(files.index, files.load_model()).searcher)}


def search_index(files: Files) -> dict[str, float]:
    index = Index.open(files.index, files.load_model())
    rows = np.random.default_rng(0).integers(0, files.candidates, 8 * files.asked)
    queries, targets = item_block(files, rows), [Modality(kind) for kind in modalities(files.candidates)[rows]]
    index.search_vectors(queries[:1])  # reads codes and embeddings
    started = time.perf_counter()
    each = range(len(rows))
    found = [index.search_vectors(queries[row : row + 1], targets[row : row + 1]).rows[0] for row in each]
    spent = time.perf_counter() - started
    ids = [index.ids(of_query[:1])[0] for of_query in found]
    right = np.mean([id == f"1:{row}" for id, row in zip(ids, rows.tolist(), strict=True)])
    return {"queries": len(rows), "milliseconds_a_query": 1000 * spent / len(rows), "first_is_right": float(right)}


def evaluate_run(files: Files) -> dict[str, float]:
    results = evaluate(
        files.load_model(),
        Benchmark(files.data),
        settings=("global",),
        methods=("exact", "fast"),
        limit=files.asked,
        out=files.run,
        console=Console(quiet=True),
    )
    found: dict[str, float] = {}
    for method in ("exact", "fast"):
        mine = [result for result in results if result.method == method]
        found[f"{method}_recall_5"] = float(np.mean([result.recall[5] for result in mine]))
        found[f"{method}_milliseconds_a_query"] = 1000 * float(np.mean([result.seconds for result in mine]))
    return found


PARTS: dict[str, Callable[[Files], dict[str, float]]] = {
    "read": read,
    "index": build_index,
    "open": open_index,
    "search": search_index,
    "evaluate": evaluate_run,
}


# Memory


def in_process(part: Callable[[Files], dict[str, float]], files: Files) -> dict[str, float]:
    """Run a part in a process of its own; add its seconds and its peak memory in bytes to its results."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measured, args=(part, files, sender))
    process.start()
    sender.close()
    try:
        result: dict[str, float] = receiver.recv()
    except EOFError as error:
        raise RuntimeError(f"The part {part.__name__} failed.") from error
    finally:
        process.join()
    return result


def _measured(
    part: Callable[[Files], dict[str, float]], files: Files, sender: "multiprocessing.connection.Connection"
) -> None:
    peak, done = [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            peak[0] = max(peak[0], status("RssAnon"))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    wall, worked = time.perf_counter(), time.process_time()
    result = part(files)
    seconds = {"seconds": time.perf_counter() - wall, "processor_seconds": time.process_time() - worked}
    done.set()
    watcher.join()
    sender.send({**seconds, "peak_memory": peak[0], "peak_with_mapped_files": status("VmHWM"), **result})


def status(field: str) -> int:
    """A value of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def table(rows: dict[str, dict[str, float]]) -> Table:
    result = Table(title="Parts", title_justify="left")
    for name in ("part", "seconds", "processor seconds", "peak memory, GB", "with mapped files, GB"):
        result.add_column(name, justify="left" if name == "part" else "right")
    for name, row in rows.items():
        numbers = f"{row['seconds']:,.0f}", f"{row['processor_seconds']:,.0f}"
        result.add_row(name, *numbers, *(f"{row[key] / 1e9:.1f}" for key in ("peak_memory", "peak_with_mapped_files")))
    return result
