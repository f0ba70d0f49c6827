"""`genius convert --blip`: the published file becomes a model that searches exactly. Encoders without a decoder."""

import json
import math
import os
import sys
import types
from pathlib import Path
from typing import Any

import golden_blip as golden
import numpy as np
import pytest
import torch
from fakes import draw_image, tiny_model
from golden import write_checkpoint

from genius.cli.app import main
from genius.data.items import Item, Query
from genius.encoders.blip_network import BlipConfig
from genius.errors import BadIndex, BadModel, GeniusError
from genius.index.index import Index
from genius.model.genius import Genius
from genius.networks.published import convert


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as exit:
        main([str(argument) for argument in arguments])
    return int(exit.value.code or 0)


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    return golden.checkpoint(sharpness=20)


@pytest.fixture(scope="module")
def converted(tensors: dict[str, torch.Tensor], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blip")
    file = golden.write_checkpoint(folder / "blip_ff_large.pth", tensors)
    assert run("convert", "--blip", file, folder / "model") == 0
    return folder / "model"


ITEMS = [
    Item("red", image=draw_image("red")),
    Item("blue", image=draw_image("blue")),
    Item("cat", "a cat asleep"),
    Item("both", "a cat asleep", draw_image("red")),
]


def test_the_folder_keeps_every_digit_and_says_what_it_is_made_of(
    converted: Path, tensors: dict[str, torch.Tensor]
) -> None:
    model = Genius.from_pretrained(converted)
    state = model.encoder.state()
    weights = {name: value for name, value in state.items() if name != "tokenizer"}
    for name, value in weights.items():
        np.testing.assert_array_equal(value, tensors[name.removeprefix("model.")], err_msg=name)
    assert not any("_m." in name or "queue" in name for name in weights)
    config = json.loads((converted / "config.json").read_text())
    assert (config["dtype"], config["encoder"]["kind"]) == ("float32", "blip-ff")
    assert BlipConfig(**config["encoder"]["model"]) == BlipConfig.inferred(tensors)
    card = (converted / "README.md").read_text()
    assert "blip_ff_large.pth" in card
    assert "no codebooks" in card
    assert model.fingerprint in card


def test_the_same_file_gives_the_same_fingerprint(converted: Path, tmp_path: Path) -> None:
    torch.manual_seed(123)
    again = convert(tmp_path / "again", blip=converted.parent / "blip_ff_large.pth")
    assert again.fingerprint == Genius.from_pretrained(converted).fingerprint


@pytest.mark.parametrize("mode", ["fast", "rerank"])
def test_an_index_of_it_searches_exactly(converted: Path, tmp_path: Path, mode: str) -> None:
    model = Genius.from_pretrained(converted)
    index = Index.create(tmp_path / "index", model)
    index.add(ITEMS)
    embeddings, names = model.encode_items(ITEMS).embedding(), [item.id for item in ITEMS]
    asked = Query("a cat asleep", draw_image("red"), instruction="")
    scores = embeddings @ model.encode_queries([asked]).embedding()[0]
    found = index.search(asked, k=4, mode=mode, beam=4, budget=4)
    assert [hit.id for hit in found] == [names[row] for row in np.argsort(-scores)]
    np.testing.assert_allclose([hit.score for hit in found], np.sort(scores)[::-1], atol=2e-3)  # kept as float16
    assert found[0].id == "both"
    images = index.search(Query("a cat asleep", target="image"), k=4, mode=mode)
    assert {hit.id for hit in images} == {"red", "blue"}


def test_there_is_nothing_to_generate_and_nothing_to_rank_codes_by(converted: Path, tmp_path: Path) -> None:
    model = Genius.from_pretrained(converted)
    index = Index.create(tmp_path / "index", model)
    index.add(ITEMS)
    with pytest.raises(GeniusError, match=r"no codebooks.*mode fast.*genius train"):
        index.search(Query("a cat"), mode="generate")
    with pytest.raises(BadIndex, match=r"no codebooks.*must store embeddings"):
        Index.create(tmp_path / "codes", model, embeddings=False)


def test_an_index_without_embeddings_cannot_change_to_it(converted: Path, tmp_path: Path) -> None:
    index = Index.create(tmp_path / "index", tiny_model(), embeddings=False)
    index.add([Item("a", "some words")])
    with pytest.raises(BadIndex, match="must store embeddings"):
        index.reindex(Genius.from_pretrained(converted))
    assert len(index) == 1


def test_half_precision_files_are_read(tensors: dict[str, torch.Tensor], tmp_path: Path) -> None:
    halves = {name: value.half() if value.is_floating_point() else value for name, value in tensors.items()}
    model = convert(tmp_path / "model", blip=golden.write_checkpoint(tmp_path / "half.pth", halves))
    name = "text_encoder.pooler.dense.weight"
    np.testing.assert_array_equal(model.encoder.state()[f"model.{name}"], halves[name].float())


# Files that are not what they should be

NORM, WORDS = "visual_encoder.norm.weight", "text_encoder.embeddings.word_embeddings.weight"
CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({NORM: None}, f"Missing: {NORM}"),
    "first missing": ({WORDS: None}, r"not blip_ff_large\.pth of UniIR\..*word_embeddings.weight is missing"),
    "dimensions": ({WORDS: torch.ones(3)}, "word_embeddings.weight is missing or of another shape"),
    "unknown": ({"text_encoder.cls.weight": torch.ones(1)}, "Unknown: text_encoder.cls.weight"),
    "other shape": ({NORM: torch.ones(3)}, r"norm.weight \(3,\) instead of \(128,\)"),
    "a gap": ({"visual_encoder.blocks.7.norm1.bias": torch.ones(128)}, "(?i)missing: visual_encoder.blocks.2"),
    "not a number": ({NORM: torch.full((128,), math.nan)}, f"{NORM} holds values that are not numbers"),
    "other words": ({WORDS: torch.ones(30522, 64)}, "tokenizer has 30524 tokens, the network of x.pth 30522"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_tensors_that_do_not_fit_are_named(tensors: dict[str, torch.Tensor], tmp_path: Path, change: str) -> None:
    changes, message = CHANGES[change]
    changed = {name: value for name, value in {**tensors, **changes}.items() if value is not None}
    file = golden.write_checkpoint(tmp_path / "x.pth", changed)
    with pytest.raises(BadModel, match=message):
        convert(tmp_path / "model", blip=file)
    assert not (tmp_path / "model").exists()


def test_a_configuration_beside_the_tensors_is_passed_over(
    tensors: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """UniIR saves an OmegaConf object; no code of that package is run, and it need not be installed."""
    fake = types.ModuleType("omegaconf.dictconfig")
    fake.DictConfig = type("DictConfig", (), {"__module__": fake.__name__})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "omegaconf", types.ModuleType("omegaconf"))
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    config = fake.DictConfig()
    config._content = {"epochs": 20}
    torch.save({"model": tensors, "config": config}, tmp_path / "x.pth")
    monkeypatch.undo()
    assert convert(tmp_path / "model", blip=tmp_path / "x.pth").encoder_only


class Bait:
    """Makes a folder when it is unpickled."""

    def __init__(self, victim: Path) -> None:
        self.victim = victim

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.victim),)


