"""Blocks: a worker reads, encodes and writes the items of a part of a source. Independent of Ray.

The rows are written as fragments of the index. Readers do not see them before the commit.
"""

import json
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from lance.file import LanceFileReader

from genius.data.items import Item
from genius.errors import BadItem
from genius.index.commits import write_rows
from genius.index.folder import open_folder
from genius.index.ingest import BATCH, COMMIT, NewRow, encode_rows, prepare_item, rows_to_table
from genius.index.storage import FIELD_TYPES, ITEMS, Header, field_columns
from genius.model.genius import Genius
from genius.runtime.threads import thread_count
from genius.scale.state import Block, Chunk, Fields, column_types

CHUNK_ROWS = 8 * COMMIT
"""Maximum number of rows of a fragment."""
CHUNK_BYTES = 256 << 20
"""A fragment is written when its rows take this much memory: they may hold images."""


def write_block(folder: Path, header: Header, model: Genius, items: Iterable[Item | BadItem], fields: Fields) -> Block:
    """Encode items and write them as fragments of an index.

    Args:
        folder: Folder of the index.
        header: Header of the index.
        model: The model of the index.
        items: The items of a part of a source.
        fields: Metadata fields that have a column in all fragments.

    Returns:
        The written chunks, and the items that cannot be indexed.
    """
    block, tables, metadata = Block([], []), list[pa.Table](), list[dict[str, Any]]()

    def flush() -> None:
        if metadata:
            block.chunks.append(write_chunk(folder, header, pa.concat_tables(tables), metadata, fields))
            tables.clear()
            metadata.clear()

    for rows in _prepared(items, header, model):
        block.bad += [[row.id, row.reason] for row in rows if isinstance(row, BadItem)]
        vectors, kept, refused = encode_rows(model, header, [row for row in rows if isinstance(row, NewRow)])
        block.bad += [[error.id, error.reason] for error in refused]
        tables.append(rows_to_table(header, kept, vectors))
        metadata += [row.metadata for row in kept]
        if len(metadata) >= CHUNK_ROWS or sum(table.nbytes for table in tables) >= CHUNK_BYTES:
            flush()
    flush()
    return block


def _prepared(items: Iterable[Item | BadItem], header: Header, model: Genius) -> Iterator[list[NewRow | BadItem]]:
    """Read and decode items batch by batch, one batch ahead of the encoder."""
    ahead: deque[list[Future[NewRow | BadItem]]] = deque()
    with ThreadPoolExecutor(thread_count()) as pool:
        rest = iter(items)
        while batch := list(islice(rest, BATCH)):
            ahead.append([pool.submit(prepare_item, item, header, model) for item in batch])
            if len(ahead) > 1:
                yield [row.result() for row in ahead.popleft()]
        while ahead:
            yield [row.result() for row in ahead.popleft()]


def write_chunk(folder: Path, header: Header, table: pa.Table, metadata: list[dict[str, Any]], fields: Fields) -> Chunk:
    """Write rows as one fragment, with the columns of known and new metadata fields."""
    columns = field_columns(metadata, fields, header.schema().names)
    written = column_types(columns)
    for name, column in columns.items():
        table = table.append_column(name, column)
    (fragment,), checksums = write_rows(open_folder(folder), full_schema(header, written), table)
    return Chunk(
        fragment.to_json(),
        {path: list(checksum) for path, checksum in checksums.items()},
        [[name, type] for name, type in written.items()],
        len(table),
    )


def full_schema(header: Header, fields: Fields) -> pa.Schema:
    """Schema of an index with metadata fields."""
    schema = header.schema()
    return pa.schema([*schema, *(pa.field(name, FIELD_TYPES[type]) for name, type in fields.items())], schema.metadata)


def rewrite_chunk(folder: Path, header: Header, chunk: Chunk, drop: list[int], fields: Fields) -> Chunk | None:
    """Write a fragment again, without the rows in `drop` and with columns for `fields` only. None if no row is left."""
    table = read_chunk(folder, chunk, header.schema().names)
    kept = np.setdiff1d(np.arange(len(table)), drop)
    table = table.take(kept).cast(header.schema())
    if not len(table):
        return None
    metadata = [
        {name: value for name, value in json.loads(row).items() if name in fields}
        for row in table["metadata"].to_pylist()
    ]
    return write_chunk(folder, header, table, metadata, fields)


def read_chunk(folder: Path, chunk: Chunk, columns: list[str]) -> pa.Table:
    """Read columns (rows, columns) of a fragment that is not committed yet."""
    return LanceFileReader(str(folder / ITEMS / chunk.file), columns=columns).read_all().to_table()
