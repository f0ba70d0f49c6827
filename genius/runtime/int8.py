"""Products of eight-bit numbers in ONNX graphs.

Each row of the input has its own scale, so that a result depends on no other row of the batch; each output of a weight
has its own scale too. Sums of products fit into 16 bits on processors that need it: nothing saturates.
"""

from collections.abc import Sequence
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
    values = weight.T
    scale = np.maximum(np.abs(values).max(axis=0), 1e-12) / STEPS
    rounded, scales = g.constant(np.round(values / scale).astype(np.int8)), g.constant(scale.astype(np.float32))
    return g.node(
        "MatMulIntegerToFloat", x.values, rounded, g.constant(np.float32(1)), scales, x.zero, domain="com.microsoft"
    )


def linear_layers(
    g: Graph, x: str, layers: Sequence[tuple[np.ndarray, np.ndarray | None]], int8: bool = False
) -> list[str]:
    """Several linear layers of the same input.

    Args:
        g: The graph to write to.
        x: (rows, inputs).
        layers: Weight (outputs, inputs) and bias (outputs,) or None, float32.
        int8: Round input and weights to eight bits.

    Returns:
        (rows, outputs) for each layer.
    """
    if int8:
        rows = quantized(g, x)
        products = [g.node("Mul", int8_product(g, rows, weight), rows.scale) for weight, _ in layers]
    else:
        products = [g.node("MatMul", x, g.constant(weight.T)) for weight, _ in layers]
    pairs = zip(products, layers, strict=True)
    return [y if bias is None else g.node("Add", y, g.constant(bias)) for y, (_, bias) in pairs]
