"""Words of items: those of their texts; of images without a text, those of the nearest texts."""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from genius.atlas.collection import Collection, sampled
from genius.encoders.base import Prepared
from genius.runtime.threads import over_blocks

NEIGHBOURS = 5  # texts whose words an image gets
MAX_TEXTS = 10_000  # texts that images are compared with
FEW_TEXTS = 20  # with fewer distinct texts, images are compared with the bundled words instead
HAS_WORD = 0.4  # an image has a word if this share of its nearest texts has it
BLOCK = 512
BREAK = re.compile(r"[.,;:!?()\[\]\"/]+")
TOKEN = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")


def _bundled(name: str) -> list[str]:
    """The words of a file of this folder, between commas; lines that start with # are comments."""
    lines = files("genius.atlas").joinpath(name).read_text(encoding="utf-8").splitlines()
    parts = ",".join(line for line in lines if not line.startswith("#")).split(",")
    return [word for part in parts if (word := part.strip())]


STOP_WORDS = frozenset(_bundled("stop_words.txt"))


@dataclass(frozen=True)
class Words:
    """Which items have which words, as pairs. A word is a single word or two adjacent ones.

    Attributes:
        items: Number of items.
        vocabulary: The words.
        item: (p,) the item of each pair.
        word: (p,) its word, a position in the vocabulary.
        weight: (p,) 1, or the share of an image's nearest texts that have the word.
    """

    items: int
    vocabulary: list[str]
    item: np.ndarray
    word: np.ndarray
    weight: np.ndarray

    def select(self, rows: np.ndarray) -> "Words":
        """The words of some items only, which are numbered anew in the order of `rows`."""
        place = np.full(self.items, -1)
        place[rows] = np.arange(len(rows))
        kept = place[self.item] >= 0
        return Words(len(rows), self.vocabulary, place[self.item[kept]], self.word[kept], self.weight[kept])


def words_of(collection: Collection) -> Words:
    """The words of all items of a collection."""
    tokens = [terms(text) for text in collection.texts]
    silent = np.flatnonzero(collection.has_image & np.array([not found for found in tokens]))
    if len(silent):
        sources, nearest = _nearest_texts(collection, tokens, silent)
    else:
        sources, nearest = [], np.zeros((0, 0), np.int64)
    fold = _folding(tokens if sources is tokens else [*tokens, *sources])
    numbers: dict[str, int] = {}
    item: list[int] = []
    word: list[int] = []
    weight: list[float] = []

    def add(row: int, shares: dict[str, float]) -> None:
        for term, share in shares.items():
            item.append(row)
            word.append(numbers.setdefault(term, len(numbers)))
            weight.append(share)

    for row, found in enumerate(tokens):
        add(row, dict.fromkeys(map(fold, found), 1.0))
    for row, near in zip(silent.tolist(), nearest.tolist(), strict=True):
        counts = Counter(term for source in near for term in set(map(fold, sources[source])))
        add(row, {term: count / len(near) for term, count in counts.items() if count / len(near) >= HAS_WORD})
    pairs = np.array(item, np.int64), np.array(word, np.int64), np.array(weight, np.float32)
    return Words(len(collection), list(numbers), *pairs)


def terms(text: str) -> list[str]:
    """The distinct words of a text and its pairs of adjacent words, in lower case, without stop words."""
    parts = [TOKEN.findall(part) for part in BREAK.split(text.lower())]
    single = [token for part in parts for token in part if _counts(token)]
    pairs = (pair for part in parts for pair in itertools.pairwise(part))
    double = [f"{first} {second}" for first, second in pairs if first != second and _counts(first) and _counts(second)]
    return list(dict.fromkeys(single + double))


def _counts(token: str) -> bool:
    return len(token) > 1 and token not in STOP_WORDS


def _folding(tokens: Sequence[Sequence[str]]) -> Callable[[str], str]:
    """A function that maps a plural to its singular where the texts have both."""
    known = {token for found in tokens for token in found if " " not in token}
    single: dict[str, str] = {}
    for token in known:
        for ending, instead in (("ies", "y"), ("es", ""), ("s", "")):
            stem = token.removesuffix(ending) + instead
            if token.endswith(ending) and not token.endswith("ss") and len(stem) > 2 and stem in known:
                single[token] = stem
                break
    return lambda term: " ".join(single.get(token, token) for token in term.split(" "))


def _nearest_texts(
    collection: Collection, tokens: list[list[str]], rows: np.ndarray
) -> tuple[list[list[str]], np.ndarray]:
    """The terms of some texts, and the numbers (r, k) of those nearest to each row by vector.

    The texts are those of the collection; if it has only a few, the bundled words.
    """
    with_text = np.flatnonzero([bool(found) for found in tokens])
    if len({tuple(tokens[row]) for row in with_text.tolist()}) >= FEW_TEXTS:
        chosen = with_text[sampled(len(with_text), MAX_TEXTS)]
        sources, vectors = [tokens[row] for row in chosen.tolist()], collection.directions[chosen]
    else:
        bundled = bundled_words()
        encoded = collection.model.encode([Prepared(None, f"A photo of {word}.") for word in bundled])
        sources, vectors = [terms(word) for word in bundled], encoded.embedding()
    return sources, nearest_rows(collection.directions[rows], vectors, NEIGHBOURS)


def bundled_words() -> list[str]:
    """Words for things, places, actions and colours: names for the images of a collection without texts."""
    return _bundled("words.txt")


def nearest_rows(queries: np.ndarray, vectors: np.ndarray, k: int) -> np.ndarray:
    """Numbers (q, k) of the vectors (n, d) with the largest inner products with each query (q, d), largest first."""
    k = min(k, len(vectors))
    found = np.empty((len(queries), k), np.int64)

    def work(block: slice) -> None:
        scores = queries[block] @ vectors.T
        rows = np.arange(len(scores))
        for place in range(k):  # for a few places, faster than to sort
            best = scores.argmax(axis=1)
            found[block, place] = best
            scores[rows, best] = -np.inf

    over_blocks(work, len(queries), BLOCK)
    return found
