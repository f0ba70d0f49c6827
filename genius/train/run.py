"""`genius train`: features, the three stages, and a model folder. The same command continues an interrupted run.

The folder `OUT/training` holds the configuration, cached features, a checkpoint of each stage, `log.jsonl` and, at the
end, `curves.png`. The model itself is in OUT.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from genius.encoders.base import Encoder
from genius.encoders.mini import MiniEncoder
from genius.model.genius import Genius
from genius.networks.heads import Heads
from genius.runtime.wording import counted
from genius.train import distributed
from genius.train.compute import Compute, choose_precision, reading_threads
from genius.train.config import TrainConfig, check
from genius.train.curves import draw_curves
from genius.train.data import FrozenVectors, StageVectors, TrainingData
from genius.train.decoder import DecoderStage
from genius.train.encoder import EncoderStage, image_vectors, text_vectors
from genius.train.features import ImageFeatures, text_features
from genius.train.files import check_same_run, record_run, write_arrays
from genius.train.loop import StageTimes, round_to_half, run_stage
from genius.train.quantizer import QuantizerStage


def train(
    roots: Sequence[Path],
    out: Path,
    config: TrainConfig,
    cache: Path | None = None,
    console: Console | None = None,
) -> Genius:
    """Train a model and save it.

    Args:
        roots: Benchmarks in M-BEIR layout. The train split is trained on, the val split chooses weights.
        out: Model folder to write. An interrupted run in it continues.
        config: Settings. Under torchrun, all its processes must call this function.
        cache: Folder of cached features, which several runs can share. Default: inside `out`.
        console: Where progress is shown.

    Returns:
        The model as loaded from `out`.

    Raises:
        GeniusError: A setting is out of range, the data cannot be read, or `out` holds another run.
    """
    check(config)
    with distributed.processes(config.device) as device:
        if not distributed.is_main():
            console = Console(quiet=True)
        compute = Compute(device, choose_precision(config.precision, device))
        _train(roots, out, config, cache, console or Console(), compute)
        distributed.barrier()
    return Genius.from_pretrained(out)


def _train(
    roots: Sequence[Path], out: Path, config: TrainConfig, cache: Path | None, console: Console, compute: Compute
) -> None:
    folder = out / "training"
    deciding = asdict(replace(config, device=""))  # a run can continue on another device
    facts = {"data": [str(Path(r).resolve()) for r in roots], "config": deciding}
    begun = any(folder.glob("*.safetensors")) or any(folder.glob("*.npy"))
    check_same_run(folder / "run.json", facts, out, "a run with other data or settings", begun)
    data = TrainingData([Path(root).resolve() for root in roots], config.seed, config.derived_prompts)
    distributed.barrier()  # all have checked
    if distributed.is_main():
        record_run(folder / "run.json", facts)
    times = StageTimes(folder / "times.json")
    console.print(
        f"{counted(len(data.train.tasks), 'task')}, "
        f"{counted(sum(map(len, data.train.tasks)), 'training query', 'training queries')}, "
        f"{counted(len(data.train.text), 'candidate')}, {counted(len(data.images.names), 'image')}, "
        f"{counted(len(data.texts.names), 'text')}"
    )
    cache = cache or folder / "cache"
    encoder: Encoder
    vectors: StageVectors
    if config.clip.model:
        from genius.train.clip import train_clip

        encoder, vectors = train_clip(data, folder, cache, config.clip, config.seed, times, console, compute)
    else:
        encoder, vectors = _train_mini(data, folder, cache, config, times, console, compute)
    with times("quantizer"):
        quantized = QuantizerStage(data, vectors, config.quantizer, config.seed, compute)
        if not distributed.from_main((folder / "quantizer.safetensors").exists):
            with console.status("k-means"):
                quantized.start()
        run_stage(quantized, folder, console)
    round_to_half(quantized.fusion)
    round_to_half(quantized.quantizer)
    with times("decoder"):
        decoded = DecoderStage(
            data,
            vectors,
            quantized.fusion,
            quantized.scheme,
            config.decoder,
            config.seed,
            config.quantizer.code_beams,
            compute,
        )
        run_stage(decoded, folder, console)

    if distributed.is_main():
        _write_model(encoder, quantized, decoded, out, config, times, console)


def _write_model(
    encoder: Encoder,
    quantized: QuantizerStage,
    decoded: DecoderStage,
    out: Path,
    config: TrainConfig,
    times: StageTimes,
    console: Console,
) -> None:
    folder = out / "training"
    model = Genius(
        encoder,
        quantized.fusion.runtime(),
        quantized.quantizer.runtime(),
        decoded.decoder.runtime(),
        config.quantizer.code_beams,
        first_code=config.quantizer.first_code,
    )
    model.save_pretrained(out)
    console.print(f"Model saved in {out} ({times}).")
    if find_spec("matplotlib") is None:
        console.print(
            f"Losses are in {folder / 'log.jsonl'}. No curves were drawn, because matplotlib is not installed: pip "
            'install "genius-search\\[train]"'
        )
    else:
        draw_curves(folder / "log.jsonl", folder / "curves.png")
        console.print(f"Curves: {folder / 'curves.png'}")
    console.print(f"Next: genius evaluate DATA --model {out}")


def _train_mini(
    data: TrainingData,
    folder: Path,
    cache: Path,
    config: TrainConfig,
    times: StageTimes,
    console: Console,
    compute: Compute,
) -> tuple[MiniEncoder, FrozenVectors]:
    """Stage 1 of `mini`: the encoder, and its vectors of everything in `data`."""
    with times("features"):
        texts = text_features(data.texts.names, cache, config.heads.int8_text, console)
        views = [
            ImageFeatures(data.images.names, cache, view, reading_threads(compute.device), console)
            for view in range(config.encoder.views)
        ]
    torch.manual_seed(config.seed)
    heads = Heads(config.heads)
    with times("encoder"):
        run_stage(EncoderStage(heads, data, texts, views, config.encoder, config.seed, compute), folder, console)
    round_to_half(heads)
    with times("vectors"):
        vectors = FrozenVectors(
            _stored(folder / "texts.npy", lambda: text_vectors(heads, texts, np.arange(len(texts)))),
            _stored(folder / "images.npy", lambda: image_vectors(heads, views[0], np.arange(len(data.images.names)))),
        )
    return heads.encoder(), vectors


def _stored(path: Path, make: Callable[[], np.ndarray]) -> np.ndarray:
    """The array stored in a file, made by all processes and written first if there is none."""
    if not distributed.from_main(path.exists):
        made = make()
        if distributed.is_main():
            write_arrays(path, made)
        distributed.barrier()
    loaded: np.ndarray = np.load(path, mmap_mode="r")
    return loaded
