"""UniIR's BLIP with feature-level fusion (BLIP-FF) as an encoder: one joint vector of an image with its text.

Image and text are always both read. Without an image, the pixels are zeros after normalisation; without a text, the
text is empty. Vectors are not normalised. Preprocessing, tokenizer and network agree with UniIR's code (commit
98dc570c2645); the weights are UniIR's `blip_ff_large.pth`.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import AddedToken, Tokenizer
from torch import Tensor

from genius.encoders.base import Prepared, Vectors, equal_length_batches
from genius.encoders.blip_network import BlipConfig, BlipNetwork, Memory
from genius.encoders.image_transform import CLIP_MEAN, CLIP_STD, ImageTransform
from genius.encoders.minilm import WordPieces
from genius.encoders.model_files import as_array, reason
from genius.errors import BadModel
from genius.runtime.progress import show_progress

LENGTH = 100  # tokens of a text at most, [CLS] and [SEP] included
IMAGES_A_BATCH = 16
TEXTS_A_BATCH = 64
MAX_CHARACTERS = 8192  # texts are cut here before tokenizing: more characters than 100 tokens hold
EXTRA_TOKENS = ("[DEC]", "[ENC]")  # BLIP's, after the words of bert-base-uncased; nothing inserts them here


class BlipEncoder:
    """The network with its tokenizer and preprocessing. On a CUDA device it computes in float16, as UniIR does.

    Args:
        network: The network with its weights.
        tokenizer: From `blip_tokenizer`.
        source: Name of the file that the weights come from.
        device: Device of the network, as torch names it.
    """

    kind = "blip-ff"
    joint = True

    def __init__(self, network: BlipNetwork, tokenizer: Tokenizer, source: str, device: str = "cpu") -> None:
        config = network.config
        if tokenizer.get_vocab_size() > config.words:
            raise BadModel(
                f"The tokenizer has {tokenizer.get_vocab_size()} tokens, the network of {source} {config.words}. "
                "Only weights trained with the words of bert-base-uncased are supported."
            )
        self.network, self.tokenizer, self.source = network, tokenizer, source
        self.dim = config.text_width
        self.transform = ImageTransform(size=(config.image_size, config.image_size))
        tokenizer.no_padding()
        tokenizer.enable_truncation(min(LENGTH, config.positions))
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self._no_image: list[Memory] | None = None
        self.to(device)

    @classmethod
    def from_state(cls, config: dict[str, Any], state: dict[str, np.ndarray], device: str = "cpu") -> "BlipEncoder":
        """Restore from a stored configuration and state."""
        arrays = {name.removeprefix("model."): value for name, value in state.items() if name.startswith("model.")}
        weights = {name: torch.from_numpy(value) for name, value in arrays.items()}
        network = BlipNetwork.with_weights(BlipConfig(**config["model"]), weights)
        tokenizer = Tokenizer.from_str(state["tokenizer"].tobytes().decode())
        return cls(network, tokenizer, config["source"], device)

    def config(self) -> dict[str, Any]:
        """See `Encoder.config`."""
        return {"kind": self.kind, "source": self.source, "model": self.network.config.to_dict()}

    def state(self) -> dict[str, np.ndarray]:
        """All weights, and the tokenizer file as bytes."""
        words = np.frombuffer(self.tokenizer.to_str().encode(), np.uint8).copy()
        weights = {f"model.{name}": as_array(value) for name, value in self.network.state_dict().items()}
        return weights | {"tokenizer": words}

    def to(self, device: str | torch.device) -> "BlipEncoder":
        """Move the network."""
        try:
            self.network.to(device)
        except (RuntimeError, AssertionError) as error:
            raise BadModel(f"The encoder cannot be moved to the device {device!s}: {reason(error)}.") from error
        self.device, self._no_image = torch.device(device), None
        self.dtype = torch.float16 if self.device.type == "cuda" else torch.float32
        return self

    def pixels(self, image: Image.Image) -> np.ndarray:
        """Resize an RGB image, not keeping its proportions: (size, size, 3) uint8."""
        return self.transform.pixels(image)

    def values(self, pixels: np.ndarray) -> Tensor:
        """Normalise pixels (n, size, size, 3) uint8: (n, 3, size, size) float32 on the encoder's device."""
        mean, std = (torch.tensor(given, device=self.device) for given in (CLIP_MEAN, CLIP_STD))
        # Divided by 255, not multiplied by 1/255: the last digit is then that of UniIR's preprocessing.
        values = (torch.from_numpy(pixels).to(self.device).float() / 255 - mean) / std
        return values.permute(0, 3, 1, 2)

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids with [CLS] and [SEP], truncated to 100. An empty text has these two only."""
        return [encoding.ids for encoding in self.tokenizer.encode_batch([text[:MAX_CHARACTERS] for text in texts])]

    @torch.inference_mode()
    def encode(self, inputs: Sequence[Prepared], progress: bool = False) -> Vectors:
        """See `Encoder.encode`. An image that several inputs share (the same array) is read once."""
        vectors = np.zeros((len(inputs), self.dim), dtype=np.float32)
        ids = self.tokens([given.text for given in inputs])
        with show_progress("encoding", len(inputs), progress) as advance:
            for images, which in self._images(inputs):
                rows = np.array(list(which))
                numbers = np.array([which[row] for row in rows])
                for batch in self._batches(np.array([len(ids[row]) for row in rows])):
                    tokens = torch.tensor([ids[row] for row in rows[batch]], device=self.device)
                    with self._precision():
                        found = self.network(tokens, images, torch.from_numpy(numbers[batch]).to(self.device))
                    vectors[rows[batch]] = found.float().cpu().numpy()
                    advance(len(batch))
        if not np.isfinite(vectors).all():
            raise BadModel("The encoder returned NaN or infinity. Its weights may be damaged.")
        has_image = np.array([given.pixels is not None for given in inputs], bool)
        return Vectors.joint(vectors, has_image, np.array([bool(given.text) for given in inputs], bool))

    def _images(self, inputs: Sequence[Prepared]) -> Iterator[tuple[list[Memory], dict[int, int]]]:
        """Yield images, some at a time, with the inputs that show them: row -> number of the image."""
        if without := {row: 0 for row, given in enumerate(inputs) if given.pixels is None}:
            yield self._empty_image(), without
        distinct = {id(given.pixels): given.pixels for given in inputs if given.pixels is not None}
        keys = list(distinct)
        for start in range(0, len(keys), IMAGES_A_BATCH):
            numbers = {key: number for number, key in enumerate(keys[start : start + IMAGES_A_BATCH])}
            values = self.values(np.stack([distinct[key] for key in numbers]))
            with self._precision():
                images = self.network.read_images(values)
            yield images, {row: numbers[id(g.pixels)] for row, g in enumerate(inputs) if id(g.pixels) in numbers}

    def _empty_image(self) -> list[Memory]:
        """The memory of an absent image. It is always the same, so that it is computed once."""
        if self._no_image is None:
            size = self.network.config.image_size
            with self._precision():
                self._no_image = self.network.read_images(torch.zeros(1, 3, size, size, device=self.device))
        return self._no_image

    @staticmethod
    def _batches(lengths: np.ndarray) -> Iterator[np.ndarray]:
        """Rows of texts in batches of one length (n,), so that none is padded."""
        for rows in equal_length_batches(lengths, TEXTS_A_BATCH * LENGTH):
            yield from np.array_split(rows, -(-len(rows) // TEXTS_A_BATCH))

    def _precision(self) -> AbstractContextManager[object]:
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)


def blip_tokenizer() -> Tokenizer:
    """The tokenizer of BLIP: bert-base-uncased, and two tokens that BLIP added to it.

    The words are those of all-MiniLM-L6-v2, which has the vocabulary of bert-base-uncased.
    """
    tokenizer = WordPieces().tokenizer
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in EXTRA_TOKENS])
    return tokenizer
