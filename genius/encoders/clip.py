"""CLIP, SigLIP and SigLIP 2 of `transformers`, and CLIP weights in OpenAI's format such as UniIR's, as encoders.

Vectors are not normalised: UniIR's score fusion normalises only the sum of image and text vector (as
`Vectors.embedding` does), and the published fusion was trained on raw vectors.
"""

import html
import json
import os
import string
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from pickle import UnpicklingError  # raised by torch when it refuses a file; nothing is unpickled here
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing
from torch import Tensor, nn

from genius.encoders.base import Prepared, Vectors, equal_length_batches
from genius.encoders.image_transform import ImageTransform
from genius.encoders.model_files import as_array, local_folder, needs_extra, reason
from genius.encoders.openai_weights import bare_names, inferred_config, renamed, some
from genius.errors import BadModel
from genius.runtime.progress import show_progress

FAMILIES = ("clip", "siglip", "siglip2")
NEEDED = ("config.json", "model.safetensors", "preprocessor_config.json", "tokenizer.json")
OPENAI_TOKENIZER = "openai/clip-vit-large-patch14"
IMAGES_A_BATCH = 64
TOKENS_A_BATCH = 8192
MAX_CHARACTERS = 8192  # texts are cut here before tokenizing: more characters than 77 tokens hold
VOLATILE = ("transformers_version", "_name_or_path", "dtype", "torch_dtype")  # do not describe the network


