"""Sources of `index.py`: vectors of any number of items, queries, and models that assign codes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import throughput
from material import PAPER, likely_codes, random_model, unit
from rich.progress import Progress

from genius import Genius
from genius.encoders.base import Vectors

SAMPLE = 65_536  # IDs that others are drawn after


class Source(Protocol):
    """Items and queries. Sent to other processes."""

    @property
    def about(self) -> str: ...

    @property
    def asked(self) -> Vectors: ...

    def model(self) -> Genius:
        """A new model each time."""
        ...

    def block(self, start: int, count: int) -> Vectors:
        """The vectors of items `start` to `start + count`: the same ones if asked again in the same way."""
        ...


@dataclass(frozen=True)
class Mixed:
    """Real vectors in random order, then mixtures of two."""

    about: str
    asked: Vectors
    items: Vectors

    def model(self) -> Genius:
        return Genius.from_pretrained("mini")

    def block(self, start: int, count: int) -> Vectors:
        rng = np.random.default_rng([1, start])
        first, second = rng.integers(0, len(self.items), (2, count))
        weight = rng.uniform(0.5, 0.9, count).astype(np.float32)
        real = np.random.default_rng(1).permutation(len(self.items))[start : start + count]
        first[: len(real)], weight[: len(real)] = real, 1
        parts = (throughput.mixture(part, first, second, weight) for part in (self.items.image, self.items.text))
        return Vectors(*parts)


@dataclass(frozen=True)
class Drawn:
    """Items of the three modalities in turn, with random codes."""

    about: str
    asked: Vectors

    def model(self) -> Genius:
        return DrawingModel(random_model(PAPER), self.asked.text)

    def block(self, start: int, count: int) -> Vectors:
        modality = np.arange(start, start + count) % 3
        parts = np.zeros((2, count, PAPER.dim), np.float32)
        parts[0, modality != 1, 0] = 1
        parts[1, modality != 0, 0] = 1
        return Vectors(*parts)


class DrawingModel(Genius):
    """A model that draws codes from `likely_codes`, differently in every process."""

    def __init__(self, model: Genius, queries: np.ndarray) -> None:
        super().__init__(model.encoder, model.fusion, model.quantizer, model.decoder)
        with Progress(disable=True) as progress:
            self.likely = likely_codes(self.decoder, queries, SAMPLE, progress)
        self.rng = np.random.default_rng()

    def codes(self, vectors: Vectors) -> np.ndarray:
        rows = self.rng.integers(0, len(self.likely), (self.likely.shape[1], len(vectors)))
        drawn: np.ndarray = np.take_along_axis(self.likely, rows.T, axis=0)
        image, text = vectors.image[:, 0] != 0, vectors.text[:, 0] != 0  # as `Drawn` makes them
        drawn[:, 0] = np.where(image & text, 2, text)
        return drawn


class Sources:
    """Sources by name, made when needed."""

    def __init__(self, run: Path, progress: Progress) -> None:
        self.run, self.progress = run, progress
        self.made: dict[str, Source] = {}

    def of(self, index: str) -> Source:
        kind = "paper" if index == "paper" else "mini"
        if kind not in self.made:
            self.made[kind] = drawn_source() if kind == "paper" else mixed_source(self.run, self.progress)
        return self.made[kind]


def drawn_source() -> Source:
    text = unit(np.random.default_rng(0).standard_normal((throughput.QUERIES, PAPER.dim), dtype=np.float32))
    return Drawn("random weights, IDs drawn from what the decoder finds likely", Vectors(np.zeros_like(text), text))


def mixed_source(run: Path, progress: Progress) -> Source:
    about, items, asked = throughput.base_vectors(Genius.from_pretrained("mini"), run, progress)
    return Mixed(f"vectors of {len(items):,} {about}, mixed to the sizes below", asked, items)
