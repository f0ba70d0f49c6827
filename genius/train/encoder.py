"""Stage 1, Sec. 4.1, for `mini`: contrastive training of the heads (Eq. 2) on cached backbone features."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from genius.data.splits import SplitData
from genius.encoders.minilm import TokenStates
from genius.networks.heads import Heads, encode_states, padded
from genius.train import distributed
from genius.train.batches import EmbeddingStage
from genius.train.compute import CPU, Compute
from genius.train.config import EncoderStageConfig
from genius.train.data import FrozenVectors, TrainingData
from genius.train.features import ImageFeatures
from genius.train.validation import embedding_recall

IMAGE_BLOCK = 512
TEXT_BLOCK = 16_384  # texts whose token states are in memory at once
FEATURES = ("map", "pooled", "logits")  # of `ImageFeatures`, in the order of `Heads.encode_image`
WHOLE = 0.5  # share of the training images that are seen whole, where there are crops of them


class EncoderStage(EmbeddingStage):
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
        compute: Compute = CPU,
    ) -> None:
        super().__init__(data, config, seed, config.average, compute)
        self.steps = config.steps
        self.module = self.heads = heads.to(compute.device)
        self.texts, self.views = texts, views
        self.groups = [self.group(heads.parameters())]

    def inputs(
        self, queries: np.ndarray, targets: np.ndarray, parts: list[np.ndarray], rng: np.random.Generator
    ) -> list[dict[str, dict[str, Any]]]:
        """See `EmbeddingStage.inputs`."""
        train = self.data.train
        sides = {
            "queries": (self.pairs.text[queries], self.pairs.image[queries]),
            "targets": (train.text[targets], train.image[targets]),
        }
        views = {side: self._choose_views(image, rng) for side, (_, image) in sides.items()}
        return [
            {side: self._read(text[rows], image[rows], views[side][rows]) for side, (text, image) in sides.items()}
            for rows in parts
        ]

    def _choose_views(self, image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A random view (n,) of each image (n,); 0 where there is none."""
        view, rows = np.zeros(len(image), np.int64), np.flatnonzero(image >= 0)
        if len(rows):
            crop = rng.integers(1, max(2, len(self.views)), size=len(rows))
            view[rows] = np.where((rng.random(len(rows)) < WHOLE) | (len(self.views) == 1), 0, crop)
        return view

    def _read(self, text: np.ndarray, image: np.ndarray, view: np.ndarray) -> dict[str, Any]:
        """Features of texts with images, each in a view; all three (n,) numbers. Each text is read once."""
        read: dict[str, Any] = {"count": len(text)}
        rows = np.flatnonzero(text >= 0)
        if len(rows):
            unique, where = np.unique(text[rows], return_inverse=True)
            states, mask = padded(self.texts, unique)
            read |= {"states": states, "texts": torch.from_numpy(where), "text_rows": torch.from_numpy(rows)}
            read |= {} if mask is None else {"mask": mask}
        rows = np.flatnonzero(image >= 0)
        if len(rows):
            for name in FEATURES:
                values = np.empty((len(rows), *getattr(self.views[0], name).shape[1:]), dtype=np.float32)
                for number, features in enumerate(self.views):
                    chosen = view[rows] == number
                    values[chosen] = getattr(features, name)[image[rows][chosen]]
                read[name] = torch.from_numpy(values)
            read["image_rows"] = torch.from_numpy(rows)
        return read

    def embed(self, inputs: dict[str, dict[str, Any]]) -> tuple[Tensor, Tensor]:
        """See `EmbeddingStage.embed`."""
        return self._phi(inputs["queries"]), self._phi(inputs["targets"])

    def _phi(self, read: dict[str, Any]) -> Tensor:
        """Compute phi of Eq. 2, (n, d): the normalised sum of text and image vectors."""
        total = torch.zeros(read["count"], self.heads.config.dim, device=self.heads.device)
        if "states" in read:
            vectors = self.heads.encode_text(read["states"], read.get("mask")).float()
            total = total.index_add(0, read["text_rows"], vectors[read["texts"]])
        if "image_rows" in read:
            vectors = self.heads.encode_image(*(read[name] for name in FEATURES)).float()
            total = total.index_add(0, read["image_rows"], vectors)
        return F.normalize(total, dim=1)

    def validate(self) -> dict[str, float]:
        """Recall of exact search."""
        vectors = split_vectors(self.heads, self.data.val, self.texts, self.views[0])
        return embedding_recall(self.data.val, vectors.embedding, self.compute.device)


def text_vectors(heads: Heads, states: TokenStates, numbers: np.ndarray) -> np.ndarray:
    """(texts + 1, d): vectors of the texts with these numbers. Other rows, and the last one, are zero."""
    out = np.zeros((len(states) + 1, heads.config.dim), dtype=np.float32)
    mine = distributed.own(numbers)
    for rows in np.array_split(mine, len(mine) // TEXT_BLOCK + 1):
        out[rows] = encode_states(heads, states.take(rows))
    return distributed.summed(torch.from_numpy(out)).numpy()


@torch.inference_mode()
def image_vectors(heads: Heads, features: ImageFeatures, numbers: np.ndarray) -> np.ndarray:
    """(images + 1, d): vectors of the images with these numbers. Other rows, and the last one, are zero."""
    out = np.zeros((len(features.pooled) + 1, heads.config.dim), dtype=np.float32)
    for rows in distributed.own(np.array_split(numbers, len(numbers) // IMAGE_BLOCK + 1)):
        parts = (torch.from_numpy(getattr(features, name)[rows]).to(heads.device).float() for name in FEATURES)
        out[rows] = heads.encode_image(*parts).cpu().numpy()
    return distributed.summed(torch.from_numpy(out)).numpy()


def split_vectors(heads: Heads, split: SplitData, states: TokenStates, features: ImageFeatures) -> FrozenVectors:
    """Vectors of the texts and images that a split uses."""
    texts = np.unique(np.concatenate([split.text, *(t.text for t in split.tasks)]))
    images = np.unique(np.concatenate([split.image, *(t.image for t in split.tasks)]))
    return FrozenVectors(
        text_vectors(heads, states, texts[texts >= 0]), image_vectors(heads, features, images[images >= 0])
    )
