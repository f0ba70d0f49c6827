"""The `genius model ...` commands: give a model to other people and other programs."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from genius.cli.console import say

model_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", help="Publish a model, or export it for other programs."
)

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="The bundled model's name, a model folder, or owner/name of the hub.")
]
Name = Annotated[str, typer.Argument(metavar="OWNER/NAME", help="The model's name on the hub.", show_default=False)]
Run = Annotated[
    Path | None,
    typer.Option(help="Folder of genius evaluate --out with this model's figures, for the card.", show_default=False),
]
License = Annotated[str | None, typer.Option(help="The license's short name on the hub, such as mit.")]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write to.", show_default=False)]


@model_app.command("push", epilog="Example: [bold]genius model push my-model me/my-model --run runs/mine[/bold]")
def model_push(
    model: Model,
    name: Name,
    run: Run = None,
    card: Annotated[
        Path | None, typer.Option(help="A README.md of your own instead of the one that is made.", show_default=False)
    ] = None,
    license: License = None,
    private: Annotated[bool, typer.Option("--private", help="Only you can see it.")] = False,
) -> None:
    """Publish a model on the Hugging Face hub, with a model card. Log in first: hf auth login."""
    from genius.model.genius import Genius
    from genius.model.hub import push

    address = push(Genius.from_pretrained(model), name, run, card, license, private)
    say(f'Published as {address}. Others load it with Genius.from_pretrained("{name}").')


@model_app.command("card", epilog="Example: [bold]genius model card my-model me/my-model --run runs/mine[/bold]")
def model_card(model: Model, name: Name, run: Run = None, license: License = None) -> None:
    """Print the model card that genius model push makes, so that it can be edited and given to push."""
    from genius.evaluation.model_card import model_card as make_card
    from genius.model.genius import Genius

    typer.echo(make_card(Genius.from_pretrained(model), name, run, license), nl=False)


@model_app.command("onnx", epilog="Example: [bold]genius model onnx mini mini-onnx[/bold]")
def model_onnx(model: Model, out: Out) -> None:
    """Write encoder, fusion and decoder as ONNX files; onnx.json beside them says what goes in and out."""
    from genius.model.genius import Genius
    from genius.model.onnx_export import export_onnx

    with Console(stderr=True).status("exporting"):
        loaded = Genius.from_pretrained(model)
        names = export_onnx(loaded, out)
    say(f"Wrote {', '.join(names)} to {out}.")
    if not any(name.startswith("encoder") for name in names):
        say(f"The encoder ({loaded.encoder.kind}) has no network to write: vectors must come from elsewhere.")


@model_app.command("t5", epilog="Example: [bold]genius model t5 genius-clip genius-t5[/bold]")
def model_t5(model: Model, out: Out) -> None:
    """Write the decoder as a T5 of transformers. Decoders with a linear head (mini's) are no T5, and are refused."""
    from genius.model.genius import Genius
    from genius.model.t5 import save_t5

    save_t5(Genius.from_pretrained(model).decoder, out)
    say(f"Wrote {out}: T5ForConditionalGeneration.from_pretrained loads it; its README.md shows how it is used.")
