"""Batches of query-target pairs, and the stage that trains on them."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from genius.data.splits import SplitData
from genius.train.config import StageConfig
from genius.train.data import StageVectors, TrainingData
from genius.train.loop import Stage


class Pairs:
    """All queries of a split as one list, sampled task by task. For `balance` and `mix`, see `StageConfig`."""

    def __init__(self, split: SplitData, balance: float, mix: int) -> None:
        self.mix = mix
        tasks = split.tasks
        self.text = np.concatenate([t.text for t in tasks])
        self.image = np.concatenate([t.image for t in tasks])
        positives = [p for t in tasks for p in t.positives]
        self._first = np.concatenate([[0], np.cumsum([len(p) for p in positives])])
        self._positives = np.concatenate(positives)
        sizes = np.array([len(t) for t in tasks])
        self._starts, self._sizes = np.cumsum(sizes) - sizes, sizes
        self._shares = sizes**balance / (sizes**balance).sum()

    def __len__(self) -> int:
        return len(self.text)

    def draw(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw at most n distinct queries, and a right candidate for each."""
        task = rng.choice(rng.choice(len(self._sizes), self.mix, p=self._shares), n)
        queries = np.unique(self._starts[task] + (rng.random(n) * self._sizes[task]).astype(np.int64))
        count = np.diff(self._first)[queries]
        return queries, self._positives[self._first[queries] + (rng.random(len(queries)) * count).astype(np.int64)]

    def targets(self) -> np.ndarray:
        """Rows of all candidates that are right for any query, sorted."""
        return np.unique(self._positives)

    def false_negatives(self, queries: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        """(n, n) bool: whether candidate j, drawn for query j, is right for query i != j as well."""
        counts = np.diff(self._first)[queries]
        starts = np.cumsum(counts) - counts
        at = np.repeat(self._first[queries] - starts, counts) + np.arange(counts.sum())
        right = np.logical_or.reduceat(self._positives[at][:, None] == candidates, starts)
        np.fill_diagonal(right, False)
        return right


class PairStage(Stage):
    """A stage that trains on batches of query-target pairs."""

    config: StageConfig

    def __init__(self, data: TrainingData, config: StageConfig, seed: int, average: float = 0.0) -> None:
        self.data, self.config, self.seed = data, config, seed
        self.pairs = Pairs(data.train, config.balance, config.mix)
        self.warmup, self.validate_every, self.average = config.warmup, config.validate_every, average

    def group(self, parameters: Iterable[nn.Parameter], decayed: bool = True) -> dict[str, Any]:
        """A parameter group of AdamW."""
        decay = self.config.weight_decay if decayed else 0.0
        return {"params": list(parameters), "lr": self.config.rate, "weight_decay": decay}


def tensor_pair(vectors: StageVectors, text: np.ndarray, image: np.ndarray) -> tuple[Tensor, Tensor]:
    """Image and text vectors (n, d) float32 of n texts with n images, in the order in which fusion takes them."""
    both = vectors.vectors(text, image)
    image_vectors, text_vectors = (torch.from_numpy(np.asarray(half, np.float32)) for half in (both.image, both.text))
    return image_vectors, text_vectors