def test_a_hostile_file_is_refused(
    tensors: dict[str, torch.Tensor], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"model": tensors, "config": Bait(tmp_path / "victim")}, tmp_path / "x.pth")
    assert run("convert", "--blip", tmp_path / "x.pth", tmp_path / "model") == 1
    said = capsys.readouterr().err.replace("\n", " ")
    assert "was not read, since reading it could run code" in said
    assert "Download the published file again" in said
    assert not (tmp_path / "victim").exists()


# Which files make a model


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "No file was given. Give --decoder"),
        (["--rq", "a.pth"], "A quantizer alone makes no model"),
        (["--blip", "a.pth", "--decoder", "b.pth"], "Convert blip_ff_large.pth alone"),
        (["--blip", "a.pth", "--clip", "b.pth"], "Convert blip_ff_large.pth alone"),
        (["--blip", "a.pth"], "It should be the encoder, blip_ff_large.pth of UniIR"),
    ],
)
def test_choices_that_make_no_model(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("convert", *options, tmp_path / "model") == 1
    assert message in " ".join(capsys.readouterr().err.split())


def test_clip_alone_searches_exactly_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tiny_clip import clip_tokenizer, openai_weights

    weights = {f"clip_model.{name}": value for name, value in openai_weights(dim=24).items()}
    file = write_checkpoint(tmp_path / "clip_sf_large.pth", weights)
    clip_tokenizer().save_pretrained(tmp_path)
    assert run("convert", "--clip", file, tmp_path / "model") == 0
    assert "no codebooks, exact search" in capsys.readouterr().out
    index = Index.create(tmp_path / "index", Genius.from_pretrained(tmp_path / "model"))
    index.add(ITEMS)
    assert index.search(Query(image=draw_image("blue"), instruction=""), k=1)[0].id == "blue"
