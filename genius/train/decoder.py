"""Stage 3, Sec. 4.3: the decoder learns to generate the ID of the target (Eqs. 9 to 11)."""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from genius.data.splits import SplitData
from genius.model.decoder_config import DecoderConfig
from genius.networks.decoder import Decoder
from genius.networks.fusion import Fusion
from genius.search.beam import beam_search
from genius.search.trie import Trie
from genius.train.batches import PairStage
from genius.train.config import DecoderStageConfig
from genius.train.data import StageVectors, TrainingData
from genius.train.distillation import Distillation
from genius.train.loop import step_rng
from genius.train.losses import augment, id_loss
from genius.train.quantizer import fuse_rows
from genius.train.token_table import start_table
from genius.train.validation import AT, with_mean

VALIDATION_QUERIES = 100  # per task
VALIDATION_BEAM = 20
CODE_BLOCK = 8192


class IdScheme(Protocol):
    """Makes IDs from fused vectors, as `Quantizer` does."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of codes of each level."""
        ...

    @property
    def codebooks(self) -> list[Tensor]:
        """(size, d) for each level; zeros where codes have no position in vector space."""
        ...

    def encode(self, z: Tensor, modality: Tensor, beams: int = 1) -> Tensor:
        """IDs (n, levels) int64 of vectors z (n, d) with modality (n,). An ID does not depend on the other vectors."""
        ...


class DecoderStage(PairStage):
    """Trains the decoder on the IDs that a scheme makes: the trained quantizer, or another one."""

    name = "decoder"
    config: DecoderStageConfig

    def __init__(
        self,
        data: TrainingData,
        vectors: StageVectors,
        fusion: Fusion,
        scheme: IdScheme,
        config: DecoderStageConfig,
        seed: int,
        code_beams: int = 1,
    ) -> None:
        super().__init__(data, config, seed, config.average)
        self.steps = max(1, round(config.epochs * len(self.pairs) / config.batch))
        self.vectors, self.fusion = vectors, fusion
        self.codes = self._codes(scheme, code_beams, data.train, self.pairs.targets())
        self.val_codes = self._codes(scheme, code_beams, data.val, np.arange(len(data.val.text)))
        self.val_queries = [
            self._fuse(t.text[:VALIDATION_QUERIES], t.image[:VALIDATION_QUERIES]) for t in data.val.tasks
        ]
        torch.manual_seed(seed)
        self.decoder = self.module = Decoder(
            DecoderConfig(
                dim=vectors.dim,
                sizes=scheme.sizes,
                d_model=config.d_model,
                layers=config.layers,
                heads=config.heads,
                d_kv=config.d_kv,
                d_ff=config.d_ff,
                prefix=config.prefix,
                dropout=config.dropout,
                whole_vocabulary=config.whole_vocabulary,
                residual_input=config.residual_input,
                residual_gain=config.residual_gain,
                query_scale=config.query_scale,
            )
        )
        self.decoder.init_codebooks(scheme.codebooks)
        if config.layers:
            start_table(self.decoder, scheme.codebooks, config.start_table)
        self.groups = [self.group(list(self.decoder.parameters()))]
        self.distillation = Distillation(self.pairs, data.train, self.codes, self._fuse, config, seed)

    def _fuse(self, text: np.ndarray, image: np.ndarray) -> Tensor:
        """Fused vectors (n, d), computed for every batch: millions of them would not fit into memory."""
        return fuse_rows(self.fusion, self.vectors, text, image)

    def _codes(self, scheme: IdScheme, beams: int, split: SplitData, rows: np.ndarray) -> Tensor:
        """(candidates, levels): IDs of the candidates in these rows. Other rows stay zero."""
        codes = torch.zeros(len(split.text), len(scheme.sizes), dtype=torch.int64)
        for start in range(0, len(rows), CODE_BLOCK):
            block = rows[start : start + CODE_BLOCK]
            z, modality = self._fuse(split.text[block], split.image[block]), torch.from_numpy(split.modality[block])
            codes[torch.from_numpy(block)] = scheme.encode(z, modality, beams=beams)
        return codes

    def loss(self, step: int) -> tuple[Tensor, dict[str, float]]:
        """Eq. 10, distillation, or the sum of both."""
        rng = step_rng(self.seed, self.name, step)
        losses, metrics = [], {}
        if self.config.teacher != "distil":
            hard = self._label_loss(rng)
            losses.append(hard)
            metrics["labels"] = float(hard.detach())
        if self.config.teacher != "none":
            distilled, parts = self.distillation.loss(self.decoder, step, rng)
            losses.append(distilled)
            metrics |= parts
        return torch.stack(losses).sum(), metrics

    def _label_loss(self, rng: np.random.Generator) -> Tensor:
        """Eq. 10. A share of the queries is not augmented: the decoder must answer queries as they are."""
        config, train = self.config, self.data.train
        queries, targets = self.pairs.draw(rng, config.batch)
        z_q = self._fuse(self.pairs.text[queries], self.pairs.image[queries])
        z_c = self._fuse(train.text[targets], train.image[targets])
        unaugmented = torch.from_numpy(rng.random((len(queries), 1)) < config.unaugmented)
        z = torch.where(unaugmented, z_q, augment(z_q, z_c, config.augmentation, config.alpha, rng))
        return id_loss(self.decoder(z, self.codes[targets]))

    def validate(self) -> dict[str, float]:
        """Recall@5 of mode `generate` on some queries of each task (any hit, %)."""
        val, recalls, runtime = self.data.val, {}, self.decoder.runtime()
        for task, z in zip(val.tasks, self.val_queries, strict=True):
            assert task.pool is not None
            trie = Trie(self.val_codes[task.pool].numpy())
            hits = []
            for number, beams in enumerate(beam_search(runtime, trie, z, VALIDATION_BEAM)):
                rows = task.pool[trie.leaves(beams.lo, beams.hi)]
                if task.image[number] >= 0:
                    rows = rows[val.image[rows] != task.image[number]]
                hits.append(np.isin(rows[:AT], task.positives[number]).any())
            recalls[task.task.name] = 100 * float(np.mean(hits))
        return with_mean(recalls)
