"""`genius demo`: build the emoji collection, index it, ask one question of each of the eight kinds, show the answers.

Everything lands in one folder and is used again next time. Uses the public surface only, as a user's own program would.
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
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from genius.data.items import Item, Modality, Query
from genius.data.mbeir import TASKS
from genius.demo.benchmark import PROMPTS
from genius.demo.collection import CREDITS, Collection, build_collection
from genius.demo.gallery import GalleryEntry, gallery, hit_name, task_name
from genius.errors import BadIndex

if TYPE_CHECKING:
    from genius.index.index import Hit, Index
    from genius.model.genius import Genius

ANSWERS = 5
_STYLES = ("green", "yellow", "magenta")


@dataclass(frozen=True)
class Example:
    """A question of the demo. `emoji` is the key of the emoji whose image (Twemoji's) is shown to the model."""

    task: int
    text: str | None = None
    emoji: str | None = None


# Emoji of the benchmark's test split: the model has not seen them in training.
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
    """Runs the demo in `folder` with the bundled model, or the given one; returns the path of the gallery."""
    console = console or Console(highlight=False)
    folder = Path(folder).resolve()
    collection = _build(folder / "images", console)
    index = _open_index(folder / "emoji.genius", collection.items(), model, console)
    answers = ask(index, collection)
    console.print(answer_table(answers))
    page = folder / "gallery.html"
    page.write_text(_page(answers, len(index)), encoding="utf-8")
    console.print(Text(f"\nThe same with images: {page.as_uri()}"), soft_wrap=True)
    _say_what_next(index.path, console)
    return page


def ask(index: "Index", collection: Collection) -> list[GalleryEntry]:
    """The eight examples, asked in one call. The image shown to the model is not an answer, so it is left out."""
    known = {one.key: one for one in collection.emoji}
    queries, shown = [], []
    for example in EXAMPLES:
        emoji = known[example.emoji] if example.emoji else None
        image = str(collection.image(emoji, "twemoji")) if emoji else None
        queries.append(Query(example.text, image, PROMPTS[example.task][0], TASKS[example.task][1]))
        shown.append(emoji)
    found = index.search(queries, k=ANSWERS + 1)
    answers = []
    for query, emoji, hits in zip(queries, shown, found, strict=True):
        own = f"twemoji/{emoji.files['twemoji']}" if emoji else None
        others = [hit for hit in hits if hit.id != own][:ANSWERS]
        answers.append(GalleryEntry(query, others, f"{emoji.name} by Twemoji" if emoji else ""))
    return answers


def answer_table(answers: Sequence[GalleryEntry], best: int = 3) -> Table:
    """Kind and wording of each question, and its best answers with their score and codes."""
    table = Table(title="One question of each kind", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("question", ratio=3)
    table.add_column("answer", ratio=4)
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("generated codes", ratio=4)
    for answer in answers:
        image = f"[{answer.image_name}]" if answer.image_name else ""
        question = [Text(task_name(answer.query), "bold"), *map(Text, filter(None, (image, answer.query.text)))]
        for asked, hit in zip_longest(question, answer.hits[:best], fillvalue=None):
            found = (Text(_short(hit)), f"{hit.score:.3f}", _codes(hit)) if hit else ()
            table.add_row(asked, *found)
        table.add_section()
    return table


def _short(hit: "Hit") -> str:
    artist = hit.item.metadata.get("artist")
    return f"{hit_name(hit)} ({artist})" if artist else hit_name(hit)


def _codes(hit: "Hit") -> Text:
    """The modality code in its colour, then the others."""
    return Text(str(hit.codes[0]), style=f"bold {_STYLES[hit.modality]}") + Text(
        "".join(f" {code}" for code in hit.codes[1:]), style="dim"
    )


def _build(folder: Path, console: Console) -> Collection:
    columns = (TextColumn("drawing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("drawing", total=None)
        collection = build_collection(folder, lambda done, total: bar.update(task, completed=done, total=total))
    console.print(f"{len(collection.emoji):,} emoji, drawn by Twemoji and by OpenMoji.")
    return collection


def _open_index(path: Path, items: list[Item], model: "Genius | None", console: Console) -> "Index":
    """The index of these items: as it is, completed, or built anew when it belongs to other items or another model."""
    from genius.index.index import Index
    from genius.model.genius import Genius

    model = model or Genius.from_pretrained("mini")
    stamp, wanted = path.with_name("items.sha256"), _digest(items)
    if path.exists() and not stamp.exists():
        raise BadIndex(f"{path} was not made by the demo and is left as it is. Run the demo in another folder.")
    try:
        usable = path.exists() and stamp.read_text() == wanted
        index = Index.open(path, model) if usable else None
    except BadIndex:
        index = None
    if index is None:
        shutil.rmtree(path, ignore_errors=True)
        stamp.write_text(wanted)
        index = Index.create(path, model)
    done = len(index)  # an interrupted run leaves the first items in place
    if done < len(items):
        console.print(f"Indexing {len(items) - done:,} images, texts and pairs. This is done once.")
        report = index.add(items[done:], progress=True)
        if report.bad:
            raise report.bad[0]
    kinds = Counter(item.modality for item in items)
    console.print(
        f"The index holds {kinds[Modality.IMAGE]:,} images, {kinds[Modality.TEXT]:,} texts and "
        f"{kinds[Modality.IMAGE_TEXT]:,} pairs of both.\n"
    )
    return index


def _digest(items: list[Item]) -> str:
    digest = hashlib.sha256()
    for item in items:
        digest.update(f"{item.id}\0{item.text}\0{item.image!r}\n".encode())
    return digest.hexdigest()


def _page(answers: Sequence[GalleryEntry], size: int) -> str:
    about = (
        "Every answer was found by generating its ID, code by code. The first code says what kind of thing it is, "
        "each further one narrows down what it shows. A code has a colour when another answer to the same question "
        "begins with the same codes.",
        f"The index holds {size:,} items: all emoji, also those whose concepts the model was trained on. "
        "The images and words asked with here are of emoji that were kept out of training.",
    )
    return gallery(answers, "GENIUS finds emoji", about, ("Emoji artwork:", *CREDITS))


def _say_what_next(index: Path, console: Console) -> None:
    console.print("\n".join(("\nEmoji artwork:", *CREDITS)), style="dim", soft_wrap=True)
    here = Path.cwd()
    shown = index.relative_to(here) if index.is_relative_to(here) else index
    console.print("\nWhat to type next:")
    for why, *commands in (
        ("search the emoji with your own words", f'genius search {shown} "a sleepy animal" --target image'),
        ("index your own images", "genius index create my.genius", "genius index add my.genius IMAGES_FOLDER"),
        ("search them", 'genius search my.genius "words"'),
    ):
        console.print(f"  # {why}", style="dim")
        for command in commands:
            console.print(Text(f"  {command}", "bold"), soft_wrap=True)
