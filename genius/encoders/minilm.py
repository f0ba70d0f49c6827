"""all-MiniLM-L6-v2 as a frozen text backbone: strings -> token states.

The ONNX graph is built here from the weights that come with the package. It has no mask: the texts of a batch have the
same number of tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto
from tokenizers import Tokenizer

from genius.encoders.backbone_files import FOLDER, BackboneWeights, damaged
from genius.encoders.base import equal_length_batches
from genius.encoders.model_files import reason
from genius.runtime.int8 import InputRange, linear_layers
from genius.runtime.onnx_graph import Graph, Inputs
from genius.runtime.threads import over_blocks

WEIGHTS = FOLDER / "minilm.safetensors"
TOKENIZER = FOLDER / "tokenizer.json"
WIDTH = 384
LAYERS = 6
HEADS = 12
MAX_TOKENS = 128
EPSILON = 1e-12
AFTER_NORM, OTHERWISE = 0.65, 0.5  # balance of the inputs' factors in eight bits: see `InputRange`
LOWEST_GELU = -0.17
TOKENS_A_BATCH = 1024
IDS: Inputs = {"ids": (np.int64, ["n", "tokens"])}


class WordPieces:
    """The tokenizer."""

    def __init__(self) -> None:
        try:
            self.tokenizer = Tokenizer.from_file(str(TOKENIZER))
        except Exception as error:  # the library raises nothing narrower
            raise damaged(TOKENIZER, reason(error)) from error
        self.tokenizer.enable_truncation(MAX_TOKENS)
        self.tokenizer.no_padding()

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids with [CLS] and [SEP], truncated to MAX_TOKENS."""
        # Cut long texts first: tokenizing takes time linear in their characters.
        return [e.ids for e in self.tokenizer.encode_batch([t[: 64 * MAX_TOKENS] for t in texts])]


