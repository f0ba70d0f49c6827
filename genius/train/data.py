"""The train and val splits that a model is trained on, with the instructions its queries get."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from genius.mbeir import Benchmark
from genius.splits import Vocabulary, read_split


class TrainingData:
    """One or more benchmarks. `texts` and `images` name what the numbers in `train` and `val` stand for.

    A training query gets one of its task's prompts at random or, in a part `derived_prompts` of the cases, the
    instruction of a query without one: users will ask both ways.
    """

    def __init__(self, roots: Sequence[Path], seed: int, derived_prompts: float) -> None:
        self.texts, self.images = Vocabulary(), Vocabulary()
        rng = np.random.default_rng([seed, 1])
        benchmarks = [Benchmark(root) for root in roots]

        def choose(prompts: Sequence[str]) -> str | None:
            if rng.random() < derived_prompts:
                return None
            return prompts[int(rng.integers(len(prompts)))]

        self.train = read_split(benchmarks, "train", self.texts, self.images, choose)
        self.val = read_split(benchmarks, "val", self.texts, self.images)
