"""The commands `genius index ...`."""

import itertools
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from genius.cli.console import (
    MODEL,
    SHOWN,
    SOME_BAD,
    AsCsv,
    AsJson,
    AtVersion,
    Fields,
    IndexPath,
    ModelName,
    Where,
    complain,
    examples,
    lower_priority,
    metadata_columns,
    open_index,
    print_json,
    read_ids,
    say,
    show_facts,
    signals_as_interrupts,
    stdout,
)
from genius.cli.items import check_format, one_line, show_items, with_fields
from genius.errors import BadData, BadItem
from genius.wording import counted

if TYPE_CHECKING:
    from genius.data.items import Item
    from genius.index.index import Index
    from genius.index.verify import IndexProblem
    from genius.search.results import AddReport

index_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", help="Create, change, inspect and maintain an index."
)

SOURCE = typer.Argument(
    metavar="SOURCE",
    help="Folders of images (with captions in .txt or .json files beside them), CSV, JSON, JSONL or Parquet files, or "
    "M-BEIR candidate pools.",
)
BAD_ITEMS = "Exit status 2: some items were bad. They are listed; the other items are in the index."
RESUME = "Interrupted? Run the same command again: items that are in the index are not encoded again."


# Changing an index


@index_app.command(
    "create",
    epilog=examples(
        "genius index create photos.genius ~/Images",
        "genius index create news.genius articles.jsonl --codes-only",
        notes=f"{RESUME}\n\n{BAD_ITEMS}",
    ),
)
def index_create(
    path: IndexPath,
    sources: Annotated[list[Path] | None, SOURCE] = None,
    model: ModelName = "mini",
    codes_only: Annotated[
        bool, typer.Option("--codes-only", help="Store no embeddings: smallest index, coarser ranking.")
    ] = False,
    store_images: Annotated[
        bool, typer.Option("--store-images", help="Store copies of the images, not only their paths.")
    ] = False,
) -> None:
    """Create an index and add the items of SOURCE."""
    from genius.index.creation import creating
    from genius.model.genius import Genius

    given = sources or []
    items = _read(given)
    with creating(path, Genius.from_pretrained(model), given, not codes_only, store_images) as index:
        if len(index):
            say(f"The creation of {path} was interrupted at {len(index):,} items; adding the rest.")
        else:
            say(f"Created {path} for the model {model}.")
        start = time.perf_counter()
        report = _add(index, items, given, replace=False) if given else None
    if report is not None:
        _report(index, report, "added", time.perf_counter() - start)


@index_app.command(
    "add",
    epilog=examples("genius index add photos.genius more/ captions.csv", notes=f"{RESUME}\n\n{BAD_ITEMS}"),
)
def index_add(path: IndexPath, sources: Annotated[list[Path], SOURCE]) -> None:
    """Add new items to an index. Unchanged items are skipped; a changed item needs upsert."""
    _add_to(path, sources, replace=False)


@index_app.command(
    "upsert",
    epilog=examples("genius index upsert photos.genius captions.csv", notes=f"{RESUME}\n\n{BAD_ITEMS}"),
)
def index_upsert(path: IndexPath, sources: Annotated[list[Path], SOURCE]) -> None:
    """Add items to an index and replace those with the same id. Unchanged items are skipped."""
    _add_to(path, sources, replace=True)


def _read(sources: list[Path]) -> Iterator["Item | BadItem"]:
    """The items of all sources. A source that does not exist raises before anything is written."""
    from genius.data.readers import read_items

    return itertools.chain.from_iterable([read_items(source) for source in sources])


def _add_to(path: Path, sources: list[Path], replace: bool) -> NoReturn:
    index, items, start = open_index(path), _read(sources), time.perf_counter()
    _report(index, _add(index, items, sources, replace), "added", time.perf_counter() - start)


def _add(index: "Index", items: Iterator["Item | BadItem"], sources: list[Path], replace: bool) -> "AddReport":
    from genius.data.readers import count_items

    lower_priority()
    counts = [count_items(source) for source in sources]
    total = None if None in counts else sum(filter(None, counts))
    with signals_as_interrupts() as received:
        try:
            return (index.upsert if replace else index.add)(items, progress=True, total=total)
        except KeyboardInterrupt:
            index.refresh()
            complain(f"Interrupted. {len(index):,} items are safe in {index.path}; the same command adds the rest.")
            raise typer.Exit(128 + (received or [signal.SIGINT])[0]) from None


