"""Build: an index from sources of any size, by many workers on Ray.

Ray Data hands the blocks of a plan to a pool of actors. Each actor has the model; it reads, encodes and writes its
blocks as Lance fragments. The driver records finished blocks, and makes all fragments part of the index in one commit.
A worker that dies is replaced and its block is done again. When the driver dies, the same command goes on where it was.
"""

import json
import logging
import os
import warnings
from collections import defaultdict
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
from genius.index.ingest import COMMIT, COMPARED, TAKEN
from genius.index.models import source_of
from genius.index.session import Session
from genius.index.storage import MAX_FIELDS, Header
from genius.index.versions import open_dataset
from genius.model.genius import Genius
from genius.runtime.progress import show_progress
from genius.scale.blocks import full_schema, read_chunk, rewrite_chunk, write_block
from genius.scale.state import Block, BuildState, Chunk, Fields
from genius.search.results import AddReport

BLOCKS_PER_WORKER = 8
"""Blocks that a worker should get at least, so that all end at about the same time."""
MIN_BLOCK, MAX_BLOCK = 128, 8 * COMMIT
"""Items of a block."""
_STARTS = 3  # attempts to start Ray: it gives up after some seconds, which a busy machine may need
_STORE_BYTES = 256 << 20  # of Ray's object store on this machine: only numbers of blocks and reports go through it


