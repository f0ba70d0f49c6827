"""What `search.py` searches: models, collections of any size, and queries.

Two kinds. `paper_material` has a decoder of the paper's size with random weights (how long it takes does not depend on
what it has learned) and IDs drawn for it. `mini_material` has the bundled model and vectors of real items, mixed to as
many as are needed (see `throughput.py`), and IDs that are really theirs.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import throughput
import torch
from rich.progress import Progress

from genius.encoders.base import Vectors
from genius.encoders.precomputed import PrecomputedEncoder
from genius.model.decoder_config import DecoderConfig
from genius.model.decoder_runtime import DecoderRuntime
from genius.model.genius import Genius
from genius.networks.decoder import Decoder
from genius.networks.fusion import Fusion
from genius.networks.quantizer import Quantizer

PAPER = DecoderConfig(768, (3, *[4096] * 8))
BLOCK = 65_536


@dataclass(frozen=True)
class Material:
    """A collection and queries for it. The first n items do not depend on the size of the collection.

    make_model: gives the model, a new one each time, so that it can be made for a number of threads.
    codes: (n, levels) uint16; embeddings: (n, dim) float16, as an index keeps them; queries: (q, dim) float32 each.
    modality: (q,) the one that answers shall have, where it is given.
    codes_seconds: what it took to give an item its codes; 0 where they were drawn.
    """

    make_model: Callable[[], Genius]
    codes: np.ndarray
    embeddings: np.ndarray
    fused: np.ndarray
    asked: np.ndarray
    modality: np.ndarray
    about: str
    codes_seconds: float = 0.0


def random_model(config: DecoderConfig) -> Genius:
    """T5's initialisation, the same weights every time."""
    torch.manual_seed(0)
    quantizer = Quantizer(config.dim, config.sizes[1], len(config.sizes) - 1)
    return Genius(
        PrecomputedEncoder(config.dim), Fusion(config.dim, 8).runtime(), quantizer.runtime(), Decoder(config).runtime()
    )


def paper_material(size: int, queries: int, progress: Progress, config: DecoderConfig = PAPER) -> Material:
    """`size` IDs for a random decoder. Embeddings repeat after a while, which no search notices."""
    rng = np.random.default_rng(0)
    fused = unit(rng.standard_normal((queries, config.dim), dtype=np.float32))
    codes = likely_codes(random_model(config).decoder, fused, size, progress)
    block = unit(rng.standard_normal((min(size, BLOCK), config.dim), dtype=np.float32)).astype(np.float16)
    embeddings = np.empty((size, config.dim), np.float16)
    for start in range(0, size, BLOCK):
        embeddings[start : start + BLOCK] = block[: size - start]
    modality = np.arange(queries) % config.sizes[0]
    about = "random weights, IDs drawn from what the decoder finds likely"
    return Material(partial(random_model, config), codes, embeddings, fused, fused, modality, about)


def likely_codes(decoder: DecoderRuntime, fused: np.ndarray, size: int, progress: Progress) -> np.ndarray:
    """(size, levels) uint16, drawn from the distribution of codes that the decoder has on the mean of queries.

    Clustered, because some codes are several times as common as others, and where the beams go, because a trained
    decoder too finds those codes likely that many items have. It is harder than what a trained decoder meets: this one
    hardly heeds the query, so that all beams go to the most common codes. Modalities are equally frequent.
    """
    z = np.tile(fused, (-(-256 // len(fused)), 1))[:256]
    sizes = decoder.config.sizes
    some = np.random.default_rng(0).integers(0, sizes[:-1], (len(z), 1, len(sizes) - 1))
    codes = np.empty((size, len(sizes)), np.uint16)
    bar = progress.add_task(f"drawing {size:,} IDs", total=len(sizes))
    for level, log_probs in enumerate(decoder.open(z, some)[1]):
        share = np.exp(log_probs[:, 0].mean(0, dtype=np.float64))
        share /= share.sum()
        edges = np.cumsum(np.full(sizes[0], 1 / sizes[0]) if level == 0 else share)[:-1]
        codes[:, level] = np.searchsorted(edges, np.random.default_rng([0, level]).random(size))
        progress.advance(bar)
    progress.remove_task(bar)
    return codes


def mini_material(run: Path, size: int, queries: int, progress: Progress) -> Material:
    """`size` items with the codes and embeddings that `mini` gives them, made block by block."""
    make_model = partial(Genius.from_pretrained, "mini", int8=False)
    model = make_model()
    about, items, asked = throughput.base_vectors(model, run, progress)
    asked = asked[:queries]
    of_items, of_others, of_weights, of_order = (np.random.default_rng([1, i]) for i in range(4))
    first, second = (rng.integers(0, len(items), size) for rng in (of_items, of_others))
    weight = of_weights.uniform(0.5, 0.9, size).astype(np.float32)
    real = of_order.permutation(len(items))[:size]
    first[: len(real)], weight[: len(real)] = real, 1
    codes = np.empty((size, len(model.sizes)), np.uint16)
    embeddings = np.empty((size, model.dim), np.float16)
    bar, spent = progress.add_task(f"codes of {size:,} items", total=size), 0.0
    for start in range(0, size, throughput.BLOCK):
        block = slice(start, start + throughput.BLOCK)
        mixed = (
            throughput.mixture(part, first[block], second[block], weight[block]) for part in (items.image, items.text)
        )
        vectors = Vectors(*mixed)
        began = time.perf_counter()
        codes[block] = model.codes(vectors)
        spent += time.perf_counter() - began
        embeddings[block] = vectors.embedding()
        progress.advance(bar, len(vectors))
    progress.remove_task(bar)
    modality = np.full(len(asked), items[:1].modality[0])
    about = f"vectors of {len(items):,} {about}, mixed to the sizes below"
    return Material(make_model, codes, embeddings, model.fuse(asked), asked.embedding(), modality, about, spent / size)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
