"""The `genius index ...` commands: make an index, change it, look into it, keep it in order."""

import itertools
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from genius.cli.console import (
    CONDITION,
    SHOWN,
    SOME_BAD,
    AsJson,
    AtVersion,
    IdsFrom,
    IndexPath,
    Where,
    complain,
    make_way,
    print_json,
    read_ids,
    say,
    stdout,
)
from genius.errors import BadData, BadItem

if TYPE_CHECKING:
    from genius.data.items import Item
    from genius.index.index import AddReport, Index
    from genius.index.verify import Problem

index_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", help="Make an index, change it, look into it, keep it in order."
)

SOURCE = typer.Argument(
    metavar="SOURCE",
    help="Folders of images (captions in .txt or .json files beside them); CSV, JSONL or Parquet files; M-BEIR "
    "candidate pools.",
    show_default=False,
)
MODEL = "The bundled model's name, or a model folder."
BAD_ITEMS = "Exit status 2: some items were bad; they are listed, the good ones are in the index."
RESUME = "Interrupted? The same command goes on where it stopped: what is in the index is not encoded again."


# Changing


@index_app.command(
    "create",
    epilog="Example: [bold]genius index create photos.genius ~/Images[/bold]\n\n"
    "Example: [bold]genius index create news.genius articles.jsonl --codes-only[/bold]\n\n" + BAD_ITEMS,
)
def index_create(
    path: IndexPath,
    sources: Annotated[list[Path] | None, SOURCE] = None,
    model: Annotated[str, typer.Option(help=MODEL)] = "mini",
    codes_only: Annotated[
        bool, typer.Option("--codes-only", help="Keep no embeddings: smallest index, coarser re-ranking.")
    ] = False,
    store_images: Annotated[
        bool, typer.Option("--store-images", help="Keep copies of the images instead of their paths alone.")
    ] = False,
) -> None:
    """Make a new index, and add the items of SOURCE to it, if given."""
    from genius.index.index import Index
    from genius.model.genius import Genius

    items = _read(sources or [])
    index = Index.create(path, Genius.from_pretrained(model), embeddings=not codes_only, store_images=store_images)
    say(f"Created {path} for the model {model}.")
    if sources:
        _add(index, items, replace=False)


@index_app.command(
    "add",
    epilog=f"Example: [bold]genius index add photos.genius more/ captions.csv[/bold]\n\n{RESUME}\n\n{BAD_ITEMS}",
)
def index_add(path: IndexPath, sources: Annotated[list[Path], SOURCE]) -> None:
    """Add new items to an index. Those that are in it already, just so, are passed over."""
    from genius.index.index import Index

    make_way()
    items = _read(sources)
    _add(Index.open(path), items, replace=False)


@index_app.command(
    "upsert",
    epilog=f"Example: [bold]genius index upsert photos.genius captions.csv[/bold]\n\n{RESUME}\n\n{BAD_ITEMS}",
)
def index_upsert(path: IndexPath, sources: Annotated[list[Path], SOURCE]) -> None:
    """Add items to an index; one whose id is taken replaces the one that has it. Only what changed is encoded."""
    from genius.index.index import Index

    make_way()
    items = _read(sources)
    _add(Index.open(path), items, replace=True)


def _read(sources: list[Path]) -> Iterator["Item | BadItem"]:
    """The items of all sources; a source that cannot be read at all is found before anything is written."""
    from genius.data.readers import read_items

    return itertools.chain.from_iterable([read_items(source) for source in sources])


def _add(index: "Index", items: Iterator["Item | BadItem"], replace: bool) -> NoReturn:
    start = time.perf_counter()
    try:
        report = (index.upsert if replace else index.add)(items, progress=True)
    except KeyboardInterrupt:
        complain(f"Interrupted. {len(index):,} items are safe in {index.path}; the same command adds the others.")
        raise typer.Exit(130) from None
    _report(index, report, "added", time.perf_counter() - start)


def _report(index: "Index", report: "AddReport", done: str, seconds: float) -> NoReturn:
    unchanged = f", {report.unchanged:,} unchanged" if report.unchanged else ""
    rate = (report.added + report.unchanged) / max(seconds, 1e-9)
    say(
        f"{report.added:,} {done}{unchanged} in {seconds:.1f} s ({rate:,.0f} items/s); "
        f"{index.path} now holds {len(index):,} items."
    )
    _show_bad(report.bad, f"not {done}")
    raise typer.Exit(SOME_BAD if report.bad else 0)


def _show_bad(bad: list[BadItem], what: str) -> None:
    if not bad:
        return
    table = Table(title=f"{len(bad)} bad items, {what}", title_style="red", title_justify="left", box=box.SIMPLE_HEAD)
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
    "Example: [bold]genius index delete photos.genius --ids-from gone.txt[/bold]\n\n"
    "Exit status 2: some ids were not in the index; the others are deleted.",
)
def index_delete(
    path: IndexPath,
    ids: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="Ids of the items to delete.", show_default=False)
    ] = None,
    ids_from: IdsFrom = None,
) -> None:
    """Delete items from an index. The image files themselves are not touched."""
    from genius.index.index import Index

    wanted = [*(ids or []), *([] if ids_from is None else read_ids(ids_from))]
    if not wanted:
        raise BadData("There is nothing to delete: no id was given. Name some, or a file of them with --ids-from.")
    index = Index.open(path)
    missing = [id for id, item in zip(wanted, index.get(wanted), strict=True) if item is None]
    count = index.delete(wanted)
    say(f"{count:,} deleted; {path} now holds {len(index):,} items.")
    _name_missing(missing)


