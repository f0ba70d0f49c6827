"""Genius: encoder + fusion + quantizer + decoder, as one thing that is loaded, saved and asked for vectors and codes.

Knows how the parts fit together and how a model folder looks. Knows nothing of tries, indexes or training.

A model folder holds `config.json` (shapes, and the digest of the weights), `model.safetensors` (weights of all parts,
each behind its name) and, for people, `README.md`.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from genius.data.images import load_image
from genius.data.items import Item, Query, clean_text
from genius.encoders.base import Encoder, Prepared, Vectors
from genius.encoders.loading import load_encoder
from genius.encoders.model_files import HUB_ID
from genius.errors import BadImage, BadItem, BadModel, GeniusError
from genius.model.decoder import Decoder, DecoderConfig
from genius.model.decoder_runtime import DecoderRuntime
from genius.model.fusion import Fusion, FusionRuntime
from genius.model.quantizer import Quantizer
from genius.runtime.threads import over_blocks

FORMAT = 1
BUNDLED = Path(__file__).parent / "bundled"
PARTS = ("encoder", "fusion", "quantizer", "decoder")
ROWS = 1024  # vectors fused at once, by one thread
DTYPES = {"float16": torch.float16, "float32": torch.float32}
STORED_NAMES = {"linear_head": "skip"}  # tensors of the decoder whose name in a model folder is another
OPTIONS = {"dtype": "float16", "first_code": "modality"}
"""Settings that stand in a folder only where they are not these, so that older models keep their fingerprints."""


class Genius:
    """The model. Make one with `Genius.from_pretrained("mini")`, or with the path of a model folder.

    `code_beams`: partial sums kept while an item's codes are chosen (see `Quantizer.encode`).
    `dtype`: of the weights in a folder, "float16" or "float32".
    `first_code`: "modality", the one that an item has; or "nearest", whichever of the three the quantizer finds, as in
      the published models: their first codes stand for modalities only by and large, and in no known order.
    """

    def __init__(
        self,
        encoder: Encoder,
        fusion: Fusion,
        quantizer: Quantizer,
        decoder: Decoder,
        code_beams: int = 1,
        dtype: str = OPTIONS["dtype"],
        first_code: str = OPTIONS["first_code"],
    ) -> None:
        if not encoder.dim == fusion.dim == quantizer.dim == decoder.config.dim:
            dims = (encoder.dim, fusion.dim, quantizer.dim, decoder.config.dim)
            raise BadModel(f"Encoder, fusion, quantizer and decoder have {dims} dimensions; they must be the same.")
        if quantizer.sizes != decoder.config.sizes:
            raise BadModel(f"The quantizer's codes {quantizer.sizes} are not the decoder's {decoder.config.sizes}.")
        if dtype not in DTYPES:
            raise BadModel(f"Weights cannot be kept as {dtype!r}. Choose one of {', '.join(DTYPES)}.")
        if first_code not in ("modality", "nearest"):
            raise BadModel(f"The first code can be the modality or the nearest one, not {first_code!r}.")
        self.encoder, self.fusion, self.quantizer, self.decoder = encoder, fusion, quantizer, decoder
        self.code_beams, self.dtype, self.first_code = code_beams, dtype, first_code
        self.int8 = False
        self.source: str | None = None
        for module in (fusion, quantizer, decoder):
            module.eval().requires_grad_(False)

    @property
    def dim(self) -> int:
        return self.encoder.dim

    @cached_property
    def decoder_runtime(self) -> DecoderRuntime:
        """The decoder as a search uses it."""
        return DecoderRuntime(self.decoder, int8=self.int8)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of codes of each level, the modality level first."""
        return self.quantizer.sizes

    # From items and queries to vectors

    def prepare(self, item: Item, image_name: str | None = None) -> Prepared:
        """Read and decode one item. Safe to call from many threads.

        Args:
            item: The item to prepare.
            image_name: Name of the image in error messages; by default its path.

        Raises:
            BadItem: The item has no content, or its image cannot be decoded.
        """
        item.modality  # noqa: B018 (raises where there is neither text nor image)
        return Prepared(self._pixels(item.id, item.image, image_name), clean_text(item.text))

    def prepare_query(self, query: Query) -> Prepared:
        return Prepared(self._pixels("query", query.image), query.prompt())

    def _pixels(self, owner: str, image: Any, image_name: str | None = None) -> np.ndarray | None:
        if image is None:
            return None
        try:
            return self.encoder.pixels(load_image(image, image_name))
        except BadImage as error:
            raise BadItem(owner, str(error)) from error

    def encode(self, prepared: Sequence[Prepared], progress: bool = False) -> Vectors:
        return self.encoder.encode(prepared, progress=progress)

    def encode_items(self, items: Sequence[Item], progress: bool = False) -> Vectors:
        """Image and text vectors of items."""
        return self.encode(_in_threads(self.prepare, items), progress)

    def encode_queries(self, queries: Sequence[Query], progress: bool = False) -> Vectors:
        """Image and text vectors of queries; the text vector is that of instruction and text as one string."""
        return self.encode(_in_threads(self.prepare_query, queries), progress)

    # From vectors to codes

    @cached_property
    def _frozen_fusion(self) -> FusionRuntime:
        return FusionRuntime(self.fusion)

    def fuse(self, vectors: Vectors) -> np.ndarray:
        """(n, d) float32: the fused vectors z, which quantizer and decoder work on."""
        fused = np.empty((len(vectors), self.dim), dtype=np.float32)
        fuse = self._frozen_fusion

        def fuse_block(block: slice) -> None:
            fused[block] = fuse(vectors.image[block], vectors.text[block])

        over_blocks(fuse_block, len(vectors), ROWS)
        return fused

    def codes(self, vectors: Vectors) -> np.ndarray:
        """(n, levels) uint16: the IDs of items. The first code is the modality the item has (see `first_code`)."""
        fused = torch.from_numpy(self.fuse(vectors))
        modality = torch.from_numpy(vectors.modality.astype(np.int64)) if self.first_code == "modality" else None
        return self.quantizer.encode(fused, modality, beams=self.code_beams).numpy().astype(np.uint16)

    # Folders

    @cached_property
    def fingerprint(self) -> str:
        """Names weights and settings: two models with the same fingerprint give the same codes."""
        return hashlib.sha256(json.dumps(self._config()).encode() + self._bytes()).hexdigest()[:16]

    def _config(self) -> dict[str, Any]:
        return {
            "encoder": self.encoder.config(),
            "fusion": {"dim": self.fusion.dim, "hidden": self.fusion.hidden},
            "quantizer": {
                "dim": self.dim,
                "codes_per_level": self.quantizer.codes_per_level,
                "levels": self.quantizer.levels,
                "shared": self.quantizer.shared,
            },
            "decoder": self.decoder.config.to_dict(),
            "code_beams": self.code_beams,
            **{name: getattr(self, name) for name, usual in OPTIONS.items() if getattr(self, name) != usual},
        }

    def _bytes(self) -> bytes:
        tensors: dict[str, Tensor] = {}
        for part, state in self._states().items():
            tensors |= {f"{part}.{name}": _stored(value, self.dtype) for name, value in state.items()}
        return save(tensors)

    def _states(self) -> dict[str, dict[str, Tensor]]:
        return {
            "encoder": self.encoder.state(),
            "fusion": self.fusion.state_dict(),
            "quantizer": {f"level{i}": book.codes for i, book in enumerate(_books(self.quantizer))},
            "decoder": {STORED_NAMES.get(name, name): value for name, value in self.decoder.state_dict().items()},
        }

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Writes the model folder. Where `dtype` is float16, a saved model may differ in the last digits."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        weights = self._bytes()
        config = {"format": FORMAT, "digest": hashlib.sha256(weights).hexdigest(), **self._config()}
        (folder / "model.safetensors").write_bytes(weights)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    def push_to_hub(self, name: str, run: str | os.PathLike[str] | None = None, private: bool = False) -> str:
        """Publishes the model as `owner/name` of the Hugging Face hub, with a card; see `hub.push`."""
        from genius.model.hub import push

        return push(self, name, run=run, private=private)

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], int8: bool = False, device: str = "cpu") -> "Genius":
        """The bundled model `mini`, or the model in a folder (`./mini` if a folder has the name of a bundled model).

        If there is no such folder, `owner/name` is looked for on the Hugging Face hub.

        int8: search with a decoder rounded to eight bits, see `decoder_runtime.DecoderRuntime`; codes are not touched.
        device: where the encoder runs, as torch names it.
        """
        bundled = BUNDLED / str(name)
        folder = bundled if os.sep not in str(name) and bundled.is_dir() else Path(name)
        if not folder.is_dir() and HUB_ID.fullmatch(str(name)):
            from genius.model.hub import fetch

            folder = fetch(str(name))
        config, weights = _read(folder)
        try:
            states = _split(load(weights))
            model = cls._build(config, states, device)
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError, GeniusError) as error:
            reason = f"{error} is missing." if isinstance(error, KeyError) else error
            raise BadModel(f"{folder} is not a model this version can load: {reason}") from error
        model.source, model.int8 = str(name), int8
        return model

    @classmethod
    def _build(cls, config: dict[str, Any], states: dict[str, dict[str, Tensor]], device: str) -> "Genius":
        fusion = Fusion(**config["fusion"])
        fusion.load_state_dict(states["fusion"])
        quantizer = Quantizer(**config["quantizer"])
        books = states["quantizer"]
        quantizer.set_codebooks([books[f"level{i}"] for i in range(len(books))])
        decoder = Decoder(DecoderConfig.from_dict(config["decoder"]))
        names = {stored: name for name, stored in STORED_NAMES.items()}
        decoder.load_state_dict({names.get(name, name): value for name, value in states["decoder"].items()})
        encoder = load_encoder(config["encoder"], states["encoder"], device)
        options = {name: config.get(name, usual) for name, usual in OPTIONS.items()}
        return cls(encoder, fusion, quantizer, decoder, config["code_beams"], **options)


