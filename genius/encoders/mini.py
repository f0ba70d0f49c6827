"""The `mini` encoder: frozen EfficientNet-Lite2 and MiniLM backbones with small trained heads, one space for both.

It is not CLIP: the backbones were trained separately, and the heads on about ten thousand captioned images. Each
backbone and its head are one ONNX graph.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image

from genius.encoders import efficientnet, minilm
from genius.encoders.backbone_files import BackboneWeights
from genius.encoders.base import Prepared, Vectors, equal_length_batches
from genius.encoders.efficientnet import to_pixels, write_features
from genius.encoders.mini_heads import HeadsConfig, Weights, head_shapes, write_image_head, write_text_head
from genius.encoders.minilm import WordPieces, write_states
from genius.errors import BadModel
from genius.runtime.onnx_graph import Graph, Model
from genius.runtime.progress import show_progress
from genius.runtime.threads import over_blocks, thread_count

BLOCK = 64  # images that are stacked at once
STORED_KEYS = {"image_pool_queries": "image_glances", "text_pool_queries": "text_glances"}
"""Fields of `HeadsConfig` that have another key in a model folder. Keys are part of every model's fingerprint."""
OLDER = {"int8_text": False}
"""Values of settings that older model folders lack. They are not stored, so that those keep their fingerprints."""


class MiniEncoder:
    """Heads on two frozen backbones, each loaded when it is first needed.

    Args:
        config: Shape of the heads. They fit the text backbone that they were trained on, in eight bits or in float32.
        heads: Their weights, float32, by the names of `genius.networks.heads.Heads`.

    Raises:
        BadModel: The weights do not fit the configuration.
    """

    kind = "mini"
    joint = False

    def __init__(self, config: HeadsConfig, heads: Weights) -> None:
        for name, shape in head_shapes(config).items():
            if name not in heads or heads[name].shape != shape:
                found = f"of shape {heads[name].shape}" if name in heads else "missing"
                raise BadModel(f"The weights {name!r} of the encoder's heads are {found}; {shape} is needed.")
        self.heads_config, self.heads = config, heads
        self.dim = config.dim
        self.threads = thread_count()

    @classmethod
    def from_state(cls, config: dict[str, Any], state: dict[str, np.ndarray], device: str = "cpu") -> "MiniEncoder":
        """Restore from a stored configuration and weights. The device is always the CPU."""
        fields = {stored: name for name, stored in STORED_KEYS.items()}
        shape = HeadsConfig(**OLDER | {fields.get(k, k): v for k, v in config.items() if k != "kind"})
        return cls(shape, {name.replace("_glances.", "_pool."): value for name, value in state.items()})

    def config(self) -> dict[str, Any]:
        """See `Encoder.config`."""
        fields = {name: value for name, value in asdict(self.heads_config).items() if OLDER.get(name) != value}
        return {"kind": self.kind} | {STORED_KEYS.get(name, name): value for name, value in fields.items()}

    def state(self) -> dict[str, np.ndarray]:
        """The weights of the heads, by the names in a model folder."""
        return {name.replace("_pool.", "_glances."): value for name, value in self.heads.items()}

    @cached_property
    def _image_session(self) -> onnxruntime.InferenceSession:
        return image_model(self.heads, self.dim).session(self.threads)

    @cached_property
    def _text_session(self) -> onnxruntime.InferenceSession:
        # One thread: batches run side by side, and the threads within one would wait for each other at each operator.
        return text_model(self.heads, self.heads_config).session(threads=1)

    @cached_property
    def _words(self) -> WordPieces:
        return WordPieces()

    def pixels(self, image: Image.Image) -> np.ndarray:
        """Convert an RGB image to (224, 224, 3) uint8."""
        return to_pixels(image)

    def encode(self, inputs: Sequence[Prepared], progress: bool = False) -> Vectors:
        """See `Encoder.encode`."""
        image = np.zeros((len(inputs), self.dim), dtype=np.float32)
        text = np.zeros((len(inputs), self.dim), dtype=np.float32)
        images = [(i, given.pixels) for i, given in enumerate(inputs) if given.pixels is not None]
        with_text = [i for i, given in enumerate(inputs) if given.text]
        with show_progress("encoding", len(images) + len(with_text), progress) as advance:
            for start in range(0, len(images), BLOCK):
                block = images[start : start + BLOCK]
                image[[i for i, _ in block]] = self._encode_images(np.stack([pixels for _, pixels in block]))
                advance(len(block))
            if with_text:
                text[with_text] = self._encode_texts([inputs[i].text for i in with_text], advance)
        return Vectors(_checked(image, "images"), _checked(text, "texts"))

    def _encode_images(self, pixels: np.ndarray) -> np.ndarray:
        parts = efficientnet.batches(pixels)
        return np.concatenate([self._image_session.run(None, {"pixels": part})[0] for part in parts])

    def _encode_texts(self, texts: Sequence[str], advance: Callable[[int], None]) -> np.ndarray:
        ids, run = self._words.tokenize(texts), self._text_session.run
        batches = list(equal_length_batches(np.array([len(i) for i in ids]), minilm.TOKENS_A_BATCH))
        out = np.empty((len(texts), self.dim), dtype=np.float32)

        def work(block: slice) -> None:
            for rows in batches[block]:
                (out[rows],) = run(None, {"ids": np.array([ids[row] for row in rows])})
                advance(len(rows))

        over_blocks(work, len(batches), 1)
        return out


def text_model(heads: Weights, config: HeadsConfig) -> Model:
    """The ONNX model of the text network: ids (n, tokens) int64 -> vectors (n, dim)."""
    g = Graph()
    states = write_states(g, BackboneWeights(minilm.WEIGHTS), config.int8_text)
    g.node("Identity", write_text_head(g, states, heads), output="vectors")
    return g.model(minilm.IDS, {"vectors": ["n", config.dim]})


def image_model(heads: Weights, dim: int) -> Model:
    """The ONNX model of the image network: pixels (n, 224, 224, 3) uint8 -> vectors (n, dim)."""
    g = Graph()
    features = write_features(g, BackboneWeights(efficientnet.WEIGHTS))
    g.node("Identity", write_image_head(g, features, heads), output="vectors")
    return g.model(efficientnet.PIXELS, {"vectors": ["n", dim]})


def _checked(vectors: np.ndarray, what: str) -> np.ndarray:
    if not np.isfinite(vectors).all():
        raise BadModel(f"Vectors of {what} hold NaN or infinity. The model folder may be damaged: copy it again.")
    return vectors
