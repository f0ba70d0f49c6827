"""`genius atlas`: the code tree of an index as one HTML page, the same data as JSON, and figures."""

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from genius.atlas import figures
from genius.atlas.atlas import Atlas
from genius.atlas.collection import Collection
from genius.atlas.measures import Measure, measure_collection
from genius.atlas.page import PAGE_BYTES, render_page
from genius.atlas.queries import QuerySample, alignment, candidates_of, check_comparable, cloud, generated_agreement
from genius.atlas.tree import MAX_NODES
from genius.data.images import thumbnail
from genius.data.items import Item
from genius.data.mbeir import Benchmark
from genius.errors import BadImage, BadItem, GeniusError
from genius.index.index import Index
from genius.model.genius import Genius
from genius.runtime.threads import thread_count

THUMBNAIL, QUALITY = 72, 60  # pixels of the longer side, and WebP quality
READ = 128  # items whose images are read at once
MIN_ROOM = 200_000  # bytes for thumbnails, even if the names alone fill the page
GALLERIES = (2, 3, 4)  # levels that have a gallery, as in the supplement
DRAWN = 1500  # candidates of a UMAP besides the answers


def write_atlas(
    index: Index,
    out: Path,
    benchmark: Benchmark | None = None,
    split: str = "test",
    draw: bool = False,
    compare: Mapping[str, Genius] | None = None,
    max_nodes: int = MAX_NODES,
) -> Atlas:
    """Write atlas.html, atlas.json and, if wanted, the folder figures.

    Args:
        index: The index.
        out: The folder, which is made if there is none.
        benchmark: Queries whose answers are in the index, for measures and UMAP of queries beside items.
        split: Split of the benchmark.
        draw: Draw code galleries, and with a benchmark UMAP, as SVG, PDF and PNG.
        compare: Further models with the same encoder, by name, such as one trained without the contrastive loss. Needs
            a benchmark.
        max_nodes: Number of prefixes that are described; those with most items come first.

    Raises:
        GeniusError: The index is empty, its model has no codes, options do not fit, or files cannot be written.
    """
    if compare and benchmark is None:
        raise GeniusError("Models are compared by how near queries are to their answers. Give queries as well.")
    if compare:
        check_comparable([index.model, *compare.values()])
    atlas = Atlas.of(Collection.read(index), max_nodes)
    measures = measure_collection(index, atlas.collection, atlas.words)
    try:
        out.mkdir(parents=True, exist_ok=True)
        if draw:
            (out / "figures").mkdir(exist_ok=True)
            for level in GALLERIES[: len(index.model.sizes) - 1]:
                figures.draw_gallery(index, atlas, level, out / "figures" / f"codes-level{level}")
        if benchmark is not None:
            measures |= _with_queries(index, atlas, benchmark, split, out if draw else None, compare or {})
        content = atlas.to_json(measures)
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        images = _thumbnails(index, atlas, max(MIN_ROOM, PAGE_BYTES - len(text.encode())))
        (out / "atlas.json").write_text(text + "\n", encoding="utf-8", newline="\n")
        (out / "atlas.html").write_text(render_page(content, images), encoding="utf-8", newline="\n")
    except OSError as error:
        raise GeniusError(f"{out} cannot be written ({error}). Choose another folder.") from error
    return atlas


def _with_queries(
    index: Index, atlas: Atlas, benchmark: Benchmark, split: str, out: Path | None, compare: Mapping[str, Genius]
) -> dict[str, Measure]:
    """The measures that need queries. out: where to draw figures."""
    collection = atlas.collection
    sample = QuerySample.read(collection, benchmark, split)
    measures = {"generated": generated_agreement(index, collection, sample)}
    chosen = candidates_of(collection, sample, DRAWN)
    candidates = collection.vectors(index, chosen)
    models = {index.model.source or "the model": index.model, **compare}
    clouds = {name: cloud(model, sample, chosen, candidates) for name, model in models.items()}
    measures |= {f"aligned: {name}": alignment(one, name) for name, one in clouds.items()}
    if out is not None:
        for colour in ("modality", "code"):
            figures.draw_umap(clouds, colour, out / "figures" / f"umap-{colour}")
    return measures


def _thumbnails(index: Index, atlas: Atlas, room: int) -> dict[int, bytes]:
    """Small images of the examples, by their position in `Atlas.shown`, until they fill the room."""
    collection = atlas.collection
    wanted = [(place, row) for place, row in enumerate(atlas.shown) if collection.has_image[row]]
    found: dict[int, bytes] = {}
    left = room
    with ThreadPoolExecutor(thread_count()) as pool:
        for start in range(0, len(wanted), READ):
            block = wanted[start : start + READ]
            items = index.get([collection.ids[row] for _, row in block])
            for (place, _), image in zip(block, pool.map(_thumbnail, items), strict=True):
                size = (len(image) + 2) // 3 * 4 + 12  # as Base64, with its place
                if image and size <= left:
                    found[place] = image
                    left -= size
            if left < 4096:
                break
    return found


def _thumbnail(item: Item | None) -> bytes:
    """A small image; empty if it is gone or cannot be read."""
    if item is None or item.image is None:
        return b""
    try:
        return thumbnail(item.image, THUMBNAIL, quality=QUALITY)
    except (BadImage, BadItem, OSError):
        return b""
