"""The commands `genius index ...` that change and read an index."""

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from genius.cli.console import (
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
    first_lines,
    interruptible,
    lower_priority,
    metadata_columns,
    open_index,
    print_json,
    read_ids,
    say,
    show_facts,
    stderr,
)
from genius.cli.items import check_format, show_items, show_report, with_fields
from genius.errors import BadData, BadItem
from genius.runtime.wording import counted

if TYPE_CHECKING:
    from genius.data.items import Item
    from genius.index.index import Index
    from genius.search.results import AddReport

index_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode="rich", help="Create, change, inspect and maintain an index."
)

SOURCE = typer.Argument(
    metavar="SOURCE",
    help="Folders of images (with captions in .txt or .json files beside them), CSV, JSON, JSONL or Parquet files, "
    "Lance datasets, WebDataset shards (.tar), or M-BEIR candidate pools; also URLs such as s3://bucket/photos.",
)
CodesOnly = Annotated[bool, typer.Option("--codes-only", help="Store no embeddings: smallest index, coarser ranking.")]
StoreImages = Annotated[bool, typer.Option("--store-images", help="Store copies of the images, not only their paths.")]
BAD_ITEMS = "Exit status 2: some items were bad. They are listed; the other items are in the index."
UNFINISHED = "The creation from {sources} was not completed. Repeat its command to add the rest."
RESUME = "Interrupted? Run the same command again: items that are in the index are not encoded again."


# Changing an index


@index_app.command(
    "create",
    epilog=examples(
        "genius index create photos.genius ~/Images",
        "genius index create news.genius articles.jsonl --codes-only",
        "genius index create photos.genius ~/Images --encoder openai/clip-vit-base-patch32",
        "genius index create s3://bucket/photos.genius ~/Images --store-images",
        notes=f"{RESUME}\n\n{BAD_ITEMS}",
    ),
)
def index_create(
    path: IndexPath,
    sources: Annotated[list[str] | None, SOURCE] = None,
    model: ModelName = "mini",
    codes_only: CodesOnly = False,
    store_images: StoreImages = False,
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Encode with mini, or with a CLIP, SigLIP or sentence-transformers model (folder or hub id), and fit "
            "codebooks and decoder to the items. Default: the model of --model as it is.",
        ),
    ] = None,
) -> None:
    """Create an index and add the items of SOURCE."""
    if encoder is not None:
        if model != "mini":
            raise BadData(
                "--model and --encoder exclude each other: the codes are fitted to the encoder. Leave out one of them."
            )
        _create_fitted(path, sources or [], encoder, codes_only, store_images)
    from genius.index.creation import creating
    from genius.model.genius import Genius

    given = sources or []
    items = read_sources(given)
    with creating(path, Genius.from_pretrained(model), given, not codes_only, store_images) as index:
        if len(index):
            say(f"The creation of {path} was interrupted at {counted(len(index), 'item')}; adding the rest.")
        else:
            say(f"Created {path} for the model {model}.")
        start = time.perf_counter()
        report = _add(index, items, given, replace=False) if given else None
    if report is not None:
        show_report(index, report, "added", time.perf_counter() - start)


def _create_fitted(path: str, sources: list[str], encoder: str, codes_only: bool, store_images: bool) -> NoReturn:
    """`genius index create --encoder`: ends the command."""
    from genius.fit.encoders import open_encoder
    from genius.fit.refit import create_fitted

    if not sources:
        raise BadData("Codebooks are learned from the items: give a SOURCE, or leave out --encoder.")
    items, start = read_sources(sources), time.perf_counter()
    index, added, _ = create_fitted(
        path,
        open_encoder(encoder),
        sources,
        lambda made: _add(made, items, sources, replace=False),
        embeddings=not codes_only,
        store_images=store_images,
        console=stderr(),
    )
    show_report(index, added, "added", time.perf_counter() - start)


@index_app.command(
    "add",
    epilog=examples("genius index add photos.genius more/ captions.csv", notes=f"{RESUME}\n\n{BAD_ITEMS}"),
)
def index_add(path: IndexPath, sources: Annotated[list[str], SOURCE]) -> None:
    """Add new items to an index. Unchanged items are skipped; a changed item needs upsert."""
    _add_to(path, sources, replace=False)


@index_app.command(
    "upsert",
    epilog=examples("genius index upsert photos.genius captions.csv", notes=f"{RESUME}\n\n{BAD_ITEMS}"),
)
def index_upsert(path: IndexPath, sources: Annotated[list[str], SOURCE]) -> None:
    """Add items to an index, and replace items that have the same id. Unchanged items are skipped."""
    _add_to(path, sources, replace=True)


def read_sources(sources: list[str]) -> Iterator["Item | BadItem"]:
    """The items of all sources. A source that does not exist raises before anything is written."""
    from genius.data.readers import read_items

    return itertools.chain.from_iterable([read_items(source) for source in sources])


def count_sources(sources: list[str]) -> int | None:
    """Number of items of all sources, for a progress bar. None if a source must be read to be counted."""
    from genius.data.readers import count_items

    counts = [count_items(source) for source in sources]
    return None if None in counts else sum(filter(None, counts))


def _add_to(path: str, sources: list[str], replace: bool) -> NoReturn:
    index, items, start = open_index(path), read_sources(sources), time.perf_counter()
    show_report(index, _add(index, items, sources, replace), "added", time.perf_counter() - start)


def _add(index: "Index", items: Iterator["Item | BadItem"], sources: list[str], replace: bool) -> "AddReport":
    lower_priority()
    total = count_sources(sources)

    def explain() -> str:
        index.refresh()
        return f"Interrupted. {index.path} holds {counted(len(index), 'item')}; the same command adds the rest."

    with interruptible(explain):
        return (index.upsert if replace else index.add)(items, progress=True, total=total)


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
    for line in first_lines([f"{id}: there is no item with this id." for id in missing]):
        complain(line)
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
    """Show the items of an index: all, or the matches of a filter."""
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
    """Count the items of an index: all, or the matches of a filter."""
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
    facts = {
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
    if info.drift is not None:
        facts["drift"] = info.drift.words
    if info.unfinished:
        facts["unfinished"] = UNFINISHED.format(sources=", ".join(info.unfinished))
    show_facts(facts)
