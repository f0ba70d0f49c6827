"""The query walk: encode, fuse, search the codes in memory, read the items, make hits."""

import time
from collections.abc import Sequence

import numpy as np

from genius.data.items import Modality, Query
from genius.encoders.base import Vectors
from genius.index.snapshot import Snapshot
from genius.index.storage import ITEM_COLUMNS, row_to_item
from genius.search.options import SearchOptions
from genius.search.results import BatchResult, Hit, Hits, SearchResult


def answer_queries(snapshot: Snapshot, queries: Sequence[Query], options: SearchOptions) -> list[SearchResult]:
    """Search for queries: one result per query."""
    snapshot.searcher(options.where, options.ids, options.branch)  # refuses a bad filter before anything is encoded
    if not queries:
        return []
    started = time.perf_counter()
    vectors = snapshot.model.encode_queries(queries)
    seconds = {"encode": time.perf_counter() - started}
    found = search_vectors(snapshot, vectors, [query.target_modality for query in queries], options)
    return read_hits(snapshot, found, seconds)


def search_vectors(
    snapshot: Snapshot, vectors: Vectors, targets: Sequence[Modality | None] | None, options: SearchOptions
) -> BatchResult:
    """Fuse encoded queries and search the items that pass the filter."""
    model = snapshot.model
    fused, embedding = model.fuse(vectors), vectors.embedding()
    searcher = snapshot.searcher(options.where, options.ids, options.branch)
    if targets is None or model.first_code == "modality":
        return searcher.search(fused, embedding, targets, options)
    # The first code is not the modality here, so a target is a filter on the column `modality`.
    found = searcher.search(fused, embedding, None, options)
    for target in {target for target in targets if target is not None}:
        where = f"modality = '{target.label}'"
        where = where if options.where is None else f"({options.where}) AND {where}"
        queries = [query for query, other in enumerate(targets) if other == target]
        searcher = snapshot.searcher(where, options.ids, options.branch)
        found.replace(queries, searcher.search(fused[queries], embedding[queries], None, options))
    return found


def read_hits(snapshot: Snapshot, found: BatchResult, seconds: dict[str, float]) -> list[SearchResult]:
    """Read the items of all hits at once. seconds: of the stages before."""
    started = time.perf_counter()
    rows = np.unique(found.top.rows[found.top.rows >= 0])
    # Each column takes about a fifth of the time to read. The first code may tell what `modality` does.
    coded = snapshot.model.first_code == "modality"
    columns = [column for column in ITEM_COLUMNS if not coded or column != "modality"]
    records = dict(zip(rows.tolist(), snapshot.rows(rows, columns), strict=True))
    hits = []
    for top in zip(*found.top, strict=True):
        hits.append(Hits())
        for row, score, codes in zip(*(values.tolist() for values in top), strict=True):
            if row >= 0:
                item = row_to_item(records[row])
                modality = Modality(codes[0]) if coded else Modality.parse(records[row]["modality"])
                hits[-1].append(Hit(item.id, score, modality, tuple(codes), item))
    seconds |= found.seconds | {"read": time.perf_counter() - started}
    return [
        SearchResult(of_query, trace.branches, trace.candidates, seconds)
        for of_query, trace in zip(hits, found.traces, strict=True)
    ]
