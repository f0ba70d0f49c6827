"""Verify: what is wrong with an index, item by item and file by file, and what mends it.

Everything is read once. What only the model can tell (whether codes and embeddings are those of the content) is checked
on a sample of the items, or on all of them. Knows how an index can be damaged; does not change it, but for
`drop_damaged`. Lance keeps no checksums: a flipped bit in a text or a kept image is found by the content's hash, in
codes or embeddings only by encoding the item again.
"""

import heapq
import json
import os
import re
import shlex
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from genius.data.items import Item, Modality
from genius.encoders.base import Prepared, Vectors
from genius.errors import GeniusError
from genius.index.storage import code_columns, content_hash, to_codes, to_matrix
from genius.model.genius import Genius
from genius.runtime.progress import show_progress

if TYPE_CHECKING:
    from genius.index.index import Index

KINDS = ("model", "fragment", "id", "codes", "embedding", "content", "image")

_FOOTER = struct.Struct("<QQQIIHH4s")  # of a Lance file
_BATCH_BYTES, _BATCH_ROWS = 16 << 20, 8192  # read together
_ENCODED = 128  # items encoded together
_NORM = 0.05  # a stored embedding has length 1, but for the rounding of float16
_CONTENT = ["id", "text", "image", "image_bytes", "metadata", "hash"]
_ALIKE = 0.99  # cosine of a stored embedding with the one made anew
_ROUNDING = 1e-3  # relative; two runs of a network differ by less


@dataclass(frozen=True)
class Problem:
    """Something that is wrong.

    kind: one of KINDS. id: of the item; None where it concerns more than one.
    message: a sentence that says what is wrong. repair: the command that mends it.
    """

    kind: str
    id: str | None
    message: str
    repair: str


def verify(index: "Index", sample: int = 100, deep: bool = False, progress: bool = False) -> list[Problem]:
    """Everything that is wrong with the index; empty when all is well.

    sample: so many items, drawn at random, are encoded anew to see whether their codes are those of the model.
    deep: all of them.
    """
    return list(find_problems(index, sample, deep, progress))


def find_problems(index: "Index", sample: int = 100, deep: bool = False, progress: bool = False) -> Iterator[Problem]:
    """As `verify`, one problem after the other."""
    if sample < 0:
        raise GeniusError(f"sample is {sample}; it must be a number of items, or 0 for none.")
    repairs = _Repairs(index.path)
    try:
        model: Genius | None = index.model  # loading it checks the fingerprint
    except GeniusError as error:
        model = None
        yield Problem("model", None, str(error), repairs.new_model)
    drawn = _Sample(0 if model is None or deep else sample)
    names: list[np.ndarray] = []
    with show_progress("verifying", len(index), progress) as advance:
        for fragment in index.dataset.get_fragments():
            try:
                for batch in _read(index.dataset, fragment):
                    yield from _check(index, model, batch, repairs)
                    content = batch.filter(batch["hash"].is_valid())
                    if model is not None and deep:
                        yield from _check_encoding(index, model, content, repairs)
                    drawn.draw(content)
                    names.append(_hashes(batch["id"].to_pylist()))
                    advance(len(batch))
            except _Unreadable as error:
                yield _damaged(index, fragment, error, repairs)
        yield from _twice(index, np.concatenate([np.zeros(0, np.int64), *names]), repairs)
        if model is not None:
            yield from _check_encoding(index, model, drawn.table(index.dataset.schema), repairs)


def drop_damaged(index: "Index") -> int:
    """Take the fragments that cannot be read out of the index, so that all else works. Returns how many items went.

    Only those go whose content is lost: where nothing but codes or embeddings cannot be read, `Index.reindex` makes
    them anew.
    """
    dataset, columns = index.dataset, _saved(index)
    lost = [one.fragment_id for one in dataset.get_fragments() if not _readable(dataset, one, columns)]
    return index.drop_fragments(lost) if lost else 0


class _Unreadable(Exception):
    """A fragment that Lance cannot read, or that holds what is no text."""


