"""The decoder as ONNX graphs, for search (`decoder_runtime`) and for export (`genius.networks.onnx_export`).

Shapes: q queries, w beams of each, m new tokens of each beam after s earlier ones (t = s + m), N prefix embeddings.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from genius.model.decoder_config import DecoderConfig, position_buckets
from genius.runtime.int8 import int8_product, quantized, quantized_relu
from genius.runtime.onnx_graph import Graph, Shape

LAST = np.iinfo(np.int64).max  # end of a slice to the last element

Floats = NDArray[np.float32]
Weights = Mapping[str, Floats]
"""Weights of a decoder, by their names in `genius.networks.decoder.Decoder`."""


class DecoderGraph:
    """Writes parts of a decoder into a `Graph`.

    With `int8`, the weights of the blocks, and the rows that they multiply, are rounded to eight bits.
    """

    def __init__(self, config: DecoderConfig, weights: Weights, int8: bool = False) -> None:
        self.config, self.weights, self.int8 = config, weights, int8
        self.row_bounds = config.row_bounds()  # (levels + 1,) table rows
        self.bias = self._causal_bias() if config.layers else None  # (heads, levels, levels)
        parts = [f"{part}{layer}" for layer in range(config.layers) for part in ("keys", "values")]
        head = [config.heads, config.d_kv]
        self.query_shapes: dict[str, Shape] = {f"prefix_{part}": [config.prefix, "q", *head] for part in parts}
        """What all beams of a query share, by name: keys and values of the prefix, W_z z, scores of the query alone."""
        if config.residual_input:
            self.query_shapes["query_input"] = [1, "q", config.d_model]
        if config.residual_gain:
            self.query_shapes["query_scores"] = [1, "q", config.vocabulary]
        self._seen = {f"seen_{part}": head for part in parts}
        if config.uses_sums:
            self._seen["seen_sums"] = [config.dim]
        self.seen_names = list(self._seen)

    def seen_shapes(self, tokens: str | int, beams: str) -> dict[str, Shape]:
        """Shapes of the cached tensors of earlier tokens, by name: keys, values, and sums of code vectors."""
        return {name: [tokens, beams, *shape] for name, shape in self._seen.items()}

    def write_query(self, g: Graph) -> None:
        """What all beams share: z (q, dim) -> `query_shapes`."""
        c = self.config
        if c.layers:
            self._write_prefix(g)
        first = g.constant(np.array([0]))
        if c.residual_input:
            g.node("Unsqueeze", product(g, "z", self.weights["query_input.weight"]), first, output="query_input")
        if c.residual_gain:  # g (s z.c - |c|^2 / 2)
            books = self.weights["codebooks"]
            scores = product(g, "z", books * np.float32(c.residual_gain * c.query_scale))
            halves = g.constant(np.square(books).sum(axis=1) * np.float32(c.residual_gain / 2))
            g.node("Unsqueeze", g.node("Sub", scores, halves), first, output="query_scores")

    def _write_prefix(self, g: Graph) -> None:
        """Prefix: z (q, dim) -> prefix_keys*, prefix_values* (N, q, heads, d_kv), shared by all beams."""
        c = self.config
        x = self._product(g, "z", "prefix_network.0")  # Eq. 9
        x = g.node("Add", x, g.constant(self.weights["prefix_network.0.bias"]))
        x = g.transpose(g.reshape(x, -1, c.prefix, c.d_model), 1, 0, 2)
        x = self._norm(g, g.reshape(x, -1, c.d_model), "prefix_norm")
        shape = g.constant([c.prefix, -1, c.heads, c.d_kv])
        for layer in range(c.layers):
            keys, values = self._products(g, x, np.split(self.weights[f"blocks.{layer}.cross_kv.weight"], 2))
            g.node("Reshape", keys, shape, output=f"prefix_keys{layer}")
            g.node("Reshape", values, shape, output=f"prefix_values{layer}")

    def write_tokens(self, g: Graph, past: bool) -> None:
        """All tokens: tokens (m, w, q) -> hidden (m, w, q, d_model), sums (m, w, q, dim), where the decoder has them.

        Also reads `query_shapes` and, with layers, `bias` (heads, m, t). Without `past`, writes seen_* (m, w * q, ...).
        With it, reads seen_* (s, beams before * q, ...) and `rows` (w * q,), which of these beams each new one extends,
        and writes new_seen_* (t, w * q, ...).
        """
        if self.config.uses_sums:
            self._write_sums(g, past)
        if self.config.layers:
            self._write_blocks(g, past)

    def _write_sums(self, g: Graph, past: bool) -> None:
        """Sums of the code vectors up to each token."""
        dim = self.config.dim
        sums = g.node("Gather", g.constant(self.weights["codebooks"]), "tokens")
        sums = g.node("CumSum", sums, g.constant(np.array(0)))
        if past:
            before = g.node("Gather", "seen_sums", "rows", axis=1)
            beams = g.slice(g.node("Shape", "tokens"), 1, 3, axis=0)
            shape = g.node("Concat", g.constant([1]), beams, g.constant([dim]), axis=0)
            sums = g.node("Add", sums, g.node("Reshape", g.slice(before, -1, LAST, axis=0), shape))
        g.node("Identity", sums, output="sums")
        by_token = g.node("Concat", g.slice(g.node("Shape", "tokens"), 0, 1, axis=0), g.constant([-1, dim]), axis=0)
        now = g.node("Reshape", sums, by_token, output=None if past else "seen_sums")
        if past:
            g.node("Concat", before, now, axis=0, output="new_seen_sums")

    def _write_blocks(self, g: Graph, past: bool) -> None:
        """Blocks: tokens, sums -> hidden, and their part of seen_*.

        Rows are ordered by token, then beam, then query: attention finds its matrices contiguous, and ONNX Runtime
        fuses the transpositions into the products.
        """
        c = self.config
        shape = g.node("Shape", "tokens")
        by_token = g.node("Concat", g.slice(shape, 0, 1, axis=0), g.constant([-1, c.heads, c.d_kv]), axis=0)
        queries = g.slice(shape, 2, 3, axis=0)
        by_query = g.node("Concat", g.constant([-1]), queries, g.constant([c.heads, c.d_kv]), axis=0)
        x = g.reshape(self._embedded(g), -1, c.d_model)
        for layer in range(c.layers):
            block = f"blocks.{layer}"
            # 1. Self-attention. x: (m * w * q, d_model)
            x_norm = self._norm(g, x, f"{block}.self_norm")
            parts = self._products(g, x_norm, np.split(self.weights[f"{block}.self_qkv.weight"], 3))
            q, *now = (g.node("Reshape", part, by_token) for part in parts)  # each (m, w * q, heads, d_kv)
            names = (f"seen_keys{layer}", f"seen_values{layer}")
            if past:
                before = [g.node("Gather", name, "rows", axis=1) for name in names]
                pairs = zip(names, before, now, strict=True)
                seen = [g.node("Concat", old, new, axis=0, output=f"new_{name}") for name, old, new in pairs]
            else:
                seen = [g.node("Identity", new, output=name) for name, new in zip(names, now, strict=True)]
            x = g.node("Add", x, self._product(g, self._attend(g, q, seen[0], seen[1], "bias"), f"{block}.self_out"))
            # 2. Cross-attention to the prefix
            q = self._product(g, self._norm(g, x, f"{block}.cross_norm"), f"{block}.cross_q")
            q = g.node("Reshape", q, by_query)
            found = self._attend(g, q, f"prefix_keys{layer}", f"prefix_values{layer}")
            x = g.node("Add", x, self._product(g, found, f"{block}.cross_out"))
            # 3. Feed-forward
            x = g.node("Add", x, self._feed_forward(g, self._norm(g, x, f"{block}.ff_norm"), block))
        whole = g.node("Concat", shape, g.constant([-1]), axis=0)
        g.node("Reshape", self._norm(g, x, "final_norm"), whole, output="hidden")

    def _embedded(self, g: Graph) -> str:
        """Input of the blocks: tokens, sums -> (m, w, q, d_model)."""
        if not self.config.residual_input:
            return g.node("Gather", g.constant(self.weights["table"]), "tokens")
        tokens = g.node("Gather", g.constant(self.weights["token_scale"] * self.weights["table"]), "tokens")
        rest = g.node("Sub", "query_input", product(g, "sums", self.weights["sum_input.weight"]))
        return g.node("Add", rest, tokens)

    def logits(self, g: Graph, rows: slice) -> str:
        """Hidden (w, q, d_model) -> logits (w, q, number of table rows) of the blocks."""
        (x,) = self._products(g, g.reshape("hidden", -1, self.config.d_model), [self.output_table(rows)])
        shape = g.node("Concat", g.slice(g.node("Shape", "hidden"), 0, 2, axis=0), g.constant([-1]), axis=0)
        return g.node("Reshape", x, shape)

    def residual_scores(self, g: Graph, rows: slice) -> str:
        """Write g ((s z - q).c - |c|^2 / 2): sums (w, q, dim), query_scores (1, q, n) -> (w, q, n) of n table rows."""
        books = self.weights["codebooks"][rows] * np.float32(self.config.residual_gain)
        return g.node("Sub", "query_scores", product(g, "sums", books))

    def output_table(self, rows: slice) -> Floats:
        """Output embeddings (number of rows, d_model), scaled as T5 scales tied embeddings."""
        return self.weights["table"][rows] * np.float32(self.config.d_model**-0.5)

    def _causal_bias(self) -> Floats:
        """Relative position bias, (heads, levels, levels), -inf for later positions."""
        bias: Floats = self.weights["position_bias"][position_buckets(self.config.levels)].transpose(2, 0, 1).copy()
        bias[:, np.triu(np.ones(bias.shape[1:], bool), 1)] = -np.inf
        return bias

    def _attend(self, g: Graph, q: str, keys: str, values: str, bias: str | None = None) -> str:
        """q: (m, r, heads, d_kv); keys, values: (t, r, heads, d_kv) -> (m * r, heads * d_kv)."""
        weights = g.node("MatMul", g.transpose(q, 1, 2, 0, 3), g.transpose(keys, 1, 2, 3, 0))
        weights = g.node("Softmax", g.node("Add", weights, bias) if bias else weights, axis=-1)
        found = g.node("MatMul", weights, g.transpose(values, 1, 2, 0, 3))  # (r, heads, m, d_kv)
        return g.reshape(g.transpose(found, 2, 0, 1, 3), -1, self.config.heads * self.config.d_kv)

    def _feed_forward(self, g: Graph, x: str, block: str) -> str:
        wide, narrow = (self.weights[f"{block}.{name}.weight"] for name in ("ff_in", "ff_out"))
        if not self.int8:
            return product(g, g.node("Relu", product(g, x, wide)), narrow)
        rows = quantized(g, x)
        hidden = quantized_relu(g, int8_product(g, rows, wide))  # in units of rows.scale
        scale = g.node("Mul", rows.scale, hidden.scale)
        return g.node("Mul", int8_product(g, hidden, narrow), scale)

    def _norm(self, g: Graph, x: str, name: str) -> str:
        """T5's layer norm of each row."""
        weight = g.constant(self.weights[f"{name}.weight"])
        return g.node("SimplifiedLayerNormalization", x, weight, axis=-1, epsilon=1e-6, stash_type=1)

    def _product(self, g: Graph, x: str, name: str) -> str:
        """x: (rows, inputs) times the weight of that name."""
        return self._products(g, x, [self.weights[f"{name}.weight"]])[0]

    def _products(self, g: Graph, x: str, weights: Sequence[Floats]) -> list[str]:
        """x: (rows, inputs) times each of several weights (outputs, inputs) -> (rows, outputs) each."""
        if not self.int8:
            return [product(g, x, weight) for weight in weights]
        rows = quantized(g, x)
        return [g.node("Mul", int8_product(g, rows, weight), rows.scale) for weight in weights]


def product(g: Graph, x: str, weight: Floats) -> str:
    """x: (..., inputs), weight: (outputs, inputs) -> (..., outputs)."""
    return g.node("MatMul", x, g.constant(weight.T))
