"""Converts the authors' published checkpoints, and UniIR's CLIP and BLIP, to a model folder.

The files are not trusted: only tensors are read (`weights_only=True`), and every tensor must have a known name.
"""

import hashlib
import os
import pickle
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from genius.encoders.base import Encoder
from genius.encoders.blip import BlipEncoder, blip_tokenizer
from genius.encoders.blip_network import BlipConfig, BlipNetwork
from genius.encoders.openai_weights import some
from genius.encoders.precomputed import PrecomputedEncoder
from genius.errors import BadModel
from genius.model.decoder_config import DecoderConfig
from genius.model.encoder_only import encoder_only
from genius.model.genius import Genius
from genius.model.quantizer_runtime import MODALITIES
from genius.networks import t5
from genius.networks.decoder import Decoder
from genius.networks.fusion import Fusion
from genius.networks.quantizer import Quantizer

Tensors = dict[str, Tensor]

SOURCES = {
    "rq": "the quantizer, rq_clip_large.pth of the authors of GENIUS",
    "decoder": "the decoder, GENIUS_t5small.pth of the authors of GENIUS",
    "clip": "the encoder, clip_sf_large.pth of UniIR",
    "blip": "the encoder, blip_ff_large.pth of UniIR",
}
TIED = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
"""Other names of the decoder's embedding table, T5's `shared.weight`."""
UNUSED = re.compile(
    r"clip_model\.|contra_projector\.|vq\.|residual_rq\.layers\.\d+\._codebook\.(initted|cluster_size|embed_avg)$"
)
"""Tensors that search does not need: copies, moving averages of the codebooks, and parts for training."""
BLIP_UNUSED = re.compile(
    r"(visual|text)_encoder_m\.|(query|cand|idx|new_ptr)_queue$|temp$|text_encoder\.embeddings\.position_ids$"
)
"""The same for BLIP: momentum copies, queues and temperature of its training, and the numbers of the positions."""

DECODER: dict[str, tuple[str, ...]] = {
    "prefix_network.0.weight": ("embed_projector.0.weight",),
    "prefix_network.0.bias": ("embed_projector.0.bias",),
    "prefix_norm.weight": ("id_generator.encoder.final_layer_norm.weight",),
    "table": ("id_generator.shared.weight",),
    "position_bias": ("id_generator.decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",),
    "final_norm.weight": ("id_generator.decoder.final_layer_norm.weight",),
}
"""Our names -> published names."""
BLOCK = {f"{ours}.weight": tuple(f"{name}.weight" for name in theirs) for ours, theirs in t5.BLOCK.items()}
"""The same for each block. Several published tensors are concatenated into one of ours."""


