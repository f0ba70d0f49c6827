"""Recall on the validation split, by which every stage chooses its weights."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from genius.data.splits import SplitData

AT = 5


def recall(split: SplitData, queries: Sequence[np.ndarray], candidates: np.ndarray) -> dict[str, float]:
    """Recall@5 (any hit, %) of exact search, each task in its own pool, and the mean as `score`.

    queries: (n, d) vectors of each task's queries. The query's own image is never an answer.
    """
    recalls = {}
    for task, vectors in zip(split.tasks, queries, strict=True):
        assert task.pool is not None
        scores = torch.from_numpy(vectors) @ torch.from_numpy(candidates[task.pool]).T
        own = (task.image[:, None] >= 0) & (task.image[:, None] == split.image[task.pool])
        scores.masked_fill_(torch.from_numpy(own), -torch.inf)
        top = scores.topk(min(AT, len(task.pool)), dim=1)
        best = np.where(np.isfinite(top.values.numpy()), task.pool[top.indices.numpy()], -1)
        hits = [np.isin(found, right).any() for found, right in zip(best, task.positives, strict=True)]
        recalls[task.task.name] = 100 * float(np.mean(hits))
    return with_mean(recalls)


def embedding_recall(split: SplitData, embed: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> dict[str, float]:
    """`recall` of the vectors that embed(text, image) gives, (n,) and (n,) numbers -> (n, d)."""
    return recall(split, [embed(task.text, task.image) for task in split.tasks], embed(split.text, split.image))


def with_mean(recalls: dict[str, float]) -> dict[str, float]:
    """Recall by task, preceded by the mean as `score`."""
    return {"score": float(np.mean(list(recalls.values()))), **recalls}
