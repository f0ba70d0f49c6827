"""Golden values of the published GENIUS implementation, for the tests of fusion, quantizer, decoder and beam search.

`arrays()` gives the recorded inputs and outputs; `weights(group)` makes the weights behind them again from the recipe
(nothing but a random generator seeded by each tensor's name), for other seeds and sizes too, and `write_checkpoints`
puts them into files as they were published. Knows nothing of our modules: tests map the names.
"""

import functools
import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

DATA = Path(__file__).parent / "golden_values"
SEED = 1
GROUPS = {"rq": "", "id_generator": "id_generator.", "embed_projector": "embed_projector."}  # group -> seeding prefix
TIED = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
Shapes = dict[str, tuple[int, ...]]


@functools.cache
def arrays() -> dict[str, NDArray[np.generic]]:
    """Every recorded array by name, e.g. `cand_img` (400, 768) float32 or `cand_codes` (400, 5) int64."""
    with np.load(DATA / "official_small.npz", allow_pickle=False) as stored:
        recorded = {name: stored[name] for name in stored.files}
    random = np.random.default_rng(SEED)  # as the recording drew its inputs: large, and not stored for that reason
    for name in ("cand_img", "cand_txt"):
        recorded[name] = random.standard_normal((400, 768)).astype(np.float32)
    return recorded


def tensor(name: str) -> torch.Tensor:
    """One recorded array as a fresh torch tensor."""
    return torch.from_numpy(arrays()[name].copy())


