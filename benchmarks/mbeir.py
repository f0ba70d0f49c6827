"""Evaluation at M-BEIR's size: 5.6 million candidates and 190,000 test queries, with seconds and memory of each part.

    python benchmarks/scale.py OUT --sections mbeir [--candidates 5600000] [--asked 25]

Texts and vectors are generated; their numbers and lengths are those of M-BEIR. Each part runs in a process of its own:

- read: the files of the test split, as `genius evaluate` reads them
- vectors: vectors written to the run folder, as `genius evaluate` does while it encodes
- index: codes assigned, items committed to an index
- open: the index opened, its codes and embeddings read into memory
- search: queries one by one, mode fast
- evaluate: `genius evaluate` over the candidates of all tasks, exact and fast, on some queries of three tasks. Vectors
  and codes are in its run folder already, as after an interrupted run

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
ASKED = (0, 1, 2)  # tasks that are evaluated: from texts to images, texts and pairs


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
    """Run all parts and write OUT/mbeir.json, part by part. An interrupted run continues with the part it was in."""
    about = {"candidates": files.candidates, "model": files.model, "threads": files.threads}
    path = files.out / "mbeir.json"
    before = json.loads(path.read_text()) if path.exists() and (files.folder / "written").exists() else {}
    rows: dict[str, dict[str, float]] = before.pop("parts", {})
    if before != about:
        rows = {}
        shutil.rmtree(files.folder, ignore_errors=True)
        write_benchmark(files)
        (files.folder / "written").touch()
        throughput.write(path, {**about, "parts": rows})
    for name, part in PARTS.items():
        if name in rows:
            continue
        for folder in MADE_BY.get(name, ()):
            shutil.rmtree(files.folder / folder, ignore_errors=True)
        rows[name] = in_process(part, files)
        console.print(f"{name}: {rows[name]}")
        throughput.write(path, {**about, "parts": rows})
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
    """Files in M-BEIR layout: the global pool, queries, and small pools of each task, which are not searched."""
    words = " ".join(throughput.sentences(np.random.default_rng(0), 2000))
    for folder in ("query/test", "cand_pool/local", "cand_pool/global", "instructions"):
        (files.data / folder).mkdir(parents=True)
    kinds = modalities(files.candidates)
    write_lines(files.data / global_pool_path("test"), candidate_lines(np.arange(files.candidates), kinds, words))
    instructions = ["query_modality\tcand_modality\tdataset_name\tdataset_id\tprompt_1\n"]
    for task, (query, target) in TASKS.items():
        name = f"mbeir_{DATASET}_task{task}"
        count = max(files.asked, round(files.candidates * QUERIES_PER_CANDIDATE / len(TASKS)))
        right = np.random.default_rng(task).choice(np.flatnonzero(kinds == target), count)
        pool = candidate_lines(np.unique(right), kinds, words)
        write_lines(files.data / f"cand_pool/local/{name}_cand_pool.jsonl", pool)
        lines = (query_line(task, number, row) for number, row in enumerate(right.tolist()))
        write_lines(files.data / f"query/test/{name}_test.jsonl", lines)
        instructions.append(f"{query.label}\t{target.label}\t{DATASET}\t{task}\tFind it.\n")
    write_lines(files.data / "instructions/query_instructions.tsv", iter(instructions))


def write_lines(path: Path, lines: Iterator[str]) -> None:
    with open(path, "w") as file:
        file.writelines(lines)


def candidate_lines(rows: np.ndarray, kinds: np.ndarray, words: str) -> Iterator[str]:
    for row, kind in zip(rows.tolist(), kinds[rows].tolist(), strict=True):
        length = LENGTHS[row % 100 < 100 * PASSAGES]
        start = row * 7919 % (len(words) - length)
        text = f'"Item {row}: {words[start : start + length]}."' if kind else "null"
        image = f'"mbeir_images/generated_images/{row:08}.jpg"' if kind != 1 else "null"
        label = ("image", "text", "image,text")[kind]
        yield f'{{"did": "1:{row}", "txt": {text}, "img_path": {image}, "modality": "{label}"}}\n'


def query_line(task: int, number: int, right: int) -> str:
    """A query of its own, so that it is encoded on its own."""
    image = f"mbeir_images/generated_queries/{task}-{number}.jpg" if TASKS[task][0] != Modality.TEXT else None
    text = f"Question {task}-{number}" if TASKS[task][0] != Modality.IMAGE else None
    line = {"qid": f"{task}:{number}", "query_txt": text, "query_img_path": image, "pos_cand_list": [f"1:{right}"]}
    return json.dumps({**line, "query_modality": TASKS[task][0].label}) + "\n"


# The parts


def read(files: Files) -> dict[str, float]:
    split = read_evaluation_split(Benchmark(files.data), "test")
    data = split.data
    numbers = {"texts": np.array(len(split.texts)), "images": np.array(len(split.images))}
    numbers |= {"text": data.text, "image": data.image, "digest": np.array(split.digest)}
    tasks = {task.task.task_id: task for task in data.tasks}
    for number in ASKED:
        task = tasks[number]
        numbers |= {f"queries{number}": task.text, f"right{number}": np.concatenate(task.positives)}
    np.savez(files.folder / "numbers.npz", **numbers)  # for the next parts
    return {"candidates": len(data.dids), "queries": sum(map(len, data.tasks))}


class Numbers:
    """What the part `read` has read: numbers of texts and images. Vectors of the run folder go by them."""

    def __init__(self, files: Files) -> None:
        self.stored = np.load(files.folder / "numbers.npz")
        self.text, self.image = self.stored["text"], self.stored["image"]
        self.folder = files.run / "vectors"

    def table(self, name: str, dim: int) -> RowTable:
        return RowTable(self.folder, name, (int(self.stored[name]) + 1, dim), np.float32)

    def items(self, rows: np.ndarray) -> Vectors:
        image, text = (np.load(self.folder / f"{name}.npy", mmap_mode="r") for name in ("images", "texts"))
        return Vectors(image[self.image[rows]], text[self.text[rows]])


def write_vectors(files: Files) -> dict[str, float]:
    """Vectors of all texts and images, in the format of a run folder."""
    model, numbers = files.load_model(), Numbers(files)
    with Progress(disable=True) as progress:
        _, items, queries = throughput.base_vectors(Genius.from_pretrained(files.model), files.out, progress)
    bases = {"images": items.embedding(), "texts": np.concatenate([items.embedding()[:1000], queries.embedding()])}
    numbers.folder.mkdir(parents=True)
    (numbers.folder / "origin.json").write_text(json.dumps([model.fingerprint, str(numbers.stored["digest"])]))
    tables = {}
    for place, (name, base) in enumerate(bases.items()):
        tables[name] = numbers.table(name, model.dim)
        count = len(tables[name].array) - 1
        for start in range(0, count, BLOCK):
            rows = np.arange(start, min(start + BLOCK, count))
            rng = np.random.default_rng([place, start])
            first, second = rng.integers(0, len(base), (2, len(rows)))
            weight = rng.uniform(0.5, 0.9, (len(rows), 1)).astype(np.float32)
            tables[name].put(rows, weight * base[first] + (1 - weight) * base[second])
        tables[name].save()
    for task in ASKED:  # a query is like its right candidate
        wanted = numbers.items(numbers.stored[f"right{task}"]).embedding()
        noise = np.random.default_rng(task).standard_normal(wanted.shape, dtype=np.float32)
        wanted += NOISE * noise / np.linalg.norm(noise, axis=1, keepdims=True)
        tables["texts"].put(numbers.stored[f"queries{task}"], wanted)
    tables["texts"].save()
    return {"vectors": sum(len(made.array) - 1 for made in tables.values())}


def build_index(files: Files) -> dict[str, float]:
    model, numbers = files.load_model(), Numbers(files)
    codes = RowTable(numbers.folder, "codes", (files.candidates, len(model.sizes)), np.uint16)
    assign, spent, done = model.codes, [0.0], [0]

    def assign_and_keep(vectors: Vectors) -> np.ndarray:
        """Codes go to the run folder, too, so that they are assigned once."""
        started = time.process_time()
        found = assign(vectors)
        spent[0] += time.process_time() - started
        codes.put(np.arange(done[0], done[0] + len(found)), found)
        done[0] += len(found)
        return found

    model.codes = assign_and_keep  # type: ignore[method-assign]
    index = Index.create(files.index, model)
    for start in range(0, files.candidates, BLOCK):
        rows = np.arange(start, min(start + BLOCK, files.candidates))
        index.add_vectors([f"1:{row}" for row in rows.tolist()], numbers.items(rows))
    codes.save()
    size = sum(file.stat().st_size for file in files.index.rglob("*") if file.is_file())
    return {"items": len(index), "bytes": size, "codes_processor_seconds": spent[0]}


def open_index(files: Files) -> dict[str, float]:
    return {"items": len(Index.open(files.index, files.load_model()).searcher)}


def search_index(files: Files) -> dict[str, float]:
    index = Index.open(files.index, files.load_model())
    rows = np.random.default_rng(0).integers(0, files.candidates, 8 * files.asked)
    queries, targets = Numbers(files).items(rows), [Modality(kind) for kind in modalities(files.candidates)[rows]]
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
        tasks=[f"{DATASET}_task{task}" for task in ASKED],
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
    "vectors": write_vectors,
    "index": build_index,
    "open": open_index,
    "search": search_index,
    "evaluate": evaluate_run,
}

MADE_BY = {"vectors": ["run"], "index": ["index.genius"]}
"""Folders that a part makes, and makes again if it was interrupted."""


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
