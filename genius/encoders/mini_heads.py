"""The trained heads of `mini` in ONNX graphs. `genius.networks.heads` defines them; names of weights are its own."""

from dataclasses import dataclass

import numpy as np

from genius.encoders.efficientnet import CHANNELS, CLASSES, GRID, POOLED, Features
from genius.encoders.minilm import WIDTH
from genius.runtime.int8 import linear_layers
from genius.runtime.onnx_graph import Graph

Weights = dict[str, np.ndarray]


@dataclass(frozen=True)
class HeadsConfig:
    """Shape of the heads, and of what they read."""

    dim: int = 256  # of the vectors
    hidden: int = 1024  # width of the hidden layers
    image_pool_queries: int = 8  # learned queries of the image's attention pool
    text_pool_queries: int = 8
    dropout: float = 0.3
    int8_text: bool = True  # the text backbone computes in eight bits: nearly twice as fast


def head_shapes(config: HeadsConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of all weights by name."""
    dim, hidden = config.dim, config.hidden
    shapes: dict[str, tuple[int, ...]] = {"classes.weight": (dim, CLASSES)}
    for at, inputs in (("image", POOLED), ("text", WIDTH)):
        shapes |= {f"{at}.norm.{kind}": (inputs,) for kind in ("weight", "bias")}
        for name, outputs, width in (("linear", dim, inputs), ("up", hidden, inputs), ("down", dim, hidden)):
            shapes |= {f"{at}.{name}.weight": (outputs, width), f"{at}.{name}.bias": (outputs,)}
    image, text = (CHANNELS, config.image_pool_queries, GRID), (WIDTH, config.text_pool_queries, 0)
    for at, (width, queries, positions) in (("image_pool", image), ("text_pool", text)):
        shapes |= {f"{at}.norm.{kind}": (width,) for kind in ("weight", "bias")}
        shapes |= {f"{at}.queries": (queries, width), f"{at}.place": (positions, queries)}
        shapes |= {f"{at}.out.weight": (dim, queries * width), f"{at}.out.bias": (dim,)}
    return shapes


def write_text_head(g: Graph, states: str, weights: Weights) -> str:
    """Token states (n, tokens, 384) -> vectors (n, dim)."""
    mean = g.node("ReduceMean", states, axes=[1], keepdims=0)
    pooled = _attention_pool(g, states, weights, "text_pool")
    return g.node("Add", _projection(g, mean, weights, "text"), pooled)


def write_image_head(g: Graph, features: Features, weights: Weights) -> str:
    """Features of images -> vectors (n, dim)."""
    likely = g.node("Sqrt", g.node("Softmax", features.logits, axis=-1))
    classes = g.node("MatMul", likely, g.constant(weights["classes.weight"].T))
    x = g.node("Add", _projection(g, features.pooled, weights, "image"), classes)
    grid = g.transpose(features.map, 0, 2, 1)
    return g.node("Add", x, _attention_pool(g, grid, weights, "image_pool"))


def _projection(g: Graph, x: str, weights: Weights, at: str) -> str:
    """x: (n, inputs) -> (n, dim)."""
    x = g.layer_norm(x, weights[f"{at}.norm.weight"], weights[f"{at}.norm.bias"])
    layers = [(weights[f"{at}.{name}.weight"], weights[f"{at}.{name}.bias"]) for name in ("linear", "up", "down")]
    linear, up = linear_layers(g, x, layers[:2])
    return g.node("Add", linear, linear_layers(g, g.gelu(up), layers[2:])[0])


def _attention_pool(g: Graph, states: str, weights: Weights, at: str) -> str:
    """states: (n, positions, width) -> (n, dim)."""
    states = g.layer_norm(states, weights[f"{at}.norm.weight"], weights[f"{at}.norm.bias"])
    scores = g.node("MatMul", states, g.constant(weights[f"{at}.queries"].T))  # (n, positions, queries)
    if len(weights[f"{at}.place"]):
        scores = g.node("Add", scores, g.constant(weights[f"{at}.place"]))
    shares = g.node("Softmax", g.transpose(scores, 0, 2, 1), axis=-1)
    pooled = g.node("Flatten", g.node("MatMul", shares, states))  # (n, queries * width)
    return linear_layers(g, pooled, [(weights[f"{at}.out.weight"], weights[f"{at}.out.bias"])])[0]
