"""Batches of query-target pairs, and the stages that train on them."""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from genius.data.splits import SplitData
from genius.errors import BadData
from genius.train import distributed
from genius.train.compute import CPU, Compute
from genius.train.config import ClipStageConfig, EncoderStageConfig, QuantizerStageConfig, StageConfig
from genius.train.data import StageVectors, TrainingData
from genius.train.loop import Losses, Stage, step_seed
from genius.train.losses import contrastive_loss


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


@dataclass
class Batch:
    """What the CPU prepares for a step.

    Attributes:
        seed: Of torch's random numbers, for dropout.
        parts: Inputs of the network, lists and dicts of tensors: the rows of this process in `accumulate` parts.
        whole: Tensors about the rows of all processes.
        state: Of torch's random numbers after some were drawn to prepare the batch, or None if none were.
    """

    seed: int
    parts: list[Any]
    whole: dict[str, Tensor]
    state: Tensor | None = None

    def seed_torch(self, part: int = 0) -> None:
        """Set torch's random numbers for one of the parts. Every process has its own."""
        number = part * distributed.world() + distributed.rank()
        torch.manual_seed(self.seed + number)  # of all devices
        if self.state is not None and not number:
            torch.set_rng_state(self.state)


class PairStage(Stage):
    """A stage that trains on batches of query-target pairs.

    The CPU prepares a batch, then the device computes the loss. Nothing is copied back to the CPU in between, so that a
    GPU is never waited for; a thread prepares the next batch meanwhile.
    """

    config: StageConfig
    reads_files = False  # whether a thread prepares the next batch on the CPU too

    def __init__(
        self, data: TrainingData, config: StageConfig, seed: int, average: float = 0.0, compute: Compute = CPU
    ) -> None:
        self.data, self.config, self.seed, self.compute = data, config, seed, compute
        self.pairs = Pairs(data.train, config.balance, config.mix)
        self.modality = data.train.modality
        self.warmup, self.validate_every, self.average = config.warmup, config.validate_every, average
        self.scaler = compute.scaler()
        self._thread = ThreadPoolExecutor(1, "batches")
        self._next: tuple[int, Future[Batch]] | None = None

    def group(self, parameters: Iterable[nn.Parameter], decayed: bool = True) -> dict[str, Any]:
        """A parameter group of AdamW."""
        decay = self.config.weight_decay if decayed else 0.0
        return {"params": list(parameters), "lr": self.config.rate, "weight_decay": decay}

    @abstractmethod
    def prepare(self, step: int) -> Batch:
        """The batch of a step, on the CPU. Must not use torch's own random numbers: it may run in a thread."""

    def batch(self, step: int) -> Batch:
        """The batch of a step, on the device."""
        ready = self._next[1].result() if self._next and self._next[0] == step else self._put(step)
        ahead = (self.reads_files or self.compute.device.type != "cpu") and step + 1 < self.steps
        self._next = (step + 1, self._thread.submit(self._put, step + 1)) if ahead else None
        return ready

    def _put(self, step: int) -> Batch:
        batch = self.prepare(step)
        return replace(batch, parts=self.compute.put(batch.parts), whole=self.compute.put(batch.whole))

    def split(self, count: int) -> list[np.ndarray]:
        """Numbers of the rows of this process in a batch of `count` rows, in `accumulate` parts."""
        if count < distributed.world():
            raise BadData(
                f"A batch of {count} rows cannot be divided among {distributed.world()} processes. Set a larger batch "
                "for this stage, or start fewer processes."
            )
        rows = distributed.own(np.arange(count))
        return np.array_split(rows, min(self.config.accumulate, len(rows)))


