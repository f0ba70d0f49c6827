"""Recall on the validation split, by which every stage chooses its weights."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from genius.data.splits import SplitData
from genius.train import distributed

AT = 5  # Recall@5
CPU = torch.device("cpu")


def recall(
    split: SplitData,
    queries: Sequence[np.ndarray] | Sequence[Tensor],
    candidates: np.ndarray | Tensor,
    device: torch.device = CPU,
) -> dict[str, float]:
    """Recall@5 (any hit, %) of exact search on a device, each task in its own pool, and the mean as `score`.

    queries: (n, d) vectors of each task's queries. The query's own image is never an answer.
    """
    rows = torch.as_tensor(candidates, device=device)

    def of_task(number: int) -> float:
        task, vectors = split.tasks[number], torch.as_tensor(queries[number], device=device)
        assert task.pool is not None
        scores = vectors @ rows[torch.from_numpy(task.pool).to(device)].T
        own = (task.image[:, None] >= 0) & (task.image[:, None] == split.image[task.pool])
        scores.masked_fill_(torch.from_numpy(own).to(device), -torch.inf)
        top = scores.topk(min(AT, len(task.pool)), dim=1)
        best = np.where(np.isfinite(top.values.cpu().numpy()), task.pool[top.indices.cpu().numpy()], -1)
        hits = [np.isin(found, right).any() for found, right in zip(best, task.positives, strict=True)]
        return 100 * float(np.mean(hits))

    return recall_by_task(split, of_task)


def recall_by_task(split: SplitData, of_task: Callable[[int], float]) -> dict[str, float]:
    """The recall of each task, given by number, and the mean as `score`. The processes share the tasks."""
    return with_mean(distributed.by_name([task.task.name for task in split.tasks], of_task))


def embedding_recall(
    split: SplitData, embed: Callable[[np.ndarray, np.ndarray], np.ndarray], device: torch.device = CPU
) -> dict[str, float]:
    """`recall` of the vectors that embed(text, image) gives, (n,) and (n,) numbers -> (n, d)."""
    queries = [embed(task.text, task.image) for task in split.tasks]
    return recall(split, queries, embed(split.text, split.image), device)


def with_mean(recalls: dict[str, float]) -> dict[str, float]:
    """Recall by task, preceded by the mean as `score`."""
    return {"score": float(np.mean(list(recalls.values()))), **recalls}
