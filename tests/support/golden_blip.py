"""Golden values of UniIR's BLIP-FF, for the tests of the encoder.

`arrays()` gives the recorded inputs, intermediates and outputs; `weights()` makes the weights behind them again from
the recipe. `write_checkpoint` puts weights of another small size, which the tokenizer's words fit, into a file as it
was published. Knows nothing of our modules.
"""

import functools
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

DATA = Path(__file__).parent / "golden_values"
SEED = 1
NORMS = ("LayerNorm.weight", "norm1.weight", "norm2.weight", "norm.weight")
TABLES = ("word_embeddings.weight", "position_embeddings.weight", "pos_embed", "cls_token")
WORDS = 30524  # of the published tokenizer


@functools.cache
def arrays() -> dict[str, NDArray[Any]]:
    """Every recorded array by name, such as `pixels` (10, 3, 48, 48) or `embeddings` (10, 48)."""
    with np.load(DATA / "blip_ff_small.npz", allow_pickle=False) as stored:
        return {name: stored[name] for name in stored.files}


def keys(size: str = "small") -> dict[str, tuple[tuple[int, ...], str, bool]]:
    """Shape, type and use (whether an embedding depends on it) of every tensor: "small" or "large"."""
    listing = json.loads((DATA / f"blip_ff_{size}_keys.json").read_text(encoding="utf-8"))
    return {name: (tuple(shape), dtype, used) for name, (shape, dtype, used) in listing.items()}


def weights() -> dict[str, torch.Tensor]:
    """The weights of the recorded network, without those that no embedding depends on."""
    used = {name: shape for name, (shape, dtype, used) in keys().items() if used and dtype == "float32"}
    return {name: weight(name, shape) for name, shape in used.items()}


def weight(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The recipe."""
    x = np.random.default_rng([zlib.crc32(name.encode()), SEED]).standard_normal(shape, dtype=np.float32)
    if name.endswith(NORMS):
        x = 1 + np.float32(0.1) * x
    elif name.endswith("bias"):
        x = np.float32(0.01) * x
    elif name.endswith(TABLES):
        x = np.float32(0.02) * x
    elif x.ndim >= 2:
        x = x / np.float32(np.sqrt(np.prod(shape[1:])))
    else:
        x = np.float32(0.02) * x
    return torch.from_numpy(np.asarray(x))


def checkpoint(words: int = WORDS, sharpness: float = 1.0) -> dict[str, torch.Tensor]:
    """Tensors as UniIR saves them, of a network with heads of 64: image width 128, text width 64, images of 32 pixels.

    sharpness: times the word and patch embeddings, so that different inputs have different vectors.
    """
    image, text = 128, 64
    replaced = {64: image, 192: 3 * image, 256: 4 * image}
    found: dict[str, torch.Tensor] = {}
    for name, (shape, dtype, _) in keys().items():
        if name.startswith("visual_encoder"):
            shape = tuple(replaced.get(n, n) for n in shape)
        elif name.startswith("text_encoder"):
            shape = tuple({48: text, 192: 4 * text, 64: image, 100: words, 32: 512}.get(n, n) for n in shape)
        if name.endswith("pos_embed"):
            shape = (1, 1 + 4, image)
        if name.endswith("position_ids"):
            shape = (1, 512)
        large = name.endswith(("word_embeddings.weight", "patch_embed.proj.weight"))
        integers = torch.arange(int(np.prod(shape))).reshape(shape)
        found[name] = weight(name, shape) * (sharpness if large else 1) if dtype == "float32" else integers
    return found


def write_checkpoint(file: Path, tensors: dict[str, torch.Tensor] | None = None) -> Path:
    """The tensors with what lies beside them in the published file."""
    state = {"state": {}, "param_groups": [{"lr": 1e-5}]}
    torch.save({"model": tensors or checkpoint(), "optimizer": state, "scaler": {"scale": 65536.0}, "epoch": 19}, file)
    return file
