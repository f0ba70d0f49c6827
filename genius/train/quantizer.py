"""Stage 2, Sec. 4.2: fusion and codebooks, trained together on frozen stage-1 vectors (Eqs. 3 to 8)."""

import numpy as np
import torch
from torch import Tensor, nn

from genius.data.splits import SplitData
from genius.model.quantizer_runtime import MODALITIES, code_report
from genius.networks.fusion import Fusion
from genius.networks.quantizer import Quantizer
from genius.train.batches import PairStage, tensor_pair
from genius.train.config import QuantizerStageConfig
from genius.train.data import StageVectors, TrainingData
from genius.train.loop import step_rng
from genius.train.losses import contrastive_loss
from genius.train.validation import recall

FUSE_BLOCK = 2048


class QuantizerStage(PairStage):
    """Trains fusion by gradients and the codebooks by moving averages."""

    name = "quantizer"
    config: QuantizerStageConfig

    def __init__(self, data: TrainingData, vectors: StageVectors, config: QuantizerStageConfig, seed: int) -> None:
        super().__init__(data, config, seed)  # no average: the codebooks follow the current fusion
        self.vectors = vectors
        self.steps = max(1, round(config.epochs * len(self.pairs) / config.batch)) if config.epochs else config.steps
        dim = vectors.dim
        torch.manual_seed(seed)
        self.fusion = Fusion(dim, config.fusion_hidden, config.dropout)
        self.quantizer = Quantizer(
            dim, config.codes_per_level, config.levels, config.shared, decay=config.decay, seed=seed
        )
        self.module = nn.ModuleDict({"fusion": self.fusion, "quantizer": self.quantizer})
        self.groups = [self.group(self.fusion.parameters())]

    @torch.no_grad()
    def start(self) -> None:
        """Initialise the codebooks by k-means over a sample of the training candidates."""
        train = self.data.train
        rows = step_rng(self.seed, "start", 0).permutation(len(train.text))[: self.config.sample]
        self.fusion.eval()
        fused = self.fuse_rows(train.text[rows], train.image[rows])
        self.quantizer.initialise(fused, self._first_codes(train.modality[rows]), self.seed)

    def loss(self, step: int) -> tuple[Tensor, dict[str, float]]:
        """Eq. 8."""
        config, train = self.config, self.data.train
        queries, targets = self.pairs.draw(step_rng(self.seed, self.name, step), config.batch)
        z_q = self.fusion(*tensor_pair(self.vectors, self.pairs.text[queries], self.pairs.image[queries]))
        z_c = self.fusion(*tensor_pair(self.vectors, train.text[targets], train.image[targets]))
        masked = torch.from_numpy(self.pairs.false_negatives(queries, targets))
        contrastive = contrastive_loss(z_q, z_c, config.temperature, masked)
        # Where it is given, the first code of a query is its target modality: in training, the modality of its target.
        modality = train.modality[targets]
        both = self.quantizer(torch.cat([z_q, z_c]), self._first_codes(np.concatenate([modality, modality])))
        q_hat, c_hat = both.vectors.chunk(2)
        mse = (q_hat - c_hat).square().mean()
        # L_rq (Eq. 7) is divided by the dimension, as L_mse is, so that beta and gamma have the same scale.
        rq = both.loss / len(self.quantizer.sizes) if config.rq_mean else both.loss
        total = config.contrastive * contrastive + config.beta * rq / z_q.shape[1] + config.gamma * mse
        return total, {"contrastive": contrastive.item(), "rq": rq.item(), "mse": mse.item()}

    def validate(self) -> dict[str, float]:
        """Recall of exact search over the vectors rebuilt from the codes, and facts about the codes."""
        split = self.data.val
        fused = self.fuse(split)
        codes = self.quantizer.encode(fused, self._first_codes(split.modality))
        quantized = nn.functional.normalize(self.quantizer.decode(codes), dim=1).numpy()
        queries = [self.fuse_rows(t.text, t.image).numpy() for t in split.tasks]
        report = code_report(codes.numpy(), self.quantizer.sizes)
        learned = {"purity": purity(codes[:, 0].numpy(), split.modality)} if self.scheme is not self.quantizer else {}
        return recall(split, queries, quantized) | {
            "fused": recall(split, queries, fused.numpy())["score"],
            "distinct": report.distinct / report.items,
            "utilisation": float(np.mean(report.utilisation)),
            **learned,
        }

    @property
    def scheme(self) -> "Quantizer | LearnedFirstCode":
        """What makes the IDs that the decoder learns (an `IdScheme`)."""
        return self.quantizer if self.config.first_code == "modality" else LearnedFirstCode(self.quantizer)

    def _first_codes(self, modality: np.ndarray) -> Tensor | None:
        """The first codes of vectors with these modalities (n,), or None where they are learned."""
        return torch.from_numpy(modality) if self.config.first_code == "modality" else None

    def fuse(self, split: SplitData) -> Tensor:
        """Fused vectors of all candidates of a split, (candidates, d)."""
        return self.fuse_rows(split.text, split.image)

    def fuse_rows(self, text: np.ndarray, image: np.ndarray) -> Tensor:
        """Fused vectors of texts with images, given by number, (n, d)."""
        return fuse_rows(self.fusion, self.vectors, text, image)


class LearnedFirstCode:
    """IDs whose first code is the nearest one, not the modality of the item."""

    def __init__(self, quantizer: Quantizer) -> None:
        self.quantizer, self.sizes = quantizer, quantizer.sizes

    @property
    def codebooks(self) -> list[Tensor]:
        """See `IdScheme`."""
        return self.quantizer.codebooks

    def encode(self, z: Tensor, modality: Tensor, beams: int = 1) -> Tensor:
        """See `IdScheme`."""
        return self.quantizer.encode(z, None, beams)


def purity(first: np.ndarray, modality: np.ndarray) -> float:
    """Share of the items whose modality is the commonest one of their first code. Both (n,)."""
    counts = np.zeros((MODALITIES, MODALITIES), np.int64)
    np.add.at(counts, (first, modality), 1)
    return float(counts.max(axis=1).sum() / len(first))


@torch.no_grad()
def fuse_rows(fusion: Fusion, vectors: StageVectors, text: np.ndarray, image: np.ndarray) -> Tensor:
    """Fused vectors of texts with images, given by number, (n, d). Computed in blocks: the hidden layers are wide."""
    fused = torch.empty(len(text), fusion.dim)
    for start in range(0, len(text), FUSE_BLOCK):
        block = slice(start, start + FUSE_BLOCK)
        fused[block] = fusion(*tensor_pair(vectors, text[block], image[block]))
    return fused
