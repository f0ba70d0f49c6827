"""A model for tests: real fusion, quantizer and decoder with random weights, and an encoder that needs no backbone."""

import functools
import re
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from genius.encoders.base import Prepared, Vectors
from genius.model.decoder_config import DecoderConfig
from genius.model.decoder_runtime import DecoderRuntime
from genius.model.fusion_runtime import FusionRuntime
from genius.model.genius import Genius
from genius.networks.decoder import Decoder
from genius.networks.fusion import Fusion
from genius.networks.quantizer import Quantizer

DIM, CODES, LEVELS = 16, 8, 3


class TinyEncoder:
    """A text is the sum of its words' random vectors, an image a projection of its mean colour.

    A text with the word "nan" gets a vector that is not made of numbers.
    """

    kind = "tiny"
    joint = False
    dim = DIM

    def pixels(self, image: Image.Image) -> np.ndarray:
        return np.asarray(image, np.float32).reshape(-1, 3).mean(0)

    def encode(self, inputs: Sequence[Prepared], progress: bool = False) -> Vectors:
        rows = [(_image_vector(one.pixels), _text_vector(one.text)) for one in inputs]
        image, text = (np.array([row[i] for row in rows], np.float32).reshape(-1, DIM) for i in (0, 1))
        return Vectors(image, text)

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def config(self) -> dict[str, Any]:
        return {"kind": self.kind}


class TinyJointEncoder(TinyEncoder):
    """One vector of each input. That of an image with a text is not the sum of theirs."""

    kind = "tiny-joint"
    joint = True

    def encode(self, inputs: Sequence[Prepared], progress: bool = False) -> Vectors:
        apart = super().encode(inputs)
        joined = np.where((apart.has_image & apart.has_text)[:, None], apart.image * 5 * apart.text, 0)
        return Vectors.joint(apart.image + apart.text + joined, apart.has_image, apart.has_text)


def tiny_model(seed: int = 0, encoder: TinyEncoder | None = None) -> Genius:
    """Models of the same seed are equal, of different seeds are not."""
    torch.manual_seed(seed)
    fusion = Fusion(DIM, 8)
    quantizer = Quantizer(DIM, CODES, LEVELS, seed=seed)
    sizes = quantizer.sizes
    decoder = Decoder(DecoderConfig(DIM, sizes, d_model=16, layers=2, heads=2, d_kv=8, d_ff=32, prefix=4))
    return Genius(encoder or TinyEncoder(), fusion.runtime(), quantizer.runtime(), decoder.runtime())


@functools.cache
def torch_decoder(runtime: DecoderRuntime) -> Decoder:
    """The torch module of the same weights."""
    decoder = Decoder(runtime.config)
    weights = {name: torch.from_numpy(value) for name, value in runtime.weights.items()}
    decoder.codebooks = weights.pop("codebooks")
    decoder.load_state_dict(weights)
    return decoder.eval().requires_grad_(False)


def torch_fusion(runtime: FusionRuntime) -> Fusion:
    """The torch module of the same weights."""
    fusion = Fusion(runtime.dim, runtime.hidden)
    fusion.load_state_dict({name: torch.from_numpy(value) for name, value in runtime.weights.items()})
    return fusion.eval().requires_grad_(False)


def draw_image(colour: str, size: tuple[int, int] = (8, 8)) -> Image.Image:
    return Image.new("RGB", size, colour)


def _text_vector(text: str) -> np.ndarray:
    words = re.findall(r"\w+", text.lower())
    if "nan" in words:
        return np.full(DIM, np.nan, np.float32)
    return _normalised(sum((_random(word) for word in words), np.zeros(DIM)))


def _image_vector(colour: np.ndarray | None) -> np.ndarray:
    if colour is None:
        return np.zeros(DIM)
    return _normalised(sum((value + 1) * _random(f"channel {i}") for i, value in enumerate(colour)))


@functools.cache
def _random(word: str) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(word.encode())).standard_normal(DIM)


def _normalised(vector: np.ndarray) -> np.ndarray:
    return vector / max(float(np.linalg.norm(vector)), 1e-12)
