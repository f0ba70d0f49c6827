"""Stage 3, Sec. 4.3: the decoder learns to generate the ID of the target (Eqs. 9 to 11)."""

from collections.abc import Callable
from functools import partial
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from genius.data.splits import SplitData
from genius.model.decoder_config import DecoderConfig
from genius.networks.decoder import Decoder
from genius.networks.fusion import Fusion
from genius.search.beam import beam_search
from genius.search.trie import Trie
from genius.train import distributed
from genius.train.batches import Batch, PairStage, pair_inputs, row_weight, tensor_pair
from genius.train.compute import CPU, Compute
from genius.train.config import DecoderStageConfig
from genius.train.data import StageVectors, TrainingData
from genius.train.distillation import Distillation
from genius.train.loop import Losses, step_seed
from genius.train.losses import augment, draw_weights, id_loss
from genius.train.quantizer import fuse_own_rows, fuse_rows
from genius.train.token_table import start_table
from genius.train.validation import AT, recall_by_task

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
        compute: Compute = CPU,
    ) -> None:
        super().__init__(data, config, seed, config.average, compute)
        self.steps = max(1, round(config.epochs * len(self.pairs) / config.batch))
        self.vectors, self.fusion = vectors, fusion.to(compute.device)
        self.codes = self._codes(scheme, code_beams, data.train, self.pairs.targets())
        self.val_codes = self._codes(scheme, code_beams, data.val, np.arange(len(data.val.text)))
        self.val_queries = [
            fuse_rows(fusion, vectors, t.text[:VALIDATION_QUERIES], t.image[:VALIDATION_QUERIES], compute.device).cpu()
            for t in data.val.tasks
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
        codebooks = [codes.cpu() for codes in scheme.codebooks]
        self.decoder.init_codebooks(codebooks)
        if config.layers:
            start_table(self.decoder, codebooks, config.start_table)
        self.decoder.to(compute.device)
        self.groups = [self.group(list(self.decoder.parameters()))]
        self.distillation = Distillation(
            self.pairs,
            data.train,
            self.codes,
            lambda text, image: tensor_pair(vectors, text, image),
            self._fused,
            config,
            vectors.dim,
            seed,
        )

    @torch.no_grad()
    def _fused(self, image: Tensor, text: Tensor) -> Tensor:
        """Fused vectors (n, d), computed for every batch: millions of them would not fit into memory.

        In float32: the codes were made from such vectors.
        """
        fused: Tensor = self.fusion(image, text)
        return fused

    def _codes(self, scheme: IdScheme, beams: int, split: SplitData, rows: np.ndarray) -> Tensor:
        """(candidates, levels): IDs of the candidates in these rows. Other rows stay zero. On the CPU."""
        codes = torch.zeros(len(split.text), len(scheme.sizes), dtype=torch.int64)
        modality, rows, device = torch.from_numpy(split.modality), distributed.own(rows), self.compute.device
        for start in range(0, len(rows), CODE_BLOCK):
            block = rows[start : start + CODE_BLOCK]
            z = fuse_own_rows(self.fusion, self.vectors, split.text[block], split.image[block], device)
            numbers = torch.from_numpy(block)
            codes[numbers] = scheme.encode(z, modality[numbers].to(device), beams=beams).cpu()
        return distributed.summed(codes)

    def prepare(self, step: int) -> Batch:
        """See `PairStage.prepare`. A part holds the `labels` of some queries, other queries to `distil`, or both."""
        rng, seed = step_seed(self.seed, self.name, step)
        generator = torch.Generator().manual_seed(seed)
        labels = self._label_parts(rng) if self.config.teacher != "distil" else []
        distil = self.distillation.prepare(step, rng, generator, self.split) if self.config.teacher != "none" else []
        parts = [
            {name: part for name, part in (("labels", label), ("distil", soft)) if part is not None}
            for label, soft in zip_longest(labels, distil)
        ]
        return Batch(seed, parts, {}, generator.get_state())

    def loss(self, step: int) -> Losses:
        """Eq. 10, distillation, or the sum of both."""
        batch = self.batch(step)
        losses = [self._part_loss(batch, number) for number in range(len(batch.parts))]
        metrics = [found for _, found in losses]
        sums = {name: torch.stack([m[name] for m in metrics if name in m]).sum() for m in metrics for name in m}
        return torch.stack([loss for loss, _ in losses]).sum(), {k: v for k, v in sums.items() if k != "loss"}

    def parts(self, step: int) -> list[Callable[[], Losses]]:
        """See `Stage.parts`."""
        if self.config.accumulate == 1:
            return super().parts(step)
        batch = self.batch(step)
        return [partial(self._part_loss, batch, number) for number in range(len(batch.parts))]

    def _part_loss(self, batch: Batch, number: int) -> Losses:
        batch.seed_torch(number)
        part = batch.parts[number]
        losses: list[Tensor] = []
        metrics: dict[str, Tensor] = {}
        if "labels" in part:
            hard = part["labels"]["weight"] * self._label_loss(part["labels"])
            losses.append(hard)
            metrics["labels"] = hard.detach()
        if "distil" in part:
            distilled, found = self.distillation.loss(self.decoder, part["distil"], self.compute)
            losses.append(distilled)
            metrics |= found
        total = torch.stack(losses).sum()
        return total, {"loss": total.detach(), **metrics}

    def _label_parts(self, rng: np.random.Generator) -> list[dict[str, Any]]:
        config = self.config
        queries, targets = self.pairs.draw(rng, config.batch)
        unaugmented = torch.from_numpy(rng.random((len(queries), 1)) < config.unaugmented)
        mu = draw_weights((len(queries), self.vectors.dim), config.augmentation, config.alpha, rng)
        return [
            {
                "vectors": pair_inputs(self.vectors, self.pairs, self.data.train, queries[rows], targets[rows]),
                "codes": self.codes[targets[rows]],
                "unaugmented": unaugmented[rows],
                "mu": mu[rows],
                "weight": row_weight(len(rows), len(queries)),
            }
            for rows in self.split(len(queries))
        ]

    def _label_loss(self, part: dict[str, Any]) -> Tensor:
        """Eq. 10. A share of the queries is not augmented: the decoder must answer queries as they are."""
        z_q, z_c = (self._fused(*vectors) for vectors in part["vectors"])
        z = torch.where(part["unaugmented"], z_q, augment(z_q, z_c, self.config.augmentation, part["mu"]))
        with self.compute.autocast():
            log_probs = self.decoder(z, part["codes"])
        return id_loss(log_probs)

    def validate(self) -> dict[str, float]:
        """Recall@5 of mode `generate` on some queries of each task (any hit, %)."""
        val, runtime = self.data.val, self.decoder.runtime()

        def of_task(number: int) -> float:
            task, z = val.tasks[number], self.val_queries[number]
            assert task.pool is not None
            trie = Trie(self.val_codes[task.pool].numpy())
            hits = []
            for query, beams in enumerate(beam_search(runtime, trie, z, VALIDATION_BEAM)):
                rows = task.pool[trie.leaves(beams.lo, beams.hi)]
                if task.image[query] >= 0:
                    rows = rows[val.image[rows] != task.image[query]]
                hits.append(np.isin(rows[:AT], task.positives[query]).any())
            return 100 * float(np.mean(hits))

        return recall_by_task(val, of_task)
