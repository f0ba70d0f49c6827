"""The command `genius search`."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from genius.cli.console import (
    AsJson,
    AtVersion,
    Beam,
    Budget,
    IndexPath,
    Where,
    busy,
    examples,
    open_index,
    print_json,
    read_ids,
    say,
    stdout,
)
from genius.cli.items import item_dict
from genius.search.options import Mode, SearchOptions

if TYPE_CHECKING:
    from genius.search.results import Hit

EPILOG = examples(
    'genius search photos.genius "a cat asleep on a sofa" --target image',
    'genius search photos.genius "the same in red" --image dress.jpg --instruction "Find the product photo."',
    'genius search photos.genius "cat care" --where "lang = \'en\' AND year >= 2000"',
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
            help="fast: rank up to --budget candidates by similarity. rerank: rank the generated IDs by similarity "
            "(GENIUS^R of the paper). generate: rank the generated IDs by probability (GENIUS of the paper)."
        ),
    ] = SearchOptions.mode,
    beam: Beam = SearchOptions.beam,
    budget: Budget = SearchOptions.budget,
    where: Where = None,
    ids_from: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Only items whose id is a line of this file."),
    ] = None,
    version: AtVersion = None,
    as_json: AsJson = False,
) -> None:
    """Find items of an index with a text, an image, or both."""
    from genius.data.items import Query

    query = Query(text=text, image=image, instruction=instruction, target=target)
    with busy("Searching. The first search on a machine takes about ten seconds longer, to compile the kernels."):
        hits = open_index(path, version).search(
            query, k=k, mode=cast(Mode, mode), beam=beam, budget=budget, ids=read_ids(ids_from), where=where
        )
    if as_json:
        own = ({"score": hit.score, "modality": hit.modality.label, "codes": list(hit.codes)} for hit in hits)
        print_json([item_dict(hit.item) | fields for hit, fields in zip(hits, own, strict=True)])
    else:
        _show(hits)


def _show(hits: "list[Hit]") -> None:
    if not hits:
        say("Nothing found: no item of the index matches.")
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("id", overflow="fold", style="bold", min_width=12)
    table.add_column("modality", no_wrap=True)
    table.add_column("codes", style="dim", min_width=15)
    table.add_column("text", min_width=20)
    for hit in hits:
        snippet = textwrap.shorten(hit.item.text or "", 80, placeholder=" ...")
        codes = " ".join(map(str, hit.codes))
        table.add_row(f"{hit.score:.3f}", Text(hit.id), hit.modality.label, codes, Text(snippet))
    stdout().print(table)
