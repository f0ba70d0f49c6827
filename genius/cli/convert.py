"""The command `genius convert`: published checkpoints become a model folder."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from genius.cli.console import say

EPILOG = (
    "Example: [bold]genius convert --clip clip_sf_large.pth --rq rq_clip_large.pth --decoder GENIUS_t5small.pth "
    "genius-clip[/bold]\n\n"
    "Only tensors are read from these files; one that holds anything that could run code is refused."
)


def convert(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The model folder to make.", show_default=False)],
    decoder: Annotated[Path, typer.Option(metavar="FILE", help="The authors' decoder, GENIUS_t5small.pth.")],
    rq: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The authors' quantizer, rq_clip_large.pth; without it, the copy that the decoder's file holds.",
            show_default=False,
        ),
    ] = None,
    clip: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="UniIR's encoder, clip_sf_large.pth; without it, the model works from ready vectors only.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Make a model folder of the checkpoints that the authors of GENIUS and UniIR published."""
    from genius.model.published import convert as convert_files

    with Console(stderr=True).status("Converting") as status:
        model = convert_files(out, rq, decoder, clip, tell=lambda step: status.update(Text(step)))
    say(f"Wrote {out}: {' x '.join(map(str, model.sizes))} codes. Its README.md names what it was made of.")
    if clip is None:
        say("It has no encoder: it works from ready image and text vectors. With --clip it encodes items and queries.")
