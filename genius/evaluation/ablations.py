"""`genius ablate`: train and measure every ablation of the paper on the vectors of one encoder.

Fusion, codes and decoder are trained for every distinct training of ablations.toml, one core each. Rows with the same
training share its model. OUT keeps finished parts, which are not made again:

    vectors/                 stage-1 vectors of all texts and images
    quantizers/, decoders/   one folder per training, named by a digest of its settings, seed and sizes included
    rows/SIZE/               the measured rows of a size, one file per seed
    ablations.json           all rows beside the paper's results, for `genius report`
    quantized.npz            test candidates rebuilt from their codes, with and without the contrastive loss
"""

import copy
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from rich.console import Console

from genius.data.mbeir import Benchmark
from genius.data.splits import SplitData, Vocabulary, read_split
from genius.encoders.base import Vectors
from genius.encoders.mini import MiniEncoder
from genius.errors import BadData, GeniusError
from genius.evaluation.ablation_jobs import AblationJob, count_queries, estimated_seconds, grouped
from genius.evaluation.ablation_results import RowFolder, SearchedRow
from genius.evaluation.ablation_rows import MAX_SEEDS, AblationTraining, check_seeds, read_ablations
from genius.evaluation.encoded_split import EncodedSplit, sampled_rows
from genius.evaluation.evaluate import evaluate_encoded
from genius.evaluation.id_schemes import SINGLE_MODALITY, make_scheme
from genius.evaluation.runs import check_names, codebook_use
from genius.evaluation.saved_results import ABLATIONS_FORMAT
from genius.model.decoder_runtime import DecoderRuntime
from genius.model.fusion_runtime import FusionRuntime
from genius.model.genius import Genius
from genius.model.quantizer_runtime import QuantizerRuntime
from genius.networks.heads import Heads
from genius.runtime.threads import set_thread_count, thread_count
from genius.runtime.wording import counted
from genius.search.options import SearchOptions
from genius.train.batches import tensor_pair
from genius.train.compute import CPU, Compute, choose_precision
from genius.train.config import TrainConfig, check
from genius.train.data import FrozenVectors, TrainingData
from genius.train.decoder import DecoderStage, IdScheme
from genius.train.encoder import image_vectors, text_vectors
from genius.train.features import ImageFeatures, image_rows, text_features, text_rows
from genius.train.files import check_same_run, record_run, write_arrays
from genius.train.loop import progress_bar, run_stage
from genius.train.quantizer import QuantizerStage

SPLIT = "test"
REBUILT = 2000  # candidates in quantized.npz
WITH, WITHOUT = "random-start", "no-contrastive"
"""The rows of quantized.npz."""
VALIDATION_QUERIES = 10  # per task: a training is validated once, for its log
_PARTS = ("vectors", "quantizers", "decoders", "rows")  # folders of what has been computed
QUIET = Console(quiet=True)


