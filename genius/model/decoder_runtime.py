"""The decoder for search, on ONNX Runtime: log-probabilities of the codes, level by level.

Gives the numbers of `genius.networks.decoder.Decoder.logits` without redundant work: what depends on the query alone is
computed once a query, earlier tokens are cached, and only the codes of the current level are scored.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from genius.model.decoder_config import SPECIALS, DecoderConfig
from genius.model.decoder_graph import DecoderGraph, Floats, Weights
from genius.runtime.onnx_graph import Graph, Inputs, Shape
from genius.runtime.threads import thread_count

Ints = NDArray[np.int64]


class DecoderRuntime:
    """Scores codes for q queries with w beams each. The caller pads to the same number of beams.

    Args:
        config: Shape of the decoder.
        weights: By the names of `genius.networks.decoder.Decoder`, float32, with its buffer `codebooks`.
        int8: Round the weights of the blocks to eight bits. A decoder of the paper's size is then nearly twice as fast,
            with nearly the same results.
    """

    def __init__(self, config: DecoderConfig, weights: Weights, int8: bool = False) -> None:
        self.config, self.weights, self.int8 = config, weights, int8
        self.threads = thread_count()
        self._graph = DecoderGraph(config, weights, int8)
        self.row_bounds = self._graph.row_bounds
        self._level_sessions: dict[int, onnxruntime.InferenceSession] = {}

    @property
    def levels(self) -> int:
        """Number of codes of an ID."""
        return self.config.levels

    @property
    def codebooks(self) -> list[Floats]:
        """Code vectors (sizes[level], dim) of each level."""
        return [self.weights["codebooks"][self.config.rows(level)] for level in range(self.levels)]

    def with_codebooks(self, codebooks: Sequence[Floats]) -> "DecoderRuntime":
        """The same decoder with these code vectors (sizes[level], dim) of each level."""
        table = np.concatenate([np.zeros((SPECIALS, self.config.dim), np.float32), *codebooks])
        return DecoderRuntime(self.config, dict(self.weights) | {"codebooks": table}, self.int8)

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
        names = list(self._token_shapes)
        if given + 1 < self.levels:  # the decoder runs again: keep what it needs
            names += self._graph.seen_names
        query_names = list(self._graph.query_shapes)
        inputs = {"z": z, "tokens": tokens} | self._bias(0, given + 1)
        found = dict(zip(query_names + names, self._first_session.run(query_names + names, inputs), strict=True))
        query, seen = (
            [found[name] for name in wanted if name in found] for wanted in (query_names, self._graph.seen_names)
        )
        state = State(query, seen, queries, beams, given + 1)
        return state, [self._log_probs(state, found, level, level) for level in range(given + 1)]

    def step(self, state: "State", codes: Ints, parents: Ints) -> Floats:
        """Extend the beams by one code.

        Args:
            state: Changed in place.
            codes: (q, w) the codes chosen last; w may differ between calls.
            parents: (q, w) the beam of the previous call that each one extends.

        Returns:
            (q, w, sizes[level]) log-probabilities of the next level's codes.
        """
        found = self._advance(state, (codes + self.row_bounds[state.length - 1])[..., None], parents)
        return self._log_probs(state, found, 0, state.length - 1)

    def tail(self, state: "State", codes: Ints, parents: Ints) -> NDArray[np.float64]:
        """Score the rest of IDs whose codes are already known, in one pass.

        Args:
            state: Changed in place.
            codes: (q, w, m) the code chosen last and all that follow it.
            parents: As in `step`.

        Returns:
            (q, w) the summed log-probabilities of codes[..., 1:].
        """
        level, following = state.length - 1, codes.shape[-1] - 1
        total = np.zeros(codes.shape[:2])
        if following:
            found = self._advance(state, codes[..., :-1] + self.row_bounds[level : level + following], parents)
        for i in range(following):
            log_probs = self._log_probs(state, found, i, level + 1 + i)
            total += np.take_along_axis(log_probs, codes[..., i + 1, None], axis=-1)[..., 0]
        return total

    def _advance(self, state: "State", tokens: Ints, parents: Ints) -> dict[str, Floats]:
        """Run the decoder on the next tokens (q, w, m) of every beam and cache them -> `_token_shapes`."""
        queries, beams, new = tokens.shape
        seen = self._graph.seen_names
        rows = (parents.T * queries + np.arange(queries)).ravel()
        inputs = {"tokens": np.ascontiguousarray(tokens.T), "rows": rows} | self._bias(len(state.seen[0]), new)
        inputs |= zip(self._graph.query_shapes, state.query, strict=True)
        inputs |= zip(seen, state.seen, strict=True)
        names = list(self._token_shapes)
        found = self._next_session.run(names + [f"new_{name}" for name in seen], inputs)
        state.seen = found[len(names) :]
        state.beams, state.length = beams, state.length + new
        return dict(zip(names, found, strict=False))

    def _bias(self, before: int, new: int) -> dict[str, Floats]:
        """The input `bias` (heads, new, before + new) of the blocks."""
        bias = self._graph.bias
        return {} if bias is None else {"bias": bias[:, before : before + new, : before + new]}

    def _log_probs(self, state: "State", found: dict[str, Floats], token: int, level: int) -> Floats:
        """Log-probabilities (q, w, sizes[level]) after a token. found: see `_token_shapes`."""
        names = self._level_inputs(level)
        if not names:  # no layers: all first codes are equally likely
            size = self.config.sizes[level]
            return np.full((state.queries, state.beams, size), -np.log(size), np.float32)
        inputs = {name: found[name][token] for name in names if name != "query_scores"}
        if "query_scores" in names:
            inputs["query_scores"] = state.query[-1][..., self.config.rows(level)]
        log_probs: Floats = self._level_session(level).run(None, inputs)[0]
        return log_probs

    @property
    def _token_shapes(self) -> dict[str, Shape]:
        """Outputs for every token."""
        c = self.config
        shapes: dict[str, Shape] = {"hidden": ["m", "w", "q", c.d_model]} if c.layers else {}
        return shapes | ({"sums": ["m", "w", "q", c.dim]} if c.residual_gain else {})

    def _level_inputs(self, level: int) -> Inputs:
        """What the scores of a level depend on."""
        c = self.config
        inputs: Inputs = {"hidden": (np.float32, ["w", "q", c.d_model])} if c.layers else {}
        if c.residual_gain and level:
            inputs |= {"sums": (np.float32, ["w", "q", c.dim]), "query_scores": (np.float32, [1, "q", c.sizes[level]])}
        return inputs

    def _normalised_rows(self, level: int) -> slice:
        """The table rows that a level's log-probabilities are normalised over."""
        return slice(0, self.config.vocabulary) if self.config.whole_vocabulary else self.config.rows(level)

    # Sessions, each created when it is first needed

    @cached_property
    def _first_session(self) -> onnxruntime.InferenceSession:
        """Query vectors and first tokens -> `_token_shapes` and everything that State keeps."""
        g, c = Graph(), self.config
        self._graph.write_query(g)
        self._graph.write_tokens(g, past=False)
        inputs: Inputs = {"z": (np.float32, ["q", c.dim]), "tokens": (np.int64, ["m", "w", "q"])}
        inputs |= {"bias": (np.float32, [c.heads, "m", "m"])} if c.layers else {}
        shapes = self._token_shapes | self._graph.query_shapes | self._graph.seen_shapes("m", "r")
        return g.model(inputs, shapes).session(self.threads)

    @cached_property
    def _next_session(self) -> onnxruntime.InferenceSession:
        """Next tokens and what was seen before -> `_token_shapes` and everything seen now."""
        g, c = Graph(), self.config
        self._graph.write_tokens(g, past=True)
        inputs: Inputs = {"tokens": (np.int64, ["m", "w", "q"]), "rows": (np.int64, ["r"])}
        inputs |= {"bias": (np.float32, [c.heads, "m", "t"])} if c.layers else {}
        given = self._graph.query_shapes | self._graph.seen_shapes("s", "b")
        inputs |= {name: (np.float32, shape) for name, shape in given.items()}
        seen = {f"new_{name}": shape for name, shape in self._graph.seen_shapes("t", "r").items()}
        return g.model(inputs, self._token_shapes | seen).session(self.threads)

    def _level_session(self, level: int) -> onnxruntime.InferenceSession:
        """One level: `_level_inputs` -> log-probabilities of the level's codes (q, w, sizes[level])."""
        if level not in self._level_sessions:
            g, c, inputs = Graph(), self.config, self._level_inputs(level)
            logits = self._graph.logits(g, self._normalised_rows(level)) if c.layers else None
            if "sums" in inputs:
                residual = self._graph.residual_scores(g, self.config.rows(level))
                logits = g.node("Add", logits, residual) if logits else residual
            assert logits
            x = g.node(
                "LogSoftmax", g.transpose(logits, 1, 0, 2), axis=-1, output=None if c.whole_vocabulary else "log_probs"
            )
            if c.whole_vocabulary:
                rows = self.config.rows(level)
                g.slice(x, rows.start, rows.stop, axis=2, output="log_probs")
            shapes: dict[str, Shape] = {"log_probs": ["q", "w", c.sizes[level]]}
            self._level_sessions[level] = g.model(inputs, shapes).session(self.threads)
        return self._level_sessions[level]


@dataclass
class State:
    """State of a search by `DecoderRuntime.open`, `step` and `tail`.

    `seen` is empty once no further level can follow.
    """

    query: list[Floats]  # `DecoderGraph.query_shapes`, each (..., q, ...) along axis 1
    seen: list[Floats]  # `DecoderGraph.seen_shapes`, each (tokens, beams * q, ...)
    queries: int
    beams: int  # of each query in the last call
    length: int  # levels scored so far

    def select(self, queries: Ints) -> "State":
        """The state of some queries. queries: (s,) their numbers."""
        rows = (np.arange(self.beams)[:, None] * self.queries + queries).ravel()
        return State(
            [values[:, queries] for values in self.query],
            [values[:, rows] for values in self.seen],
            len(queries),
            self.beams,
            self.length,
        )
