"""Genius: parts that fit, vectors and codes of items, and model folders that are whole or refused by name."""

import hashlib
import io
import json
import threading
from pathlib import Path

import fakes
import numpy as np
import pytest
import torch
from fakes import TinyEncoder, draw_image, tiny_model, torch_decoder
from safetensors.torch import load_file, save

from genius.data.items import Item, Modality, Query
from genius.encoders.base import Prepared, Vectors
from genius.encoders.mini import MiniEncoder
from genius.errors import BadItem, BadModel
from genius.model import genius as module
from genius.model.decoder_config import DecoderConfig
from genius.model.decoder_runtime import DecoderRuntime
from genius.model.genius import Genius
from genius.networks.decoder import Decoder
from genius.networks.fusion import Fusion
from genius.networks.quantizer import Quantizer

ITEMS = [
    Item("p", image=draw_image("red")),
    Item("t", text="a red thing"),
    Item("b", text="a thing", image=draw_image("blue")),
    Item("q", image=draw_image("white")),
    Item("u", text="green"),
]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Genius:
    """A tiny model whose encoder can be loaded again."""
    monkeypatch.setattr(module, "load_encoder", lambda config, state, device: TinyEncoder())
    return tiny_model()


@pytest.fixture
def folder(tiny: Genius, tmp_path: Path) -> Path:
    tiny.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


# Vectors and codes


def test_items_become_vectors_of_what_they_have() -> None:
    vectors = tiny_model().encode_items(ITEMS)
    assert vectors.modality.tolist() == [item.modality for item in ITEMS]


def test_the_first_code_is_the_modality_of_the_item() -> None:
    model = tiny_model()
    rng = np.random.default_rng(0)
    image, text = rng.standard_normal((2, 300, model.dim)).astype(np.float32)
    modality = rng.integers(0, 3, 300)
    image[modality == Modality.TEXT] = 0
    text[modality == Modality.IMAGE] = 0
    vectors = Vectors(image, text)
    codes = model.codes(vectors)
    assert (codes.shape, codes.dtype) == ((300, len(model.sizes)), np.uint16)
    np.testing.assert_array_equal(codes[:, 0], modality)
    guessed = model.quantizer.encode(model.fuse(vectors))[:, 0]
    assert (guessed != modality).any()  # the nearest of the three would have been wrong
    np.testing.assert_array_equal(codes[7:9], model.codes(vectors[7:9]))


def test_codes_are_chosen_with_as_many_beams_as_the_model_says() -> None:
    greedy, wide = tiny_model(), tiny_model()
    wide.code_beams = 8
    rng = np.random.default_rng(0)
    vectors = Vectors(*rng.standard_normal((2, 200, greedy.dim)).astype(np.float32))
    fused = greedy.fuse(vectors)
    errors = [np.square(fused - m.quantizer.decode(m.codes(vectors))).sum(1) for m in (greedy, wide)]
    assert (errors[1] <= errors[0]).all()
    assert errors[1].mean() < errors[0].mean()


def test_no_vectors_have_no_codes() -> None:
    model = tiny_model()
    none = Vectors(*np.zeros((2, 0, model.dim), np.float32))
    assert model.fuse(none).shape == (0, model.dim)
    assert model.codes(none).shape == (0, len(model.sizes))


def test_a_query_is_encoded_with_its_instruction() -> None:
    model = tiny_model()
    asked = Query(text="a cat", instruction="Find a photo.")
    np.testing.assert_array_equal(
        model.encode_queries([asked]).text, model.encode([Prepared(None, "Find a photo. A cat.")]).text
    )
    assert model.prepare_query(Query(image=draw_image("red"), target="text")).text == "Find a text."
    assert model.prepare(Item("a", text='"a cat"\r')) == Prepared(None, "A cat.")


def test_images_are_decoded_in_parallel_and_stay_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    all_four = threading.Barrier(4, timeout=300)  # passes only when four threads have come to it

    class Meeting(TinyEncoder):
        def pixels(self, image: object) -> np.ndarray:
            all_four.wait()
            return super().pixels(image)  # type: ignore[arg-type]

    model = tiny_model()
    items = [Item(colour, image=draw_image(colour)) for colour in ("red", "green", "blue", "white") * 2]
    expected = model.encode_items(items)
    model.encoder = Meeting()
    np.testing.assert_array_equal(model.encode_items(items).image, expected.image)


def test_a_bad_item_is_named_alone_and_among_many(tmp_path: Path) -> None:
    model = tiny_model()
    (tmp_path / "empty.png").write_bytes(b"")
    for bad, reason in (
        (Item("nothing"), "neither text nor an image"),
        (Item("empty", image=tmp_path / "empty.png"), "0 bytes"),
        (Item("gone", image=tmp_path / "gone.png"), "no such file"),
    ):
        for items in ([bad], [*ITEMS, bad]):
            with pytest.raises(BadItem, match=reason) as error:
                model.encode_items(items)
            assert error.value.id == bad.id


