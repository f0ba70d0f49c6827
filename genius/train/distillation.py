"""Distillation: the decoder learns a teacher's scores of codes and items (not in the paper).

A small decoder learns a part of the hard labels of its training queries (Eq. 10) by heart. Distillation has no labels
to learn by heart: queries are random, and the teacher scores every code of every level. The teacher is the residual
score g ((s z - q).c - |c|^2 / 2) of a code c after codes with the sum q. Its sum over an ID tells how near the sum of
the ID's code vectors is to s z.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from genius.data.splits import SplitData
from genius.networks.decoder import Decoder
from genius.train import distributed
from genius.train.batches import Pairs, row_weight
from genius.train.compute import Compute
from genius.train.config import DecoderStageConfig
from genius.train.loop import Losses

GAIN = 10.0  # g
CANDIDATES = 4096  # that items are drawn from
REFRESH = 25  # steps for which the same candidates are drawn from
QUERY_KINDS = (0.4, 0.3, 0.15, 0.15)  # shares of the kinds of queries, see `Distillation.queries`
NOISE = (0.2, 1.2)  # norm of the noise that is added to a candidate
PATH_WEIGHT, MODALITY_WEIGHT = 0.3, 0.3


@dataclass
class Candidates:
    """Items with their fused vectors z (n, d), codes (n, levels) and modality (n,), for the steps of a block."""

    block: int
    z: Tensor
    codes: Tensor
    modality: Tensor


class Distillation:
    """Draws queries and items, and compares the decoder's scores with the teacher's.

    Args:
        pairs: The training queries.
        split: The training split.
        codes: (candidates, levels) IDs of the candidates that are right for any query.
        read: Image and text vectors of texts with images, given by number.
        fuse: Fused vectors of image and text vectors.
        config: Settings of the stage.
        dim: Dimensions of fused vectors.
        seed: Seed of the choice of candidates.
    """

    def __init__(
        self,
        pairs: Pairs,
        split: SplitData,
        codes: Tensor,
        read: Callable[[np.ndarray, np.ndarray], list[Tensor]],
        fuse: Callable[[Tensor, Tensor], Tensor],
        config: DecoderStageConfig,
        dim: int,
        seed: int,
    ) -> None:
        self.pairs, self.split, self.codes, self.read, self.fuse = pairs, split, codes, read, fuse
        self.config, self.dim, self.seed = config, dim, seed
        self.rows, self.modality = pairs.targets(), torch.from_numpy(split.modality).long()
        self._last_read = -1
        self._candidates: Candidates | None = None

    # On the CPU

    def prepare(
        self,
        step: int,
        rng: np.random.Generator,
        generator: torch.Generator,
        divide: Callable[[int], list[np.ndarray]],
    ) -> list[dict[str, Any]]:
        """What the parts of a batch need. divide(n): numbers of the rows of each part of n rows.

        Everything random is drawn for all rows, so that it does not depend on the number of processes and parts.
        """
        block, size = step // REFRESH, min(CANDIDATES, len(self.rows))
        count = max(1, self.config.batch // self.config.items)
        (queries, targets), (others, other_targets) = self._draw(count, rng), self._draw(count, rng)
        n = min(len(queries), len(others))
        numbers = {
            "share": torch.from_numpy(rng.random((n, 1)).astype(np.float32)),
            "chosen": torch.from_numpy(rng.integers(size, size=n)),
            "noise": torch.randn(n, self.dim, generator=generator),
            "kind": torch.from_numpy(rng.choice(len(QUERY_KINDS), n, p=QUERY_KINDS)),
            "modality": self.modality[torch.from_numpy(targets[:n])],
            "uniform": torch.rand(n, size, generator=generator),
        }
        candidates = None if block == self._last_read else self.read_candidates(block)
        self._last_read = block
        prepared = []
        for rows in divide(n):
            text = [self.pairs.text[queries[rows]], self.pairs.text[others[rows]], self.split.text[other_targets[rows]]]
            image = [
                self.pairs.image[queries[rows]], self.pairs.image[others[rows]], self.split.image[other_targets[rows]]
            ]  # fmt: skip
            part: dict[str, Any] = {name: value[rows] for name, value in numbers.items()}
            part |= {"vectors": self.read(np.concatenate(text), np.concatenate(image))}
            prepared.append(part | {"block": block, "candidates": candidates, "weight": row_weight(len(rows), n)})
        return prepared

    def _draw(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """At most `count` queries and targets, given by number, in random order."""
        queries, targets = self.pairs.draw(rng, count)
        order = rng.permutation(len(queries))
        return queries[order], targets[order]

    def read_candidates(self, block: int) -> dict[str, Any]:
        """The candidates of a block of steps. Of their vectors, each process reads its part."""
        rng = np.random.default_rng([self.seed, block])
        rows = rng.choice(self.rows, min(CANDIDATES, len(self.rows)), replace=False)
        mine, numbers = distributed.own(rows), torch.from_numpy(rows)
        vectors = self.read(self.split.text[mine], self.split.image[mine])
        return {"vectors": vectors, "codes": self.codes[numbers], "modality": self.modality[numbers]}

    # On the device

    def loss(self, decoder: Decoder, part: dict[str, Any], compute: Compute) -> Losses:
        """The loss of a part of a batch, and its parts."""
        candidates = self.candidates(part["block"], part["candidates"], compute)
        z, modality = self.queries(part, candidates)
        rows = self.near(z, modality, candidates, part["uniform"])  # (n, items)
        codes = candidates.codes[rows].flatten(0, 1)
        z_items = z.repeat_interleave(rows.shape[1], 0)
        with compute.autocast():
            logits = decoder.logits(z_items, codes)
        teacher = teacher_logits(decoder, z_items, codes)
        levels = level_errors(logits, teacher)
        paths = path_errors(logits, teacher, codes, rows.shape[1])
        first = F.cross_entropy(logits[0].view(*rows.shape, -1)[:, 0], modality)
        total = levels + PATH_WEIGHT * paths + MODALITY_WEIGHT * first
        parts = {"levels": levels, "paths": paths, "modality": first}
        return part["weight"] * total, {name: part["weight"] * value.detach() for name, value in parts.items()}

    def candidates(self, block: int, read: dict[str, Any] | None, compute: Compute) -> Candidates:
        """The candidates of a block of steps. Encoding them takes longer than a step: they serve for several."""
        if self._candidates is None or self._candidates.block != block:
            given = compute.put(self.read_candidates(block) if read is None else read)
            z = distributed.gathered(self.fuse(*given["vectors"]), len(given["codes"]))
            self._candidates = Candidates(block, z, given["codes"], given["modality"])
        return self._candidates

    def queries(self, part: dict[str, Any], candidates: Candidates) -> tuple[Tensor, Tensor]:
        """Normalised query vectors (n, d) and their target modalities (n,).

        Four kinds: training queries; training queries moved by a part of the offset of another query from its target;
        mixtures of two training queries; candidates with noise. Only the first kind can be learned by heart.
        """
        z, other, other_targets = self.fuse(*part["vectors"]).chunk(3)
        share, chosen, kind = part["share"], part["chosen"], part["kind"]
        noise = F.normalize(part["noise"], dim=1) * (NOISE[0] + (NOISE[1] - NOISE[0]) * share)
        kinds = torch.stack(
            [
                z,
                z + share * (other - other_targets),
                share * z + (1 - share) * other,
                candidates.z[chosen] + noise,
            ]
        )
        modality = torch.where(kind == len(QUERY_KINDS) - 1, candidates.modality[chosen], part["modality"])
        return F.normalize(kinds[kind, torch.arange(len(z), device=z.device)], dim=1), modality

    def near(self, z: Tensor, modality: Tensor, candidates: Candidates, uniform: Tensor) -> Tensor:
        """Draw candidates (n, items) of these modalities (n,), the more likely the nearer to the queries z (n, d).

        uniform: (n, candidates) random numbers between 0 and 1.
        """
        return draw_near(self.config.sharpness * z @ candidates.z.T, modality, candidates, uniform, self.config.items)


def draw_near(scores: Tensor, modality: Tensor, candidates: Candidates, uniform: Tensor, items: int) -> Tensor:
    """Draw candidates (n, items) of these modalities (n,) in proportion to the exponential of their scores.

    scores: (n, candidates). uniform: as many random numbers between 0 and 1.
    """
    # A candidate of another modality is drawn only if there are too few of the right one.
    scores = scores - 1e3 * (candidates.modality != modality[:, None])
    gumbel = -torch.log(-torch.log(uniform.clamp(1e-20, 1 - 1e-7)))
    return (scores + gumbel).topk(min(items, scores.shape[1]), dim=1).indices


def path_errors(logits: list[Tensor], teacher: list[Tensor], codes: Tensor, items: int) -> Tensor:
    """Squared difference of the scores of whole IDs, of `items` IDs for each query; only their order counts."""
    errors = (sum_of_log_probs(logits, codes) - sum_of_log_probs(teacher, codes)).view(-1, items)
    return (errors - errors.mean(1, keepdim=True)).square().mean()


def teacher_logits(decoder: Decoder, z: Tensor, codes: Tensor) -> list[Tensor]:
    """Residual scores of all codes of each level, (n, size), given queries z (n, dim) and IDs (n, levels).

    The scores of the modality level are zero: the residual score does not know the target of a query.
    """
    sums, config = decoder.sums(codes), decoder.config
    semantic = [
        GAIN * decoder.residual_scores(z, sums[:, level], config.rows(level)) for level in range(1, codes.shape[1])
    ]
    return [z.new_zeros(len(z), config.sizes[0]), *semantic]


def level_errors(logits: list[Tensor], teacher: list[Tensor]) -> Tensor:
    """Squared differences between the logits of each level (n, size), averaged over the semantic levels.

    A code's weight is the mean of 1 / K and of its probability under the teacher. Adding a constant to all logits of a
    level does not change the result.
    """
    total = logits[0].new_zeros(())
    for of_level, target in zip(logits[1:], teacher[1:], strict=True):
        weight = 0.5 / target.shape[1] + 0.5 * target.softmax(-1)
        error = of_level - target
        error = error - (weight * error).sum(1, keepdim=True)
        total = total + (weight * error.square()).sum(1).mean()
    return total / (len(logits) - 1)


def sum_of_log_probs(logits: list[Tensor], codes: Tensor) -> Tensor:
    """Log-probability of each ID after its first code: logits of each level (n, size), codes (n, levels) -> (n,)."""
    picked = [F.cross_entropy(of_level, codes[:, level], reduction="none") for level, of_level in enumerate(logits)]
    return -torch.stack(picked[1:]).sum(0)
