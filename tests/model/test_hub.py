"""Publishing and fetching models, against a stand-in of the hub that speaks its HTTP API."""

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fakes import TinyEncoder, tiny_model
from hub_standin import Hub, running_hub
from huggingface_hub import constants

from genius.encoders.base import Vectors
from genius.errors import BadModel, GeniusError
from genius.model import genius as model_module
from genius.model import hub as hub_module
from genius.model.genius import Genius
from genius.model.hub import fetch


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with running_hub() as made:
        template = made.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", made.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        for name in ("HF_HUB_CACHE", "HF_XET_CACHE"):
            monkeypatch.setattr(constants, name, str(tmp_path / name), raising=False)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setenv("HF_TOKEN", "secret")
        yield made


@pytest.fixture(autouse=True)
def tiny_encoders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module, "load_encoder", lambda config, state, *rest, **more: TinyEncoder())


def some_vectors(count: int, dim: int) -> Vectors:
    image, text = np.random.default_rng(0).standard_normal((2, count, dim)).astype(np.float32)
    return Vectors(image, text)


def test_a_published_model_comes_back(hub: Hub) -> None:
    model = tiny_model(3)
    assert model.push_to_hub("someone/tiny", private=True) == f"{hub.address}/someone/tiny"
    assert set(hub.repositories["someone/tiny"]) == {"config.json", "model.safetensors", "README.md"}
    assert hub.private == {"someone/tiny"}
    again = Genius.from_pretrained(fetch("someone/tiny"))
    assert again.fingerprint == model.fingerprint
    vectors = some_vectors(20, model.dim)
    np.testing.assert_array_equal(again.codes(vectors), Genius.from_pretrained(fetch("someone/tiny")).codes(vectors))
    np.testing.assert_allclose(again.fuse(vectors), model.fuse(vectors), atol=1e-2)  # kept as float16


def test_a_second_time_it_is_replaced_and_the_cache_follows(hub: Hub) -> None:
    tiny_model(1).push_to_hub("someone/tiny")
    first = fetch("someone/tiny")
    tiny_model(2).push_to_hub("someone/tiny")
    assert Genius.from_pretrained(fetch("someone/tiny")).fingerprint == tiny_model(2).fingerprint
    assert Genius.from_pretrained(first).fingerprint == tiny_model(1).fingerprint


def test_only_what_a_model_needs_is_fetched(hub: Hub) -> None:
    tiny_model().push_to_hub("someone/tiny")
    extra = {"training/decoder.pt": b"x", "decoder_step.onnx": b"x", "old.pkl": b"x"}
    hub.repositories["someone/tiny"] |= extra
    folder = fetch("someone/tiny")
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert found == {"config.json", "model.safetensors"}


def test_no_such_model_is_said_in_one_sentence(hub: Hub) -> None:
    with pytest.raises(BadModel, match=r"someone/none.*config.json and model.safetensors"):
        fetch("someone/none")


def test_without_a_network_it_is_said_what_to_do(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(BadModel, match="give that folder instead"):
        fetch("someone/tiny")
    with pytest.raises(GeniusError, match="there is a network"):
        tiny_model().push_to_hub("someone/tiny")


def test_without_the_right_to_write_nothing_is_published(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "wrong")
    with pytest.raises(GeniusError, match="hf auth whoami"):
        tiny_model().push_to_hub("someone/tiny")
    assert not hub.repositories


def test_a_card_is_published_with_the_model(hub: Hub) -> None:
    tiny_model().push_to_hub("someone/tiny", card="# Mine\n")
    assert hub.repositories["someone/tiny"]["README.md"] == b"# Mine\n"


def test_the_plain_card_says_how_the_model_is_loaded(hub: Hub) -> None:
    model = tiny_model()
    model.push_to_hub("someone/tiny")
    card = hub.repositories["someone/tiny"]["README.md"].decode()
    assert card.startswith("---\nlibrary_name: genius-search\n")
    assert 'Genius.from_pretrained("someone/tiny")' in card
    assert model.fingerprint in card


@pytest.mark.parametrize("name", ["tiny", "a/b/c", "someone/ti ny", ""])
def test_what_is_not_owner_and_name_is_refused_before_anything_is_sent(hub: Hub, name: str) -> None:
    with pytest.raises(GeniusError, match="owner/name"):
        tiny_model().push_to_hub(name)
    assert not hub.seen


def test_without_the_library_the_hint_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(GeniusError, match="pip install"):
        hub_module.fetch("someone/model")
