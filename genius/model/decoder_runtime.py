"""A decoder made ready for search: from query vectors to log-probabilities, level by level, on ONNX Runtime.

The same numbers as `Decoder.logits`, without what a search does not need: the prefix is turned into keys and values
once a query however many beams it has, the codes before are remembered, and only the level's own codes are scored.
Knows nothing of items, tries or beams: q queries with w codes each go in, log-probabilities come out.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from genius.errors import GeniusError
from genius.model.decoder import Block, Decoder, RMSNorm
from genius.runtime.onnx_graph import Graph, Inputs, Shape, session

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

STEPS = 90  # of weights of eight bits, and of bytes to either side of zero: two products of 180 and 90 fit into 16 bits


class DecoderRuntime:
    """A decoder's weights, copied, and the networks that search with them.

    threads: how many cores it may use; as many as torch, if not given.
    int8: the layers' weights are rounded to eight bits and their inputs with them, row by row: nearly twice as fast,
      nearly the same answers.
    """

    def __init__(self, decoder: Decoder, threads: int | None = None, int8: bool = False) -> None:
        if decoder.training:
            raise GeniusError("The decoder is in training mode, and dropout would falsify a search; call eval() first.")
        self.decoder, self.config, self.written = decoder, decoder.config, decoder.written
        self.threads, self.int8 = threads or torch.get_num_threads(), int8
        self.row_bounds = np.append(decoder.starts.cpu().numpy(), self.config.vocabulary)  # of the levels, in the table
        self.bias = array(decoder.causal_bias(decoder.levels))
        parts = [f"{part}{layer}" for layer in range(self.config.layers) for part in ("keys", "values")]
        self.prefix_names, self.seen_names = [f"prefix_{name}" for name in parts], [f"seen_{name}" for name in parts]
        self._heads: dict[int, onnxruntime.InferenceSession] = {}

    @property
    def levels(self) -> int:
        return len(self.config.sizes)

    @property
    def path(self) -> bool:
        """Whether levels are left to the linear path, so that the products of query and codes are at hand."""
        return self.written < self.levels

    def free(self, level: int) -> bool:
        """Whether a level is left to the linear path: its codes are scored already, the same for all beams."""
        return level >= self.written

    # Search. q queries, w beams of each; the caller pads to the same number of beams.

    def open(self, z: Floats, codes: Ints) -> tuple["State", list[Floats]]:
        """Begin beams with the first m codes of their IDs, in one pass. z: (q, dim), codes: (q, w, m), m may be 0.

        Returns m + 1 log-probabilities: of level 0, ..., m, each (q, w, sizes[level]) and given the codes before it.
        """
        queries, beams, given = codes.shape
        tokens = np.zeros((given + 1, beams, queries), np.int64)  # the first one is the start of every ID
        tokens[1:] = (codes + self.row_bounds[:given]).T
        tokens = tokens[: self.written]
        inputs = {"z": z, "tokens": tokens, "bias": self._bias(0, len(tokens))}
        remembered = self.prefix_names + self.seen_names if len(tokens) < self.written else []
        hidden, direct, left, *rest = self._opening.run(["hidden", "direct", "left", *remembered], inputs)
        prefix, seen = rest[: len(self.prefix_names)], rest[len(self.prefix_names) :]
        state = State(prefix, direct, left, seen, beams, given + 1)
        written = [self._log_probs(state, of_level, level) for level, of_level in enumerate(hidden)]
        return state, written + [self._spread(state, level, beams) for level in range(len(written), given + 1)]

    def step(self, state: "State", codes: Ints, parents: Ints) -> Floats:
        """One level further. codes: (q, w), chosen last; parents: (q, w), which beam of the last call each one extends.

        Returns (q, w, sizes[level]): log-probabilities of the next level's codes. w may differ from call to call.
        """
        if self.free(state.length):
            state.length += 1
            return self._spread(state, state.length - 1, codes.shape[1])
        hidden = self._advance(state, (codes + self.row_bounds[state.length - 1])[..., None], parents)
        return self._log_probs(state, hidden[0], state.length - 1)

    def left(self, state: "State", level: int) -> Floats:
        """The log-probabilities of a free level: (q, sizes[level])."""
        start = self.row_bounds[level] - self.row_bounds[self.written]
        return np.ascontiguousarray(state.left[:, start : start + self.config.sizes[level]])

    def tail(self, state: "State", codes: Ints, parents: Ints) -> NDArray[np.float64]:
        """Score the rest of IDs that are already decided, in one pass.

        codes: (q, w, m), the code chosen last and all that follow it; parents: as in `step`.
        Returns (q, w): the summed log-probability of codes[..., 1:].
        """
        level = state.length - 1
        written = max(0, min(self.written - state.length, codes.shape[-1] - 1))  # of codes[..., 1:]
        total = np.zeros(codes.shape[:2])
        if written:
            tokens = codes[..., :written] + self.row_bounds[level : level + written]
            hidden = self._advance(state, tokens, parents)
        for i in range(1, codes.shape[-1]):
            if i <= written:
                log_probs = self._log_probs(state, hidden[i - 1], level + i)
            else:
                log_probs = self._spread(state, level + i, codes.shape[1])
            total += np.take_along_axis(log_probs, codes[..., i, None], axis=-1)[..., 0]
        return total

    def _advance(self, state: "State", tokens: Ints, parents: Ints) -> Floats:
        """Feed every beam its next tokens and remember them. tokens: (q, w, m) -> (m, w, q, d_model)."""
        queries, beams, new = tokens.shape
        rows = (parents.T * queries + np.arange(queries)).ravel()
        inputs = {"tokens": np.ascontiguousarray(tokens.T), "rows": rows, "bias": self._bias(len(state.seen[0]), new)}
        inputs |= zip(self.prefix_names, state.prefix, strict=True)
        inputs |= zip(self.seen_names, state.seen, strict=True)
        hidden, *state.seen = self._continuing.run(["hidden", *(f"new_{name}" for name in self.seen_names)], inputs)
        state.beams, state.length = beams, state.length + new
        return hidden

    def _bias(self, before: int, new: int) -> Floats:
        return self.bias[:, before : before + new, : before + new]

    def _spread(self, state: "State", level: int, beams: int) -> Floats:
        log_probs = self.left(state, level)[:, None]
        return np.broadcast_to(log_probs, (len(log_probs), beams, log_probs.shape[-1]))

    def _log_probs(self, state: "State", hidden: Floats, level: int) -> Floats:
        """hidden: (w, q, d_model) -> (q, w, sizes[level])"""
        inputs = {"hidden": np.ascontiguousarray(hidden.swapaxes(0, 1))}
        if self.config.skip:
            inputs["direct"] = state.direct[..., self._scored(level)]
        (log_probs,) = self._head(level).run(None, inputs)
        return log_probs

    def _scored(self, level: int) -> slice:
        """The rows of the decoder's table whose logits are needed for a level's log-probabilities."""
        return slice(0, self.config.vocabulary) if self.config.whole_vocabulary else self.decoder.rows(level)

    # The networks, each made when it is first needed

    @cached_property
    def _opening(self) -> onnxruntime.InferenceSession:
        """Query vectors and first tokens -> hidden states, and everything that State keeps."""
        g, c = Graph(), self.config
        self._write_prefix(g)
        self._write_path(g)
        self._write_layers(g, past=False)
        inputs: Inputs = {
            "z": (np.float32, ["q", c.dim]),
            "tokens": (np.int64, ["m", "w", "q"]),
            "bias": (np.float32, [c.heads, "m", "m"]),
        }
        shapes: dict[str, Shape] = {name: [c.prefix, "q", c.heads, c.d_kv] for name in self.prefix_names}
        shapes |= {name: ["m", "r", c.heads, c.d_kv] for name in self.seen_names}
        shapes |= {"hidden": ["m", "w", "q", c.d_model], "direct": ["q", 1, None], "left": ["q", None]}
        return session(g.model(inputs, shapes), self.threads)

    @cached_property
    def _continuing(self) -> onnxruntime.InferenceSession:
        """Tokens and what was seen before -> hidden states and all that is seen now."""
        g, c = Graph(), self.config
        self._write_layers(g, past=True)
        inputs: Inputs = {
            "tokens": (np.int64, ["m", "w", "q"]),
            "rows": (np.int64, ["r"]),
            "bias": (np.float32, [c.heads, "m", "t"]),
        }
        inputs |= {name: (np.float32, [c.prefix, "q", c.heads, c.d_kv]) for name in self.prefix_names}
        inputs |= {name: (np.float32, ["s", "b", c.heads, c.d_kv]) for name in self.seen_names}
        shapes: dict[str, Shape] = {"hidden": ["m", "w", "q", c.d_model]}
        shapes |= {f"new_{name}": ["t", "r", c.heads, c.d_kv] for name in self.seen_names}
        return session(g.model(inputs, shapes), self.threads)

    def _head(self, level: int) -> onnxruntime.InferenceSession:
        """hidden (q, w, d_model) -> log-probabilities of the level's codes (q, w, sizes[level])."""
        if level not in self._heads:
            g, c, decoder = Graph(), self.config, self.decoder
            scored, rows = self._scored(level), decoder.rows(level)
            by_query = g.node("Concat", g.slice(g.node("Shape", "hidden"), 0, 2, axis=0), g.constant([-1]), axis=0)
            x = self._product(g, g.reshape("hidden", -1, c.d_model), decoder.scaled(decoder.output_table[scored]))
            x = g.node("Reshape", x, by_query)
            inputs: Inputs = {"hidden": (np.float32, ["q", "w", c.d_model])}
            if c.skip:
                x = g.node("Add", x, "direct")
                inputs["direct"] = (np.float32, ["q", 1, None])
            x = g.node("LogSoftmax", x, axis=-1, output=None if c.whole_vocabulary else "log_probs")
            if c.whole_vocabulary:
                g.slice(x, rows.start, rows.stop, axis=2, output="log_probs")
            self._heads[level] = session(g.model(inputs, {"log_probs": ["q", "w", c.sizes[level]]}), self.threads)
        return self._heads[level]

    def _write_prefix(self, g: Graph) -> None:
        """z -> keys and values of the prefix, layer by layer."""
        c, x = self.config, "z"
        for module in self.decoder.prefix_network:
            x = self._linear(g, x, module) if isinstance(module, nn.Linear) else g.node("Relu", x)
        x = g.transpose(g.reshape(x, -1, c.prefix, c.d_model), 1, 0, 2)
        x = norm(g, g.reshape(x, -1, c.d_model), self.decoder.prefix_norm)
        shape = g.constant([c.prefix, -1, c.heads, c.d_kv])
        for layer, block in enumerate(self.decoder.blocks):
            keys, values = self._products(g, x, block.cross_kv.weight.chunk(2))
            g.node("Reshape", keys, shape, output=f"prefix_keys{layer}")
            g.node("Reshape", values, shape, output=f"prefix_values{layer}")

    def _write_path(self, g: Graph) -> None:
        """z -> direct (q, 1, vocabulary), and left (q, codes of the free levels); both empty without a linear path."""
        if self.decoder.skip is None:
            g.slice(g.unsqueeze("z", 1), 0, 0, axis=2, output="direct")
            g.slice("z", 0, 0, axis=1, output="left")
            return
        direct = product(g, "z", self.decoder.skip)
        g.node("Unsqueeze", direct, g.constant(np.array([1])), output="direct")
        sizes, end = self.config.sizes[self.written :], self.config.vocabulary
        free = g.slice(direct, end - sum(sizes), end, axis=1)
        if len(set(sizes)) == 1:  # all at once
            free = g.node("LogSoftmax", g.reshape(free, 0, len(sizes), sizes[0]), axis=-1)
            g.node("Reshape", free, g.constant(np.array([0, sum(sizes)])), output="left")
        elif sizes:
            bounds = np.cumsum([0, *sizes]).tolist()
            parts = [g.slice(free, a, b, axis=1) for a, b in itertools.pairwise(bounds)]
            g.node("Concat", *(g.node("LogSoftmax", part, axis=-1) for part in parts), axis=1, output="left")
        else:
            g.node("Identity", free, output="left")

    def _write_layers(self, g: Graph, past: bool) -> None:
        """The decoder's blocks.

        x: (m * w * q, d_model), queries within beams within tokens: every product of attention then finds its matrices
        as they lie (ONNX Runtime joins transpositions with the products behind them).
        """
        c = self.config
        shape = g.node("Shape", "tokens")
        by_token = g.node("Concat", g.slice(shape, 0, 1, axis=0), g.constant([-1, c.heads, c.d_kv]), axis=0)
        by_query = g.node(
            "Concat", g.constant([-1]), g.slice(shape, 2, 3, axis=0), g.constant([c.heads, c.d_kv]), axis=0
        )
        x = g.reshape(g.node("Gather", g.constant(array(self.decoder.table)), "tokens"), -1, c.d_model)
        for layer, block in enumerate(self.decoder.blocks):
            parts = self._products(g, norm(g, x, block.self_norm), block.self_qkv.weight.chunk(3))
            q, *now = (g.node("Reshape", part, by_token) for part in parts)
            names = (f"seen_keys{layer}", f"seen_values{layer}")
            if past:
                before = [g.node("Gather", name, "rows", axis=1) for name in names]
                pairs = zip(names, before, now, strict=True)
                seen = [g.node("Concat", b, n, axis=0, output=f"new_{name}") for name, b, n in pairs]
            else:
                seen = [g.node("Identity", n, output=name) for name, n in zip(names, now, strict=True)]
            found = self._attend(g, q, seen[0], seen[1], "bias")
            x = g.node("Add", x, self._linear(g, found, block.self_out))
            q = g.node("Reshape", self._linear(g, norm(g, x, block.cross_norm), block.cross_q), by_query)
            found = self._attend(g, q, f"prefix_keys{layer}", f"prefix_values{layer}")
            x = g.node("Add", x, self._linear(g, found, block.cross_out))
            x = g.node("Add", x, self._feed_forward(g, norm(g, x, block.ff_norm), block))
        whole = g.node("Concat", shape, g.constant([-1]), axis=0)
        g.node("Reshape", norm(g, x, self.decoder.final_norm), whole, output="hidden")

    def _attend(self, g: Graph, q: str, keys: str, values: str, bias: str | None = None) -> str:
        """q: (m, r, heads, d_kv); keys, values: (t, r, heads, d_kv) -> (m * r, heads * d_kv)"""
        weights = g.node("MatMul", g.transpose(q, 1, 2, 0, 3), g.transpose(keys, 1, 2, 3, 0))
        weights = g.node("Softmax", g.node("Add", weights, bias) if bias else weights, axis=-1)
        found = g.node("MatMul", weights, g.transpose(values, 1, 2, 0, 3))  # (r, heads, m, d_kv)
        return g.reshape(g.transpose(found, 2, 0, 1, 3), -1, self.config.heads * self.config.d_kv)

    def _feed_forward(self, g: Graph, x: str, block: Block) -> str:
        if not self.int8:
            return product(g, g.node("Relu", product(g, x, block.ff_in.weight)), block.ff_out.weight)
        narrow = rounded(g, x)
        wide = rounded_positive(g, byte_product(g, narrow, block.ff_in.weight))  # in steps of `narrow`
        steps = g.node("Mul", narrow.steps, wide.steps)
        return g.node("Mul", byte_product(g, wide, block.ff_out.weight), steps)

    def _linear(self, g: Graph, x: str, module: nn.Linear) -> str:
        x = self._product(g, x, module.weight)
        return x if module.bias is None else g.node("Add", x, g.constant(array(module.bias)))

    def _product(self, g: Graph, x: str, weight: Tensor) -> str:
        """weight: (outputs, inputs), as torch keeps it."""
        return self._products(g, x, [weight])[0]

    def _products(self, g: Graph, x: str, weights: Sequence[Tensor]) -> list[str]:
        """x: (rows, inputs), with several weights."""
        if not self.int8:
            return [product(g, x, weight) for weight in weights]
        rows = rounded(g, x)
        return [g.node("Mul", byte_product(g, rows, weight), rows.steps) for weight in weights]


