"""Stage 1, Sec. 4.1, for `mini`: contrastive training of the heads (Eq. 2) on cached backbone features."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from genius.data.splits import SplitData
from genius.encoders.minilm import TokenStates
from genius.networks.heads import Heads, encode_states, padded
from genius.train.batches import PairStage
from genius.train.config import EncoderStageConfig
from genius.train.data import FrozenVectors, TrainingData
from genius.train.features import ImageFeatures
from genius.train.loop import step_rng
from genius.train.losses import contrastive_loss
from genius.train.validation import embedding_recall

IMAGE_BLOCK = 512
WHOLE = 0.5  # share of the training images that are seen whole, where there are crops of them


class EncoderStage(PairStage):
    """Trains the heads of `mini`. views: features of the whole images, then of crops of them."""

    name = "encoder"
    config: EncoderStageConfig

    def __init__(
        self,
        heads: Heads,
        data: TrainingData,
        texts: TokenStates,
        views: list[ImageFeatures],
        config: EncoderStageConfig,
        seed: int,
    ) -> None:
        super().__init__(data, config, seed, config.average)
        self.steps = config.steps
        self.module = self.heads = heads
        self.texts, self.views = texts, views
        self.groups = [self.group(heads.parameters())]

    def loss(self, step: int) -> tuple[Tensor, dict[str, float]]:
        """Eq. 2."""
        rng = step_rng(self.seed, self.name, step)
        queries, targets = self.pairs.draw(rng, self.config.batch)
        q = self._embed(self.pairs.text[queries], self.pairs.image[queries], rng)
        c = self._embed(self.data.train.text[targets], self.data.train.image[targets], rng)
        masked = torch.from_numpy(self.pairs.false_negatives(queries, targets))
        return contrastive_loss(q, c, self.config.temperature, masked), {}

    def _embed(self, text: np.ndarray, image: np.ndarray, rng: np.random.Generator) -> Tensor:
        """Compute phi of Eq. 2, (n, d): the normalised sum of text and image vectors."""
        total = torch.zeros(len(text), self.heads.config.dim)
        rows = np.flatnonzero(text >= 0)
        if len(rows):
            unique, where = np.unique(text[rows], return_inverse=True)
            vectors = self.heads.encode_text(*padded(self.texts, unique))
            total = total.index_add(0, torch.from_numpy(rows), vectors[torch.from_numpy(where)])
        rows = np.flatnonzero(image >= 0)
        if len(rows):
            vectors = self.heads.encode_image(*self._features(image[rows], rng))
            total = total.index_add(0, torch.from_numpy(rows), vectors)
        return F.normalize(total, dim=1)

    def _features(self, image: np.ndarray, rng: np.random.Generator) -> list[Tensor]:
        """Features of images, each in a random view."""
        crop = rng.integers(1, max(2, len(self.views)), size=len(image))
        view = np.where((rng.random(len(image)) < WHOLE) | (len(self.views) == 1), 0, crop)
        out = []
        for name in ("map", "pooled", "logits"):
            values = np.empty((len(image), *getattr(self.views[0], name).shape[1:]), dtype=np.float32)
            for number, features in enumerate(self.views):
                values[view == number] = getattr(features, name)[image[view == number]]
            out.append(torch.from_numpy(values))
        return out

    def validate(self) -> dict[str, float]:
        """Recall of exact search."""
        vectors = split_vectors(self.heads, self.data.val, self.texts, self.views[0])
        return embedding_recall(self.data.val, vectors.embedding)


def text_vectors(heads: Heads, states: TokenStates, numbers: np.ndarray) -> np.ndarray:
    """(texts + 1, d): vectors of the texts with these numbers. Other rows, and the last one, are zero."""
    out = np.zeros((len(states) + 1, heads.config.dim), dtype=np.float32)
    out[numbers] = encode_states(heads, states.take(numbers))
    return out


@torch.inference_mode()
def image_vectors(heads: Heads, features: ImageFeatures, numbers: np.ndarray) -> np.ndarray:
    """(images + 1, d): vectors of the images with these numbers. Other rows, and the last one, are zero."""
    out = np.zeros((len(features.pooled) + 1, heads.config.dim), dtype=np.float32)
    for rows in np.array_split(numbers, len(numbers) // IMAGE_BLOCK + 1):
        parts = (features.map[rows], features.pooled[rows], features.logits[rows])
        out[rows] = heads.encode_image(*(torch.from_numpy(p).float() for p in parts)).numpy()
    return out


def split_vectors(heads: Heads, split: SplitData, states: TokenStates, features: ImageFeatures) -> FrozenVectors:
    """Vectors of the texts and images that a split uses."""
    texts = np.unique(np.concatenate([split.text, *(t.text for t in split.tasks)]))
    images = np.unique(np.concatenate([split.image, *(t.image for t in split.tasks)]))
    return FrozenVectors(
        text_vectors(heads, states, texts[texts >= 0]), image_vectors(heads, features, images[images >= 0])
    )
