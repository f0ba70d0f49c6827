"""Stage 1, Sec. 4.1, for a CLIP or SigLIP: contrastive training (Eq. 2) of all weights, adapters or linear maps.

A BLIP is used as it is.
"""

import copy
import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
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
from genius.train.batches import PairStage, tensor_pair
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
from genius.train.loop import StageTimes, round_to_half, run_stage, step_rng
from genius.train.lora import TrainableWeights, add_adapters, merge_adapters
from genius.train.losses import contrastive_loss
from genius.train.validation import embedding_recall

UNUSED = ("logit_scale", "logit_bias")
"""Weights of the networks' own losses. Ours has its own temperature."""
Side = Literal["image", "text"]
PROJECTIONS: dict[Side, str] = {"image": "visual_projection", "text": "text_projection"}
VALIDATION_QUERIES = 100  # per task: each validation encodes their candidates again
VALIDATION_POOL = 1000
VALIDATION_BLOCK = 256  # images in memory at once
DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def train_clip(
    data: TrainingData,
    folder: Path,
    cache: Path,
    config: ClipStageConfig,
    seed: int,
    times: StageTimes,
    console: Console,
) -> tuple[Encoder, StageVectors]:
    """Train stage 1.

    Returns:
        The encoder, with weights rounded as a model folder stores them, and its vectors of everything in `data`.
    """
    encoder = load_clip(config.model, choose_device(config.device))
    threads = torch.get_num_threads()
    if isinstance(encoder, BlipEncoder):
        if config.tune != "none":
            raise BadData(f'{config.model} is a BLIP, which can only be used as it is. Set [clip] tune = "none".')
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
            heads = HeadsStage(data, frozen, config, seed)
            run_stage(heads, folder, console)
        for side, linear in last.items():
            heads.merge(side, linear)
        round_to_half(encoder.model)
        maps = {side: heads.maps[side].detach().numpy() for side in PROJECTIONS}
        texts = mapped_rows(encoder, "texts", data.texts.names, frozen.texts, maps["text"], cache, console)
        images = mapped_rows(encoder, "images", data.images.names, frozen.images, maps["image"], cache, console)
        return encoder, FrozenVectors(texts, images)
    if config.tune != "none":
        with times("encoder"), ClipStage(encoder, data, config, seed, threads) as stage:
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


def choose_device(name: str) -> torch.device:
    """A torch device by name. "auto" is a GPU if there is one."""
    if name != "auto":
        try:
            return torch.device(name)
        except RuntimeError as error:
            raise BadData(f'The setting [clip] device is {name!r}; give "auto", "cuda", "mps" or "cpu".') from error
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def choose_precision(name: str, device: torch.device) -> torch.dtype:
    """The type of the network's matrix products. Weights, sums and the loss are always float32."""
    if name != "auto":
        return DTYPES[name]
    if device.type != "cuda":
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16