@dataclass
class State:
    """Where a search by `DecoderRuntime.open`, `step` and `tail` stands.

    prefix: the queries' keys and values, layer by layer, each (N, q, heads, d_kv). Like `seen`, empty where the layers
      have no more to say.
    direct: (q, 1, vocabulary) what the linear path adds to the logits; no numbers at all if there is no path.
    left: (q, codes of the free levels) their log-probabilities.
    seen: keys and values of the tokens so far, layer by layer, each (tokens, beams * q, heads, d_kv).
    length: the level that was scored last, plus one.
    """

    prefix: list[Floats]
    direct: Floats
    left: Floats
    seen: list[Floats]
    beams: int
    length: int

    def select(self, queries: Ints) -> "State":
        """The state of some of the queries only. queries: (s,) their numbers."""
        rows = (np.arange(self.beams)[:, None] * len(self.direct) + queries).ravel()
        return State(
            [values[:, queries] for values in self.prefix],
            self.direct[queries],
            self.left[queries],
            [values[:, rows] for values in self.seen],
            self.beams,
            self.length,
        )


def array(weight: Tensor) -> Floats:
    values: Floats = weight.detach().cpu().numpy().astype(np.float32)
    return values


def product(g: Graph, x: str, weight: Tensor) -> str:
    """weight: (outputs, inputs), as torch keeps it."""
    return g.node("MatMul", x, g.constant(array(weight).T))


