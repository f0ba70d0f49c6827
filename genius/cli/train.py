"""The command `genius train`."""

from pathlib import Path
from typing import Annotated

import typer

from genius.cli.console import examples

RESUME = "Interrupted? Run the same command again: it continues where it stopped."
EPILOG = examples("genius train data/mbeir --out my-model", notes=RESUME)
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
) -> None:
    """Train a model in three stages: encoder heads, quantizer, decoder."""
    from genius.train.config import TrainConfig
    from genius.train.run import train as run_training

    run_training(data, out, TrainConfig.read(config), cache)