class ClipStage(PairStage):
    """Trains all weights or adapters. A context manager: leaving it stops the threads that read images."""

    name = "encoder"
    config: ClipStageConfig

    def __init__(
        self, encoder: ClipEncoder, data: TrainingData, config: ClipStageConfig, seed: int, threads: int
    ) -> None:
        super().__init__(data, config, seed, config.average)
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
        self.device = encoder.device
        encoder.to(self.device, choose_precision(config.precision, self.device))
        if encoder.dtype == torch.float16:
            self.scaler = torch.amp.GradScaler(self.device.type)
        self.val = copy.deepcopy(sampled(data.val, VALIDATION_QUERIES, VALIDATION_POOL))
        self.val_texts, self.val_images = Vocabulary(), Vocabulary()
        renumber(self.val, "text", data.texts, self.val_texts)
        renumber(self.val, "image", data.images, self.val_images)
        trained = [p for p in network.parameters() if p.requires_grad]
        self.groups = [
            self.group(p for p in trained if p.ndim > 1),
            self.group((p for p in trained if p.ndim < 2), decayed=False),
        ]
        self.pool = ThreadPoolExecutor(threads)
        self._next: tuple[int, _PairBatch] | None = None

    def __enter__(self) -> "ClipStage":
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(cancel_futures=True)

    def loss(self, step: int) -> tuple[Tensor, dict[str, float]]:
        """Eq. 2. The images of the next step are read meanwhile."""
        step_rng(self.seed, self.name, step)  # for dropout
        batch = self._next[1] if self._next and self._next[0] == step else self._batch(step)
        self._next = (step + 1, self._batch(step + 1)) if step + 1 < self.steps else None
        queries, targets = self._embed(batch).chunk(2)
        masked = torch.from_numpy(batch.masked).to(self.device)
        return contrastive_loss(queries, targets, self.config.temperature, masked), {}

    def _batch(self, step: int) -> "_PairBatch":
        """The pairs of a step. Starts reading their images."""
        rng = np.random.default_rng([self.seed, *b"pairs", step])
        queries, targets = self.pairs.draw(rng, self.config.batch)
        train = self.data.train
        text = np.concatenate([self.pairs.text[queries], train.text[targets]])
        image = np.concatenate([self.pairs.image[queries], train.image[targets]])
        return _PairBatch(text, image, self.pairs.false_negatives(queries, targets), self._read)

    def _read(self, image: int) -> "Future[np.ndarray]":
        name = self.data.images.names[image]
        return self.pool.submit(lambda: self.encoder.pixels(load_image(name)))

    def _embed(self, batch: "_PairBatch") -> Tensor:
        """Compute phi of Eq. 2, (n, d) float32: the normalised sum of text and image vectors, each encoded once."""
        total = torch.zeros(len(batch.text_at), self.encoder.dim, device=self.device)
        if len(batch.texts):
            vectors = self.encoder.text_vectors([self.data.texts.names[number] for number in batch.texts])
            total = _added(total, vectors, batch.text_at)
        if batch.images:
            vectors = self.encoder.image_vectors([image.result() for image in batch.images])
            total = _added(total, vectors, batch.image_at)
        return F.normalize(total, dim=1)

    def validate(self) -> dict[str, float]:
        """Recall of exact search, on a sample of each task's queries and candidates."""
        texts = np.zeros((len(self.val_texts.names) + 1, self.encoder.dim), dtype=np.float32)
        images = np.zeros((len(self.val_images.names) + 1, self.encoder.dim), dtype=np.float32)
        texts[:-1] = self.encoder.encode([Prepared(None, text) for text in self.val_texts.names]).text
        for start in range(0, len(images) - 1, VALIDATION_BLOCK):
            names = self.val_images.names[start : start + VALIDATION_BLOCK]
            pixels = self.pool.map(lambda name: self.encoder.pixels(load_image(name)), names)
            images[start : start + len(names)] = self.encoder.encode([Prepared(p, "") for p in pixels]).image
        return embedding_recall(self.val, FrozenVectors(texts, images).embedding)

    def finish(self) -> None:
        """Merge the adapters and undo all changes that training made to the network."""
        merge_adapters(self.network)
        if self.config.checkpointing:
            self.network.gradient_checkpointing_disable()
        self.network.eval().requires_grad_(False)
        self.encoder.to(self.device)  # back to the precision of an encoder in use


class _PairBatch:
    """The distinct texts and images of n queries followed by their n targets.

    texts: (t,) numbers. images: pixels being read. text_at, image_at: (2n,) positions in these, -1 for none.
    masked: (n, n), see `Pairs.false_negatives`.
    """

    def __init__(
        self, text: np.ndarray, image: np.ndarray, masked: np.ndarray, read: Callable[[int], "Future[np.ndarray]"]
    ) -> None:
        self.masked = masked
        self.texts, self.text_at = _unique(text)
        images, self.image_at = _unique(image)
        self.images = [read(int(number)) for number in images]


def _added(total: Tensor, vectors: Tensor, at: np.ndarray) -> Tensor:
    """Add row at[i] of vectors (m, d) to row i of total (n, d) where at[i] is not -1."""
    rows = np.flatnonzero(at >= 0)
    which, where = (torch.from_numpy(numbers).to(total.device) for numbers in (at[rows], rows))
    return total.index_add(0, where, vectors[which])


def _unique(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct numbers without -1, and the position of each number among them."""
    unique = np.unique(numbers[numbers >= 0])
    return unique, np.where(numbers >= 0, np.searchsorted(unique, numbers), -1)


class HeadsStage(PairStage):
    """Trains one square linear map for images and one for texts, started as the identity, on frozen vectors."""

    name = "encoder"
    config: ClipStageConfig

    def __init__(self, data: TrainingData, vectors: FrozenVectors, config: ClipStageConfig, seed: int) -> None:
        super().__init__(data, config, seed, config.average)
        self.steps, self.vectors = config.steps, vectors
        dim = vectors.dim
        self.maps = self.module = nn.ParameterDict({"image": torch.eye(dim), "text": torch.eye(dim)})
        self.groups = [self.group(self.module.parameters(), decayed=False)]  # decay would pull the identity to zero

    def loss(self, step: int) -> tuple[Tensor, dict[str, float]]:
        """Eq. 2."""
        queries, targets = self.pairs.draw(step_rng(self.seed, self.name, step), self.config.batch)
        q = self._embed(self.pairs.text[queries], self.pairs.image[queries])
        c = self._embed(self.data.train.text[targets], self.data.train.image[targets])
        masked = torch.from_numpy(self.pairs.false_negatives(queries, targets))
        return contrastive_loss(q, c, self.config.temperature, masked), {}

    def _embed(self, text: np.ndarray, image: np.ndarray) -> Tensor:
        images, texts = tensor_pair(self.vectors, text, image)
        return F.normalize(images @ self.maps["image"].T + texts @ self.maps["text"].T, dim=1)

    def validate(self) -> dict[str, float]:
        """Recall of exact search."""
        return embedding_recall(self.data.val, lambda text, image: self._embed(text, image).numpy())

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