def _report(index: "Index", report: "AddReport", done: str, seconds: float) -> NoReturn:
    unchanged = f", {report.unchanged:,} unchanged" if report.unchanged else ""
    rate = (report.added + report.unchanged) / max(seconds, 1e-9)
    say(
        f"{report.added:,} {done}{unchanged} in {seconds:.1f} s ({rate:,.0f} items/s); "
        f"{index.path} now holds {counted(len(index), 'item')}."
    )
    _show_bad(report.bad, f"not {done}")
    raise typer.Exit(SOME_BAD if report.bad else 0)


def _show_bad(bad: list[BadItem], what: str) -> None:
    if not bad:
        return
    complain(f"{counted(len(bad), 'bad item')}, {what}:")
    for error in bad[:SHOWN]:
        complain(f"  {one_line(error.id)}: {one_line(error.reason)}")
    if len(bad) > SHOWN:
        complain(f"  ... and {len(bad) - SHOWN:,} more")


@index_app.command(
    "delete",
    epilog=examples(
        "genius index delete photos.genius cat.jpg dog.jpg",
        "genius index delete photos.genius --ids-from gone.txt",
        'genius index delete photos.genius --where "year < 2000" --dry-run',
        notes="Exit status 2: some ids are not in the index. The other items are deleted.",
    ),
)
def index_delete(
    path: IndexPath,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids of the items to delete.")] = None,
    ids_from: Annotated[Path | None, typer.Option(metavar="FILE", help="Text file with one id per line.")] = None,
    where: Where = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say how many items would be deleted.")] = False,
) -> None:
    """Delete items from an index, by id or by a filter. Image files outside the index are not touched."""
    chosen = [*(ids or []), *(read_ids(ids_from) or [])]
    if not chosen and where is None:
        raise BadData("There is nothing to delete. Give ids, a file of ids with --ids-from, or a filter with --where.")
    if chosen and where is not None:
        raise BadData(
            "Ids and --where exclude each other. To delete by both, write: --where \"id IN ('a', 'b') AND ...\""
        )
    index = open_index(path)
    missing = [id for id, item in zip(chosen, index.get(chosen), strict=True) if item is None]
    if dry_run:
        count = len(set(chosen) - set(missing)) if where is None else index.count(where)
        say(f"{counted(count, 'item')} would be deleted; {path} holds {counted(len(index), 'item')}.")
    else:
        count = index.delete(chosen) if where is None else index.delete(where=where)
        say(f"{counted(count, 'item')} deleted; {path} now holds {counted(len(index), 'item')}.")
    _name_missing(missing)


def _name_missing(missing: Sequence[str]) -> None:
    for id in missing[:SHOWN]:
        complain(f"{id}: there is no item with this id.")
    if len(missing) > SHOWN:
        complain(f"... and {len(missing) - SHOWN:,} more.")
    if missing:
        raise typer.Exit(SOME_BAD)


# Reading an index


