"""ID schemes of earlier generative retrieval, under the same decoder and trie as ours.

A scheme turns fused vectors into IDs. Ours is the `Quantizer` itself; the others here have its face (`sizes`,
`codebooks`, `encode`), so that whatever works on a quantizer's codes works on theirs:

    plain       residual codes without a modality code (IRGen's tokenizer; "RQ w/o modality code" in the supplement)
    classifier  residual codes behind a modality code that a classifier predicts (supplement, Table 3)
    semantic    the path of a vector in a tree of k-means clusters
    numeric     random numbers that mean nothing

Knows vectors and codes; knows nothing of training, searching or benchmarks.
"""

import hashlib
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from genius.errors import GeniusError
from genius.model.kmeans import kmeans
from genius.model.quantizer import MODALITIES, Quantizer

SCHEMES = ("modality", "plain", "classifier", "semantic", "numeric")
UNDIVIDED = ("plain", "classifier")
"""Schemes whose residual codes are trained without a modality level: to their quantizer all items are of one kind."""
BRANCHES, DEPTH = 32, 3  # of the tree of clusters: 32,768 leaves
DIGITS, BASE = 4, 256  # of a random number


class Scheme(Protocol):
    """sizes: codes of each level. codebooks: (size, d) for each level, zeros where codes have no place in space."""

    @property
    def sizes(self) -> tuple[int, ...]: ...

    @property
    def codebooks(self) -> list[Tensor]: ...

    def encode(self, z: Tensor, modality: Tensor, beams: int = 1) -> Tensor:
        """z: (n, d), modality: (n,) -> IDs (n, levels) int64. A vector's ID does not depend on the others."""
        ...


def make_scheme(name: str, quantizer: Quantizer, z: Tensor, modality: Tensor, seed: int) -> Scheme:
    """The scheme of that name. quantizer: trained, for an UNDIVIDED scheme on items of one kind (0).

    z: (n, d), modality: (n,): the training candidates, from which classifier and clusters are made.
    """
    match name:
        case "modality":
            return _Trained(quantizer)
        case "plain":
            return Plain(quantizer)
        case "classifier":
            return Classified(quantizer, z, modality)
        case "semantic":
            return Clusters(z, seed)
        case "numeric":
            return Numbers(z.shape[1], seed)
    raise GeniusError(f"There is no ID scheme {name!r}. Choose one of {', '.join(SCHEMES)}.")


class _Trained:
    """Ours: the modality that the item has, then residual codes."""

    def __init__(self, quantizer: Quantizer) -> None:
        self.quantizer, self.sizes = quantizer, quantizer.sizes

    @property
    def codebooks(self) -> list[Tensor]:
        return self.quantizer.codebooks

    def encode(self, z: Tensor, modality: Tensor, beams: int = 1) -> Tensor:
        return self.quantizer.encode(z, modality, beams)


class Plain:
    """The semantic levels of a quantizer to which all items are of one kind; the modality is not in the ID."""

    def __init__(self, quantizer: Quantizer) -> None:
        self.quantizer, self.sizes = quantizer, quantizer.sizes[1:]

    @property
    def codebooks(self) -> list[Tensor]:
        return self.quantizer.codebooks[1:]

    def encode(self, z: Tensor, modality: Tensor, beams: int = 1) -> Tensor:
        one_kind = torch.zeros(len(z), dtype=torch.int64)
        return self.quantizer.encode(z, one_kind, beams)[:, 1:]


class Classified:
    """The `Plain` codes behind a modality code that comes from a linear classifier, not from what the item has."""

    def __init__(self, quantizer: Quantizer, z: Tensor, modality: Tensor) -> None:
        self.plain = Plain(quantizer)
        self.sizes = (MODALITIES, *self.plain.sizes)
        one_hot = torch.nn.functional.one_hot(modality.long(), MODALITIES).to(z.dtype)
        self.means = (one_hot.T @ z) / one_hot.sum(dim=0).clamp_min(1)[:, None]
        inputs = _with_one(z)
        ridge = 1e-3 * len(z) / z.shape[1] * torch.eye(inputs.shape[1])
        self.weights = torch.linalg.solve(inputs.T @ inputs + ridge, inputs.T @ one_hot)  # (d + 1, 3)

    @property
    def codebooks(self) -> list[Tensor]:
        return [self.means, *self.plain.codebooks]

    def encode(self, z: Tensor, modality: Tensor, beams: int = 1) -> Tensor:
        predicted = (_with_one(z) @ self.weights).argmax(dim=1)
        return torch.cat([predicted[:, None], self.plain.encode(z, modality, beams)], dim=1)


class Clusters:
    """Hierarchical k-means: each code is the nearest child of the cluster so far. Items of one leaf share their ID."""

    def __init__(self, z: Tensor, seed: int, branches: int = BRANCHES, depth: int = DEPTH) -> None:
        self.sizes = (branches,) * depth
        generator = torch.Generator().manual_seed(seed)
        self.centres: list[Tensor] = []  # of each level: (nodes, branches, d), infinitely far where there is none
        node = torch.zeros(len(z), dtype=torch.int64)
        for level in range(depth):
            centres = torch.full((branches**level, branches, z.shape[1]), torch.inf)
            order = node.argsort(stable=True)
            for rows in order.split(torch.bincount(node).tolist()):
                if len(rows):
                    found = kmeans(z[rows], min(branches, len(rows)), generator, iterations=10)
                    centres[node[rows[0]], : len(found)] = found
            self.centres.append(centres)
            node = node * branches + self._nearest(z, node, level)

    @property
    def codebooks(self) -> list[Tensor]:
        """Only the first code means the same wherever it stands; what a later one means depends on those before."""
        first = self.centres[0][0]
        first = torch.where(first.isfinite(), first, 0.0)
        return [first, *(torch.zeros_like(first) for _ in self.sizes[1:])]

    def encode(self, z: Tensor, modality: Tensor, beams: int = 1) -> Tensor:
        node, codes = torch.zeros(len(z), dtype=torch.int64), []
        for level, branches in enumerate(self.sizes):
            codes.append(self._nearest(z, node, level))
            node = node * branches + codes[-1]
        return torch.stack(codes, dim=1)

    def _nearest(self, z: Tensor, node: Tensor, level: int) -> Tensor:
        """The nearest child of each vector's node, (n,)."""
        blocks = zip(z.split(1024), node.split(1024), strict=True)
        return torch.cat([((self.centres[level][at] - v[:, None]) ** 2).sum(-1).argmin(1) for v, at in blocks])


class Numbers:
    """Random IDs: a digest of the vector, so that an item always gets the same one and similar items do not."""

    def __init__(self, dim: int, seed: int) -> None:
        self.dim, self.salt = dim, seed.to_bytes(8, "little", signed=True)
        self.sizes = (BASE,) * DIGITS

    @property
    def codebooks(self) -> list[Tensor]:
        return [torch.zeros(size, self.dim) for size in self.sizes]

    def encode(self, z: Tensor, modality: Tensor, beams: int = 1) -> Tensor:
        digests = [hashlib.blake2b(row.tobytes(), digest_size=DIGITS, salt=self.salt).digest() for row in z.numpy()]
        table = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIGITS)
        return torch.from_numpy(table.astype(np.int64))


def _with_one(z: Tensor) -> Tensor:
    return torch.cat([z, torch.ones(len(z), 1)], dim=1)
