"""Pseudo-queries: vectors that stand for the queries of users, made from the collection itself.

Nobody has asked anything yet, so queries are made to lie where real ones lie. Five kinds, those that the collection
allows in equal parts:

- texts: texts of pairs, and sentences of `genius.fit.probes` that the encoder reads, looking for images or pairs;
- crossing: items of one modality, looking for another;
- offsets: items moved by the difference between a text or crossing query and its nearest item;
- mixtures: between two items that are near each other;
- noise: items with noise.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from genius.fit.codebooks import Floats, Ints, Sample
from genius.fit.collection import normalised

NOISE = (0.2, 1.2)  # length of the noise, as in `genius.train.distillation`
IMAGE, TEXT, PAIR = 0, 1, 2


@dataclass(frozen=True)
class PseudoQueries:
    """Normalised query vectors z (n, d), target modalities (n,), and the kind of each."""

    z: Floats
    target: Ints
    kind: list[str]

    def __len__(self) -> int:
        return len(self.z)


class QueryMaker:
    """Draws pseudo-queries from some items.

    Args:
        items: The items that queries are made from.
        texts: (m, d) vectors of texts that are no items themselves, normalised.
    """

    def __init__(self, items: Sample, texts: Floats) -> None:
        self.items, self.texts = items, texts
        self.rows = {int(one): np.flatnonzero(items.modality == one) for one in np.unique(items.modality)}
        self.seen = [one for one in (PAIR, IMAGE) if one in self.rows]  # what a text looks for
        self.kinds: dict[str, Callable[[int, np.random.Generator], tuple[Floats, Ints]]] = {
            "noise": self._noise,
            "mixtures": self._mixtures,
        }
        if len(texts) and self.seen:
            self.kinds["texts"] = self._texts
        if len(self.rows) > 1:
            self.kinds["crossing"] = self._crossing
        if len(self.kinds) > 2:
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
        return self.texts[rng.integers(len(self.texts), size=count)], rng.choice(self.seen, count)

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
        asked, target = make(count, rng)
        offset = asked - self._near(asked, target)
        rows = np.array([rng.choice(self.rows[int(one)]) for one in target])
        return normalised(self.items.z[rows] + rng.random((count, 1)).astype(np.float32) * offset), target

    def _some(self, count: int, rng: np.random.Generator) -> Ints:
        """Rows of items; every modality is drawn equally often."""
        modality = rng.choice(list(self.rows), count)
        return np.array([rng.choice(self.rows[int(one)]) for one in modality])

    def _near(self, z: Floats, modality: Ints, skip: int = 0) -> Floats:
        """The nearest item of the modality for each vector (n, d); with `skip`, the next but `skip`."""
        found = np.empty_like(z)
        for one, rows in self.rows.items():
            mine = np.flatnonzero(modality == one)
            scores = z[mine] @ self.items.z[rows].T
            place = min(skip, len(rows) - 1)
            found[mine] = self.items.z[rows[np.argsort(-scores, axis=1)[:, place]]] if len(mine) else z[mine]
        return found
