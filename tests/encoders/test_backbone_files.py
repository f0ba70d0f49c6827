"""The files of the backbones: their sizes, and what is said where they are missing or damaged."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import genius
from genius.encoders import efficientnet, minilm
from genius.encoders.backbone_files import BackboneWeights
from genius.encoders.minilm import MiniLM
from genius.errors import BadModel

MEGABYTE = 10**6


def test_all_weights_of_the_package_are_small() -> None:
    folder = Path(genius.__file__).parent
    files = [*folder.rglob("*.safetensors"), minilm.TOKENIZER]
    assert {efficientnet.WEIGHTS, minilm.WEIGHTS} < set(files)
    assert sum(file.stat().st_size for file in files) <= 75 * MEGABYTE


@pytest.mark.parametrize("file", [efficientnet.WEIGHTS, minilm.WEIGHTS])
def test_weights_are_numbers(file: Path) -> None:
    weights = BackboneWeights(file)
    for name in weights:
        assert np.isfinite(weights.floats(name)).all(), name
        assert weights.floats(name).dtype == np.float32
    kinds = {value.dtype for name, value in weights.items() if not name.startswith("words")}
    assert kinds == {np.dtype(np.float16)}


@pytest.mark.parametrize("content", [None, b"", b"no weights at all", minilm.WEIGHTS.read_bytes()[:1_000_000]])
def test_a_missing_or_damaged_file_is_named(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "weights.safetensors"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setattr(minilm, "WEIGHTS", file)
    with pytest.raises(BadModel, match=r"weights\.safetensors is missing or damaged .*pip install genius-search"):
        MiniLM()
    monkeypatch.setattr(minilm, "TOKENIZER", file)
    with pytest.raises(BadModel, match=r"weights\.safetensors is missing or damaged .*pip install genius-search"):
        MiniLM()


def test_a_missing_tensor_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "weights.safetensors"
    weights = dict(BackboneWeights(minilm.WEIGHTS))
    del weights["layers.3.up.weight"]
    save_file(weights, file)
    monkeypatch.setattr(minilm, "WEIGHTS", file)
    with pytest.raises(BadModel, match=r"it has no weights 'layers\.3\.up\.weight'"):
        MiniLM()
