"""A sentence-transformers model as a text encoder.

The library's files are stored in the model folder: weights as arrays, other files (tokenizer, pooling, ...) as bytes.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from genius.encoders.base import Prepared, Vectors
from genius.encoders.model_files import as_array, local_folder, needs_extra, reason
from genius.errors import BadImage, BadModel
from genius.runtime.progress import show_progress

NEEDED = ("modules.json", "config.json", "model.safetensors", "tokenizer.json", "1_Pooling/config.json")
BATCH = 64
BLOCK = 1024  # texts per call of the library, which sorts them by length; the progress bar advances after each
LEFT_OUT = ("README.md",)
FILE, WEIGHT = "file/", "weight/"  # prefixes of names in the state: file/<path>, weight/<path>/<tensor>


class SentenceEncoder:
    """Text vectors as the library returns them: normalised only if the model ends with a normalising module."""

    kind = "sentence"
    joint = False

    def __init__(self, model: Any, source: str, files: dict[str, np.ndarray] | None = None) -> None:
        """files: all but weights, as stored before. The library does not always write the same bytes again."""
        self.model = model.eval().requires_grad_(False)
        self.source = source
        self._files = files or {}
        self._files = self._files or {name: value for name, value in self.state().items() if name.startswith(FILE)}
        self.dim = len(self._encode(["a"])[0])

    @classmethod
    def from_hub(cls, name: str | os.PathLike[str], device: str = "cpu") -> "SentenceEncoder":
        """Load a folder, or `owner/name` of the hub."""
        folder = local_folder(name, NEEDED)
        if not (folder / "modules.json").is_file():
            raise BadModel(f"{name} is not a sentence-transformers model: modules.json is missing.")
        return cls(_open(folder, str(name), device), str(name) if folder != Path(name) else folder.resolve().name)

    @classmethod
    def from_state(cls, config: dict[str, Any], state: dict[str, np.ndarray], device: str = "cpu") -> "SentenceEncoder":
        """Restore from a stored configuration and state."""
        with tempfile.TemporaryDirectory() as folder:
            _unpack(state, Path(folder))
            files = {name: value for name, value in state.items() if name.startswith(FILE)}
            return cls(_open(Path(folder), config["source"], device), config["source"], files)

    def config(self) -> dict[str, Any]:
        """See `Encoder.config`."""
        return {"kind": self.kind, "source": self.source}

    def state(self) -> dict[str, np.ndarray]:
        """Weights and files of the model."""
        with tempfile.TemporaryDirectory() as folder:
            self.model.save(folder, create_model_card=False)
            return {name: self._files.get(name, value) for name, value in _pack(Path(folder))}

    def pixels(self, image: Image.Image) -> np.ndarray:
        """Raise BadImage: the model reads texts only."""
        raise BadImage(f"The model's encoder ({self.source}) reads texts only. Use a model with a CLIP for images.")

    @torch.inference_mode()
    def encode(self, inputs: Sequence[Prepared], progress: bool = False) -> Vectors:
        """See `Encoder.encode`."""
        if any(given.pixels is not None for given in inputs):
            raise BadModel(f"The model's encoder ({self.source}) reads texts only, but was given an image.")
        text = np.zeros((len(inputs), self.dim), dtype=np.float32)
        rows = [i for i, given in enumerate(inputs) if given.text]
        with show_progress("encoding", len(rows), progress) as advance:
            for start in range(0, len(rows), BLOCK):
                block = rows[start : start + BLOCK]
                text[block] = self._encode([inputs[i].text for i in block])
                advance(len(block))
        return Vectors(np.zeros_like(text), text)

    def _encode(self, texts: list[str]) -> np.ndarray:
        out: np.ndarray = self.model.encode(texts, batch_size=BATCH, show_progress_bar=False, convert_to_numpy=True)
        return out.astype(np.float32)


def _open(folder: Path, name: str, device: str) -> Any:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise needs_extra("Text encoders of sentence-transformers need", "sentence-transformers") from error
    try:
        return SentenceTransformer(str(folder), device=device, local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise BadModel(f"{name} cannot be loaded as a sentence-transformers model: {reason(error)}.") from error


def _pack(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """All files of a saved model as named arrays."""
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.relative_to(folder).as_posix()
        if path.suffix == ".safetensors":
            yield from (
                (f"{WEIGHT}{name}/{tensor}", as_array(value)) for tensor, value in sorted(load_file(path).items())
            )
        elif name not in LEFT_OUT:
            yield f"{FILE}{name}", np.frombuffer(path.read_bytes(), np.uint8).copy()


def _unpack(state: dict[str, np.ndarray], folder: Path) -> None:
    """Write the files of a state; a path outside the folder is refused."""
    weights: dict[str, dict[str, torch.Tensor]] = {}
    for name, value in state.items():
        if name.startswith(FILE):
            _inside(folder, name.removeprefix(FILE)).write_bytes(value.tobytes())
        else:
            path, tensor = name.removeprefix(WEIGHT).rsplit("/", 1)
            weights.setdefault(path, {})[tensor] = torch.from_numpy(np.ascontiguousarray(value))
    for path, tensors in weights.items():
        save_file(tensors, _inside(folder, path), metadata={"format": "pt"})


def _inside(folder: Path, name: str) -> Path:
    path = (folder / name).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise BadModel(f"The model names a file outside its folder: {name}.")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
