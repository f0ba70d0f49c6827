"""The commands `genius model ...`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from genius.cli.console import MODEL, AsJson, examples, print_json, read_text, say, show_facts

model_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", help="Inspect or publish a model, or export it for other programs."
)

Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL)]
Name = Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Name of the model on the hub.")]
Run = Annotated[
    Path | None,
    typer.Option(help="Folder of genius evaluate --out with results of this model."),
]
License = Annotated[str | None, typer.Option(help="Short name of the license on the hub, such as mit.")]
Out = Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write to.")]


@model_app.command("info", epilog=examples("genius model info my-model"))
def model_info(model: Model, as_json: AsJson = False) -> None:
    """Show the parts of a model and, if it was fitted to a collection, how well it does there."""
    from genius.fit.check import sentences
    from genius.model.fit_report import FitReport
    from genius.model.genius import Genius

    loaded, report = Genius.from_pretrained(model), FitReport.read(model)
    config = loaded.decoder.config
    facts = {
        "encoder": loaded.encoder.kind,
        "dimensions": f"{loaded.dim:,}",
        "codes": " x ".join(map(str, loaded.sizes)),
        "decoder": f"{config.layers} layers of width {config.d_model:,}" if config.layers else "residual score",
        "instructions": "yes" if loaded.instructions else "no: the target decides the modality",
        "fingerprint": loaded.fingerprint,
    }
    if as_json:
        print_json(facts | {"fit": None if report is None else asdict(report)})
        return
    show_facts(facts)
    for line in [] if report is None else sentences(report):
        say(line)


@model_app.command("push", epilog=examples("genius model push my-model me/my-model --run runs/mine"))
def model_push(
    model: Model,
    name: Name,
    run: Run = None,
    card: Annotated[Path | None, typer.Option(help="README.md to use instead of a generated model card.")] = None,
    license: License = None,
    private: Annotated[bool, typer.Option("--private", help="Create a private repository.")] = False,
) -> None:
    """Publish a model with a model card on the Hugging Face hub. Log in first: hf auth login."""
    from genius.evaluation.model_card import model_card as make_card
    from genius.model.genius import Genius
    from genius.model.hub import check_name

    check_name(name)
    loaded = Genius.from_pretrained(model)
    text = make_card(loaded, name, run, license) if card is None else read_text(card)
    address = loaded.push_to_hub(name, text, private)
    say(f'Published as {address}. Others load it with Genius.from_pretrained("{name}").')


@model_app.command("card", epilog=examples("genius model card my-model me/my-model --run runs/mine"))
def model_card(model: Model, name: Name, run: Run = None, license: License = None) -> None:
    """Print the model card that genius model push generates, to edit it and pass it with push --card."""
    from genius.evaluation.model_card import model_card as make_card
    from genius.model.genius import Genius

    typer.echo(make_card(Genius.from_pretrained(model), name, run, license), nl=False)


@model_app.command("onnx", epilog=examples("genius model onnx mini mini-onnx"))
def model_onnx(model: Model, out: Out) -> None:
    """Export encoder, fusion and decoder as ONNX files; onnx.json describes their inputs and outputs."""
    from genius.model.genius import Genius
    from genius.networks.onnx_export import export_onnx

    with Console(stderr=True).status("exporting"):
        loaded = Genius.from_pretrained(model)
        names = export_onnx(loaded, out)
    say(f"Wrote {', '.join(names)} to {out}.")
    if not any(name.startswith("encoder") for name in names):
        say(f"The encoder ({loaded.encoder.kind}) has no network to export: vectors must come from elsewhere.")


@model_app.command("t5", epilog=examples("genius model t5 genius-clip genius-t5"))
def model_t5(model: Model, out: Out) -> None:
    """Export the decoder as a T5 model of transformers. Decoders with residual input or score are refused."""
    from genius.model.genius import Genius
    from genius.networks.t5 import save_t5

    save_t5(Genius.from_pretrained(model).decoder, out)
    say(f"Wrote {out}: T5ForConditionalGeneration.from_pretrained loads it; its README.md shows how to use it.")
