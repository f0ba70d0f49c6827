"""Build: an index from sources of any size, by many workers on Ray.

Ray Data hands the blocks of a plan to a pool of actors. Each actor loads the model, and reads, encodes and writes its
blocks as Lance fragments. The driver records finished blocks and adds all fragments to the index in one commit. If an
actor dies, it is replaced and its block is repeated. If the driver dies, the same command continues the build.
"""

import json
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from lance.fragment import FragmentMetadata

from genius.data.locations import is_url
from genius.data.parts import read_part
from genius.errors import BadIndex, BadItem, BadModel, GeniusError, MissingExtra
from genius.index.checksums import Checksums
from genius.index.creation import creating
from genius.index.folder import open_folder
from genius.index.index import Index
from genius.index.ingest import COMMIT, TAKEN
from genius.index.models import source_of
from genius.index.session import Session
from genius.index.storage import MAX_FIELDS, Header
from genius.index.versions import open_dataset
from genius.model.genius import Genius
from genius.runtime.progress import show_progress
from genius.scale.blocks import full_schema, rewrite_chunk, write_block
from genius.scale.duplicates import find_duplicates
from genius.scale.state import Block, BuildState, Chunk, ChunkKey, Fields
from genius.search.results import AddReport

BLOCKS_PER_WORKER = 8
"""Minimum number of blocks for each worker, so that all end at about the same time."""
MIN_BLOCK, MAX_BLOCK = 128, 8 * COMMIT
"""Minimum and maximum number of items of a block, if it is not given."""
_STARTS = 3  # attempts to start Ray: it gives up after some seconds, which is too early on a busy machine
_STORE_BYTES = 256 << 20  # of Ray's object store on this machine: it only holds block numbers and reports


@dataclass(frozen=True)
class Workers:
    """The actors that encode.

    Attributes:
        count: Number of actors. None: one for each GPU, or else as many as the cluster has cores for.
        cpus: Cores of an actor.
        gpus: GPUs of an actor. None: 1 if the cluster has GPUs, else 0.
        address: Address of a Ray cluster, or "auto". None: RAY_ADDRESS if it is set, else Ray starts on this machine.
    """

    count: int | None = None
    cpus: int = 1
    gpus: float | None = None
    address: str | None = None


def build(
    path: str | os.PathLike[str],
    model: Genius,
    sources: Sequence[str | os.PathLike[str]],
    *,
    embeddings: bool = True,
    store_images: bool = False,
    workers: Workers | None = None,
    block_items: int | None = None,
    progress: bool = False,
) -> tuple[Index, AddReport]:
    """Create an index and add the items of all sources, on Ray. The result equals `Index.create` and `Index.add`.

    The same call continues an interrupted build.

    Args:
        path: A folder that is empty or does not exist, on a file system that all workers share.
        model: The model, loaded from a folder or hub id that all workers can read.
        sources: Folders, files and URLs, see `genius.data.readers.read_items`.
        embeddings: Whether to store the embedding of each item, see `Index.create`.
        store_images: Whether to store a copy of each image file.
        workers: The actors that encode.
        block_items: Maximum number of items of a block. None: derived from the number of items and workers.
        progress: Whether to show a progress bar.

    Returns:
        The index and the report. Items that cannot be read, or whose id is taken, are listed in `bad`.

    Raises:
        BadData: A source has no items or cannot be read.
        BadIndex: There is an index already, or it cannot be written.
        BadModel: The model was not loaded from a folder or hub id.
        GeniusError: No source was given, `path` is a URL, or Ray cannot be started.
    """
    if model.source is None:
        raise BadModel("Workers cannot load this model. Save it with `save_pretrained`, and load it from there.")
    if not sources:
        raise GeniusError("There is nothing to build from. Give at least one folder, file or URL.")
    if is_url(path):
        raise GeniusError(f"Ray's workers write to a file system that they share, not to {path}. Give a folder there.")
    folder, workers = Path(path).absolute(), workers or Workers()
    with creating(folder, model, sources, embeddings, store_images, engine="ray") as index:
        session = Session.open(open_folder(folder), model, None, None, 10.0)
        with session.writing() as snapshot:
            state = BuildState(folder)
            if not len(snapshot):
                driver = _Driver(folder, state, snapshot.header, model, workers)
                driver.plan(sources, block_items)
                with _ray(workers):
                    driver.encode(progress)
                    fields = driver.resolve()
                fragments, checksums = _fragments(state)
                session.adopt(full_schema(snapshot.header, fields), fragments, checksums)
            elif not _is_committed(session, state):
                raise BadIndex(
                    f"{folder} holds items that this build did not add. Choose another folder, or delete this one."
                )
            report = _report(state)
        index.refresh()
    state.remove()
    return index, report


