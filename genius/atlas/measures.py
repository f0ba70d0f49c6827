"""Measures of what the codes of a collection mean, each with a 95 % bootstrap interval and, where it helps, chance."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from genius.atlas.collection import Collection, sampled
from genius.atlas.names import name_groups
from genius.atlas.tree import NAMED_LEVELS
from genius.atlas.words import Words
from genius.data.items import Modality
from genius.encoders.base import Vectors
from genius.evaluation.metrics import interval, middle
from genius.index.index import Index

SAMPLE = 2000  # images and texts whose vectors are compared with their codes
PAIRS = 500  # pairs that are encoded again: their image alone and their text alone
ROUNDS = 500  # of the bootstrap of ratios
COMPARED = 4000  # pairs of items whose words are compared


@dataclass(frozen=True)
class Row:
    """A value in percent with its interval; chance is what items without any relation reach."""

    level: str
    value: float
    low: float
    high: float
    chance: float | None = None


@dataclass(frozen=True)
class Measure:
    """A measure, one row for each level."""

    title: str
    about: str
    rows: list[Row]
    unit: str = "%"

    @property
    def chance(self) -> bool:
        """Whether any row says what chance is."""
        return any(row.chance is not None for row in self.rows)


def measures_json(measures: dict[str, Measure]) -> dict[str, Any]:
    """The measures as JSON values."""
    return {name: asdict(measure) | {"chance": measure.chance} for name, measure in measures.items()}


def measure_collection(index: Index, collection: Collection, words: Words) -> dict[str, Measure]:
    """Measure the codes of a collection, without queries."""
    alone = np.flatnonzero(collection.modality != Modality.IMAGE_TEXT)
    both = np.flatnonzero(collection.modality == Modality.IMAGE_TEXT)
    rows = np.concatenate([alone[sampled(len(alone), SAMPLE)], both[sampled(len(both), PAIRS)]])
    rows = rows[[bool(collection.texts[row]) or bool(collection.has_image[row]) for row in rows.tolist()]]
    vectors = collection.vectors(index, rows)
    fused, codes = collection.model.fuse(vectors), collection.codes[rows]
    found = {
        "modality": modality_purity(collection, fused, rows),
        "variance": variance_explained(collection, fused, codes),
        "unique": unique_ids(collection),
        "names": name_purity(collection, words),
        "same": same_code(collection, words),
    }
    pairs = vectors[vectors.modality == Modality.IMAGE_TEXT]
    if len(pairs) > 1 and not collection.model.encoder.joint:
        found["caption"] = caption_agreement(collection, pairs)
    return {name: measure for name, measure in found.items() if measure.rows}


def share(level: str, right: np.ndarray, chance: float | None = None) -> Row:
    """The row of a share of cases. right: (n,) bool."""
    values = np.asarray(right, np.float64)
    low, high = interval(values)
    return Row(level, 100 * float(values.mean()), 100 * low, 100 * high, None if chance is None else 100 * chance)


def modality_purity(collection: Collection, fused: np.ndarray, rows: np.ndarray) -> Measure:
    """How well the first code separates the modalities, as assigned and by the nearest code vector."""
    modality = collection.modality
    nearest = collection.model.quantizer.encode(fused)[:, 0]
    return Measure(
        "Modality purity of the first code",
        "Share of the items whose modality is the commonest one of their first code. As assigned: where the model sets "
        "the first code to the modality, it is 100 % by construction. Nearest: if each item took the nearest of the "
        "three code vectors, as the published model does.",
        [
            share("as assigned", _commonest(collection.codes[:, 0], modality)),
            share("nearest", _commonest(nearest, modality[rows])),
        ],
    )


def _commonest(first: np.ndarray, modality: np.ndarray) -> np.ndarray:
    counts = np.zeros((int(first.max()) + 1, len(Modality)), np.int64)
    np.add.at(counts, (first, modality), 1)
    return np.asarray(counts.argmax(axis=1)[first] == modality)


def variance_explained(collection: Collection, fused: np.ndarray, codes: np.ndarray) -> Measure:
    """The part of the variance of the vectors that the first 1, 2, ... codes explain."""
    total = np.square(fused - fused.mean(axis=0)).sum(axis=1)
    left, errors = fused.copy(), []
    for level, book in enumerate(collection.model.quantizer.codebooks):
        left = left - book[codes[:, level]]
        errors.append(np.square(left).sum(axis=1))
    table = np.stack([*errors, total], axis=1)  # (n, levels + 1)
    drawn = np.random.default_rng(0).multinomial(len(fused), [1 / len(fused)] * len(fused), ROUNDS) @ table
    resampled = 100 * (1 - drawn[:, :-1] / drawn[:, -1:])
    sums = table.sum(axis=0)
    rows = [
        Row(f"1–{level + 1}" if level else "1", 100 * (1 - float(sums[level] / sums[-1])), *middle(resampled[:, level]))
        for level in range(len(errors))
    ]
    return Measure(
        "Variance explained by the first codes",
        "1 - (squared distance of the fused vectors from the sum of their first code vectors) / (their squared "
        f"distance from their mean), over {len(fused):,} items.",
        rows,
    )


def unique_ids(collection: Collection) -> Measure:
    """The share of items that no other item shares its first codes with, for each number of codes."""
    prefix = np.zeros(len(collection), np.int64)
    rows = []
    for level, size in enumerate(collection.model.sizes):
        prefix = np.unique(prefix * size + collection.codes[:, level], return_inverse=True)[1].reshape(-1)
        alone = np.bincount(prefix)[prefix] == 1
        rows.append(share(f"1–{level + 1}" if level else "1", alone))
    about = "Share of the items that are alone under their first codes; at the last level, items without a collision."
    return Measure("Items alone under their first codes", about, rows)


def name_purity(collection: Collection, words: Words) -> Measure:
    """Whether names of codes hold for items that they were not made from."""
    order = np.random.default_rng(0).permutation(len(collection))
    made, held = np.sort(order[: len(order) // 2]), np.sort(order[len(order) // 2 :])
    keys = np.sort(words.item * len(words.vocabulary) + words.word)
    numbers = {word: number for number, word in enumerate(words.vocabulary)}
    rows = []
    for level in range(1, min(len(collection.model.sizes), NAMED_LEVELS)):
        size, codes = collection.model.sizes[level], collection.codes[:, level].astype(np.int64)
        names = name_groups(words.select(made), codes[made], np.zeros(size, np.int64))
        first = np.array([numbers[name.words[0].word] if name.words else -1 for name in names])
        shuffled = np.random.default_rng(level).permutation(held)
        hits = [_has(keys, of, first[codes[held]], len(words.vocabulary)) for of in (held, shuffled)]
        rows.append(share(str(level + 1), hits[0], float(hits[1].mean())))
    return Measure(
        "Items that have the first word of their code's name",
        "Each code is named from one half of the items, under any prefix, and tested on the other half. By chance: the "
        "names of other items' codes.",
        rows if len(held) else [],
    )


def _has(keys: np.ndarray, items: np.ndarray, word: np.ndarray, vocabulary: int) -> np.ndarray:
    wanted = items * vocabulary + word
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1) if len(keys) else np.zeros(len(wanted), np.int64)
    return (word >= 0) & (keys[at] == wanted) if len(keys) else np.zeros(len(wanted), bool)


def same_code(collection: Collection, words: Words) -> Measure:
    """Whether a code of a deeper level means the same under different codes of level 2."""
    sets: list[set[int]] = [set() for _ in range(len(collection))]
    single = np.array([" " not in word for word in words.vocabulary], bool)
    for item, word in zip(*(column[single[words.word]].tolist() for column in (words.item, words.word)), strict=True):
        sets[item].add(word)
    speaking = np.flatnonzero([bool(found) for found in sets])
    rows = []
    for level in range(2, min(len(collection.model.sizes), NAMED_LEVELS)):
        shared = {}
        for same in (True, False):
            pairs = _pairs(collection.codes[speaking].astype(np.int64), level, same)
            shared[same] = np.array([bool(sets[speaking[a]] & sets[speaking[b]]) for a, b in pairs.tolist()])
        if min(map(len, shared.values())) > 1:
            rows.append(share(str(level + 1), shared[True], float(shared[False].mean())))
    return Measure(
        "Pairs of items under different codes of level 2 that share a word",
        "Pairs with the same code at this level. By chance: pairs with different codes at it.",
        rows,
    )


def _pairs(codes: np.ndarray, level: int, same: bool) -> np.ndarray:
    """Random pairs of rows that differ at level 1 (from 0) and agree, or differ, at `level`: (p, 2)."""
    random = np.random.default_rng(level)
    if not len(codes):
        return np.zeros((0, 2), np.int64)
    first = random.integers(len(codes), size=3 * COMPARED)
    if same:
        order = np.argsort(codes[:, level], kind="stable")
        lows, highs = (np.searchsorted(codes[order, level], codes[first, level], side) for side in ("left", "right"))
        second = order[random.integers(lows, highs)]
    else:
        second = random.integers(len(codes), size=len(first))
    fits = (codes[first, 1] != codes[second, 1]) & ((codes[first, level] == codes[second, level]) == same)
    pairs: np.ndarray = np.stack([first, second], axis=1)[fits][:COMPARED]
    return pairs


def caption_agreement(collection: Collection, pairs: Vectors) -> Measure:
    """Whether an image and its caption, each as an item of its own, get the same codes."""
    none = np.zeros_like(pairs.image)
    image, text = (collection.model.codes(Vectors(*both)) for both in ((pairs.image, none), (none, pairs.text)))
    return Measure(
        "Codes that an image and its caption share",
        f"Image and text of {len(pairs):,} pairs, encoded separately: the share of pairs with the same code at this "
        "level and at all semantic levels before it. By chance: images with the captions of other pairs.",
        agreement_rows(image, [text[row : row + 1] for row in range(len(text))], start=1),
    )


def agreement_rows(
    codes: np.ndarray, answers: Sequence[np.ndarray], start: int = 0, group: np.ndarray | None = None
) -> list[Row]:
    """The share of IDs that agree with at least one of their answers in all codes from `start` up to each level.

    Args:
        codes: (n, levels) IDs.
        answers: For each, the IDs (a, levels) of its answers.
        start: The first level that counts.
        group: (n,) chance pairs an ID with the answers of the next one of the same group.
    """
    group = np.zeros(len(codes), np.int64) if group is None else group
    other = np.empty(len(codes), np.int64)
    for one in np.unique(group):
        mine = np.random.default_rng(0).permutation(np.flatnonzero(group == one))
        other[mine] = np.roll(mine, 1)

    def agreeing(with_answers: Sequence[np.ndarray]) -> np.ndarray:
        """(n, levels - start) bool."""
        right = np.empty((len(codes), codes.shape[1] - start), bool)
        for row, answer in enumerate(with_answers):
            right[row] = np.logical_and.accumulate(answer[:, start:] == codes[row, start:], axis=1).any(axis=0)
        return right

    right, chance = agreeing(answers), agreeing([answers[row] for row in other.tolist()])
    levels = range(start, codes.shape[1])
    name = f"{start + 1}–" if start else "1–"
    return [
        share(
            f"{name}{level + 1}" if level > start else str(level + 1), right[:, place], float(chance[:, place].mean())
        )
        for place, level in enumerate(levels)
    ]
