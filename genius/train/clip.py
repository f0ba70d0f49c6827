"""Stage 1, Sec. 4.1, for a CLIP or SigLIP: the whole network, low-rank pairs beside its attention, or linear maps.

Knows how such a network is tuned by contrast (Eq. 2) and what of it is trained. How images and texts become its
inputs belongs to the encoder; where vectors are kept, to the cache.
"""

import copy
import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, nn

from genius.data.images import load_image
from genius.data.splits import Vocabulary
from genius.encoders.base import Prepared
from genius.encoders.clip import ClipEncoder
from genius.errors import BadData
from genius.model.genius import Genius
from genius.train.batches import Pairs
from genius.train.config import ClipStageConfig
from genius.train.data import TrainingData, renumber, sampled
from genius.train.encoder import contrastive_loss, normalised
from genius.train.features import image_rows, mapped_rows, text_rows
from genius.train.loop import Stage, Times, as_saved, run_stage, step_rng
from genius.train.quantizer import FrozenVectors
from genius.train.validation import recall

ATTENTION = ("q_proj", "k_proj", "v_proj", "out_proj")
"""The linear maps of an attention layer, by the names that CLIP and SigLIP have for them."""
UNUSED = ("logit_scale", "logit_bias")
"""Weights of the networks' own losses; ours has a temperature of its own."""
PROJECTIONS = {"image": "visual_projection", "text": "text_projection"}
VALIDATION_QUERIES = 100  # of each task: every validation encodes their candidates anew
VALIDATION_POOL = 1000
VALIDATION_BLOCK = 256  # images held at once
DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def train_clip(
    data: TrainingData, folder: Path, cache: Path, config: ClipStageConfig, seed: int, times: Times, console: Console
) -> tuple[ClipEncoder, FrozenVectors]:
    """The tuned encoder, rounded as a model folder will hold it, and its vectors of everything in `data`."""
    encoder = load_clip(config.model, choose_device(config.device))
    threads = torch.get_num_threads()

    def vectors() -> FrozenVectors:
        with times("vectors"):
            texts = text_rows(encoder, data.texts.names, cache, threads, console)
            return FrozenVectors(texts, image_rows(encoder, data.images.names, cache, threads, console))

    if config.tune == "heads":
        ends = {kind: last_linear(encoder.model, kind) for kind in PROJECTIONS}
        frozen = vectors()
        with times("encoder"):
            heads = HeadsStage(data, frozen, config, seed)
            run_stage(heads, folder, console)
        for kind, linear in ends.items():
            heads.merge(kind, linear)
        as_saved(encoder.model)
        maps = {kind: heads.maps[kind].detach().numpy() for kind in PROJECTIONS}
        texts = mapped_rows(encoder, "texts", data.texts.names, frozen.texts, maps["text"], cache, console)
        images = mapped_rows(encoder, "images", data.images.names, frozen.images, maps["image"], cache, console)
        return encoder, FrozenVectors(texts, images)
    if config.tune != "none":
        with times("encoder"), ClipStage(encoder, data, config, seed, threads) as stage:
            run_stage(stage, folder, console)
            stage.finish()
    as_saved(encoder.model)
    return encoder, vectors()


def load_clip(name: str, device: torch.device) -> ClipEncoder:
    """The CLIP or SigLIP of a hub id or folder, or that of a model folder of ours."""
    config = Path(name) / "config.json"
    if not config.is_file() or "encoder" not in json.loads(config.read_text()):
        return ClipEncoder.from_hub(name, str(device))
    encoder = Genius.from_pretrained(name).encoder
    if not isinstance(encoder, ClipEncoder):
        raise BadData(f"The encoder of {name} is of kind {encoder.kind!r}. For [clip] model, give a CLIP or SigLIP.")
    return encoder.to(device)


def choose_device(name: str) -> torch.device:
    """A device by torch's name for it; "auto" is a GPU if there is one."""
    if name != "auto":
        try:
            return torch.device(name)
        except RuntimeError as error:
            raise BadData(f'The setting [clip] device is {name!r}; give "auto", "cuda", "mps" or "cpu".') from error
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def choose_precision(name: str, device: torch.device) -> torch.dtype:
    """What the network's products are computed in. Weights, sums and the loss are float32 in any case."""
    if name != "auto":
        return DTYPES[name]
    if device.type != "cuda":
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16


# Low-rank pairs


class LowRank(nn.Module):
    """W x + U D x: a frozen linear map, and beside it a pair of thin ones that starts at zero."""

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(False)
        outputs, inputs = linear.weight.shape
        self.down = nn.Parameter(torch.randn(rank, inputs, device=linear.weight.device) / inputs**0.5)
        self.up = nn.Parameter(torch.zeros(outputs, rank, device=linear.weight.device))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x) + F.linear(F.linear(x, self.down), self.up)
        return out

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """One linear map that does the same."""
        self.linear.weight += self.up @ self.down
        return self.linear


