"""New codes for all items of an index from their stored embeddings, without encoding anything."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from genius.data.items import Modality
from genius.encoders.base import Vectors
from genius.errors import BadIndex
from genius.index.models import source_of
from genius.index.session import Session
from genius.index.snapshot import Snapshot, scan
from genius.index.storage import ITEM_COLUMNS, Header, code_columns, metadata_fields, to_matrix
from genius.model.genius import Genius
from genius.runtime.progress import show_progress

ROWS = 8192  # rows read, coded and written at once


def recode(session: Session, model: Genius, embeddings: bool = True, progress: bool = False) -> None:
    """Give all items the codes of another model, in one commit. See `Index.recode`."""
    with session.writing() as snapshot:
        check_embeddings(snapshot)
        if model.dim != snapshot.header.dim:
            raise BadIndex(
                f"{session.folder} holds embeddings of {snapshot.header.dim} dimensions; the model has {model.dim}. "
                "Only a model with the same encoder can use them."
            )
        header = replace(
            snapshot.header,
            model=source_of(model, session.folder),
            fingerprint=model.fingerprint,
            sizes=tuple(model.sizes),
            embeddings=embeddings,
            generation=snapshot.header.generation + 1,
        )
        with show_progress("new codes", len(snapshot), progress) as advance:
            session.replace_all(header, model, _tables(snapshot, header, model, advance))


def check_embeddings(snapshot: Snapshot) -> None:
    """Raise BadIndex if an index has no embeddings that new codes could be made from."""
    if not snapshot.header.embeddings:
        raise BadIndex(
            f"{snapshot.folder} stores no embeddings (--codes-only), which new codes are made from. Create it again "
            "with embeddings."
        )


def stored_vectors(batch: pa.RecordBatch | pa.Table) -> Vectors:
    """Vectors of items from their columns `embedding` and `modality`, for a model without a trained fusion."""
    labels = np.asarray(batch["modality"].to_pylist())
    embedding = to_matrix(batch["embedding"]).astype(np.float32)
    return Vectors.joint(embedding, labels != Modality.TEXT.label, labels != Modality.IMAGE.label)


def read_embeddings(snapshot: Snapshot) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings (n, dim) float16 and modalities (n,) of all items, in the order of the index."""
    check_embeddings(snapshot)
    embeddings = np.empty((len(snapshot), snapshot.header.dim), np.float16)
    modality, start = np.empty(len(snapshot), np.uint8), 0
    for batch in scan(snapshot, ["modality", "embedding"], ROWS):
        end = start + len(batch)
        embeddings[start:end] = to_matrix(batch["embedding"])
        modality[start:end] = [Modality.parse(label) for label in batch["modality"].to_pylist()]
        start = end
    return embeddings, modality


def _tables(snapshot: Snapshot, header: Header, model: Genius, advance: Callable[..., None]) -> Iterator[pa.Table]:
    """All rows with new codes, a block at a time."""
    fields = list(metadata_fields(snapshot.dataset, snapshot.header))
    schema = header.schema()
    for batch in scan(snapshot, [*ITEM_COLUMNS, "hash", "embedding", *fields], ROWS):
        columns = {name: batch[name] for name in batch.schema.names}
        columns |= dict(zip(code_columns(header), model.codes(stored_vectors(batch)).T.copy(), strict=True))
        table = pa.table([columns[name] for name in schema.names], schema=schema)
        for name in fields:
            table = table.append_column(name, columns[name])
        yield table
        advance(len(batch))
