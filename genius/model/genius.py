"""Genius: encoder, fusion, quantizer and decoder as one model that can be saved and loaded.

A model folder holds `config.json` (shapes, and the digest of the weights), `model.safetensors` (weights of all parts,
prefixed by the part's name) and, for people, `README.md`.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from genius.data.images import decoded
from genius.data.items import Item, Query, clean_text
from genius.encoders.base import Encoder, Prepared, Vectors
from genius.encoders.function import EncodeFunction, FunctionEncoder
from genius.encoders.loading import load_encoder
from genius.encoders.model_files import HUB_ID, hub_library
from genius.errors import BadImage, BadItem, BadModel, GeniusError, MissingExtra
from genius.model.decoder_config import DecoderConfig
from genius.model.decoder_runtime import DecoderRuntime
from genius.model.fusion_runtime import FusionRuntime, weight_shapes
from genius.model.hub import CARD, PLAIN_CARD, check_name, fetch, upload
from genius.model.quantizer_runtime import MODALITIES, QuantizerRuntime

FORMAT = 1
BUNDLED = Path(__file__).parent / "bundled"
PARTS = ("encoder", "fusion", "quantizer", "decoder")
DTYPES = ("float16", "float32")
OPTIONS: dict[str, Any] = {"dtype": "float16", "first_code": "modality", "instructions": True}
"""Defaults of optional settings. Only other values are stored, so that older models keep their fingerprints."""
Arrays = dict[str, np.ndarray]
T = TypeVar("T")


class Genius:
    """The model. Load one with `Genius.from_pretrained("mini")`, or with the path of a model folder.

    Args:
        encoder: Texts and images -> vectors.
        fusion: Image and text vectors -> fused vectors.
        quantizer: Fused vectors -> codes.
        decoder: Fused query vectors -> log-probabilities of codes. It gets the quantizer's code vectors.
        code_beams: Beam width when an item's codes are chosen (see `QuantizerRuntime.encode`).
        dtype: Type of the weights in a saved folder, "float16" or "float32".
        first_code: "modality", the modality of the item; or "nearest", the nearest of the three first codes, as in the
            published models, whose first codes stand for modalities only roughly and in no known order.
        instructions: Whether the encoder was trained with instructions. If not, queries without an instruction of their
            own are encoded without one.

    Raises:
        BadModel: The parts do not fit together.
    """

    def __init__(
        self,
        encoder: Encoder,
        fusion: FusionRuntime,
        quantizer: QuantizerRuntime,
        decoder: DecoderRuntime,
        code_beams: int = 1,
        dtype: str = OPTIONS["dtype"],
        first_code: str = OPTIONS["first_code"],
        instructions: bool = OPTIONS["instructions"],
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
        self.encoder, self.fusion, self.quantizer = encoder, fusion, quantizer
        self.decoder = decoder.with_codebooks(quantizer.codebooks)
        self.code_beams, self.dtype, self.first_code = code_beams, dtype, first_code
        self.instructions = instructions
        self.source: str | None = None

    @property
    def dim(self) -> int:
        """Dimensions of all vectors."""
        return self.encoder.dim

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of codes of each level, the modality level first."""
        return self.quantizer.sizes

    @property
    def encoder_only(self) -> bool:
        """Whether IDs are the modality alone (see `genius.model.encoder_only`)."""
        return len(self.sizes) == 1

    # From items and queries to vectors

    def prepare(self, item: Item, image_name: str | None = None) -> Prepared:
        """Read and decode one item. Safe to call from many threads.

        Args:
            item: The item to prepare.
            image_name: Name of the image in error messages; by default its path.

        Raises:
            BadItem: The item has neither text nor image, or its image cannot be decoded.
        """
        item.modality  # noqa: B018 (raises where there is neither text nor image)
        return Prepared(self._pixels(item.id, item.image, image_name), clean_text(item.text))

    def prepare_query(self, query: Query) -> Prepared:
        """Read and decode one query; its text is instruction and text as one string."""
        if not self.instructions and query.instruction is None:
            query = replace(query, instruction="")
        return Prepared(self._pixels("query", query.image), query.prompt())

    def _pixels(self, owner: str, image: Any, image_name: str | None = None) -> np.ndarray | None:
        if image is None:
            return None
        try:
            with decoded(image, image_name) as rgb:
                return self.encoder.pixels(rgb)
        except BadImage as error:
            raise BadItem(owner, str(error)) from error

    def encode(self, prepared: Sequence[Prepared], progress: bool = False) -> Vectors:
        """Image and text vectors of prepared items or queries, (n, dim) each."""
        return self.encoder.encode(prepared, progress=progress)

    def encode_items(self, items: Sequence[Item], progress: bool = False) -> Vectors:
        """Image and text vectors of items, (n, dim) each."""
        return self.encode(_map_in_threads(self.prepare, items), progress)

    def encode_queries(self, queries: Sequence[Query], progress: bool = False) -> Vectors:
        """Image and text vectors of queries, (n, dim) each."""
        return self.encode(_map_in_threads(self.prepare_query, queries), progress)

    # From vectors to codes

    def fuse(self, vectors: Vectors) -> np.ndarray:
        """The fused vectors z = h(x, y), (n, dim) float32, which quantizer and decoder work on."""
        return self.fusion(vectors.image, vectors.text)

    def codes(self, vectors: Vectors) -> np.ndarray:
        """The semantic IDs of items (Eq. 4), (n, levels) uint16; see `first_code` for the first level."""
        modality = vectors.modality if self.first_code == "modality" else None
        return self.quantizer.encode(self.fuse(vectors), modality, beams=self.code_beams)

    # Folders

    @cached_property
    def fingerprint(self) -> str:
        """Hash of weights and settings: models with the same fingerprint give the same codes."""
        return self._fingerprint(self._bytes())

    def _fingerprint(self, weights: bytes) -> str:
        """The fingerprint of a model with these weights, in the format of its folder."""
        digest = hashlib.sha256(json.dumps(self._config()).encode())
        digest.update(weights)
        return digest.hexdigest()[:16]

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
        arrays: Arrays = {}
        for part, state in self._states().items():
            arrays |= {f"{part}.{name}": _stored(value, self.dtype) for name, value in state.items()}
        return save(arrays)

    def _states(self) -> dict[str, Mapping[str, np.ndarray]]:
        return {
            "encoder": self.encoder.state(),
            "fusion": self.fusion.weights,
            "quantizer": {f"level{i}": codes for i, codes in enumerate(self.quantizer.own_codebooks)},
            "decoder": {name: value for name, value in self.decoder.weights.items() if name != "codebooks"},
        }

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write the model folder. With `dtype` float16, weights are rounded to half precision."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        weights = self._bytes()
        config = {"format": FORMAT, "digest": hashlib.sha256(weights).hexdigest(), **self._config()}
        (folder / "model.safetensors").write_bytes(weights)
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")

    def push_to_hub(self, name: str, card: str | None = None, private: bool = False) -> str:
        """Publish the model as `owner/name` on the Hugging Face hub.

        Args:
            name: Name on the hub.
            card: Text of the model card, for example from `genius.evaluation.model_card.model_card`, which states
                results. Default: a plain card.
            private: Only you can see the model.

        Returns:
            The address of the model's page.

        Raises:
            GeniusError: The name is not `owner/name`, or the hub refused.
        """
        check_name(name)
        hub_library()  # raises early where it is not installed
        text = PLAIN_CARD.format(name=name, fingerprint=self.fingerprint) if card is None else card
        with tempfile.TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            Path(folder, CARD).write_text(text, encoding="utf-8")
            return upload(folder, name, f"Model {self.fingerprint}", private)

    @classmethod
    def from_pretrained(
        cls,
        name: str | os.PathLike[str],
        int8: bool = True,
        device: str = "cpu",
        encoder: EncodeFunction | None = None,
    ) -> "Genius":
        """Load a model.

        Args:
            name: The bundled model "mini", a model folder (`./mini` if a folder has the name of a bundled model), or,
                if there is no such folder, `owner/name` on the Hugging Face hub.
            int8: Search with a decoder rounded to eight bits (see `DecoderRuntime`), or in float32. Codes of
                items do not depend on it.
            device: Device of the encoder, as torch names it.
            encoder: The function of a model that was fitted with a function (see `FunctionEncoder`).

        Raises:
            BadModel: There is no such model, or it is damaged or of another version.
        """
        bundled = BUNDLED / str(name)
        folder = bundled if os.sep not in str(name) and bundled.is_dir() else Path(name)
        if not folder.is_dir() and HUB_ID.fullmatch(str(name)):
            folder = fetch(str(name))
        config, weights = _read(folder)
        try:
            states = _split(load(weights))
            model = cls._build(config, states, int8, device)
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError, GeniusError) as error:
            reason = f"{error} is missing." if isinstance(error, KeyError) else error
            raise BadModel(f"{folder} is not a model this version can load: {reason}") from error
        if encoder is not None:
            if not isinstance(model.encoder, FunctionEncoder):
                raise BadModel(f"{folder} has an encoder of its own. Load it without the argument encoder.")
            model.encoder.function = encoder
        model.source = str(name)
        model.fingerprint = model._fingerprint(weights)  # those of `_bytes`, which would take longer
        return model

    @classmethod
    def fit(
        cls, items: Any, encoder: Any = None, out: str | os.PathLike[str] | None = None, **options: Any
    ) -> "Genius":
        """Learn codebooks and a decoder for any encoder from a collection without labels.

        >>> model = Genius.fit(items, encoder="openai/clip-vit-base-patch32", out="my-model")  # doctest: +SKIP
        >>> model = Genius.fit(vectors, out="my-model")  # an array (n, d)  # doctest: +SKIP

        Args:
            items: Items, `Vectors`, or an array (n, d) of vectors.
            encoder: "mini", the folder or hub id of a CLIP, SigLIP or sentence-transformers model, an `Encoder`, or a
                function from a list of texts or of PIL images to an array (n, d). None, with vectors: the model
                accepts vectors only.
            out: Model folder to write, with the report of the check in `fit.json`. An interrupted fit in it continues.
            **options: See `genius.fit.run.fit`.

        Raises:
            MissingExtra: Torch is not installed.
            GeniusError: There are too few items, or the encoder cannot be opened.
        """
        try:
            run = import_module("genius.fit.run")  # by name: this room does not know the later ones
        except ModuleNotFoundError as error:
            raise MissingExtra("Genius.fit", "train") from error
        model: Genius = run.fit(items, encoder, out, **options)[0]
        return model

    @classmethod
    def _build(cls, config: dict[str, Any], states: dict[str, Arrays], int8: bool, device: str) -> "Genius":
        quantizer = _quantizer(config["quantizer"], states["quantizer"])
        decoder_config = DecoderConfig.from_dict(config["decoder"])
        _check_shapes("decoder", states["decoder"], decoder_config.weight_shapes())
        _check_shapes("fusion", states["fusion"], weight_shapes(**config["fusion"]))
        decoder = DecoderRuntime(decoder_config, states["decoder"], int8)
        encoder = load_encoder(config["encoder"], states["encoder"], device)
        options = {name: config.get(name, usual) for name, usual in OPTIONS.items()}
        return cls(encoder, FusionRuntime(states["fusion"]), quantizer, decoder, config["code_beams"], **options)


