"""Stage 2, Sec. 4.2: fusion and codebooks, trained together on the frozen encoder's vectors (Eqs. 3 to 8)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from genius.data.splits import SplitData
from genius.model.fusion import Fusion
from genius.model.quantizer import Quantizer
from genius.train.batches import Pairs
from genius.train.config import QuantizerStageConfig
from genius.train.data import TrainingData
from genius.train.encoder import contrastive_loss
from genius.train.loop import Stage, step_rng
from genius.train.validation import recall

FUSE_BLOCK = 2048


@dataclass
class FrozenVectors:
    """Stage-1 vectors by number: texts (texts + 1, d), images (images + 1, d); the last row, that of -1, is zero.

    Both may be mapped files of any size: only the rows that are asked for are read.
    """

    texts: np.ndarray
    images: np.ndarray

    def pair(self, text: np.ndarray, image: np.ndarray) -> tuple[Tensor, Tensor]:
        """(image vectors, text vectors), as fusion takes them."""
        return _float(self.images, image), _float(self.texts, text)


def _float(vectors: np.ndarray, rows: np.ndarray) -> Tensor:
    """Some rows of a file, which may hold them in half precision, as (n, d) float32 in memory."""
    return torch.from_numpy(np.asarray(vectors[rows], dtype=np.float32))


class QuantizerStage(Stage):
    name = "quantizer"

    def __init__(self, data: TrainingData, vectors: FrozenVectors, config: QuantizerStageConfig, seed: int) -> None:
        dim = vectors.texts.shape[1]
        self.data, self.vectors, self.config, self.seed = data, vectors, config, seed
        torch.manual_seed(seed)
        self.fusion = Fusion(dim, config.fusion_hidden, config.dropout)
        self.quantizer = Quantizer(
            dim, config.codes_per_level, config.levels, config.shared, decay=config.decay, seed=seed
        )
        self.module = nn.ModuleDict({"fusion": self.fusion, "quantizer": self.quantizer})
        self.pairs = Pairs(data.train, config.balance, config.mix)
        self.groups: list[dict[str, Any]] = [
            {"params": list(self.fusion.parameters()), "lr": config.rate, "weight_decay": config.weight_decay}
        ]
        self.steps, self.warmup, self.validate_every = config.steps, config.warmup, config.validate_every
        self.average = 0.0  # the codebooks follow the current fusion, not its average

    @torch.no_grad()
    def start(self) -> None:
        """k-means over a large sample of the training candidates' vectors."""
        rng = step_rng(self.seed, "start", 0)
        count = len(self.data.train.text)
        rows = rng.permutation(count)[: self.config.sample]
        self.fusion.eval()
        fused = self.fuse_rows(self.data.train.text[rows], self.data.train.image[rows])
        self.quantizer.initialise(fused, torch.from_numpy(self.data.train.modality[rows]), self.seed)

    def loss(self, step: int) -> tuple[Tensor, dict[str, float]]:
        rng = step_rng(self.seed, self.name, step)
        queries, targets = self.pairs.draw(rng, self.config.batch)
        z_q = self.fusion(*self.vectors.pair(self.pairs.text[queries], self.pairs.image[queries]))
        z_c = self.fusion(*self.vectors.pair(self.data.train.text[targets], self.data.train.image[targets]))
        masked = torch.from_numpy(self.pairs.false_negatives(queries, targets))
        contrastive = contrastive_loss(z_q, z_c, self.config.temperature, masked)
        # The query's first code is the modality it asks for, which in training is that of its target.
        modality = torch.from_numpy(self.data.train.modality[targets])
        both = self.quantizer(torch.cat([z_q, z_c]), torch.cat([modality, modality]))
        q_hat, c_hat = both.vectors.chunk(2)
        mse = (q_hat - c_hat).square().mean()
        weights = self.config
        # Eq. 8; L_rq is taken per dimension, as L_mse is, so that beta and gamma mean the same for both.
        total = weights.contrastive * contrastive + weights.beta * both.loss / z_q.shape[1] + weights.gamma * mse
        return total, {"contrastive": contrastive.item(), "rq": both.loss.item(), "mse": mse.item()}

    def validate(self) -> dict[str, float]:
        """Recall of exact search among the quantized vectors alone: what the codes still know."""
        split = self.data.val
        fused = self.fuse(split)
        codes = self.quantizer.encode(fused, torch.from_numpy(split.modality))
        quantized = torch.nn.functional.normalize(self.quantizer.decode(codes), dim=1).numpy()
        queries = [self.fuse_rows(t.text, t.image).numpy() for t in split.tasks]
        figures = recall(split, queries, quantized)
        exact = recall(split, queries, fused.numpy())
        report = self.quantizer.report(codes)
        return figures | {
            "fused": exact["score"],
            "distinct": report.distinct / report.items,
            "utilisation": float(np.mean(report.utilisation)),
        }

    @torch.no_grad()
    def fuse(self, split: SplitData) -> Tensor:
        """z of every candidate of a split, (candidates, d)."""
        return self.fuse_rows(split.text, split.image)

    def fuse_rows(self, text: np.ndarray, image: np.ndarray) -> Tensor:
        return fuse_rows(self.fusion, self.vectors, text, image)


@torch.no_grad()
def fuse_rows(fusion: Fusion, vectors: FrozenVectors, text: np.ndarray, image: np.ndarray) -> Tensor:
    """z of texts with images, given by number, (n, d). The wide layers of a fusion see few rows at a time."""
    fused = torch.empty(len(text), fusion.dim)
    for start in range(0, len(text), FUSE_BLOCK):
        block = slice(start, start + FUSE_BLOCK)
        fused[block] = fusion(*vectors.pair(text[block], image[block]))
    return fused
