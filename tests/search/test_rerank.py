"""Re-ranking scores against slow versions of themselves, and the order of what comes first."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from genius.networks.quantizer import Quantizer
from genius.search.rerank import CodeVectors, by_codes, by_embedding, top

RNG = np.random.default_rng(0)
CODEBOOKS = [RNG.standard_normal((size, 6)).astype(np.float32) for size in (3, 8, 8, 300)]
CODES = np.stack([RNG.integers(0, len(book), 50) for book in CODEBOOKS], axis=1).astype(np.uint16)
DECODED = np.array([sum(book[code] for book, code in zip(CODEBOOKS, row, strict=True)) for row in CODES])
QUERY = np.array([0.5, -0.5, 0.5, 0.1, -0.3, 0.2], np.float32)


def test_by_embedding_is_the_inner_product() -> None:
    np.testing.assert_allclose(by_embedding(QUERY, DECODED), [row @ QUERY for row in DECODED], rtol=1e-5)
    assert by_embedding(QUERY, np.zeros((0, 6))).shape == (0,)


def test_half_precision_vectors_are_scored_in_single() -> None:
    half = DECODED.astype(np.float16)
    assert by_embedding(QUERY, half).dtype == np.float32
    np.testing.assert_allclose(by_embedding(QUERY, half), half.astype(np.float32) @ QUERY, rtol=1e-5)


@given(hnp.arrays(np.float16, (4, 5), elements=st.floats(-60000, 60000, width=16)), st.permutations(range(4)))
def test_half_precision_is_widened_exactly(half: np.ndarray, rows: list[int]) -> None:
    for i in range(5):  # one number at a time
        one = np.eye(5, dtype=np.float32)[i]
        assert by_embedding(one, half[rows[:3]]).tolist() == half[rows[:3], i].tolist()


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_equal_vectors_score_equally_wherever_they_stand(kind: type) -> None:
    vectors = RNG.standard_normal((1003, 131)).astype(kind)
    same = [0, 5, 6, 7, 501, 1000, 1001, 1002]
    vectors[same] = vectors[0]
    assert len(set(by_embedding(vectors[1], vectors)[same].tolist())) == 1


VECTORS = CodeVectors(CODEBOOKS)


def test_sums_of_products_are_the_query_against_the_decoded_vectors() -> None:
    queries = RNG.standard_normal((3, 6)).astype(np.float32)
    for query, products in zip(queries, VECTORS.products(queries), strict=True):
        np.testing.assert_allclose(VECTORS.scores(products, CODES), DECODED @ query, atol=1e-5)


def test_by_codes_reads_a_quantizer() -> None:
    torch.manual_seed(0)
    quantizer = Quantizer(dim=6, codes_per_level=8, levels=3)
    quantizer.set_codebooks([torch.randn(codebook.shape) for codebook in quantizer.codebooks])
    codes = torch.stack([torch.randint(0, size, (20,)) for size in quantizer.sizes], dim=1)
    expected = torch.nn.functional.normalize(quantizer.decode(codes), dim=1) @ torch.from_numpy(QUERY)
    got = by_codes(QUERY, codes, CodeVectors(quantizer.codebooks))
    np.testing.assert_allclose(got, expected.numpy(), atol=1e-5)


def test_by_codes_is_the_cosine() -> None:
    unit = QUERY / np.linalg.norm(QUERY)
    expected = [row @ unit / np.linalg.norm(row) for row in DECODED]
    np.testing.assert_allclose(by_codes(unit, CODES, VECTORS), expected, atol=1e-5)


def test_half_norms_are_of_the_decoded_vectors() -> None:
    np.testing.assert_allclose(VECTORS.half_norms(CODES), np.square(DECODED).sum(axis=1) / 2, rtol=1e-5)
    assert VECTORS.half_norms(CODES[:0]).shape == (0,)


def test_a_sum_of_zero_does_not_divide_by_zero() -> None:
    vectors = CodeVectors([[[1.0, 0.0]], [[-1.0, 0.0]]])
    assert by_codes([1.0, 0.0], [[0, 0]], vectors).tolist() == [0.0]


@given(st.lists(st.integers(-3, 3)), st.integers(0, 12))
def test_top_is_sorted_with_ties_by_index(scores: list[int], k: int) -> None:
    expected = sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]
    assert top(np.array(scores, np.float32), k).tolist() == expected