class _Driver:
    """Hands blocks to workers and records their reports."""

    def __init__(self, folder: Path, state: BuildState, header: Header, model: Genius, workers: Workers) -> None:
        self.folder, self.state, self.header, self.model, self.workers = folder, state, header, model, workers

    def plan(self, sources: Sequence[str | os.PathLike[str]], size: int | None) -> None:
        """Make the plan, if there is none."""
        if not self.state.planned:
            self.state.plan(sources, size or self._block_size(sources), self.header)

    def _block_size(self, sources: Sequence[str | os.PathLike[str]]) -> int:
        from genius.data.readers import count_items

        counts = [count_items(source) for source in sources]
        workers = self.workers.count or os.cpu_count() or 1
        if None in counts:
            return COMMIT
        return int(np.clip(sum(filter(None, counts)) // (workers * BLOCKS_PER_WORKER), MIN_BLOCK, MAX_BLOCK))

    def encode(self, progress: bool) -> None:
        """Write all blocks that are not written yet."""
        bad = sum(len(block.bad) for block in self.state.done.values())
        with show_progress("indexing", self.state.items, progress) as advance:
            advance(sum(block.items for block in self.state.done.values()), bad)
            for number, block in self._written(self.state.waiting()):
                self.state.record(number, block)
                bad += len(block.bad)
                advance(block.items, bad)

    def _written(self, numbers: list[int]) -> Iterator[tuple[int, Block]]:
        """Yield blocks as workers finish them, in any order."""
        import ray

        if not numbers:
            return
        resources = ray.cluster_resources()
        gpus = self.workers.gpus if self.workers.gpus is not None else float(resources.get("GPU", 0) > 0)
        most = resources["GPU"] / gpus if gpus else resources.get("CPU", 1) / self.workers.cpus
        pool = min(self.workers.count or max(1, int(most)), len(numbers))
        job = {
            "folder": str(self.folder),
            "model": source_of(self.model),
            "fingerprint": self.model.fingerprint,
            "fields": list(self.state.fields.items()),
            "device": "cuda" if gpus else "cpu",
        }
        blocks = ray.data.from_items([{"block": number} for number in numbers], override_num_blocks=len(numbers))
        done = blocks.map_batches(
            BlockWorker,
            fn_constructor_args=(job,),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=pool),
            num_cpus=self.workers.cpus,
            num_gpus=gpus or None,
        )
        for row in done.iter_rows():
            if row["error"]:
                raise GeniusError(f"{row['error']} Finished blocks are kept: repeat the command to continue.")
            yield row["block"], Block.from_json(row["report"])

    def resolve(self) -> Fields:
        """Make the fragments what `Index.add` would have written: one item for each id, one type for each field.

        Fragments that change are written again. Returns the metadata fields.
        """
        import ray

        fields, dropped = _merge_fields(self.state), find_duplicates(self.folder, self.state)
        columns = [list(field) for field in fields.items()]
        rewrite = ray.remote(_rewrite).options(num_cpus=1, max_retries=-1)
        waiting = {
            rewrite.remote(
                str(self.folder), chunk.to_json(), dropped[key].rows if key in dropped else [], list(fields.items())
            ): key
            for key, chunk in self.state.chunks()
            if key in dropped or chunk.fields != columns
        }
        written: dict[ChunkKey, Chunk | None] = {}
        while waiting:
            (ready,), _ = ray.wait(list(waiting))
            text = ray.get(ready)
            written[waiting.pop(ready)] = Chunk.from_json(text) if text else None
        for number in sorted({number for number, _ in written}):
            block = self.state.done[number]
            keys = [(number, place) for place in range(len(block.chunks))]
            chunks = [written.get(key, chunk) for key, chunk in zip(keys, block.chunks, strict=True)]
            repeats = [dropped[key] for key in keys if key in dropped]
            self.state.record(
                number,
                Block(
                    [chunk for chunk in chunks if chunk is not None],
                    block.bad + [[id, TAKEN] for repeat in repeats for id in repeat.refused],
                    block.unchanged + sum(repeat.equal for repeat in repeats),
                ),
            )
        return fields


class BlockWorker:
    """An actor that writes blocks. Ray creates it on a worker, which loads the model once."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._folder = Path(job["folder"])
        self._fields: Fields = dict(job["fields"])
        self._problem = ""
        try:
            self._model = Genius.from_pretrained(job["model"], device=job["device"])
            if self._model.fingerprint != job["fingerprint"]:
                raise BadModel(f"{job['model']} is not the same model on all machines. Copy it to all of them.")
            self._header = Header.of(open_dataset(open_folder(self._folder), None))
        except GeniusError as error:  # sent to the driver with each block: if raised, Ray would only restart the actor
            self._problem = str(error)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Write one block."""
        number = int(batch["block"][0])
        report, problem = "", self._problem
        if not problem:
            try:
                part = BuildState.read_part(self._folder, number)
                report = write_block(self._folder, self._header, self._model, read_part(part), self._fields).to_json()
            except GeniusError as error:
                problem = str(error)
        return {"block": [number], "report": [report], "error": [problem]}


def _rewrite(folder: str, chunk: str, drop: list[int], fields: list[tuple[str, str]]) -> str:
    """`rewrite_chunk` on a worker, with chunks as JSON; "" if no row is left."""
    root = Path(folder)
    header = Header.of(open_dataset(open_folder(root), None))
    written = rewrite_chunk(root, header, Chunk.from_json(chunk), drop, dict(fields))
    return "" if written is None else written.to_json()


def _merge_fields(state: BuildState) -> Fields:
    """The metadata fields of all chunks. The first chunk that has a field decides its type."""
    fields = dict(state.fields)
    for _, chunk in state.chunks():
        for name, type in chunk.fields:
            if name not in fields and len(fields) < MAX_FIELDS:
                fields[name] = type
    return fields


def _fragments(state: BuildState) -> tuple[list[FragmentMetadata], Checksums]:
    chunks = [chunk for _, chunk in state.chunks()]
    fragments = [FragmentMetadata.from_json(json.dumps(chunk.fragment)) for chunk in chunks]
    return fragments, {path: one for chunk in chunks for path, one in chunk.recorded().items()}


def _is_committed(session: Session, state: BuildState) -> bool:
    """Whether the index holds exactly the rows of this build: its driver died after the commit."""
    ours = {chunk.file.removeprefix("data/") for _, chunk in state.chunks()}
    theirs = {file.path for one in session.snapshot.dataset.get_fragments() for file in one.data_files()}
    return bool(ours) and ours == theirs


def _report(state: BuildState) -> AddReport:
    blocks = [block for _, block in sorted(state.done.items())]
    return AddReport(
        added=sum(chunk.rows for block in blocks for chunk in block.chunks),
        unchanged=sum(block.unchanged for block in blocks),
        bad=[BadItem(id, reason) for block in blocks for id, reason in block.bad],
    )


@contextmanager
def _ray(workers: Workers) -> Iterator[None]:
    """Connect to a cluster, or start Ray on this machine, for the context. A connection of the caller stays open."""
    try:
        import ray
        import ray.data
    except ModuleNotFoundError as error:
        raise MissingExtra("--engine ray", "ray") from error
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False  # ours counts items
    warnings.filterwarnings("ignore", "lance is not fork-safe")  # Ray's workers are new processes
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
    if ray.is_initialized():
        yield
        return
    _connect(workers)
    try:
        yield
    finally:
        ray.shutdown()


def _connect(workers: Workers) -> None:
    import ray

    address = workers.address or os.environ.get("RAY_ADDRESS")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address:
        try:
            ray.init(address, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise GeniusError(f"There is no Ray cluster at {address} ({error}). Start one with: ray start") from error
        return
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    for left in reversed(range(_STARTS)):
        try:
            ray.init(
                "local",
                num_cpus=None if workers.count is None else workers.count * workers.cpus,
                include_dashboard=False,
                object_store_memory=_STORE_BYTES,
                **quiet,
            )
            return
        except Exception as error:  # Ray raises a bare Exception when its processes start too slowly
            ray.shutdown()
            if not left:
                raise GeniusError(
                    f"Ray could not be started on this machine ({error}). Try again, or give the address of a cluster "
                    "with --address."
                ) from error