def convert(
    out: str | os.PathLike[str],
    rq: str | os.PathLike[str] | None = None,
    decoder: str | os.PathLike[str] | None = None,
    clip: str | os.PathLike[str] | None = None,
    blip: str | os.PathLike[str] | None = None,
    tell: Callable[[str], None] = lambda step: None,
) -> Genius:
    """Convert published files to a new model folder, and load it. `tell` is called with a sentence at each step.

    Without `rq`, the quantizer is the copy in the decoder's file. Without `clip`, the model works on precomputed image
    and text vectors. Without `decoder`, the encoder `clip` or `blip` becomes a model without codebooks, which searches
    exactly.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadModel(f"{out} exists already. Give a new folder.")
    given = {"rq": rq, "decoder": decoder, "clip": clip, "blip": blip}
    files = {name: Path(file) for name, file in given.items() if file is not None}
    _check_choice(files)
    for name, file in files.items():
        if not file.is_file():
            raise BadModel(f"There is no file {file}. It should be {SOURCES[name]}; download it and give its path.")
    model = _generative(files, tell) if "decoder" in files else encoder_only(_encoder(files, tell))
    tell(f"Writing {out}")
    model.save_pretrained(out)
    (out / "README.md").write_text(_card(model, files), encoding="utf-8")
    return Genius.from_pretrained(out)


def _check_choice(files: Mapping[str, Path]) -> None:
    """Check that the files can make one model."""
    if "blip" in files and len(files) > 1:
        raise BadModel("Convert blip_ff_large.pth alone: the published quantizer and decoder work on CLIP's vectors.")
    if "rq" in files and "decoder" not in files:
        raise BadModel("A quantizer alone makes no model. Give the decoder too, GENIUS_t5small.pth, with --decoder.")
    if not files:
        raise BadModel("No file was given. Give --decoder, with --clip to read words and images; or --clip or --blip.")


def _generative(files: Mapping[str, Path], tell: Callable[[str], None]) -> Genius:
    """A model of quantizer, decoder and, if its file is given, CLIP."""
    tell(f"Reading {files['decoder']}")
    both = read_checkpoint(files["decoder"])
    copied = {name.removeprefix("quantizer."): both.pop(name) for name in list(both) if name.startswith("quantizer.")}
    if "rq" not in files and not copied:
        raise BadModel(f"{files['decoder']} holds no copy of the quantizer. Give the quantizer's own file with --rq.")
    if "rq" in files:
        tell(f"Reading {files['rq']}")
        tensors = read_checkpoint(files["rq"])
        _compare(files, tensors, copied)
    else:
        tensors = copied
    fusion, quantizer = _quantizer(files.get("rq", files["decoder"]), tensors)
    generator = _decoder(files["decoder"], both, quantizer)
    encoder = _encoder(files, tell) if "clip" in files else PrecomputedEncoder(quantizer.dim)
    if encoder.dim != quantizer.dim:
        raise BadModel(
            f"{files['clip']} gives vectors of {encoder.dim} numbers, but the quantizer works on {quantizer.dim}."
        )
    parts = (fusion.runtime(), quantizer.runtime(), generator.runtime())
    return Genius(encoder, *parts, dtype="float32", first_code="nearest")


# Files


class _Setting:
    """Placeholder for objects that hold training settings; discards its content."""

    def __setstate__(self, state: object) -> None:
        pass


SETTINGS = (
    *("omegaconf.dictconfig.DictConfig", "omegaconf.listconfig.ListConfig", "omegaconf.nodes.AnyNode"),
    *("omegaconf.base.ContainerMetadata", "omegaconf.base.Metadata", "typing.Any", "argparse.Namespace"),
)
"""Classes that training scripts save beside the tensors. `_Setting` replaces them, so that none of their code runs."""


def read_checkpoint(file: Path) -> Tensors:
    """The tensors of a published file, which are under the key "model"; the rest is ignored.

    Only tensors, numbers, strings and collections of them are created, so that a file cannot run code.
    """
    allowed: list[Any] = [*((_Setting, name) for name in SETTINGS), dict, list, str, int, float, bool]
    with torch.serialization.safe_globals(allowed):
        try:
            # Zip files, which torch writes since 1.6, can be memory-mapped.
            content = torch.load(file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file))
        except pickle.UnpicklingError as error:
            found = re.search(r"GLOBAL ([\w.]+)", str(error))
            what = f"it uses {found[1]}" if found else "it is not a file of tensors"
            raise BadModel(
                f"{file} was not read, since reading it could run code: {what}. "
                "Download the published file again from its authors."
            ) from error
        except (RuntimeError, OSError, EOFError, ValueError, KeyError, AttributeError, TypeError) as error:
            reason = str(error).partition("\n")[0]
            raise BadModel(f"{file} cannot be read ({reason}). It may be damaged; download it again.") from error
    tensors = content.get("model") if isinstance(content, dict) else None
    if not isinstance(tensors, dict) or not tensors:
        raise BadModel(f'{file} has no tensors under the key "model"; it is not one of the published checkpoints.')
    for name, value in tensors.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise BadModel(f'{file} holds {name!r}, which is no tensor, under "model"; it is no published checkpoint.')
    return tensors


def _compare(files: Mapping[str, Path], tensors: Tensors, copied: Tensors) -> None:
    """Check that the decoder was trained with this quantizer, of which its file holds a copy."""
    different = [
        name
        for name, value in copied.items()
        if not UNUSED.match(name) and (name not in tensors or not torch.equal(value, tensors[name]))
    ]
    if different:
        raise BadModel(
            f"{files['decoder']} was trained with another quantizer than {files['rq']}: {some(different)} "
            f"{'differs' if len(different) == 1 else 'differ'}. Give matching files, or leave out --rq to "
            "use the quantizer that the decoder's file holds."
        )


# Parts


def _quantizer(file: Path, tensors: Tensors) -> tuple[Fusion, Quantizer]:
    """Fusion and quantizer; their sizes are inferred from the shapes of tensors."""
    hidden, dim = _shape(file, tensors, "encoder.text_projection_layer.weight", 2)
    numbers = _numbers(tensors, r"residual_rq\.layers\.(\d+)\._codebook\.embed$")
    levels = len(numbers) - 1
    if levels < 1:
        raise BadModel(f"{file} holds no codebooks (residual_rq.layers.1._codebook.embed, and so on).")
    codes = _shape(file, tensors, "residual_rq.layers.1._codebook.embed", 3)[1]
    with torch.device("meta"):
        fusion = Fusion(dim, hidden)
    shapes = {f"encoder.{name}": tuple(value.shape) for name, value in fusion.state_dict().items()}
    sizes = (MODALITIES, *[codes] * levels)
    books = [f"residual_rq.layers.{level}._codebook.embed" for level in range(levels + 1)]
    shapes |= {name: (1, size, dim) for name, size in zip(books, sizes, strict=True)}
    _check(file, tensors, shapes)
    weights = {name: _float(file, tensors, f"encoder.{name}") for name in fusion.state_dict()}
    fusion.load_state_dict(weights, assign=True)
    quantizer = Quantizer(dim, codes, levels)
    quantizer.set_codebooks([_float(file, tensors, name)[0] for name in books])
    return fusion, quantizer


def _decoder(file: Path, tensors: Tensors, quantizer: Quantizer) -> Decoder:
    """The decoder; its sizes are inferred from the shapes of tensors."""
    rows, d_model = _shape(file, tensors, "id_generator.shared.weight", 2)
    heads = _shape(file, tensors, DECODER["position_bias"][0], 2)[1]
    inner = _shape(file, tensors, "id_generator.decoder.block.0.layer.0.SelfAttention.q.weight", 2)[0]
    width, dim = _shape(file, tensors, "embed_projector.0.weight", 2)
    config = DecoderConfig(
        dim=dim,
        sizes=quantizer.sizes,
        d_model=d_model,
        layers=len(_numbers(tensors, r"id_generator\.decoder\.block\.(\d+)\.")),
        heads=heads,
        d_kv=inner // heads,
        d_ff=_shape(file, tensors, "id_generator.decoder.block.0.layer.2.DenseReluDense.wi.weight", 2)[0],
        prefix=width // d_model,
        whole_vocabulary=True,
    )
    if rows != config.vocabulary:
        raise BadModel(
            f"{file} has {rows} tokens, but the quantizer's codes {quantizer.sizes} and T5's three special tokens make "
            f"{config.vocabulary}. Give the quantizer that this decoder was trained with."
        )
    decoder = Decoder(config)
    names = published_names(config)
    shapes: dict[str, tuple[int, ...]] = {}
    for name, value in decoder.state_dict().items():
        parts = names[name]
        shapes |= {part: (value.shape[0] // len(parts), *value.shape[1:]) for part in parts}
    _check(file, tensors, shapes, optional=[f"id_generator.{name}" for name in TIED])
    for name in (f"id_generator.{name}" for name in TIED):
        if name in tensors and not torch.equal(tensors[name], tensors["id_generator.shared.weight"]):
            raise BadModel(f"{file} has other values in {name} than in id_generator.shared.weight; they must be equal.")
    ours = {name: torch.cat([_float(file, tensors, part) for part in parts]) for name, parts in names.items()}
    decoder.load_state_dict(ours)
    return decoder


def published_names(config: DecoderConfig) -> dict[str, tuple[str, ...]]:
    """Names of a decoder's tensors -> published names, whose tensors are concatenated in this order."""
    names = dict(DECODER)
    for layer in range(config.layers):
        block = f"id_generator.decoder.block.{layer}."
        names |= {f"blocks.{layer}.{name}": tuple(block + part for part in parts) for name, parts in BLOCK.items()}
    return names


