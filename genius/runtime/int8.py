"""Products of eight-bit numbers in ONNX graphs.

Each row of the input has its own scale, so that a result depends on no other row of the batch; each output of a weight
has its own scale too. Sums of products fit into 16 bits on processors that need it: nothing saturates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from genius.runtime.onnx_graph import Graph

STEPS = 90  # int8 steps to either side of zero: the sum of two products of 180 and 90 fits into 16 bits
BLOCK = 32  # rows of a weight that are rounded at once: intermediate results stay in the cache


class QuantizedRows(NamedTuple):
    """Rows as bytes: x = (values - zero) * scale. Each row has its own scale, so that it depends on no other row."""

    values: str  # (rows, n) uint8
    zero: str  # the byte that stands for 0
    scale: str  # (rows, 1) float32


def quantized(g: Graph, x: str) -> QuantizedRows:
    """x: (rows, n) as bytes."""
    scale = _scale(g, g.node("ReduceMax", g.node("Abs", x), axes=[1], keepdims=0), STEPS)
    zeros = g.node("Expand", g.constant([np.uint8(STEPS)]), g.node("Shape", scale))
    values = g.node("QuantizeLinear", x, scale, zeros, axis=0)
    return QuantizedRows(values, g.constant(np.uint8(STEPS)), g.unsqueeze(scale, 1))


def quantized_relu(g: Graph, x: str) -> QuantizedRows:
    """Relu(x) as bytes: negative values saturate at byte 0."""
    scale = _scale(g, g.node("Relu", g.node("ReduceMax", x, axes=[1], keepdims=0)), 2 * STEPS)
    return QuantizedRows(g.node("QuantizeLinear", x, scale, axis=0), g.constant(np.uint8(0)), g.unsqueeze(scale, 1))


def _scale(g: Graph, largest: str, steps: int) -> str:
    """(rows,) A row of zeros has scale 0, which makes its products 0."""
    return g.node("Mul", largest, g.constant(np.float32(1 / steps)))


class RoundedWeight(NamedTuple):
    """A weight as bytes: values * scale."""

    values: np.ndarray  # (inputs, outputs) int8
    scale: np.ndarray  # (outputs,) float32


def rounded(weight: np.ndarray, factors: np.ndarray | None = None) -> RoundedWeight:
    """Weight (outputs, inputs), float32, with its inputs multiplied by factors (inputs,), as bytes."""
    values = np.empty(weight.shape[::-1], np.int8)
    scale = np.empty(len(weight), np.float32)
    for start in range(0, len(weight), BLOCK):
        block = slice(start, start + BLOCK)
        rows = weight[block] if factors is None else weight[block] * factors
        scale[block] = np.maximum(_largest(rows, axis=1), 1e-12) / STEPS
        values[:, block] = np.round(rows.T / scale[block])
    return RoundedWeight(values, scale)


def _largest(values: np.ndarray, axis: int) -> np.ndarray:
    """The largest absolute value along an axis."""
    return np.asarray(np.maximum(values.max(axis=axis), -values.min(axis=axis)))


def int8_product(g: Graph, x: QuantizedRows, weight: np.ndarray) -> str:
    """x: (rows, inputs), weight: (outputs, inputs) float -> (rows, outputs) float32, in units of x.scale."""
    return _rounded_product(g, x, rounded(weight))


def _rounded_product(g: Graph, x: QuantizedRows, weight: RoundedWeight) -> str:
    return g.node(
        "MatMulIntegerToFloat",
        x.values,
        g.constant(weight.values),
        g.constant(np.float32(1)),
        g.constant(weight.scale),
        x.zero,
        domain="com.microsoft",
    )


# Linear layers

Layer = tuple[np.ndarray, np.ndarray]  # weight (outputs, inputs) and bias (outputs,), float32


@dataclass(frozen=True)
class InputRange:
    """What is known of a layer's input before it is rounded.

    Attributes:
        largest: (inputs,) The usual largest absolute value of each channel. A few channels are far larger than the
            others, and a row's scale must hold them all: channels are divided by factors, which the weights are
            multiplied by (SmoothQuant, Xiao et al. 2023).
        balance: Between 0 and 1: how far the factors even out the input rather than the weights.
        lowest: No value is less. Then all steps are used for values above it.
    """

    largest: np.ndarray
    balance: float
    lowest: float | None = None

    def factors(self, layers: Sequence[Layer]) -> np.ndarray:
        """(inputs,) What each channel is divided by."""
        weights = np.max([_largest(weight, axis=0) for weight, _ in layers], axis=0)
        values = np.maximum(self.largest, 1e-3) ** self.balance / np.maximum(weights, 1e-4) ** (1 - self.balance)
        return np.asarray(values, np.float32)


def linear_layers(g: Graph, x: str, layers: Sequence[Layer], int8: InputRange | None = None) -> list[str]:
    """Several linear layers of the same input.

    Args:
        g: The graph to write to.
        x: (rows, inputs).
        layers: Weights and biases.
        int8: Round input and weights to eight bits. None: float32.

    Returns:
        (rows, outputs) for each layer.
    """
    if int8 is None:
        return [g.node("Add", g.node("MatMul", x, g.constant(w.T)), g.constant(bias)) for w, bias in layers]
    factors = int8.factors(layers)
    weights, biases = [rounded(weight, factors) for weight, _ in layers], [bias for _, bias in layers]
    if int8.lowest is None:
        rows = quantized(g, g.node("Mul", x, g.constant(1 / factors)))
    else:
        above = g.node("Sub", x, g.constant(np.float32(int8.lowest)))
        rows = quantized_relu(g, g.node("Mul", above, g.constant(1 / factors)))
        lowest = int8.lowest / factors
        biases = [bias + _product(lowest, weight) for weight, bias in zip(weights, biases, strict=True)]
    products = [g.node("Mul", _rounded_product(g, rows, weight), rows.scale) for weight in weights]
    return [g.node("Add", y, g.constant(bias)) for y, bias in zip(products, biases, strict=True)]


def _product(x: np.ndarray, weight: RoundedWeight) -> np.ndarray:
    """x: (inputs,) times a weight: what an eight-bit product gives for an input that needs no rounding."""
    values = weight.values.astype(np.float32, order="F")
    # A few outputs at a time: a larger product would wake numpy's threads, which spin while the graph is built.
    parts = [x @ values[:, start : start + 4] for start in range(0, values.shape[1], 4)]
    return np.asarray(np.concatenate(parts) * weight.scale, np.float32)
