"""The commands `genius fit` and `genius index refit`."""

from pathlib import Path
from typing import Annotated

import typer

from genius.cli.console import IndexPath, examples, lower_priority, open_index, say, stderr
from genius.cli.index import count_sources, index_app, read_sources
from genius.errors import BadData
from genius.fit.settings import FitSettings
from genius.runtime.wording import counted

EPILOG = examples(
    "genius fit ~/Images --encoder openai/clip-vit-base-patch32 --out my-model",
    "genius fit articles.jsonl --encoder sentence-transformers/all-MiniLM-L6-v2 --out my-model",
    "genius fit vectors.npy --modality image --out my-model",
    notes="Interrupted? Run the same command again: it continues where it stopped. genius index create INDEX SOURCE "
    "--encoder NAME fits and indexes in one go.",
)
Levels = Annotated[
    int | None, typer.Option(min=1, help="Semantic levels of an ID. Default: as many as the items need.")
]
Codes = Annotated[
    int | None, typer.Option(min=2, help="Codes of each level. Default: 256, fewer for small collections.")
]
Layers = Annotated[
    int,
    typer.Option(
        min=0, help="Layers of the decoder, trained by distillation. 0: the residual score, which needs no training."
    ),
]
Steps = Annotated[int, typer.Option(min=1, help="Training steps of the layers.")]
Seed = Annotated[int, typer.Option(help="Seed of all random choices.")]


def fit(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="What genius index create reads; or ready vectors: .npy, or Parquet with a column vector.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Model folder to create.")],
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="mini, or the folder or hub id of a CLIP, SigLIP or sentence-transformers model. Vectors need none.",
        ),
    ] = None,
    modality: Annotated[str, typer.Option(help="Modality of ready vectors: image, text or pair.")] = "text",
    device: Annotated[str, typer.Option(help="Device of the encoder, such as cuda.")] = "cpu",
    levels: Levels = FitSettings.levels,
    codes: Codes = FitSettings.codes,
    layers: Layers = FitSettings.layers,
    steps: Steps = FitSettings.steps,
    seed: Seed = FitSettings.seed,
) -> None:
    """Learn codebooks and a decoder for any encoder from a collection without labels."""
    from genius.data.items import Modality
    from genius.fit.collection import is_vector_file, read_vectors
    from genius.fit.run import fit as run_fit

    settings = FitSettings(levels=levels, codes=codes, layers=layers, steps=steps, seed=seed)
    console = stderr()
    lower_priority()
    if any(is_vector_file(Path(source)) for source in sources):
        if len(sources) > 1:
            raise BadData(
                f"{len(sources)} sources were given, at least one with vectors. Give one file of vectors alone."
            )
        collection = read_vectors(Path(sources[0]), Modality.parse(modality))
        _, report = run_fit(collection, encoder, out, settings, device=device, console=console)
    else:
        if encoder is None:
            raise BadData("Items need an encoder: --encoder mini, or a CLIP or sentence-transformers model.")
        items, total = read_sources(sources), count_sources(sources)
        _, report = run_fit(items, encoder, out, settings, device=device, console=console, total=total)
    say(f"Fitted {out} to {counted(report.items, 'item')} in {report.seconds:.0f} s.")
    say(f"Next: genius index create INDEX SOURCE --model {out}")


@index_app.command("refit", epilog=examples("genius index refit photos.genius"))
def index_refit(
    path: IndexPath,
    levels: Levels = FitSettings.levels,
    codes: Codes = FitSettings.codes,
    layers: Layers = FitSettings.layers,
    steps: Steps = FitSettings.steps,
    seed: Seed = FitSettings.seed,
) -> None:
    """Learn new codebooks and a new decoder from the present items, and give all items new codes, as one new version.

    Nothing is encoded again: codes are made from the stored embeddings. Search works meanwhile.
    """
    from genius.fit.refit import refit

    lower_priority()
    index = open_index(path)
    settings = FitSettings(levels=levels, codes=codes, layers=layers, steps=steps, seed=seed)
    report = refit(index, settings, console=stderr())
    say(f"{path} has new codes for {report.items:,} items in version {index.version}.")
