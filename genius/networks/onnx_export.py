"""Exports a model as ONNX files, for programs without this package.

    encoder_image.onnx   pixels -> image vectors              (encoders of images)
    encoder_text.onnx    token ids -> text vectors            (encoders of texts)
    fusion.onnx          image and text vectors -> fused vectors z
    decoder_open.onnx    z -> log-probabilities of the first level, and the inputs of the steps
    decoder_step.onnx    the codes chosen last -> log-probabilities of the next level
    onnx.json            inputs and outputs of all files, and how to use them

All are float32 and standard ONNX (opset 17); batch, beams and tokens are dynamic axes. The caller reads images,
tokenizes and chooses beams. The decoder's graphs are those of `decoder_runtime`, and also compute what that module's
Python code computes: positions, table rows, and the codes of the level.
"""

import json
import os
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from genius.encoders.base import Encoder
from genius.encoders.clip import ClipEncoder, pooled
from genius.encoders.mini import MiniEncoder, image_model, text_model
from genius.encoders.sentence import SentenceEncoder
from genius.errors import GeniusError
from genius.model.decoder_graph import DecoderGraph
from genius.model.decoder_runtime import DecoderRuntime
from genius.model.genius import Genius
from genius.runtime.onnx_graph import Graph, Inputs, Shape

OPSET = 17
Files = dict[str, bytes]
NOTES = [
    "q queries, w beams of each. decoder_open scores level 0; each decoder_step scores the next level.",
    "codes: (q, w), the codes chosen last. parents: (q, w), the beam of the previous call that each one extends.",
    "new_seen_* are the inputs seen_* of the next step; prefix_* and query_* are outputs of decoder_open.",
    "The score of an ID is the sum of its log-probabilities over the levels.",
]
"""How to use the decoder's files."""


def export_onnx(model: Genius, folder: str | os.PathLike[str]) -> list[str]:
    """Write the files of a model; returns the names of the networks, in the order in which a search runs them."""
    files = encoder_files(model.encoder) | {"fusion": model.fusion.model().to_bytes()} | decoder_files(model.decoder)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.onnx").write_bytes(content)
    about = {
        "fingerprint": model.fingerprint,
        "encoder": model.encoder.config(),
        "dim": model.dim,
        "sizes": list(model.sizes),
        "networks": {name: _interface(content) for name, content in files.items()},
        "notes": NOTES,
    }
    (folder / "onnx.json").write_text(json.dumps(about, indent=2) + "\n")
    return list(files)


def _interface(content: bytes) -> dict[str, dict[str, list[Any]]]:
    graph = onnx.load_from_string(content).graph

    def shape(value: Any) -> list[Any]:
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        return [str(kind), *(d.dim_param or d.dim_value or None for d in value.type.tensor_type.shape.dim)]

    return {
        "inputs": {value.name: shape(value) for value in graph.input},
        "outputs": {value.name: shape(value) for value in graph.output},
    }


# Decoder


