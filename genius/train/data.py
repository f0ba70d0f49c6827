"""Training data: the train and val splits with the prompts of their queries, and stage-1 vectors of both."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from genius.data.mbeir import Benchmark
from genius.data.splits import SplitData, TaskData, Vocabulary, read_split
from genius.encoders.base import Vectors
from genius.errors import BadData

VALIDATION_QUERIES = 5_000  # per task, at most
VALIDATION_POOL = 20_000  # candidates per task, at most, including the right ones


class TrainingData:
    """The train and val splits of one or more benchmarks. Large validation tasks are sampled.

    Args:
        roots: Folders in M-BEIR layout.
        seed: Seed of the choice of prompts.
        derived_prompts: Share of the training queries that get the instruction of a query without a prompt. The others
            get one of their task's prompts at random: users search both ways.
    """

    def __init__(self, roots: Sequence[Path], seed: int, derived_prompts: float) -> None:
        self.texts, self.images = Vocabulary(), Vocabulary()  # the numbers of both splits refer to these
        rng = np.random.default_rng([seed, 1])
        benchmarks = [Benchmark(root) for root in roots]

        def choose(prompts: Sequence[str]) -> str | None:
            if rng.random() < derived_prompts:
                return None
            return prompts[int(rng.integers(len(prompts)))]

        self.train = read_split(benchmarks, "train", self.texts, self.images, choose)
        texts, images = Vocabulary(), Vocabulary()
        self.val = sampled(read_split(benchmarks, "val", texts, images), VALIDATION_QUERIES, VALIDATION_POOL)
        renumber(self.val, "text", texts, self.texts)
        renumber(self.val, "image", images, self.images)


class StageVectors(ABC):
    """Stage-1 vectors of texts with images, both given by number; -1 means none."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """Dimensions of the vectors."""

    @abstractmethod
    def vectors(self, text: np.ndarray, image: np.ndarray) -> Vectors:
        """Vectors of n texts (n,) with n images (n,)."""

    def embedding(self, text: np.ndarray, image: np.ndarray) -> np.ndarray:
        """(n, d) the normalised sums of text and image vectors, phi of Eq. 2."""
        return self.vectors(text, image).embedding()


@dataclass
class FrozenVectors(StageVectors):
    """Of an encoder that encodes texts and images separately.

    Both arrays may be memory-mapped: only the rows in use are read.
    """

    texts: np.ndarray  # (texts + 1, d); the last row, which number -1 selects, is zero
    images: np.ndarray  # (images + 1, d), as `texts`

    @property
    def dim(self) -> int:
        """Dimensions of the vectors."""
        return int(self.texts.shape[1])

    def vectors(self, text: np.ndarray, image: np.ndarray) -> Vectors:
        """See `StageVectors.vectors`."""
        return Vectors(self.images[image], self.texts[text])


@dataclass
class JointVectors(StageVectors):
    """Of a joint encoder: one vector of each pair. The rows may be memory-mapped.

    A text without an image, or an image without a text, is a pair with the number -1.
    """

    pairs: np.ndarray  # (m, 2) numbers of text and image, as `distinct_pairs` returns them
    rows: np.ndarray  # (m, d) their vectors

    @property
    def dim(self) -> int:
        """Dimensions of the vectors."""
        return int(self.rows.shape[1])

    def vectors(self, text: np.ndarray, image: np.ndarray) -> Vectors:
        """See `StageVectors.vectors`. Raises BadData for a pair that was not encoded."""
        return Vectors.joint(self.rows[self.find(text, image)], image >= 0, text >= 0)

    def find(self, text: np.ndarray, image: np.ndarray) -> np.ndarray:
        """Rows (n,) of n pairs. Raises BadData for a pair that was not encoded."""
        keys, base = self._keys
        asked = _pair_keys(text, image, base)
        at = np.searchsorted(keys, asked)
        if (at == len(keys)).any() or (keys[at] != asked).any() or (text >= base - 1).any():
            raise BadData("A text and an image were not encoded together. Delete the cached vectors and start again.")
        return at

    @cached_property
    def _keys(self) -> tuple[np.ndarray, int]:
        base = _key_base(self.pairs[:, 0])
        return _pair_keys(self.pairs[:, 0], self.pairs[:, 1], base), base


def distinct_pairs(text: np.ndarray, image: np.ndarray) -> np.ndarray:
    """The distinct pairs of a text (n,) and an image (n,), given by number: (m, 2), ordered by image, then text.

    Pairs that share an image follow each other, so that it is read once.
    """
    base = _key_base(text)
    keys = np.unique(_pair_keys(text, image, base))
    return np.stack([keys % base - 1, keys // base - 1], axis=1)


def _key_base(text: np.ndarray) -> int:
    return int(text.max(initial=-1)) + 2


def _pair_keys(text: np.ndarray, image: np.ndarray, base: int) -> np.ndarray:
    """One number for each pair, in the order of `distinct_pairs`."""
    return np.asarray((image.astype(np.int64) + 1) * base + text + 1)


def sampled(split: SplitData, queries: int, pool: int) -> SplitData:
    """Sample at most this many queries per task and candidates per pool, keeping the right candidates.

    The sample is the same every time. A split that is small enough is returned unchanged.
    """
    if all(len(t) <= queries and len(_pool(t)) <= pool for t in split.tasks):
        return split
    rng = np.random.default_rng(0)
    tasks = [_sampled_task(task, queries, pool, rng) for task in split.tasks]
    used = np.unique(np.concatenate([rows for t in tasks for rows in (_pool(t), *t.positives)]))
    for task in tasks:
        task.pool = np.searchsorted(used, _pool(task))
        task.positives = [np.searchsorted(used, right) for right in task.positives]
    return SplitData(tasks, [split.dids[row] for row in used], split.text[used], split.image[used])


def _sampled_task(task: TaskData, queries: int, pool: int, rng: np.random.Generator) -> TaskData:
    some = task.select(np.sort(rng.permutation(len(task))[:queries]))
    right = np.unique(np.concatenate(some.positives))
    others = rng.permutation(np.setdiff1d(_pool(task), right))[: max(0, pool - len(right))]
    some.pool = _pool(task)[np.isin(_pool(task), np.concatenate([right, others]))]
    return some


def _pool(task: TaskData) -> np.ndarray:
    assert task.pool is not None
    return task.pool


def renumber(split: SplitData, name: Literal["text", "image"], old: Vocabulary, new: Vocabulary) -> None:
    """Replace the numbers of a split's texts or images by their numbers in another vocabulary."""
    parts: list[SplitData | TaskData] = [split, *split.tasks]
    used = np.unique(np.concatenate([getattr(part, name) for part in parts]))
    table = np.full(len(old.names) + 1, -1)  # the last entry is for number -1
    for number in used[used >= 0]:
        table[number] = new.number(old.names[number])
    for part in parts:
        setattr(part, name, table[getattr(part, name)])
