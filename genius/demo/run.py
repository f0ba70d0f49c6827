"""`genius demo`: index a collection of emoji, run one query for each task of M-BEIR, and show the hits.

Images, index and gallery are kept in one folder, so that the next run only searches.
"""

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from genius.data.items import Item, Modality, Query
from genius.data.mbeir import TASKS
from genius.demo.benchmark import PROMPTS
from genius.demo.collection import CREDITS, EmojiCollection, build_collection
from genius.demo.gallery import GalleryEntry, gallery, hit_name
from genius.errors import BadIndex
from genius.runtime.wording import counted
from genius.search.options import automatic_budget

if TYPE_CHECKING:
    from genius.index.index import Index
    from genius.model.genius import Genius
    from genius.search.results import Hit

CODES = 4  # codes of a hit in the table
HITS = 5
_STYLES = ("green", "yellow", "magenta")


@dataclass(frozen=True)
class Example:
    """A query of the demo. `emoji` is the key of the emoji whose Twemoji image is part of the query."""

    task: int
    text: str | None = None
    emoji: str | None = None


# Emoji of the benchmark's test split, which the model was not trained on.
EXAMPLES = (
    Example(0, "a bird that can learn to speak"),
    Example(1, "jigsaw"),
    Example(2, "a slice of cake with strawberries"),
    Example(3, emoji="1f3c8"),
    Example(4, emoji="1f3f0"),
    Example(6, "Which group does this belong to?", "1f954"),
    Example(7, "with dark skin tone", "1f9d1-200d-1f373"),
    Example(8, "show a man instead", "1f471-1f3fb"),
)


def run_demo(
    folder: str | os.PathLike[str] = "demo", model: "Genius | None" = None, console: Console | None = None
) -> Path:
    """Runs the demo and returns the path of the gallery page. Default model: the bundled one.

    Raises:
        BadIndex: The folder holds an index that the demo did not make.
    """
    console = console or Console(highlight=False)
    folder = Path(folder).resolve()
    collection = build_collection(folder / "images", console)
    console.print(f"{len(collection.emoji):,} emoji, drawn by Twemoji and by OpenMoji.")
    index = _open_index(folder / "emoji.genius", collection.items(), model, console)
    entries = search_examples(index, collection)
    console.print(hits_table(entries))
    page = folder / "gallery.html"
    about = about_page(index.model, len(index))
    page.write_text(gallery(entries, "GENIUS finds emoji", about, ("Emoji artwork:", *CREDITS)), encoding="utf-8")
    console.print(Text(f"\nThe same with images: {page.as_uri()}"), soft_wrap=True)
    _print_next_steps(Path(index.path), console)
    return page


def about_page(model: "Genius", items: int) -> tuple[str, str, str]:
    """Paragraphs about the page: how many codes the decoder generates, how mode fast ranks, what the index holds."""
    return (
        f"Every item has an ID: a code for its modality, then codes that narrow down its content. The decoder "
        f"of this model generates all {model.decoder.levels} codes.",
        "The hits on this page come from the default mode, fast. It generates the modality only, finds the "
        f"{automatic_budget(items):,} items of that modality whose codes are nearest to the query, and ranks these by "
        "comparing their embeddings with the query. A code is coloured if another hit of the same query begins with "
        "the same codes.",
        f"The index holds {items:,} items: all emoji, including those the model was trained on. The emoji in the "
        "queries were kept out of training.",
    )


def search_examples(index: "Index", collection: EmojiCollection) -> list[GalleryEntry]:
    """Runs the eight examples in one call. The image of a query is left out of its own hits."""
    known = {one.key: one for one in collection.emoji}
    queries, shown = [], []
    for example in EXAMPLES:
        emoji = known[example.emoji] if example.emoji else None
        image = str(collection.image(emoji, "twemoji")) if emoji else None
        queries.append(Query(example.text, image, PROMPTS[example.task][0], TASKS[example.task][1]))
        shown.append(emoji)
    entries = []
    for query, emoji, hits in zip(queries, shown, index.search(queries, k=HITS + 1), strict=True):
        own = f"twemoji/{emoji.files['twemoji']}" if emoji else None
        others = [hit for hit in hits if hit.id != own][:HITS]
        entries.append(GalleryEntry(query, others, f"{emoji.name} by Twemoji" if emoji else ""))
    return entries