def load_quantizer(folder: str | os.PathLike[str]) -> QuantizerRuntime:
    """The quantizer of a model folder alone, without reading the other weights.

    Raises:
        BadModel: The folder is not a model.
    """
    path = Path(folder)
    try:
        config = json.loads((path / "config.json").read_text())
        with safe_open(path / "model.safetensors", "numpy") as file:
            names = [name for name in file.keys() if name.startswith("quantizer.")]  # noqa: SIM118 (not a dict)
            books = {name.removeprefix("quantizer."): file.get_tensor(name).astype(np.float32) for name in names}
        return _quantizer(config["quantizer"], books)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise BadModel(f"{folder} is not a complete model ({error!r}). Copy the whole folder again.") from error


def _read(folder: Path) -> tuple[dict[str, Any], bytes]:
    """Configuration and weights of a model folder; BadModel if it is incomplete or damaged."""
    if not folder.is_dir():
        bundled = ", ".join(sorted(p.name for p in BUNDLED.glob("*") if p.is_dir()))
        raise BadModel(f"There is no model {str(folder)!r}. Give a model folder's path, or a bundled model: {bundled}.")
    for name in ("config.json", "model.safetensors"):
        if not (folder / name).is_file():
            raise BadModel(f"{folder} is not a complete model: {name} is missing. Copy the whole folder again.")
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


