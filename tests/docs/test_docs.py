"""docs/training.md names every setting with its true default; the example configurations are read without complaint."""

import dataclasses
import re
from pathlib import Path

import pytest

import genius
from genius.train.config import TrainConfig

ROOT = Path(__file__).parents[2]


def documented() -> dict[str, dict[str, str]]:
    """Section ("" for the top of the file) -> setting -> default, as docs/training.md has them."""
    found: dict[str, dict[str, str]] = {}
    section = None
    for line in (ROOT / "docs/training.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            named = re.match(r"### `\[(\w+)\]`", line)
            section = named[1] if named else "" if line == "### At the top of the file" else None
        row = re.match(r"\| `(\w+)` \| ([^|]*) \|", line)
        if row and section is not None:
            found.setdefault(section, {})[row[1]] = row[2].strip()
    return found


def test_training_settings_are_documented() -> None:
    config = TrainConfig()
    real: dict[str, dict[str, object]] = {"": {}}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            real[field.name] = dataclasses.asdict(value)  # type: ignore[arg-type]
        else:
            real[""][field.name] = value
    as_text = {s: {name: as_toml(value) for name, value in settings.items()} for s, settings in real.items()}
    assert documented() == as_text


def as_toml(value: object) -> str:
    return {bool: str(value).lower(), str: f'"{value}"'}.get(type(value), str(value))


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda path: path.name)
def test_example_configurations_are_read(path: Path) -> None:
    assert TrainConfig.read(path) != TrainConfig()


def test_the_citation_has_the_version_of_the_package() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {genius.__version__}\n" in citation
