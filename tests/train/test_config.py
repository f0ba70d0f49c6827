"""The configuration file: what it names is used, what it does not keeps its default, what is wrong is named."""

from pathlib import Path

import pytest

from genius.errors import BadData
from genius.train.config import TrainConfig, check


def read(tmp_path: Path, text: str) -> TrainConfig:
    (tmp_path / "my.toml").write_text(text)
    return TrainConfig.read(tmp_path / "my.toml")


def test_named_settings_are_used_and_the_others_keep_their_defaults(tmp_path: Path) -> None:
    config = read(tmp_path, "seed = 7\n[quantizer]\nlevels = 4\nshared = true\nrate = 1\n[heads]\ndim = 64\n")
    default = TrainConfig()
    assert (config.seed, config.quantizer.levels, config.quantizer.shared, config.heads.dim) == (7, 4, True, 64)
    assert (config.quantizer.rate, type(config.quantizer.rate)) == (1.0, float)
    assert config.quantizer.codes_per_level == default.quantizer.codes_per_level
    assert config.decoder == default.decoder
    assert read(tmp_path, "") == TrainConfig.read(None) == default


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("sead = 1", "'sead'"),
        ("[quantizer]\nlevles = 4", r"\[quantizer\].*'levles'.*levels"),
        ("[quantizer]\nlevels = 4.5", "levels = 4.5 .*int"),
        ("[quantizer]\nlevels = true", "levels = True .*int"),
        ("[quantizer]\nrate = 'fast'", "rate = 'fast' .*float"),
        ("[quantizer]\nrate = true", "rate = True .*float"),
        ("[quantizer]\nshared = 1", "shared = 1 .*bool"),
        ("quantizer = 3", "quantizer is a table"),
        ("seed = ", "cannot be read"),
    ],
)
def test_a_wrong_setting_is_named_with_its_file(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(BadData, match=rf"my\.toml.*{named}"):
        read(tmp_path, text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadData, match=r"gone\.toml cannot be read"):
        TrainConfig.read(tmp_path / "gone.toml")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[decoder]\nbatch = 0", r"\[decoder\] batch is 0"),
        ("[encoder]\nvalidate_every = 0", r"\[encoder\] validate_every is 0"),
        ("[quantizer]\nmix = -1", r"\[quantizer\] mix is -1"),
        ("[heads]\ndropout = 1.5", r"\[heads\] dropout is 1.5"),
        ("derived_prompts = 2.0", "derived_prompts is 2.0"),
        ("[decoder]\nepochs = 0.0", r"\[decoder\] epochs is 0.0"),
        ("[quantizer]\nepochs = -1.0", r"\[quantizer\] epochs is -1.0"),
        ("[quantizer]\nfirst_code = 'given'", r"\[quantizer\] first_code is 'given'; choose one of modality, nearest"),
        ("[decoder]\nstart_table = 'zeros'", r"start_table is 'zeros'; choose one of random, codebooks, published"),
        ("[decoder]\naugmentation = 'mixup'", "mixup.*choose one of interpolate"),
        ("[clip]\ntune = 'half'", r"\[clip\] tune is 'half'; choose one of full, lora, heads, none"),
        ("precision = 'int8'", r"setting precision is 'int8'.*bf16"),
        ("[clip]\nrank = 0", r"\[clip\] rank is 0"),
    ],
)
def test_a_setting_that_cannot_be_trained_with_is_refused(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(BadData, match=named):
        check(TrainConfig.read(path))


def test_the_defaults_can_be_trained_with() -> None:
    check(TrainConfig())
