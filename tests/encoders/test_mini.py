"""The `mini` encoder: one vector for one content, whatever stands beside it."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch_backbones import bert, efficientnet_features

import genius
from genius.data.items import Modality
from genius.encoders.base import Encoder, Prepared
from genius.encoders.efficientnet import Features
from genius.encoders.loading import load_encoder
from genius.encoders.mini import MiniEncoder
from genius.encoders.mini_heads import HeadsConfig, head_shapes, write_image_head, write_text_head
from genius.encoders.minilm import MiniLM
from genius.errors import BadModel
from genius.model.genius import Genius
from genius.networks.heads import Heads, encode_states, padded
from genius.runtime.onnx_graph import Graph

WORDS = [
    "cat",
    "dog",
    "house",
    "tree",
    "a",
    "the",
    "red",
    "blue",
    "running",
    "sleeping",
    "on",
    "of",
    "sofa",
    "big",
    "small",
    "happy",
]

SENTENCES = [
    "A cat asleep on a sofa.",
    "A kitten sleeps on the couch.",
    "Two dogs run through a field of tall grass.",
    "Dogs running in a meadow.",
    "Find an image that shows a man in a red jacket riding a horse on the beach.",
    "A person rides a brown horse along the sea.",
    "What is the name of this fruit?",
    "The fruit in the bowl is a ripe mango.",
]


@pytest.fixture(scope="module")
def inputs(mini: MiniEncoder) -> list[Prepared]:
    """Images, texts and pairs, in turn; many texts have the same length."""
    rng = np.random.default_rng(0)
    made = []
    for number in range(24):
        noise = Image.fromarray(rng.integers(0, 256, (number + 1, 9, 3)).astype(np.uint8))
        text = " ".join(rng.choice(WORDS, rng.integers(3, 6)))
        made.append(Prepared(mini.pixels(noise) if number % 3 != Modality.TEXT else None, text if number % 3 else ""))
    return made


def test_vectors_have_zeros_for_what_is_absent(mini: MiniEncoder, inputs: list[Prepared]) -> None:
    vectors = mini.encode(inputs)
    assert vectors.image.shape == vectors.text.shape == (len(inputs), mini.dim)
    assert vectors.image.dtype == vectors.text.dtype == np.float32
    assert vectors.modality.tolist() == [Modality(n % 3) for n in range(len(inputs))]
    np.testing.assert_allclose(np.linalg.norm(vectors.embedding(), axis=1), 1, rtol=1e-5)


def test_the_same_content_has_the_same_vector_whatever_the_batch(mini: MiniEncoder, inputs: list[Prepared]) -> None:
    together = mini.encode(inputs)
    order = np.random.default_rng(1).permutation(len(inputs))
    shuffled = mini.encode([inputs[i] for i in order])
    np.testing.assert_allclose(shuffled.image, together.image[order], atol=1e-5)
    np.testing.assert_allclose(shuffled.text, together.text[order], atol=1e-5)
    for number in range(9):
        alone = mini.encode([inputs[number]])
        np.testing.assert_allclose(alone.image[0], together.image[number], atol=1e-5)
        np.testing.assert_allclose(alone.text[0], together.text[number], atol=1e-5)


def test_a_text_has_the_same_vector_among_hundreds(mini: MiniEncoder) -> None:
    rng = np.random.default_rng(2)
    texts = [" ".join(rng.choice(WORDS, 6)) for _ in range(150)]
    together = mini.encode([Prepared(None, text) for text in texts]).text
    alone = np.concatenate([mini.encode([Prepared(None, text)]).text for text in texts[:50]])
    np.testing.assert_allclose(alone, together[:50], atol=1e-5)


def test_different_contents_have_different_vectors(mini: MiniEncoder, inputs: list[Prepared]) -> None:
    vectors = mini.encode(inputs)
    for rows in (vectors.image[vectors.has_image], vectors.text[vectors.has_text]):
        distances = np.linalg.norm(rows[:, None] - rows, axis=2) + np.eye(len(rows))
        assert distances.min() > 1e-3


def test_images_beyond_a_block_and_none_at_all(
    mini: MiniEncoder, inputs: list[Prepared], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = mini.encode(inputs)
    monkeypatch.setattr("genius.encoders.mini.BLOCK", 5)
    np.testing.assert_allclose(mini.encode(inputs, progress=True).image, whole.image, atol=1e-5)
    assert mini.encode([]).image.shape == (0, mini.dim)


@torch.inference_mode()
def test_the_graphs_are_backbones_and_heads_in_torch(mini: MiniEncoder, inputs: list[Prepared]) -> None:
    heads, bare = Heads.of(mini), MiniEncoder(replace(mini.heads_config, int8_text=False), mini.heads)
    pixels = np.stack([given.pixels for given in inputs if given.pixels is not None])
    image = heads.encode_image(*efficientnet_features(torch.from_numpy(pixels)))
    got = bare.encode(inputs)
    np.testing.assert_allclose(got.image[got.has_image], image.numpy(), atol=1e-5)
    backbone = bert()
    for row in np.flatnonzero(got.has_text):
        ids = torch.tensor(mini._words.tokenize([inputs[row].text]))
        text = heads.encode_text(backbone(input_ids=ids).last_hidden_state, None)
        np.testing.assert_allclose(got.text[row], text[0].numpy(), atol=1e-5)


def random_heads(config: HeadsConfig) -> Heads:
    heads = Heads(config).eval().requires_grad_(False)
    for parameter in heads.parameters():
        parameter.normal_(std=0.3)
    return heads


@torch.inference_mode()
@pytest.mark.parametrize(
    "config", [HeadsConfig(dim=8, hidden=12), HeadsConfig(dim=6, hidden=5, image_pool_queries=1, text_pool_queries=3)]
)
def test_every_part_of_the_heads_is_in_the_graphs(config: HeadsConfig) -> None:
    """All weights are random, so that a forgotten one would show."""
    torch.manual_seed(0)
    heads = random_heads(config)
    weights = heads.encoder().heads
    states, features = torch.randn(4, 9, 384), (torch.randn(4, 352, 49), torch.randn(4, 1280), 3 * torch.randn(4, 1000))
    g = Graph()
    g.node("Identity", write_text_head(g, "states", weights), output="vectors")
    model = g.model({"states": (np.float32, ["n", "tokens", 384])}, {"vectors": ["n", config.dim]})
    (text,) = model.session(threads=1).run(None, {"states": states.numpy()})
    expected = heads.encode_text(states, None).numpy()
    np.testing.assert_allclose(text, expected, atol=1e-5 * np.abs(expected).max())
    g = Graph()
    g.node("Identity", write_image_head(g, Features("map", "pooled", "logits"), weights), output="vectors")
    shapes = {"map": ["n", 352, 49], "pooled": ["n", 1280], "logits": ["n", 1000]}
    model = g.model({name: (np.float32, shape) for name, shape in shapes.items()}, {"vectors": ["n", config.dim]})
    (image,) = model.session(threads=1).run(None, {n: f.numpy() for n, f in zip(shapes, features, strict=True)})
    expected = heads.encode_image(*features).numpy()
    np.testing.assert_allclose(image, expected, atol=1e-5 * np.abs(expected).max())


def test_shapes_of_the_heads_are_those_of_the_module() -> None:
    config = HeadsConfig(dim=6, hidden=5, image_pool_queries=2, text_pool_queries=3)
    assert head_shapes(config) == {name: tuple(value.shape) for name, value in Heads(config).state_dict().items()}


def test_eight_bits_are_near_32() -> None:
    """Of trained heads and real sentences the directions of the vectors differ by about two degrees."""
    encoder = Genius.from_pretrained("mini").encoder
    assert isinstance(encoder, MiniEncoder)
    inputs = [Prepared(None, text) for text in SENTENCES]
    exact, near = (
        MiniEncoder(replace(encoder.heads_config, int8_text=int8), encoder.heads).encode(inputs).embedding()
        for int8 in (False, True)
    )
    cosines = (exact * near).sum(axis=1)
    assert cosines.min() > 0.997
    assert cosines.max() < 0.999999
    similar = exact @ exact.T - np.eye(len(exact))
    np.testing.assert_array_equal((near @ near.T - np.eye(len(near))).argmax(1), similar.argmax(1))


@pytest.mark.parametrize("int8", [False, True])
def test_only_a_text_backbone_in_eight_bits_is_stored(int8: bool) -> None:
    """Folders of models that were trained on float32 do not mention it, and keep their fingerprints."""
    config = HeadsConfig(dim=4, hidden=4, int8_text=int8)
    encoder = MiniEncoder(config, {name: np.zeros(shape, np.float32) for name, shape in head_shapes(config).items()})
    assert encoder.config().get("int8_text") == (True if int8 else None)
    assert MiniEncoder.from_state(encoder.config(), encoder.state()).heads_config == config


def test_a_vector_in_eight_bits_depends_on_no_other_text(mini: MiniEncoder) -> None:
    """Also beside texts of the same length with far larger states."""
    mini = MiniEncoder(replace(mini.heads_config, int8_text=True), mini.heads)
    texts = [*SENTENCES, "", "z" * 90, "猫がソファで眠っている 🐈", "word " * 300]
    together = mini.encode([Prepared(None, text) for text in texts * 5]).text
    alone = np.concatenate([mini.encode([Prepared(None, text)]).text for text in texts])
    np.testing.assert_allclose(together, np.tile(alone, (5, 1)), atol=1e-6 * np.abs(alone).max())
    assert not alone[len(SENTENCES)].any()  # an empty text is no text
    np.testing.assert_array_equal(mini.encode([Prepared(None, "word " * 126)]).text, alone[-1:])


def test_padded_training_batches_give_the_same_text_vectors(mini: MiniEncoder, minilm: MiniLM) -> None:
    """Training pads and masks; encoding never pads. Both must be one function."""
    heads = Heads.of(mini)
    texts = ["A cat.", "A much longer text about two dogs and a house.", "Yes", "A dog."]
    states = minilm.states(texts)
    with torch.inference_mode():
        batch = heads.encode_text(*padded(states, np.arange(4))).numpy()
    np.testing.assert_allclose(batch, encode_states(heads, states), atol=1e-5)
    plain = MiniEncoder(replace(mini.heads_config, int8_text=False), mini.heads)
    np.testing.assert_allclose(batch, plain.encode([Prepared(None, text) for text in texts]).text, atol=1e-5)


def test_the_encoder_is_made_again_from_its_config_and_state(mini: MiniEncoder, inputs: list[Prepared]) -> None:
    assert isinstance(mini, Encoder)
    again = load_encoder(mini.config(), mini.state())
    assert again.config() == mini.config()
    few = inputs[:3]
    np.testing.assert_array_equal(again.encode(few).embedding(), mini.encode(few).embedding())


def test_heads_copied_from_an_encoder_have_no_dropout_and_are_not_trained(mini: MiniEncoder) -> None:
    heads = Heads.of(mini)
    assert not any(module.training for module in heads.modules())
    assert not any(parameter.requires_grad for parameter in heads.parameters())
    before = mini.heads["text.linear.bias"].copy()
    heads.text.linear.bias.add_(1)
    np.testing.assert_array_equal(mini.heads["text.linear.bias"], before)


def test_weights_that_do_not_fit_are_named(mini: MiniEncoder) -> None:
    state = mini.state()
    del state["text_glances.queries"]
    with pytest.raises(BadModel, match=r"'text_pool\.queries'.* missing"):
        load_encoder(mini.config(), state)
    with pytest.raises(BadModel, match=r"\(32, 1000\); \(16, 1000\) is needed"):
        load_encoder(mini.config() | {"dim": 16}, mini.state())


def test_vectors_that_are_not_numbers_are_refused(mini: MiniEncoder, inputs: list[Prepared]) -> None:
    for name, what in (("text.linear.bias", "texts"), ("image.linear.bias", "images")):
        spoilt = MiniEncoder(mini.heads_config, mini.heads | {name: np.full(mini.dim, np.nan, np.float32)})
        with pytest.raises(BadModel, match=f"Vectors of {what} hold NaN"):
            spoilt.encode(inputs[2:3])


def test_encoding_needs_no_torch(tmp_path: Path) -> None:
    """Neither torch nor transformers can be imported here."""
    code = """
