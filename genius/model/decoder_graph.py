"""The decoder as ONNX graphs, for search (`decoder_runtime`) and for export (`onnx_export`).

Shapes: q queries, w beams of each, m new tokens of each beam after s earlier ones (t = s + m), N prefix embeddings.
"""

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from genius.model.decoder import Block, Decoder, RMSNorm
from genius.runtime.int8 import int8_product, quantized, quantized_relu
from genius.runtime.onnx_graph import Graph, Shape

Floats = NDArray[np.float32]


class DecoderGraph:
    """Writes parts of a decoder into a `Graph`.

    With `int8`, the weights of the blocks, and the rows that they multiply, are rounded to eight bits.
    """

    def __init__(self, decoder: Decoder, int8: bool = False) -> None:
        self.decoder, self.config, self.int8 = decoder, decoder.config, int8
        self.row_bounds = np.append(decoder.starts.cpu().numpy(), self.config.vocabulary)  # (levels + 1,) table rows
        self.bias = array(decoder.causal_bias(decoder.levels))  # (heads, levels, levels)
        parts = [f"{part}{layer}" for layer in range(self.config.layers) for part in ("keys", "values")]
        self.prefix_names = [f"prefix_{part}" for part in parts]
        self.seen_names = [f"seen_{part}" for part in parts]

    @property
    def prefix_shapes(self) -> dict[str, Shape]:
        """Keys and values of the prefix, by name."""
        return {name: [self.config.prefix, "q", self.config.heads, self.config.d_kv] for name in self.prefix_names}

    def seen_shapes(self, tokens: str | int, beams: str) -> dict[str, Shape]:
        """Keys and values of the tokens so far, by name."""
        return {name: [tokens, beams, self.config.heads, self.config.d_kv] for name in self.seen_names}

    def write_prefix(self, g: Graph) -> None:
        """Prefix: z (q, dim) -> prefix_keys*, prefix_values* (N, q, heads, d_kv), shared by all beams."""
        c = self.config
        x = self._linear(g, "z", _only_layer(self.decoder))  # Eq. 9
        x = g.transpose(g.reshape(x, -1, c.prefix, c.d_model), 1, 0, 2)
        x = norm(g, g.reshape(x, -1, c.d_model), self.decoder.prefix_norm)
        shape = g.constant([c.prefix, -1, c.heads, c.d_kv])
        for layer, block in enumerate(self.decoder.blocks):
            keys, values = self.products(g, x, block.cross_kv.weight.chunk(2))
            g.node("Reshape", keys, shape, output=f"prefix_keys{layer}")
            g.node("Reshape", values, shape, output=f"prefix_values{layer}")

    def write_linear_head(self, g: Graph) -> None:
        """Linear head: z (q, dim) -> linear_logits (q, 1, vocabulary), linear_log_probs (q, codes of its levels).

        The second are log-probabilities of the levels that it scores alone. Outputs without content are empty.
        """
        if self.decoder.linear_head is None:
            g.slice(g.unsqueeze("z", 1), 0, 0, axis=2, output="linear_logits")
            g.slice("z", 0, 0, axis=1, output="linear_log_probs")
            return
        logits = product(g, "z", self.decoder.linear_head)
        g.node("Unsqueeze", logits, g.constant(np.array([1])), output="linear_logits")
        bounds = self.row_bounds[self.decoder.decoder_levels :].tolist()
        if len(bounds) == 1:
            g.slice(logits, 0, 0, axis=1, output="linear_log_probs")
            return
        levels = [g.slice(logits, start, stop, axis=1) for start, stop in itertools.pairwise(bounds)]
        log_probs = [g.node("LogSoftmax", level, axis=-1) for level in levels]
        g.node("Concat", *log_probs, axis=1, output="linear_log_probs")

    def write_blocks(self, g: Graph, past: bool) -> None:
        """Blocks: tokens (m, w, q) -> hidden (m, w, q, d_model).

        Also reads the prefix and `bias` (heads, m, t). Without `past`, writes seen_* (m, w * q, heads, d_kv). With it,
        reads seen_* (s, beams before * q, heads, d_kv) and `rows` (w * q,), which of these beams each new one extends,
        and writes new_seen_* (t, w * q, heads, d_kv).

        Rows are ordered by token, then beam, then query: attention finds its matrices contiguous, and ONNX Runtime
        fuses the transpositions into the products.
        """
        c = self.config
        shape = g.node("Shape", "tokens")
        by_token = g.node("Concat", g.slice(shape, 0, 1, axis=0), g.constant([-1, c.heads, c.d_kv]), axis=0)
        queries = g.slice(shape, 2, 3, axis=0)
        by_query = g.node("Concat", g.constant([-1]), queries, g.constant([c.heads, c.d_kv]), axis=0)
        x = g.reshape(g.node("Gather", g.constant(array(self.decoder.table)), "tokens"), -1, c.d_model)
        for layer, block in enumerate(self.decoder.blocks):
            # 1. Self-attention. x: (m * w * q, d_model)
            parts = self.products(g, norm(g, x, block.self_norm), block.self_qkv.weight.chunk(3))
            q, *now = (g.node("Reshape", part, by_token) for part in parts)  # each (m, w * q, heads, d_kv)
            names = (f"seen_keys{layer}", f"seen_values{layer}")
            if past:
                before = [g.node("Gather", name, "rows", axis=1) for name in names]
                pairs = zip(names, before, now, strict=True)
                seen = [g.node("Concat", old, new, axis=0, output=f"new_{name}") for name, old, new in pairs]
            else:
                seen = [g.node("Identity", new, output=name) for name, new in zip(names, now, strict=True)]
            x = g.node("Add", x, self._linear(g, self._attend(g, q, seen[0], seen[1], "bias"), block.self_out))
            # 2. Cross-attention to the prefix
            q = g.node("Reshape", self._linear(g, norm(g, x, block.cross_norm), block.cross_q), by_query)
            found = self._attend(g, q, f"prefix_keys{layer}", f"prefix_values{layer}")
            x = g.node("Add", x, self._linear(g, found, block.cross_out))
            # 3. Feed-forward
            x = g.node("Add", x, self._feed_forward(g, norm(g, x, block.ff_norm), block))
        whole = g.node("Concat", shape, g.constant([-1]), axis=0)
        g.node("Reshape", norm(g, x, self.decoder.final_norm), whole, output="hidden")

    def output_table(self, rows: slice) -> Tensor:
        """Output embeddings (number of rows, d_model), scaled as T5 scales tied embeddings."""
        table: Tensor = self.decoder.table[rows] * self.config.d_model**-0.5
        return table

    def _attend(self, g: Graph, q: str, keys: str, values: str, bias: str | None = None) -> str:
        """q: (m, r, heads, d_kv); keys, values: (t, r, heads, d_kv) -> (m * r, heads * d_kv)."""
        weights = g.node("MatMul", g.transpose(q, 1, 2, 0, 3), g.transpose(keys, 1, 2, 3, 0))
        weights = g.node("Softmax", g.node("Add", weights, bias) if bias else weights, axis=-1)
        found = g.node("MatMul", weights, g.transpose(values, 1, 2, 0, 3))  # (r, heads, m, d_kv)
        return g.reshape(g.transpose(found, 2, 0, 1, 3), -1, self.config.heads * self.config.d_kv)

    def _feed_forward(self, g: Graph, x: str, block: Block) -> str:
        if not self.int8:
            return product(g, g.node("Relu", product(g, x, block.ff_in.weight)), block.ff_out.weight)
        narrow = quantized(g, x)
        wide = quantized_relu(g, int8_product(g, narrow, array(block.ff_in.weight)))  # in units of narrow.scale
        scale = g.node("Mul", narrow.scale, wide.scale)
        return g.node("Mul", int8_product(g, wide, array(block.ff_out.weight)), scale)

    def _linear(self, g: Graph, x: str, module: nn.Linear) -> str:
        (x,) = self.products(g, x, [module.weight])
        return x if module.bias is None else g.node("Add", x, g.constant(array(module.bias)))

    def products(self, g: Graph, x: str, weights: Sequence[Tensor]) -> list[str]:
        """x: (rows, inputs) times each of several weights (outputs, inputs) -> (rows, outputs) each."""
        if not self.int8:
            return [product(g, x, weight) for weight in weights]
        rows = quantized(g, x)
        return [g.node("Mul", int8_product(g, rows, array(weight)), rows.scale) for weight in weights]


def _only_layer(decoder: Decoder) -> nn.Linear:
    (layer,) = decoder.prefix_network
    assert isinstance(layer, nn.Linear)
    return layer


def array(weight: Tensor) -> Floats:
    """A tensor as a float32 array."""
    values: Floats = weight.detach().cpu().numpy().astype(np.float32)
    return values


def product(g: Graph, x: str, weight: Tensor) -> str:
    """x: (rows, inputs), weight: (outputs, inputs) -> (rows, outputs)."""
    return g.node("MatMul", x, g.constant(array(weight).T))


def norm(g: Graph, x: str, module: RMSNorm) -> str:
    """T5's layer norm of each row."""
    weight = g.constant(array(module.weight))
    return g.node("SimplifiedLayerNormalization", x, weight, axis=-1, epsilon=1e-6, stash_type=1)