def _name_missing(missing: Sequence[str]) -> None:
    for id in missing[:SHOWN]:
        complain(f"{id}: there is no item with this id.")
    if len(missing) > SHOWN:
        complain(f"... and {len(missing) - SHOWN} more.")
    if missing:
        raise typer.Exit(SOME_BAD)


# Looking


@index_app.command(
    "get",
    epilog="Example: [bold]genius index get photos.genius cat.jpg[/bold]\n\n"
    "Exit status 2: some ids were not in the index; the other items are shown.",
)
def index_get(
    path: IndexPath,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids of the items to show.", show_default=False)],
    version: AtVersion = None,
    as_json: AsJson = False,
) -> None:
    """Show items by their ids."""
    from genius.index.index import Index

    items = Index.open(path, version=version).get(ids)
    _show_items([item for item in items if item is not None], as_json)
    _name_missing([id for id, item in zip(ids, items, strict=True) if item is None])


@index_app.command(
    "filter",
    epilog="Example: [bold]genius index filter photos.genius \"lang = 'en' AND year >= 2000\" --limit 5[/bold]",
)
def index_filter(
    path: IndexPath,
    where: Annotated[str, typer.Argument(metavar="CONDITION", help=CONDITION, show_default=False)],
    limit: Annotated[int, typer.Option(help="At most so many items.")] = 100,
    version: AtVersion = None,
    as_json: AsJson = False,
) -> None:
    """Show the items that satisfy a condition."""
    from genius.index.index import Index

    _show_items(Index.open(path, version=version).filter(where, limit), as_json)


def _show_items(items: "list[Item]", as_json: bool) -> None:
    records = [_as_dict(item) for item in items]
    if as_json:
        print_json(records)
        return
    if not records:
        say("There are no such items.")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("id", overflow="fold", style="bold", min_width=12)
    table.add_column("kind", no_wrap=True)
    table.add_column("text", min_width=20)
    table.add_column("image", overflow="fold")
    table.add_column("metadata", overflow="fold")
    for item, record in zip(items, records, strict=True):
        image = "kept in the index" if isinstance(item.image, bytes) else record["image"] or ""
        about = ", ".join(f"{name}: {value}" for name, value in item.metadata.items())
        text = textwrap.shorten(item.text or "", 200, placeholder=" ...")
        table.add_row(Text(item.id), record["modality"] or "vector", Text(text), Text(image), Text(about))
    stdout().print(table)


def _as_dict(item: "Item") -> dict[str, Any]:
    """An item as JSON. An image that the index keeps has no path; an item added as a vector has no kind."""
    return {
        "id": item.id,
        "modality": None if item.text is None and item.image is None else item.modality.label,
        "text": item.text,
        "image": None if item.image is None or isinstance(item.image, bytes) else str(item.image),
        "metadata": item.metadata,
    }


@index_app.command(
    "count",
    epilog="Example: [bold]genius index count photos.genius --where \"lang = 'en' AND year >= 2000\"[/bold]",
)
def index_count(path: IndexPath, where: Where = None, version: AtVersion = None) -> None:
    """Count the items of an index, or those that satisfy a condition."""
    from genius.index.index import Index

    typer.echo(Index.open(path, version=version).count(where))


@index_app.command("info", epilog="Example: [bold]genius index info photos.genius --json[/bold]")
def index_info(path: IndexPath, version: AtVersion = None, as_json: AsJson = False) -> None:
    """Show what an index holds and which model made it."""
    from genius.index.index import Index

    info = asdict(Index.open(path, version=version).info())
    if as_json:
        print_json(info)
        return
    table = Table(show_header=False, box=None)
    for name, value in info.items():
        table.add_row(Text(name.replace("_", " "), style="bold"), Text(_in_words(value)))
    stdout().print(table)


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
    "versions",
    epilog="Example: [bold]genius index versions photos.genius[/bold], then "
    '[bold]genius search photos.genius "a cat" --version 7[/bold]',
)
def index_versions(path: IndexPath, as_json: AsJson = False) -> None:
    """List the older states of an index that can still be looked at. genius index compact removes them."""
    from genius.index.index import Index

    versions = Index.open(path).versions()
    if as_json:
        print_json([asdict(version) | {"time": version.time.isoformat()} for version in versions])
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("version", "time", "items"):
        table.add_column(name, justify="left" if name == "time" else "right", no_wrap=True)
    for version in versions:
        table.add_row(str(version.number), f"{version.time:%Y-%m-%d %H:%M:%S}", f"{version.items:,}")
    stdout().print(table)