def write_states(g: Graph, weights: BackboneWeights, int8: bool = False) -> str:
    """Ids (n, tokens) int64 -> token states (n, tokens, 384). int8: round the linear layers to eight bits."""
    shape = g.node("Shape", "ids")
    x = g.node("Cast", g.node("Gather", g.constant(weights["words"]), "ids"), to=TensorProto.FLOAT)
    x = g.node("Mul", x, g.node("Gather", g.constant(weights["words.scale"]), "ids"))
    zero = g.constant(np.array([0]))
    positions = g.node("Slice", g.constant(weights.floats("positions")), zero, g.slice(shape, 1, 2, axis=0), zero)
    x = _norm(g, g.node("Add", x, positions), weights, "norm")
    x = g.reshape(x, -1, WIDTH)  # (n * tokens, width): all linear layers and norms work on rows
    by_head = g.node("Concat", shape, g.constant([HEADS, WIDTH // HEADS]), axis=0)
    for layer in range(LAYERS):
        x = _layer(g, x, by_head, weights, f"layers.{layer}.", int8)
    return g.node("Reshape", x, g.node("Concat", shape, g.constant([WIDTH]), axis=0))


def _layer(g: Graph, x: str, by_head: str, weights: BackboneWeights, at: str, int8: bool) -> str:
    """One post-norm transformer layer of BERT: (n * tokens, width) -> the same."""
    w, b = (weights.floats(f"{at}qkv.{kind}").reshape(3, WIDTH, -1) for kind in ("weight", "bias"))
    scale = np.float32((WIDTH // HEADS) ** -0.5)
    w[0], b[0] = w[0] * scale, b[0] * scale  # of the attention's products
    known = _range(weights, f"{at}qkv", AFTER_NORM) if int8 else None
    parts = linear_layers(g, x, [(w[i], b[i, :, 0]) for i in range(3)], known)
    q, k, v = (g.node("Reshape", part, by_head) for part in parts)  # each (n, tokens, heads, 32)
    attention = g.node("Softmax", g.node("MatMul", g.transpose(q, 0, 2, 1, 3), g.transpose(k, 0, 2, 3, 1)), axis=-1)
    attended = g.transpose(g.node("MatMul", attention, g.transpose(v, 0, 2, 1, 3)), 0, 2, 1, 3)
    known = _range(weights, f"{at}attended", OTHERWISE) if int8 else None
    attended = _linear(g, g.reshape(attended, -1, WIDTH), weights, f"{at}attended", known)
    x = _norm(g, g.node("Add", attended, x), weights, f"{at}norm_1")
    known = _range(weights, f"{at}up", AFTER_NORM) if int8 else None
    wide = g.gelu(_linear(g, x, weights, f"{at}up", known))
    known = _range(weights, f"{at}down", OTHERWISE, lowest=LOWEST_GELU) if int8 else None
    return _norm(g, g.node("Add", _linear(g, wide, weights, f"{at}down", known), x), weights, f"{at}norm_2")


def _linear(g: Graph, x: str, weights: BackboneWeights, name: str, known: InputRange | None) -> str:
    return linear_layers(g, x, [(weights.floats(f"{name}.weight"), weights.floats(f"{name}.bias"))], known)[0]


def _range(weights: BackboneWeights, name: str, balance: float, lowest: float | None = None) -> InputRange:
    return InputRange(weights.floats(f"{name}.largest"), balance, lowest)


def _norm(g: Graph, x: str, weights: BackboneWeights, name: str) -> str:
    return g.layer_norm(x, weights.floats(f"{name}.weight"), weights.floats(f"{name}.bias"), EPSILON)


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

    def padded(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """(n, longest, width) float32 and the mask (n, longest), which is None where no row is padded."""
        lengths = self.lengths[rows]
        longest = int(lengths.max())
        at = self.offsets[rows][:, None] + np.arange(longest)
        mask = np.arange(longest) < lengths[:, None]
        x = self.states[np.where(mask, at, 0)].astype(np.float32)
        return x, None if mask.all() else mask


class MiniLM:
    """The backbone without a head, for training. int8: its linear layers are rounded to eight bits."""

    def __init__(self, int8: bool = False) -> None:
        self.words = WordPieces()
        g = Graph()
        g.node("Identity", write_states(g, BackboneWeights(WEIGHTS), int8), output="states")
        self.session = g.model(IDS, {"states": ["n", "tokens", WIDTH]}).session(threads=1)

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """As `WordPieces.tokenize`."""
        return self.words.tokenize(texts)

    def states(self, texts: Sequence[str]) -> TokenStates:
        """Token states of all texts."""
        ids = self.tokenize(texts)
        batches, offsets = self.plan(ids)
        # Not float16: the last bit depends on the batch, and rounding would enlarge that to a thousandth.
        states = np.empty((int(offsets[-1]), WIDTH), dtype=np.float32)
        self.fill(states, offsets, ids, batches)
        return TokenStates(states, offsets)

    @staticmethod
    def plan(ids: Sequence[Sequence[int]]) -> tuple[list[np.ndarray], np.ndarray]:
        """Divide texts into batches of one length, the shortest first.

        Returns the rows of each batch, and the offsets (n + 1,) of the packed states.
        """
        lengths = np.array([len(i) for i in ids], dtype=np.int64)
        return list(equal_length_batches(lengths, TOKENS_A_BATCH)), np.concatenate([[0], np.cumsum(lengths)])

    def fill(
        self, states: np.ndarray, offsets: np.ndarray, ids: Sequence[Sequence[int]], batches: Sequence[np.ndarray]
    ) -> None:
        """Compute some batches of `plan` and write them to `states`."""

        def work(block: slice) -> None:
            for rows in batches[block]:
                given = np.array([ids[row] for row in rows])
                (found,) = self.session.run(None, {"ids": given})
                states[offsets[rows][:, None] + np.arange(given.shape[1])] = found

        over_blocks(work, len(batches), 1)
