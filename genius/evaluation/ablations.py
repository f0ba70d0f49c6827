"""`genius ablate`: every ablation of the paper (ablations.toml) trained and measured, on the vectors of one encoder.

The encoder stays; fusion, codes and decoder are trained anew for every distinct training, by the stages of
`genius.train`, and the rows that share a training share its model. Trainings run side by side, one core each. What is
finished is kept in OUT and not made again:

    vectors/           stage-1 vectors of all texts and images
    quantizers/, decoders/     one folder a training, named by a digest of everything that decides what comes out
    rows/              one measured row each
    ablations.json     all rows, with the paper's figures beside them; for `genius report`
    quantized.npz      test candidates rebuilt from their codes, with and without the contrastive loss

Knows nothing of which ablations there are, or of how they are shown.
"""

import copy
import hashlib
import json
import multiprocessing
import os
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from rich.console import Console
from torch import Tensor

from genius.data.mbeir import Benchmark
from genius.data.splits import SplitData, TaskData, Vocabulary, read_split
from genius.encoders.base import Vectors
from genius.encoders.mini import MiniEncoder
from genius.errors import BadData, GeniusError
from genius.evaluation.encoded_split import EncodedSplit
from genius.evaluation.evaluate import evaluate_encoded
from genius.evaluation.id_schemes import SCHEMES, UNDIVIDED, Scheme, make_scheme
from genius.evaluation.runs import METHODS, SETTINGS, TaskResult, check_names, codebook_use
from genius.model.decoder import Decoder
from genius.model.decoder_runtime import DecoderRuntime
from genius.model.fusion import Fusion
from genius.model.genius import Genius
from genius.model.quantizer import Quantizer
from genius.train.config import QuantizerStageConfig, TrainConfig, check, make_config
from genius.train.data import TrainingData
from genius.train.decoder import DecoderStage
from genius.train.encoder import image_vectors, text_vectors
from genius.train.features import ImageFeatures, image_rows, text_features, text_rows
from genius.train.loop import progress_bar, run_stage, write_atomically
from genius.train.quantizer import FrozenVectors, QuantizerStage

FORMAT = 1
TABLE = Path(__file__).parent / "ablations.toml"
CUT = 5  # the paper's ablations are all Recall@5
IMAGED = 2000  # candidates in quantized.npz
WITH, WITHOUT = "random-start", "no-contrastive"
"""The rows whose rebuilt vectors quantized.npz holds."""
FUSIONS = ("image+text", "random")
DIRECTIONS = ("reference", "harmful", "helpful", "mixed", "unknown")
VALIDATION_QUERIES = 10  # of each task: a training is validated once, for its log alone
BUDGET = 1000
QUIET = Console(quiet=True)


# What there is to do


@dataclass(frozen=True)
class Training:
    """Everything that decides what a training gives, beside data and encoder."""

    config: TrainConfig
    scheme: str
    fusion: str

    @property
    def quantizer(self) -> str:
        """Names the stage 2 of this training, which trainings that differ in the decoder or the IDs alone share."""
        return _digest(self.config.seed, asdict(self.config.quantizer), self.scheme in UNDIVIDED, self.fusion)

    @property
    def decoder(self) -> str:
        return _digest(self.quantizer, asdict(self.config.decoder), self.scheme)


@dataclass(frozen=True)
class Row:
    """One row of a table. `about` is what the report needs to know of it: table, label, the paper's figures ..."""

    name: str
    setting: str
    beam: int
    methods: tuple[str, ...]
    training: Training
    about: dict[str, Any]


@dataclass(frozen=True)
class Size:
    """How large the trainings are. minutes: of one of them with its rows, on one core; limit: queries a task."""

    rows: tuple[Row, ...]
    minutes: float
    limit: int | None


_ABOUT = {"table": "", "label": "", "ours": "", "against": None, "direction": "", "paper": None}
_KEYS = {"name", "setting", "beam", "methods", "scheme", "fusion", "train", "quick", *_ABOUT}


