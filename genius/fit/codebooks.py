"""Codebooks of a collection: k-means of the residuals level by level, then least squares over all levels together."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from genius.fit.settings import MAX_LEVELS, FitSettings
from genius.model.quantizer_runtime import MODALITIES, QuantizerRuntime
from genius.networks.kmeans import kmeans, nearest

Floats = NDArray[np.float32]
Ints = NDArray[np.integer]

ITERATIONS = 20  # of k-means, at most
MIN_GAIN = 0.01  # a level after the first MIN_LEVELS must lower the error of held-back vectors by this share
MIN_LEVELS = 8  # levels of a small collection have few codes, so it takes several of them to tell items apart
RIDGE = 1e-2  # pull of a code towards its old vector in least squares, in vectors: rare codes move little


@dataclass(frozen=True)
class Sample:
    """Items of a collection: normalised vectors z (n, d) float32 and modalities (n,)."""

    z: Floats
    modality: Ints

    def __len__(self) -> int:
        return len(self.z)


def learn_codebooks(sample: Sample, held_back: Sample, settings: FitSettings) -> QuantizerRuntime:
    """Learn the codebooks of a collection.

    The modality codes are the mean vectors of the modalities. The gap between images and texts, which is the same for
    all items of a modality, then takes no codes of the other levels. Each other level is k-means of the residuals of
    the levels before it; a code without vectors moves to the vector that is farthest from its code. At last, least
    squares moves the code vectors of all levels together, for the codes that beam search chooses.

    Without `settings.levels`, levels are added until the error of the held-back vectors is `settings.target_error` of
    their variance or hardly falls any more, and at most `MAX_LEVELS`.

    Args:
        sample: The items to learn from.
        held_back: Other items, which decide about the number of levels and end the rounds of least squares.
        settings: Sizes and seed, with the number of codes (see `FitSettings.for_items`).

    Returns:
        The codebooks, the modality level first.
    """
    levels, beams = settings.levels, settings.code_beams
    assert settings.codes is not None
    generator = torch.Generator().manual_seed(settings.seed)
    books = [modality_means(sample)]
    rest, held = (torch.from_numpy(part.z - books[0][part.modality]) for part in (sample, held_back))
    start = before = float(held.square().sum(1).mean())
    for level in range(MAX_LEVELS if levels is None else levels):
        codes = kmeans(rest, settings.codes, generator, ITERATIONS)
        rest, held = (vectors - codes[nearest(vectors, codes)] for vectors in (rest, held))
        after = float(held.square().sum(1).mean())
        if levels is None and level >= MIN_LEVELS and after > (1 - MIN_GAIN) * before:
            break
        books.append(codes.numpy())
        if levels is None and after <= settings.target_error * start:
            break
        before = after
    quantizer = QuantizerRuntime(books, len(books) - 1)
    error = quantization_error(quantizer, held_back, beams)
    for _ in range(settings.rounds):
        refined = least_squares(quantizer, sample, beams)
        refined_error = quantization_error(refined, held_back, beams)
        if refined_error >= error:
            break
        quantizer, error = refined, refined_error
    return quantizer


def modality_means(sample: Sample) -> Floats:
    """(3, d): the mean vector of each modality, or of all items for a modality that is absent."""
    means = np.repeat(sample.z.mean(0, keepdims=True), MODALITIES, 0)
    for modality in np.unique(sample.modality):
        means[modality] = sample.z[sample.modality == modality].mean(0)
    return means


def least_squares(quantizer: QuantizerRuntime, sample: Sample, beams: int) -> QuantizerRuntime:
    """Move the code vectors to where the error of the sample is smallest, with the present codes of its items.

    Solves (X'X + r) C = X'Z + r C_0. A row of X has a one for each code of an item, Z (n, d) are the items, and C_0 are
    the present code vectors. Without r = `RIDGE`, unused codes would be undetermined.
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
    """Mean squared distance of items from the sums of their code vectors."""
    codes = quantizer.encode(sample.z, sample.modality, beams)
    return float(np.square(sample.z - quantizer.decode(codes)).sum(1).mean())
