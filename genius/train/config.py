"""All settings of a training. The defaults train `mini`.

`genius train DATA --out MODEL --config my.toml` reads them from TOML, one table per stage:

    [quantizer]
    codes_per_level = 512
    levels = 8
"""

import tomllib
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, cast

from genius.encoders.mini_heads import HeadsConfig
from genius.errors import BadData


@dataclass(frozen=True, kw_only=True)
class StageConfig:
    """Settings that every stage has, with defaults of its own."""

    batch: int = 512  # query-target pairs per step
    accumulate: int = 1  # parts that a batch is computed in, one after the other: less memory, the same result
    rate: float = 1e-3  # peak learning rate of AdamW
    weight_decay: float = 0.01
    warmup: int = 100  # steps of linear warm-up; the rate then falls to zero along a cosine
    balance: float = 0.5  # a task of n queries is drawn in proportion to n ** balance
    mix: int = 6  # tasks that a batch is drawn from: fewer make its candidates harder to tell apart
    validate_every: int = 250  # steps


@dataclass(frozen=True, kw_only=True)
class ClipStageConfig(StageConfig):
    """Stage 1, Eq. 2, with a CLIP or SigLIP instead of `mini`. The tables [heads] and [encoder] are then not used."""

    model: str = ""  # hub id such as "openai/clip-vit-large-patch14", or a folder; empty: train `mini`
    tune: str = "lora"  # "full": all weights; "lora": adapters; "heads": linear maps of frozen vectors; "none"
    rank: int = 16  # of the adapters
    checkpointing: bool = True  # recompute activations in the backward pass: less memory, a third slower
    steps: int = 5000
    batch: int = 256
    rate: float = 1e-4  # for "lora"; use 1e-5 for "full", 1e-3 for "heads"
    temperature: float = 0.01  # tau of Eq. 2
    warmup: int = 200
    average: float = 0.0  # decay of the moving average of the weights that is kept; 0 keeps the last weights
    validate_every: int = 500


@dataclass(frozen=True, kw_only=True)
class EncoderStageConfig(StageConfig):
    """Stage 1, Eq. 2, for `mini`."""

    steps: int = 3000
    weight_decay: float = 0.05
    temperature: float = 0.05  # tau of Eq. 2; the paper's 0.01 is for CLIP, whose vectors are aligned from the start
    average: float = 0.995  # see `ClipStageConfig`
    views: int = 4  # of each training image: the whole image, then crops


@dataclass(frozen=True, kw_only=True)
class QuantizerStageConfig(StageConfig):
    """Stage 2, Eqs. 3 to 8. The paper: 4096 codes, 8 levels, 20 epochs."""

    codes_per_level: int = 256
    levels: int = 12  # semantic levels; the modality level comes on top
    first_code: str = "modality"  # given by the item's modality; "nearest": learned like the others, as in the paper
    shared: bool = False  # one codebook for all semantic levels (supplement, Table 6)
    fusion_hidden: int = 256  # width of the hidden layers of the fusion
    dropout: float = 0.1  # of the fusion
    contrastive: float = 1.0  # weight of L_cl, Eq. 3
    beta: float = 25.0  # weight of L_rq, Eq. 7 (the paper: 100)
    gamma: float = 25.0  # weight of L_mse (the paper: 100)
    rq_mean: bool = False  # L_rq is the mean over levels, as in the authors' code, instead of the sum of Eq. 7
    temperature: float = 0.05  # tau of Eq. 3
    decay: float = 0.99  # of the moving averages that the codebooks follow
    code_beams: int = 8  # beams kept while the final codes of an item are chosen
    sample: int = 65536  # vectors used by k-means at the start
    steps: int = 800
    epochs: float = 0.0  # passes over the training queries; 0: as many steps as `steps` says
    rate: float = 5e-5
    validate_every: int = 200


@dataclass(frozen=True, kw_only=True)
class DecoderStageConfig(StageConfig):
    """Stage 3, Eqs. 9 to 11. The paper: T5-small (512, 6 layers, 8 heads, 2048), prefix 30, 30 epochs, rate 1e-4."""

    d_model: int = 256
    layers: int = 2
    heads: int = 8
    d_kv: int = 32  # width of each head
    d_ff: int = 512
    prefix: int = 4  # length of the prefix made from the query vector
    dropout: float = 0.0
    whole_vocabulary: bool = False  # normalise over the codes of all levels, as the published model does
    start_table: str = "codebooks"  # token table from code vectors, from unit ones as "published", or "random"
    residual_input: bool = True  # tell the layers what the codes before leave of the query; not in the paper
    residual_gain: float = 0.0  # of the residual score, a closed form that is added to the logits; not in the paper
    query_scale: float = 1.25  # of the query vector in residual scores and at the start of the residual input
    teacher: str = "distil"  # residual scores, on random queries; "none": labels, Eq. 10, the paper; "both": the sum
    items: int = 4  # IDs scored for each query in distillation
    sharpness: float = 10.0  # these items are drawn in proportion to exp(sharpness * similarity)
    unaugmented: float = 0.5  # share of the queries that are trained on without augmentation
    augmentation: str = "interpolate"  # Eq. 11; "published": per dimension, square roots; "none"
    alpha: float = 2.0  # the weight of Eq. 11 is drawn from Beta(alpha, alpha)
    epochs: float = 8.0  # IDs scored in all by each loss, as a multiple of the training queries
    batch: int = 128  # IDs scored in a step by each loss
    rate: float = 1e-3
    warmup: int = 100
    average: float = 0.999  # see `ClipStageConfig`
    balance: float = 0.7
    mix: int = 64
    validate_every: int = 1000