class StandardGraph(Graph):
    """A graph of standard operators alone: T5's norm is written out, which ONNX Runtime fuses again."""

    def node(self, kind: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """As in `Graph`."""
        if kind != "SimplifiedLayerNormalization":
            return super().node(kind, *inputs, output=output, **attributes)
        x, weight = inputs
        mean = super().node("ReduceMean", super().node("Mul", x, x), axes=[-1], keepdims=1)
        epsilon = self.constant(np.float32(attributes["epsilon"]))
        size = super().node("Sqrt", super().node("Add", mean, epsilon))
        return super().node("Mul", super().node("Div", x, size), weight, output=output)


def decoder_files(decoder: DecoderRuntime) -> Files:
    """The file that opens a search, and the file of one further level where there is more than one."""
    graph = DecoderGraph(decoder.config, decoder.weights)
    files = {"decoder_open": _open_file(graph)}
    return files | {"decoder_step": _step_file(graph)} if decoder.levels > 1 else files


def _open_file(decoder: DecoderGraph) -> bytes:
    """decoder_open: z (q, d) -> log_probs (q, 1, sizes[0]), and what the steps read."""
    g, c = StandardGraph(), decoder.config
    # 1. The only token is 0, the start of every ID: tokens (1, 1, q)
    queries = g.slice(g.node("Shape", "z"), 0, 1, axis=0)
    shape = g.node("Concat", g.constant([1, 1]), queries, axis=0)
    g.node("ConstantOfShape", shape, value=numpy_helper.from_array(np.zeros(1, np.int64)), output="tokens")
    if decoder.bias is not None:
        g.node("Identity", g.constant(decoder.bias[:, :1, :1]), output="bias")
    # 2. The networks
    decoder.write_query(g)
    decoder.write_tokens(g, past=False)
    if c.layers:
        start, stop = (g.constant(decoder.row_bounds[i : i + 1]) for i in (0, 1))
        _write_scores(g, decoder, start, stop, residual=False)
    else:  # all first codes are equally likely
        shape = g.node("Concat", queries, g.constant([1, c.sizes[0]]), axis=0)
        value = numpy_helper.from_array(np.array([-np.log(c.sizes[0])], np.float32))
        g.node("ConstantOfShape", shape, value=value, output="log_probs")
    outputs: dict[str, Shape] = {"log_probs": ["q", 1, c.sizes[0]]}
    outputs |= decoder.query_shapes | decoder.seen_shapes(1, "q")
    return g.model({"z": (np.float32, ["q", c.dim])}, outputs).to_bytes()


def _step_file(decoder: DecoderGraph) -> bytes:
    """decoder_step: codes, parents (q, w), outputs of the last call -> log_probs (q, w, sizes[level]), new_seen_*."""
    g, c = StandardGraph(), decoder.config
    zero, one = g.constant(np.array([0])), g.constant(np.array([1]))
    # 1. The level, and its rows of the table. seen_* hold the start of the ID and all codes but the last.
    level = g.slice(g.node("Shape", decoder.seen_names[0]), 0, 1, axis=0)
    after = g.node("Add", level, one)
    bounds = g.constant(decoder.row_bounds)
    start, stop = g.node("Gather", bounds, level), g.node("Gather", bounds, after)
    # 2. codes -> tokens (1, w, q), by the table row of the previous level's code 0
    first = g.node("Gather", bounds, g.node("Sub", level, one))
    g.node("Unsqueeze", g.transpose(g.node("Add", "codes", first), 1, 0), zero, output="tokens")
    # 3. parents -> rows of seen_* (w * q,)
    queries = g.slice(g.node("Shape", "codes"), 0, 1, axis=0)
    query = g.node("Range", g.constant(np.array(0)), g.squeeze(queries, 0), g.constant(np.array(1)))
    rows = g.node("Add", g.node("Mul", g.transpose("parents", 1, 0), queries), query)
    g.node("Reshape", rows, g.constant(np.array([-1])), output="rows")
    # 4. The position bias of the level, (heads, 1, level + 1)
    if decoder.bias is not None:
        begins, ends = g.node("Concat", level, zero, axis=0), g.node("Concat", after, after, axis=0)
        g.node("Slice", g.constant(decoder.bias), begins, ends, g.constant(np.array([1, 2])), output="bias")
    # 5. The networks
    decoder.write_tokens(g, past=True)
    _write_scores(g, decoder, start, stop, residual=c.residual_gain > 0)
    inputs: Inputs = {"codes": (np.int64, ["q", "w"]), "parents": (np.int64, ["q", "w"])}
    given = decoder.query_shapes | decoder.seen_shapes("s", "b")
    inputs |= {name: (np.float32, shape) for name, shape in given.items()}
    outputs: dict[str, Shape] = {"log_probs": ["q", "w", None]}
    outputs |= {f"new_{name}": shape for name, shape in decoder.seen_shapes("t", "r").items()}
    return g.model(inputs, outputs).to_bytes()


def _write_scores(g: Graph, decoder: DecoderGraph, start: str, stop: str, residual: bool) -> None:
    """Scores: hidden, sums (1, w, q, ...), query_scores -> log_probs (q, w, ...) of the table rows start to stop."""
    c = decoder.config

    def rows(x: str, axis: int, output: str | None = None) -> str:
        return g.node("Slice", x, start, stop, g.constant(np.array([axis])), output=output)

    logits = []  # each (w, q, rows)
    if c.layers:
        table = g.constant(decoder.output_table(slice(None)).T)
        logits.append(g.node("MatMul", g.squeeze("hidden", 0), table if c.whole_vocabulary else rows(table, 1)))
    if residual:
        books = rows(g.constant(decoder.weights["codebooks"].T * np.float32(c.residual_gain)), 1)
        logits.append(g.node("Sub", rows("query_scores", 2), g.node("MatMul", g.squeeze("sums", 0), books)))
    total = g.transpose(logits[0] if len(logits) == 1 else g.node("Add", *logits), 1, 0, 2)
    if c.whole_vocabulary:
        rows(g.node("LogSoftmax", total, axis=-1), 2, output="log_probs")
    else:
        g.node("LogSoftmax", total, axis=-1, output="log_probs")


# Encoders


def encoder_files(encoder: Encoder) -> Files:
    """The files of an encoder's towers; none for precomputed vectors."""
    if isinstance(encoder, MiniEncoder):
        return _mini_files(encoder)
    if isinstance(encoder, ClipEncoder):
        return _clip_files(encoder)
    return _sentence_files(encoder) if isinstance(encoder, SentenceEncoder) else {}


def _clip_files(encoder: ClipEncoder) -> Files:
    """Inputs are as from `encoder.pixels` and `encoder.tokens`; the texts of a batch have the same number of tokens."""
    transform, model = encoder.transform, cast(Any, encoder.model)
    if transform.shape is None:
        raise GeniusError(
            "This SigLIP 2 resizes its position embeddings for each image, which an ONNX file cannot express. Use one "
            "of a fixed image size (without `naflex` in its name)."
        )

    def image(pixels: Tensor) -> Tensor:
        return pooled(model.get_image_features(pixel_values=transform.values(pixels).permute(0, 3, 1, 2)))

    def text(ids: Tensor) -> Tensor:
        return pooled(model.get_text_features(input_ids=ids))

    pixels = torch.zeros(2, *transform.shape, 3, dtype=torch.uint8, device=encoder.device)
    ids = torch.ones(2, encoder.length, dtype=torch.int64, device=encoder.device)
    length = {1: "tokens"} if encoder.pad is None else {}
    return {
        "encoder_image": traced(image, {"pixels": pixels}, {"pixels": {0: "n"}}),
        "encoder_text": traced(text, {"ids": ids}, {"ids": {0: "n"} | length}),
    }


def _sentence_files(encoder: SentenceEncoder) -> Files:
    """Inputs are token ids and mask of the model's own tokenizer."""

    def text(ids: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = encoder.model({"input_ids": ids, "attention_mask": mask})["sentence_embedding"]
        return out

    ids = torch.ones(2, 5, dtype=torch.int64, device=encoder.model.device)
    mask = ids.clone()
    mask[1, 3:] = 0
    free = {name: {0: "n", 1: "tokens"} for name in ("ids", "mask")}
    return {"encoder_text": traced(text, {"ids": ids, "mask": mask}, free)}


def _mini_files(encoder: MiniEncoder) -> Files:
    """Backbones and heads in one file each; the texts of a batch have the same number of tokens."""
    return {
        "encoder_image": image_model(encoder.heads, encoder.dim).to_bytes(),
        "encoder_text": text_model(encoder.heads, encoder.heads_config).to_bytes(),
    }


class Tower(nn.Module):
    """A function of tensors as a module, which torch's exporter needs."""

    def __init__(self, compute: Callable[..., Tensor]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, *inputs: Tensor) -> Tensor:
        """Call the function."""
        return self.compute(*inputs)


def traced(compute: Callable[..., Tensor], inputs: dict[str, Tensor], free: dict[str, dict[int, str]]) -> bytes:
    """Trace a function to an ONNX model with the output `vectors`. free: names of the inputs' dynamic axes."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), torch.no_grad():
        file = Path(folder, "traced.onnx")
        warnings.simplefilter("ignore")  # about the older exporter, and about axes that are declared dynamic
        torch.onnx.export(
            Tower(compute).eval(),
            tuple(inputs.values()),
            file,
            input_names=list(inputs),
            output_names=["vectors"],
            dynamic_axes=free | {"vectors": {0: "n"}},
            opset_version=OPSET,
            dynamo=False,  # the newer exporter needs packages of its own
        )
        return file.read_bytes()