class Rounded(NamedTuple):
    """Numbers as bytes: values (rows, n), of which `zero` stands for 0 and which are `steps` (rows, 1) apart.

    Each row has its own step, so that it does not depend on the rows beside it.
    """

    values: str
    zero: str
    steps: str


def rounded(g: Graph, x: str) -> Rounded:
    """x: (rows, n)"""
    zero, steps = np.uint8(STEPS), _steps(g, g.node("ReduceMax", g.node("Abs", x), axes=[1], keepdims=0), STEPS)
    zeros = g.node("Expand", g.constant([zero]), g.node("Shape", steps))
    return Rounded(g.node("QuantizeLinear", x, steps, zeros, axis=0), g.constant(zero), g.unsqueeze(steps, 1))


def rounded_positive(g: Graph, x: str) -> Rounded:
    """As `rounded`, of Relu(x): bytes stop at 0."""
    zero, largest = np.uint8(0), g.node("ReduceMax", x, axes=[1], keepdims=0)
    steps = _steps(g, g.node("Relu", largest), 2 * STEPS)
    return Rounded(g.node("QuantizeLinear", x, steps, axis=0), g.constant(zero), g.unsqueeze(steps, 1))


def _steps(g: Graph, largest: str, most: int) -> str:
    """(rows,) A row of zeros has steps of 0: whatever its bytes are then, its products are 0."""
    return g.node("Mul", largest, g.constant(np.float32(1 / most)))


def byte_product(g: Graph, x: Rounded, weight: Tensor) -> str:
    """As `product`, with one scale for each output; in steps of x."""
    values = array(weight).T
    scale = np.maximum(np.abs(values).max(axis=0), 1e-12) / STEPS
    bytes_, scales = g.constant(np.round(values / scale).astype(np.int8)), g.constant(scale.astype(np.float32))
    one = g.constant(np.float32(1))
    return g.node("MatMulIntegerToFloat", x.values, bytes_, one, scales, x.zero, domain="com.microsoft")


def norm(g: Graph, x: str, module: RMSNorm) -> str:
    return g.node(
        "SimplifiedLayerNormalization", x, g.constant(array(module.weight)), axis=-1, epsilon=1e-6, stash_type=1
    )
