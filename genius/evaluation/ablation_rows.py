"""The rows of the paper's ablation tables in their sizes, read from ablations.toml."""

import hashlib
import json
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from genius.errors import BadData
from genius.evaluation.estimate import STUDENT
from genius.evaluation.id_schemes import SCHEMES, SINGLE_MODALITY
from genius.evaluation.runs import METHODS, PROTOCOLS, SETTINGS, check_names
from genius.train.config import DecoderStageConfig, TrainConfig, check, make_config

TABLE = Path(__file__).parent / "ablations.toml"
FUSIONS = ("image+text", "random")
DECODERS = ("paper", "mini")
DIRECTIONS = ("reference", "harmful", "helpful", "mixed", "unknown")
MAX_SEEDS = 1 + len(STUDENT)
_ABOUT = {"label": "", "against": None, "direction": "", "paper": None}
_KEYS = ("name", "table", "ours", "setting", "beam", "methods", "scheme", "fusion", "decoder", "train", *_ABOUT)


@dataclass(frozen=True)
class AblationTraining:
    """Everything besides data and encoder that decides the result of a training."""

    config: TrainConfig
    scheme: str  # one of SCHEMES: how IDs are made
    fusion: str  # one of FUSIONS: starts as the sum of both vectors, or from random weights

    @property
    def quantizer(self) -> str:
        """Identifies stage 2. Trainings that differ in the decoder or the IDs only share it."""
        return digest(self.config.seed, asdict(self.config.quantizer), self.scheme in SINGLE_MODALITY, self.fusion)

    @property
    def decoder(self) -> str:
        """Identifies stage 3."""
        return digest(self.quantizer, asdict(self.config.decoder), self.scheme)

    def seeded(self, seed: int) -> "AblationTraining":
        """The same training with another seed of weights, batches and augmentation."""
        return replace(self, config=replace(self.config, seed=self.config.seed + seed))


@dataclass(frozen=True)
class AblationSize:
    """How large the rows are trained. limit: queries per task. seeds: trainings per row. protocol: of PROTOCOLS."""

    name: str
    limit: int | None
    seeds: int
    protocol: str
    seconds: dict[str, float]  # on one core: of a "quantizer_step", a "decoder_step", and the "search" of a row
    decoder_weights: int  # of the decoder whose steps take as long as `seconds` says


@dataclass(frozen=True)
class AblationTable:
    """A table of the paper, or one of ours. size: the one in which it is trained by default."""

    name: str
    title: str
    about: str
    size: str


@dataclass(frozen=True)
class AblationRow:
    """One row of a table in one size. `about` is copied to the report: label, the paper's results."""

    name: str
    table: AblationTable
    size: AblationSize
    setting: str
    beam: int
    methods: tuple[str, ...]
    training: AblationTraining  # with the first seed
    about: dict[str, Any]

    @property
    def search(self) -> tuple[str, int, tuple[str, ...]]:
        """Settings of the search. Rows with equal training, size and search settings share their results."""
        return self.setting, self.beam, self.methods


def read_ablations(size: str | None = None, tables: Sequence[str] | None = None) -> tuple[AblationRow, ...]:
    """Read the rows of ablations.toml.

    Args:
        size: One of the sizes there. Default: the size of each table.
        tables: Names of tables. Default: all.

    Raises:
        GeniusError: There is no such size or table, or a row is not valid.
    """
    content = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    known = {name: AblationTable(name, **values) for name, values in content["table"].items()}
    if size is not None:
        check_names([size], list(content["size"]), "size")
    chosen = list(known) if tables is None else list(tables)
    check_names(chosen, list(known), "table")
    rows = []
    for values in content["row"]:
        check_names([values["table"]], list(known), f"{TABLE.name}, row {values['name']}: table")
        table = known[values["table"]]
        if table.name in chosen:
            rows.append(_row(content, content["defaults"] | values, table, size or table.size))
    return tuple(rows)


def size_names() -> list[str]:
    """The names of all sizes."""
    return list(tomllib.loads(TABLE.read_text(encoding="utf-8"))["size"])


def check_seeds(seeds: int | None) -> None:
    """Raise BadData if this is no number of seeds."""
    if seeds is not None and not 1 <= seeds <= MAX_SEEDS:
        raise BadData(f"The number of seeds is {seeds}; it must be between 1 and {MAX_SEEDS}.")


def _row(content: dict[str, Any], values: dict[str, Any], table: AblationTable, size: str) -> AblationRow:
    where = f"{TABLE.name}, row {values['name']}"
    check_names(list(values), [*_KEYS, *(f"train_{name}" for name in content["size"])], f"{where}: setting")
    choices = {"setting": SETTINGS, "scheme": SCHEMES, "fusion": FUSIONS, "decoder": DECODERS, "direction": DIRECTIONS}
    for key, known in choices.items():
        check_names([values[key]], known, f"{where}: {key}")
    check_names(values["methods"], METHODS, f"{where}: method")
    settings = dict(content["size"][size])
    keys = ("limit", "seeds", "protocol", "seconds")
    facts = {key: settings.pop(key, None) for key in keys}
    facts["protocol"] = facts["protocol"] or PROTOCOLS[0]
    check_names([facts["protocol"]], PROTOCOLS, f"{where}: protocol")
    weights = decoder_weights(make_config(TrainConfig, settings, f"{TABLE.name}, size {size}").decoder)
    if values["decoder"] == "paper":
        settings = _merged(settings, {"decoder": content["paper_decoder"]})
    changes = values.get(f"train_{size}", values.get("train", {}))
    config = make_config(TrainConfig, _merged(settings, changes), where)
    check(config)
    ours = values.get("ours", "")
    return AblationRow(
        values["name"],
        table,
        AblationSize(name=size, decoder_weights=weights, **facts),
        values["setting"],
        values["beam"],
        tuple(values["methods"]),
        AblationTraining(config, values["scheme"], values["fusion"]),
        {
            "ours": ours if isinstance(ours, str) else ours.get(size, ""),
            **{key: values.get(key, default) for key, default in _ABOUT.items()},
        },
    )


def decoder_weights(config: DecoderStageConfig) -> int:
    """Number of weights of the layers, to which the time of a training step is about proportional."""
    return config.layers * config.d_model * (8 * config.heads * config.d_kv + 2 * config.d_ff)


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Merge two tables of settings. The second one wins."""
    both = {
        key: _merged(base[key], changes[key]) for key in base.keys() & changes.keys() if isinstance(base[key], dict)
    }
    return base | changes | both


def digest(*facts: Any) -> str:
    """A short name for JSON values."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