def add_pairs(network: nn.Module, rank: int) -> None:
    """Freezes the network and puts a low-rank pair beside every linear map of its attention layers."""
    network.requires_grad_(False)
    for module in list(network.modules()):
        for name in ATTENTION:
            linear = getattr(module, name, None)
            if type(linear) is nn.Linear:  # torch's own attention reads the weights of its subclass directly
                setattr(module, name, LowRank(linear, rank))


def merge_pairs(network: nn.Module) -> None:
    """Puts the pairs into the maps beside which they stand; the network has its own form again."""
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, LowRank):
                setattr(module, name, child.merged())


class Tuned(nn.Module):
    """A network of which a checkpoint holds what is trained, and nothing of what is frozen."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def _trained(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.named_parameters() if value.requires_grad}

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]
        return {name: value.detach() for name, value in self._trained().items()}

    @torch.no_grad()
    def load_state_dict(self, state: Any, strict: bool = True, assign: bool = False) -> Any:
        trained = self._trained()
        if trained.keys() != state.keys():
            raise RuntimeError(f"{len(trained.keys() ^ state.keys())} weights are missing or not known")
        for name, value in state.items():
            trained[name].copy_(value)


# Training the network


class ClipStage(Stage):
    """Trains the whole network or its low-rank pairs. As a context, it stops reading images at the end."""

    name = "encoder"

    def __init__(
        self, encoder: ClipEncoder, data: TrainingData, config: ClipStageConfig, seed: int, threads: int
    ) -> None:
        self.encoder, self.data, self.config, self.seed = encoder, data, config, seed
        network: Any = encoder.model
        self.network = network
        torch.manual_seed(seed)
        if config.tune == "lora":
            add_pairs(network, config.rank)
        else:
            network.requires_grad_(True)
            for name, value in network.named_parameters():
                value.requires_grad_(name not in UNUSED)
        if config.checkpointing:
            network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            if hasattr(network, "_require_grads_hook"):  # for the other kind of checkpointing; it would outlive us
                network.disable_input_require_grads()
        self.module = Tuned(network)
        self.device = encoder.device
        encoder.to(self.device, choose_precision(config.precision, self.device))
        if encoder.dtype == torch.float16:
            self.scaler = torch.amp.GradScaler(self.device.type)
        self.pairs = Pairs(data.train, config.balance, config.mix)
        self.val = copy.deepcopy(sampled(data.val, VALIDATION_QUERIES, VALIDATION_POOL))
        self.val_texts, self.val_images = Vocabulary(), Vocabulary()
        renumber(self.val, "text", data.texts, self.val_texts)
        renumber(self.val, "image", data.images, self.val_images)
        self.steps, self.warmup, self.validate_every = config.steps, config.warmup, config.validate_every
        self.average = config.average
        trained = [p for p in network.parameters() if p.requires_grad]
        self.groups: list[dict[str, Any]] = [
            {"params": [p for p in trained if p.ndim > 1], "lr": config.rate, "weight_decay": config.weight_decay},
            {"params": [p for p in trained if p.ndim < 2], "lr": config.rate, "weight_decay": 0.0},
        ]
        self.pool = ThreadPoolExecutor(threads)
        self._coming: tuple[int, _Batch] | None = None

    def __enter__(self) -> "ClipStage":
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(cancel_futures=True)

    def loss(self, step: int) -> tuple[Tensor, dict[str, float]]:
        step_rng(self.seed, self.name, step)  # for dropout
        batch = self._coming[1] if self._coming and self._coming[0] == step else self._batch(step)
        self._coming = (step + 1, self._batch(step + 1)) if step + 1 < self.steps else None
        queries, targets = self._embed(batch).chunk(2)
        masked = torch.from_numpy(batch.masked).to(self.device)
        return contrastive_loss(queries, targets, self.config.temperature, masked), {}

    def _batch(self, step: int) -> "_Batch":
        """The pairs of a step, whose images are being read from now on."""
        rng = np.random.default_rng([self.seed, *b"pairs", step])
        queries, targets = self.pairs.draw(rng, self.config.batch)
        train = self.data.train
        text = np.concatenate([self.pairs.text[queries], train.text[targets]])
        image = np.concatenate([self.pairs.image[queries], train.image[targets]])
        return _Batch(text, image, self.pairs.false_negatives(queries, targets), self._read)

    def _read(self, image: int) -> "Future[np.ndarray]":
        name = self.data.images.names[image]
        return self.pool.submit(lambda: self.encoder.pixels(load_image(name)))

    def _embed(self, batch: "_Batch") -> Tensor:
        """phi of Eq. 2, (n, d) float32: the normalised sum of text and image vectors, each made once."""
        total = torch.zeros(len(batch.text_at), self.encoder.dim, device=self.device)
        if len(batch.texts):
            words = self.encoder.text_vectors([self.data.texts.names[number] for number in batch.texts])
            total = _added(total, words, batch.text_at)
        if batch.images:
            looks = self.encoder.image_vectors([image.result() for image in batch.images])
            total = _added(total, looks, batch.image_at)
        return F.normalize(total, dim=1)

    def validate(self) -> dict[str, float]:
        """Recall of exact search, on some queries of each task and some of its candidates."""
        texts, images = self._val_vectors()
        queries = [normalised(texts[t.text] + images[t.image]) for t in self.val.tasks]
        return recall(self.val, queries, normalised(texts[self.val.text] + images[self.val.image]))

    def _val_vectors(self) -> tuple[np.ndarray, np.ndarray]:
        """Vectors of the validation's texts and images by number; the last row of each, that of -1, is zero."""
        texts = np.zeros((len(self.val_texts.names) + 1, self.encoder.dim), dtype=np.float32)
        images = np.zeros((len(self.val_images.names) + 1, self.encoder.dim), dtype=np.float32)
        texts[:-1] = self.encoder.encode([Prepared(None, text) for text in self.val_texts.names]).text
        for start in range(0, len(images) - 1, VALIDATION_BLOCK):
            names = self.val_images.names[start : start + VALIDATION_BLOCK]
            pixels = self.pool.map(lambda name: self.encoder.pixels(load_image(name)), names)
            images[start : start + len(names)] = self.encoder.encode([Prepared(p, "") for p in pixels]).image
        return texts, images

    def finish(self) -> None:
        """The network in its own form, with nothing left of the training."""
        merge_pairs(self.network)
        if self.config.checkpointing:
            self.network.gradient_checkpointing_disable()
        self.network.eval().requires_grad_(False)
        self.encoder.to(self.device)  # to the precision of an encoder that is not trained


