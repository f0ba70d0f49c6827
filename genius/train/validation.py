"""Recall on the validation split, the figure by which every stage chooses its weights.

Knows vectors and who is right; knows nothing of how the vectors were made.
"""

from collections.abc import Sequence

import numpy as np
import torch

from genius.data.splits import SplitData

AT = 5


def recall(split: SplitData, queries: Sequence[np.ndarray], candidates: np.ndarray) -> dict[str, float]:
    """Recall@5 (any hit, %) of each task's queries (n, d) by exact search in its own pool, and their mean as `score`.

    The query's own image is never an answer.
    """
    figures = {}
    for task, vectors in zip(split.tasks, queries, strict=True):
        assert task.pool is not None
        scores = torch.from_numpy(vectors) @ torch.from_numpy(candidates[task.pool]).T
        own = (task.image[:, None] >= 0) & (task.image[:, None] == split.image[task.pool])
        scores.masked_fill_(torch.from_numpy(own), -torch.inf)
        top = scores.topk(min(AT, len(task.pool)), dim=1)
        best = np.where(np.isfinite(top.values.numpy()), task.pool[top.indices.numpy()], -1)
        hits = [np.isin(found, right).any() for found, right in zip(best, task.positives, strict=True)]
        figures[task.task.name] = 100 * float(np.mean(hits))
    return {"score": float(np.mean(list(figures.values()))), **figures}