def test_a_bad_image_of_a_query_is_named() -> None:
    with pytest.raises(BadItem, match=r"^query: "):
        tiny_model().encode_queries([Query(image=b"not an image")])


def test_parts_of_different_sizes_are_refused() -> None:
    good = tiny_model()
    with pytest.raises(BadModel, match=r"\(16, 8, 16, 16\)"):
        Genius(good.encoder, Fusion(8, 8).runtime(), good.quantizer, good.decoder)
    with pytest.raises(BadModel, match=r"\(3, 8, 8\).*\(3, 8, 8, 8\)"):
        Genius(good.encoder, good.fusion, Quantizer(16, 8, 2).runtime(), good.decoder)


def test_a_saved_model_comes_back_the_same(tiny: Genius, folder: Path, tmp_path: Path) -> None:
    loaded = Genius.from_pretrained(folder)
    assert loaded.fingerprint == tiny.fingerprint
    assert (loaded.dim, loaded.sizes, loaded.source) == (tiny.dim, tiny.sizes, str(folder))
    vectors = tiny.encode_items(ITEMS)
    np.testing.assert_array_equal(loaded.codes(vectors), tiny.codes(vectors))
    np.testing.assert_allclose(loaded.fuse(vectors), tiny.fuse(vectors), atol=1e-3)
    z, codes = torch.from_numpy(loaded.fuse(vectors)), torch.from_numpy(loaded.codes(vectors).astype(np.int64))
    theirs, ours = (torch_decoder(model.decoder)(z, codes) for model in (tiny, loaded))
    np.testing.assert_allclose(ours, theirs, atol=1e-2)
    loaded.save_pretrained(tmp_path / "again")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()


def test_settings_beside_the_weights_come_back_too(tiny: Genius, tmp_path: Path) -> None:
    quantizer = Quantizer(16, 8, 3, shared=True)
    config = DecoderConfig(16, quantizer.sizes, 16, 1, 2, 8, 32, 4, whole_vocabulary=True, residual_input=True)
    made = Genius(TinyEncoder(), Fusion(16, 8).runtime(), quantizer.runtime(), Decoder(config).runtime(), code_beams=5)
    made.save_pretrained(tmp_path)
    loaded = Genius.from_pretrained(tmp_path)
    assert (loaded.quantizer.shared, loaded.decoder.config, loaded.code_beams) == (True, config, 5)
    assert loaded.fingerprint == made.fingerprint
    for ours, theirs in zip(loaded.quantizer.codebooks, quantizer.codebooks, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-3)