@dataclass(frozen=True)
class Workers:
    """The actors that encode.

    Attributes:
        count: Number of actors. By default one for each GPU, or else as many as the cluster has cores for.
        cpus: Cores of an actor.
        gpus: GPUs of an actor; by default 1 if the cluster has GPUs.
        address: Address of a Ray cluster, or "auto". By default RAY_ADDRESS, or else Ray is started on this machine.
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
    """Create an index and add the items of all sources, on Ray. The result is that of `Index.create` and `Index.add`.

    An interrupted build goes on where it was when it is called again with the same arguments.

    Args:
        path: A folder that is empty or does not exist, on a file system that all workers share.
        model: The model, which must have been loaded from a place that all workers can read.
        sources: Folders, files and URLs, see `genius.data.readers.read_items`.
        embeddings: Keep each item's vector, see `Index.create`.
        store_images: Keep a copy of each image file.
        workers: The actors that encode.
        block_items: Items of a block. By default from the number of items and workers.
        progress: Whether to show a progress bar.

    Returns:
        The index, and what was added. Items that cannot be read, or whose id is taken, are listed in `bad`.

    Raises:
        BadData: A source has no items or cannot be read.
        BadIndex: There is an index already, or it cannot be written.
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
    """Hands blocks to workers and keeps account of them."""

    def __init__(self, folder: Path, state: BuildState, header: Header, model: Genius, workers: Workers) -> None:
        self.folder, self.state, self.header, self.model, self.workers = folder, state, header, model, workers

    def plan(self, sources: Sequence[str | os.PathLike[str]], size: int | None) -> None:
        """Make the plan, unless there is one."""
        if not self.state.planned:
            self.state.plan(sources, size or self._size(sources), self.header)

    def _size(self, sources: Sequence[str | os.PathLike[str]]) -> int:
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
        """Decide between items with the same id and between types of fields, as if items had been added one by one.

        Fragments in which something changes are written again. Returns the metadata fields.
        """
        import ray

        fields = _merge_fields(self.state)
        drops = self._find_taken()
        jobs = []
        for number, block in sorted(self.state.done.items()):
            for place, chunk in enumerate(block.chunks):
                if (number, place) in drops or chunk.fields != [list(field) for field in fields.items()]:
                    jobs.append({"block": number, "place": place})
        if not jobs:
            return fields
        rewrite = ray.remote(_rewrite).options(num_cpus=1, max_retries=-1)
        waiting = {
            rewrite.remote(
                str(self.folder),
                json.dumps(self.state.done[job["block"]].chunks[job["place"]].__dict__),
                drops.get((job["block"], job["place"]), ([], [], 0))[0],
                list(fields.items()),
            ): job
            for job in jobs
        }
        changed: dict[int, dict[int, Chunk | None]] = defaultdict(dict)
        while waiting:
            (ready,), _ = ray.wait(list(waiting))
            job, text = waiting.pop(ready), ray.get(ready)
            changed[job["block"]][job["place"]] = Chunk(**json.loads(text)) if text else None
        for number, chunks in changed.items():
            block = self.state.done[number]
            taken = [drops[number, place] for place in chunks if (number, place) in drops]
            merged = [chunks.get(place, chunk) for place, chunk in enumerate(block.chunks)]
            self.state.record(
                number,
                Block(
                    [chunk for chunk in merged if chunk is not None],
                    block.bad + [[id, TAKEN] for _, ids, _ in taken for id in ids],
                    block.unchanged + sum(count for _, _, count in taken),
                ),
            )
        return fields

    def _find_taken(self) -> dict[tuple[int, int], tuple[list[int], list[str], int]]:
        """Find items whose id an earlier item has.

        Returns the rows to drop of each chunk, by block and place, the ids that are refused because the items differ,
        and the number of items that are equal.
        """
        hashes: list[np.ndarray] = [np.zeros(0, np.int64)]
        for _, _, chunk in self._chunks():
            ids = read_chunk(self.folder, chunk, ["id"])["id"].to_pylist()
            hashes.append(np.fromiter(map(hash, ids), np.int64, len(ids)))
        every = np.sort(np.concatenate(hashes))
        repeated = np.unique(every[1:][every[1:] == every[:-1]])
        drops: dict[tuple[int, int], tuple[list[int], list[str], int]] = {}
        if not len(repeated):
            return drops
        first: dict[str, tuple[Any, ...]] = {}
        for (number, place, chunk), some in zip(self._chunks(), hashes[1:], strict=True):
            rows = np.flatnonzero(np.isin(some, repeated))
            if not len(rows):
                continue
            table = read_chunk(self.folder, chunk, ["id", *COMPARED]).take(rows)
            drop, refused, equal = list[int](), list[str](), 0
            for row, values in zip(rows.tolist(), table.to_pylist(), strict=True):
                id, content = values.pop("id"), tuple(values.values())
                if id not in first:
                    first[id] = content
                    continue
                drop.append(row)
                if first[id] == content:
                    equal += 1
                else:
                    refused.append(id)
            if drop:
                drops[number, place] = drop, refused, equal
        return drops

    def _chunks(self) -> Iterator[tuple[int, int, Chunk]]:
        for number, block in sorted(self.state.done.items()):
            for place, chunk in enumerate(block.chunks):
                yield number, place, chunk


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
        except GeniusError as error:  # the driver tells it; an error here would only start the actor again
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
    """Write a fragment again, on a worker."""
    root = Path(folder)
    written = rewrite_chunk(
        root, Header.of(open_dataset(open_folder(root), None)), Chunk(**json.loads(chunk)), drop, dict(fields)
    )
    return "" if written is None else json.dumps(written.__dict__)


def _merge_fields(state: BuildState) -> Fields:
    """The first items that have a field decide its type."""
    fields = dict(state.fields)
    for _, block in sorted(state.done.items()):
        for chunk in block.chunks:
            for name, type in chunk.fields:
                if name not in fields and len(fields) < MAX_FIELDS:
                    fields[name] = type
    return fields


def _fragments(state: BuildState) -> tuple[list[FragmentMetadata], Checksums]:
    chunks = [chunk for _, block in sorted(state.done.items()) for chunk in block.chunks]
    fragments = [FragmentMetadata.from_json(json.dumps(chunk.fragment)) for chunk in chunks]
    return fragments, {path: one for chunk in chunks for path, one in chunk.recorded().items()}


def _is_committed(session: Session, state: BuildState) -> bool:
    """Whether the rows of the index are those of this build, whose driver ended after the commit."""
    ours = {chunk.file.removeprefix("data/") for block in state.done.values() for chunk in block.chunks}
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
    """Connect to a cluster, or start Ray on this machine for the block. A connection of the caller is used as it is."""
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
                raise GeniusError(f"Ray could not be started on this machine ({error}).") from error