def _encoder(files: Mapping[str, Path], tell: Callable[[str], None]) -> Encoder:
    """The encoder of UniIR's file, CLIP or BLIP."""
    file = files.get("clip") or files["blip"]
    tell(f"Reading {file}")
    return _clip(file) if "clip" in files else _blip(file)


def _clip(file: Path) -> Encoder:
    from genius.encoders.clip import OPENAI_TOKENIZER, from_openai, openai_tokenizer

    try:
        tokenizer = openai_tokenizer(file.parent)
    except BadModel as error:
        raise BadModel(
            f"{file} has no tokenizer with it. Put the file tokenizer.json of {OPENAI_TOKENIZER} into its folder."
        ) from error
    return from_openai(read_checkpoint(file), tokenizer, file.name)


def _blip(file: Path) -> Encoder:
    tensors = read_checkpoint(file)
    try:
        config = BlipConfig.inferred(tensors)
    except BadModel as error:
        raise BadModel(f"{file} is not {SOURCES['blip'].removeprefix('the encoder, ')}. {error}") from error
    with torch.device("meta"):
        shapes = {name: tuple(value.shape) for name, value in BlipNetwork(config).state_dict().items()}
    _check(file, tensors, shapes, unused=BLIP_UNUSED)
    weights = {name: _float(file, tensors, name) for name in shapes}
    return BlipEncoder(BlipNetwork.with_weights(config, weights), blip_tokenizer(), file.name)


