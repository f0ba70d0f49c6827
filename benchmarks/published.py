"""The published way to decode, for comparison: `transformers` beam search, told by a Python function what may follow.

`T5ForConditionalGeneration` without encoder layers attends to the prefix embeddings; `generate` asks
`prefix_allowed_tokens_fn` once for each beam and step, and scores the whole vocabulary at every step. The weights are
those of a `DecoderRuntime`, so that both ways find the same IDs (a decoder with `whole_vocabulary`: the same
log-probabilities too).

Two things differ from the original, both in its favour. Its trie is made of nested dicts, which at a million IDs need
many gigabytes; `PrefixTree` keeps sorted columns and remembers its answers, so that from the second search of a query
on each call is one look-up in a dict, less than the original's walk. And residual inputs and scores of a decoder that
has them, which T5 has not, are left out.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from genius.model.decoder_config import SPECIALS
from genius.model.decoder_runtime import DecoderRuntime
from genius.networks.t5 import END, PAD, as_t5


class PrefixTree:
    """Tokens that may follow a prefix of an ID. codes: (n, levels) integers; tokens as in the decoder's table."""

    def __init__(self, codes: np.ndarray, sizes: Sequence[int]) -> None:
        order = np.lexsort(codes.T[::-1])
        self._columns = [np.ascontiguousarray(column[order]) for column in codes.T]
        self._starts = [SPECIALS + sum(sizes[:level]) for level in range(len(sizes))]
        self._ranges: dict[tuple[int, ...], tuple[int, int]] = {(): (0, len(codes))}
        self._allowed: dict[tuple[int, ...], list[int]] = {}

    def __call__(self, batch: int, tokens: Tensor) -> list[int]:
        """tokens: the start token, then those of the first levels -> the tokens that may follow."""
        prefix = tuple(tokens.tolist()[1:])
        allowed = self._allowed.get(prefix)
        if allowed is None:
            allowed = self._allowed[prefix] = self._follow(prefix)
        return allowed

    def _follow(self, prefix: tuple[int, ...]) -> list[int]:
        lo, hi = self._range(prefix)
        level = len(prefix)
        if lo == hi:
            return [PAD]  # a beam that filled up the width because there were too few IDs
        if level == len(self._columns):
            return [END]
        return (np.unique(self._columns[level][lo:hi]).astype(np.int64) + self._starts[level]).tolist()

    def _range(self, prefix: tuple[int, ...]) -> tuple[int, int]:
        """The sorted rows that begin with the prefix."""
        if prefix not in self._ranges:
            *before, token = prefix
            lo, hi = self._range(tuple(before))
            level = len(before)
            column, code = self._columns[level][lo:hi], token - self._starts[level]
            left, right = (int(np.searchsorted(column, code, side)) for side in ("left", "right"))
            self._ranges[prefix] = (lo + left, lo + right)
        return self._ranges[prefix]


class Published:
    """Beam search by `transformers` over the IDs `codes: (n, levels)`, with a decoder's weights."""

    def __init__(self, decoder: DecoderRuntime, codes: np.ndarray) -> None:
        self.t5 = as_t5(decoder, blocks_only=True)
        self.weight, self.bias = (
            torch.from_numpy(decoder.weights[f"prefix_network.0.{p}"]) for p in ("weight", "bias")
        )
        self.config = decoder.config
        self.tree = PrefixTree(codes, decoder.config.sizes)

    def search(self, z: np.ndarray, width: int) -> np.ndarray:
        """z: (q, dim) -> the IDs of the beams, best first, (q, width, levels).

        Where there are fewer IDs than beams, what is left holds negative codes.
        """
        return self._ids(self._generate(z, width, scores=False), width)

    def scored(self, z: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
        """As `search`, and the IDs' log-probabilities (q, width), which `transformers` must be asked for."""
        found = self._generate(z, width, scores=True)
        return self._ids(found, width), found.sequences_scores.view(len(z), width).numpy()

    @torch.inference_mode()
    def _generate(self, z: np.ndarray, width: int, scores: bool) -> Any:
        from transformers.modeling_outputs import BaseModelOutput

        config, levels = self.config, len(self.config.sizes)
        prefix = F.linear(torch.as_tensor(z), self.weight, self.bias).unflatten(-1, (config.prefix, config.d_model))
        encoded = self.t5.encoder(inputs_embeds=prefix).last_hidden_state  # without layers: only its last norm
        return self.t5.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=encoded),
            decoder_start_token_id=PAD,
            max_new_tokens=levels,
            min_new_tokens=levels,
            num_beams=width,
            num_return_sequences=width,
            prefix_allowed_tokens_fn=self.tree,
            do_sample=False,
            length_penalty=0.0,
            return_dict_in_generate=True,
            output_scores=scores,
        )

    def _ids(self, found: Any, width: int) -> np.ndarray:
        tokens: np.ndarray = found.sequences[:, 1:].unflatten(0, (-1, width)).numpy()
        return tokens - np.cumsum([SPECIALS, *self.config.sizes])[:-1]
