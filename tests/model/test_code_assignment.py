"""Fast codes against the nearest by float64 distances, and against `Quantizer.encode`: the same, to the last one."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from genius import Genius
from genius.errors import GeniusError
from genius.model.code_assignment import STEPS, QuantizerRuntime
from genius.model.quantizer import Quantizer


def _check_nearest(quantizer: Quantizer, z: np.ndarray, modality: np.ndarray | None, codes: np.ndarray) -> None:
    """Eqs. 5 and 6; of equally near codes the first. Codes that float64 cannot tell apart are equally good."""
    residual = z.copy()
    for level, book in enumerate(codebook.numpy() for codebook in quantizer.codebooks):
        for row, code in enumerate(codes[:, level]):
            if level == 0 and modality is not None:
                assert code == modality[row]
                continue
            distances = ((residual[row].astype(np.float64) - book.astype(np.float64)) ** 2).sum(axis=1)
            assert distances[code] <= distances.min() * (1 + 1e-13)
            assert not (book[:code] == book[code]).all(axis=1).any()
        residual -= book[codes[:, level]]


def _quantizer(rng: np.random.Generator, dim: int, size: int, levels: int, shared: bool, draw: str) -> Quantizer:
    quantizer = Quantizer(dim, size, levels, shared=shared)
    books = [_drawn(rng, len(book), dim, draw) for book in quantizer.codebooks[: 2 if shared else None]]
    quantizer.set_codebooks([torch.from_numpy(book) for book in books])
    return quantizer


def _drawn(rng: np.random.Generator, n: int, dim: int, draw: str) -> np.ndarray:
    rows = rng.standard_normal((n, dim))
    if draw == "grid":  # many are equally near, and all sums are exact
        rows = rng.integers(-2, 3, (n, dim))
    if draw == "lengths":
        rows *= 10.0 ** rng.integers(-8, 9, (n, 1))
    if draw == "numbers":
        rows *= 10.0 ** rng.integers(-20, 3, (n, dim))
    if draw == "alike":  # closer than float32 products can tell
        rows = rows[:1] + 1e-6 * rows
    rows[rng.random(n) < 0.1] = 0
    twins = rng.random(n) < 0.2
    rows[twins] = rows[rng.integers(0, n, twins.sum())]
    return rows.astype(np.float32)


draws = st.sampled_from(["plain", "grid", "lengths", "numbers", "alike"])


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 10**6),
    dim=st.integers(1, 70),
    size=st.integers(1, 100),
    levels=st.integers(1, 3),
    shared=st.booleans(),
    known=st.booleans(),
    of_codes=draws,
    of_vectors=draws,
    scale=st.sampled_from([1.0, 1e3, 1e-3, 1e-18, 1e-30, 1e15, 1e25]),
)
def test_codes_are_the_nearest_ones(
    seed: int, dim: int, size: int, levels: int, shared: bool, known: bool, of_codes: str, of_vectors: str, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    quantizer = _quantizer(rng, dim, size, levels, shared, of_codes)
    z = _drawn(rng, 12, dim, of_vectors)
    z[:4] = quantizer.codebooks[1][rng.integers(0, size, 4)].numpy() + quantizer.codebooks[0][:1].numpy()
    z *= np.float32(scale)
    quantizer.set_codebooks([book.codes * scale for book in quantizer.books])
    modality = rng.integers(0, 3, len(z)) if known else None
    _check_nearest(quantizer, z, modality, QuantizerRuntime(quantizer)(z, modality))


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    dim=st.integers(1, 300),
    size=st.integers(1, 400),
    known=st.booleans(),
    draw=st.sampled_from(["plain", "grid", "alike"]),
)
def test_codes_are_those_of_the_quantizer(seed: int, dim: int, size: int, known: bool, draw: str) -> None:
    rng = np.random.default_rng(seed)
    quantizer = _quantizer(rng, dim, size, 3, False, draw)
    z = _drawn(rng, 100, dim, "grid" if draw == "grid" else "plain")
    modality = rng.integers(0, 3, len(z)) if known else None
    expected = quantizer.encode(torch.from_numpy(z), None if modality is None else torch.from_numpy(modality))
    np.testing.assert_array_equal(QuantizerRuntime(quantizer)(z, modality), expected.numpy())


def test_rounding_that_misleads() -> None:
    """Codes along what a vector loses to rounding: the product of bytes prefers the wrong one of the two."""
    rng = np.random.default_rng(0)
    z = rng.standard_normal((3000, 64)).astype(np.float32)
    step = np.abs(z).max(axis=1, keepdims=True) / STEPS
    lost = z - step * np.rint(z / step)
    length = np.linalg.norm(lost, axis=1)
    cosine = (z * lost).sum(axis=1) / length
    misleading = np.flatnonzero((cosine > 0.1 * length) & (cosine < 0.3 * length))
    assert len(misleading) > 10
    quantizer = Quantizer(64, codes_per_level=40, levels=1)
    for row in misleading:
        codes = np.zeros((40, 64), np.float32)
        codes[20], codes[30] = -lost[row] / length[row], lost[row] / length[row]
        codes[:20], codes[21:30], codes[31:] = -z[row], -z[row], -z[row]
        quantizer.set_codebooks([torch.zeros(3, 64), torch.from_numpy(codes)])
        assert QuantizerRuntime(quantizer)(z[row : row + 1])[0, 1] == 30


@pytest.mark.parametrize("known", [False, True])
def test_codes_of_the_bundled_model(known: bool) -> None:
    quantizer, rng = Genius.from_pretrained("mini").quantizer, np.random.default_rng(0)
    ids = np.stack([rng.integers(0, size, 2000) for size in quantizer.sizes], axis=1)
    z = quantizer.decode(torch.from_numpy(ids)).numpy() + 0.03 * rng.standard_normal((2000, quantizer.dim))
    z = (z / np.linalg.norm(z, axis=1, keepdims=True)).astype(np.float32)
    modality = ids[:, 0] if known else None
    frozen = QuantizerRuntime(quantizer)
    codes = frozen(z, modality)
    expected = quantizer.encode(torch.from_numpy(z), None if modality is None else torch.from_numpy(modality))
    assert codes.dtype == np.uint16
    np.testing.assert_array_equal(codes, expected.numpy())
    np.testing.assert_array_equal(codes[5:6], frozen(z[5:6], None if modality is None else modality[5:6]))
    np.testing.assert_array_equal(codes, frozen(np.asfortranarray(z), modality))


def test_many_threads_may_ask_at_once() -> None:
    rng = np.random.default_rng(0)
    frozen, z = QuantizerRuntime(Quantizer(32, 200, 4)), rng.standard_normal((16, 300, 32)).astype(np.float32)
    expected = [frozen(part) for part in z]
    with ThreadPoolExecutor(8) as pool:
        for found, wanted in zip(pool.map(frozen, z), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_the_vectors_stay_as_they_are() -> None:
    z = np.random.default_rng(0).standard_normal((20, 8)).astype(np.float32)
    before = z.copy()
    QuantizerRuntime(Quantizer(8, 10, 3))(z)
    np.testing.assert_array_equal(z, before)


def test_nothing_and_bad_input() -> None:
    frozen, z = QuantizerRuntime(Quantizer(8, 10, 3)), np.zeros((5, 8), np.float32)
    assert frozen(z[:0]).shape == (0, 4)
    with pytest.raises(GeniusError, match=r"\(n, 8\).*\(5, 7\)"):
        frozen(z[:, :7])
    with pytest.raises(GeniusError, match="5 integers"):
        frozen(z, np.zeros(4, np.int64))
    with pytest.raises(GeniusError, match="Row 1 has modality code 3"):
        frozen(z, np.array([0, 3, 0, 0, 0]))
    z[3, 2] = np.nan
    with pytest.raises(GeniusError, match=r"1 of 5 vectors .*row 3"):
        frozen(z)
