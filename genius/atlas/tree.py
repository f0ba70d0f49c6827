"""The code tree of a collection: its largest nodes, and each code on its own, with names and nearest items."""

import itertools
from dataclasses import dataclass, field

import numpy as np

from genius.atlas.collection import Collection
from genius.atlas.names import Name, name_groups
from genius.atlas.words import Words
from genius.data.items import Modality

MAX_NODES = 12_000
MAX_CODES = 4_000
NAMED_LEVELS = 6  # levels whose codes are described on their own, under any parent


@dataclass(frozen=True)
class Node:
    """A prefix of semantic IDs.

    Attributes:
        codes: The prefix. -1 stands for any code.
        items: Number of items under it.
        name: What sets these items apart from those under the other codes of the same parent.
        modalities: Number of its items of each modality, in the order of Modality.
        examples: Rows of the items nearest to the prefix's vector, the nearest first.
        children: Number of different codes that follow.
        parents: Number of different prefixes that the code follows.
    """

    codes: tuple[int, ...]
    items: int
    name: Name
    modalities: tuple[int, ...]
    examples: tuple[int, ...]
    children: int = 0
    parents: int = 1


@dataclass(frozen=True)
class CodeTree:
    """The described part of a code tree.

    Attributes:
        nodes: Prefixes: a parent stands before its children, siblings with most items first.
        codes: Single codes with any prefix before them.
    """

    nodes: list[Node]
    codes: list[Node] = field(default_factory=list)


class _Level:
    """The nodes of one level. number: (n,) the node of each item; first: (nodes,) one item of each node."""

    def __init__(self, above: np.ndarray, codes: np.ndarray, size: int) -> None:
        _, self.first, number, counts = np.unique(
            above * size + codes, return_index=True, return_inverse=True, return_counts=True
        )
        self.number, self.items = number.reshape(-1), counts
        self.parent = above[self.first]


def code_tree(collection: Collection, words: Words, max_nodes: int = MAX_NODES, examples: int = 8) -> CodeTree:
    """Describe the code tree of a collection.

    Args:
        collection: The items and their codes.
        words: Their words.
        max_nodes: Number of prefixes that are described; those with most items come first.
        examples: Number of nearest items of a prefix of the first two levels; half as many below.
    """
    codes = collection.codes.astype(np.int64)
    sizes = collection.model.sizes
    distances = remaining_distances(collection)
    levels: list[_Level] = []
    above = np.zeros(len(codes), np.int64)
    for level, size in enumerate(sizes):
        levels.append(_Level(above, codes[:, level], size))
        above = levels[-1].number
        if level and levels[-1].items.max() == 1:
            break
    children = [np.bincount(below.parent, minlength=len(at.items)) for at, below in itertools.pairwise(levels)]
    children.append(np.zeros(len(levels[-1].items), np.int64))
    kept = _largest(levels, max_nodes)
    nodes: list[Node] = []
    for depth, (here, keep) in enumerate(zip(levels, kept, strict=True)):
        if not len(keep):
            continue
        place = np.full(len(here.items), -1)
        place[keep] = np.arange(len(keep))
        # All siblings count, also those that are too small to be described.
        names = name_groups(words, here.number, here.parent, keep)
        shown = examples if depth < 2 else max(1, examples // 2)
        nearest = _nearest(place[here.number], distances[:, depth], len(keep), shown)
        modalities = _by_modality(place[here.number], collection.modality, len(keep))
        for new, old in enumerate(keep.tolist()):
            prefix = tuple(codes[here.first[old], : depth + 1].tolist())
            nodes.append(
                Node(
                    prefix,
                    int(here.items[old]),
                    names[new],
                    modalities[new],
                    nearest[new],
                    int(children[depth][old]),
                )
            )
    described = _single_codes(collection, words, codes, sizes, distances, levels)
    return CodeTree(nodes, described)


def remaining_distances(collection: Collection) -> np.ndarray:
    """(n, levels) distance of each item's quantized vector from the vector of its first 1, 2, ... codes."""
    left = collection.quantized.copy()
    distances = np.empty(collection.codes.shape, np.float32)
    for level, book in enumerate(collection.model.quantizer.codebooks):
        left -= book[collection.codes[:, level]]
        distances[:, level] = np.linalg.norm(left, axis=1)
    return distances


def _largest(levels: list[_Level], most: int) -> list[np.ndarray]:
    """The nodes to describe at each level: those with most items, never without their parents, most items first."""
    items = np.concatenate([level.items for level in levels])
    depth = np.repeat(np.arange(len(levels)), [len(level.items) for level in levels])
    # A node is never larger than its parent, which stands before it among equals.
    order = np.lexsort([depth, -items])
    order = order[(items[order] > 1) | (depth[order] < 2)][:most]
    starts = np.cumsum([0, *(len(level.items) for level in levels)])
    kept = []
    for number, start in enumerate(starts[:-1]):
        mine = order[depth[order] == number] - start
        kept.append(mine[np.argsort(-levels[number].items[mine], kind="stable")])
    return kept


def _single_codes(
    collection: Collection,
    words: Words,
    codes: np.ndarray,
    sizes: tuple[int, ...],
    distances: np.ndarray,
    levels: list[_Level],
) -> list[Node]:
    """Each code of the upper semantic levels, with any prefix before it."""
    found: list[Node] = []
    for level in range(1, min(len(levels), NAMED_LEVELS)):
        size = sizes[level]
        names = name_groups(words, codes[:, level], np.zeros(size, np.int64))
        items = np.bincount(codes[:, level], minlength=size)
        parents = np.bincount(codes[levels[level].first, level], minlength=size)
        modalities = _by_modality(codes[:, level], collection.modality, size)
        by_modality = []
        for modality in Modality:
            mine = np.where(collection.modality == modality, codes[:, level], -1)
            by_modality.append(_nearest(mine, distances[:, level], size, 3))
        for code in np.flatnonzero(items).tolist():
            examples = tuple(row for nearest in by_modality for row in nearest[code])
            prefix = (*[-1] * level, code)
            found.append(
                Node(prefix, int(items[code]), names[code], modalities[code], examples, parents=int(parents[code]))
            )
    found.sort(key=lambda node: (len(node.codes), -node.items))
    if len(found) > MAX_CODES:
        limit = sorted((node.items for node in found), reverse=True)[MAX_CODES]
        found = [node for node in found if node.items > limit]
    return found


def _nearest(group: np.ndarray, distance: np.ndarray, groups: int, most: int) -> list[tuple[int, ...]]:
    """The rows of each group with the smallest distances, the smallest first; -1 is no group."""
    order = np.lexsort([distance, group])
    starts = np.searchsorted(group[order], np.arange(groups + 1))
    bounds = zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
    return [tuple(order[low : min(high, low + most)].tolist()) for low, high in bounds]


def _by_modality(group: np.ndarray, modality: np.ndarray, groups: int) -> list[tuple[int, ...]]:
    """Number of items of each modality in each group."""
    inside = group >= 0
    width = len(Modality)
    counts = np.bincount(group[inside] * width + modality[inside], minlength=groups * width)
    return [tuple(row) for row in counts.reshape(groups, width).tolist()]
