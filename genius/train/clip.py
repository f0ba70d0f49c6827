"""Stage 1, Sec. 4.1, for a CLIP or SigLIP: contrastive training (Eq. 2) of all weights, adapters or linear maps.

A BLIP is not trained.
"""

import copy
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

from genius.data.images import load_image
from genius.data.splits import SplitData, TaskData, Vocabulary
from genius.encoders.base import Encoder, Prepared
from genius.encoders.blip import BlipEncoder
from genius.encoders.clip import ClipEncoder
from genius.errors import BadData
from genius.model.genius import Genius
from genius.train import distributed
from genius.train.batches import EmbeddingStage, VectorStage, tensor_pair
from genius.train.compute import CPU, Compute, reading_threads
from genius.train.config import ClipStageConfig
from genius.train.data import (
    FrozenVectors,
    JointVectors,
    StageVectors,
    TrainingData,
    distinct_pairs,
    renumber,
    sampled,
)
from genius.train.features import image_rows, joint_rows, mapped_rows, text_rows
from genius.train.loop import StageTimes, round_to_half, run_stage
from genius.train.lora import TrainableWeights, add_adapters, merge_adapters
from genius.train.validation import embedding_recall

UNUSED = ("logit_scale", "logit_bias")
"""Weights of the networks' own losses. Ours has its own temperature."""
Side = Literal["image", "text"]
PROJECTIONS: dict[Side, str] = {"image": "visual_projection", "text": "text_projection"}
VALIDATION_QUERIES = 100  # per task: each validation encodes their candidates again
VALIDATION_POOL = 1000
VALIDATION_BLOCK = 256  # images in memory at once


def train_clip(
    data: TrainingData,
    folder: Path,
    cache: Path,
    config: ClipStageConfig,
    seed: int,
    times: StageTimes,
    console: Console,
    compute: Compute = CPU,
) -> tuple[Encoder, StageVectors]:
    """Train stage 1.

    Returns:
        The encoder, with weights rounded as a model folder stores them, and its vectors of everything in `data`.
    """
    encoder = load_clip(config.model, compute.device)
    threads = reading_threads(compute.device)
    if isinstance(encoder, BlipEncoder):
        if config.tune != "none":
            raise BadData(f'{config.model} is a BLIP, which cannot be trained. Set [clip] tune = "none".')
        round_to_half(encoder.network)
        with times("vectors"):
            pairs = all_pairs(data)
            rows = joint_rows(encoder, pairs, data.texts.names, data.images.names, cache, threads, console)
        return encoder, JointVectors(pairs, rows)

    def encode_all() -> FrozenVectors:
        with times("vectors"):
            texts = text_rows(encoder, data.texts.names, cache, threads, console)
            return FrozenVectors(texts, image_rows(encoder, data.images.names, cache, threads, console))

    if config.tune == "heads":
        last = {side: last_linear(encoder.model, side) for side in PROJECTIONS}
        frozen = encode_all()
        with times("encoder"):
            heads = HeadsStage(data, frozen, config, seed, compute)
            run_stage(heads, folder, console)
        for side, linear in last.items():
            heads.merge(side, linear)
        round_to_half(encoder.model)
        maps = {side: heads.maps[side].detach().cpu().numpy() for side in PROJECTIONS}
        texts = mapped_rows(encoder, "texts", data.texts.names, frozen.texts, maps["text"], cache, console)
        images = mapped_rows(encoder, "images", data.images.names, frozen.images, maps["image"], cache, console)
        return encoder, FrozenVectors(texts, images)
    if config.tune != "none":
        with times("encoder"), ClipStage(encoder, data, config, seed, compute) as stage:
            run_stage(stage, folder, console)
            stage.finish()
    round_to_half(encoder.model)
    return encoder, encode_all()


def all_pairs(data: TrainingData) -> np.ndarray:
    """The pairs (m, 2) of a text and an image of all queries and candidates, for `JointVectors`."""
    parts: list[SplitData | TaskData] = [data.train, *data.train.tasks, data.val, *data.val.tasks]
    return distinct_pairs(np.concatenate([part.text for part in parts]), np.concatenate([part.image for part in parts]))


