"""Golden values of the published GENIUS implementation, for the tests of fusion, quantizer, decoder and beam search.

`arrays()` gives the recorded inputs and outputs; `weights(group)` makes the weights behind them again from the recipe
(nothing but a random generator seeded by each tensor's name). Knows nothing of our modules: tests map the names.
"""

import functools
import json
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

DATA = Path(__file__).parent / "data"
SEED = 1
GROUPS = {"rq": "", "id_generator": "id_generator.", "embed_projector": "embed_projector."}  # group -> seeding prefix
TIED = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")


@functools.cache
def arrays() -> dict[str, NDArray[np.generic]]:
    """Every recorded array by name, e.g. `cand_img` (400, 768) float32 or `cand_codes` (400, 5) int64."""
    with np.load(DATA / "official_small.npz", allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def tensor(name: str) -> torch.Tensor:
    """One recorded array as a fresh torch tensor."""
    return torch.from_numpy(arrays()[name].copy())


def masked(side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(image, text) inputs of `side` ("cand" or "query"), each (n, 768) float32, absent modalities zeroed."""
    return tuple(tensor(f"{side}_{kind}") * tensor(f"{side}_{kind}_mask") for kind in ("img", "txt"))  # type: ignore[return-value]


@functools.cache
def shapes() -> dict[str, tuple[int, ...]]:
    """Shape of every tensor of the published checkpoints, by "group:name"."""
    listing = json.loads((DATA / "official_small_keys.json").read_text(encoding="utf-8"))
    return {key: tuple(shape) for key, (shape, _) in listing.items()}


def weights(group: str, only: str = "") -> dict[str, torch.Tensor]:
    """name -> float32 tensor for a group: "rq", "id_generator" or "embed_projector".

    Names stand as in `official_small_keys.json`, without the group. `only` keeps the names that start so (the fusion
    weights alone, "encoder.", are 220 MB: ask for what is needed). Tensors that do not matter (`initted` flags, EMA
    state of the codebooks) are left out.
    """
    names = (key.split(":", 1)[1] for key in shapes() if key.startswith(f"{group}:"))
    return {name: _weight(group, name) for name in names if name.startswith(only) and _matters(name)}


def _matters(name: str) -> bool:
    return not name.endswith(("_codebook.initted", "_codebook.cluster_size", "_codebook.embed_avg"))


def _weight(group: str, name: str) -> torch.Tensor:
    shape = shapes()[f"{group}:{name}"]
    seeded_name = GROUPS[group] + _canonical(name)
    draw = np.random.default_rng([zlib.crc32(seeded_name.encode()), SEED]).standard_normal(shape, dtype=np.float32)
    return torch.from_numpy(_scaled(seeded_name, draw).astype(np.float32))


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
