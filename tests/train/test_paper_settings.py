"""examples/paper.toml, value by value: Sec. 5.2 and the supplement, then the authors' code, then parts of our own."""

from dataclasses import fields
from pathlib import Path

import pytest

from genius.train.config import DecoderStageConfig, QuantizerStageConfig, TrainConfig, check
from genius.train.loop import rate_factor

FILE = Path(__file__).parents[2] / "examples/paper.toml"

PAPER: dict[str, object] = {
    # Sec. 4.1: UniIR's pre-trained weights, then frozen. Sec. 5.2, Hyperparameters: temperature of Eq. 2
    "clip.tune": "none",
    "clip.temperature": 0.01,
    # Sec. 5.2, Network optimization: AdamW, rate 1e-4 for RQ and decoder, batch 256; RQ 20 epochs
    "quantizer.rate": 1e-4,
    "quantizer.batch": 256,
    "quantizer.epochs": 20.0,
    # Sec. 5.2, Hyperparameters: tau 0.01; beta and gamma of Eq. 8 both 100; L_cl has no weight there
    "quantizer.temperature": 0.01,
    "quantizer.beta": 100.0,
    "quantizer.gamma": 100.0,
    "quantizer.contrastive": 1.0,
    # Sec. 5.2, Codebook configurations: 4096 codes, 9 levels with a first one of 3; supplement, B.1: 2 + 8 x 12 bits
    "quantizer.codes_per_level": 4096,
    "quantizer.levels": 8,
    "quantizer.shared": False,  # supplement, C.5: shared codebooks are an ablation
    "quantizer.first_code": "nearest",  # Eq. 5 for every level, Sec. 4.2.3
    "quantizer.code_beams": 1,  # Eq. 5: the nearest
    "quantizer.sample": 4096,  # k-means on the first training batch; ours needs as many vectors as codes
    # Sec. 5.2, Network architectures: T5-small (6 layers, 8 heads of 64, 2048, dropout 0.1), hidden dimension 512
    "decoder.d_model": 512,
    "decoder.layers": 6,
    "decoder.heads": 8,
    "decoder.d_kv": 64,
    "decoder.d_ff": 2048,
    "decoder.dropout": 0.1,
    # Sec. 5.2, Hyperparameters: prefix of 30, alpha of Eq. 11 is 2
    "decoder.prefix": 30,
    "decoder.augmentation": "interpolate",
    "decoder.alpha": 2.0,
    # Sec. 5.2, Network optimization: decoder 30 epochs
    "decoder.epochs": 30.0,
    "decoder.batch": 256,
    "decoder.rate": 1e-4,
}
AUTHORS_CODE: dict[str, object] = {
    "quantizer.rq_mean": True,  # the mean of the commitment losses, times 100
    "quantizer.fusion_hidden": 2560,  # Combiner(768, 2560, 5120), whose dropout is 0
    "quantizer.dropout": 0.0,
    "quantizer.decay": 0.9,
    "quantizer.weight_decay": 0.2,
    "quantizer.warmup": 0,
    "decoder.unaugmented": 0.0,
    "decoder.whole_vocabulary": True,
    "decoder.start_table": "published",  # unit code vectors through a random linear map, times 100
    "decoder.weight_decay": 1e-4,
    "decoder.warmup": 500,
    "decoder.average": 0.0,
}
OURS: dict[str, object] = {
    # The data as they are, without tasks or instructions of our own
    "derived_prompts": 0.0,
    "quantizer.balance": 1.0,
    "quantizer.mix": 256,
    "decoder.balance": 1.0,
    "decoder.mix": 256,
    # Parts that the paper does not have
    "decoder.residual_input": False,
    "decoder.residual_gain": 0.0,
    "decoder.teacher": "none",
}
FREE = {
    "quantizer.steps",  # epochs take its place
    "quantizer.accumulate",
    "decoder.accumulate",
    "quantizer.validate_every",
    "decoder.validate_every",
    "decoder.query_scale",
    "decoder.items",
    "decoder.sharpness",
}
"""Settings without effect on the trained weights."""


def setting(config: TrainConfig, name: str) -> object:
    part: object = config
    for step in name.split("."):
        part = getattr(part, step)
    return part


@pytest.mark.parametrize(("name", "value"), (PAPER | AUTHORS_CODE | OURS).items())
def test_a_setting_is_the_papers(name: str, value: object) -> None:
    found = setting(TrainConfig.read(FILE), name)
    assert (found, type(found)) == (value, type(value))


def test_every_setting_of_stages_2_and_3_has_been_decided() -> None:
    """A setting that is new must be looked up in the paper, or switched off there."""
    stages = {"quantizer": QuantizerStageConfig, "decoder": DecoderStageConfig}
    known = {f"{stage}.{one.name}" for stage, config in stages.items() for one in fields(config)}
    decided = {name for name in PAPER | AUTHORS_CODE | OURS if name.split(".")[0] in stages}
    assert decided | FREE == known
    assert not decided & FREE


def test_the_file_says_every_value_itself() -> None:
    """So that a changed default cannot change the paper's recipe."""
    text = FILE.read_text(encoding="utf-8")
    for name in PAPER | AUTHORS_CODE | OURS:
        *table, key = name.split(".")
        part = text.split(f"[{table[0]}]", 1)[1].split("\n[", 1)[0] if table else text.split("\n[", 1)[0]
        assert f"\n{key} = " in part, name


def test_the_paper_can_be_trained_with() -> None:
    config = TrainConfig.read(FILE)
    check(config)
    assert config.clip.model  # stage 1 is a CLIP


def test_without_warmup_the_rate_starts_at_its_peak() -> None:
    """Sec. 5.2: cosine scheduling."""
    assert rate_factor(0, 100, 0) == 1
    assert rate_factor(50, 100, 0) == pytest.approx(0.5)
    assert rate_factor(100, 100, 0) == pytest.approx(0)
