"""The `mini` encoder: one vector for one content, whatever stands beside it."""

import numpy as np
import pytest
import torch
from PIL import Image

from genius.data.items import Modality
from genius.encoders.base import Encoder, Prepared
from genius.encoders.loading import load_encoder
from genius.encoders.mini import Heads, HeadsConfig, MiniEncoder, encode_states
from genius.encoders.minilm import MiniLM

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


def test_every_part_of_the_heads_matters(mini: MiniEncoder, inputs: list[Prepared]) -> None:
    """Each parameter that has values changes a vector when it changes: none is forgotten in the arithmetic."""
    few = inputs[2:3]
    before = mini.encode(few)
    for name, parameter in mini.heads.named_parameters():
        if not parameter.numel():
            continue
        kept = parameter.clone()
        noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
        parameter.add_(noise)
        after = mini.encode(few)
        parameter.copy_(kept)
        moved = max(np.abs(after.image - before.image).max(), np.abs(after.text - before.text).max())
        assert moved > 1e-4, name


def test_padded_training_batches_give_the_same_text_vectors(mini: MiniEncoder, minilm: MiniLM) -> None:
    """Training pads and masks; encoding never pads. Both must be one function."""
    states = minilm.states(["A cat.", "A much longer text about two dogs and a house.", "Yes", "A dog."])
    with torch.inference_mode():
        padded = mini.heads.encode_text(*states.padded(np.arange(4))).numpy()
    np.testing.assert_allclose(padded, encode_states(mini.heads, states), atol=1e-5)


def test_the_encoder_is_made_again_from_its_config_and_state(mini: MiniEncoder, inputs: list[Prepared]) -> None:
    assert isinstance(mini, Encoder)
    again = load_encoder(mini.config(), mini.state())
    assert again.config() == mini.config()
    few = inputs[:3]
    np.testing.assert_array_equal(again.encode(few).embedding(), mini.encode(few).embedding())


def test_dropout_is_off_and_nothing_is_trained_after_making_one() -> None:
    encoder = MiniEncoder(Heads(HeadsConfig(dim=8, hidden=8)).train())
    assert not any(module.training for module in encoder.heads.modules())
    assert not any(parameter.requires_grad for parameter in encoder.heads.parameters())
