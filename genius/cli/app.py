"""The `genius` command. Commands translate options, call the package, and print.

Heavy modules are imported inside the commands, so that `genius --help` starts fast. Exit status: 0 on success, 1 if
the command failed (one sentence on stderr tells why), 2 if it succeeded for some items only.
"""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from genius.cli import atlas, convert, demo, evaluation, fit, mcp, search, serve, train
from genius.cli import build as _build  # noqa: F401 (adds its command to index_app)
from genius.cli import maintenance as _maintenance  # noqa: F401 (adds its commands to index_app)
from genius.cli.console import complain
from genius.cli.dataset import dataset_app
from genius.cli.index import index_app
from genius.cli.mbeir import mbeir_app
from genius.cli.model import model_app
from genius.errors import GeniusError, MissingExtra
from genius.runtime.memory import return_memory

SEARCH, MODELS, EVALUATION = "Search", "Models", "Evaluation"
app = typer.Typer(
    name="genius",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Search images, texts and pairs of both by generating semantic IDs.",
    epilog="Start with [bold]genius demo[/bold]. Every command has examples: [bold]genius search --help[/bold].",
)
app.command(epilog=demo.EPILOG, rich_help_panel=SEARCH)(demo.demo)
app.add_typer(index_app, name="index", rich_help_panel=SEARCH)
app.command(epilog=search.EPILOG, rich_help_panel=SEARCH)(search.search)
app.command(epilog=serve.EPILOG, rich_help_panel=SEARCH)(serve.serve)
app.command(epilog=atlas.EPILOG, rich_help_panel=SEARCH)(atlas.atlas)
app.command(epilog=mcp.EPILOG, rich_help_panel=SEARCH)(mcp.mcp)
app.add_typer(dataset_app, name="dataset", rich_help_panel=MODELS)
app.command(epilog=fit.EPILOG, rich_help_panel=MODELS)(fit.fit)
app.command(epilog=train.EPILOG, rich_help_panel=MODELS)(train.train)
app.add_typer(model_app, name="model", rich_help_panel=MODELS)
app.command(epilog=convert.EPILOG, rich_help_panel=MODELS)(convert.convert)
app.command(epilog=evaluation.EVALUATE_EPILOG, rich_help_panel=EVALUATION)(evaluation.evaluate)
app.command(epilog=evaluation.ABLATE_EPILOG, rich_help_panel=EVALUATION)(evaluation.ablate)
app.command(epilog=evaluation.REPORT_EPILOG, rich_help_panel=EVALUATION)(evaluation.report)
app.add_typer(mbeir_app, name="mbeir", rich_help_panel=EVALUATION)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `genius` command."""
    return_memory()
    try:
        app(args=list(arguments) if arguments is not None else None, prog_name="genius")
    except GeniusError as error:
        complain(str(error))
        sys.exit(1)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        complain(str(MissingExtra("This command", "train")))
        sys.exit(1)


def _show_version(given: bool) -> None:
    if given:
        from genius import __version__

        typer.echo(f"genius {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