def hits_table(entries: Sequence[GalleryEntry], best: int = 3) -> Table:
    """Each query with its best hits, their scores and their codes."""
    table = Table(title="One query for each task", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("query", ratio=3)
    table.add_column("hit", ratio=4)
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("codes", no_wrap=True)
    for entry in entries:
        image = f"[{entry.image_name}]" if entry.image_name else ""
        query = [Text(entry.task_name, "bold"), *map(Text, filter(None, (image, entry.query.text)))]
        for line, hit in zip_longest(query, entry.hits[:best], fillvalue=None):
            cells = (Text(_short(hit)), f"{hit.score:.3f}", _codes(hit)) if hit else ()
            table.add_row(line, *cells)
        table.add_section()
    return table


def _short(hit: "Hit") -> str:
    artist = hit.item.metadata.get("artist")
    return f"{hit_name(hit)} ({artist})" if artist else hit_name(hit)


def _codes(hit: "Hit") -> Text:
    """The first codes of a hit, the modality code coloured. The page shows all of them."""
    rest = "".join(f" {code}" for code in hit.codes[1:CODES]) + (" …" if len(hit.codes) > CODES else "")
    return Text(str(hit.codes[0]), style=f"bold {_STYLES[hit.modality]}") + Text(rest, style="dim")


def _open_index(path: Path, items: list[Item], model: "Genius | None", console: Console) -> "Index":
    """Opens the index and adds missing items, or rebuilds it if it holds other items or belongs to another model."""
    from genius.index.index import Index
    from genius.model.genius import Genius

    model = model or Genius.from_pretrained("mini")
    stamp, digest = path.with_name("items.sha256"), _digest(items)
    if path.exists() and not stamp.exists():
        raise BadIndex(f"{path} was not made by the demo, so it is left unchanged. Run the demo in another folder.")
    try:
        usable = path.exists() and stamp.read_text() == digest
        index = Index.open(path, model) if usable else None
    except BadIndex:
        index = None
    if index is None:
        shutil.rmtree(path, ignore_errors=True)
        stamp.write_text(digest)
        index = Index.create(path, model)
    done = len(index)  # an interrupted run has added the first items
    if done < len(items):
        console.print(
            f"Indexing {counted(len(items) - done, 'item')}: images, texts and pairs. The next run reuses them."
        )
        report = index.add(items[done:], progress=True)
        if report.bad:
            raise report.bad[0]
    counts = Counter(item.modality for item in items)
    console.print(
        f"The index holds {counted(counts[Modality.IMAGE], 'image')}, {counted(counts[Modality.TEXT], 'text')} and "
        f"{counted(counts[Modality.IMAGE_TEXT], 'pair')} of both.\n"
    )
    return index


def _digest(items: list[Item]) -> str:
    digest = hashlib.sha256()
    for item in items:
        digest.update(f"{item.id}\0{item.text}\0{item.image!r}\n".encode())
    return digest.hexdigest()


def _print_next_steps(index: Path, console: Console) -> None:
    console.print("\n".join(("\nEmoji artwork:", *CREDITS)), style="dim", soft_wrap=True)
    here = Path.cwd()
    shown = index.relative_to(here) if index.is_relative_to(here) else index
    console.print("\nNext steps:")
    for purpose, *commands in (
        ("search the emoji in your own words", f'genius search {shown} "a sleepy animal" --target image'),
        ("index your own images", "genius index create my.genius IMAGES_FOLDER"),
        ("search them", 'genius search my.genius "words"'),
    ):
        console.print(f"  # {purpose}", style="dim")
        for command in commands:
            console.print(Text(f"  {command}", "bold"), soft_wrap=True)
