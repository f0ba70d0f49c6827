"""Verify: find damage in an index, and name the command that repairs it.

All files are compared with their checksums, and all rows are read once. Whether codes and embeddings match the content
needs the model, so it is checked on a sample of the items, or on all of them. In files without a checksum, which
earlier releases wrote, a flipped bit in a text or a stored image changes the content hash; one in codes or embeddings
is found only by encoding the item again.
"""

import json
import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from genius.data.images import image_exists
from genius.data.items import Item, Modality
from genius.encoders.base import Prepared, Vectors
from genius.errors import GeniusError
from genius.index.checksums import fragment_files
from genius.index.folder import Folder
from genius.index.lance_errors import lance_errors
from genius.index.snapshot import Snapshot
from genius.index.storage import ITEMS, content_hash, to_codes, to_matrix, vector_columns
from genius.index.versions import MISSING, FolderState, VersionState, check_files, check_footer, damaged_files
from genius.model.genius import Genius
from genius.runtime.progress import show_progress
from genius.runtime.wording import counted

_READ_BYTES, _READ_ROWS = 16 << 20, 8192  # read together
_BATCH = 128  # items encoded together
_NORM_TOLERANCE = 0.05  # an embedding has norm 1; float16 rounds it
_MIN_COSINE = 0.99  # of a stored embedding and the computed one
_ROUNDING = 1e-3  # relative difference between two runs of a network
_CONTENT = ["id", "text", "image", "image_bytes", "metadata", "hash"]


@dataclass(frozen=True)
class IndexProblem:
    """Damage that `Index.verify` found.

    Attributes:
        kind: "version", "file", "model", "fragment", "id", "codes", "embedding", "content" or "image".
        id: Id of the item; None if the problem concerns several items.
        message: What is wrong, as a sentence.
        repair: The command that repairs it.
    """

    kind: str
    id: str | None
    message: str
    repair: str


def find_problems(
    snapshot: Snapshot, sample: int = 100, deep: bool = False, progress: bool = False
) -> Iterator[IndexProblem]:
    """Find everything that is wrong with an index. See `Index.verify`."""
    if sample < 0:
        raise GeniusError(f"sample is {sample}; it must be a number of items, or 0 for none.")
    verifier, state = _Verifier(snapshot), check_files(snapshot.folder)
    yield from file_problems(snapshot.folder, state, snapshot.version)
    yield from verifier.check_model()
    damaged = next((one.damaged for one in state.versions if one.number == snapshot.version), {})
    random = np.random.default_rng()
    drawn, keys = snapshot.dataset.schema.empty_table(), np.zeros(0)  # the rows with the smallest random keys
    hashes = [np.zeros(0, np.int64)]
    with show_progress("verifying", len(snapshot), progress) as advance:
        for fragment in snapshot.dataset.get_fragments():
            try:
                verifier.check_files(fragment, damaged)
                for batch in _read(snapshot.folder, fragment):
                    yield from verifier.check_rows(batch)
                    content = pa.Table.from_batches([batch.filter(batch["hash"].is_valid())])
                    if deep:
                        yield from verifier.check_encoding(content)
                    else:
                        keys = np.concatenate([keys, random.random(len(content))])
                        chosen = np.argsort(keys)[:sample]
                        keys, drawn = keys[chosen], pa.concat_tables([drawn, content]).take(chosen)
                    hashes.append(_hash_ids(batch["id"].to_pylist()))
                    advance(len(batch))
            except _UnreadableError as error:
                yield verifier.damaged(fragment, str(error), damaged)
        yield from verifier.check_ids(np.concatenate(hashes))
        yield from verifier.check_encoding(drawn)


def damaged_fragments(snapshot: Snapshot) -> list[int]:
    """Return the ids of the fragments whose content is lost.

    A fragment with unreadable codes or embeddings is not among them: `Index.reindex` computes these again.
    """
    verifier, damaged = _Verifier(snapshot), damaged_files(snapshot.folder, snapshot.dataset)
    fragments = snapshot.dataset.get_fragments()
    return [one.fragment_id for one in fragments if verifier.has_lost_content(one, damaged)]


