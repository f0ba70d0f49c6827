"""The beginning of a search for few queries, against the decoder and against ONNX Runtime."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numba import njit

from genius.model import first_step as opening
from genius.model.decoder import Decoder, DecoderConfig
from genius.model.decoder_runtime import FEW, DecoderRuntime
from genius.model.first_step import Opening
from genius.runtime import half_precision as halves

CONFIG = DecoderConfig(
    dim=24, sizes=(3, 20, 20, 20), d_model=32, layers=3, heads=2, d_kv=16, d_ff=48, prefix=5, skip=True, written=2
)
CONFIGS = {
    "odd sizes": CONFIG,
    "one layer": replace(CONFIG, layers=1),
    "untied": replace(CONFIG, tied=False),
    "two first codes": replace(CONFIG, sizes=(2, 17, 17)),
    "long prefix": replace(CONFIG, prefix=33, heads=3, d_kv=32),
}
exact = settings(deadline=None, derandomize=True, max_examples=60)


def make(config: DecoderConfig) -> Decoder:
    """Random weights, all of them half-precision numbers."""
    torch.manual_seed(0)
    decoder = Decoder(config).eval().requires_grad_(False)
    for weight in decoder.parameters():
        weight.add_(torch.randn_like(weight), alpha=0.1).copy_(weight.half().float())
    return decoder


def queries(config: DecoderConfig, count: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, config.dim)).astype(np.float32)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_agrees_with_the_decoder(config: DecoderConfig) -> None:
    decoder, z = make(config), queries(config, 3)
    assert Opening.fits(decoder)
    first, second, direct, left = Opening(decoder)(z)
    for code in range(config.sizes[0]):
        ids = torch.full((len(z), len(config.sizes)), code)
        expected = [logits.log_softmax(-1).numpy() for logits in decoder.logits(torch.from_numpy(z), ids)]
        np.testing.assert_allclose(first, expected[0], atol=1e-5)
        np.testing.assert_allclose(second[:, code], expected[1], atol=1e-5)
        np.testing.assert_allclose(left, np.concatenate(expected[2:], axis=1), atol=1e-5)
    path = decoder.direct_logits(torch.from_numpy(z))
    assert path is not None
    np.testing.assert_allclose(direct, path.numpy(), atol=1e-5)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_an_engine_says_the_same_of_few_queries_as_of_many(config: DecoderConfig) -> None:
    engine, z = DecoderRuntime(make(config)), queries(config, FEW + 1)
    codes = np.random.default_rng(1).integers(0, config.sizes[0], (FEW + 1, 2, 1))
    state, expected = engine.open(z, codes)
    expected += [state.direct, state.left, engine.step(state, codes[..., 0], codes[..., 0] * 0)]
    for few in (slice(0, 1), slice(1, FEW + 1)):
        begun, found = engine.open(z[few], codes[few])
        contiguous = [values.flags.c_contiguous for values in (*found, begun.left, begun.direct[-1, 0])]
        assert all(contiguous)  # or the loops of `genius.search.kernels` would be compiled once more
        found += [begun.direct, begun.left, engine.step(begun, codes[few, :, 0], codes[few, :, 0] * 0)]
        assert (begun.beams, begun.length) == (state.beams, state.length)
        for got, whole in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, whole[few], atol=1e-5)


def test_vectors_may_lie_anywhere_in_memory() -> None:
    opened, z = Opening(make(CONFIG)), queries(CONFIG, 3)
    for got, expected in zip(opened(np.asfortranarray(z)), opened(z), strict=True):
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    "other",
    [
        {"written": 3},
        {"written": 0},
        {"sizes": (4, 20, 20)},
        {"sizes": (3, 20)},
        {"sizes": (3, 20, 20, 21)},
        {"prefix_hidden": 8},
        {"d_kv": 8},
        {"d_model": 40},
        {"d_ff": 40},
    ],
    ids=str,
)
def test_decoders_of_other_shapes_do_not_fit(other: dict[str, Any]) -> None:
    assert not Opening.fits(make(replace(CONFIG, **other)))


def test_weights_must_be_half_precision_numbers() -> None:
    decoder = make(CONFIG)
    decoder.blocks[1].ff_in.weight[3, 5] += 1e-4
    assert not Opening.fits(decoder)


def test_without_the_processors_help(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halves, "NATIVE", False)
    rng = np.random.default_rng(0)
    weights, x = rng.standard_normal((16, 7)).astype(np.float16), rng.standard_normal((4, 7)).astype(np.float32)
    layout = opening.Layout(1, 1, 7, 0, 0, 7, 0, 16)
    got = np.empty((4, 16), np.float32)
    multiply = njit(opening.multiply.py_func)
    multiply(opening.packed(weights.view(np.int16)), layout, x, got)
    assert not any("cvtph" in code for code in multiply.inspect_asm().values())
    np.testing.assert_allclose(got, x @ weights.astype(np.float32).T, atol=1e-5)


@exact
@given(hnp.arrays(np.float32, (3, 11), elements=st.floats(-300, 300, width=32)), st.integers(1, 11))
def test_softmax_of_the_first_in_each_row(scores: np.ndarray, count: int) -> None:
    wide = scores[:, :count].astype(np.float64)
    expected = np.exp(wide - wide.max(axis=1, keepdims=True))
    expected /= expected.sum(axis=1, keepdims=True)
    shares, logs = scores.copy(), scores.copy()
    opening.softmax(shares, count, False)
    opening.softmax(logs, count, True)
    np.testing.assert_allclose(shares[:, :count], expected, rtol=1e-5, atol=1e-35)
    np.testing.assert_array_equal(shares[:, count:], scores[:, count:])
    level = wide.max(axis=1, keepdims=True)
    expected_logs = wide - level - np.log(np.exp(wide - level).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(logs[:, :count], expected_logs, rtol=1e-5, atol=1e-5)


def test_exponentials_are_right_to_the_last_digits() -> None:
    x = np.linspace(-87, 0, 20_001, dtype=np.float32)
    found = np.array([opening.exp(value) for value in x])
    np.testing.assert_allclose(found, np.exp(x.astype(np.float64)), rtol=3e-7)
    assert opening.exp(np.float32(-1000)) == opening.exp(np.float32(-87))
