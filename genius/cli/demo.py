"""The command `genius demo`."""

from pathlib import Path
from typing import Annotated

import typer

from genius.cli.console import examples

EPILOG = examples("genius demo")


def demo(
    folder: Annotated[Path, typer.Option(help="Where images, index and gallery are kept for the next run.")] = Path(
        "demo"
    ),
) -> None:
    """Index a collection of emoji, run one query for each of the eight tasks, and write a page with the hits."""
    from genius.demo.run import run_demo

    run_demo(folder)
