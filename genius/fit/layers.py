"""Decoder layers of a fitted model, trained by distillation from the residual score on pseudo-queries."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from genius.fit.codebooks import Floats, Sample
from genius.fit.queries import QueryMaker
from genius.fit.settings import FitSettings
from genius.fit.validation import Validation
from genius.model.decoder_config import DecoderConfig
from genius.model.decoder_runtime import DecoderRuntime
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

QUERIES, ITEMS = 32, 4  # queries of a step, and IDs scored for each of them
SHARPNESS = 10.0  # these IDs are drawn in proportion to exp(SHARPNESS * similarity)
RATE, WEIGHT_DECAY, WARMUP = 1e-3, 0.01, 60
HEADS, FEED_FORWARD, PREFIX = 8, 2, 4  # FEED_FORWARD: width of the hidden layer, as a multiple of d_model


def train_layers(stage: "LayersStage", folder: Path | None, console: Console) -> DecoderRuntime:
    """Train the layers, and return the decoder with its best weights.

    Args:
        stage: The training.
        folder: Folder of checkpoints, from which an interrupted training continues. None: it cannot continue.
        console: Where progress is shown.
    """
    if folder is not None:
        run_stage(stage, folder, console)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            run_stage(stage, Path(temporary), console)
    return stage.decoder.runtime()


class LayersStage(Stage):
    """Trains a decoder whose layers decide all levels without the residual score.

    All modalities are equally likely: the target of a search decides.

    Args:
        quantizer: The codebooks.
        learned: Items to draw queries and IDs from.
        texts: Text vectors to draw queries from, see `QueryMaker`.
        validation: Chooses the weights.
        scale: Scale of the query vector in the residual score.
        settings: Sizes, steps and seed.
    """

    name = "decoder"
    warmup, average = WARMUP, 0.999

    def __init__(
        self,
        quantizer: QuantizerRuntime,
        learned: Sample,
        texts: Floats,
        validation: Validation,
        scale: float,
        settings: FitSettings,
    ) -> None:
        self.settings, self.texts, self.learned, self.validation = settings, texts, learned, validation
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

    def loss(self, step: int) -> Losses:
        """Difference between the scores of the decoder and the residual scores, of single codes and of whole IDs."""
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
        """Items that a step draws queries and IDs from. They are drawn once for `REFRESH` steps."""
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
        """Recall (%) of the mode generate, for held-back queries."""
        return {"score": 100 * self.validation.recall(self.decoder.runtime())}