def read_ablations(quick: bool, path: Path = TABLE) -> Size:
    """The rows of an ablation file, in one of its two sizes."""
    try:
        table = tomllib.loads(path.read_text())
        size = dict(table["quick" if quick else "full"])
        minutes, limit = float(size.pop("minutes")), size.pop("limit", None)
        rows = [_row(table["defaults"] | row, size, quick, str(path)) for row in table["row"]]
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise BadData(f"{path} cannot be read as a list of ablations: {error}") from error
    except KeyError as error:
        raise BadData(f"{path}: {error} is missing. Compare with the file that comes with this package.") from error
    names = [row.name for row in rows]
    for row in rows:
        if names.count(row.name) > 1:
            raise BadData(f"{path} has two rows of the name {row.name}. Rename one of them.")
        if row.about["against"] not in (None, *names):
            raise BadData(f"{path}: {row.name} is compared with {row.about['against']}, which is not there.")
    return Size(tuple(rows), minutes, limit)


def _row(values: dict[str, Any], size: dict[str, Any], quick: bool, where: str) -> Row:
    where = f"{where}, row {values['name']}"
    unknown = set(values) - _KEYS
    if unknown:
        raise BadData(f"{where}: there is no setting {sorted(unknown)[0]!r}. Known are: {', '.join(sorted(_KEYS))}.")
    known = {"setting": SETTINGS, "scheme": SCHEMES, "fusion": FUSIONS, "direction": DIRECTIONS}
    for key, allowed in known.items():
        if values[key] not in allowed:
            raise BadData(f"{where}: {key} is {values[key]!r}; it must be one of {', '.join(allowed)}.")
    check_names(values["methods"], METHODS, "method")
    changes = values.get("train", {})
    if quick:
        changes = values.get("quick", changes)
    config = make_config(TrainConfig, _merged(size, changes), where)
    check(config)
    return Row(
        values["name"],
        values["setting"],
        values["beam"],
        tuple(values["methods"]),
        Training(config, values["scheme"], values["fusion"]),
        {key: values.get(key, default) for key, default in _ABOUT.items()},
    )


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Tables of settings, the second winning where both have one."""
    both = {
        key: _merged(base[key], changes[key]) for key in base.keys() & changes.keys() if isinstance(base[key], dict)
    }
    return base | changes | both


def _digest(*facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


# The data that all trainings share


@dataclass(frozen=True)
class Place:
    """Where data lie and results go: all that a worker has to be told."""

    roots: tuple[str, ...]
    out: str
    split: str
    limit: int | None
    seed: int
    derived_prompts: float

    def folder(self, *parts: str) -> Path:
        path = Path(self.out, *parts)
        path.mkdir(parents=True, exist_ok=True)
        return path


@dataclass
class Bench:
    """Data with vectors. data, vectors: for training; test, test_vectors: for measuring."""

    data: TrainingData
    vectors: FrozenVectors
    test: SplitData
    test_vectors: FrozenVectors


class _OneKind(SplitData):
    """A split whose quantizer is not told that items are of different kinds."""

    @property
    def modality(self) -> np.ndarray:
        return np.zeros(len(self.text), dtype=np.int64)


@dataclass(frozen=True)
class _Names:
    texts: list[str]
    images: list[str]


def _read(place: Place) -> tuple[TrainingData, SplitData, _Names]:
    """The training data, the measured split, and what its numbers stand for."""
    data = TrainingData([Path(root) for root in place.roots], place.seed, place.derived_prompts)
    data.val.tasks = [_first(task, VALIDATION_QUERIES) for task in data.val.tasks]
    texts, images = Vocabulary(), Vocabulary()
    test = read_split([Benchmark(Path(root)) for root in place.roots], place.split, texts, images)
    return data, test, _Names(texts.names, images.names)


@lru_cache(maxsize=1)
def _bench(place: Place) -> Bench:
    """Read once by each worker; the vectors stay on disk and are mapped."""
    data, test, _ = _read(place)
    if place.limit is not None:
        test.tasks = [_sample(task, place.limit) for task in test.tasks]
    folder = place.folder("vectors")
    kept = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _VECTORS}
    return Bench(
        data, FrozenVectors(kept["texts"], kept["images"]), test, FrozenVectors(kept["test_texts"], kept["test_images"])
    )


_VECTORS = ("texts", "images", "test_texts", "test_images")


def _first(task: TaskData, count: int) -> TaskData:
    return _take(task, np.arange(min(count, len(task))))


def _sample(task: TaskData, limit: int) -> TaskData:
    return _take(task, np.sort(np.random.default_rng(0).permutation(len(task))[:limit]))


def _take(task: TaskData, rows: np.ndarray) -> TaskData:
    positives = [task.positives[row] for row in rows]
    return TaskData(task.task, [task.qids[r] for r in rows], task.text[rows], task.image[rows], positives, task.pool)


def write_vectors(model: Genius, place: Place, cache: Path | None, console: Console) -> None:
    """Stage-1 vectors of everything, by the model's heads on cached features of the backbones."""
    folder = place.folder("vectors")
    if all((folder / f"{name}.npy").exists() for name in _VECTORS):
        return
    data, _, test = _read(place)
    encode = _encoder(model, cache or place.folder("cache"), console)
    for prefix, names in (("", _Names(data.texts.names, data.images.names)), ("test_", test)):
        texts, images = encode(names)
        _write_array(folder / f"{prefix}texts.npy", texts)
        _write_array(folder / f"{prefix}images.npy", images)