def file_problems(folder: Folder, state: FolderState, current: int | None = None) -> Iterator[IndexProblem]:
    """Describe damaged files. current: a version whose data and deletion files are left out, if it can be read."""
    needed: dict[str, list[VersionState]] = {}
    for version in state.versions:
        for path in version.damaged:
            needed.setdefault(path, []).append(version)
    for version in state.versions:
        if version.number == current and version.readable:
            needed = {path: versions for path, versions in needed.items() if path not in version.damaged}
    repair = shlex.join(["genius", "index", "restore", str(folder)])
    whole, newest = state.newest_whole, state.newest
    for path, versions in needed.items():
        if versions[0].damaged[path] == MISSING and newest not in versions:
            continue  # `compact` removes files first, then the versions; it may have been interrupted
        numbers = [version.number for version in versions]
        which = f"version {numbers[0]}" if len(numbers) == 1 else f"versions {numbers[0]} to {numbers[-1]}"
        file = folder.uri(f"{ITEMS}/{path}")
        message = f"{file} {versions[0].damaged[path]}; {which} cannot be read without it."
        if newest not in versions:
            message += " The newest version does not need it."
        elif whole is not None:
            message += f" The newest version that is whole is {whole.number}."
        else:
            message += " No version is whole."
        yield IndexProblem("version", None, message, repair if whole else f"{repair} --version N")
    for path, reason in state.spare.items():
        yield IndexProblem("file", None, f"{folder.uri(path)} {reason}; all items can be read without it.", repair)


# Files


class _UnreadableError(GeniusError):
    """Lance cannot read a fragment, or its strings are not valid."""


