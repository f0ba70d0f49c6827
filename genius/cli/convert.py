"""The command `genius convert`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from genius.cli.console import examples, say

EPILOG = examples(
    "genius convert --clip clip_sf_large.pth --rq rq_clip_large.pth --decoder GENIUS_t5small.pth genius-clip",
    "genius convert --blip blip_ff_large.pth blip-ff",
    notes="Only tensors are read from these files. A file with anything that could run code is refused.",
)


def convert(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Model folder to create.")],
    decoder: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Decoder of GENIUS, GENIUS_t5small.pth. Without it the model has no codebooks and searches exactly.",
        ),
    ] = None,
    rq: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Quantizer of GENIUS, rq_clip_large.pth. Default: the copy inside the decoder's file.",
        ),
    ] = None,
    clip: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Encoder of UniIR, clip_sf_large.pth. Without an encoder the model accepts vectors only.",
        ),
    ] = None,
    blip: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Encoder of UniIR, blip_ff_large.pth. Converted alone."),
    ] = None,
) -> None:
    """Convert the checkpoints published by the authors of GENIUS and UniIR to a model folder."""
    from genius.networks.published import convert as convert_files

    with Console(stderr=True).status("Converting") as status:
        model = convert_files(out, rq, decoder, clip, blip, tell=lambda step: status.update(Text(step)))
    made = "no codebooks, exact search" if model.encoder_only else f"{' x '.join(map(str, model.sizes))} codes"
    say(f"Wrote {out}: {made}. Its README.md names the files it was made from.")
    if clip is None and blip is None:
        say("It has no encoder, so it accepts image and text vectors only. Add one with --clip.")
