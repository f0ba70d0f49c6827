"""The `genius` command: options in, tables out. All work is done by the modules it calls.

Heavy modules are imported inside the commands, so that `genius --help` answers at once.

Exit status: 0 when all went well, 1 when the command failed (one sentence on stderr says why) or found an index not to
be in order, 2 when it did its work but some items were bad; these are listed.
"""

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from genius.cli.console import AsJson, AtVersion, IndexPath, Where, busy, complain, print_json, read_ids, stdout
from genius.cli.convert import EPILOG as CONVERT_EPILOG
from genius.cli.convert import convert
from genius.cli.index import index_app
from genius.cli.mbeir import mbeir_app
from genius.cli.mcp import EPILOG as MCP_EPILOG
from genius.cli.mcp import mcp
from genius.cli.model import model_app
from genius.cli.serve import EPILOG as SERVE_EPILOG
from genius.cli.serve import serve
from genius.errors import GeniusError

if TYPE_CHECKING:
    from genius.index.index import Hit

app = typer.Typer(
    name="genius",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Search images, texts and pairs of both by generating the ID of the answer.",
    epilog="Start with [bold]genius demo[/bold]. Every command explains itself: [bold]genius search --help[/bold].",
)
app.add_typer(index_app, name="index")
app.add_typer(model_app, name="model")
app.add_typer(mbeir_app, name="mbeir")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `genius` command."""
    try:
        app(args=list(arguments) if arguments is not None else None)
    except GeniusError as error:
        complain(str(error))
        sys.exit(1)


def _show_version(wanted: bool) -> None:
    if wanted:
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


# genius search


@app.command(
    epilog='Example: [bold]genius search photos.genius "a cat asleep on a sofa" --target image[/bold]\n\n'
    'Example: [bold]genius search photos.genius "the same in red" --image dress.jpg --instruction '
    '"Find the product photo."[/bold]\n\n'
    'Example: [bold]genius search photos.genius "cat care" --where "lang = \'en\' AND year >= 2000"[/bold]'
)
def search(
    path: IndexPath,
    words: Annotated[str | None, typer.Argument(metavar="WORDS", help="What to look for.")] = None,
    image: Annotated[Path | None, typer.Option(help="An image to search with, alone or with words.")] = None,
    target: Annotated[str | None, typer.Option(help="Kind of items wanted: image, text or pair.")] = None,
    instruction: Annotated[str | None, typer.Option(help="What to do with words and image, as a sentence.")] = None,
    k: Annotated[int, typer.Option("-k", help="How many answers.")] = 10,
    mode: Annotated[
        str, typer.Option(help="fast (best), rerank (the paper's GENIUS^R) or generate (codes alone).")
    ] = "fast",
    beam: Annotated[int, typer.Option(help="Width of the beam search.")] = 50,
    budget: Annotated[int, typer.Option(help="Most items that mode fast re-ranks.")] = 1000,
    where: Where = None,
    ids_from: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Only items whose id is a line of this file.", show_default=False),
    ] = None,
    version: AtVersion = None,
    as_json: AsJson = False,
) -> None:
    """Find the items of an index that answer words, an image, or both."""
    from genius.data.items import Query
    from genius.index.index import Index

    query = Query(text=words, image=image, instruction=instruction, target=target)
    ids = None if ids_from is None else read_ids(ids_from)
    with busy("Searching. The first time on a machine takes some ten seconds more, to compile the inner loops."):
        index = Index.open(path, version=version)
        hits = index.search(query, k=k, mode=mode, beam=beam, budget=budget, ids=ids, where=where)
    if as_json:
        print_json([_as_dict(hit) for hit in hits])
    else:
        _show_hits(hits)


def _as_dict(hit: "Hit") -> dict[str, Any]:
    return {
        "id": hit.id,
        "score": hit.score,
        "modality": hit.modality.label,
        "codes": list(hit.codes),
        "text": hit.item.text,
        "image": None if hit.item.image is None or isinstance(hit.item.image, bytes) else str(hit.item.image),
        "metadata": hit.item.metadata,
    }


def _show_hits(hits: "list[Hit]") -> None:
    if not hits:
        stdout().print("Nothing found: the index has no such items.")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("id", overflow="fold", style="bold", min_width=12)
    table.add_column("kind", no_wrap=True)
    table.add_column("codes", style="dim", min_width=15)
    table.add_column("text", min_width=20)
    for hit in hits:
        snippet = textwrap.shorten(hit.item.text or "", 80, placeholder=" ...")
        codes = " ".join(map(str, hit.codes))
        table.add_row(f"{hit.score:.3f}", Text(hit.id), hit.modality.label, codes, Text(snippet))
    stdout().print(table)


# genius demo, train, evaluate, ablate, report


@app.command(epilog="Example: [bold]genius demo[/bold]")
def demo(
    folder: Annotated[Path, typer.Option(help="Where images, index and gallery are kept for the next run.")] = Path(
        "demo"
    ),
) -> None:
    """Index a collection of emoji and ask one question of each of the eight kinds."""
    from genius.demo.run import run_demo

    run_demo(folder)


@app.command(
    epilog="Example: [bold]genius train data/mbeir --out my-model[/bold]\n\n"
    "Interrupted? The same command goes on where it stopped."
)
def train(
    data: Annotated[list[Path], typer.Argument(metavar="DATA", help="Folders in M-BEIR layout.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder for the model, and for the checkpoints on the way.")],
    config: Annotated[
        Path | None, typer.Option(help="TOML file with the settings that differ from the defaults.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Folder for the vectors of the frozen networks; several runs can share it.")
    ] = None,
) -> None:
    """Train a model in three stages: encoder heads, quantizer, decoder."""
    from genius.train.config import TrainConfig
    from genius.train.run import train as run_training

    run_training(data, out, TrainConfig.read(config), cache)


@app.command(
    epilog="Example: [bold]genius evaluate data/mbeir --model mini[/bold]\n\n"
    "Example: [bold]genius evaluate data/mbeir --methods exact,fast,baselines --prompts all --out runs/mini[/bold]\n\n"
    "Example: [bold]genius evaluate data/mbeir --setting local --tasks mscoco_task0[/bold] (text to image)\n\n"
    "Interrupted? With --out, the same command goes on where it stopped."
)
def evaluate(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Folder in M-BEIR layout.", show_default=False)],
    model: Annotated[str, typer.Option(help="The bundled model's name, or a model folder.")] = "mini",
    split: Annotated[str, typer.Option(help="Which queries and pools.")] = "test",
    setting: Annotated[
        str, typer.Option(help="local (each task in its own pool), global (all candidates together), or both.")
    ] = "both",
    methods: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated list of exact, exact-modality, fused, generate, rerank, fast, codes (default: all of "
            "these); with Faiss also hnsw, ivfpq, opq, rq. baselines stands for the last four, all for everything.",
            show_default=False,
        ),
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(help="Names of tasks, or how they begin, by commas; all unless told.")
    ] = None,
    prompts: Annotated[
        str, typer.Option(help="first, or all: the mean over a task's prompts, and their spread.")
    ] = "first",
    beam: Annotated[int, typer.Option(help="Width of the beam search.")] = 50,
    budget: Annotated[int, typer.Option(help="Most items that mode fast re-ranks.")] = 1000,
    int8: Annotated[bool, typer.Option("--int8", help="Search with decoder weights of eight bits.")] = False,
    device: Annotated[str, typer.Option(help="Where the encoder runs, for example cuda.")] = "cpu",
    limit: Annotated[int | None, typer.Option(help="At most so many queries of each task, drawn at random.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for all figures, TREC files and vectors; genius report reads it.")
    ] = None,
) -> None:
    """Measure the recall of exact search, of the three modes and of baselines on a benchmark."""
    from genius.data.mbeir import Benchmark
    from genius.evaluation.evaluate import evaluate as run_evaluation
    from genius.evaluation.runs import METHODS, SETTINGS, tables
    from genius.model.genius import Genius

    scores = run_evaluation(
        Genius.from_pretrained(model, int8, device),
        Benchmark(data),
        split,
        SETTINGS if setting == "both" else (setting,),
        METHODS if methods is None else _methods(methods),
        beam,
        budget,
        limit,
        None if tasks is None else _names(tasks),
        prompts,
        out,
        stdout(),
    )
    for table in tables(scores):
        stdout().print(table)
    if out is not None:
        stdout().print(Text(f"All figures are in {out}. Next: genius report {out} --out report.html"))


def _names(listed: str) -> list[str]:
    return [name.strip() for name in listed.split(",") if name.strip()]


def _methods(listed: str) -> list[str]:
    """Names of methods in the order in which they are shown, groups spelled out."""
    from genius.evaluation.runs import BASELINES, METHODS, check_names

    groups = {"baselines": BASELINES, "all": METHODS + BASELINES}
    named = [name for one in _names(listed) for name in groups.get(one, (one,))]
    check_names(named, METHODS + BASELINES, "method")
    return [method for method in METHODS + BASELINES if method in named]


@app.command(
    epilog="Example: [bold]genius ablate data/mbeir --out ablations --quick[/bold]\n\n"
    "Interrupted? The same command goes on where it stopped."
)
def ablate(
    data: Annotated[list[Path], typer.Argument(metavar="DATA", help="Folders in M-BEIR layout.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder for the trained parts and all figures; genius report reads it.")],
    model: Annotated[str, typer.Option(help="Whose stage-1 vectors are used: a bundled model, or a folder.")] = "mini",
    cache: Annotated[
        Path | None, typer.Option(help="Folder for the vectors of the frozen networks; several runs can share it.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Shorter trainings and fewer queries: under an hour.")] = False,
    rows: Annotated[str | None, typer.Option(help="Names of rows, by commas; all unless told.")] = None,
    limit: Annotated[int | None, typer.Option(help="At most so many queries of each task, drawn at random.")] = None,
) -> None:
    """Train and measure every ablation of the paper: what each part of the method is worth."""
    from genius.evaluation.ablations import ablate as run_ablations

    run_ablations(data, out, model, cache, quick, None if rows is None else _names(rows), limit, stdout())


@app.command(epilog="Example: [bold]genius report runs/mini ablations --out report.html[/bold]")
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Folders that genius evaluate and genius ablate wrote.", show_default=False),
    ],
    out: Annotated[Path, typer.Option(help="The page to write; its tables as Markdown are put beside it.")] = Path(
        "report.html"
    ),
) -> None:
    """Write one page with the tables and figures of some runs, and the tables as Markdown."""
    from genius.evaluation.report import write_report

    write_report(runs, out, stdout())


app.command(epilog=SERVE_EPILOG)(serve)
app.command(epilog=MCP_EPILOG)(mcp)
app.command(epilog=CONVERT_EPILOG)(convert)