def _read(folder: Folder, fragment: lance.LanceFragment, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Read the rows of a fragment, a few megabytes at a time."""
    for file in fragment.data_files():
        problem = check_footer(folder, f"data/{file.path}", file.file_size_bytes or None)
        if problem is not None:
            raise _UnreadableError(problem)
    size = sum(file.file_size_bytes or 0 for file in fragment.data_files())
    rows = int(np.clip(_READ_BYTES * fragment.physical_rows // max(size, 1), 1, _READ_ROWS))
    with lance_errors(_UnreadableError):
        batches = iter(fragment.to_batches(columns=columns, batch_size=rows))
    while True:
        with lance_errors(_UnreadableError):
            batch = next(batches, None)
            if batch is None:
                return
            batch.validate(full=True)
        yield batch


def _is_readable(folder: Folder, fragment: lance.LanceFragment, columns: list[str]) -> bool:
    try:
        for _ in _read(folder, fragment, columns):
            pass
    except _UnreadableError:
        return False
    return True


def _content_columns(snapshot: Snapshot) -> list[str]:
    """Names of the columns that the model cannot compute again."""
    computed = vector_columns(snapshot.header)
    return [name for name in snapshot.dataset.schema.names if name not in computed]


# Rows


class _Verifier:
    """The checks of one snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot, self.dataset, self.header = snapshot, snapshot.dataset, snapshot.header
        self.model: Genius | None = None

    def repair(self, verb: str, *rest: str) -> str:
        """Return the command that repairs the index."""
        return shlex.join(["genius", "index", verb, str(self.snapshot.folder), *rest])

    def delete(self, id: str) -> str:
        return self.repair("delete", *(["--"] if id.startswith("-") else []), id)

    def check_model(self) -> Iterator[IndexProblem]:
        """Load the model, which compares its fingerprint with that of the index."""
        try:
            self.model = self.snapshot.model
        except GeniusError as error:
            yield IndexProblem("model", None, str(error), f"{self.repair('reindex')} --model MODEL")

    def check_files(self, fragment: lance.LanceFragment, damaged: dict[str, str]) -> None:
        """Raise _UnreadableError if files of a fragment are damaged. damaged: what is wrong with each damaged file."""
        for path in fragment_files(fragment):
            if path in damaged:
                raise _UnreadableError(damaged[path])

    def has_lost_content(self, fragment: lance.LanceFragment, damaged: dict[str, str]) -> bool:
        """Whether content of a fragment is lost. Codes and embeddings can be computed again."""
        if any(path in damaged and not path.startswith("data/") for path in fragment_files(fragment)):
            return True
        changed = any(path in damaged for path in fragment_files(fragment))
        if changed and _is_readable(self.snapshot.folder, fragment, vector_columns(self.header)):
            return True  # the change is somewhere else
        return not _is_readable(self.snapshot.folder, fragment, _content_columns(self.snapshot))

    def damaged(self, fragment: lance.LanceFragment, reason: str, damaged: dict[str, str]) -> IndexProblem:
        """Describe a fragment whose files are damaged or cannot be read."""
        items = fragment.physical_rows - fragment.metadata.num_deletions
        paths = {path: self.snapshot.folder.uri(f"{ITEMS}/{path}") for path in fragment_files(fragment)}
        named = [f"{file} {damaged[path]}" for path, file in paths.items() if path in damaged]
        what = " and ".join(named) or f"{' and '.join(paths.values())} cannot be read ({reason})"
        what = f"{what}. It holds {counted(items, 'item')}"
        if not self.has_lost_content(fragment, damaged):
            message = f"{what}; only codes and embeddings are damaged, which can be computed again."
            return IndexProblem("fragment", None, message, self.repair("reindex"))
        message = f"{what}. Restore it from a copy; or remove what it holds, and add that again from its source."
        return IndexProblem("fragment", None, message, self.repair("verify", "--drop-damaged"))

    def check_rows(self, batch: pa.RecordBatch) -> Iterator[IndexProblem]:
        """Make all checks that need no encoding."""
        ids, has_content = batch["id"].to_pylist(), batch["hash"].is_valid().to_pylist()

        def problem(kind: str, row: int, message: str) -> IndexProblem:
            repair = self.repair("reindex") if has_content[row] else self.delete(ids[row])
            return IndexProblem(kind, ids[row], message, repair)

        for row in np.flatnonzero(self._has_invalid_codes(batch)).tolist():
            yield problem("codes", row, "its codes are not valid for the model.")
        if self.header.embeddings:
            embeddings = to_matrix(batch["embedding"]).astype(np.float32)
            for row in np.flatnonzero(~_is_unit_or_zero(embeddings)).tolist():
                yield problem("embedding", row, "its embedding is not a vector of norm 1.")
        has_something = pc.or_(batch["hash"].is_valid(), pc.not_equal(batch["metadata"], "{}"))  # vectors often do not
        for record in batch.filter(has_something).select(_CONTENT).to_pylist():
            yield from self._check_content(record)

    def _has_invalid_codes(self, rows: pa.RecordBatch | pa.Table) -> np.ndarray:
        """(n,) bool: a code is out of range, or the first code is not the modality although it must be."""
        codes = to_codes(rows, self.header)
        invalid: np.ndarray = np.any(codes >= np.array(self.header.sizes), axis=1)
        if self.model is None or self.model.first_code != "modality":
            return invalid
        modality = pc.index_in(rows["modality"], pa.array([modality.label for modality in Modality])).fill_null(-1)
        return np.asarray(invalid | (codes[:, 0] != modality.to_numpy()))

    def _check_content(self, record: dict[str, Any]) -> Iterator[IndexProblem]:
        """Check metadata, image and content hash of a row."""
        id, path, stored = record["id"], record["image"], record["image_bytes"]
        repair = self.delete(id)
        try:
            valid = isinstance(json.loads(record["metadata"]), dict)
        except (ValueError, RecursionError):
            valid = False
        if not valid:
            yield IndexProblem("content", id, "its metadata is damaged. Delete the item and add it again.", repair)
        if path is not None and stored is None:
            if not image_exists(path):
                message = f"its image {path} is missing. Put it back, or delete the item."
                yield IndexProblem("image", id, message, repair)
        elif record["hash"] is not None and content_hash(record["text"], stored) != record["hash"]:
            message = "its text or its stored image is damaged. Delete the item and add it again."
            yield IndexProblem("content", id, message, repair)

    def check_ids(self, hashes: np.ndarray) -> Iterator[IndexProblem]:
        """Find ids of more than one item. hashes: (n,), of all ids; only ids with equal hashes are compared."""
        hashes = np.sort(hashes)
        repeated = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
        if not len(repeated):
            return
        counts: Counter[str] = Counter()
        for fragment in self.dataset.get_fragments():
            with suppress(_UnreadableError):  # reported before
                for batch in _read(self.snapshot.folder, fragment, ["id"]):
                    ids = batch["id"].to_pylist()
                    counts.update(ids[row] for row in np.flatnonzero(np.isin(_hash_ids(ids), repeated)).tolist())
        for id, count in counts.items():
            if count > 1:
                message = f"{count} items have this id. Delete it and add the item again."
                yield IndexProblem("id", id, message, self.delete(id))

    # Encoding

    def check_encoding(self, rows: pa.Table) -> Iterator[IndexProblem]:
        """Encode items again and compare. Rows with problems that `check_rows` reports are skipped."""
        if self.model is None:
            return
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for start in range(0, len(rows), _BATCH):
                batch = rows.slice(start, _BATCH)
                batch = batch.filter(pa.array(~self._has_invalid_codes(batch)))
                prepared = list(pool.map(self._prepare, batch.select(_CONTENT).to_pylist()))
                yield from (one for one in prepared if isinstance(one, IndexProblem))
                good = [row for row, one in enumerate(prepared) if isinstance(one, Prepared)]
                if good:
                    inputs = [one for one in prepared if isinstance(one, Prepared)]
                    yield from self._compare(self.model, batch.take(good), inputs)

    def _prepare(self, record: dict[str, Any]) -> Prepared | IndexProblem | None:
        """Return the input of the encoder; None if `check_rows` reports the item."""
        id, path, image = record["id"], record["image"], record["image_bytes"]
        if path is not None and image is None:
            try:
                image = Path(path).read_bytes()
            except FileNotFoundError:
                return None
            except OSError as error:
                message = f"its image {path} cannot be read ({error.strerror}). Check its permissions."
                return IndexProblem("image", id, message, self.delete(id))
            if content_hash(record["text"], image) != record["hash"]:
                message = f"its text or its image {path} has changed since it was added."
                return IndexProblem("content", id, message, self.repair("reindex"))
        elif content_hash(record["text"], image) != record["hash"]:
            return None
        try:
            assert self.model is not None
            return self.model.prepare(Item(id, record["text"], image), path)
        except GeniusError as error:
            return IndexProblem("content", id, f"the model cannot read it ({error}).", self.delete(id))

    def _compare(self, model: Genius, rows: pa.Table, inputs: list[Prepared]) -> Iterator[IndexProblem]:
        ids, vectors = rows["id"].to_pylist(), model.encode(inputs)
        for row in np.flatnonzero(~_same_codes(model, vectors, to_codes(rows, self.header))).tolist():
            yield IndexProblem("codes", ids[row], "the model gives it other codes.", self.repair("reindex"))
        if self.header.embeddings:
            stored, computed = to_matrix(rows["embedding"]).astype(np.float32), vectors.embedding()
            different = (stored * computed).sum(1) < _MIN_COSINE
            for row in np.flatnonzero(different & (computed != 0).any(1) & _is_unit_or_zero(stored)).tolist():
                yield IndexProblem(
                    "embedding", ids[row], "the model gives it another embedding.", self.repair("reindex")
                )


def _is_unit_or_zero(embeddings: np.ndarray) -> np.ndarray:
    """Which embeddings have norm 1, up to rounding, or are zero: (n,) bool."""
    norms = np.linalg.norm(embeddings, axis=1)
    return np.asarray((np.abs(norms - 1) <= _NORM_TOLERANCE) | (norms == 0))


def _hash_ids(ids: list[str]) -> np.ndarray:
    return np.fromiter(map(hash, ids), np.int64, len(ids))


def _same_codes(model: Genius, vectors: Vectors, codes: np.ndarray) -> np.ndarray:
    """Which rows have the codes that the model gives, up to rounding: (n,) bool."""
    same = (model.codes(vectors) == codes).all(1)
    rows = np.flatnonzero(~same)
    if len(rows):
        fused, stored, computed = model.fuse(vectors[rows]), codes[rows], model.codes(vectors[rows])
        same[rows] = _nearest_within_rounding(model.quantizer.codebooks, fused, stored)
        same[rows] |= _error(model, fused, stored) <= _error(model, fused, computed) * (1 + _ROUNDING)
        same[rows] &= stored[:, 0] == computed[:, 0]
    return np.asarray(same)


def _error(model: Genius, fused: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Squared distances (n,) of fused vectors (n, d) from the vectors that their codes decode to."""
    decoded = model.quantizer.decode(codes)
    return np.asarray(np.square(fused - decoded).sum(1))


def _nearest_within_rounding(codebooks: Sequence[np.ndarray], fused: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Whether each code is the nearest to the residual, up to rounding: (n,) bool. fused: (n, d)."""
    residual = fused - codebooks[0][codes[:, 0]]
    fine = np.ones(len(fused), bool)
    for level in range(1, codes.shape[1]):
        book = codebooks[level]
        distances = np.square(book).sum(1) - 2 * residual @ book.T + np.square(residual).sum(1, keepdims=True)
        chosen = np.take_along_axis(distances, codes[:, level : level + 1].astype(np.int64), 1)[:, 0]
        fine &= chosen <= distances.min(1) + _ROUNDING * np.square(residual).sum(1)
        residual = residual - book[codes[:, level]]
    return fine