@index_app.command(
    "get",
    epilog=examples(
        "genius index get photos.genius cat.jpg",
        notes="Exit status 2: some ids are not in the index. The other items are shown.",
    ),
)
def index_get(
    path: IndexPath,
    ids: Annotated[list[str], typer.Argument(metavar="ID", help="Ids of the items to show.")],
    version: AtVersion = None,
    fields: Fields = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Show items by their ids."""
    check_format(as_json, as_csv)
    index = open_index(path, version)
    items = index.get(ids)
    found = [item for item in items if item is not None]
    if found or as_json or as_csv:
        show_items(with_fields(found, fields), metadata_columns(index, fields), as_json, as_csv)
    _name_missing([id for id, item in zip(ids, items, strict=True) if item is None])


@index_app.command(
    "filter",
    epilog=examples(
        "genius index filter photos.genius --where \"lang = 'en' AND year >= 2000\" --limit 5",
        'genius index filter photos.genius --where "year < 2000" --limit 100000 --csv > old.csv',
        notes="genius index export writes all items to a file, with their images if you like.",
    ),
)
def index_filter(
    path: IndexPath,
    where: Where = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of items.")] = 100,
    version: AtVersion = None,
    fields: Fields = None,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Show the items of an index, or those that match a filter."""
    check_format(as_json, as_csv)
    index = open_index(path, version)
    items = itertools.islice(index.items(where), limit)
    show_items(with_fields(items, fields), metadata_columns(index, fields), as_json, as_csv)
    count = index.count(where)
    if count > limit:
        complain(f"These are the first {limit:,} of {counted(count, 'item')}; --limit N shows more.")


@index_app.command(
    "count",
    epilog=examples("genius index count photos.genius --where \"lang = 'en' AND year >= 2000\""),
)
def index_count(path: IndexPath, where: Where = None, version: AtVersion = None) -> None:
    """Count the items of an index, or those that match a filter."""
    typer.echo(open_index(path, version).count(where))


@index_app.command("info", epilog=examples("genius index info photos.genius --json"))
def index_info(path: IndexPath, version: AtVersion = None, as_json: AsJson = False) -> None:
    """Show the size, metadata fields and model of an index."""
    info = open_index(path, version).info()
    if as_json:
        print_json(asdict(info))
        return
    nouns = {"image": "image", "text": "text", "image,text": "pair"}
    held = ", ".join(counted(count, nouns[modality]) for modality, count in info.modalities.items() if count)
    levels = ", ".join(
        f"{counted(len(list(group)), 'level')} of {size:,} codes" for size, group in itertools.groupby(info.sizes)
    )
    show_facts(
        {
            "path": info.path,
            "items": f"{info.items:,}" + (f" ({held})" if held else ""),
            "IDs": f"{info.ids:,} distinct, {levels}",
            "fields": ", ".join(f"{name} ({type})" for name, type in info.fields.items()) or "none",
            "model": f"{info.model or 'not saved'} (fingerprint {info.fingerprint})",
            "embeddings": f"{info.dim:,} dimensions" if info.embeddings else "none (--codes-only)",
            "images": "copies in the index" if info.store_images else "paths of files",
            "re-encoded": counted(info.generation, "time"),
            "version": f"{info.version:,}",
            "size": f"{info.bytes:,} bytes",
        }
    )


@index_app.command(
    "versions",
    epilog=examples("genius index versions photos.genius", 'genius search photos.genius "a cat" --version 7'),
)
def index_versions(path: IndexPath, as_json: AsJson = False) -> None:
    """List the versions of an index that can still be read. genius index compact removes old ones."""
    versions = open_index(path).versions()
    if as_json:
        print_json([asdict(version) | {"time": version.time.isoformat()} for version in versions])
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("version", "time", "items"):
        table.add_column(name, justify="left" if name == "time" else "right", no_wrap=True)
    for version in versions:
        table.add_row(str(version.number), f"{version.time:%Y-%m-%d %H:%M:%S}", f"{version.items:,}")
    stdout().print(table)


# Maintaining an index


@index_app.command(
    "verify",
    epilog=examples(
        "genius index verify photos.genius",
        "genius index verify photos.genius --deep",
        notes="All files are compared with the checksums that were recorded when they were written. Exit status 1: "
        "problems were found. They are listed with the commands that repair them.",
    ),
)
def index_verify(
    path: IndexPath,
    sample: Annotated[
        int, typer.Option(metavar="N", help="Encode N random items again and compare their codes.")
    ] = 100,
    deep: Annotated[bool, typer.Option("--deep", help="Encode all items again and compare all images.")] = False,
    drop_damaged: Annotated[
        bool,
        typer.Option(
            "--drop-damaged",
            help="First remove the items in damaged files, so that the rest of the index works again.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check an index: its files, model, ids, codes, embeddings, texts and images."""
    from genius.index.index import Index
    from genius.index.lance_errors import Unreadable

    try:
        index = open_index(path)
    except Unreadable:
        problems = Index.verify_files(path)
        if not problems:
            raise
        if as_json:
            print_json({"items": None, "problems": [asdict(problem) for problem in problems]})
        else:
            _show_problems(problems)
        raise typer.Exit(1) from None
    if drop_damaged:
        dropped = index.drop_damaged()
        if not as_json:
            say(f"{counted(dropped, 'item')} removed from {path}. Add what was lost again from its source.")
    problems, unchecked = index.verify(sample, deep, progress=True), len(index.files_without_checksum())
    if as_json:
        found = [asdict(problem) for problem in problems]
        print_json({"items": len(index), "files_without_checksum": unchecked, "problems": found})
        raise typer.Exit(1 if problems else 0)
    if unchecked:
        say(
            f"No checksum recorded for {counted(unchecked, 'file')} of {path}. "
            f"Record them with: genius index compact {path}"
        )
    if problems:
        _show_problems(problems)
        raise typer.Exit(1)
    stdout().print(Text(f"{path} is in order: {counted(len(index), 'item')}.", style="green"))


def _show_problems(problems: "list[IndexProblem]") -> None:
    counts = Counter(problem.kind for problem in problems)
    shown: list[IndexProblem] = []
    for kind, count in counts.items():
        first = [problem for problem in problems if problem.kind == kind][:SHOWN]
        for problem in first:
            complain(problem.message if problem.id is None else f"{problem.id}: {problem.message}")
        if count > SHOWN:
            complain(f"... and {counted(count - SHOWN, f'more {kind} problem')}; --json lists them all.")
        shown += first
    listed = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
    complain(f"{counted(len(problems), 'problem')}: {listed}.")
    complain("To repair:")
    for repair in list(dict.fromkeys(problem.repair for problem in shown))[:SHOWN]:
        complain(f"  {repair}")


@index_app.command(
    "restore",
    epilog=examples(
        "genius index restore photos.genius",
        "genius index restore photos.genius --version 7",
        notes="Items that were added, changed or deleted since that version are as they were then. Damaged files are "
        "moved to the folder quarantine of the index; nothing is deleted.",
    ),
)
def index_restore(
    path: IndexPath,
    version: Annotated[
        int | None, typer.Option(metavar="N", help="The version to go back to. Default: the newest one without damage.")
    ] = None,
) -> None:
    """Go back to an earlier version of an index, for example if the newest one is damaged."""
    from genius.index.index import Index

    report = Index.restore(path, version)
    items = counted(report.items, "item")
    if report.version == report.restored:
        say(f"Version {report.version} of {path} is the newest one and whole: {items}.")
    else:
        say(f"{path} is at version {report.restored} again: {items}, as version {report.version}.")
    if report.set_aside:
        say(f"{counted(len(report.set_aside), 'file')} moved to {path / 'quarantine'}:")
        for file in report.set_aside[:SHOWN]:
            say(f"  {file}")
        if len(report.set_aside) > SHOWN:
            say(f"  ... and {len(report.set_aside) - SHOWN:,} more")
    if report.damaged:
        complain(f"Files of this version are damaged. List them with: genius index verify {path}")
        raise typer.Exit(SOME_BAD)


@index_app.command(
    "reindex",
    epilog=examples(
        "genius index reindex photos.genius --model my-model",
        notes="The index can be searched meanwhile. Readers see the new version when it is complete.",
    ),
)
def index_reindex(
    path: IndexPath,
    model: Annotated[str | None, typer.Option(help=f"{MODEL} Default: the model of the index.")] = None,
) -> None:
    """Encode all items again from their texts and images, to repair an index or to change its model."""
    from genius.model.genius import Genius

    lower_priority()
    index = open_index(path)
    start = time.perf_counter()
    report = index.reindex(None if model is None else Genius.from_pretrained(model), progress=True)
    _report(index, report, "encoded again", time.perf_counter() - start)


@index_app.command(
    "compact",
    epilog=examples(
        "genius index compact photos.genius --keep 7",
        notes="Readers of an older version can keep using it if it is younger than --keep.",
    ),
)
def index_compact(
    path: IndexPath,
    keep: Annotated[float, typer.Option(metavar="DAYS", min=0, help="Keep versions younger than this.")] = 1.0,
) -> None:
    """Merge small files, and remove old versions and leftovers of interrupted writes."""
    report = open_index(path).compact(timedelta(days=keep))
    merged = counted(report.files_merged, "small file")
    removed = counted(report.versions_removed, "old version")
    say(f"{merged} merged, {removed} removed, {counted(report.bytes_removed, 'byte')} freed.")
    if report.versions_kept:
        kept = counted(report.versions_kept, "older version")
        say(f"Kept {kept}, younger than {keep:g} {'day' if keep == 1 else 'days'}; --keep 0 keeps only the latest.")


@index_app.command(
    "export",
    epilog=examples(
        "genius index export photos.genius photos.csv",
        'genius index export photos.genius recent.jsonl --where "year >= 2020"',
        "genius index export photos.genius benchmark --format mbeir --copy-images",
        notes="genius index add reads all of these formats. Exit status 2: some images could not be copied.",
    ),
)
def index_export(
    path: IndexPath,
    target: Annotated[Path, typer.Argument(metavar="OUT", help="New file or folder to write.")],
    format: Annotated[
        str | None,
        typer.Option(help="csv, jsonl, parquet or mbeir. Default: by the suffix of OUT."),
    ] = None,
    where: Where = None,
    copy_images: Annotated[
        bool, typer.Option("--copy-images", help="Copy the images, so that the export can be moved.")
    ] = False,
    version: AtVersion = None,
) -> None:
    """Write items to a CSV, JSONL or Parquet file, or as an M-BEIR candidate pool."""
    report = open_index(path, version).export(target, format, copy_images, progress=True, where=where)
    images = f", with {counted(report.images, 'image')}" if report.images else ""
    say(f"{counted(report.items, 'item')} written to {target}{images}.")
    if report.without_content:
        say(f"{counted(report.without_content, 'item')} without text or image: added as vectors.")
    _show_bad(report.bad, "written without a copy of their image")
    raise typer.Exit(SOME_BAD if report.bad else 0)
