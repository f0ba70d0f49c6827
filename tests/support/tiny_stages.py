"""The stages of training on generated data, small enough for a step in milliseconds."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from genius.data.mbeir import Task
from genius.data.splits import SplitData, TaskData
from genius.encoders import efficientnet
from genius.encoders.mini_heads import HeadsConfig
from genius.encoders.minilm import WIDTH, TokenStates
from genius.networks.heads import Heads
from genius.train.batches import PairStage
from genius.train.clip import HeadsStage
from genius.train.compute import CPU, Compute
from genius.train.config import ClipStageConfig, DecoderStageConfig, EncoderStageConfig, QuantizerStageConfig
from genius.train.data import FrozenVectors
from genius.train.decoder import DecoderStage
from genius.train.encoder import EncoderStage
from genius.train.quantizer import QuantizerStage

META = Compute(torch.device("meta"))
DIM, CANDIDATES = 16, 60
STAGES = ("encoder", "heads", "quantizer", "nearest", "shared", "labels", "distil", "both")
"""Names for `make_stage`: stage 1 of `mini` and of a CLIP's heads, stage 2 in three variants, stage 3 in three."""
SMALL: dict[str, Any] = {"batch": 18, "warmup": 2, "validate_every": 10, "rate": 1e-3, "mix": 2}


def make_data() -> SimpleNamespace:
    """Images, texts and pairs in turn, asked for by two tasks with composed queries."""
    rows = np.arange(CANDIDATES)
    text, image = np.where(rows % 3 == 0, -1, rows), np.where(rows % 3 == 1, -1, rows)
    tasks = []
    for number, asked in enumerate((rows[::2], rows[1::2])):
        right = [np.array([row, (row + 3) % CANDIDATES]) for row in asked]
        tasks.append(TaskData(Task(f"d{number}", 8), [str(r) for r in asked], asked, asked[::-1].copy(), right, rows))
    split = SplitData(tasks, [str(row) for row in rows], text, image)
    return SimpleNamespace(train=split, val=split)


def make_vectors() -> FrozenVectors:
    texts, images = np.random.default_rng(1).standard_normal((2, CANDIDATES + 1, DIM)).astype(np.float32)
    texts[-1] = images[-1] = 0
    return FrozenVectors(texts, images)


def make_stage(name: str, compute: Compute = CPU, dropout: float = 0.0, **changes: Any) -> PairStage:
    """A stage whose modules do not depend on chance. Stage 2 has its codebooks, and revives codes in every step."""
    data: Any = make_data()
    settings = SMALL | changes
    if name == "encoder":
        torch.manual_seed(0)
        heads = Heads(HeadsConfig(dim=DIM, hidden=8, image_pool_queries=2, text_pool_queries=2, dropout=dropout))
        config = EncoderStageConfig(**{"steps": 50, **settings})
        return EncoderStage(heads, data, make_states(), [make_features(view) for view in (0, 1)], config, 3, compute)
    if name == "heads":
        return HeadsStage(data, make_vectors(), ClipStageConfig(**{"steps": 50, **settings}), 3, compute)
    if name in ("quantizer", "nearest", "shared"):
        quantizer = make_quantizer(data, compute, name, dropout, settings)
        quantizer.start()
        return quantizer
    coded = make_quantizer(data, CPU, "quantizer", 0.0, SMALL)
    coded.start()
    coded.module.eval()
    config = DecoderStageConfig(
        d_model=12, layers=2, heads=2, d_kv=6, d_ff=16, prefix=3, dropout=dropout, items=2, epochs=15.0,
        teacher={"labels": "none", "distil": "distil", "both": "both"}[name], **settings,
    )  # fmt: skip
    return DecoderStage(data, make_vectors(), coded.fusion, coded.quantizer, config, 3, 2, compute)


def make_quantizer(
    data: Any, compute: Compute, variant: str, dropout: float, settings: dict[str, Any]
) -> QuantizerStage:
    first_code = "nearest" if variant == "nearest" else "modality"
    config = QuantizerStageConfig(
        codes_per_level=6, levels=3, fusion_hidden=8, dropout=dropout, first_code=first_code, decay=0.8,
        shared=variant == "shared", **{"steps": 50, **settings},
    )  # fmt: skip
    stage = QuantizerStage(data, make_vectors(), config, 3, compute)
    torch.manual_seed(7)
    nn.init.normal_(stage.fusion.output_layer.weight, std=0.3)  # a new fusion is a sum, the same for many weights
    stage.quantizer.revive_below = 0.5
    return stage


def make_states() -> TokenStates:
    lengths = 1 + np.arange(CANDIDATES) % 4
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    rng = np.random.default_rng(2)
    return TokenStates(rng.standard_normal((int(offsets[-1]), WIDTH)).astype(np.float16), offsets)


def make_features(view: int) -> Any:
    rng = np.random.default_rng([3, view])
    shapes = {
        "map": (efficientnet.CHANNELS, efficientnet.GRID),
        "pooled": (efficientnet.POOLED,),
        "logits": (efficientnet.CLASSES,),
    }
    return SimpleNamespace(
        **{name: rng.standard_normal((CANDIDATES, *shape)).astype(np.float16) for name, shape in shapes.items()}
    )


def to_meta(stage: PairStage) -> None:
    """Move the modules of a stage that was made on the CPU. torch makes new parameters for this device."""
    names = {id(value): name for name, value in stage.module.named_parameters()}
    groups = [[names[id(value)] for value in group["params"]] for group in stage.groups]
    for module in (stage.module, getattr(stage, "fusion", stage.module)):
        module.to("meta")
    moved = dict(stage.module.named_parameters())
    stage.groups = [stage.group([moved[name] for name in group]) for group in groups]
    stage.compute = META