class EmbeddingStage(PairStage):
    """A stage whose loss compares the vectors of all queries and targets of a batch.

    If a batch is computed in parts, vectors are computed twice: without gradients, to derive the loss by them, and
    then part by part, to derive them by the weights. The result is that of the whole batch, the memory that of a part.
    """

    config: ClipStageConfig | EncoderStageConfig | QuantizerStageConfig

    @abstractmethod
    def inputs(
        self, queries: np.ndarray, targets: np.ndarray, parts: list[np.ndarray], rng: np.random.Generator
    ) -> list[Any]:
        """Inputs of the network for some of these pairs. parts: numbers of the pairs of each part."""

    @abstractmethod
    def embed(self, inputs: Any) -> tuple[Tensor, Tensor]:
        """Vectors (n, d) of the queries and targets of a part."""

    def compare(self, queries: Tensor, targets: Tensor, whole: dict[str, Tensor]) -> Losses:
        """The loss of all vectors (n, d), and more metrics. Here: Eqs. 2 and 3. whole: see `prepare`."""
        return contrastive_loss(queries, targets, self.config.temperature, whole["masked"]), {}

    def random(self, step: int) -> tuple[np.random.Generator, int]:
        """Random generator of a step, and the seed of torch's random numbers."""
        return step_seed(self.seed, self.name, step)

    def prepare(self, step: int) -> Batch:
        """See `PairStage.prepare`. `whole` holds `masked` (n, n), the false negatives, and `modality` (n,)."""
        rng, seed = self.random(step)
        queries, targets = self.pairs.draw(rng, self.config.batch)
        whole = {
            "masked": torch.from_numpy(self.pairs.false_negatives(queries, targets)),
            "modality": torch.from_numpy(self.modality[targets]),
        }
        return Batch(seed, self.inputs(queries, targets, self.split(len(queries)), rng), whole)

    def loss(self, step: int) -> Losses:
        """See `Stage.loss`."""
        batch = self.batch(step)
        batch.seed_torch()
        return self._compared([self._embed(inputs) for inputs in batch.parts], batch.whole)

    def parts(self, step: int) -> list[Callable[[], Losses]]:
        """See `Stage.parts`."""
        if self.config.accumulate == 1:
            return super().parts(step)
        batch, vectors = self.batch(step), []
        with torch.no_grad():
            for number, inputs in enumerate(batch.parts):
                batch.seed_torch(number)
                vectors.append(self._embed(inputs))
        leaves = [vector.requires_grad_() for pair in vectors for vector in pair]
        loss, metrics = self._compared(vectors, batch.whole)
        gradients = torch.autograd.grad(loss, leaves)

        def part(number: int) -> Losses:
            batch.seed_torch(number)
            queries, targets = self._embed(batch.parts[number])
            total = (queries * gradients[2 * number]).sum() + (targets * gradients[2 * number + 1]).sum()
            return total, {} if number else {"loss": loss.detach(), **metrics}

        return [partial(part, number) for number in range(len(batch.parts))]

    def _embed(self, inputs: Any) -> tuple[Tensor, Tensor]:
        with self.compute.autocast():
            queries, targets = self.embed(inputs)
        return queries.float(), targets.float()

    def _compared(self, vectors: list[tuple[Tensor, Tensor]], whole: dict[str, Tensor]) -> Losses:
        """The loss of the vectors of all parts and processes."""
        sides = (side[0] if len(side) == 1 else torch.cat(side) for side in zip(*vectors, strict=True))
        queries, targets = (distributed.gathered(side, len(whole["masked"])) for side in sides)
        return self.compare(queries, targets, whole)


class VectorStage(EmbeddingStage):
    """An `EmbeddingStage` whose inputs are stage-1 vectors, which are not trained.

    The inputs of a part are the image and text vectors (n, d) of its queries, then those of its targets.
    """

    vectors: StageVectors

    def inputs(
        self, queries: np.ndarray, targets: np.ndarray, parts: list[np.ndarray], rng: np.random.Generator
    ) -> list[list[list[Tensor]]]:
        """See `EmbeddingStage.inputs`."""
        return [pair_inputs(self.vectors, self.pairs, self.data.train, queries[rows], targets[rows]) for rows in parts]


def row_weight(rows: int, count: int) -> float:
    """The weight of a mean over `rows` of the `count` rows of a batch, such that the mean of all processes is right."""
    return distributed.world() * rows / count


def tensor_pair(vectors: StageVectors, text: np.ndarray, image: np.ndarray) -> list[Tensor]:
    """Image and text vectors (n, d) float32 of n texts with n images, in the order in which fusion takes them."""
    both = vectors.vectors(text, image)
    return [torch.from_numpy(np.asarray(half, np.float32)) for half in (both.image, both.text)]


def pair_inputs(
    vectors: StageVectors, pairs: Pairs, split: SplitData, queries: np.ndarray, targets: np.ndarray
) -> list[list[Tensor]]:
    """`tensor_pair` of queries and of their targets, both given by number."""
    return [
        tensor_pair(vectors, pairs.text[queries], pairs.image[queries]),
        tensor_pair(vectors, split.text[targets], split.image[targets]),
    ]
