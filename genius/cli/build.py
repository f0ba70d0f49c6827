"""The command `genius index build`."""

import time
from enum import StrEnum
from typing import Annotated

import typer

from genius.cli.console import IndexPath, ModelName, examples, interruptible
from genius.cli.index import BAD_ITEMS, SOURCE, CodesOnly, StoreImages, index_app, index_create
from genius.cli.items import show_report
from genius.errors import GeniusError


class Engine(StrEnum):
    """What encodes the items."""

    local = "local"
    ray = "ray"


@index_app.command(
    "build",
    epilog=examples(
        "genius index build photos.genius ~/Images",
        "genius index build photos.genius ~/Images captions.parquet --engine ray --workers 8",
        "genius index build web.genius s3://bucket/000.tar s3://bucket/001.tar --engine ray --address auto",
        notes="Interrupted? Run the same command again: finished blocks are not repeated.\n\n" + BAD_ITEMS,
    ),
)
def index_build(
    path: IndexPath,
    sources: Annotated[list[str], SOURCE],
    engine: Annotated[
        Engine, typer.Option(help="local: this process, like genius index create. ray: many workers, one commit.")
    ] = Engine.local,
    model: ModelName = "mini",
    codes_only: CodesOnly = False,
    store_images: StoreImages = False,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Ray: number of workers. Default: one for each GPU, or else for each core."
        ),
    ] = None,
    cpus: Annotated[int, typer.Option(min=1, metavar="N", help="Ray: cores of a worker.")] = 1,
    gpus: Annotated[
        float | None,
        typer.Option(min=0, metavar="N", help="Ray: GPUs of a worker. Default: 1 if the cluster has GPUs, else 0."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="Ray: address of a cluster, or auto. Default: RAY_ADDRESS, or Ray on this machine."),
    ] = None,
) -> None:
    """Create an index from all items of SOURCE, on one machine or many."""
    if engine is Engine.local:
        if (workers, gpus, address) != (None, None, None) or cpus != 1:
            raise GeniusError("--workers, --cpus, --gpus and --address need --engine ray. Add it, or leave them out.")
        index_create(path, sources, model, codes_only, store_images)
        return
    from genius.model.genius import Genius
    from genius.scale.build import Workers, build

    start = time.perf_counter()
    with interruptible(lambda: "Interrupted. Finished blocks are kept; the same command does the rest."):
        index, report = build(
            path,
            Genius.from_pretrained(model),
            sources,
            embeddings=not codes_only,
            store_images=store_images,
            workers=Workers(workers, cpus, gpus, address),
            progress=True,
        )
    show_report(index, report, "added", time.perf_counter() - start)
