"""Fusion for indexing and search, on ONNX Runtime: the numbers of `genius.networks.fusion.Fusion`."""

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from genius.errors import GeniusError
from genius.runtime.onnx_graph import Graph, Model, Shape
from genius.runtime.threads import over_blocks

Floats = NDArray[np.float32]
ROWS = 1024  # vectors that one thread fuses at once


class FusionRuntime:
    """h(x, y) of an image vector x and a text vector y (Sec. 4.2.1).

    Args:
        weights: By the names of `genius.networks.fusion.Fusion`, float32.
    """

    def __init__(self, weights: Mapping[str, Floats]) -> None:
        self.weights = weights
        self.hidden, self.dim = weights["text_projection_layer.weight"].shape

    def __call__(self, image: Floats, text: Floats) -> Floats:
        """Fuse vectors.

        Args:
            image: (n, dim), a row of zeros where there is no image.
            text: (n, dim), a row of zeros where there is no text.

        Returns:
            (n, dim) float32, L2-normalised.

        Raises:
            GeniusError: The shapes differ, or are not (n, dim).
        """
        check_shapes(image.shape, text.shape, self.dim)
        fused = np.empty((len(image), self.dim), np.float32)

        def fuse(block: slice) -> None:
            inputs = {"image": np.asarray(image[block], np.float32), "text": np.asarray(text[block], np.float32)}
            fused[block] = self._session.run(None, inputs)[0]

        over_blocks(fuse, len(image), ROWS)
        return fused

    @cached_property
    def _session(self) -> onnxruntime.InferenceSession:
        return self.model().session(threads=1)

    def model(self) -> Model:
        """The ONNX model: image, text (n, dim) -> fused (n, dim)."""
        g = Graph()
        text = g.node("Relu", self._linear(g, "text", "text_projection_layer"))
        image = g.node("Relu", self._linear(g, "image", "image_projection_layer"))
        joint = g.node("Concat", text, image, axis=1)
        scalar = g.node("Relu", self._linear(g, joint, "dynamic_scalar.0"))
        weight = g.node("Sigmoid", self._linear(g, scalar, "dynamic_scalar.3"))  # lambda, (n, 1)
        mixed = self._linear(g, g.node("Relu", self._linear(g, joint, "combiner_layer")), "output_layer")
        rest = g.node("Sub", g.constant(np.float32(1)), weight)
        total = g.node("Add", g.node("Mul", weight, "text"), g.node("Mul", rest, "image"))
        total = g.node("Add", mixed, total)
        length = g.node("Max", g.node("ReduceL2", total, axes=[1], keepdims=1), g.constant(np.float32(1e-12)))
        g.node("Div", total, length, output="fused")
        shape: Shape = ["n", self.dim]
        return g.model({"image": (np.float32, shape), "text": (np.float32, shape)}, {"fused": shape})

    def _linear(self, g: Graph, x: str, name: str) -> str:
        weight, bias = (g.constant(self.weights[f"{name}.{part}"]) for part in ("weight", "bias"))
        return g.node("Gemm", x, weight, bias, transB=1)


def weight_shapes(dim: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights of a fusion, by name."""
    joint = 2 * hidden
    layers = {
        "text_projection_layer": (hidden, dim),
        "image_projection_layer": (hidden, dim),
        "combiner_layer": (joint, joint),
        "output_layer": (dim, joint),
        "dynamic_scalar.0": (joint, joint),
        "dynamic_scalar.3": (1, joint),
    }
    shapes: dict[str, tuple[int, ...]] = {f"{name}.weight": shape for name, shape in layers.items()}
    return shapes | {f"{name}.bias": shape[:1] for name, shape in layers.items()}


def check_shapes(image: tuple[int, ...], text: tuple[int, ...], dim: int) -> None:
    """Raise GeniusError unless both shapes are the same (n, dim)."""
    if len(image) != 2 or image != text or image[1] != dim:
        raise GeniusError(
            f"Fusion needs image and text vectors of the same shape (n, {dim}), but got {tuple(image)} and "
            f"{tuple(text)}. Use vectors of the encoder this model was trained with; a missing modality is a row of "
            "zeros."
        )
