"""All knobs of training in one place, each with its meaning; the defaults train `mini`.

Read from TOML (`genius train DATA --out MODEL --config my.toml`), one table a part:

    [quantizer]
    codes_per_level = 512
    levels = 8
"""

import tomllib
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from genius.encoders.mini import HeadsConfig
from genius.errors import BadData


@dataclass(frozen=True)
class ClipStageConfig:
    """Stage 1, Eq. 2, with a CLIP or SigLIP in the place of `mini`: then [heads] and [encoder] are not used."""

    model: str = ""  # a hub id ("openai/clip-vit-large-patch14") or a folder; empty: train `mini`
    tune: str = "lora"  # "full", "lora" (low-rank pairs), "heads" (linear maps of frozen vectors), "none" (as it is)
    rank: int = 16  # of the low-rank pairs
    checkpointing: bool = True  # keep each block's input alone and compute the rest again: less memory, a third slower
    precision: str = "auto"  # "float32", "bf16", "fp16"; "auto": the best of a GPU, float32 without one
    device: str = "auto"  # "cuda", "cuda:1", "mps", "cpu"; "auto": a GPU if there is one
    steps: int = 5000
    batch: int = 256
    rate: float = 1e-4  # for "lora"; 1e-5 suits "full", 1e-3 "heads"
    weight_decay: float = 0.01
    temperature: float = 0.01  # tau of Eq. 2
    warmup: int = 200
    average: float = 0.0
    balance: float = 0.5
    mix: int = 6
    validate_every: int = 500


@dataclass(frozen=True)
class EncoderStageConfig:
    """Stage 1, Eq. 2, for `mini`."""

    steps: int = 2000
    batch: int = 512
    rate: float = 1e-3
    weight_decay: float = 0.05
    temperature: float = 0.05  # tau of Eq. 2; the paper's 0.01 is for CLIP, which starts aligned
    warmup: int = 100
    average: float = 0.995  # decay of the moving average of the weights; 0 keeps the last weights
    balance: float = 0.5  # a task of n queries is drawn in proportion to n ** balance
    mix: int = 6  # tasks that a batch is drawn from; fewer make its candidates harder to tell apart
    views: int = 1  # of each training image: the whole, and crops of it
    validate_every: int = 250


@dataclass(frozen=True)
class QuantizerStageConfig:
    """Stage 2, Eqs. 3 to 8. The paper: 4096 codes, 8 levels, 20 epochs."""

    codes_per_level: int = 256
    levels: int = 12  # semantic levels; the modality level comes on top
    shared: bool = False  # one codebook for all semantic levels (supplement, Table 6)
    fusion_hidden: int = 256
    dropout: float = 0.1
    contrastive: float = 1.0  # weight of L_cl, Eq. 3
    beta: float = 25.0  # weight of L_rq, Eq. 7 (the paper: 100)
    gamma: float = 25.0  # weight of L_mse (the paper: 100)
    temperature: float = 0.05
    decay: float = 0.99  # of the codebooks' moving averages
    code_beams: int = 1  # partial sums kept while the final codes of an item are chosen
    sample: int = 65536  # vectors that k-means starts from
    steps: int = 800
    batch: int = 512
    rate: float = 5e-5
    weight_decay: float = 0.01
    warmup: int = 100
    balance: float = 0.5
    mix: int = 6
    validate_every: int = 200


@dataclass(frozen=True)
class DecoderStageConfig:
    """Stage 3, Eqs. 9 to 11. The paper: T5-small (512, 6 layers, 8 heads, 2048), prefix 30, 30 epochs, rate 1e-4."""

    d_model: int = 256
    layers: int = 3
    heads: int = 8
    d_kv: int = 32
    d_ff: int = 1024
    prefix: int = 16
    dropout: float = 0.1
    whole_vocabulary: bool = False  # normalise over all levels' codes, as the published model does
    skip: bool = True  # a linear path from the query to each level's codes, started from the codebooks; ours
    skip_gain: float = 20.0  # how sharp that path starts
    written: int = 2  # first levels that the layers decide, with the path; the path alone does the rest; 0: all levels
    plain: float = 0.5  # part of the queries that are trained on as they are, not augmented
    augmentation: str = "interpolate"  # "interpolate" (Eq. 11), "published" (per dimension, square roots), "none"
    alpha: float = 2.0  # of Beta(alpha, alpha)
    epochs: float = 8.0
    batch: int = 256
    rate: float = 1e-3
    weight_decay: float = 0.01
    warmup: int = 200
    average: float = 0.999
    balance: float = 0.7
    mix: int = 64
    validate_every: int = 839


