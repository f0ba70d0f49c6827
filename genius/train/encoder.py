"""Stage 1, Sec. 4.1: the heads of the `mini` encoder, trained by contrast (Eq. 2) on cached backbone features."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from genius.data.splits import SplitData
from genius.encoders.mini import Heads, encode_states
from genius.encoders.minilm import TokenStates
from genius.train.batches import Pairs
from genius.train.config import EncoderStageConfig
from genius.train.data import TrainingData
from genius.train.features import ImageFeatures
from genius.train.loop import Stage, step_rng
from genius.train.validation import recall


def contrastive_loss(queries: Tensor, targets: Tensor, temperature: float, masked: Tensor) -> Tensor:
    """Eqs. 2 and 3. queries, targets: (n, d), normalised; masked: (n, n) bool, targets that are no negatives."""
    scores = (queries @ targets.T / temperature).masked_fill(masked, -torch.inf)
    return F.cross_entropy(scores, torch.arange(len(queries), device=queries.device))


class EncoderStage(Stage):
    name = "encoder"

    def __init__(
        self,
        heads: Heads,
        data: TrainingData,
        texts: TokenStates,
        views: list[ImageFeatures],
        config: EncoderStageConfig,
        seed: int,
    ) -> None:
        self.module, self.data, self.texts, self.views = heads, data, texts, views
        self.config, self.seed = config, seed
        self.heads = heads
        self.pairs = Pairs(data.train, config.balance, config.mix)
        self.steps, self.warmup, self.validate_every = config.steps, config.warmup, config.validate_every
        self.average = config.average
        self.groups: list[dict[str, Any]] = [
            {"params": list(heads.parameters()), "lr": config.rate, "weight_decay": config.weight_decay}
        ]

    def loss(self, step: int) -> tuple[Tensor, dict[str, float]]:
        rng = step_rng(self.seed, self.name, step)
        queries, targets = self.pairs.draw(rng, self.config.batch)
        q = self._embed(self.pairs.text[queries], self.pairs.image[queries], rng)
        c = self._embed(self.data.train.text[targets], self.data.train.image[targets], rng)
        masked = torch.from_numpy(self.pairs.false_negatives(queries, targets))
        return contrastive_loss(q, c, self.config.temperature, masked), {}

    def _embed(self, text: np.ndarray, image: np.ndarray, rng: np.random.Generator) -> Tensor:
        """phi of Eq. 2, (n, d): the normalised sum of text and image vectors."""
        total = torch.zeros(len(text), self.heads.config.dim)
        rows = np.flatnonzero(text >= 0)
        if len(rows):
            unique, where = np.unique(text[rows], return_inverse=True)
            vectors = self.heads.encode_text(*self.texts.padded(unique))
            total = total.index_add(0, torch.from_numpy(rows), vectors[torch.from_numpy(where)])
        rows = np.flatnonzero(image >= 0)
        if len(rows):
            vectors = self.heads.encode_image(*self._features(image[rows], rng))
            total = total.index_add(0, torch.from_numpy(rows), vectors)
        return F.normalize(total, dim=1)

    def _features(self, image: np.ndarray, rng: np.random.Generator) -> list[Tensor]:
        """Features of images, each in one of its views at random."""
        view = rng.integers(len(self.views), size=len(image))
        out = []
        for name in ("map", "pooled", "logits"):
            values = np.empty((len(image), *getattr(self.views[0], name).shape[1:]), dtype=np.float32)
            for number, features in enumerate(self.views):
                values[view == number] = getattr(features, name)[image[view == number]]
            out.append(torch.from_numpy(values))
        return out

    def validate(self) -> dict[str, float]:
        texts, images = val_vectors(self.heads, self.data.val, self.texts, self.views[0])
        queries = [normalised(texts[t.text] + images[t.image]) for t in self.data.val.tasks]
        return recall(self.data.val, queries, normalised(texts[self.data.val.text] + images[self.data.val.image]))


def normalised(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)


def text_vectors(heads: Heads, states: TokenStates, numbers: np.ndarray) -> np.ndarray:
    """(texts + 1, d): the vectors of the texts with these numbers in their rows; the last row, that of -1, is zero."""
    out = np.zeros((len(states) + 1, heads.config.dim), dtype=np.float32)
    out[numbers] = encode_states(heads, states.take(numbers))
    return out


@torch.inference_mode()
def image_vectors(heads: Heads, features: ImageFeatures, numbers: np.ndarray) -> np.ndarray:
    """(images + 1, d): the vectors of the images with these numbers in their rows; the last row is zero."""
    out = np.zeros((len(features.pooled) + 1, heads.config.dim), dtype=np.float32)
    for rows in np.array_split(numbers, len(numbers) // 512 + 1):
        parts = (features.map[rows], features.pooled[rows], features.logits[rows])
        out[rows] = heads.encode_image(*(torch.from_numpy(p).float() for p in parts)).numpy()
    return out


def val_vectors(
    heads: Heads, split: SplitData, states: TokenStates, features: ImageFeatures
) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of every text and image that a split uses."""
    texts = np.unique(np.concatenate([split.text, *(t.text for t in split.tasks)]))
    images = np.unique(np.concatenate([split.image, *(t.image for t in split.tasks)]))
    return text_vectors(heads, states, texts[texts >= 0]), image_vectors(heads, features, images[images >= 0])
