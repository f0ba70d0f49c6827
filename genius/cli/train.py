"""The command `genius train`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from genius.cli.console import examples

RESUME = "Interrupted? Run the same command again: it continues where it stopped."
EPILOG = examples(
    "genius train data/mbeir --out my-model",
    "torchrun --nproc-per-node 4 -m genius train data/mbeir --out my-model --device cuda",
    notes=RESUME,
)
Benchmarks = Annotated[list[Path], typer.Argument(metavar="DATA", help="Folders in M-BEIR layout.")]
Cache = Annotated[
    Path | None,
    typer.Option(help="Folder for the vectors of the frozen encoder; runs can share it."),
]


def train(
    data: Benchmarks,
    out: Annotated[Path, typer.Option(help="Folder for the model and its checkpoints.")],
    config: Annotated[Path | None, typer.Option(help="TOML file with settings that replace the defaults.")] = None,
    cache: Cache = None,
    device: Annotated[
        str | None,
        typer.Option(help="Where to compute: auto, cpu, cuda or mps. Default: auto, a CUDA device if there is one."),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(help="Of matrix products: auto, float32, bf16 or fp16. Default: auto, the best of a CUDA device."),
    ] = None,
) -> None:
    """Train a model in three stages: encoder heads, quantizer, decoder."""
    from genius.train.config import TrainConfig
    from genius.train.run import train as run_training

    settings = TrainConfig.read(config)
    settings = replace(settings, device=device or settings.device, precision=precision or settings.precision)
    run_training(data, out, settings, cache)
