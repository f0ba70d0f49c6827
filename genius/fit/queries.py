"""Pseudo-queries: vectors that stand for the queries of users, made from the collection itself.

A collection has no queries yet, so they are made where real ones would lie in vector space. There are five kinds, drawn
in equal numbers. A kind that the collection has no items for is left out:

- texts: texts of pairs and sentences of `genius.fit.probes`; the target is an image or a pair;
- crossing: items of one modality; the target is another modality;
- offsets: items, moved by the difference between a text or crossing query and its nearest item;
- mixtures: points between an item and one of its nearest neighbours;
- noise: items with random noise.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from genius.data.items import Modality
from genius.fit.codebooks import Floats, Ints, Sample
from genius.fit.collection import normalised

NOISE = (0.2, 1.2)  # length of the noise, as in `genius.train.distillation`


@dataclass(frozen=True)
class PseudoQueries:
    """Normalised query vectors z (n, d), their target modalities (n,), and the name of the kind of each query."""

    z: Floats
    target: Ints
    kind: list[str]

    def __len__(self) -> int:
        return len(self.z)


class QueryMaker:
    """Draws pseudo-queries from some items.

    Args:
        items: The items that queries are made from.
        texts: (m, d) normalised vectors of texts that are not items of the collection; m may be 0.
    """

    def __init__(self, items: Sample, texts: Floats) -> None:
        self.items, self.texts = items, texts
        self.rows = {int(one): np.flatnonzero(items.modality == one) for one in np.unique(items.modality)}
        self.text_targets = [one for one in (Modality.IMAGE_TEXT, Modality.IMAGE) if one in self.rows]
        self.kinds: dict[str, Callable[[int, np.random.Generator], tuple[Floats, Ints]]] = {
            "noise": self._noise,
            "mixtures": self._mixtures,
        }
        if len(texts) and self.text_targets:
            self.kinds["texts"] = self._texts
        if len(self.rows) > 1:
            self.kinds["crossing"] = self._crossing
        if {"texts", "crossing"} & self.kinds.keys():
            self.kinds["offsets"] = self._offsets

    def draw(self, count: int, rng: np.random.Generator) -> PseudoQueries:
        """Draw `count` queries."""
        sizes = [len(part) for part in np.array_split(np.arange(count), len(self.kinds))]
        parts = [(name, *make(size, rng)) for (name, make), size in zip(self.kinds.items(), sizes, strict=True) if size]
        return PseudoQueries(
            np.concatenate([z for _, z, _ in parts]),
            np.concatenate([target for _, _, target in parts]),
            [name for name, z, _ in parts for _ in range(len(z))],
        )

    def _noise(self, count: int, rng: np.random.Generator) -> tuple[Floats, Ints]:
        rows = self._some(count, rng)
        length = rng.uniform(*NOISE, (count, 1)).astype(np.float32)
        noise = normalised(rng.standard_normal((count, self.items.z.shape[1])))
        return normalised(self.items.z[rows] + length * noise), self.items.modality[rows]

    def _mixtures(self, count: int, rng: np.random.Generator) -> tuple[Floats, Ints]:
        rows = self._some(count, rng)
        z, modality = self.items.z[rows], self.items.modality[rows]
        share = rng.random((count, 1)).astype(np.float32)
        return normalised(share * z + (1 - share) * self._near(z, modality, skip=1)), modality

    def _texts(self, count: int, rng: np.random.Generator) -> tuple[Floats, Ints]:
        return self.texts[rng.integers(len(self.texts), size=count)], rng.choice(self.text_targets, count)

    def _crossing(self, count: int, rng: np.random.Generator) -> tuple[Floats, Ints]:
        target = rng.choice(list(self.rows), count)
        rows = np.empty(count, np.int64)
        for one in self.rows:
            mine = np.flatnonzero(target == one)
            others = np.concatenate([found for other, found in self.rows.items() if other != one])
            rows[mine] = rng.choice(others, len(mine))
        return self.items.z[rows], target

    def _offsets(self, count: int, rng: np.random.Generator) -> tuple[Floats, Ints]:
        make = self._texts if "texts" in self.kinds else self._crossing
        z, target = make(count, rng)
        offset = z - self._near(z, target)
        rows = np.array([rng.choice(self.rows[int(one)]) for one in target])
        return normalised(self.items.z[rows] + rng.random((count, 1)).astype(np.float32) * offset), target

    def _some(self, count: int, rng: np.random.Generator) -> Ints:
        """Rows of items; every modality is drawn equally often."""
        modality = rng.choice(list(self.rows), count)
        return np.array([rng.choice(self.rows[int(one)]) for one in modality])

    def _near(self, z: Floats, modality: Ints, skip: int = 0) -> Floats:
        """(n, d): the nearest item of modality (n,) to each vector z (n, d). skip: nearer items to pass over."""
        found = np.empty_like(z)
        for one, rows in self.rows.items():
            mine = np.flatnonzero(modality == one)
            scores = z[mine] @ self.items.z[rows].T
            place = min(skip, len(rows) - 1)
            found[mine] = self.items.z[rows[np.argsort(-scores, axis=1)[:, place]]] if len(mine) else z[mine]
        return found
