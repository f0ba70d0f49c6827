"""Products of bytes in ONNX graphs: they err by what was rounded off, and nothing saturates."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from genius.runtime.int8 import (
    STEPS,
    InputRange,
    Layer,
    int8_product,
    linear_layers,
    quantized,
    quantized_relu,
)
from genius.runtime.onnx_graph import Graph


def in_bytes(x: NDArray[np.float32], weight: NDArray[np.float32], positive: bool = False) -> NDArray[np.float32]:
    """x: (rows, n), weight: (outputs, n) -> their product, of x or of what is positive of it."""
    graph = Graph()
    rows = (quantized_relu if positive else quantized)(graph, "x")
    graph.node("Mul", int8_product(graph, rows, weight), rows.scale, output="y")
    model = graph.model({"x": (np.float32, ["rows", x.shape[1]])}, {"y": ["rows", len(weight)]})
    (y,) = model.session(threads=1).run(None, {"x": x})
    return y


@st.composite
def products(draw: st.DrawFn) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Rows of very different sizes, some of zeros, and weights."""
    rows, outputs, n = draw(st.integers(1, 5)), draw(st.integers(1, 5)), draw(st.sampled_from((1, 2, 3, 16, 70)))
    numbers = st.floats(-1, 1, width=32)
    x, weight = (draw(hnp.arrays(np.float32, (count, n), elements=numbers)) for count in (rows, outputs))
    sizes = draw(hnp.arrays(np.float32, (rows, 1), elements=st.sampled_from([0, 1e-6, 1, 1e6])))
    return x * sizes, weight


@settings(deadline=None, derandomize=True, max_examples=60)
@given(products(), st.booleans())
def test_a_product_in_bytes_errs_by_what_was_rounded_off(
    given: tuple[NDArray[np.float32], NDArray[np.float32]], positive: bool
) -> None:
    x, weight = given
    taken = np.maximum(x, 0) if positive else x
    exact = taken.astype(np.float64) @ weight.T.astype(np.float64)
    of_rows = np.abs(taken).max(1, keepdims=True) / (2 * STEPS if positive else STEPS) / 2
    of_weights = np.maximum(np.abs(weight).max(1), 1e-12) / STEPS / 2
    allowed = of_rows * (np.abs(weight) + of_weights[:, None]).sum(1) + np.abs(taken).sum(1, keepdims=True) * of_weights
    assert (np.abs(in_bytes(x, weight, positive) - exact) <= 1.001 * allowed + 1e-30).all()


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_sums_of_bytes_are_exact(sign: int, positive: bool) -> None:
    x, weight = np.full((7, 2048), 3.0, np.float32), np.full((9, 2048), sign * 0.5, np.float32)
    np.testing.assert_allclose(in_bytes(x, weight, positive), np.full((7, 9), sign * 3072.0), rtol=1e-5)
    mixed = np.where(np.arange(2048) % 2, x, -x)
    np.testing.assert_allclose(in_bytes(mixed, np.sign(mixed[:1]) * weight), np.full((7, 9), sign * 3072.0), rtol=1e-5)


# Linear layers


def layer_outputs(x: NDArray[np.float32], layers: list[Layer], int8: InputRange | None) -> list[NDArray[np.float32]]:
    graph = Graph()
    for number, y in enumerate(linear_layers(graph, "x", layers, int8)):
        graph.node("Identity", y, output=f"y{number}")
    shapes = {f"y{number}": ["rows", len(bias)] for number, (_, bias) in enumerate(layers)}
    model = graph.model({"x": (np.float32, ["rows", x.shape[1]])}, shapes)
    return model.session(threads=1).run(None, {"x": x})


@pytest.mark.parametrize("lowest", [None, -0.17])
def test_linear_layers_in_eight_bits_bear_a_channel_that_is_far_larger_than_the_others(lowest: float | None) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((50, 64)).astype(np.float32)
    x = x if lowest is None else np.maximum(x, lowest)
    x[:, 7] = 40 + x[:, 7]
    layers = [
        (rng.standard_normal((n, 64)).astype(np.float32), rng.standard_normal(n).astype(np.float32)) for n in (5, 9)
    ]
    exact = layer_outputs(x, layers, None)
    for (weight, bias), y in zip(layers, exact, strict=True):
        np.testing.assert_allclose(y, x @ weight.T + bias, atol=1e-4)
    known = InputRange(np.abs(x).max(axis=0), 0.5, lowest)
    unknown = InputRange(np.full(64, 40, np.float32), 1.0, lowest)
    for of_known, of_unknown, y in zip(*(layer_outputs(x, layers, r) for r in (known, unknown)), exact, strict=True):
        error, other = (np.abs(found - y).mean() for found in (of_known, of_unknown))
        assert error < 0.01 * np.abs(y).mean()
        assert error < 0.6 * other


def test_a_row_in_eight_bits_depends_on_no_other_row() -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((6, 32)).astype(np.float32) * np.array([[1], [100], [0], [1e-3], [1], [7]], np.float32)
    layers = [(rng.standard_normal((8, 32)).astype(np.float32), np.ones(8, np.float32))]
    known = InputRange(np.ones(32, np.float32), 0.5)
    (together,) = layer_outputs(x, layers, known)
    for row in range(len(x)):
        np.testing.assert_array_equal(layer_outputs(x[row : row + 1], layers, known)[0], together[row : row + 1])
    np.testing.assert_array_equal(together[2], np.ones(8))  # a row of zeros has the bias alone