def _encoder(model: Genius, cache: Path, console: Console) -> Callable[[_Names], tuple[np.ndarray, np.ndarray]]:
    """Names -> vectors (texts + 1, d) and (images + 1, d); the last row of each, that of -1, is zero."""
    encoder = model.encoder
    if not isinstance(encoder, MiniEncoder):
        threads = torch.get_num_threads()
        return lambda names: (
            text_rows(encoder, names.texts, cache, threads, console),
            image_rows(encoder, names.images, cache, threads, console),
        )
    heads = encoder.heads

    def encode(names: _Names) -> tuple[np.ndarray, np.ndarray]:
        states = text_features(names.texts, cache, console)
        features = ImageFeatures(names.images, cache, 0, torch.get_num_threads(), console)
        with console.status("vectors"):
            return (
                text_vectors(heads, states, np.arange(len(names.texts))),
                image_vectors(heads, features, np.arange(len(names.images))),
            )

    return encode


def _write_array(path: Path, array: np.ndarray) -> None:
    def write(part: Path) -> None:
        with open(part, "wb") as file:
            np.save(file, array)

    write_atomically(path, write)


# Training


@dataclass
class _Coded:
    """What the decoder stage needs of stage 2, with the IDs of any scheme in the place of the quantizer's."""

    vectors: FrozenVectors
    fusion: Fusion
    config: QuantizerStageConfig
    quantizer: Scheme
    fuse: Callable[[SplitData], Tensor]


@dataclass
class Ablated:
    """A trained model without an encoder: enough to search ready vectors (`genius.evaluation.evaluate.Searchable`)."""

    fusion: Fusion
    scheme: Scheme
    decoder: Decoder
    quantizer: Quantizer | None

    @cached_property
    def decoder_runtime(self) -> DecoderRuntime:
        return DecoderRuntime(self.decoder)

    @torch.inference_mode()
    def fuse(self, vectors: Vectors) -> np.ndarray:
        parts = zip(
            torch.from_numpy(vectors.image).split(4096), torch.from_numpy(vectors.text).split(4096), strict=True
        )
        fused: np.ndarray = torch.cat([self.fusion(image, text) for image, text in parts]).numpy()
        return fused

    def codes(self, vectors: Vectors) -> np.ndarray:
        modality = torch.from_numpy(vectors.modality.astype(np.int64))
        return self.scheme.encode(torch.from_numpy(self.fuse(vectors)), modality).numpy().astype(np.uint16)


def train_quantizer(place: Place, training: Training) -> QuantizerStage:
    """Stage 2, from its checkpoint if there is one; finished, it is only loaded."""
    bench, config = _bench(place), training.config
    data = bench.data
    if training.scheme in UNDIVIDED:
        data = copy.copy(data)
        data.train, data.val = (_OneKind(s.tasks, s.dids, s.text, s.image) for s in (data.train, data.val))
    stage = QuantizerStage(data, bench.vectors, config.quantizer, config.seed)
    if training.fusion == "random":  # the layers that a fresh fusion has at zero
        torch.manual_seed(config.seed)
        cast(Any, stage.fusion.output_layer).reset_parameters()
        cast(Any, stage.fusion.dynamic_scalar[-1]).reset_parameters()
    folder = place.folder("quantizers", training.quantizer)
    if not (folder / "quantizer.safetensors").exists():
        stage.start()
    run_stage(stage, folder, QUIET)
    return stage


