"""The decoder for search, on ONNX Runtime: log-probabilities of the codes, level by level.

Gives the numbers of `genius.networks.decoder.Decoder.logits` without redundant work: the prefix becomes keys and values
once a query, earlier tokens are cached, and only the codes of the current level are scored.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from genius.model.decoder_config import DecoderConfig
from genius.model.decoder_graph import DecoderGraph, Floats, Weights
from genius.runtime.onnx_graph import Graph, Inputs, Shape
from genius.runtime.threads import thread_count

Ints = NDArray[np.int64]


class DecoderRuntime:
    """Scores codes for q queries with w beams each. The caller pads to the same number of beams.

    Args:
        config: Shape of the decoder.
        weights: By the names of `genius.networks.decoder.Decoder`, float32.
        int8: Round the weights of the blocks to eight bits. A decoder of the paper's size is then nearly twice as fast,
            with nearly the same results.
    """

    def __init__(self, config: DecoderConfig, weights: Weights, int8: bool = False) -> None:
        self.config, self.weights, self.int8 = config, weights, int8
        self.decoder_levels = config.levels_of_blocks
        self.threads = thread_count()
        self._graph = DecoderGraph(config, weights, int8)
        self.row_bounds = self._graph.row_bounds
        self._level_sessions: dict[int, onnxruntime.InferenceSession] = {}

    @property
    def levels(self) -> int:
        """Number of codes of an ID."""
        return len(self.config.sizes)

    @property
    def has_linear_levels(self) -> bool:
        """Whether the linear head alone scores the last levels."""
        return self.decoder_levels < self.levels

    def is_linear(self, level: int) -> bool:
        """Whether the linear head alone scores a level: its log-probabilities are the same for all beams."""
        return level >= self.decoder_levels

    def open(self, z: Floats, codes: Ints) -> tuple["State", list[Floats]]:
        """Start beams with the first m codes of their IDs, in one pass.

        Args:
            z: (q, dim) query vectors.
            codes: (q, w, m) first codes; m may be 0.

        Returns:
            The state, and log-probabilities of levels 0 to m, each (q, w, sizes[level]) given the codes before it.
        """
        queries, beams, given = codes.shape
        tokens = np.zeros((given + 1, beams, queries), np.int64)  # every ID starts with token 0
        tokens[1:] = (codes + self.row_bounds[:given]).T
        tokens = tokens[: self.decoder_levels]
        names = ["hidden", "linear_logits", "linear_log_probs"]
        if len(tokens) < self.decoder_levels:  # the blocks run again: keep what they need
            names += self._graph.prefix_names + self._graph.seen_names
        inputs = {"z": z, "tokens": tokens, "bias": self._bias(0, len(tokens))}
        hidden, linear_logits, linear_log_probs, *rest = self._first_session.run(names, inputs)
        split = len(self._graph.prefix_names)
        state = State(rest[:split], rest[split:], linear_logits, linear_log_probs, beams, given + 1)
        scored = [self._log_probs(state, of_level, level) for level, of_level in enumerate(hidden)]
        return state, scored + [self._spread(state, level, beams) for level in range(len(scored), given + 1)]

    def step(self, state: "State", codes: Ints, parents: Ints) -> Floats:
        """Extend the beams by one code.

        Args:
            state: Changed in place.
            codes: (q, w) the codes chosen last; w may differ between calls.
            parents: (q, w) the beam of the previous call that each one extends.

        Returns:
            (q, w, sizes[level]) log-probabilities of the next level's codes.
        """
        if self.is_linear(state.length):
            state.length += 1
            return self._spread(state, state.length - 1, codes.shape[1])
        hidden = self._advance(state, (codes + self.row_bounds[state.length - 1])[..., None], parents)
        return self._log_probs(state, hidden[0], state.length - 1)

    def tail(self, state: "State", codes: Ints, parents: Ints) -> NDArray[np.float64]:
        """Score the rest of IDs whose codes are already known, in one pass.

        Args:
            state: Changed in place.
            codes: (q, w, m) the code chosen last and all that follow it.
            parents: As in `step`.

        Returns:
            (q, w) the summed log-probabilities of codes[..., 1:].
        """
        level = state.length - 1
        decoded = max(0, min(self.decoder_levels - state.length, codes.shape[-1] - 1))  # levels that need the blocks
        total = np.zeros(codes.shape[:2])
        if decoded:
            tokens = codes[..., :decoded] + self.row_bounds[level : level + decoded]
            hidden = self._advance(state, tokens, parents)
        for i in range(1, codes.shape[-1]):
            if i <= decoded:
                log_probs = self._log_probs(state, hidden[i - 1], level + i)
            else:
                log_probs = self._spread(state, level + i, codes.shape[1])
            total += np.take_along_axis(log_probs, codes[..., i, None], axis=-1)[..., 0]
        return total

    def linear_log_probs(self, state: "State", level: int) -> Floats:
        """Log-probabilities of a level that the linear head scores alone, (q, sizes[level])."""
        start = self.row_bounds[level] - self.row_bounds[self.decoder_levels]
        return np.ascontiguousarray(state.linear_log_probs[:, start : start + self.config.sizes[level]])

    def _advance(self, state: "State", tokens: Ints, parents: Ints) -> Floats:
        """Run the blocks on the next tokens (q, w, m) of every beam and cache them -> hidden (m, w, q, d_model)."""
        queries, beams, new = tokens.shape
        names = self._graph.seen_names
        rows = (parents.T * queries + np.arange(queries)).ravel()
        inputs = {"tokens": np.ascontiguousarray(tokens.T), "rows": rows, "bias": self._bias(len(state.seen[0]), new)}
        inputs |= zip(self._graph.prefix_names, state.prefix, strict=True)
        inputs |= zip(names, state.seen, strict=True)
        hidden: Floats
        hidden, *state.seen = self._next_session.run(["hidden", *(f"new_{name}" for name in names)], inputs)
        state.beams, state.length = beams, state.length + new
        return hidden

    def _bias(self, before: int, new: int) -> Floats:
        """(heads, new, before + new)."""
        return self._graph.bias[:, before : before + new, : before + new]

    def _spread(self, state: "State", level: int, beams: int) -> Floats:
        """Log-probabilities of a linear level, repeated for all beams: (q, w, sizes[level]), a view."""
        log_probs = self.linear_log_probs(state, level)[:, None]
        return np.broadcast_to(log_probs, (len(log_probs), beams, log_probs.shape[-1]))

    def _log_probs(self, state: "State", hidden: Floats, level: int) -> Floats:
        """hidden: (w, q, d_model) -> (q, w, sizes[level])."""
        inputs = {"hidden": np.ascontiguousarray(hidden.swapaxes(0, 1))}
        if self.config.linear_head:
            inputs["linear_logits"] = state.linear_logits[..., self._normalised_rows(level)]
        log_probs: Floats = self._level_session(level).run(None, inputs)[0]
        return log_probs

    def _normalised_rows(self, level: int) -> slice:
        """The table rows that a level's log-probabilities are normalised over."""
        return slice(0, self.config.vocabulary) if self.config.whole_vocabulary else self.config.rows(level)

    # Sessions, each created when it is first needed

    @cached_property
    def _first_session(self) -> onnxruntime.InferenceSession:
        """Query vectors and first tokens -> hidden states and everything that State keeps."""
        g, c = Graph(), self.config
        self._graph.write_prefix(g)
        self._graph.write_linear_head(g)
        self._graph.write_blocks(g, past=False)
        inputs: Inputs = {
            "z": (np.float32, ["q", c.dim]),
            "tokens": (np.int64, ["m", "w", "q"]),
            "bias": (np.float32, [c.heads, "m", "m"]),
        }
        shapes: dict[str, Shape] = {"hidden": ["m", "w", "q", c.d_model]}
        shapes |= {"linear_logits": ["q", 1, None], "linear_log_probs": ["q", None]}
        shapes |= self._graph.prefix_shapes
        shapes |= self._graph.seen_shapes("m", "r")
        return g.model(inputs, shapes).session(self.threads)

    @cached_property
    def _next_session(self) -> onnxruntime.InferenceSession:
        """Next tokens and what was seen before -> hidden states and everything seen now."""
        g, c = Graph(), self.config
        self._graph.write_blocks(g, past=True)
        inputs: Inputs = {
            "tokens": (np.int64, ["m", "w", "q"]),
            "rows": (np.int64, ["r"]),
            "bias": (np.float32, [c.heads, "m", "t"]),
        }
        given = self._graph.prefix_shapes | self._graph.seen_shapes("s", "b")
        inputs |= {name: (np.float32, shape) for name, shape in given.items()}
        shapes: dict[str, Shape] = {"hidden": ["m", "w", "q", c.d_model]}
        shapes |= {f"new_{name}": shape for name, shape in self._graph.seen_shapes("t", "r").items()}
        return g.model(inputs, shapes).session(self.threads)

    def _level_session(self, level: int) -> onnxruntime.InferenceSession:
        """One level: hidden (q, w, d_model) -> log-probabilities of the level's codes (q, w, sizes[level])."""
        if level not in self._level_sessions:
            g, c = Graph(), self.config
            table = self._graph.output_table(self._normalised_rows(level))
            (x,) = self._graph.products(g, g.reshape("hidden", -1, c.d_model), [table])
            x = g.node(
                "Reshape",
                x,
                g.node("Concat", g.slice(g.node("Shape", "hidden"), 0, 2, axis=0), g.constant([-1]), axis=0),
            )
            inputs: Inputs = {"hidden": (np.float32, ["q", "w", c.d_model])}
            if c.linear_head:
                x = g.node("Add", x, "linear_logits")
                inputs["linear_logits"] = (np.float32, ["q", 1, None])
            x = g.node("LogSoftmax", x, axis=-1, output=None if c.whole_vocabulary else "log_probs")
            if c.whole_vocabulary:
                rows = self.config.rows(level)
                g.slice(x, rows.start, rows.stop, axis=2, output="log_probs")
            shapes: dict[str, Shape] = {"log_probs": ["q", "w", c.sizes[level]]}
            self._level_sessions[level] = g.model(inputs, shapes).session(self.threads)
        return self._level_sessions[level]


@dataclass
class State:
    """State of a search by `DecoderRuntime.open`, `step` and `tail`.

    `prefix` and `seen` hold keys and values block by block, and are empty once the blocks do not run again.
    """

    prefix: list[Floats]  # each (N, q, heads, d_kv)
    seen: list[Floats]  # of the tokens so far, each (tokens, beams * q, heads, d_kv)
    linear_logits: Floats  # (q, 1, vocabulary) of the linear head, or (q, 1, 0) without one
    linear_log_probs: Floats  # (q, codes of the linear levels)
    beams: int  # of each query in the last call
    length: int  # levels scored so far

    def select(self, queries: Ints) -> "State":
        """The state of some queries. queries: (s,) their numbers."""
        rows = (np.arange(self.beams)[:, None] * len(self.linear_logits) + queries).ravel()
        return State(
            [values[:, queries] for values in self.prefix],
            [values[:, rows] for values in self.seen],
            self.linear_logits[queries],
            self.linear_log_probs[queries],
            self.beams,
            self.length,
        )
