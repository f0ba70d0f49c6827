"""The rows of the paper's ablation tables, read from ablations.toml."""

import hashlib
import json
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from genius.evaluation.id_schemes import SCHEMES, SINGLE_MODALITY
from genius.evaluation.runs import METHODS, SETTINGS, check_names
from genius.train.config import TrainConfig, check, make_config

TABLE = Path(__file__).parent / "ablations.toml"
FUSIONS = ("image+text", "random")
DIRECTIONS = ("reference", "harmful", "helpful", "mixed", "unknown")
_ABOUT = {"table": "", "label": "", "ours": "", "against": None, "direction": "", "paper": None}
_KEYS = ("name", "setting", "beam", "methods", "scheme", "fusion", "train", "quick", *_ABOUT)


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


@dataclass(frozen=True)
class AblationRow:
    """One row of a table. `about` is copied to the report: table, label, the paper's results."""

    name: str
    setting: str
    beam: int
    methods: tuple[str, ...]
    training: AblationTraining
    about: dict[str, Any]


@dataclass(frozen=True)
class AblationPlan:
    """All rows in one size. minutes: one training with its rows on one core. limit: queries per task."""

    rows: tuple[AblationRow, ...]
    minutes: float
    limit: int | None


def read_ablations(quick: bool) -> AblationPlan:
    """Read ablations.toml in its quick or full size.

    Raises:
        GeniusError: A row is not valid.
    """
    table = tomllib.loads(TABLE.read_text())
    size = table["quick" if quick else "full"]
    minutes, limit = size.pop("minutes"), size.pop("limit", None)
    return AblationPlan(tuple(_row(table["defaults"] | row, size, quick) for row in table["row"]), minutes, limit)


def _row(values: dict[str, Any], size: dict[str, Any], quick: bool) -> AblationRow:
    where = f"{TABLE.name}, row {values['name']}"
    check_names(list(values), _KEYS, f"{where}: setting")
    for key, known in {"setting": SETTINGS, "scheme": SCHEMES, "fusion": FUSIONS, "direction": DIRECTIONS}.items():
        check_names([values[key]], known, f"{where}: {key}")
    check_names(values["methods"], METHODS, f"{where}: method")
    changes = values.get("train", {})
    if quick:
        changes = values.get("quick", changes)
    config = make_config(TrainConfig, _merged(size, changes), where)
    check(config)
    return AblationRow(
        values["name"],
        values["setting"],
        values["beam"],
        tuple(values["methods"]),
        AblationTraining(config, values["scheme"], values["fusion"]),
        {key: values.get(key, default) for key, default in _ABOUT.items()},
    )


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Merge two tables of settings. The second one wins."""
    both = {
        key: _merged(base[key], changes[key]) for key in base.keys() & changes.keys() if isinstance(base[key], dict)
    }
    return base | changes | both


def digest(*facts: Any) -> str:
    """A short name for JSON values."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
