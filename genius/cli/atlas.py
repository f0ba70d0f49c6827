"""The command `genius atlas`."""

import time
from pathlib import Path
from typing import Annotated

import typer

from genius.cli.console import IndexPath, busy, examples, open_index, say

EPILOG = examples(
    "genius atlas photos.genius",
    "genius atlas photos.genius --out atlas --figures",
    "genius atlas coco.genius --queries data/mbeir --figures --compare without=models/no-contrastive",
)


def atlas(
    path: IndexPath,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to write atlas.html and atlas.json to.")] = Path(
        "atlas"
    ),
    figures: Annotated[
        bool,
        typer.Option(
            "--figures", help="Draw code galleries and, with --queries, UMAP of vectors, as SVG, PDF and PNG files."
        ),
    ] = False,
    queries: Annotated[
        Path | None,
        typer.Option(metavar="DATA", help="Folder in M-BEIR layout whose candidates the index holds: its queries."),
    ] = None,
    split: Annotated[str, typer.Option(help="Split of the queries.")] = "test",
    compare: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=MODEL",
            help="Another model with the same encoder, such as one without the contrastive loss. May be repeated.",
        ),
    ] = None,
) -> None:
    """Show what the codes of an index mean: one HTML page of the code tree, with names, examples and measures."""
    from genius.atlas.writing import write_atlas
    from genius.data.mbeir import Benchmark
    from genius.model.genius import Genius

    began = time.perf_counter()
    index = open_index(path)
    benchmark = None if queries is None else Benchmark(queries)
    models = dict(_named(one) for one in compare or [])
    with busy("naming the codes"):
        others = {name: Genius.from_pretrained(model) for name, model in models.items()}
        made = write_atlas(index, out, benchmark, split, figures, others)
    size = (out / "atlas.html").stat().st_size / 1e6
    say(
        f"Described {len(made.tree.nodes):,} prefixes of {len(made.collection):,} items in "
        f"{time.perf_counter() - began:.0f} s."
    )
    say(f"Wrote {out / 'atlas.html'} ({size:.1f} MB) and {out / 'atlas.json'}.")
    if figures:
        say(f"Figures are in {out / 'figures'}.")


def _named(given: str) -> tuple[str, str]:
    """Name and model of NAME=MODEL, or of a MODEL alone, which is named after its folder."""
    name, equals, model = given.partition("=")
    return (name, model) if equals and name and model else (Path(given).name, given)
