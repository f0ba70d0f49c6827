"""Vectors: what all encoders return; and which encoders a model can ask for."""

import numpy as np
import pytest
import torch

from genius.data.items import Modality
from genius.encoders.base import ROWS, Vectors
from genius.encoders.loading import load_encoder
from genius.errors import BadModel
from genius.networks.fusion import Fusion


def three() -> Vectors:
    """An image, a text, and both."""
    image = np.array([[3, 4], [0, 0], [1, 0]], np.float32)
    text = np.array([[0, 0], [0, -2], [0, 1]], np.float32)
    return Vectors(image, text)


def test_a_row_of_zeros_is_an_absent_modality() -> None:
    vectors = three()
    assert vectors.has_image.tolist() == [True, False, True]
    assert vectors.has_text.tolist() == [False, True, True]
    assert vectors.modality.tolist() == [Modality.IMAGE, Modality.TEXT, Modality.IMAGE_TEXT]
    assert vectors.modality.dtype == np.uint8


def test_the_embedding_is_the_normalised_sum() -> None:
    embedding = three().embedding()
    np.testing.assert_allclose(embedding, [[0.6, 0.8], [0, -1], [0.5**0.5, 0.5**0.5]], rtol=1e-6)
    assert embedding.dtype == np.float32


def test_embeddings_of_many_are_those_of_each() -> None:
    image, text = np.random.default_rng(0).standard_normal((2, 2 * ROWS + 3, 5)).astype(np.float32)
    total = image.astype(np.float64) + text
    expected = total / np.linalg.norm(total, axis=1, keepdims=True)
    np.testing.assert_allclose(Vectors(image, text).embedding(), expected, atol=1e-6)
    half = Vectors(image, text).embedding(np.float16)
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, expected, atol=1e-3)


def test_nothing_at_all_has_an_embedding_of_zeros_not_of_nan() -> None:
    assert not Vectors(np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32)).embedding().any()


def test_rows_can_be_taken_and_put_together_again() -> None:
    vectors = three()
    assert len(vectors) == 3
    assert len(vectors[1:]) == 2
    np.testing.assert_array_equal(vectors[np.array([2, 0])].image, vectors.image[[2, 0]])
    np.testing.assert_array_equal(vectors[np.array([2, 0])].text, vectors.text[[2, 0]])
    joined = Vectors.concatenate([vectors[:1], vectors[1:]])
    np.testing.assert_array_equal(joined.image, vectors.image)
    np.testing.assert_array_equal(joined.text, vectors.text)


def test_joint_vectors_keep_modality_and_embedding() -> None:
    given = np.array([[3, 4], [0, -2], [1, 1]], np.float32)
    has_image, has_text = np.array([True, False, True]), np.array([False, True, True])
    vectors = Vectors.joint(given, has_image, has_text)
    assert vectors.modality.tolist() == [Modality.IMAGE, Modality.TEXT, Modality.IMAGE_TEXT]
    np.testing.assert_array_equal(vectors.image + vectors.text, given)
    np.testing.assert_array_equal(vectors.embedding(), Vectors(given, np.zeros_like(given)).embedding())
    assert vectors.image.dtype == vectors.text.dtype == np.float32
    fused = Fusion(2, 4)(torch.from_numpy(vectors.image), torch.from_numpy(vectors.text))
    np.testing.assert_allclose(fused.detach(), vectors.embedding(), rtol=1e-6)


@pytest.mark.parametrize("shape", [(2, 2), (3, 3), (3,)])
def test_vectors_that_do_not_belong_together_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadModel, match=r"\(3, 2\).*do not match"):
        Vectors(np.zeros((3, 2), np.float32), np.zeros(shape, np.float32))


def test_an_encoder_nobody_knows_is_refused_by_name() -> None:
    with pytest.raises(BadModel, match="'telepathy'"):
        load_encoder({"kind": "telepathy"}, {})
