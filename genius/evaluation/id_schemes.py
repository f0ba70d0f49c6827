"""ID schemes of earlier generative retrieval, for the same decoder and trie as ours.

A scheme turns fused vectors into IDs (`genius.train.decoder.IdScheme`). Ours, "modality", is the `Quantizer`:

    plain       residual codes without a modality code (IRGen's tokenizer; "RQ w/o modality code" in the supplement)
    classifier  residual codes after a modality code that a classifier predicts (supplement, Table 3)
    semantic    the path of a vector in a tree of k-means clusters
    numeric     random numbers
"""

import hashlib

import numpy as np
import torch
from torch import Tensor

from genius.errors import GeniusError
from genius.model.quantizer_runtime import MODALITIES
from genius.networks.kmeans import kmeans
from genius.networks.quantizer import Quantizer
from genius.train.decoder import IdScheme

SCHEMES = ("modality", "plain", "classifier", "semantic", "numeric")
SINGLE_MODALITY = ("plain", "classifier")
"""Schemes whose quantizer is trained as if all items had the same modality."""
BRANCHES, DEPTH = 32, 3  # of the cluster tree: 32,768 leaves
DIGITS, BASE = 4, 256  # of a random ID


def make_scheme(name: str, quantizer: Quantizer, z: Tensor, modality: Tensor, seed: int) -> IdScheme:
    """Make the scheme of a name in SCHEMES from the trained quantizer.

    Classifier and clusters are made from the training candidates: fused vectors z (n, d) and modality (n,).
    """
    match name:
        case "modality":
            return quantizer
        case "plain":
            return PlainCodes(quantizer)
        case "classifier":
            return ClassifiedCodes(quantizer, z, modality)
        case "semantic":
            return ClusterPaths(z, seed)
        case "numeric":
            return RandomCodes(z.shape[1], seed)
    raise GeniusError(f"There is no ID scheme {name!r}. Choose one of {', '.join(SCHEMES)}.")


class PlainCodes:
    """The semantic codes of a quantizer that was trained without modalities."""

    def __init__(self, quantizer: Quantizer) -> None:
        self.quantizer, self.sizes = quantizer, quantizer.sizes[1:]
        self.codebooks = quantizer.codebooks[1:]

    def encode(self, z: Tensor, modality: Tensor, beams: int = 1) -> Tensor:
        """See `IdScheme`."""
        same = torch.zeros(len(z), dtype=torch.int64)
        return self.quantizer.encode(z, same, beams)[:, 1:]


class ClassifiedCodes:
    """`PlainCodes` after a modality code that a linear classifier predicts from the vector."""

    def __init__(self, quantizer: Quantizer, z: Tensor, modality: Tensor) -> None:
        self.plain = PlainCodes(quantizer)
        self.sizes = (MODALITIES, *self.plain.sizes)
        one_hot = torch.nn.functional.one_hot(modality.long(), MODALITIES).to(z.dtype)
        means = (one_hot.T @ z) / one_hot.sum(dim=0).clamp_min(1)[:, None]
        self.codebooks = [means, *self.plain.codebooks]
        inputs = _with_one(z)
        ridge = 1e-3 * len(z) / z.shape[1] * torch.eye(inputs.shape[1])
        self.weights = torch.linalg.solve(inputs.T @ inputs + ridge, inputs.T @ one_hot)  # (d + 1, 3)

    def encode(self, z: Tensor, modality: Tensor, beams: int = 1) -> Tensor:
        """See `IdScheme`."""
        predicted = (_with_one(z) @ self.weights).argmax(dim=1)
        return torch.cat([predicted[:, None], self.plain.encode(z, modality, beams)], dim=1)


class ClusterPaths:
    """Hierarchical k-means: each code is the nearest child of the cluster so far. Items in one leaf share an ID."""

    def __init__(self, z: Tensor, seed: int, branches: int = BRANCHES, depth: int = DEPTH) -> None:
        self.sizes = (branches,) * depth
        generator = torch.Generator().manual_seed(seed)
        self.centres: list[Tensor] = []  # per level: (nodes, branches, d), inf where there is none
        node = torch.zeros(len(z), dtype=torch.int64)
        for level in range(depth):
            centres = torch.full((branches**level, branches, z.shape[1]), torch.inf)
            order = node.argsort(stable=True)
            for rows in torch.split(order, torch.bincount(node).tolist()):
                if len(rows):
                    found = kmeans(z[rows], min(branches, len(rows)), generator, iterations=10)
                    centres[node[rows[0]], : len(found)] = found
            self.centres.append(centres)
            node = node * branches + self._nearest(z, node, level)
        first = torch.where(self.centres[0][0].isfinite(), self.centres[0][0], 0.0)
        # Later codes have no position of their own.
        self.codebooks = [first, *(torch.zeros_like(first) for _ in self.sizes[1:])]

    def encode(self, z: Tensor, modality: Tensor, beams: int = 1) -> Tensor:
        """See `IdScheme`."""
        node, codes = torch.zeros(len(z), dtype=torch.int64), []
        for level, branches in enumerate(self.sizes):
            codes.append(self._nearest(z, node, level))
            node = node * branches + codes[-1]
        return torch.stack(codes, dim=1)

    def _nearest(self, z: Tensor, node: Tensor, level: int) -> Tensor:
        """The nearest child of each vector's node, (n,)."""
        blocks = zip(torch.split(z, 1024), torch.split(node, 1024), strict=True)
        return torch.cat([((self.centres[level][at] - v[:, None]) ** 2).sum(-1).argmin(1) for v, at in blocks])


class RandomCodes:
    """Random IDs: a digest of the vector. Equal vectors get equal IDs, similar vectors do not."""

    def __init__(self, dim: int, seed: int) -> None:
        self.salt = seed.to_bytes(8, "little", signed=True)
        self.sizes = (BASE,) * DIGITS
        self.codebooks = [torch.zeros(BASE, dim) for _ in range(DIGITS)]

    def encode(self, z: Tensor, modality: Tensor, beams: int = 1) -> Tensor:
        """See `IdScheme`."""
        digests = [hashlib.blake2b(row.tobytes(), digest_size=DIGITS, salt=self.salt).digest() for row in z.numpy()]
        table = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGITS)
        return torch.from_numpy(table.astype(np.int64))


def _with_one(z: Tensor) -> Tensor:
    return torch.cat([z, torch.ones(len(z), 1)], dim=1)
