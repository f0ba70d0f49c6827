"""Encoding all items of an index again, with the same model or another one."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from genius.data.images import image_exists
from genius.encoders.base import Prepared
from genius.errors import BadIndex, BadItem, GeniusError
from genius.index.ingest import (
    BATCH,
    COMMIT,
    NOT_FINITE,
    ReadItem,
    encode,
    to_table,
    with_stored_vectors,
)
from genius.index.models import source_of
from genius.index.session import Session
from genius.index.snapshot import Snapshot, scan
from genius.index.storage import ITEM_COLUMNS, Header, metadata_fields, row_to_item
from genius.model.genius import Genius
from genius.runtime.progress import show_progress
from genius.runtime.wording import counted
from genius.search.results import AddReport


def reindex(session: Session, model: Genius | None, progress: bool = False) -> AddReport:
    """Encode all items again from their texts and images, in one commit. See `Index.reindex`."""
    with session.writing() as snapshot:
        other = model is not None and model.fingerprint != snapshot.header.fingerprint
        model = model or snapshot.model
        header = replace(
            snapshot.header,
            model=source_of(model, session.folder) if other else snapshot.header.model,
            fingerprint=model.fingerprint,
            sizes=tuple(model.sizes),
            dim=model.dim,
            generation=snapshot.header.generation + 1,
        )
        if other:
            _check_content(session, snapshot)
        work = _Reindex(snapshot, header, model, other)
        with show_progress("encoding again", len(snapshot), progress) as advance:
            session.replace_all(header, model, work.tables(advance))
        return work.report


def _check_content(session: Session, snapshot: Snapshot) -> None:
    """Check that all items can be encoded, before hours of encoding."""
    without_content = snapshot.dataset.count_rows(filter="hash IS NULL")
    if without_content:
        raise BadIndex(
            f"{session.folder} has {counted(without_content, 'item')} added as vectors, without content that another "
            "model could encode. Delete these first, or keep the model; nothing was changed."
        )
    missing = []
    for batch in snapshot.dataset.to_batches(columns=["id", "image"], filter="image_bytes IS NULL"):
        pairs = zip(batch["id"].to_pylist(), batch["image"].to_pylist(), strict=True)
        missing += [id for id, path in pairs if path is not None and not image_exists(path)]
    if missing:
        raise BadIndex(
            f"{session.folder} has {counted(len(missing), 'item')} whose image is missing, such as {missing[0]!r}. Put "
            "the images back, or delete the items (`genius index verify` lists them); nothing was changed."
        )


class _Reindex:
    """State of one `reindex` call. With the same model, items that cannot be encoded keep their codes."""

    def __init__(self, snapshot: Snapshot, header: Header, model: Genius, other: bool) -> None:
        self.snapshot, self.header, self.model, self.other = snapshot, header, model, other
        self.fields = list(metadata_fields(snapshot.dataset, snapshot.header))
        self.report = AddReport()

    def tables(self, advance: Callable[..., None]) -> Iterator[pa.Table]:
        """Yield all rows, one file at a time."""
        done: list[pa.Table] = []
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for batch in scan(self.snapshot, [*ITEM_COLUMNS, "hash", *self.fields], BATCH):
                done.append(self._encode(pa.Table.from_batches([batch]), pool))
                advance(len(batch), len(self.report.bad))
                if sum(map(len, done)) >= COMMIT * 8:
                    yield pa.concat_tables(done)
                    done = []
            if done:
                yield pa.concat_tables(done)

    def _encode(self, rows: pa.Table, pool: ThreadPoolExecutor) -> pa.Table:
        """Return the rows with new codes, embeddings, modalities and hashes."""
        records = rows.select([*ITEM_COLUMNS, "hash"]).to_pylist()
        read = list(pool.map(self._prepare, records))
        vectors, finite = encode(self.model, self.header, [prepared for _, prepared in filter(None, read)])
        is_new = np.array([one is not None for one in read])
        is_new[is_new] = finite
        for record, one, new in zip(records, read, is_new.tolist(), strict=True):
            if one is not None and not new:
                self._refuse(BadItem(record["id"], NOT_FINITE))
        self.report.added += int(is_new.sum())
        kept = rows["_rowid"].to_numpy().astype(np.int64)[~is_new]
        vectors = with_stored_vectors(vectors, is_new, self.snapshot.dataset, kept)
        values = [record if one is None else one[0] for record, one in zip(records, read, strict=True)]
        columns = {name: rows[name] for name in ITEM_COLUMNS}
        columns |= {name: [row[name] for row in values] for name in ("modality", "hash")}
        table = to_table(self.header, columns, vectors)
        for name in self.fields:
            table = table.append_column(name, rows[name])
        return table

    def _prepare(self, record: dict[str, Any]) -> tuple[dict[str, Any], Prepared] | None:
        """Return the new values of a row and the input of the encoder; None if the row stays as it is."""
        if record["hash"] is None:
            self.report.unchanged += 1
            return None
        try:
            read = ReadItem.read(row_to_item(record))
            return read.row(self.header), read.prepare(self.model)
        except GeniusError as error:
            self._refuse(error if isinstance(error, BadItem) else BadItem(record["id"], str(error)))
            return None

    def _refuse(self, error: BadItem) -> None:
        if self.other:
            raise BadIndex(f"{error} Nothing was changed: repair or delete the item first.") from error
        self.report.bad.append(error)