class ClipEncoder:
    """A two-tower network with its tokenizer and its image transform.

    `image_vectors` and `text_vectors` keep gradients, for training. On a CUDA device the network computes in half
    precision (CLIP float16, SigLIP bfloat16), elsewhere in float32. Without a tokenizer it reads images only.
    """

    kind = "clip"
    joint = False

    def __init__(
        self,
        model: nn.Module,
        transform: ImageTransform,
        tokenizer: Tokenizer | None,
        config: dict[str, Any],
        device: str = "cpu",
    ) -> None:
        self._config = config
        self.family: str = config["model"]["model_type"]
        self.transform = transform
        self.tokenizer = tokenizer
        self._tokenizer_text = tokenizer.to_str() if tokenizer else ""
        self.length: int = config["tokens"]["length"]
        self.pad: int | None = config["tokens"]["pad"]
        self.clean: str | None = config["tokens"]["clean"]
        self.model = model.eval().requires_grad_(False)
        self.dim = _dimensions(self.family, model.config)
        self._check_shapes()
        if tokenizer is not None:
            tokenizer.no_padding()
            tokenizer.enable_truncation(self.length)
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.to(device)

    @classmethod
    def from_hub(cls, name: str | os.PathLike[str], device: str = "cpu") -> "ClipEncoder":
        """Load a folder in the layout of `transformers`, or `owner/name` of the hub."""
        folder = local_folder(name, NEEDED)
        config = _read_json(folder, "config.json", name)
        family = str(config.get("model_type"))
        if family not in FAMILIES:
            raise BadModel(f"{name} is a model of type {family!r}; only CLIP, SigLIP and SigLIP 2 are supported.")
        if not any(folder.glob("model*.safetensors")) and not any(folder.glob("pytorch_model*.bin")):
            raise BadModel(f"{name} is incomplete: model.safetensors is missing. Copy it into the folder.")
        transform = ImageTransform.from_processor(_processor(folder, name), family)
        tokenizer, clean, pad = _words(folder, family, name)
        model = _load(name, pretrained_model_name_or_path=str(folder), local_files_only=True).float()
        described = {
            "kind": cls.kind,
            "source": str(name) if folder != Path(name) else folder.resolve().name,
            "model": _plain(model.config.to_dict()),
            "pixels": transform.to_dict(),
            "tokens": {"length": model.config.text_config.max_position_embeddings, "pad": pad, "clean": clean},
        }
        return cls(model, transform, tokenizer, described, device)

    @classmethod
    def from_state(cls, config: dict[str, Any], state: dict[str, np.ndarray], device: str = "cpu") -> "ClipEncoder":
        """Restore from a stored configuration and state."""
        arrays = {name.removeprefix("model."): value for name, value in state.items() if name.startswith("model.")}
        weights = {name: torch.from_numpy(value) for name, value in arrays.items()}
        model = _build(config["model"], weights, config["source"])
        stored = state["tokenizer"].tobytes().decode()
        tokenizer = Tokenizer.from_str(stored) if stored else None
        return cls(model, ImageTransform.from_dict(config["pixels"]), tokenizer, config, device)

    def config(self) -> dict[str, Any]:
        """See `Encoder.config`."""
        return self._config

    def state(self) -> dict[str, np.ndarray]:
        """All weights, and the tokenizer file as bytes."""
        words = np.frombuffer(self._tokenizer_text.encode(), np.uint8).copy()
        weights = {f"model.{name}": as_array(value) for name, value in self.model.state_dict().items()}
        return weights | {"tokenizer": words}

    def to(self, device: str | torch.device, dtype: torch.dtype | None = None) -> "ClipEncoder":
        """Move the network. dtype: type of its computations; the weights keep theirs."""
        try:
            self.model.to(device)
        except (RuntimeError, AssertionError) as error:
            raise BadModel(f"The encoder cannot be moved to the device {device!s}: {reason(error)}.") from error
        self.device = torch.device(device)
        half = torch.float16 if self.family == "clip" else torch.bfloat16
        self.dtype = dtype or (half if self.device.type == "cuda" else torch.float32)
        return self

    def pixels(self, image: Image.Image) -> np.ndarray:
        """Resize and crop an RGB image: (height, width, 3) uint8. `image_vectors` scales it."""
        return self.transform.pixels(image)

    @torch.inference_mode()
    def encode(self, inputs: Sequence[Prepared], progress: bool = False) -> Vectors:
        """See `Encoder.encode`."""
        image = np.zeros((len(inputs), self.dim), dtype=np.float32)
        text = np.zeros((len(inputs), self.dim), dtype=np.float32)
        images = [(i, given.pixels) for i, given in enumerate(inputs) if given.pixels is not None]
        with_text = [i for i, given in enumerate(inputs) if given.text]
        with show_progress("encoding", len(images) + len(with_text), progress) as advance:
            for start in range(0, len(images), IMAGES_A_BATCH):
                batch = images[start : start + IMAGES_A_BATCH]
                image[[i for i, _ in batch]] = _numbers(self.image_vectors([pixels for _, pixels in batch]))
                advance(len(batch))
            ids = self.tokens([inputs[i].text for i in with_text])
            for rows in equal_length_batches(np.array([len(i) for i in ids], dtype=np.int64), TOKENS_A_BATCH):
                text[[with_text[r] for r in rows]] = _numbers(self.token_vectors([ids[r] for r in rows]))
                advance(len(rows))
        return Vectors(image, text)

    def image_vectors(self, pixels: Sequence[np.ndarray]) -> Tensor:
        """Vectors of images as `pixels` returns them: (n, dim) float32 on the encoder's device."""
        given = self.image_inputs(pixels)
        moved = {name: one.to(self.device) if isinstance(one, Tensor) else one for name, one in given.items()}
        return self.input_vectors(moved)

    def image_inputs(self, pixels: Sequence[np.ndarray]) -> dict[str, Any]:
        """One batch of images as `pixels` returns them: tensors on the CPU, and lists."""
        if self.transform.patches is not None:
            return self._patches(pixels)
        return {"pixels": torch.from_numpy(np.stack(pixels))}

    def input_vectors(self, given: dict[str, Any]) -> Tensor:
        """Vectors (n, dim) float32 of what `image_inputs` returned, its tensors moved to the encoder's device."""
        if "pixels" in given:
            given = {"pixel_values": self.transform.values(given["pixels"]).permute(0, 3, 1, 2)}
        else:  # SigLIP 2 reads the shapes on the CPU
            given = given | {"spatial_shapes": torch.tensor(given["spatial_shapes"])}
        with self._precision():
            return pooled(self.model.get_image_features(**given))  # type: ignore[operator]

    def text_vectors(self, texts: Sequence[str]) -> Tensor:
        """Vectors of texts: (n, dim) float32 on the encoder's device."""
        return self.token_vectors(self.text_inputs(texts))

    def text_inputs(self, texts: Sequence[str]) -> Tensor:
        """One batch of token ids (n, longest), on the CPU."""
        ids = self.tokens(texts)
        longest = max(len(i) for i in ids)
        # CLIP's text tower is causal and pooled at the end token: tokens after it change nothing.
        return torch.tensor([i + [i[-1]] * (longest - len(i)) for i in ids])

    def tokens(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids, truncated to the model's length; for SigLIP also padded to it, as in its training."""
        if not texts:
            return []
        if self.tokenizer is None:
            raise BadModel(
                f"The encoder ({self._config['source']}) has no tokenizer and reads images only. Put the "
                f"tokenizer.json of {OPENAI_TOKENIZER} beside the weights and convert again."
            )
        cleaned = [CLEANERS[self.clean](text[:MAX_CHARACTERS]) for text in texts]
        ids = [encoding.ids for encoding in self.tokenizer.encode_batch(cleaned)]
        return ids if self.pad is None else [i + [self.pad] * (self.length - len(i)) for i in ids]

    def token_vectors(self, ids: Sequence[Sequence[int]] | Tensor) -> Tensor:
        """Vectors of token ids of one length: (n, dim) float32. No mask, since SigLIP was trained without one."""
        with self._precision():
            given = torch.as_tensor(ids, device=self.device)
            return pooled(self.model.get_text_features(input_ids=given))  # type: ignore[operator]

    def _patches(self, pixels: Sequence[np.ndarray]) -> dict[str, Any]:
        """Images of different proportions as one batch: zero-padded patches and their mask. On the CPU."""
        pieces, shapes = zip(*(self.transform.patch_values(image) for image in pixels), strict=True)
        most = self.transform.patches or 0
        values = torch.stack([nn.functional.pad(piece, (0, 0, 0, most - len(piece))) for piece in pieces])
        mask = torch.tensor([[1] * len(piece) + [0] * (most - len(piece)) for piece in pieces])
        return {"pixel_values": values, "pixel_attention_mask": mask, "spatial_shapes": list(shapes)}

    def _precision(self) -> AbstractContextManager[object]:
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def _check_shapes(self) -> None:
        if self.transform.patches is None:
            side = self._config["model"]["vision_config"]["image_size"]
            if self.transform.shape != (side, side):
                raise BadModel(
                    f"The preprocessing of {self._config['source']} gives images of {self.transform.shape}, but "
                    f"its network takes {(side, side)}. Take both JSON files of the same model."
                )
        size, vocabulary = self._config["model"]["text_config"]["vocab_size"], self.tokenizer
        if vocabulary is not None and vocabulary.get_vocab_size() > size:
            raise BadModel(
                f"The tokenizer has {vocabulary.get_vocab_size()} tokens, the network of {self._config['source']} "
                f"{size}. Take tokenizer.json of the same model."
            )


# Weights and tokenizer in OpenAI's format


def from_openai(
    state_dict: Mapping[str, Tensor],
    tokenizer: Tokenizer | None = None,
    source: str = "clip_sf_large.pth",
) -> ClipEncoder:
    """An encoder from the tensors of OpenAI's CLIP, with the prefix `clip_model.` (as in UniIR's files) or without.

    Shapes are inferred. `source` is the name of the file, for configuration and messages.
    """
    weights = bare_names(state_dict)
    model_config = inferred_config(weights)
    side = model_config["vision_config"]["image_size"]
    transform = ImageTransform.from_processor({"size": side, "crop_size": side}, "clip")
    config = {
        "kind": ClipEncoder.kind,
        "source": source,
        "model": model_config,
        "pixels": transform.to_dict(),
        "tokens": {"length": model_config["text_config"]["max_position_embeddings"], "pad": None, "clean": "openai"},
    }
    return ClipEncoder(_build(model_config, renamed(weights), source), transform, tokenizer, config)


def openai_tokenizer(folder: Path) -> Tokenizer:
    """OpenAI's tokenizer, from a folder if it is there, else from the hub."""
    if (folder / "tokenizer.json").is_file() or (folder / "merges.txt").is_file():
        return _tokenizer(folder, folder)
    return _tokenizer(local_folder(OPENAI_TOKENIZER, ("tokenizer.json",), weights=False), OPENAI_TOKENIZER)


# Files of a folder


def _read_json(folder: Path, file: str, name: object) -> dict[str, Any]:
    try:
        read: dict[str, Any] = json.loads((folder / file).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BadModel(f"{name} is incomplete: {file} is missing. It needs {', '.join(NEEDED)}.") from error
    except ValueError as error:
        raise BadModel(f"{file} of {name} is damaged ({reason(error)}). Copy it again.") from error
    return read


def _processor(folder: Path, name: object) -> dict[str, Any]:
    """Contents of preprocessor_config.json, or the same part of the newer processor_config.json."""
    if not (folder / "preprocessor_config.json").is_file() and (folder / "processor_config.json").is_file():
        both = _read_json(folder, "processor_config.json", name)
        if isinstance(both.get("image_processor"), dict):
            return dict(both["image_processor"])
    return _read_json(folder, "preprocessor_config.json", name)


def _words(folder: Path, family: str, name: object) -> tuple[Tokenizer, str | None, int | None]:
    """Tokenizer, name of the text cleaner (see `CLEANERS`), and the padding token of SigLIP."""
    tokenizer = _tokenizer(folder, name)
    if family == "clip":
        return tokenizer, None, None
    stored = _read_json(folder, "tokenizer_config.json", name)
    made_for = str(stored.get("tokenizer_class"))
    token = stored.get("pad_token", "</s>" if made_for.startswith("SiglipT") else "<pad>")
    pad = tokenizer.token_to_id(token["content"] if isinstance(token, dict) else str(token))
    if pad is None:
        raise BadModel(f"tokenizer_config.json of {name} names padding token {token!r}, which tokenizer.json lacks.")
    if "add_bos_token" in stored or "add_eos_token" in stored:  # transformers follows these, not tokenizer.json
        _set_ends(tokenizer, stored)
    if made_for.startswith("SiglipT"):
        return tokenizer, "words", pad
    return tokenizer, "lower" if family == "siglip2" or "Gemma" in made_for else None, pad


def _set_ends(tokenizer: Tokenizer, stored: dict[str, Any]) -> None:
    """Add start and end token around a text, as the file says."""
    ends = {}
    for end in ("bos", "eos"):
        token = stored.get(f"{end}_token", f"<{end}>")
        ends[end] = token["content"] if isinstance(token, dict) else str(token)
    before, after = (ends[end] if stored.get(f"add_{end}_token") else "" for end in ("bos", "eos"))
    tokens = [(token, tokenizer.token_to_id(token)) for token in (before, after) if token]
    tokenizer.post_processor = TemplateProcessing(single=f"{before} $A {after}".strip(), special_tokens=tokens)


def _tokenizer(folder: Path, name: object) -> Tokenizer:
    try:
        if (folder / "tokenizer.json").is_file():
            return Tokenizer.from_file(str(folder / "tokenizer.json"))
        if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
            words = _transformers().CLIPTokenizerFast(str(folder / "vocab.json"), str(folder / "merges.txt"))
            return Tokenizer.from_str(words.backend_tokenizer.to_str())
    except Exception as error:  # the tokenizers library raises bare Exception
        raise BadModel(f"The tokenizer of {name} cannot be read: {reason(error)}. Copy its files again.") from error
    raise BadModel(f"{name} is incomplete: tokenizer.json is missing. Copy it into the folder.")


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise needs_extra("CLIP and SigLIP encoders need", "transformers") from error
    return transformers


def _build(config: dict[str, Any], weights: dict[str, Tensor], name: object) -> Any:
    """The network from configuration and weights, without random initialisation."""
    described = _transformers().AutoConfig.for_model(**config)
    return _load(name, pretrained_model_name_or_path=None, config=described, state_dict=weights)


def _load(name: object, **given: Any) -> Any:
    """Load the network; every tensor must be in the file."""
    transformers = _transformers()
    config = given.get("config")
    auto = transformers.AutoModel if config is None else transformers.MODEL_MAPPING[type(config)]
    try:
        model, info = auto.from_pretrained(output_loading_info=True, **given)
    except UnpicklingError as error:
        raise BadModel(
            f"{name} cannot be loaded: its .bin file holds more than tensors, so that loading it could run code. "
            "Use the model as model.safetensors."
        ) from error
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
        raise BadModel(f"{name} cannot be loaded: {reason(error)}.") from error
    for what in ("missing", "unexpected", "mismatched"):
        if names := info[f"{what}_keys"]:
            raise BadModel(f"{name} cannot be loaded: {what} tensors {some(map(str, names))}.")
    return model


def _dimensions(family: str, config: Any) -> int:
    if family == "clip":
        return int(config.projection_dim)
    image, text = (
        config.vision_config.hidden_size,
        config.text_config.projection_size or config.text_config.hidden_size,
    )
    if image != text:
        raise BadModel(f"Image vectors of {image} and text vectors of {text} dimensions cannot be compared.")
    return int(image)


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """JSON form without the keys that differ between versions of the library."""
    kept = {key: _plain(v) if isinstance(v, dict) else v for key, v in config.items() if key not in VOLATILE}
    out: dict[str, Any] = json.loads(json.dumps(kept))
    return out


# Text cleaning, as in the networks' training


def _words_only(text: str) -> str:
    """SigLIP: lower case, no punctuation."""
    return " ".join(text.lower().translate(_NO_PUNCTUATION).split())


def _as_openai(text: str) -> str:
    """OpenAI's CLIP: HTML entities resolved twice, curly quotes made straight. Wrong encodings are not repaired."""
    return html.unescape(html.unescape(text.translate(_STRAIGHT))).strip()


_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_STRAIGHT = dict.fromkeys([0x2BC, *range(0x2018, 0x201C)], "'") | dict.fromkeys(range(0x201C, 0x2020), '"')
CLEANERS: dict[str | None, Any] = {None: str, "lower": str.lower, "words": _words_only, "openai": _as_openai}


# Vectors


def pooled(out: Any) -> Tensor:
    """The vectors; older versions of `transformers` return them directly."""
    vectors: Tensor = getattr(out, "pooler_output", out)
    return vectors.float()


def _numbers(vectors: Tensor) -> np.ndarray:
    out: np.ndarray = vectors.cpu().numpy()
    if not np.isfinite(out).all():
        raise BadModel("The encoder returned NaN or infinity. Its weights may be damaged.")
    return out