def _read(
    dataset: lance.LanceDataset, fragment: lance.LanceFragment, columns: list[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a fragment, a few megabytes at a time."""
    for file in fragment.data_files():
        _check_footer(Path(dataset.uri, "data", file.path))
    size = sum(file.file_size_bytes or 0 for file in fragment.data_files())
    rows = int(np.clip(_BATCH_BYTES * fragment.physical_rows // max(size, 1), 1, _BATCH_ROWS))
    try:
        for batch in fragment.to_batches(columns=columns, batch_size=rows):
            batch.validate(full=True)
            yield batch
    except (OSError, ValueError) as error:
        raise _Unreadable(_in_short(error)) from error


def _check_footer(file: Path) -> None:
    """Lance believes the numbers at the end of a file: a wrong one makes it ask for more memory than there is, and die.

    They are three places in the file, two counts of entries of 16 bytes, the format's version, and its name.
    """
    try:
        with open(file, "rb") as opened:
            size = opened.seek(0, os.SEEK_END)
            opened.seek(max(size - _FOOTER.size, 0))
            *places, buffers, columns, _, _, name = _FOOTER.unpack(opened.read())
    except (OSError, struct.error) as error:
        raise _Unreadable("there is no such file" if not file.exists() else "it is cut off") from error
    if name != b"LANC" or max(*places, 16 * buffers, 16 * columns) > size:
        raise _Unreadable("its end is damaged")


def _readable(dataset: lance.LanceDataset, fragment: lance.LanceFragment, columns: list[str]) -> bool:
    try:
        for _ in _read(dataset, fragment, columns):
            pass
    except _Unreadable:
        return False
    return True


def _rows(fragment: lance.LanceFragment) -> int:
    return int(fragment.physical_rows - fragment.metadata.num_deletions)


def _in_short(error: Exception) -> str:
    """What Lance says, without the places in its source."""
    text = re.split(r", [^ ]*\.rs:\d+", " ".join(str(error).split()))[0]
    return re.sub(r"^(External error: )?(LanceError\(\w+\): )?", "", text)[:300]


# Files


def _damaged(index: "Index", fragment: lance.LanceFragment, error: _Unreadable, repairs: "_Repairs") -> Problem:
    files = " and ".join(_files(index, fragment, str(error)))
    what = f"{files} cannot be read ({error}). It holds {_rows(fragment):,} items"
    if _readable(index.dataset, fragment, _saved(index)):
        message = f"{what}; their content is whole, and all else can be made anew from it."
        return Problem("fragment", None, message, repairs.reindex)
    message = f"{what}. Restore it from a copy; or take these items out, and add them again from where they came from."
    return Problem("fragment", None, message, repairs.drop)


def _saved(index: "Index") -> list[str]:
    """The columns that cannot be made anew."""
    made = {*code_columns(index.header), "embedding"}
    return [name for name in index.dataset.schema.names if name not in made]


def _files(index: "Index", fragment: lance.LanceFragment, error: str) -> list[str]:
    """The damaged ones of a fragment's files, as far as can be told."""
    folder = index.path / "items.lance"
    deletions = fragment.deletion_file()
    if deletions is not None and "Arrow file" in error:
        return [str(folder / deletions)]
    files = {folder / "data" / file.path: file.file_size_bytes for file in fragment.data_files()}
    cut = [file for file, size in files.items() if not file.is_file() or (size and file.stat().st_size != size)]
    return [str(file) for file in cut or files]


# Rows


def _check(index: "Index", model: Genius | None, batch: pa.RecordBatch, repairs: "_Repairs") -> Iterator[Problem]:
    """What can be told without encoding."""
    ids = batch["id"].to_pylist()
    has_content = batch["hash"].is_valid().to_numpy(zero_copy_only=False)

    def mend(row: int) -> str:
        return repairs.reindex if has_content[row] else repairs.delete(ids[row])

    for row in np.flatnonzero(_wrong_codes(index, model, batch)).tolist():
        yield Problem("codes", ids[row], "its codes are not such as the model gives.", mend(row))
    if index.header.embeddings:
        embeddings = to_matrix(batch["embedding"]).astype(np.float32)
        for row in np.flatnonzero(_wrong_embeddings(embeddings)).tolist():
            yield Problem("embedding", ids[row], "its embedding is not a vector of numbers of length 1.", mend(row))
    something = pc.or_(batch["hash"].is_valid(), pc.not_equal(batch["metadata"], "{}"))  # most vectors have neither
    for record in batch.filter(something).select(_CONTENT).to_pylist():
        yield from _check_content(record, repairs)


def _wrong_codes(index: "Index", model: Genius | None, batch: pa.RecordBatch) -> np.ndarray:
    """(n,) bool: a code that does not exist, or a first one that is not the item's modality, where it must be."""
    codes = to_codes(batch, index.header)
    absent: np.ndarray = np.any(codes >= np.array(index.header.sizes), axis=1)
    if model is None or model.first_code != "modality":
        return absent
    modality = pc.index_in(batch["modality"], pa.array([modality.label for modality in Modality])).fill_null(-1)
    return absent | (codes[:, 0] != modality.to_numpy(zero_copy_only=False))


def _wrong_embeddings(embeddings: np.ndarray) -> np.ndarray:
    """(n,) bool. A vector of nothing but zeros has no length, and can be right."""
    norms = np.linalg.norm(embeddings, axis=1)
    return ~(np.isfinite(norms) & ((np.abs(norms - 1) <= _NORM) | (norms == 0)))


def _check_content(record: dict[str, Any], repairs: "_Repairs") -> Iterator[Problem]:
    """Whether text, image and metadata are what was put in."""
    id, path, kept = record["id"], record["image"], record["image_bytes"]
    again = repairs.delete(id)
    try:
        fine = isinstance(json.loads(record["metadata"]), dict)
    except (ValueError, RecursionError):
        fine = False
    if not fine:
        yield Problem("content", id, "its metadata is damaged. Delete the item and add it again.", again)
    if path is not None and kept is None:
        if not os.path.isfile(path):
            message = f"its image {path} is gone. Put it back, or delete the item."
            yield Problem("image", id, message, again)
    elif record["hash"] is not None and content_hash(record["text"], kept) != record["hash"]:
        message = "its text or its kept image is not what was put in. Delete the item and add it again."
        yield Problem("content", id, message, again)


def _hashes(ids: list[str]) -> np.ndarray:
    return np.fromiter(map(hash, ids), np.int64, len(ids))


def _twice(index: "Index", hashes: np.ndarray, repairs: "_Repairs") -> Iterator[Problem]:
    """Ids that more than one item has. hashes: (n,) of all ids, so that few ids are looked at closely."""
    hashes = np.sort(hashes)
    suspects = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
    if not len(suspects):
        return
    counts: Counter[str] = Counter()
    for fragment in index.dataset.get_fragments():
        with suppress(_Unreadable):  # named before
            for batch in _read(index.dataset, fragment, ["id"]):
                ids = batch["id"].to_pylist()
                counts.update(ids[row] for row in np.flatnonzero(np.isin(_hashes(ids), suspects)).tolist())
    for id, count in counts.items():
        if count > 1:
            message = f"the id is there {count} times. Delete it and add the item again."
            yield Problem("id", id, message, repairs.delete(id))


# Encoding anew


class _Sample:
    """Rows drawn at random, each as likely as any other, from batches that come one after the other."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._random = np.random.default_rng()
        self._drawn: list[tuple[float, int, pa.RecordBatch]] = []  # a heap: the row that goes next comes first
        self._count = 0

    def draw(self, batch: pa.RecordBatch) -> None:
        lots = self._random.random(len(batch))
        for row in np.argsort(lots)[: self._size].tolist():
            self._count += 1
            one = (-lots[row], self._count, batch.take(pa.array([row])))  # a copy: the batch itself can go
            if len(self._drawn) < self._size:
                heapq.heappush(self._drawn, one)
            elif one[0] > self._drawn[0][0]:
                heapq.heapreplace(self._drawn, one)
            else:
                return

    def table(self, schema: pa.Schema) -> pa.Table:
        return pa.Table.from_batches([row for _, _, row in self._drawn], schema)


def _check_encoding(
    index: "Index", model: Genius, rows: pa.RecordBatch | pa.Table, repairs: "_Repairs"
) -> Iterator[Problem]:
    """Whether codes and embeddings are those that the model gives for the content, and images those of then.

    Rows that are wrong for a reason that can be seen without encoding are passed over: `_check` names them.
    """
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(rows), _ENCODED):
            part = rows.slice(start, _ENCODED)
            part = part.filter(pa.array(~_wrong_codes(index, model, part)))
            records = part.select(_CONTENT).to_pylist()
            prepared = list(pool.map(lambda record: _prepare(model, record, repairs), records))
            yield from (one for one in prepared if isinstance(one, Problem))
            good = [row for row, one in enumerate(prepared) if isinstance(one, Prepared)]
            if good:
                vectors = model.encode([one for one in prepared if isinstance(one, Prepared)])
                yield from _compare(index, model, part.take(pa.array(good)), vectors, repairs)


def _prepare(model: Genius, record: dict[str, Any], repairs: "_Repairs") -> Prepared | Problem | None:
    """What the model encodes; None where the item is wrong for a reason that `_check` names."""
    id, path, image = record["id"], record["image"], record["image_bytes"]
    if path is not None and image is None:
        try:
            image = Path(path).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            message = f"its image {path} cannot be read ({error.strerror}). Check its permissions."
            return Problem("image", id, message, repairs.delete(id))
        if content_hash(record["text"], image) != record["hash"]:
            message = f"its text, or its image {path}, is no longer what was put in."
            return Problem("content", id, message, repairs.reindex)
    elif content_hash(record["text"], image) != record["hash"]:
        return None
    try:
        return model.prepare(Item(id, record["text"], image))
    except GeniusError as error:
        return Problem("content", id, f"the model cannot read it ({error}).", repairs.delete(id))


def _compare(
    index: "Index", model: Genius, rows: pa.RecordBatch | pa.Table, vectors: Vectors, repairs: "_Repairs"
) -> Iterator[Problem]:
    ids = rows["id"].to_pylist()
    for row in np.flatnonzero(~_same_codes(model, vectors, to_codes(rows, index.header))).tolist():
        yield Problem("codes", ids[row], "its codes are not those that the model gives for it.", repairs.reindex)
    if index.header.embeddings:
        stored, made = to_matrix(rows["embedding"]).astype(np.float32), vectors.embedding()
        far = (stored * made).sum(1) < _ALIKE
        for row in np.flatnonzero(far & (made != 0).any(1) & ~_wrong_embeddings(stored)).tolist():
            message = "its embedding is not the one that the model gives for it."
            yield Problem("embedding", ids[row], message, repairs.reindex)


def _same_codes(model: Genius, vectors: Vectors, codes: np.ndarray) -> np.ndarray:
    """(n,) bool. Where rounding alone decides between two codes, either is right."""
    same = (model.codes(vectors) == codes).all(1)
    rows = np.flatnonzero(~same)
    if len(rows):
        fused = model.fuse(vectors[rows])
        same[rows] = _nearest_within_rounding(model.quantizer.codebooks, fused, codes[rows])
        best = _error(model, fused, model.codes(vectors[rows]))
        same[rows] |= _error(model, fused, codes[rows]) <= best * (1 + _ROUNDING)
        same[rows] &= codes[rows, 0] == model.codes(vectors[rows])[:, 0]
    return same


def _error(model: Genius, fused: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """(n,): squared distance of the vectors (n, d) from the sum of their codes' vectors."""
    return np.square(fused - model.quantizer.decode(torch.from_numpy(codes.astype(np.int64))).numpy()).sum(1)


def _nearest_within_rounding(codebooks: Sequence[torch.Tensor], fused: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """(n,) bool: each code, after the ones before it, is the nearest but for rounding. fused: (n, d)."""
    residual = fused - codebooks[0].numpy()[codes[:, 0]]
    fine = np.ones(len(fused), bool)
    for level in range(1, codes.shape[1]):
        book = codebooks[level].numpy()
        distances = np.square(book).sum(1) - 2 * residual @ book.T + np.square(residual).sum(1, keepdims=True)
        chosen = np.take_along_axis(distances, codes[:, level : level + 1].astype(np.int64), 1)[:, 0]
        fine &= chosen <= distances.min(1) + _ROUNDING * np.square(residual).sum(1)
        residual = residual - book[codes[:, level]]
    return fine


@dataclass(frozen=True)
class _Repairs:
    """The commands that mend an index."""

    path: Path

    def _command(self, verb: str, *rest: str) -> str:
        return shlex.join(["genius", "index", verb, str(self.path), *rest])

    @property
    def reindex(self) -> str:
        return self._command("reindex")

    @property
    def new_model(self) -> str:
        return f"{self._command('reindex')} --model MODEL"

    @property
    def drop(self) -> str:
        return self._command("verify", "--drop-damaged")

    def delete(self, id: str) -> str:
        return self._command("delete", *(["--"] if id.startswith("-") else []), id)
