"""Decoder layers of a fitted model, trained by distillation from the residual score on pseudo-queries."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from genius.encoders.precomputed import PrecomputedEncoder
from genius.fit.check import CheckedItems, exact, recall
from genius.fit.codebooks import Floats, Sample
from genius.fit.queries import QueryMaker
from genius.fit.settings import FitSettings
from genius.model.decoder_config import DecoderConfig
from genius.model.decoder_runtime import DecoderRuntime
from genius.model.encoder_only import encoder_only
from genius.model.genius import Genius
from genius.model.quantizer_runtime import QuantizerRuntime
from genius.networks.decoder import Decoder
from genius.train.distillation import (
    CANDIDATES,
    MODALITY_WEIGHT,
    PATH_WEIGHT,
    REFRESH,
    Candidates,
    draw_near,
    level_errors,
    path_errors,
    teacher_logits,
)
from genius.train.loop import Losses, Stage, run_stage, step_rng

QUERIES, ITEMS = 32, 4  # of a step, and IDs scored for each query
SHARPNESS = 10.0
RATE, WEIGHT_DECAY, WARMUP = 1e-3, 0.01, 60
HEADS, FEED_FORWARD, PREFIX = 8, 2, 4  # FEED_FORWARD: times the width
VALIDATION_ITEMS, VALIDATION_QUERIES = 10_000, 100


def train_layers(
    quantizer: QuantizerRuntime,
    learned: Sample,
    held: Sample,
    texts: Floats,
    scale: float,
    settings: FitSettings,
    work: Path | None,
    console: Console,
) -> DecoderRuntime:
    """Train a decoder of `settings.layers` layers that decides all levels by itself.

    Args:
        quantizer: The codebooks.
        learned: Items to draw queries and IDs from.
        held: Held-back items, whose queries choose the weights.
        texts: See `QueryMaker`.
        scale: Scale of the query vector in the residual score.
        settings: Sizes, steps and seed.
        work: Folder of checkpoints, from which an interrupted training continues.
        console: Where progress is shown.
    """
    stage = LayersStage(quantizer, learned, held, texts, scale, settings)
    if work is not None:
        run_stage(stage, work, console)
    else:
        with tempfile.TemporaryDirectory() as folder:
            run_stage(stage, Path(folder), console)
    return stage.decoder.runtime()


class LayersStage(Stage):
    """Trains the layers. All modalities that the collection has are equally likely: the target decides."""

    name = "decoder"
    warmup, average = WARMUP, 0.999

    def __init__(
        self,
        quantizer: QuantizerRuntime,
        learned: Sample,
        held: Sample,
        texts: Floats,
        scale: float,
        settings: FitSettings,
    ) -> None:
        self.settings, self.texts, self.quantizer, self.learned = settings, texts, quantizer, learned
        self.steps = settings.steps
        self.validate_every = max(1, settings.steps // 4)
        self.codes = torch.from_numpy(
            quantizer.encode(learned.z, learned.modality, settings.code_beams).astype(np.int64)
        )
        torch.manual_seed(settings.seed)
        books = [torch.from_numpy(book) for book in quantizer.codebooks]
        self.decoder = self.module = Decoder(
            DecoderConfig(
                dim=quantizer.dim,
                sizes=quantizer.sizes,
                d_model=settings.d_model,
                layers=settings.layers,
                heads=HEADS,
                d_kv=max(1, settings.d_model // HEADS),
                d_ff=FEED_FORWARD * settings.d_model,
                prefix=PREFIX,
                dropout=0.0,
                residual_input=True,
                query_scale=scale,
            )
        )
        self.decoder.init_codebooks(books)
        self.decoder.init_table(books)
        self.groups = [{"params": list(self.decoder.parameters()), "lr": RATE, "weight_decay": WEIGHT_DECAY}]
        self._drawn: tuple[Candidates, QueryMaker] | None = None
        step = max(1, len(learned) // VALIDATION_ITEMS)
        sample = Sample(learned.z[::step], learned.modality[::step])
        self._items = CheckedItems(sample, self.codes[::step].numpy())
        self._queries = QueryMaker(held, texts).draw(VALIDATION_QUERIES, np.random.default_rng([settings.seed, 2]))
        self._nearest = exact(sample, self._queries)
        self._encoder = PrecomputedEncoder(quantizer.dim)

    def loss(self, step: int) -> Losses:
        """Difference of the decoder's scores from the residual scores, of codes and of whole IDs."""
        rng = step_rng(self.settings.seed, self.name, step)
        candidates, maker = self._candidates(step)
        queries = maker.draw(QUERIES, rng)
        z, target = torch.from_numpy(queries.z), torch.from_numpy(queries.target.astype(np.int64))
        rows = draw_near(
            SHARPNESS * z @ candidates.z.T, target, candidates, torch.rand(len(z), len(candidates.z)), ITEMS
        )
        codes, items = candidates.codes[rows].flatten(0, 1), rows.shape[1]
        z_items = z.repeat_interleave(items, 0)
        logits, teacher = self.decoder.logits(z_items, codes), teacher_logits(self.decoder, z_items, codes)
        levels, paths = level_errors(logits, teacher), path_errors(logits, teacher, codes, items)
        modality = -logits[0].log_softmax(-1).mean()
        parts = {"levels": levels, "paths": paths, "modality": modality}
        total = levels + PATH_WEIGHT * paths + MODALITY_WEIGHT * modality
        return total, {name: part.detach() for name, part in parts.items()}

    def _candidates(self, step: int) -> tuple[Candidates, QueryMaker]:
        """Items that a step draws queries and IDs from; they serve for several steps."""
        block = step // REFRESH
        if self._drawn is None or self._drawn[0].block != block:
            rng = np.random.default_rng([self.settings.seed, block, 3])
            rows = rng.permutation(len(self.learned))[:CANDIDATES]
            sample = Sample(self.learned.z[rows], self.learned.modality[rows])
            modality = torch.from_numpy(sample.modality.astype(np.int64))
            candidates = Candidates(block, torch.from_numpy(sample.z), self.codes[torch.from_numpy(rows)], modality)
            self._drawn = candidates, QueryMaker(sample, self.texts)
        return self._drawn

    def validate(self) -> dict[str, float]:
        """Share (%) of what exact search finds that mode generate finds, for held-back queries."""
        fusion = encoder_only(self._encoder).fusion
        model = Genius(self._encoder, fusion, self.quantizer, self.decoder.runtime())
        return {"score": 100 * recall(model, self._items, self._queries, self._nearest, "generate")}
