"""The command `genius search`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast

import typer

from genius.cli.console import (
    AsCsv,
    AsJson,
    AtVersion,
    Beam,
    Budget,
    Fields,
    IndexPath,
    Where,
    busy,
    examples,
    metadata_columns,
    open_index,
    read_ids,
)
from genius.cli.items import check_format, show_hits, with_fields
from genius.search.options import Mode, SearchOptions

EPILOG = examples(
    'genius search photos.genius "a cat asleep on a sofa" --target image',
    'genius search photos.genius "the same in red" --image dress.jpg --instruction "Find the product photo."',
    'genius search photos.genius "cat care" --where "lang = \'en\' AND year >= 2000" --fields lang,year',
    'genius search photos.genius "cat care" -k 100 --csv > hits.csv',
)


def search(
    path: IndexPath,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="Text of the query.")] = None,
    image: Annotated[Path | None, typer.Option(help="Image of the query, alone or with a text.")] = None,
    target: Annotated[str | None, typer.Option(help="Modality of the hits: image, text or pair. Default: any.")] = None,
    instruction: Annotated[
        str | None, typer.Option(help="What to find, as a sentence. Default: a sentence that names the target.")
    ] = None,
    k: Annotated[int, typer.Option("-k", help="Number of hits.")] = SearchOptions.k,
    mode: Annotated[
        str,
        typer.Option(
            help="fast: rank the items nearest by their codes, up to --budget, by similarity. rerank: rank the "
            "generated IDs by similarity (GENIUS^R of the paper). generate: rank the generated IDs by probability "
            "(GENIUS of the paper)."
        ),
    ] = SearchOptions.mode,
    beam: Beam = SearchOptions.beam,
    budget: Budget = SearchOptions.budget,
    where: Where = None,
    ids_from: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Only items whose id is a line of this file."),
    ] = None,
    branch: Annotated[
        str | None,
        typer.Option(metavar="CODES", help="Only items under this branch of the code tree, such as 0-17 or *-17."),
    ] = None,
    version: AtVersion = None,
    fields: Fields = None,
    codes: Annotated[bool, typer.Option("--codes", help="Show the semantic ID of each hit.")] = False,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
) -> None:
    """Find items of an index with a text, an image, or both."""
    from genius.data.items import Query

    query = Query(text=text, image=image, instruction=instruction, target=target)
    check_format(as_json, as_csv)
    with busy("Searching."):
        index = open_index(path, version)
        hits = index.search(
            query,
            k=k,
            mode=cast(Mode, mode),
            beam=beam,
            budget=budget,
            ids=read_ids(ids_from),
            where=where,
            branch=branch,
        )
    items = with_fields([hit.item for hit in hits], fields)
    shown = [replace(hit, item=item) for hit, item in zip(hits, items, strict=True)]
    show_hits(shown, metadata_columns(index, fields), as_json, as_csv, codes)
