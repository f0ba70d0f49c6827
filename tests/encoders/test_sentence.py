"""Sentence-transformers models as text encoders: the library's own vectors, and a state that holds the whole model."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from tiny_clip import WORDS

from genius.encoders.base import Encoder, Prepared
from genius.encoders.loading import load_encoder
from genius.encoders.sentence import SentenceEncoder
from genius.errors import BadImage, BadModel, GeniusError

TEXTS = ["a cat", "the red dog on a sofa", "cat", "a big house in the tree with a cat", "unheard of"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT, mean pooling, a linear layer, normalised."""
    parts, whole = tmp_path_factory.mktemp("bert"), tmp_path_factory.mktemp("sentence")
    (parts / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    transformers.BertTokenizerFast(str(parts / "vocab.txt")).save_pretrained(parts)
    torch.manual_seed(0)
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=5 + len(WORDS), max_position_embeddings=16, **small)
    transformers.BertModel(config).save_pretrained(parts)
    words = modules.Transformer(str(parts), max_seq_length=16)
    layers = [
        words,
        modules.Pooling(32),
        modules.Dense(32, 20, activation_function=torch.nn.Tanh()),
        modules.Normalize(),
    ]
    SentenceTransformer(modules=layers, device="cpu").save(str(whole), create_model_card=False)
    return whole


@pytest.fixture(scope="module")
def encoder(folder: Path) -> SentenceEncoder:
    return SentenceEncoder.from_hub(folder)


def test_vectors_are_those_of_the_library(folder: Path, encoder: SentenceEncoder) -> None:
    vectors = encoder.encode([Prepared(None, text) for text in TEXTS])
    np.testing.assert_allclose(vectors.text, SentenceTransformer(str(folder), device="cpu").encode(TEXTS), atol=1e-5)
    assert vectors.text.shape == (len(TEXTS), 20)
    assert encoder.dim == 20
    assert not vectors.has_image.any()


def test_the_same_text_has_the_same_vector_whatever_the_batch(encoder: SentenceEncoder) -> None:
    together = encoder.encode([Prepared(None, text) for text in TEXTS * 3])
    alone = np.concatenate([encoder.encode([Prepared(None, text)]).text for text in TEXTS])
    np.testing.assert_allclose(together.text, np.concatenate([alone] * 3), atol=1e-5)
    assert not encoder.encode([Prepared(None, "")]).text.any()


def test_the_state_holds_the_whole_model(encoder: SentenceEncoder) -> None:
    config, state = encoder.config(), encoder.state()
    again = load_encoder(config, state)
    assert isinstance(again, Encoder)
    inputs = [Prepared(None, text) for text in TEXTS]
    np.testing.assert_allclose(again.encode(inputs).text, encoder.encode(inputs).text, atol=1e-5)
    once_more = again.state()
    assert again.config() == config
    assert list(once_more) == list(state)
    assert all(np.array_equal(once_more[name], state[name]) for name in state)
    assert all(value.dtype in (np.float32, np.int64) for name, value in state.items() if name.startswith("weight/"))


def test_a_state_cannot_write_outside_its_folder(encoder: SentenceEncoder) -> None:
    with pytest.raises(BadModel, match="outside"):
        load_encoder(encoder.config(), {"file/../evil.txt": np.zeros(1, np.uint8)})


def test_images_are_refused(encoder: SentenceEncoder) -> None:
    with pytest.raises(BadImage, match="texts only"):
        encoder.pixels(Image.new("RGB", (3, 3)))
    with pytest.raises(BadModel, match="texts only"):
        encoder.encode([Prepared(np.zeros((3, 3, 3), np.uint8), "")])


def test_without_network_and_files_one_sentence_says_what_to_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(BadModel, match=r"modules\.json.*nobody/has-this.*folder"):
        SentenceEncoder.from_hub("nobody/has-this")


def test_without_the_library_the_extra_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(GeniusError, match=r"genius-search\[clip\]"):
        SentenceEncoder.from_hub(folder)
