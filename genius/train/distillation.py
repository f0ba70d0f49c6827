"""Distillation: the decoder learns a teacher's scores of codes and items (not in the paper).

A small decoder learns the hard labels of its training queries (Eq. 10) by heart and fails on others. Distillation has
no labels to learn by heart: queries are random, and the teacher scores every code of every level. The teacher is the
residual score g ((s z - q).c - |c|^2 / 2) of a code c after codes with the sum q. Its sum over an ID tells how near the
sum of the ID's code vectors is to s z.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from genius.data.splits import SplitData
from genius.networks.decoder import Decoder
from genius.train.batches import Pairs
from genius.train.config import DecoderStageConfig

GAIN = 10.0  # g
CANDIDATES = 4096  # that items are drawn from
REFRESH = 25  # steps for which the same candidates are drawn from
QUERY_KINDS = (0.4, 0.3, 0.15, 0.15)  # shares of the kinds of queries, see `Distillation.queries`
NOISE = (0.2, 1.2)  # norm of the noise that is added to a candidate
PATH_WEIGHT, MODALITY_WEIGHT = 0.3, 0.3


@dataclass
class Candidates:
    """Items with their fused vectors z (n, d), codes (n, levels) and modality (n,)."""

    z: Tensor
    codes: Tensor
    modality: Tensor


class Distillation:
    """Draws queries and items, and compares the decoder's scores with the teacher's.

    Args:
        pairs: The training queries.
        split: The training split.
        codes: (candidates, levels) IDs of the candidates that are right for any query.
        fuse: Fused vectors of texts with images, given by number.
        config: Settings of the stage.
        seed: Seed of the choice of candidates.
    """

    def __init__(
        self,
        pairs: Pairs,
        split: SplitData,
        codes: Tensor,
        fuse: Callable[[np.ndarray, np.ndarray], Tensor],
        config: DecoderStageConfig,
        seed: int,
    ) -> None:
        self.pairs, self.split, self.codes, self.fuse = pairs, split, codes, fuse
        self.config, self.seed = config, seed
        self.rows = pairs.targets()
        self._candidates: tuple[int, Candidates] | None = None

    def loss(self, decoder: Decoder, step: int, rng: np.random.Generator) -> tuple[Tensor, dict[str, float]]:
        """The loss of step `step`, and its parts."""
        candidates = self.candidates(step)
        z, modality = self.queries(candidates, max(1, self.config.batch // self.config.items), rng)
        rows = self.near(z, modality, candidates)  # (n, items)
        codes = candidates.codes[rows].flatten(0, 1)
        z_items = z.repeat_interleave(rows.shape[1], 0)
        logits, teacher = decoder.logits(z_items, codes), teacher_logits(decoder, z_items, codes)
        levels = level_errors(logits, teacher)
        errors = (sum_of_log_probs(logits, codes) - sum_of_log_probs(teacher, codes)).view(rows.shape)
        paths = (errors - errors.mean(1, keepdim=True)).square().mean()  # only the order of a query's items matters
        first = F.cross_entropy(logits[0].view(*rows.shape, -1)[:, 0], modality)
        total = levels + PATH_WEIGHT * paths + MODALITY_WEIGHT * first
        parts = {"levels": levels, "paths": paths, "modality": first}
        return total, {name: float(part.detach()) for name, part in parts.items()}

    def candidates(self, step: int) -> Candidates:
        """The candidates of a step. Encoding them takes longer than a step, so that they serve for several."""
        block = step // REFRESH
        if self._candidates is None or self._candidates[0] != block:
            rng = np.random.default_rng([self.seed, block])
            rows = rng.choice(self.rows, min(CANDIDATES, len(self.rows)), replace=False)
            z = self.fuse(self.split.text[rows], self.split.image[rows])
            modality = torch.from_numpy(self.split.modality[rows]).long()
            self._candidates = block, Candidates(z, self.codes[torch.from_numpy(rows)], modality)
        return self._candidates[1]

    def queries(self, candidates: Candidates, count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        """Normalised query vectors (n, d) and the modalities (n,) that they ask for, n <= count.

        Four kinds: training queries; training queries moved by a part of the offset of another query from its target;
        mixtures of two training queries; candidates with noise. Only the first kind can be learned by heart.
        """
        z, modality, _ = self._pairs(count, rng)
        other, _, other_targets = self._pairs(count, rng)
        n = min(len(z), len(other))
        z, modality, other = z[:n], modality[:n], other[:n]
        share = torch.from_numpy(rng.random((n, 1)).astype(np.float32))
        chosen = torch.from_numpy(rng.integers(len(candidates.z), size=n))
        noise = F.normalize(torch.randn(z.shape), dim=1) * (NOISE[0] + (NOISE[1] - NOISE[0]) * share)
        kinds = torch.stack(
            [
                z,
                z + share * (other - other_targets[:n]),
                share * z + (1 - share) * other,
                candidates.z[chosen] + noise,
            ]
        )
        kind = torch.from_numpy(rng.choice(len(QUERY_KINDS), n, p=QUERY_KINDS))
        modality = torch.where(kind == len(QUERY_KINDS) - 1, candidates.modality[chosen], modality)
        return F.normalize(kinds[kind, torch.arange(n)], dim=1), modality

    def _pairs(self, count: int, rng: np.random.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Query vectors (n, d), modalities (n,) and vectors (n, d) of their targets, in random order."""
        queries, targets = self.pairs.draw(rng, count)
        order = rng.permutation(len(queries))
        queries, targets = queries[order], targets[order]
        z = self.fuse(self.pairs.text[queries], self.pairs.image[queries])
        z_targets = self.fuse(self.split.text[targets], self.split.image[targets])
        return z, torch.from_numpy(self.split.modality[targets]).long(), z_targets

    def near(self, z: Tensor, modality: Tensor, candidates: Candidates) -> Tensor:
        """Draw candidates (n, items) of these modalities (n,), the more likely the nearer to the queries z (n, d)."""
        scores = self.config.sharpness * z @ candidates.z.T
        # A candidate of another modality is drawn only if there are too few of the right one.
        scores = scores - 1e3 * (candidates.modality != modality[:, None])
        gumbel = -torch.log(-torch.log(torch.rand(scores.shape).clamp(1e-20, 1 - 1e-7)))
        return (scores + gumbel).topk(min(self.config.items, scores.shape[1]), dim=1).indices


def teacher_logits(decoder: Decoder, z: Tensor, codes: Tensor) -> list[Tensor]:
    """Residual scores of all codes of each level, (n, size), given queries z (n, dim) and IDs (n, levels).

    Those of the modality level are zero: the residual score does not know which modality a query asks for.
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
