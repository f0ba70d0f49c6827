"""Stage 2, Sec. 4.2: fusion and codebooks, trained together on frozen stage-1 vectors (Eqs. 3 to 8)."""

import numpy as np
import torch
from torch import Tensor, nn

from genius.data.splits import SplitData
from genius.model.quantizer_runtime import MODALITIES, code_report
from genius.networks.fusion import Fusion
from genius.networks.quantizer import Quantizer
from genius.train import distributed
from genius.train.batches import VectorStage, tensor_pair
from genius.train.compute import CPU, Compute
from genius.train.config import QuantizerStageConfig
from genius.train.data import StageVectors, TrainingData
from genius.train.loop import Losses, step_rng
from genius.train.validation import recall

FUSE_BLOCK = 2048


class QuantizerStage(VectorStage):
    """Trains fusion by gradients and the codebooks by moving averages."""

    name = "quantizer"
    config: QuantizerStageConfig

    def __init__(
        self,
        data: TrainingData,
        vectors: StageVectors,
        config: QuantizerStageConfig,
        seed: int,
        compute: Compute = CPU,
    ) -> None:
        super().__init__(data, config, seed, compute=compute)  # no average: the codebooks follow the current fusion
        self.vectors = vectors
        self.steps = max(1, round(config.epochs * len(self.pairs) / config.batch)) if config.epochs else config.steps
        dim = vectors.dim
        torch.manual_seed(seed)
        self.fusion = Fusion(dim, config.fusion_hidden, config.dropout)
        self.quantizer = Quantizer(
            dim, config.codes_per_level, config.levels, config.shared, decay=config.decay, seed=seed
        )
        self.module = nn.ModuleDict({"fusion": self.fusion, "quantizer": self.quantizer}).to(compute.device)
        self.groups = [self.group(self.fusion.parameters())]

    @torch.no_grad()
    def start(self) -> None:
        """Initialise the codebooks by k-means over a sample of the training candidates, in process 0 for all."""
        train = self.data.train
        rows = step_rng(self.seed, "start", 0).permutation(len(train.text))[: self.config.sample]
        self.fusion.eval()
        fused = self.fuse_rows(train.text[rows], train.image[rows])
        if distributed.is_main():
            self.quantizer.initialise(fused, self._first_codes(self.modality[rows]), self.seed)
        distributed.send_weights(self.quantizer)

    def embed(self, inputs: list[list[Tensor]]) -> tuple[Tensor, Tensor]:
        """See `EmbeddingStage.embed`."""
        queries, targets = inputs
        return self.fusion(*queries), self.fusion(*targets)

    def compare(self, queries: Tensor, targets: Tensor, whole: dict[str, Tensor]) -> Losses:
        """Eq. 8."""
        config = self.config
        contrastive, _ = super().compare(queries, targets, whole)  # Eq. 3
        # Where it is given, the first code of a query is its target modality: in training, the modality of its target.
        both = torch.cat([queries, targets])
        first = torch.cat([whole["modality"]] * 2) if config.first_code == "modality" else None
        codes = self.quantizer.assign(distributed.own(both.detach()), None if first is None else distributed.own(first))
        quantized = self.quantizer(both, codes=distributed.gathered(codes, len(both)))
        q_hat, c_hat = quantized.vectors.chunk(2)
        mse = (q_hat - c_hat).square().mean()
        # L_rq (Eq. 7) is divided by the dimension, as L_mse is, so that beta and gamma have the same scale.
        rq = quantized.loss / len(self.quantizer.sizes) if config.rq_mean else quantized.loss
        total = config.contrastive * contrastive + config.beta * rq / queries.shape[1] + config.gamma * mse
        return total, {"contrastive": contrastive.detach(), "rq": rq.detach(), "mse": mse.detach()}

    def validate(self) -> dict[str, float]:
        """Recall of exact search over the vectors rebuilt from the codes, and facts about the codes."""
        split, device = self.data.val, self.compute.device
        fused = self.fuse(split)
        first = self._first_codes(split.modality)
        mine = self.quantizer.encode(distributed.own(fused), None if first is None else distributed.own(first))
        codes = distributed.gathered(mine, len(fused))
        quantized = nn.functional.normalize(self.quantizer.decode(codes), dim=1)
        queries = [self.fuse_rows(t.text, t.image) for t in split.tasks]
        codes = codes.cpu()
        report = code_report(codes.numpy(), self.quantizer.sizes)
        learned = {"purity": purity(codes[:, 0].numpy(), split.modality)} if self.scheme is not self.quantizer else {}
        return recall(split, queries, quantized, device) | {
            "fused": recall(split, queries, fused, device)["score"],
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
        given = self.config.first_code == "modality"
        return torch.from_numpy(modality).to(self.compute.device) if given else None

    def fuse(self, split: SplitData) -> Tensor:
        """Fused vectors of all candidates of a split, (candidates, d)."""
        return self.fuse_rows(split.text, split.image)

    def fuse_rows(self, text: np.ndarray, image: np.ndarray) -> Tensor:
        """Fused vectors of texts with images, given by number, (n, d)."""
        return fuse_rows(self.fusion, self.vectors, text, image, self.compute.device)


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


def fuse_rows(
    fusion: Fusion, vectors: StageVectors, text: np.ndarray, image: np.ndarray, device: torch.device
) -> Tensor:
    """Fused vectors of texts with images, given by number, (n, d). The processes share the work."""
    mine = fuse_own_rows(fusion, vectors, distributed.own(text), distributed.own(image), device)
    return distributed.gathered(mine, len(text))


@torch.no_grad()
def fuse_own_rows(
    fusion: Fusion, vectors: StageVectors, text: np.ndarray, image: np.ndarray, device: torch.device
) -> Tensor:
    """`fuse_rows` in this process alone. Computed in blocks: the hidden layers are wide."""
    fused = torch.empty(len(text), fusion.dim, device=device)
    for start in range(0, len(text), FUSE_BLOCK):
        block = slice(start, start + FUSE_BLOCK)
        fused[block] = fusion(*(half.to(device) for half in tensor_pair(vectors, text[block], image[block])))
    return fused