@dataclass(frozen=True)
class TrainConfig:
    """Everything that decides what comes out, beside the data."""

    seed: int = 0
    derived_prompts: float = 0.2  # part of the training queries that get the instruction of a query without one
    clip: ClipStageConfig = field(default_factory=ClipStageConfig)
    heads: HeadsConfig = field(default_factory=HeadsConfig)
    encoder: EncoderStageConfig = field(default_factory=EncoderStageConfig)
    quantizer: QuantizerStageConfig = field(default_factory=QuantizerStageConfig)
    decoder: DecoderStageConfig = field(default_factory=DecoderStageConfig)

    @classmethod
    def read(cls, path: Path | None) -> "TrainConfig":
        """The configuration in a TOML file; what it does not name keeps its default."""
        if path is None:
            return cls()
        try:
            return make_config(cls, tomllib.loads(path.read_text()), str(path))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise BadData(f"{path} cannot be read as a training configuration: {error}") from error


AT_LEAST_ONE = (
    "steps", "batch", "mix", "views", "validate_every", "codes_per_level", "levels", "sample", "code_beams", "rank"
)  # fmt: skip
PARTS_OF_ONE = ("derived_prompts", "plain", "average", "decay", "dropout")
AUGMENTATIONS = ("interpolate", "published", "none")
TUNINGS = ("full", "lora", "heads", "none")
PRECISIONS = ("auto", "float32", "bf16", "fp16")


def check(config: TrainConfig) -> None:
    """Refuses settings that no training can be done with."""
    parts = {name: part for name, part in vars(config).items() if is_dataclass(part)}
    for where, part in {"": config, **parts}.items():
        for name, value in vars(part).items():
            setting = f"[{where}] {name}" if where else name
            if name in AT_LEAST_ONE and value < 1:
                raise BadData(f"The setting {setting} is {value}; it must be at least 1.")
            if name in PARTS_OF_ONE and not 0 <= value <= 1:
                raise BadData(f"The setting {setting} is {value}; it must be between 0 and 1.")
            if name in ("rate", "temperature", "epochs", "alpha") and value <= 0:
                raise BadData(f"The setting {setting} is {value}; it must be above 0.")
    for setting, chosen, known in (
        ("[clip] tune", config.clip.tune, TUNINGS),
        ("[clip] precision", config.clip.precision, PRECISIONS),
        ("[decoder] augmentation", config.decoder.augmentation, AUGMENTATIONS),
    ):
        if chosen not in known:
            raise BadData(f"The setting {setting} is {chosen!r}; choose one of {', '.join(known)}.")


def make_config(kind: Any, values: dict[str, Any], where: str) -> Any:
    known = {f.name: f for f in fields(kind)}
    for name in values:
        if name not in known:
            raise BadData(f"{where}: there is no setting {name!r} here. Known are: {', '.join(known)}.")
    made = {}
    for name, value in values.items():
        default = getattr(kind(), name)
        if is_dataclass(default):
            if not isinstance(value, dict):
                raise BadData(f"{where}: {name} is a table: write [{name}] and its settings below.")
            made[name] = make_config(type(default), value, f"{where} [{name}]")
        elif isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
            made[name] = float(value)
        elif type(value) is not type(default):
            raise BadData(f"{where}: {name} = {value!r} should be of type {type(default).__name__}, as {default!r} is.")
        else:
            made[name] = value
    return kind(**made)
