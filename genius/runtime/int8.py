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


def int8_product(g: Graph, x: QuantizedRows, weight: np.ndarray) -> str:
    """x: (rows, inputs), weight: (outputs, inputs) float -> (rows, outputs) float32, in units of x.scale."""
    values, scale = _rounded(weight)
    return g.node(
        "MatMulIntegerToFloat",
        x.values,
        g.constant(values),
        g.constant(np.float32(1)),
        g.constant(scale),
        x.zero,
        domain="com.microsoft",
    )


def _rounded(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weight (outputs, inputs) as int8 values (inputs, outputs) and scales (outputs,)."""
    scale = np.maximum(np.abs(weight).max(axis=1), 1e-12) / STEPS
    return np.round(weight.T / scale).astype(np.int8), scale.astype(np.float32)


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
        weights = np.max([np.abs(weight).max(axis=0) for weight, _ in layers], axis=0)
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
    layers = [(weight * factors, bias) for weight, bias in layers]
    if int8.lowest is None:
        rows = quantized(g, g.node("Mul", x, g.constant(1 / factors)))
    else:
        above = g.node("Sub", x, g.constant(np.float32(int8.lowest)))
        rows = quantized_relu(g, g.node("Mul", above, g.constant(1 / factors)))
        layers = [(weight, bias + _product(int8.lowest / factors, weight)) for weight, bias in layers]
    products = [g.node("Mul", int8_product(g, rows, weight), rows.scale) for weight, _ in layers]
    return [g.node("Add", y, g.constant(bias)) for y, (_, bias) in zip(products, layers, strict=True)]


def _product(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """x: (inputs,) times the rounded weight: what `int8_product` gives for an input that needs no rounding."""
    values, scale = _rounded(weight)
    return np.asarray((x @ values.astype(np.float32)) * scale, np.float32)
