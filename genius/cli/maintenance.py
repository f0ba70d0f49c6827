"""The commands `genius index ...` that maintain an index: versions, repair, new codes, export."""

import time
from collections import Counter
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from genius.cli.console import (
    MODEL,
    SHOWN,
    SOME_BAD,
    AsJson,
    AtVersion,
    IndexPath,
    Where,
    complain,
    examples,
    first_lines,
    lower_priority,
    open_index,
    print_json,
    say,
    stdout,
)
from genius.cli.index import UNFINISHED, index_app
from genius.cli.items import show_bad, show_report
from genius.runtime.wording import counted

if TYPE_CHECKING:
    from genius.index.verify import IndexProblem


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
    from genius.index.folder import open_folder
    from genius.index.index import Index
    from genius.index.lance_errors import Unreadable
    from genius.index.session import unfinished_sources

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
    unfinished = unfinished_sources(open_folder(path)) or []
    if as_json:
        found = [asdict(problem) for problem in problems]
        print_json(
            {"items": len(index), "files_without_checksum": unchecked, "unfinished": unfinished, "problems": found}
        )
        raise typer.Exit(1 if problems else 0)
    if unchecked:
        say(
            f"No checksum recorded for {counted(unchecked, 'file')} of {path}. "
            f"Record them with: genius index compact {path}"
        )
    if unfinished:
        say(UNFINISHED.format(sources=", ".join(unfinished)))
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
        say(f"{counted(len(report.set_aside), 'file')} moved to {path.rstrip('/')}/quarantine:")
        for line in first_lines(report.set_aside):
            say(f"  {line}")
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
    show_report(index, report, "encoded again", time.perf_counter() - start)


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
    show_bad(report.bad, "written without a copy of their image")
    raise typer.Exit(SOME_BAD if report.bad else 0)
