"""Repeated ids: which rows of the written chunks must be dropped because an earlier item has the same id."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from genius.index.ingest import COMPARED
from genius.scale.blocks import read_chunk
from genius.scale.state import BuildState, ChunkKey


@dataclass
class Dropped:
    """Rows of a chunk to drop.

    Attributes:
        rows: Numbers of the rows in the chunk.
        refused: Ids of the rows that differ from the earlier item.
        equal: Number of the rows that are equal to the earlier item.
    """

    rows: list[int] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    equal: int = 0


def find_duplicates(folder: Path, state: BuildState) -> dict[ChunkKey, Dropped]:
    """Find the rows whose id an earlier row has, in the order of the sources.

    Args:
        folder: Folder of the index.
        state: A build whose blocks are all written.

    Returns:
        The chunks with such rows.
    """
    hashes = {}  # of the ids: millions of ids would take much more memory
    for key, chunk in state.chunks():
        ids = read_chunk(folder, chunk, ["id"])["id"].to_pylist()
        hashes[key] = np.fromiter(map(hash, ids), np.int64, len(ids))
    every = np.sort(np.concatenate([np.zeros(0, np.int64), *hashes.values()]))
    repeated = np.unique(every[1:][every[1:] == every[:-1]])
    first: dict[str, tuple[Any, ...]] = {}  # content of the first item with an id
    found: dict[ChunkKey, Dropped] = {}
    for key, chunk in state.chunks() if len(repeated) else ():
        rows = np.flatnonzero(np.isin(hashes[key], repeated))
        if not len(rows):
            continue
        dropped = Dropped()
        table = read_chunk(folder, chunk, ["id", *COMPARED]).take(rows)
        for row, values in zip(rows.tolist(), table.to_pylist(), strict=True):
            id, content = values.pop("id"), tuple(values.values())
            if id not in first:
                first[id] = content
                continue
            dropped.rows.append(row)
            if first[id] == content:
                dropped.equal += 1
            else:
                dropped.refused.append(id)
        if dropped.rows:
            found[key] = dropped
    return found
