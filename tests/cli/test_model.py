"""The `genius model ...` commands."""

from pathlib import Path

import pytest
from fakes import TinyEncoder, tiny_model
from typer.testing import CliRunner

from genius.cli.model import model_app
from genius.errors import GeniusError
from genius.model import genius as model_module


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(model_module, "load_encoder", lambda config, state, *rest, **more: TinyEncoder())
    tiny_model().save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


def run(*arguments: str) -> str:
    done = CliRunner().invoke(model_app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_onnx(folder: str, tmp_path: Path) -> None:
    said = run("onnx", folder, str(tmp_path / "out"))
    assert (tmp_path / "out/decoder_step.onnx").is_file()
    assert "fusion, decoder_open, decoder_step" in said
    assert "vectors must come from elsewhere" in said


def test_t5(folder: str, tmp_path: Path) -> None:
    run("t5", folder, str(tmp_path / "out"))
    assert (tmp_path / "out/model.safetensors").is_file()


def test_card(folder: str) -> None:
    card = run("card", folder, "someone/tiny", "--license", "mit")
    assert card.startswith("---\n")
    assert "# someone/tiny" in card


def test_push_asks_for_owner_and_name(folder: str) -> None:
    with pytest.raises(GeniusError, match="owner/name"):
        run("push", folder, "tiny")


def test_push_asks_for_a_card_that_can_be_read(folder: str, tmp_path: Path) -> None:
    with pytest.raises(GeniusError, match=r"none\.md cannot be read"):
        run("push", folder, "someone/tiny", "--card", str(tmp_path / "none.md"))


def test_the_bundled_model_is_no_t5(tmp_path: Path) -> None:
    with pytest.raises(GeniusError, match="residual inputs or scores"):
        run("t5", "mini", str(tmp_path / "out"))