def _split(arrays: Arrays) -> dict[str, Arrays]:
    """Arrays by part, in float32."""
    states: dict[str, Arrays] = {part: {} for part in PARTS}
    for name, value in arrays.items():
        part, rest = name.split(".", 1)
        states[part][rest] = value.astype(np.float32) if value.dtype.kind == "f" else value
    return states


def _quantizer(config: dict[str, Any], books: Arrays) -> QuantizerRuntime:
    sizes = [MODALITIES, *[config["codes_per_level"]] * (1 if config["shared"] else config["levels"])]
    _check_shapes("quantizer", books, {f"level{i}": (size, config["dim"]) for i, size in enumerate(sizes)})
    return QuantizerRuntime([books[f"level{i}"] for i in range(len(books))], config["levels"], config["shared"])


def _check_shapes(part: str, weights: Arrays, shapes: dict[str, tuple[int, ...]]) -> None:
    found = {name: value.shape for name, value in weights.items()}
    wrong = sorted(name for name in shapes.keys() | found.keys() if shapes.get(name) != found.get(name))
    if wrong:
        raise BadModel(
            f"of the weights of its {part}, {', '.join(wrong[:5])} are missing, unknown or of another shape than "
            "config.json says."
        )


def _stored(value: np.ndarray, dtype: str) -> np.ndarray:
    return np.asarray(value, dtype if value.dtype.kind == "f" else None, order="C")


def _map_in_threads(prepare: Callable[[T], Prepared], inputs: Sequence[T]) -> list[Prepared]:
    """Decoding releases Python's lock, so that images are read in parallel."""
    if len(inputs) < 4:
        return [prepare(one) for one in inputs]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(prepare, inputs))
