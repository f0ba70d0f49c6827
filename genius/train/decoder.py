"""Stage 3, Sec. 4.3: the decoder learns to write the ID of the target (Eqs. 9 to 11)."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from genius.data.splits import SplitData
from genius.model.decoder import Decoder, DecoderConfig
from genius.model.decoder_runtime import DecoderRuntime
from genius.search.beam import beam_search
from genius.search.trie import Trie
from genius.train.batches import Pairs
from genius.train.config import DecoderStageConfig
from genius.train.data import TrainingData
from genius.train.loop import Stage, step_rng
from genius.train.quantizer import QuantizerStage, fuse_rows

VALIDATION_QUERIES = 100  # of each task
VALIDATION_BEAM = 20
CODE_BLOCK = 8192


def augment(z_q: Tensor, z_c: Tensor, variant: str, alpha: float, rng: np.random.Generator) -> Tensor:
    """Queries on the way to their targets. z_q, z_c: (n, d), normalised -> (n, d), normalised."""
    if variant == "none":
        return z_q
    if variant == "interpolate":  # Eq. 11, one mu a pair
        mu = torch.from_numpy(rng.beta(alpha, alpha, (len(z_q), 1)).astype(np.float32))
        return F.normalize(mu * z_q + (1 - mu) * z_c, dim=1)
    mu = torch.from_numpy(rng.beta(alpha, alpha, z_q.shape).astype(np.float32))  # as published: one mu a dimension
    return F.normalize(mu.sqrt() * z_q + (1 - mu).sqrt() * z_c, dim=1)


class DecoderStage(Stage):
    name = "decoder"

    def __init__(self, data: TrainingData, quantized: QuantizerStage, config: DecoderStageConfig, seed: int) -> None:
        self.data, self.config, self.seed = data, config, seed
        self.pairs = Pairs(data.train, config.balance, config.mix)
        self.steps = max(1, round(config.epochs * len(self.pairs) / config.batch))
        self.warmup, self.validate_every, self.average = config.warmup, config.validate_every, config.average
        quantizer, vectors = quantized.quantizer, quantized.vectors
        self.quantized = quantized
        self.codes = self._codes(data.train, self.pairs.targets())
        self.val_codes = self._codes(data.val, np.arange(len(data.val.text)))
        self.val_queries = [
            self._fuse(t.text[:VALIDATION_QUERIES], t.image[:VALIDATION_QUERIES]) for t in data.val.tasks
        ]
        torch.manual_seed(seed)
        self.decoder = self.module = Decoder(
            DecoderConfig(
                dim=vectors.texts.shape[1],
                sizes=quantizer.sizes,
                d_model=config.d_model,
                layers=config.layers,
                heads=config.heads,
                d_kv=config.d_kv,
                d_ff=config.d_ff,
                prefix=config.prefix,
                dropout=config.dropout,
                whole_vocabulary=config.whole_vocabulary,
                linear_head=config.skip,
                decoder_levels=config.written,
            )
        )
        if config.skip:
            self.decoder.init_linear_head(quantizer.codebooks, config.skip_gain)
        layers = [weight for name, weight in self.decoder.named_parameters() if name != "linear_head"]
        self.groups: list[dict[str, Any]] = [{"params": layers, "lr": config.rate, "weight_decay": config.weight_decay}]
        if self.decoder.linear_head is not None:  # it starts from the codebooks: zero is not what to be drawn to
            self.groups.append({"params": [self.decoder.linear_head], "lr": config.rate, "weight_decay": 0.0})

    def _fuse(self, text: np.ndarray, image: np.ndarray) -> Tensor:
        """z of texts with images, (n, d). Made anew for every batch: millions of them would not fit into memory."""
        return fuse_rows(self.quantized.fusion, self.quantized.vectors, text, image)

    def _codes(self, split: SplitData, rows: np.ndarray) -> Tensor:
        """(candidates, levels): the IDs of the candidates in these rows; the others stay zero."""
        quantizer, beams = self.quantized.quantizer, self.quantized.config.code_beams
        codes = torch.zeros(len(split.text), len(quantizer.sizes), dtype=torch.int64)
        for start in range(0, len(rows), CODE_BLOCK):
            block = rows[start : start + CODE_BLOCK]
            z, modality = self._fuse(split.text[block], split.image[block]), torch.from_numpy(split.modality[block])
            codes[torch.from_numpy(block)] = quantizer.encode(z, modality, beams=beams)
        return codes

    def loss(self, step: int) -> tuple[Tensor, dict[str, float]]:
        rng = step_rng(self.seed, self.name, step)
        queries, targets = self.pairs.draw(rng, self.config.batch)
        # Half of the batch as it is, half augmented: the decoder must answer both.
        z_q = self._fuse(self.pairs.text[queries], self.pairs.image[queries])
        z_c = self._fuse(self.data.train.text[targets], self.data.train.image[targets])
        plain = torch.from_numpy(rng.random((len(queries), 1)) < self.config.plain)
        z = torch.where(plain, z_q, augment(z_q, z_c, self.config.augmentation, self.config.alpha, rng))
        log_probs = self.decoder(z, self.codes[targets][:, : self.decoder.decoder_levels])
        return -log_probs.sum(dim=1).mean(), {"first": -float(log_probs[:, 1].detach().mean())}  # Eq. 10

    def validate(self) -> dict[str, float]:
        """Recall@5 of `generate` in each task's own pool (any hit, %), on some of its queries."""
        figures, engine = {}, DecoderRuntime(self.decoder)
        for task, z in zip(self.data.val.tasks, self.val_queries, strict=True):
            assert task.pool is not None
            trie = Trie(self.val_codes[task.pool].numpy())
            found = beam_search(engine, trie, z, VALIDATION_BEAM)
            hits = []
            for number, beams in enumerate(found):
                rows = task.pool[trie.leaves(beams.lo, beams.hi)]
                if task.image[number] >= 0:
                    rows = rows[self.data.val.image[rows] != task.image[number]]
                hits.append(np.isin(rows[:5], task.positives[number]).any())
            figures[task.task.name] = 100 * float(np.mean(hits))
        return {"score": float(np.mean(list(figures.values()))), **figures}