import importlib.abc, json, sys
from pathlib import Path

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "sentence_transformers"):
            raise ImportError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
import numpy as np
from PIL import Image
from safetensors.numpy import load_file
from genius.encoders.base import Prepared
from genius.encoders.loading import load_encoder
from genius.errors import GeniusError

folder = Path(sys.argv[1])
weights = {name.removeprefix("encoder."): value.astype(np.float32)
           for name, value in load_file(folder / "model.safetensors").items() if name.startswith("encoder.")}
encoder = load_encoder(json.loads((folder / "config.json").read_text())["encoder"], weights)
pixels = encoder.pixels(Image.new("RGB", (300, 200), "red"))
vectors = encoder.encode([Prepared(pixels, "a red square"), Prepared(None, "a cat")])
assert vectors.modality.tolist() == [2, 1]
assert "torch" not in sys.modules
for kind in ("clip", "sentence"):
    try:
        load_encoder({"kind": kind}, {})
    except GeniusError as error:
        print(error)
"""
    mini = Path(genius.__file__).parent / "model/bundled/mini"
    done = subprocess.run([sys.executable, "-c", code, str(mini)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f'Encoders of kind {kind!r} need the package torch. Install it: pip install "genius-search[clip]"'
        for kind in ("clip", "sentence")
    ]