def masked(side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(image, text) inputs of `side` ("cand" or "query"), each (n, 768) float32, absent modalities zeroed."""
    return tuple(tensor(f"{side}_{kind}") * tensor(f"{side}_{kind}_mask") for kind in ("img", "txt"))  # type: ignore[return-value]


@functools.cache
def shapes() -> Shapes:
    """Shape of every tensor of the published checkpoints, by "group:name"."""
    listing = json.loads((DATA / "official_small_keys.json").read_text(encoding="utf-8"))
    return {key: tuple(shape) for key, (shape, _) in listing.items()}


@dataclass(frozen=True)
class Size:
    """Of a published model; the defaults are those of the recorded one. The paper's has 4096 codes on 8 levels."""

    dim: int = 768
    hidden: int = 2560
    codes: int = 256
    levels: int = 4
    d_model: int = 512
    layers: int = 6
    heads: int = 8
    d_kv: int = 64
    d_ff: int = 2048
    prefix: int = 30

    @property
    def vocabulary(self) -> int:
        return 3 + 3 + self.codes * self.levels

    def shapes(self) -> Shapes:
        """Shape of every tensor of the checkpoints, by "group:name", in their order."""
        return self._fusion() | self._codebooks() | self._t5() | self._projector()

    def _fusion(self) -> Shapes:
        dim, hidden, joint = self.dim, self.hidden, 2 * self.hidden
        layers = {
            "text_projection_layer": (hidden, dim),
            "image_projection_layer": (hidden, dim),
            "combiner_layer": (joint, joint),
            "output_layer": (dim, joint),
            "dynamic_scalar.0": (joint, joint),
            "dynamic_scalar.3": (1, joint),
        }
        found: Shapes = {}
        for name, (outputs, inputs) in layers.items():
            found |= {f"rq:encoder.{name}.weight": (outputs, inputs), f"rq:encoder.{name}.bias": (outputs,)}
        return found

    def _codebooks(self) -> Shapes:
        found: Shapes = {}
        for level, name in enumerate(["vq", *(f"residual_rq.layers.{i}" for i in range(self.levels + 1))]):
            book, size = f"rq:{name}._codebook.", 3 if level < 2 else self.codes
            found |= {f"{book}initted": (), f"{book}cluster_size": (1, size)}
            found |= {f"{book}embed_avg": (1, size, self.dim), f"{book}embed": (1, size, self.dim)}
        return found

    def _t5(self) -> Shapes:
        d, inner, table = self.d_model, self.heads * self.d_kv, (self.vocabulary, self.d_model)
        found: Shapes = {"shared.weight": table, "encoder.embed_tokens.weight": table}
        found |= {"encoder.final_layer_norm.weight": (d,), "decoder.embed_tokens.weight": table}
        for block in range(self.layers):
            for layer, attention in enumerate(("SelfAttention", "EncDecAttention")):
                name = f"decoder.block.{block}.layer.{layer}."
                found |= {f"{name}{attention}.{part}.weight": (inner, d) for part in "qkv"}
                found[f"{name}{attention}.o.weight"] = (d, inner)
                if block == layer == 0:
                    found[f"{name}{attention}.relative_attention_bias.weight"] = (32, self.heads)
                found[f"{name}layer_norm.weight"] = (d,)
            name = f"decoder.block.{block}.layer.2."
            found |= {
                f"{name}DenseReluDense.wi.weight": (self.d_ff, d),
                f"{name}DenseReluDense.wo.weight": (d, self.d_ff),
            }
            found[f"{name}layer_norm.weight"] = (d,)
        found |= {"decoder.final_layer_norm.weight": (d,), "lm_head.weight": table}
        return {f"id_generator:{name}": shape for name, shape in found.items()}

    def _projector(self) -> Shapes:
        width = self.prefix * self.d_model
        return {"embed_projector:0.weight": (width, self.dim), "embed_projector:0.bias": (width,)}


def weights(group: str, only: str = "", seed: int = SEED, size: Size | None = None) -> dict[str, torch.Tensor]:
    """name -> float32 tensor for a group: "rq", "id_generator" or "embed_projector".

    Names stand as in `official_small_keys.json`, without the group. `only` keeps the names that start so (the fusion
    weights alone, "encoder.", are 220 MB: ask for what is needed). Tensors that do not matter (`initted` flags, EMA
    state of the codebooks) are left out. Tensors that are one under several names share their memory.
    """
    listing = shapes() if size is None else size.shapes()
    found: dict[str, torch.Tensor] = {}
    made: dict[str, torch.Tensor] = {}
    for key, shape in listing.items():
        name = key.removeprefix(f"{group}:")
        if name == key or not name.startswith(only) or not _matters(name):
            continue
        seeded_name = GROUPS[group] + _canonical(name)
        if seeded_name not in made:
            made[seeded_name] = _weight(seeded_name, shape, seed)
        found[name] = made[seeded_name]
    return found


def write_checkpoints(folder: Path, seed: int = SEED, size: Size | None = None) -> tuple[Path, Path]:
    """The recipe's weights as the two published files, for the quantizer and for the decoder.

    With what lies beside the weights there: EMA state, a layer that only training uses, the state of the training.
    """
    rq = weights("rq", seed=seed, size=size)
    for name, embed in list(rq.items()):
        if name.endswith("_codebook.embed"):
            rq |= {f"{name}_avg": embed, name.replace("embed", "cluster_size"): torch.ones(embed.shape[:2])}
            rq[name.replace("embed", "initted")] = torch.tensor(True)
    written: dict[str, torch.Tensor] = {f"quantizer.{name}": value for name, value in rq.items()}
    for group in ("id_generator", "embed_projector"):
        written |= {f"{group}.{name}": value for name, value in weights(group, seed=seed, size=size).items()}
    written |= {"contra_projector.weight": torch.ones(2, 3), "contra_projector.bias": torch.ones(2)}
    rq["clip_model.logit_scale"] = torch.tensor(4.6)
    files = folder / "rq_clip_large.pth", folder / "GENIUS_t5small.pth"
    for file, tensors in zip(files, (rq, written), strict=True):
        write_checkpoint(file, tensors)
    return files


def write_checkpoint(file: Path, tensors: dict[str, Any]) -> Path:
    torch.save({"model": tensors, "optimizer": {"state": {}, "param_groups": [{"lr": 1e-4}]}, "epoch": 19}, file)
    return file


def _matters(name: str) -> bool:
    return not name.endswith(("_codebook.initted", "_codebook.cluster_size", "_codebook.embed_avg"))


def _weight(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    draw = np.random.default_rng([zlib.crc32(name.encode()), seed]).standard_normal(shape, dtype=np.float32)
    return torch.from_numpy(_scaled(name, draw).astype(np.float32))


def _canonical(name: str) -> str:
    """The name whose random numbers hold for tensors that appear under several names."""
    if name in TIED:
        return "shared.weight"
    return name.replace("vq.", "residual_rq.layers.0.", 1) if name.startswith("vq.") else name


def _scaled(name: str, x: NDArray[np.float32]) -> NDArray[np.floating]:
    """The recipe's rules, the first that fits."""
    if name.endswith("layer_norm.weight"):
        return 1 + 0.1 * x
    if "_codebook.embed" in name:
        return 0.04 * x
    if name.endswith("relative_attention_bias.weight"):
        return 0.5 * x
    if name.endswith("shared.weight"):
        return x
    if name.endswith("bias"):
        return 0.01 * x
    return x / np.sqrt(x.shape[-1]) if x.ndim >= 2 else 0.02 * x
