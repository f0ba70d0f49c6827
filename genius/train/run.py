"""`genius train`: features, then the three stages, then a model folder. Start it again and it goes on where it stopped.

A run keeps everything it needs to go on in `OUT/training`: the configuration, the cached features, a checkpoint of each
stage, `log.jsonl`, and `curves.png` at the end. The model itself lies in OUT.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from genius.encoders.base import Encoder
from genius.encoders.mini import Heads, MiniEncoder
from genius.errors import BadData, GeniusError
from genius.model.genius import Genius
from genius.train.config import TrainConfig, check
from genius.train.curves import draw_curves
from genius.train.data import TrainingData
from genius.train.decoder import DecoderStage
from genius.train.encoder import EncoderStage, image_vectors, text_vectors
from genius.train.features import ImageFeatures, text_features
from genius.train.loop import Times, as_saved, run_stage, write_atomically
from genius.train.quantizer import FrozenVectors, QuantizerStage


def train(
    roots: Sequence[Path],
    out: Path,
    config: TrainConfig,
    cache: Path | None = None,
    console: Console | None = None,
) -> Genius:
    """Trains a model on benchmarks in M-BEIR layout (train split; choices are made on val) and saves it to `out`."""
    console = console or Console()
    check(config)
    if find_spec("matplotlib") is None:
        raise GeniusError('Training draws its curves with matplotlib: pip install "genius-search[train]"')
    folder = out / "training"
    folder.mkdir(parents=True, exist_ok=True)
    _same_run(folder / "run.json", {"data": [str(Path(r).resolve()) for r in roots], "config": asdict(config)})
    times = Times(folder / "times.json")

    data = TrainingData([Path(root).resolve() for root in roots], config.seed, config.derived_prompts)
    console.print(
        f"{len(data.train.tasks)} tasks, {sum(map(len, data.train.tasks)):,} training queries, "
        f"{len(data.train.text):,} candidates, {len(data.images.names):,} images, {len(data.texts.names):,} texts"
    )
    cache = cache or folder / "cache"
    encoder: Encoder
    if config.clip.model:
        from genius.train.clip import train_clip

        encoder, vectors = train_clip(data, folder, cache, config.clip, config.seed, times, console)
    else:
        encoder, vectors = _train_mini(data, folder, cache, config, times, console)
    with times("quantizer"):
        quantized = QuantizerStage(data, vectors, config.quantizer, config.seed)
        if not (folder / "quantizer.safetensors").exists():
            with console.status("k-means"):
                quantized.start()
        run_stage(quantized, folder, console)
    as_saved(quantized.fusion)
    as_saved(quantized.quantizer)
    with times("decoder"):
        decoded = DecoderStage(data, quantized, config.decoder, config.seed)
        run_stage(decoded, folder, console)

    model = Genius(encoder, quantized.fusion, quantized.quantizer, decoded.decoder, config.quantizer.code_beams)
    model.save_pretrained(out)
    draw_curves(folder / "log.jsonl", folder / "curves.png")
    console.print(f"Model saved in {out} ({times}). Curves: {folder / 'curves.png'}")
    console.print(f"Next: genius evaluate DATA --model {out}")
    return Genius.from_pretrained(out)


def _train_mini(
    data: TrainingData, folder: Path, cache: Path, config: TrainConfig, times: Times, console: Console
) -> tuple[MiniEncoder, FrozenVectors]:
    """Stage 1 of `mini`, and its vectors of everything in `data`."""
    with times("features"):
        texts = text_features(data.texts.names, cache, console)
        views = [
            ImageFeatures(data.images.names, cache, view, torch.get_num_threads(), console)
            for view in range(config.encoder.views)
        ]
    torch.manual_seed(config.seed)
    heads = Heads(config.heads)
    with times("encoder"):
        run_stage(EncoderStage(heads, data, texts, views, config.encoder, config.seed), folder, console)
    as_saved(heads)
    with times("vectors"):
        vectors = FrozenVectors(
            _kept(folder / "texts.npy", lambda: text_vectors(heads, texts, np.arange(len(texts)))),
            _kept(folder / "images.npy", lambda: image_vectors(heads, views[0], np.arange(len(data.images.names)))),
        )
    return MiniEncoder(heads), vectors


def _same_run(path: Path, facts: dict[str, Any]) -> None:
    """A folder holds one run: going on with other data or settings would mix two."""
    facts = json.loads(json.dumps(facts))
    if path.exists() and json.loads(path.read_text()) != facts:
        raise BadData(
            f"{path.parent.parent} holds a run with other data or settings (see {path}). "
            "Give another folder with --out, or delete that one to start over."
        )
    write_atomically(path, lambda p: p.write_text(json.dumps(facts, indent=2) + "\n"))


def _kept(path: Path, make: Callable[[], np.ndarray]) -> np.ndarray:
    """The array in a file, made and written if it is not there yet."""
    if not path.exists():
        array = make()

        def write(part: Path) -> None:
            with open(part, "wb") as file:
                np.save(file, array)

        write_atomically(path, write)
    loaded: np.ndarray = np.load(path, mmap_mode="r")
    return loaded