def ablate(
    roots: Sequence[Path],
    out: Path,
    model: str = "mini",
    cache: Path | None = None,
    tables: Sequence[str] | None = None,
    size: str | None = None,
    seeds: int | None = None,
    rows: Sequence[str] | None = None,
    limit: int | None = None,
    console: Console | None = None,
    workers: int | None = None,
    precision: str = "auto",
) -> list[dict[str, Any]]:
    """Train and measure the ablations that `out` does not hold yet.

    Args:
        roots: Benchmarks in M-BEIR layout.
        out: Folder of trainings and results.
        model: Model whose stage-1 encoder is used.
        cache: Folder of cached features. Default: inside `out`.
        tables: Names of tables. Default: all.
        size: "quick", "medium", "full" or "paper". Default: each table in its own size.
        seeds: Trainings of each row. Default: as many as its size has.
        rows: Names of rows of these tables. Default: all.
        limit: Maximum number of queries per task. Default: that of the size.
        console: Where progress is shown.
        workers: Trainings at a time. Default: one for each usable core, or `OMP_NUM_THREADS`.
        precision: Of the matrix products in training, as in `TrainConfig`.

    Returns:
        The rows of ablations.json: all that `out` holds, in all sizes.

    Raises:
        GeniusError: An argument is not valid, or `out` holds other ablations.
    """
    console = console or Console()
    planned = read_ablations(size, tables)
    known = [row.name for row in planned]
    check_names(rows or known, known, "ablation")
    check_seeds(seeds)
    check(TrainConfig(precision=precision))
    if limit is not None and limit < 1:
        raise BadData(f"The limit is {limit} queries per task; it must be at least 1.")
    jobs = [  # one seed after the other: all rows have a first result early
        AblationJob(row, seed)
        for seed in range(MAX_SEEDS)
        for row in planned
        if row.name in (rows or known) and seed < (row.size.seeds if seeds is None else seeds)
    ]
    loaded, config = Genius.from_pretrained(model), planned[0].training.config
    resolved = tuple(str(Path(root).resolve()) for root in roots)
    run = AblationRun(resolved, str(out), limit, config.seed, config.derived_prompts, precision)
    facts = {
        "format": ABLATIONS_FORMAT,
        "data": list(resolved),
        "model": loaded.fingerprint,
        "split": SPLIT,
        "limit": limit,
        "precision": precision,
        "derived_prompts": config.derived_prompts,  # of the training queries, whose vectors are shared
    }
    begun = any(path.is_file() for name in _PARTS for path in Path(out, name).rglob("*"))
    what = "ablations with other data, another model, another limit, another precision or other prompts"
    check_same_run(Path(out, "ablate.json"), facts, out, what, begun)
    for root in roots:
        Benchmark(root).tasks("train")
    record_run(Path(out, "ablate.json"), facts)

    missing = [job for job in jobs if not run.rows.path(job.row, job.seed).exists()]
    groups = grouped(missing, lambda job: f"{job.row.size.name} {job.training.decoder}")
    quantizers = grouped(missing, lambda job: job.training.quantizer)
    workers = min(workers or thread_count(), max(1, len(groups)))
    hours = estimated_seconds(quantizers, groups, count_queries(resolved)) / workers / 3600
    time_needed = f"{hours:,.1f} hours" if hours >= 1 else counted(max(1, round(60 * hours)), "minute")
    console.print(
        f"{counted(len(jobs), 'training')} of {counted(len({job.row.name for job in jobs}), 'row')}, "
        f"{len(jobs) - len(missing)} of them finished; "
        f"{counted(len(groups), 'decoder')} and {counted(len(quantizers), 'quantizer')} to train, "
        f"{workers} at a time: about {time_needed}, after texts and images have been encoded."
    )
    if missing:
        write_vectors(loaded, run, cache, console)
        stage2 = [(train_quantizer, (run, group[0].training)) for group in quantizers]
        _work(stage2, "quantizers", workers, console, lambda: None)
        stage3 = [(measure, (run, group)) for group in groups]
        _work(stage3, "decoders and rows", workers, console, lambda: run.rows.write_results(run.results))
    with console.status("rebuilding vectors"):
        _write_quantized(run, jobs)
    return run.rows.write_results(run.results)


def _work(
    calls: Sequence[tuple[Callable[..., object], tuple[Any, ...]]],
    name: str,
    workers: int,
    console: Console,
    after_each: Callable[[], object],
) -> None:
    """Make all calls in worker processes of one thread each: two trainings on one core each beat one on two."""
    with progress_bar(console) as progress:
        bar = progress.add_task(name, total=len(calls), note="")
        if workers == 1:
            for function, arguments in calls:
                function(*arguments)
                after_each()
                progress.advance(bar)
            return
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(workers, context, initializer=_start_worker)
        try:
            futures: list[Future[None]] = [pool.submit(_call, *call) for call in calls]
            for future in as_completed(futures):
                future.result()
                after_each()
                progress.advance(bar)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _start_worker() -> None:
    """One thread for computing, and an end as soon as the main process has ended: a new run may train the same."""
    torch.set_num_threads(1)
    set_thread_count(1)
    threading.Thread(target=_end_with_main_process, daemon=True).start()


def _end_with_main_process() -> None:
    main = multiprocessing.parent_process()
    assert main is not None
    main.join()
    os._exit(1)


