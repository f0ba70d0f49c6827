"""Adding items by their vectors: they can be found, but have no text or image."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from genius.data.items import Item
from genius.encoders.base import Vectors
from genius.errors import BadItem, GeniusError
from genius.index.ingest import EncodedRows, OnCommit, is_finite, to_table, vector_table, write
from genius.index.session import Session
from genius.index.storage import ITEM_COLUMNS, Header, code_columns, to_labels
from genius.model.genius import Genius
from genius.search.results import AddReport

BLOCK = 65_536
"""Vectors that are encoded and committed together."""


def add_vectors(
    session: Session,
    ids: Sequence[str],
    vectors: Vectors,
    metadata: Sequence[dict[str, Any]] | None = None,
    replace: bool = False,
    on_commit: OnCommit | None = None,
) -> AddReport:
    """Add items by their vectors. See `Index.add_vectors`."""
    if len(ids) != len(vectors) or (metadata is not None and len(metadata) != len(ids)):
        given = "" if metadata is None else f" and {len(metadata)} dicts of metadata"
        raise GeniusError(f"{len(ids)} ids, {len(vectors)} vectors{given} do not match. Give one of each per item.")
    snapshot = session.prepare_writing()
    header, model = snapshot.header, snapshot.model
    if vectors.image.shape[1] != header.dim:
        raise GeniusError(f"The vectors have {vectors.image.shape[1]} dimensions; this index needs {header.dim}.")
    bad_ids = _bad_ids(ids, metadata)
    report = AddReport()
    for start in range(0, len(ids), BLOCK):
        block = slice(start, start + BLOCK)
        bad = {row - start: bad_ids[row] for row in bad_ids.keys() & range(start, start + BLOCK)}
        records = None if metadata is None else metadata[block]
        rows, refused = _encode(model, header, ids[block], vectors[block], records, bad)
        report.bad += refused
        if len(rows.table):
            write(session, header, rows, replace, ["hash", "metadata", *code_columns(header)], report, on_commit)
    return report


def _bad_ids(ids: Sequence[str], metadata: Sequence[dict[str, Any]] | None) -> dict[int, BadItem]:
    """Check ids and metadata; return the errors by position."""
    bad: dict[int, BadItem] = {}
    seen: set[str] = set()
    for row, id in enumerate(ids):
        try:
            if metadata is not None or not isinstance(id, str) or not id.isascii() or not id.strip():
                Item(id, metadata={} if metadata is None else metadata[row])
            if id in seen:
                raise BadItem(id, "the id appears more than once. Leave one of them out, or rename it.")
            seen.add(id)
        except BadItem as error:
            bad[row] = error
    return bad


def _encode(
    model: Genius,
    header: Header,
    ids: Sequence[str],
    vectors: Vectors,
    metadata: Sequence[dict[str, Any]] | None,
    bad: dict[int, BadItem],
) -> tuple[EncodedRows, list[BadItem]]:
    """Return the rows of the good items, and the bad ones. `bad` has those that are known already, by position."""
    for wrong, reason in (
        (~is_finite(vectors), "its vector has values that are not finite (NaN). Leave it out."),
        (~(vectors.has_image | vectors.has_text), "its vectors are zero: it has neither an image nor a text."),
    ):
        for row in np.flatnonzero(wrong).tolist():
            bad.setdefault(row, BadItem(str(ids[row]), reason))
    if bad:
        good = np.setdiff1d(np.arange(len(ids)), list(bad))
        ids, vectors = [ids[row] for row in good.tolist()], vectors[good]
        metadata = None if metadata is None else [metadata[row] for row in good.tolist()]
    refused = [bad[row] for row in sorted(bad)]
    if not len(ids):
        return EncodedRows(header.schema().empty_table(), None), refused
    schema = header.schema()
    columns = {name: pa.nulls(len(ids), schema.field(name).type) for name in [*ITEM_COLUMNS, "hash"]}
    columns |= {
        "id": ids,
        "modality": to_labels(vectors.modality),
        "metadata": pa.repeat("{}", len(ids))
        if metadata is None
        else [json.dumps(one, ensure_ascii=False) for one in metadata],
    }
    return EncodedRows(to_table(header, columns, vector_table(model, header, vectors)), metadata), refused