def _read(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Configuration and weights of a model folder, complete and undamaged, or BadModel."""
    if not folder.is_dir():
        bundled = ", ".join(sorted(p.name for p in BUNDLED.glob("*") if p.is_dir()))
        raise BadModel(f"There is no model {str(folder)!r}. Give a model folder's path, or a bundled model: {bundled}.")
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise BadModel(f"{folder} is not a whole model: {name} is missing. Copy the folder again, with all files.")
    try:
        config = json.loads((folder / "config.json").read_text())
        version, digest = config["format"], config["digest"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadModel(f"{folder / 'config.json'} is damaged ({error}). Copy the folder again.") from error
    if version != FORMAT:
        raise BadModel(f"{folder} has format {version}; this version reads format {FORMAT}. Upgrade genius-search.")
    weights = (folder / "model.safetensors").read_bytes()
    if hashlib.sha256(weights).hexdigest() != digest:
        file = folder / "model.safetensors"
        raise BadModel(f"{file} is damaged: its digest is not the one in config.json. Copy it again.")
    return config, weights


def _split(tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Tensors by part, back in float32."""
    states: dict[str, dict[str, Tensor]] = {part: {} for part in PARTS}
    for name, value in tensors.items():
        part, rest = name.split(".", 1)
        states[part][rest] = value.float() if value.is_floating_point() else value
    return states


def _books(quantizer: Quantizer) -> list[Any]:
    return list(quantizer.books)


def _stored(value: Tensor, dtype: str) -> Tensor:
    value = value.detach().to(DTYPES[dtype]) if value.is_floating_point() else value.detach()
    return value.contiguous()


def _in_threads(prepare: Any, things: Sequence[Any]) -> list[Prepared]:
    """Decoding releases Python's lock, so images are read in parallel."""
    if len(things) < 4:
        return [prepare(thing) for thing in things]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(prepare, things))