@dataclass(frozen=True)
class TrainConfig:
    """Everything besides the data that decides the result of a training."""

    seed: int = 0  # of weights, batches, augmentation and prompts
    device: str = "auto"  # "cpu", "cuda", "mps", or "auto": a CUDA device if there is one
    precision: str = "auto"  # "float32", "bf16", "fp16", or "auto": the best of a CUDA device, else float32
    derived_prompts: float = 0.2  # share of the training queries that get the instruction of a query without a prompt
    clip: ClipStageConfig = field(default_factory=ClipStageConfig)
    heads: HeadsConfig = field(default_factory=HeadsConfig)
    encoder: EncoderStageConfig = field(default_factory=EncoderStageConfig)
    quantizer: QuantizerStageConfig = field(default_factory=QuantizerStageConfig)
    decoder: DecoderStageConfig = field(default_factory=DecoderStageConfig)

    @classmethod
    def read(cls, path: Path | None) -> "TrainConfig":
        """Read a TOML file. Settings that it does not name keep their defaults.

        Raises:
            BadData: The file cannot be read, or has an unknown setting or one of the wrong type.
        """
        if path is None:
            return cls()
        try:
            return cast(TrainConfig, make_config(cls, tomllib.loads(path.read_text()), str(path)))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise BadData(f"{path} cannot be read as a training configuration ({error}). Give a TOML file.") from error


AT_LEAST_ONE = (
    "steps", "batch", "accumulate", "mix", "views", "validate_every", "codes_per_level", "levels", "sample",
    "code_beams", "rank", "items",
)  # fmt: skip
ZERO_TO_ONE = ("derived_prompts", "unaugmented", "average", "decay", "dropout")
POSITIVE = ("rate", "temperature", "epochs", "alpha", "sharpness")
TABLES = ("random", "codebooks", "published")
TEACHERS = ("none", "distil", "both")
AUGMENTATIONS = ("interpolate", "published", "none")
TUNINGS = ("full", "lora", "heads", "none")
PRECISIONS = ("auto", "float32", "bf16", "fp16")
FIRST_CODES = ("modality", "nearest")


def check(config: TrainConfig) -> None:
    """Raise BadData if a setting is out of range."""
    parts = {name: part for name, part in vars(config).items() if is_dataclass(part)}
    for table, part in {"": config, **parts}.items():
        for name, value in vars(part).items():
            setting = f"[{table}] {name}" if table else name
            if name in AT_LEAST_ONE and value < 1:
                raise BadData(f"The setting {setting} is {value}; it must be at least 1.")
            if name in ZERO_TO_ONE and not 0 <= value <= 1:
                raise BadData(f"The setting {setting} is {value}; it must be between 0 and 1.")
            if name in POSITIVE and value <= 0 and value != getattr(type(part), name):  # a default may be 0
                raise BadData(f"The setting {setting} is {value}; it must be above 0.")
    for setting, chosen, known in (
        ("[clip] tune", config.clip.tune, TUNINGS),
        ("precision", config.precision, PRECISIONS),
        ("[quantizer] first_code", config.quantizer.first_code, FIRST_CODES),
        ("[decoder] start_table", config.decoder.start_table, TABLES),
        ("[decoder] teacher", config.decoder.teacher, TEACHERS),
        ("[decoder] augmentation", config.decoder.augmentation, AUGMENTATIONS),
    ):
        if chosen not in known:
            raise BadData(f"The setting {setting} is {chosen!r}; choose one of {', '.join(known)}.")


def make_config(config_class: Any, values: dict[str, Any], where: str) -> Any:
    """Make a configuration, with its tables, from parsed TOML. `where` names the file in error messages."""
    known = {f.name: f for f in fields(config_class)}
    for name in values:
        if name not in known:
            raise BadData(f"{where}: there is no setting {name!r} here. Known are: {', '.join(known)}.")
    made = {}
    for name, value in values.items():
        default = getattr(config_class(), name)
        if is_dataclass(default):
            if not isinstance(value, dict):
                raise BadData(f"{where}: {name} is a table. Write [{name}] and its settings below it.")
            made[name] = make_config(type(default), value, f"{where} [{name}]")
        elif isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
            made[name] = float(value)
        elif type(value) is not type(default):
            raise BadData(f"{where}: {name} = {value!r} must be of type {type(default).__name__}, as {default!r} is.")
        else:
            made[name] = value
    return config_class(**made)
