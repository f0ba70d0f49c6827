"""Names of codes: the words that set the items of a code apart from those of its siblings, by class-based TF-IDF."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from genius.atlas.words import Words

MAX_WORDS = 3  # in a name
CANDIDATES = 12  # best words of a group among which a name is chosen
RELATIVE = 0.45  # further words need this share of the first one's score
PHRASE = 0.5  # two words replace one of them if they occur with this share of its weight


@dataclass(frozen=True)
class NameWord:
    """A word of a name.

    Attributes:
        word: The word, or two words.
        here: Share of the code's items that have it.
        elsewhere: Share of the items of its siblings that have it.
    """

    word: str
    here: float
    elsewhere: float


@dataclass(frozen=True)
class Name:
    """The name of a code: at most three words, the best first. It has none if no item has words."""

    words: tuple[NameWord, ...] = ()

    def __str__(self) -> str:
        return ", ".join(word.word for word in self.words)

    @property
    def purity(self) -> float:
        """Share of the code's items that have the first word of the name."""
        return self.words[0].here if self.words else 0.0

    @property
    def elsewhere(self) -> float:
        """Share of the items of sibling codes that have the first word."""
        return self.words[0].elsewhere if self.words else 0.0


class _Table:
    """Sums of weights by (group, word). Rows are sorted by group, then word."""

    def __init__(self, group: np.ndarray, words: Words) -> None:
        self._size = len(words.vocabulary)
        keys, row = np.unique(group * self._size + words.word, return_inverse=True)
        self._keys = keys
        self.weight = np.bincount(row, words.weight, minlength=len(keys))
        self.group, self.word = np.divmod(keys, max(1, self._size))

    def of(self, group: np.ndarray, word: np.ndarray) -> np.ndarray:
        """The sums of these groups and words, which must be in the table."""
        found: np.ndarray = self.weight[np.searchsorted(self._keys, group * self._size + word)]
        return found


def name_groups(words: Words, group: np.ndarray, parent: np.ndarray, wanted: np.ndarray | None = None) -> list[Name]:
    """Name groups of items.

    The score of a word is tf * log(1 + A / f): tf is its share of the words of the group, f its weight among all groups
    with the same parent, A the mean number of words of these groups.

    Args:
        words: The words of n items.
        group: (n,) the group of each item, -1 for none.
        parent: (g,) the parent of each group. Groups of one parent are siblings.
        wanted: (w,) the groups to name. Default: all.

    Returns:
        A name for each wanted group.
    """
    wanted = np.arange(len(parent)) if wanted is None else wanted
    inside = group[words.item] >= 0
    words = Words(words.items, words.vocabulary, words.item[inside], words.word[inside], words.weight[inside])
    if not len(words.item):
        return [Name()] * len(wanted)
    here = _Table(group[words.item], words)
    among = _Table(parent[group[words.item]], words)
    sizes = np.bincount(group[group >= 0], minlength=len(parent)).astype(float)
    parent_sizes = np.bincount(parent, sizes)
    totals = np.bincount(here.group, here.weight, minlength=len(parent))
    parents = parent[here.group]
    mean = (np.bincount(parent, totals) / np.maximum(1, np.bincount(parent)))[parents]
    frequency = among.of(parents, here.word)
    score = here.weight / totals[here.group] * np.log1p(mean / frequency)
    share = here.weight / sizes[here.group]
    others = np.maximum(1, parent_sizes[parents] - sizes[here.group])
    elsewhere = (frequency - here.weight) / others
    asked = np.zeros(len(parent), bool)
    asked[wanted] = True
    rows = np.flatnonzero(asked[here.group])
    order = rows[np.lexsort([here.word[rows], -score[rows], here.group[rows]])]
    starts, ends = (np.searchsorted(here.group[order], wanted, side) for side in ("left", "right"))
    names = []
    for low, high in zip(starts.tolist(), np.minimum(ends, starts + CANDIDATES).tolist(), strict=True):
        best = order[low:high]
        columns = (column[best].tolist() for column in (here.word, score, share, elsewhere))
        names.append(_choose([(words.vocabulary[word], *rest) for word, *rest in zip(*columns, strict=True)]))
    return names


def _choose(rows: Sequence[tuple[str, float, float, float]]) -> Name:
    """Choose the words of a name from the best words of a group: (word, score, here, elsewhere), best first."""
    chosen: list[NameWord] = []
    for word, score, here, elsewhere in rows:
        if score < RELATIVE * rows[0][1] or len(chosen) == MAX_WORDS:
            break
        tokens = set(word.split(" "))
        overlapping = [place for place, one in enumerate(chosen) if tokens & set(one.word.split(" "))]
        if not overlapping:
            chosen.append(NameWord(word, min(1.0, here), max(0.0, elsewhere)))
            continue
        known = [chosen[place] for place in overlapping]
        if len(tokens) > 1 and all(" " not in one.word and here >= PHRASE * one.here for one in known):
            chosen[overlapping[0]] = NameWord(word, min(1.0, here), max(0.0, elsewhere))
            for place in reversed(overlapping[1:]):
                del chosen[place]
    return Name(tuple(chosen))