# Keeping in order


@index_app.command(
    "verify",
    epilog="Example: [bold]genius index verify photos.genius --deep[/bold]\n\n"
    "Exit status 1: problems were found; they are listed, with the commands that mend them.",
)
def index_verify(
    path: IndexPath,
    sample: Annotated[
        int, typer.Option(help="Encode so many items anew, drawn at random, to see whether their codes are right.")
    ] = 100,
    deep: Annotated[bool, typer.Option("--deep", help="Encode all items anew, and compare all images.")] = False,
    drop_damaged: Annotated[
        bool,
        typer.Option(
            "--drop-damaged",
            help="First take out the items that lie in files which cannot be read, so that the rest works again.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check an index: its files, model, ids, codes, embeddings, texts and images."""
    from genius.index import verify
    from genius.index.index import Index

    index = Index.open(path)
    if drop_damaged:
        dropped = verify.drop_damaged(index)
        if not as_json:
            say(f"{dropped:,} items were taken out of {path}. Add them again from where they came from.")
    problems = verify.find_problems(index, sample, deep, progress=True)
    if as_json:
        found = [asdict(problem) for problem in problems]
        print_json({"items": len(index), "problems": found})
        raise typer.Exit(1 if found else 0)
    _show_problems(index, problems)


def _show_problems(index: "Index", problems: "Iterator[Problem]") -> None:
    counts: Counter[str] = Counter()
    shown: list[Problem] = []
    for problem in problems:
        counts[problem.kind] += 1
        if counts[problem.kind] <= SHOWN:
            shown.append(problem)
    if not counts:
        stdout().print(Text(f"{index.path} is in order: {len(index):,} items.", style="green"))
        return
    for problem in shown:
        complain(problem.message if problem.id is None else f"{problem.id}: {problem.message}")
    for kind, count in counts.items():
        if count > SHOWN:
            complain(f"... and {count - SHOWN:,} more of the kind {kind}; --json lists them all.")
    listed = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    complain(f"{counts.total():,} {'problem' if counts.total() == 1 else 'problems'}: {listed}.")
    complain("What mends them:")
    for repair in list(dict.fromkeys(problem.repair for problem in shown))[:SHOWN]:
        complain(f"  {repair}")
    raise typer.Exit(1)


@index_app.command(
    "reindex",
    epilog="Example: [bold]genius index reindex photos.genius --model my-model[/bold]\n\n"
    "Others can search the index all the while; they see the new state when it is whole.",
)
def index_reindex(
    path: IndexPath,
    model: Annotated[
        str | None, typer.Option(help=f"{MODEL} Without it, the one that made the index.", show_default=False)
    ] = None,
) -> None:
    """Encode all items anew from their texts and images: to mend an index, or to change its model."""
    from genius.index.index import Index
    from genius.model.genius import Genius

    make_way()
    index = Index.open(path)
    start = time.perf_counter()
    report = index.reindex(None if model is None else Genius.from_pretrained(model), progress=True)
    _report(index, report, "encoded anew", time.perf_counter() - start)


@index_app.command(
    "compact",
    epilog="Example: [bold]genius index compact photos.genius --keep 7[/bold]\n\n"
    "Readers that have an older state open keep it as long as it is younger than --keep.",
)
def index_compact(
    path: IndexPath,
    keep: Annotated[float, typer.Option(metavar="DAYS", min=0, help="Keep older states that are younger.")] = 1.0,
) -> None:
    """Merge small files, and remove old states and what broken-off writes have left."""
    from genius.index.index import Index

    index = Index.open(path)
    report = index.compact(timedelta(days=keep))
    say(
        f"{report.files_merged:,} small files merged, {report.versions_removed:,} old versions removed, "
        f"{report.bytes_removed:,} bytes freed."
    )


@index_app.command(
    "export",
    epilog="Example: [bold]genius index export photos.genius photos.jsonl[/bold]\n\n"
    "Example: [bold]genius index export photos.genius benchmark --format mbeir --copy-images[/bold]\n\n"
    "genius index add reads all of these formats. Exit status 2: some images could not be copied.",
)
def index_export(
    path: IndexPath,
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help="File or folder to write; it must not exist.", show_default=False)
    ],
    format: Annotated[
        str | None,
        typer.Option(help="jsonl, parquet or mbeir; unless told, the ending of OUT decides.", show_default=False),
    ] = None,
    copy_images: Annotated[
        bool, typer.Option("--copy-images", help="Copy the images too, so that the export can be moved.")
    ] = False,
    version: AtVersion = None,
) -> None:
    """Write all items to a JSONL or Parquet file, or as an M-BEIR candidate pool."""
    from genius.index.export import export
    from genius.index.index import Index

    report = export(Index.open(path, version=version), target, format, copy_images, progress=True)
    say(f"{report.items:,} items written to {target}, with {report.images:,} images.")
    if report.without_content:
        say(f"{report.without_content:,} items were added as vectors: they have neither text nor image to export.")
    _show_bad(report.bad, "written without a copy of their image")
    raise typer.Exit(SOME_BAD if report.bad else 0)