def train_decoder(place: Place, training: Training) -> Ablated:
    """Stage 3 on a finished stage 2."""
    bench, config = _bench(place), training.config
    stage = train_quantizer(place, training)
    z, modality = stage.fuse(bench.data.train), torch.from_numpy(bench.data.train.modality)
    scheme = make_scheme(training.scheme, stage.quantizer, z, modality, config.seed)
    coded = _Coded(stage.vectors, stage.fusion, stage.config, scheme, stage.fuse)
    decoded = DecoderStage(bench.data, cast(QuantizerStage, coded), config.decoder, config.seed)
    run_stage(decoded, place.folder("decoders", training.decoder), QUIET)
    return Ablated(stage.fusion, scheme, decoded.decoder, stage.quantizer if training.scheme == "modality" else None)


# Measuring


def measure(place: Place, rows: Sequence[Row]) -> None:
    """Trains what these rows share, and writes those that are not there yet. Equal searches are made once."""
    started = time.monotonic()
    model = train_decoder(place, rows[0].training)
    spent = time.monotonic() - started
    bench = _bench(place)
    vectors = bench.test_vectors
    collection = EncodedSplit(bench.test, np.asarray(vectors.texts), np.asarray(vectors.images), np.empty((0, 0)))
    collection.codes = model.codes(collection.vectors(bench.test.text, bench.test.image))
    use = codebook_use(collection.codes, model.scheme.sizes)
    done: dict[tuple[Any, ...], list[TaskResult]] = {}
    for row in rows:
        started = time.monotonic()
        key = (row.setting, row.beam, row.methods)
        if key not in done:
            done[key] = evaluate_encoded(model, collection, (row.setting,), row.methods, row.beam, BUDGET, QUIET)
        result = {
            "seconds": round(spent + time.monotonic() - started, 1),
            "results": [score.as_dict() for score in done[key]],
            **means(done[key]),
            "codebooks": use,
        }
        path = _row_path(place, row)
        write_atomically(path, lambda p, result=result: p.write_text(json.dumps(result, indent=1) + "\n"))


def means(scores: Sequence[TaskResult]) -> dict[str, Any]:
    """For each method the mean Recall@5 over tasks and its 95 % interval, from those of the tasks."""
    mean, interval = {}, {}
    for method in dict.fromkeys(score.method for score in scores):
        of = [score for score in scores if score.method == method]
        mean[method] = float(np.mean([score.recall[CUT] for score in of]))
        half = [(score.interval[CUT][1] - score.interval[CUT][0]) / 2 for score in of]
        width = float(np.sqrt(np.square(half).sum())) / len(of)  # the tasks' queries are independent samples
        interval[method] = (max(0.0, mean[method] - width), min(100.0, mean[method] + width))
    return {"mean": mean, "interval": interval}


def _row_path(place: Place, row: Row) -> Path:
    facts = (row.training.decoder, row.setting, row.beam, row.methods)
    return place.folder("rows") / f"{row.name}-{_digest(*facts)}.json"


def _write_results(place: Place, quick: bool, rows: Sequence[Row]) -> list[dict[str, Any]]:
    """ablations.json: the rows that are finished."""
    results = []
    for row in rows:
        path = _row_path(place, row)
        if path.exists():
            facts = {"name": row.name, **row.about, "setting": row.setting, "beam": row.beam}
            results.append({**facts, "scheme": row.training.scheme, **json.loads(path.read_text())})
    text = json.dumps({"format": FORMAT, "quick": quick, "rows": results}, indent=1) + "\n"
    write_atomically(place.folder() / "ablations.json", lambda p: p.write_text(text))
    return results


def _write_quantized(place: Place, rows: Sequence[Row]) -> None:
    """quantized.npz, if both of its rows are finished."""
    chosen = {row.name: row for row in rows if row.name in (WITH, WITHOUT) and _row_path(place, row).exists()}
    if len(chosen) < 2:
        return
    bench = _bench(place)
    picked = np.random.default_rng(0).permutation(len(bench.test.text))[:IMAGED]
    modality = torch.from_numpy(bench.test.modality[picked])
    rebuilt = {}
    for name in (WITH, WITHOUT):
        stage = train_quantizer(place, chosen[name].training)
        pair = bench.test_vectors.pair(bench.test.text[picked], bench.test.image[picked])
        with torch.no_grad():
            rebuilt[name] = stage.quantizer.decode(stage.quantizer.encode(stage.fusion(*pair), modality)).numpy()

    arrays: dict[str, Any] = {"with": rebuilt[WITH], "without": rebuilt[WITHOUT], "modality": modality.numpy()}

    def write(part: Path) -> None:
        with open(part, "wb") as file:
            np.savez(file, **arrays)

    write_atomically(place.folder() / "quantized.npz", write)


