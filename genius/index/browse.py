"""Browsing by codes: items with their codes, and pages of the code tree."""

from collections.abc import Sequence

import numpy as np

from genius.index.snapshot import Snapshot
from genius.index.storage import ITEM_COLUMNS, code_columns, row_to_item, take
from genius.search.results import CodeChild, CodedItem, CodePage


def coded_items(snapshot: Snapshot, row_ids: np.ndarray) -> list[CodedItem]:
    """Read the items of these row ids with their codes."""
    columns = code_columns(snapshot.header)
    with snapshot.reading():
        records = take(snapshot.dataset, row_ids, [*ITEM_COLUMNS, *columns])
    return [CodedItem(row_to_item(record), tuple(record[column] for column in columns)) for record in records]


def code_page(snapshot: Snapshot, pattern: Sequence[int | None], limit: int, offset: int) -> CodePage:
    """Find the items whose IDs match a pattern; neighbours by ID stand side by side."""
    loaded = snapshot.loaded
    trie = loaded.searcher.trie
    at = trie.matching(pattern)
    children: list[CodeChild] = []
    if len(pattern) < trie.levels and len(at):
        codes, first, counts = np.unique(trie.codes[len(pattern)][at], return_index=True, return_counts=True)
        examples = [record["id"] for record in snapshot.rows(trie.order[at[first]], ["id"])]
        found = zip(codes.tolist(), counts.tolist(), examples, strict=True)
        children = sorted((CodeChild(*child) for child in found), key=lambda child: -child.items)
    shown = loaded.row_ids[trie.order[at[offset : offset + limit]]]
    ids = int((trie.first_diff_level[at] < trie.levels).sum())
    return CodePage(len(at), ids, children, coded_items(snapshot, shown))