def load_clip(name: str, device: torch.device) -> ClipEncoder | BlipEncoder:
    """Load a CLIP or SigLIP from a hub id, a folder, or a model folder of this package, which may also hold a BLIP."""
    config = Path(name) / "config.json"
    if not config.is_file() or "encoder" not in json.loads(config.read_text()):
        return ClipEncoder.from_hub(name, str(device))
    encoder = Genius.from_pretrained(name).encoder
    if not isinstance(encoder, ClipEncoder | BlipEncoder):
        raise BadData(f"The encoder of {name} is {encoder.kind!r}. For [clip] model, give a CLIP, SigLIP or BLIP.")
    return encoder.to(device)


class ClipStage(EmbeddingStage):
    """Trains all weights or adapters. A context manager: leaving it stops the threads that read images."""

    name = "encoder"
    config: ClipStageConfig
    reads_files = True

    def __init__(
        self, encoder: ClipEncoder, data: TrainingData, config: ClipStageConfig, seed: int, compute: Compute = CPU
    ) -> None:
        super().__init__(data, config, seed, config.average, compute)
        self.steps, self.encoder = config.steps, encoder
        network: Any = encoder.model
        self.network = network
        torch.manual_seed(seed)
        if config.tune == "lora":
            add_adapters(network, config.rank)
        else:
            network.requires_grad_(True)
            for name, value in network.named_parameters():
                value.requires_grad_(name not in UNUSED)
        if config.checkpointing:
            network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            if hasattr(network, "_require_grads_hook"):  # only reentrant checkpointing needs it, and it would stay
                network.disable_input_require_grads()
        self.module = TrainableWeights(network)
        encoder.to(compute.device, compute.dtype)
        self.val = copy.deepcopy(sampled(data.val, VALIDATION_QUERIES, VALIDATION_POOL))
        self.val_texts, self.val_images = Vocabulary(), Vocabulary()
        renumber(self.val, "text", data.texts, self.val_texts)
        renumber(self.val, "image", data.images, self.val_images)
        trained = [p for p in network.parameters() if p.requires_grad]
        self.groups = [
            self.group(p for p in trained if p.ndim > 1),
            self.group((p for p in trained if p.ndim < 2), decayed=False),
        ]
        self.pool = ThreadPoolExecutor(reading_threads(compute.device))

    def __enter__(self) -> "ClipStage":
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(cancel_futures=True)  # first: the next batch may be waiting for these images
        self._thread.shutdown(cancel_futures=True)

    def random(self, step: int) -> tuple[np.random.Generator, int]:
        """See `EmbeddingStage.random`."""
        return np.random.default_rng([self.seed, *b"pairs", step]), super().random(step)[1]

    def inputs(
        self, queries: np.ndarray, targets: np.ndarray, parts: list[np.ndarray], rng: np.random.Generator
    ) -> list[dict[str, Any]]:
        """See `EmbeddingStage.inputs`. Each text and image of a part is read once."""
        train = self.data.train
        return [
            self._read(
                np.concatenate([self.pairs.text[queries[rows]], train.text[targets[rows]]]),
                np.concatenate([self.pairs.image[queries[rows]], train.image[targets[rows]]]),
            )
            for rows in parts
        ]

    def _read(self, text: np.ndarray, image: np.ndarray) -> dict[str, Any]:
        """Inputs of the network for texts (n,) with images (n,), and which rows they belong to."""
        read: dict[str, Any] = {"count": len(text)}
        if (text >= 0).any():
            unique, rows, numbers = _unique(text)
            read["tokens"] = self.encoder.text_inputs([self.data.texts.names[number] for number in unique])
            read |= {"text_rows": rows, "texts": numbers}
        if (image >= 0).any():
            unique, rows, numbers = _unique(image)
            read["pixels"] = self.encoder.image_inputs(self._pixels([self.data.images.names[n] for n in unique]))
            read |= {"image_rows": rows, "images": numbers}
        return read

    def _pixels(self, names: Sequence[str]) -> list[np.ndarray]:
        return list(self.pool.map(lambda name: self.encoder.pixels(load_image(name)), names))

    def embed(self, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Compute phi of Eq. 2, (n, d) float32: the normalised sums of text and image vectors."""
        total = torch.zeros(inputs["count"], self.encoder.dim, device=self.compute.device)
        if "tokens" in inputs:
            vectors = self.encoder.token_vectors(inputs["tokens"])
            total = total.index_add(0, inputs["text_rows"], vectors[inputs["texts"]])
        if "pixels" in inputs:
            vectors = self.encoder.input_vectors(inputs["pixels"])
            total = total.index_add(0, inputs["image_rows"], vectors[inputs["images"]])
        queries, targets = F.normalize(total, dim=1).chunk(2)
        return queries, targets

    def validate(self) -> dict[str, float]:
        """Recall of exact search, on a sample of each task's queries and candidates. The processes share the work."""
        texts = np.zeros((len(self.val_texts.names) + 1, self.encoder.dim), dtype=np.float32)
        images = np.zeros((len(self.val_images.names) + 1, self.encoder.dim), dtype=np.float32)
        names = distributed.own(self.val_texts.names)
        distributed.own(texts[:-1])[:] = self.encoder.encode([Prepared(None, text) for text in names]).text
        for start in distributed.own(range(0, len(images) - 1, VALIDATION_BLOCK)):
            pixels = self._pixels(self.val_images.names[start : start + VALIDATION_BLOCK])
            images[start : start + len(pixels)] = self.encoder.encode([Prepared(p, "") for p in pixels]).image
        vectors = FrozenVectors(*(distributed.summed(torch.from_numpy(rows)).numpy() for rows in (texts, images)))
        return embedding_recall(self.val, vectors.embedding, self.compute.device)

    def finish(self) -> None:
        """Merge the adapters and undo all changes that training made to the network."""
        merge_adapters(self.network)
        if self.config.checkpointing:
            self.network.gradient_checkpointing_disable()
        self.network.eval().requires_grad_(False)
        self.encoder.to(self.compute.device)  # back to the precision of an encoder in use


def _unique(numbers: np.ndarray) -> tuple[np.ndarray, Tensor, Tensor]:
    """The distinct numbers without -1, the rows of `numbers` that have one, and the position of each among them."""
    unique, rows = np.unique(numbers[numbers >= 0]), np.flatnonzero(numbers >= 0)
    return unique, torch.from_numpy(rows), torch.from_numpy(np.searchsorted(unique, numbers[rows]))


class HeadsStage(VectorStage):
    """Trains one square linear map for images and one for texts, started as the identity, on frozen vectors."""

    name = "encoder"
    config: ClipStageConfig

    def __init__(
        self,
        data: TrainingData,
        vectors: FrozenVectors,
        config: ClipStageConfig,
        seed: int,
        compute: Compute = CPU,
    ) -> None:
        super().__init__(data, config, seed, config.average, compute)
        self.steps, self.vectors = config.steps, vectors
        dim = vectors.dim
        self.maps = nn.ParameterDict({"image": torch.eye(dim), "text": torch.eye(dim)}).to(compute.device)
        self.module = self.maps
        self.groups = [self.group(self.module.parameters(), decayed=False)]  # decay would pull the identity to zero

    def embed(self, inputs: list[list[Tensor]]) -> tuple[Tensor, Tensor]:
        """See `EmbeddingStage.embed`."""
        queries, targets = inputs
        return self._phi(*queries), self._phi(*targets)

    def _phi(self, images: Tensor, texts: Tensor) -> Tensor:
        return F.normalize(images @ self.maps["image"].T + texts @ self.maps["text"].T, dim=1)

    def validate(self) -> dict[str, float]:
        """Recall of exact search."""

        def embed(text: np.ndarray, image: np.ndarray) -> np.ndarray:
            return self._phi(*self.compute.put(tensor_pair(self.vectors, text, image))).cpu().numpy()

        return embedding_recall(self.data.val, embed, self.compute.device)

    @torch.no_grad()
    def merge(self, side: Side, linear: nn.Linear) -> None:
        """Multiply a trained map into the last linear map of the network."""
        linear.weight.copy_(self.maps[side].to(linear.weight) @ linear.weight)


def last_linear(network: nn.Module, side: Side) -> nn.Linear:
    """The linear map at the end of one side of the network."""
    linear = getattr(network, PROJECTIONS[side], None)
    if not isinstance(linear, nn.Linear) or linear.bias is not None:
        raise BadData(
            f"The {side} side of a {type(network).__name__} does not end in a linear map, so there is no head to "
            'train. Set [clip] tune = "lora" or "full".'
        )
    return linear