# All of it


def ablate(
    roots: Sequence[Path],
    out: Path,
    model: str = "mini",
    cache: Path | None = None,
    quick: bool = False,
    rows: Sequence[str] | None = None,
    limit: int | None = None,
    console: Console | None = None,
    split: str = "test",
    workers: int | None = None,
    table: Path = TABLE,
) -> list[dict[str, Any]]:
    """Trains and measures the ablations, skipping what `out` has already; returns the rows of ablations.json.

    rows: names of those wanted, all unless given. limit: at most so many queries a task. workers: trainings at a time.
    """
    console = console or Console()
    size = read_ablations(quick, table)
    wanted = _wanted(size.rows, rows)
    limit = size.limit if limit is None else limit
    if limit is not None and limit < 1:
        raise BadData(f"The limit is {limit} queries a task; it must be at least 1.")
    loaded, config = Genius.from_pretrained(model), size.rows[0].training.config
    resolved = tuple(str(Path(root).resolve()) for root in roots)
    place = Place(resolved, str(out), split, limit, config.seed, config.derived_prompts)
    facts = {"data": list(resolved), "model": loaded.fingerprint, "quick": quick, "split": split, "limit": limit}
    _same_run(place.folder() / "ablate.json", facts)

    missing = [row for row in wanted if not _row_path(place, row).exists()]
    groups = list(_grouped(missing, lambda row: row.training.decoder))
    quantizers = list(_grouped(missing, lambda row: row.training.quantizer))
    workers = min(workers or os.cpu_count() or 1, max(1, len(groups)))
    minutes = len(groups) * size.minutes / workers
    console.print(
        f"{len(wanted)} rows, {len(wanted) - len(missing)} of them finished; {len(groups)} decoders and "
        f"{len(quantizers)} quantizers to train, {workers} at a time: about {minutes:.0f} minutes, "
        "once texts and images have been encoded."
    )
    if missing:
        write_vectors(loaded, place, cache, console)
        jobs: list[Job] = [(train_quantizer, (place, group[0].training)) for group in quantizers]
        _run(jobs, "quantizers", workers, console, lambda: None)
        jobs = [(measure, (place, group)) for group in groups]
        _run(jobs, "decoders and rows", workers, console, lambda: _write_results(place, quick, size.rows))
    with console.status("rebuilding vectors"):
        _write_quantized(place, size.rows)
    return _write_results(place, quick, size.rows)


def _wanted(rows: Sequence[Row], names: Sequence[str] | None) -> list[Row]:
    known = [row.name for row in rows]
    for name in names or ():
        if name not in known:
            raise GeniusError(f"There is no ablation {name!r}. Choose from: {', '.join(known)}.")
    return [row for row in rows if not names or row.name in names]


def _grouped(rows: Sequence[Row], key: Callable[[Row], str]) -> Iterator[list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return iter(groups.values())


def _same_run(path: Path, facts: dict[str, Any]) -> None:
    if path.exists() and json.loads(path.read_text()) != facts:
        raise BadData(
            f"{path.parent} holds ablations with other data, another model or another size (see {path}). "
            "Give another folder with --out, or delete that one to start over."
        )
    write_atomically(path, lambda p: p.write_text(json.dumps(facts, indent=2) + "\n"))


Job = tuple[Callable[..., Any], tuple[Any, ...]]


def _run(
    jobs: Sequence[Job],
    name: str,
    workers: int,
    console: Console,
    after_each: Callable[[], Any],
) -> None:
    """Does all jobs, a core each. A worker is a process of its own: two trainings of one thread beat one of two."""
    with progress_bar(console) as progress:
        bar = progress.add_task(name, total=len(jobs), note="")
        if workers == 1:
            for function, given in jobs:
                function(*given)
                after_each()
                progress.advance(bar)
            return
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(workers, context, initializer=torch.set_num_threads, initargs=(1,))
        try:
            futures: list[Future[Any]] = [pool.submit(_quietly, function, *given) for function, given in jobs]
            for future in as_completed(futures):
                future.result()
                after_each()
                progress.advance(bar)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _quietly(function: Callable[..., Any], *given: Any) -> None:
    """In a worker: what comes out is on disk, and is not sent back."""
    function(*given)