def _call(function: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    """In a worker: the result is on disk and is not sent back."""
    function(*arguments)


# Data that all trainings share


@dataclass(frozen=True)
class AblationRun:
    """Where the data are and the results go. Small: it is sent to every worker."""

    roots: tuple[str, ...]
    out: str
    limit: int | None
    seed: int  # of the prompts; all trainings share the data
    derived_prompts: float
    precision: str

    @property
    def compute(self) -> Compute:
        """Trainings run on the CPU, one core each."""
        return Compute(CPU.device, choose_precision(self.precision, CPU.device))

    def folder(self, *parts: str) -> Path:
        """A folder inside `out`, created if it does not exist."""
        path = Path(self.out, *parts)
        path.mkdir(parents=True, exist_ok=True)
        return path

    @property
    def rows(self) -> RowFolder:
        """The measured rows."""
        return RowFolder(Path(self.out, "rows"), self.limit)

    @property
    def results(self) -> Path:
        """The file with all results."""
        return Path(self.out, "ablations.json")


@dataclass
class AblationData:
    """The data of all trainings, and the split to measure, both with vectors."""

    data: TrainingData
    vectors: FrozenVectors
    test: SplitData
    test_vectors: FrozenVectors


class _SingleModality(SplitData):
    """A split that hides the modalities of its items from the quantizer."""

    @property
    def modality(self) -> np.ndarray:
        return np.zeros(len(self.text), dtype=np.int64)


def _read(run: AblationRun) -> tuple[TrainingData, SplitData, Vocabulary, Vocabulary]:
    """The training data, the split to measure, and its texts and images."""
    data = TrainingData([Path(root) for root in run.roots], run.seed, run.derived_prompts)
    data.val.tasks = [task.select(np.arange(min(VALIDATION_QUERIES, len(task)))) for task in data.val.tasks]
    texts, images = Vocabulary(), Vocabulary()
    test = read_split([Benchmark(Path(root)) for root in run.roots], SPLIT, texts, images)
    return data, test, texts, images


@lru_cache(maxsize=1)
def _data(run: AblationRun) -> AblationData:
    """Read once per worker. The vectors are memory-mapped."""
    data, test, _, _ = _read(run)
    texts, images, test_texts, test_images = (
        np.load(run.folder("vectors") / f"{name}.npy", mmap_mode="r") for name in _VECTORS
    )
    return AblationData(data, FrozenVectors(texts, images), test, FrozenVectors(test_texts, test_images))


_VECTORS = ("texts", "images", "test_texts", "test_images")


def write_vectors(model: Genius, run: AblationRun, cache: Path | None, console: Console) -> None:
    """Write the stage-1 vectors of all texts and images."""
    folder, cache = run.folder("vectors"), cache or run.folder("cache")
    if all((folder / f"{name}.npy").exists() for name in _VECTORS):
        return
    data, _, texts, images = _read(run)
    for prefix, of_texts, of_images in (("", data.texts, data.images), ("test_", texts, images)):
        vectors = encode_all(model, of_texts.names, of_images.names, cache, console)
        write_arrays(folder / f"{prefix}texts.npy", vectors.texts)
        write_arrays(folder / f"{prefix}images.npy", vectors.images)


def encode_all(model: Genius, texts: list[str], images: list[str], cache: Path, console: Console) -> FrozenVectors:
    """Stage-1 vectors of texts and images, from cached features of the backbones where the encoder has them."""
    encoder, threads = model.encoder, thread_count()
    if encoder.joint:
        raise GeniusError("Ablations need an encoder that encodes texts and images separately. Give another --model.")
    if not isinstance(encoder, MiniEncoder):
        rows = text_rows(encoder, texts, cache, threads, console)
        return FrozenVectors(rows, image_rows(encoder, images, cache, threads, console))
    states = text_features(texts, cache, encoder.heads_config.int8_text, console)
    features = ImageFeatures(images, cache, 0, threads, console)
    with console.status("vectors"):
        heads = Heads.of(encoder)
        rows = text_vectors(heads, states, np.arange(len(texts)))
        return FrozenVectors(rows, image_vectors(heads, features, np.arange(len(images))))


# Training


@dataclass
class AblatedModel:
    """A trained model without an encoder. It searches ready vectors: see `VectorSearchModel`."""

    fusion: FusionRuntime
    scheme: IdScheme
    decoder: DecoderRuntime
    quantizer: QuantizerRuntime | None
    code_beams: int  # of the codes of items, in training and here

    def fuse(self, vectors: Vectors) -> np.ndarray:
        """Fuse image and text vectors: (n, d) float32."""
        return self.fusion(vectors.image, vectors.text)

    def codes(self, vectors: Vectors) -> np.ndarray:
        """IDs (n, levels) uint16."""
        modality = torch.from_numpy(vectors.modality.astype(np.int64))
        codes = self.scheme.encode(torch.from_numpy(self.fuse(vectors)), modality, self.code_beams)
        return codes.numpy().astype(np.uint16)


def train_quantizer(run: AblationRun, training: AblationTraining) -> QuantizerStage:
    """Train stage 2, or load it if it is finished."""
    shared, config = _data(run), training.config
    data = shared.data
    if training.scheme in SINGLE_MODALITY:  # its first code is the same for all items, and never learned
        config = replace(config, quantizer=replace(config.quantizer, first_code="modality"))
        data = copy.copy(data)
        data.train, data.val = (_SingleModality(s.tasks, s.dids, s.text, s.image) for s in (data.train, data.val))
    stage = QuantizerStage(data, shared.vectors, config.quantizer, config.seed, run.compute)
    if training.fusion == "random":  # a new fusion has these two layers at zero
        torch.manual_seed(config.seed)
        cast(Any, stage.fusion.output_layer).reset_parameters()
        cast(Any, stage.fusion.dynamic_scalar[-1]).reset_parameters()
    folder = run.folder("quantizers", training.quantizer)
    if not (folder / "quantizer.safetensors").exists():
        stage.start()
    run_stage(stage, folder, QUIET)
    return stage


def train_decoder(run: AblationRun, training: AblationTraining) -> AblatedModel:
    """Train stage 3 on a finished stage 2, or load it if it is finished."""
    data, config = _data(run).data, training.config
    stage = train_quantizer(run, training)
    z, modality = stage.fuse(data.train), torch.from_numpy(data.train.modality)
    scheme: IdScheme = stage.scheme
    if training.scheme != "modality":
        scheme = make_scheme(training.scheme, stage.quantizer, z, modality, config.seed)
    decoded = DecoderStage(
        data, stage.vectors, stage.fusion, scheme, config.decoder, config.seed, config.quantizer.code_beams, run.compute
    )
    run_stage(decoded, run.folder("decoders", training.decoder), QUIET)
    quantizer = stage.quantizer.runtime() if training.scheme == "modality" else None
    decoder = decoded.decoder.runtime(int8=True)
    return AblatedModel(stage.fusion.runtime(), scheme, decoder, quantizer, config.quantizer.code_beams)


# Measuring


def measure(run: AblationRun, jobs: Sequence[AblationJob]) -> None:
    """Train the model that these jobs share, and write their results. Rows that search alike share the search."""
    started = time.monotonic()
    model = train_decoder(run, jobs[0].training)
    spent = time.monotonic() - started
    limit = run.rows.limit_of(jobs[0].row)
    test, vectors = copy.copy(_data(run).test), _data(run).test_vectors
    if limit is not None:
        test.tasks = [task.select(sampled_rows(task, limit)) for task in test.tasks]
    encoded = EncodedSplit(test, vectors, np.empty((0, 0)))
    encoded.codes = model.codes(encoded.vectors(test.text, test.image))
    use = codebook_use(encoded.codes, model.scheme.sizes)
    done: dict[tuple[Any, ...], SearchedRow] = {}
    for job in jobs:
        started, row = time.monotonic(), job.row
        search = done.get(row.search)
        if search is None:
            search = done[row.search] = SearchedRow()
            options = (row.methods, row.beam, SearchOptions.budget)
            evaluate_encoded(model, encoded, (row.setting,), *options, QUIET, search, row.size.protocol)
        seconds = round(spent + time.monotonic() - started, 1)
        run.rows.write(row, job.seed, search, {"seconds": seconds, "codebooks": use})


def _write_quantized(run: AblationRun, jobs: Sequence[AblationJob]) -> None:
    """Write quantized.npz if both of its rows are among the jobs and finished, with the first seed."""
    chosen = {job.row.name: job for job in jobs if job.row.name in (WITH, WITHOUT) and job.seed == 0}
    if len(chosen) < 2 or not all(run.rows.path(job.row, 0).exists() for job in chosen.values()):
        return
    test, vectors = _data(run).test, _data(run).test_vectors
    picked = np.random.default_rng(0).permutation(len(test.text))[:REBUILT]
    modality = torch.from_numpy(test.modality[picked])
    rebuilt = {}
    for name in (WITH, WITHOUT):
        stage = train_quantizer(run, chosen[name].training)
        pair = tensor_pair(vectors, test.text[picked], test.image[picked])
        with torch.no_grad():
            rebuilt[name] = stage.quantizer.decode(stage.quantizer.encode(stage.fusion(*pair), modality)).numpy()
    arrays = {"with": rebuilt[WITH], "without": rebuilt[WITHOUT], "modality": modality.numpy()}
    write_arrays(run.folder() / "quantized.npz", arrays)