def test_weights_are_float16(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    assert {value.dtype for value in tensors.values() if value.is_floating_point()} == {torch.float16}
    assert {name.split(".")[0] for name in tensors} == {"fusion", "quantizer", "decoder"}  # its encoder has no weights


def test_the_mini_encoder_is_saved_with_the_model(mini: MiniEncoder, tmp_path: Path) -> None:
    quantizer = Quantizer(mini.dim, 8, 3)
    decoder = Decoder(DecoderConfig(mini.dim, quantizer.sizes, 16, 1, 2, 8, 32, 4))
    Genius(mini, Fusion(mini.dim, 8).runtime(), quantizer.runtime(), decoder.runtime()).save_pretrained(tmp_path)
    loaded, twin = Genius.from_pretrained(tmp_path), Genius.from_pretrained(str(tmp_path))
    assert loaded.fingerprint == twin.fingerprint
    items = [*ITEMS, Item("long", text="cat " * 25_000)]
    ours = mini.encode([loaded.prepare(item) for item in items])
    vectors = loaded.encode_items(items)
    assert np.isfinite(vectors.embedding()).all()
    np.testing.assert_allclose(vectors.embedding(), ours.embedding(), atol=5e-3)
    np.testing.assert_array_equal(loaded.codes(vectors), twin.codes(twin.encode_items(items)))


def test_a_fingerprint_names_all_that_decides_the_codes() -> None:
    """Weights, and also settings that leave no trace in the weights."""
    base = tiny_model()
    assert tiny_model().fingerprint == base.fingerprint
    others = [tiny_model(seed=1), tiny_model(), tiny_model(), tiny_model()]
    others[1].code_beams = 4
    others[2].quantizer.codebooks[2][3, 4] += 0.1
    config = base.decoder.config
    swapped = Decoder(DecoderConfig(config.dim, config.sizes, 16, 2, heads=4, d_kv=4, d_ff=32, prefix=4))
    weights = {k: swapped.runtime().weights[k] if v.shape[-1] == 2 else v for k, v in base.decoder.weights.items()}
    others[3] = Genius(base.encoder, base.fusion, base.quantizer, DecoderRuntime(swapped.config, weights))
    prints = {base.fingerprint, *(other.fingerprint for other in others)}
    assert len(prints) == 5
    assert all(len(one) == 16 for one in prints)


def test_a_bundled_name_and_a_folder_of_that_name(
    tiny: Genius, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bare name is the bundled model's, wherever one stands; a path is always a folder's."""
    monkeypatch.setattr(module, "BUNDLED", tmp_path / "bundled")
    tiny.save_pretrained(tmp_path / "bundled" / "mini")
    monkeypatch.chdir(tmp_path)
    assert Genius.from_pretrained("mini").fingerprint == tiny.fingerprint
    tiny_model(seed=3).save_pretrained("mini")
    tiny_model(seed=4).save_pretrained("mine")
    assert Genius.from_pretrained("mini").fingerprint == tiny.fingerprint
    for path in ("./mini", tmp_path / "mini"):
        assert Genius.from_pretrained(path).fingerprint == tiny_model(seed=3).fingerprint
    assert Genius.from_pretrained("mine").fingerprint == tiny_model(seed=4).fingerprint
    with pytest.raises(BadModel, match=r"no model 'maxi'.*bundled model: mini\."):
        Genius.from_pretrained("maxi")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(BadModel, match=f"{folder} is not a complete model: {name} is missing. Copy"):
        Genius.from_pretrained(folder)


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty"])
def test_damaged_weights_are_refused(folder: Path, damage: str) -> None:
    file = folder / "model.safetensors"
    whole = bytearray(file.read_bytes())
    whole[-100] ^= 1
    file.write_bytes({"flipped": bytes(whole), "cut": bytes(whole[:-1]), "empty": b""}[damage])
    with pytest.raises(BadModel, match=f"{file} is damaged"):
        Genius.from_pretrained(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1}', "null", "\x00"])
def test_a_damaged_config_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(BadModel, match=f"{folder / 'config.json'} is damaged"):
        Genius.from_pretrained(folder)


def change(folder: Path, **values: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_a_model_of_another_format_is_refused(folder: Path) -> None:
    change(folder, format=2)
    with pytest.raises(BadModel, match=rf"{folder} has format 2.*reads format 1. Upgrade"):
        Genius.from_pretrained(folder)


@pytest.mark.parametrize(
    "values",
    [
        {"quantizer": {"dim": 16, "codes_per_level": 8, "levels": 4, "shared": False}},
        {"quantizer": {"dim": 16, "codes_per_level": 8, "levels": 0, "shared": False}},
        {"quantizer": {"dim": 8, "codes_per_level": 8, "levels": 3, "shared": False}},
        {"fusion": {"dim": 16, "hidden": 9}},
        {"fusion": {"dim": 16, "depth": 9}},
        {"fusion": None},
        {"decoder": {"dim": 16, "sizes": [3, 8, 8, 8], "layers": 0}},
        {"decoder": {"dim": 16, "sizes": "many"}},
        {"decoder": []},
    ],
)
def test_settings_that_do_not_fit_the_weights_are_refused(folder: Path, values: dict[str, object]) -> None:
    change(folder, **values)
    with pytest.raises(BadModel, match=f"{folder} is not a model this version can load: "):
        Genius.from_pretrained(folder)


@pytest.mark.parametrize("part", ["encoder", "fusion", "quantizer", "decoder", "code_beams"])
def test_a_missing_setting_is_named(folder: Path, part: str) -> None:
    file = folder / "config.json"
    config = json.loads(file.read_text())
    del config[part]
    file.write_text(json.dumps(config))
    with pytest.raises(BadModel, match=f"{folder} .*'{part}' is missing"):
        Genius.from_pretrained(folder)


@pytest.mark.parametrize("names", [["loose"], ["nobody.weight"], ["fusion.weight"], []])
def test_weights_of_something_else_are_refused(folder: Path, names: list[str]) -> None:
    """The digest is right, but it is not this model."""
    weights = save({name: torch.zeros(2) for name in names})
    (folder / "model.safetensors").write_bytes(weights)
    change(folder, digest=hashlib.sha256(weights).hexdigest())
    with pytest.raises(BadModel, match=f"{folder} is not a model this version can load: "):
        Genius.from_pretrained(folder)


@pytest.mark.parametrize("config", [{"kind": "telepathy"}, {}, {"kind": "mini", "dimensions": 3}, None])
def test_an_encoder_that_cannot_be_made_is_refused(
    tiny: Genius, folder: Path, monkeypatch: pytest.MonkeyPatch, config: object
) -> None:
    monkeypatch.undo()
    change(folder, encoder=config)
    with pytest.raises(BadModel, match=f"{folder} is not a model this version can load: "):
        Genius.from_pretrained(folder)


def test_images_come_as_paths_bytes_and_images(tmp_path: Path) -> None:
    model, red = tiny_model(), draw_image("red")
    red.save(tmp_path / "red.png")
    stream = io.BytesIO()
    red.save(stream, "PNG")
    sources = (red, tmp_path / "red.png", str(tmp_path / "red.png"), stream.getvalue())
    vectors = model.encode_items([Item(str(n), image=source) for n, source in enumerate(sources)])
    assert (vectors.image == vectors.image[0]).all()
    assert vectors.image.shape[1] == fakes.DIM
