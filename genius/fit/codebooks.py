"""Codebooks of a collection: k-means of the residuals level by level, then least squares over all levels together."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from genius.model.quantizer_runtime import MODALITIES, QuantizerRuntime
from genius.networks.kmeans import kmeans, nearest

Floats = NDArray[np.float32]
Ints = NDArray[np.integer]

ITERATIONS = 20  # of k-means at most
MIN_GAIN = 0.01  # a level after the first MIN_LEVELS must lower the error of held-back vectors by this share
MIN_LEVELS = 8  # in a small collection few codes tell little, but together they tell its items apart
RIDGE = 1e-2  # vectors' worth of weight that holds a code in least squares where it is: rare codes move little


@dataclass(frozen=True)
class Sample:
    """Vectors z (n, d) float32 of some items, and their modalities (n,)."""

    z: Floats
    modality: Ints

    def __len__(self) -> int:
        return len(self.z)


def learn_codebooks(
    sample: Sample,
    held_back: Sample,
    codes_per_level: int,
    levels: int | None,
    *,
    max_levels: int,
    target_error: float,
    rounds: int,
    beams: int,
    seed: int,
    tell: Callable[[int], None] = lambda done: None,
) -> QuantizerRuntime:
    """Learn the codebooks of a collection.

    The modality codes are the mean vectors of the modalities, so that the gap between images and texts, which is the
    same for all items of a modality, takes no code of the other levels. Each other level is k-means of what the levels
    before leave; a code without vectors moves to the vector that is farthest from its code. Least squares then moves
    all code vectors together, for the codes that beam search chooses, `rounds` times.

    Args:
        sample: The vectors to learn from.
        held_back: Other vectors, which decide about the number of levels and about least squares.
        codes_per_level: K, at most the number of vectors.
        levels: Number of semantic levels. None: until the error of the held-back vectors is `target_error` of their
            variance, or does not get smaller, and at most `max_levels`.
        max_levels: See `levels`.
        target_error: See `levels`.
        rounds: Rounds of least squares.
        beams: Beam width when codes are chosen.
        seed: Seed of k-means.
        tell: Called with the number of finished steps, one for each level and for each round.
    """
    generator = torch.Generator().manual_seed(seed)
    books = [modality_means(sample)]
    rest, held = (torch.from_numpy(part.z - books[0][part.modality]) for part in (sample, held_back))
    start = before = float(held.square().sum(1).mean())
    for level in range(max_levels if levels is None else levels):
        codes = kmeans(rest, codes_per_level, generator, ITERATIONS)
        rest, held = (vectors - codes[nearest(vectors, codes)] for vectors in (rest, held))
        after = float(held.square().sum(1).mean())
        if levels is None and level >= MIN_LEVELS and after > (1 - MIN_GAIN) * before:
            break
        books.append(codes.numpy())
        tell(len(books) - 1)
        if levels is None and after <= target_error * start:
            break
        before = after
    quantizer = QuantizerRuntime(books, len(books) - 1)
    error = quantization_error(quantizer, held_back, beams)
    for number in range(rounds):
        refined = least_squares(quantizer, sample, beams)
        refined_error = quantization_error(refined, held_back, beams)
        tell(quantizer.levels + number + 1)
        if refined_error >= error:
            break
        quantizer, error = refined, refined_error
    return quantizer


def modality_means(sample: Sample) -> Floats:
    """(3, d) the mean vector of each modality; of all vectors where a modality is absent."""
    means = np.repeat(sample.z.mean(0, keepdims=True), MODALITIES, 0)
    for modality in np.unique(sample.modality):
        means[modality] = sample.z[sample.modality == modality].mean(0)
    return means


def least_squares(quantizer: QuantizerRuntime, sample: Sample, beams: int) -> QuantizerRuntime:
    """The code vectors that, with the codes as they are, are nearest to the sample.

    Solves (X'X + r) C = X'Z + r C_0, where a row of X has a one for each code of a vector, and C_0 are the code vectors
    before. Without r, codes that nothing uses would be undetermined.
    """
    bounds = np.cumsum([0, *quantizer.sizes])
    rows = quantizer.encode(sample.z, sample.modality, beams).astype(np.int64) + bounds[:-1]
    size, before = int(bounds[-1]), np.concatenate(quantizer.codebooks).astype(np.float64)
    counts = np.zeros((size, size))
    sums = RIDGE * before
    for level in range(rows.shape[1]):
        for other in range(level, rows.shape[1]):
            pairs = np.bincount(rows[:, level] * size + rows[:, other], minlength=0)
            at = np.flatnonzero(pairs)
            counts[at // size, at % size] = counts[at % size, at // size] = pairs[at]
        order = np.argsort(rows[:, level], kind="stable")
        starts = np.flatnonzero(np.diff(rows[order, level], prepend=-1))
        sums[rows[order[starts], level]] += np.add.reduceat(sample.z[order].astype(np.float64), starts)
    counts[np.diag_indices(size)] += RIDGE
    solved = np.linalg.solve(counts, sums).astype(np.float32)
    return QuantizerRuntime([solved[a:b] for a, b in pairwise(bounds)], quantizer.levels)


def quantization_error(quantizer: QuantizerRuntime, sample: Sample, beams: int) -> float:
    """Mean squared distance of vectors from the sums of their code vectors."""
    return mean_error(quantizer, sample.z, quantizer.encode(sample.z, sample.modality, beams))


def mean_error(quantizer: QuantizerRuntime, z: Floats, codes: Ints) -> float:
    """Mean squared distance of vectors z (n, d) from what their codes (n, levels) stand for."""
    return float(np.square(z - quantizer.decode(codes)).sum(1).mean()) if len(z) else 0.0