class _Batch:
    """The unique texts and images of some queries and then their targets, and where each of them goes.

    texts: numbers. images: on their way from the disk. text_at, image_at: (2 x pairs,) positions in these, -1 for
    none. masked: (pairs, pairs), see `Pairs.false_negatives`.
    """

    def __init__(
        self, text: np.ndarray, image: np.ndarray, masked: np.ndarray, read: Callable[[int], "Future[np.ndarray]"]
    ) -> None:
        self.masked = masked
        self.texts, self.text_at = _unique(text)
        images, self.image_at = _unique(image)
        self.images = [read(int(number)) for number in images]


def _added(total: Tensor, vectors: Tensor, at: np.ndarray) -> Tensor:
    """total: (n, d), plus row `at` (n,) of vectors (m, d) in each of its rows where that is not -1."""
    rows = np.flatnonzero(at >= 0)
    which, where = (torch.from_numpy(numbers).to(total.device) for numbers in (at[rows], rows))
    return total.index_add(0, where, vectors[which])


def _unique(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different numbers that are not -1, and where among them each number stands."""
    unique = np.unique(numbers[numbers >= 0])
    return unique, np.where(numbers >= 0, np.searchsorted(unique, numbers), -1)


# Training linear maps of frozen vectors


class HeadsStage(Stage):
    """A square linear map for images and one for texts, both starting as the identity, on vectors that are ready."""

    name = "encoder"

    def __init__(self, data: TrainingData, vectors: FrozenVectors, config: ClipStageConfig, seed: int) -> None:
        self.data, self.vectors, self.config, self.seed = data, vectors, config, seed
        dim = vectors.texts.shape[1]
        self.maps = self.module = nn.ParameterDict({"image": torch.eye(dim), "text": torch.eye(dim)})
        self.pairs = Pairs(data.train, config.balance, config.mix)
        self.steps, self.warmup, self.validate_every = config.steps, config.warmup, config.validate_every
        self.average = config.average
        # Not drawn to zero by weight decay: that is not what these start from.
        self.groups: list[dict[str, Any]] = [
            {"params": list(self.module.parameters()), "lr": config.rate, "weight_decay": 0.0}
        ]

    def loss(self, step: int) -> tuple[Tensor, dict[str, float]]:
        queries, targets = self.pairs.draw(step_rng(self.seed, self.name, step), self.config.batch)
        q = self._embed(self.pairs.text[queries], self.pairs.image[queries])
        c = self._embed(self.data.train.text[targets], self.data.train.image[targets])
        masked = torch.from_numpy(self.pairs.false_negatives(queries, targets))
        return contrastive_loss(q, c, self.config.temperature, masked), {}

    def _embed(self, text: np.ndarray, image: np.ndarray) -> Tensor:
        looks, words = self.vectors.pair(text, image)
        return F.normalize(looks @ self.maps["image"].T + words @ self.maps["text"].T, dim=1)

    def validate(self) -> dict[str, float]:
        val = self.data.val
        queries = [self._embed(t.text, t.image).numpy() for t in val.tasks]
        return recall(val, queries, self._embed(val.text, val.image).numpy())

    @torch.no_grad()
    def merge(self, kind: str, linear: nn.Linear) -> None:
        """Puts a map behind the network's own last one."""
        linear.weight.copy_(self.maps[kind].to(linear.weight) @ linear.weight)


def last_linear(network: nn.Module, kind: str) -> nn.Linear:
    """The linear map that ends a tower of the network."""
    linear = getattr(network, PROJECTIONS[kind], None)
    if not isinstance(linear, nn.Linear) or linear.bias is not None:
        raise BadData(
            f"The {kind} side of a {type(network).__name__} does not end in a linear map, so that there is no head to "
            'train. Set [clip] tune = "lora" or "full".'
        )
    return linear