# Tensors


def _shape(file: Path, tensors: Tensors, name: str, dimensions: int) -> torch.Size:
    """Shape of a tensor that must be there."""
    if name not in tensors:
        raise BadModel(f"{file} lacks the tensor {name}; it is not the published checkpoint it should be.")
    shape = tensors[name].shape
    if len(shape) != dimensions or min(shape) < 1:
        raise BadModel(f"{file}: {name} has the shape {tuple(shape)}; {dimensions} dimensions are needed.")
    return shape


def _numbers(tensors: Iterable[str], pattern: str) -> set[int]:
    return {int(found[1]) for found in (re.match(pattern, name) for name in tensors) if found}


def _check(
    file: Path,
    tensors: Tensors,
    shapes: Mapping[str, tuple[int, ...]],
    optional: Iterable[str] = (),
    unused: re.Pattern[str] = UNUSED,
) -> None:
    """Check that the file has exactly these tensors and shapes, apart from optional and unused ones."""
    missing = [name for name in shapes if name not in tensors]
    known = {*shapes, *optional}
    unknown = [name for name in tensors if name not in known and not unused.match(name)]
    wrong = [
        f"{name} {tuple(tensors[name].shape)} instead of {shape}"
        for name, shape in shapes.items()
        if name in tensors and tuple(tensors[name].shape) != shape
    ]
    problems = [
        f"{what}: {some(names)}"
        for what, names in (("missing", missing), ("unknown", unknown), ("of another shape", wrong))
        if names
    ]
    if problems:
        raise BadModel(f"{file} does not hold the tensors of a published model. {'; '.join(problems).capitalize()}.")


def _float(file: Path, tensors: Tensors, name: str) -> Tensor:
    """A tensor in float32."""
    value = tensors[name]
    if not value.is_floating_point() or not torch.isfinite(value).all():
        raise BadModel(f"{file}: {name} holds values that are not numbers. The file is damaged; download it again.")
    return value.to(torch.float32, copy=True).contiguous()


def _card(model: Genius, files: Mapping[str, Path]) -> str:
    """README.md of the folder, with digests of the published files."""
    config = model.decoder.config
    if model.encoder_only:
        title = "A published encoder, converted"
        about = f"{model.dim} dimensions, no codebooks: search compares a query with every item."
    else:
        title = "A published GENIUS model, converted"
        about = (
            f"{model.dim} dimensions; {model.quantizer.codes_per_level} codes on each of {model.quantizer.levels} "
            f"levels, behind one of {MODALITIES} first codes; a decoder of {config.layers} layers with "
            f"{config.prefix} prefix embeddings."
        )
    lines = [
        *(f"# {title}", "", f"{about} Fingerprint `{model.fingerprint}`.", ""),
        *("| file | SHA-256 |", "|---|---|"),
    ]
    for file in files.values():
        with file.open("rb") as opened:
            lines.append(f"| {file.name} | `{hashlib.file_digest(opened, 'sha256').hexdigest()}` |")
    if "clip" not in files and "blip" not in files:
        lines += ["", "It has no encoder and works on precomputed image and text vectors."]
    return "\n".join(lines) + "\n"
