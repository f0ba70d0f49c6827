"""The `genius` command: options in, tables out. All work is done by the modules it calls.

Heavy modules are imported inside the commands, so that `genius --help` answers at once.

Exit status: 0 when all went well, 1 when the command failed (one sentence on stderr says why), 2 when it did its work
but some items were bad or some problems were found; these are listed.
"""

import itertools
import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from genius.errors import BadData, BadItem, GeniusError

if TYPE_CHECKING:
    from genius.index import Hit, Index
    from genius.items import Item

SOME_BAD = 2
SHOWN = 20  # rows of a list of complaints

app = typer.Typer(
    name="genius",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Search pictures, texts and pairs of both by generating the ID of the answer.",
    epilog="Start with [bold]genius demo[/bold]. Every command explains itself: [bold]genius search --help[/bold].",
)
index_app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich", help="Make an index, change it, look into it.")
app.add_typer(index_app, name="index")

IndexPath = Annotated[Path, typer.Argument(metavar="INDEX", help="Folder of the index.", show_default=False)]
SOURCE = typer.Argument(
    metavar="SOURCE",
    help="Folders of pictures (captions in .txt or .json files beside them); CSV, JSONL or Parquet files; M-BEIR "
    "candidate pools.",
    show_default=False,
)
Where = Annotated[
    str | None,
    typer.Option(
        help="Only items that satisfy this condition: SQL over id, text, modality and the metadata fields that "
        "genius index info lists.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for other programs instead of a table.")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `genius` command."""
    try:
        app(args=list(arguments) if arguments is not None else None)
    except GeniusError as error:
        _complain(str(error))
        sys.exit(1)


def _out() -> Console:
    return Console(highlight=False)


def _complain(sentence: str) -> None:
    Console(stderr=True, highlight=False).print(Text(sentence, style="red"), soft_wrap=True)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, ensure_ascii=False, indent=2))


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


# genius index ...


@index_app.command(
    "create",
    epilog="Example: [bold]genius index create photos.genius ~/Pictures[/bold]\n\n"
    "Exit status 2: some items were bad; they are listed, the good ones are in the index.",
)
def index_create(
    path: IndexPath,
    sources: Annotated[list[Path] | None, SOURCE] = None,
    model: Annotated[str, typer.Option(help="The bundled model's name, or a model folder.")] = "mini",
    codes_only: Annotated[
        bool, typer.Option("--codes-only", help="Keep no embeddings: smallest index, coarser re-ranking.")
    ] = False,
    store_images: Annotated[
        bool, typer.Option("--store-images", help="Keep copies of the pictures instead of their paths alone.")
    ] = False,
) -> None:
    """Make a new index, and add the items of SOURCE to it, if given."""
    from genius.index import Index
    from genius.model import Genius

    items = _read(sources or [])
    index = Index.create(path, Genius.from_pretrained(model), embeddings=not codes_only, store_images=store_images)
    _out().print(Text(f"Created {path} for the model {model}."))
    if sources:
        _add(index, items, replace=False)


@index_app.command(
    "add",
    epilog="Example: [bold]genius index add photos.genius more/ captions.csv[/bold]\n\n"
    "Exit status 2: some items were bad; they are listed, the good ones are in the index.",
)
def index_add(
    path: IndexPath,
    sources: Annotated[list[Path], SOURCE],
    upsert: Annotated[bool, typer.Option("--upsert", help="Replace items whose id is in the index already.")] = False,
) -> None:
    """Add items to an index."""
    from genius.index import Index

    items = _read(sources)
    _add(Index.open(path), items, replace=upsert)


def _read(sources: list[Path]) -> Iterator["Item | BadItem"]:
    """The items of all sources; a source that cannot be read at all is found before anything is written."""
    from genius.sources import read_items

    return itertools.chain.from_iterable([read_items(source) for source in sources])


def _add(index: "Index", items: Iterator["Item | BadItem"], replace: bool) -> NoReturn:
    report = (index.upsert if replace else index.add)(items, progress=True)
    _out().print(Text(f"{report.added:,} added; {index.path} now holds {len(index):,} items."))
    _show_bad(report.bad)
    raise typer.Exit(SOME_BAD if report.bad else 0)


def _show_bad(bad: list[BadItem]) -> None:
    if not bad:
        return
    table = Table(
        title=f"{len(bad)} bad items, not added", title_style="red", title_justify="left", box=box.SIMPLE_HEAD
    )
    table.add_column("item", overflow="fold")
    table.add_column("what is wrong", overflow="fold")
    for error in bad[:SHOWN]:
        table.add_row(Text(error.id), Text(error.reason))
    if len(bad) > SHOWN:
        table.add_row("...", f"and {len(bad) - SHOWN} more")
    Console(stderr=True, highlight=False).print(table)


@index_app.command(
    "delete",
    epilog="Example: [bold]genius index delete photos.genius cat.jpg dog.jpg[/bold]\n\n"
    "Exit status 2: some ids were not in the index; the others are deleted.",
)
def index_delete(
    path: IndexPath,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids of the items to delete.", show_default=False)],
) -> None:
    """Delete items from an index. The picture files themselves are not touched."""
    from genius.index import Index

    index = Index.open(path)
    missing = [id for id in ids if id not in index]
    count = index.delete(ids)
    _out().print(Text(f"{count:,} deleted; {path} now holds {len(index):,} items."))
    for id in missing:
        _complain(f"{id}: there is no item with this id.")
    raise typer.Exit(SOME_BAD if missing else 0)


@index_app.command("info", epilog="Example: [bold]genius index info photos.genius --json[/bold]")
def index_info(path: IndexPath, as_json: AsJson = False) -> None:
    """Show what an index holds and which model made it."""
    from genius.index import Index

    info = asdict(Index.open(path).info())
    if as_json:
        _print_json(info)
        return
    table = Table(show_header=False, box=None)
    for name, value in info.items():
        table.add_row(Text(name.replace("_", " "), style="bold"), Text(_in_words(value)))
    _out().print(table)


@index_app.command(
    "count",
    epilog="Example: [bold]genius index count photos.genius --where \"lang = 'en' AND year >= 2000\"[/bold]",
)
def index_count(path: IndexPath, where: Where = None) -> None:
    """Count the items of an index, or those that satisfy a condition."""
    from genius.index import Index

    typer.echo(Index.open(path).count(where))


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(
            f"{name} ({about})" if isinstance(about, str) else f"{about:,} {name}" for name, about in value.items()
        )
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return " x ".join(map(str, value))
    return str(value)


@index_app.command(
    "verify",
    epilog="Example: [bold]genius index verify photos.genius[/bold]\n\n"
    "Exit status 2: problems were found; they are listed.",
)
def index_verify(path: IndexPath) -> None:
    """Check an index: its model, codes, embeddings, ids and pictures."""
    from genius.index import Index

    index = Index.open(path)
    problems = index.verify()
    if not problems:
        _out().print(Text(f"{path} is in order: {len(index):,} items.", style="green"))
        return
    for problem in problems[:SHOWN]:
        _complain(problem)
    if len(problems) > SHOWN:
        _complain(f"... and {len(problems) - SHOWN} more.")
    raise typer.Exit(SOME_BAD)


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
    image: Annotated[Path | None, typer.Option(help="A picture to search with, alone or with words.")] = None,
    target: Annotated[str | None, typer.Option(help="Kind of items wanted: image, text or pair.")] = None,
    instruction: Annotated[str | None, typer.Option(help="What to do with words and picture, as a sentence.")] = None,
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
    as_json: AsJson = False,
) -> None:
    """Find the items of an index that answer words, a picture, or both."""
    from genius.index import Index
    from genius.items import Query

    query = Query(text=words, image=image, instruction=instruction, target=target)
    ids = None if ids_from is None else _read_ids(ids_from)
    hits = Index.open(path).search(query, k=k, mode=mode, beam=beam, budget=budget, ids=ids, where=where)
    if as_json:
        _print_json([_as_dict(hit) for hit in hits])
    else:
        _show_hits(hits)


def _read_ids(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeError) as error:
        raise BadData(f"{file} cannot be read ({error}). Give a text file in UTF-8 with an id a line.") from error


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
        _out().print("Nothing found: the index has no such items.")
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
    _out().print(table)


# genius demo, train, evaluate, ablate, report


@app.command(epilog="Example: [bold]genius demo[/bold]")
def demo(
    folder: Annotated[Path, typer.Option(help="Where pictures, index and gallery are kept for the next run.")] = Path(
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
    "Example: [bold]genius evaluate data/mbeir --methods exact,fast,peers --prompts all --out runs/mini[/bold]\n\n"
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
            help="Some of exact, exact-kind, fused, generate, rerank, fast, codes, by commas: these unless told. With "
            "Faiss hnsw, ivfpq, opq, rq too: peers for these four, all for everything.",
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
    limit: Annotated[int | None, typer.Option(help="At most so many queries of each task, drawn at random.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for all figures, TREC files and vectors; genius report reads it.")
    ] = None,
) -> None:
    """Measure the recall of exact search, of the three modes and of peers on a benchmark."""
    from genius.evaluate import METHODS, SETTINGS, tables
    from genius.evaluate import evaluate as run_evaluation
    from genius.mbeir import Benchmark
    from genius.model import Genius

    scores = run_evaluation(
        Genius.from_pretrained(model),
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
        _out(),
    )
    for table in tables(scores):
        _out().print(table)
    if out is not None:
        _out().print(Text(f"All figures are in {out}. Next: genius report {out} --out report.html"))


def _names(listed: str) -> list[str]:
    return [name.strip() for name in listed.split(",") if name.strip()]


def _methods(listed: str) -> list[str]:
    """Names of methods in the order in which they are shown, groups spelled out."""
    from genius.evaluate import METHODS, PEERS, check_names

    groups = {"peers": PEERS, "all": METHODS + PEERS}
    named = [name for one in _names(listed) for name in groups.get(one, (one,))]
    check_names(named, METHODS + PEERS, "method")
    return [method for method in METHODS + PEERS if method in named]


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
    from genius.ablate import ablate as run_ablations

    run_ablations(data, out, model, cache, quick, None if rows is None else _names(rows), limit, _out())


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
    from genius.report import write_report

    write_report(runs, out, _out())


if __name__ == "__main__":
    main()
