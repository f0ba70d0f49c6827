"""Draw a few images, index them with some texts, and search with words, with an image, and with both.

Run it with `python examples/quickstart.py`. It needs only the package and deletes its files afterwards.
"""

import tempfile
from pathlib import Path

from PIL import Image, ImageDraw

from genius import Genius, Hit, Index, Item, Modality, Query

SHAPES = ("circle", "square", "triangle")
COLOURS = ("red", "green", "blue")


def draw(shape: str, colour: str, path: Path) -> Path:
    """Draw one shape on white."""
    image = Image.new("RGB", (224, 224), "white")
    pen = ImageDraw.Draw(image)
    if shape == "circle":
        pen.ellipse((40, 40, 184, 184), fill=colour)
    elif shape == "square":
        pen.rectangle((40, 40, 184, 184), fill=colour)
    else:
        pen.polygon([(112, 40), (184, 184), (40, 184)], fill=colour)
    image.save(path)
    return path


def make_items(folder: Path) -> list[Item]:
    """Nine images, nine texts, and three images with their texts."""
    pairs = [(colour, shape) for colour in COLOURS for shape in SHAPES]
    images = {(c, s): draw(s, c, folder / f"{c}-{s}.png") for c, s in pairs}
    items = [Item(path.stem, image=path, metadata={"colour": c}) for (c, _), path in images.items()]
    items += [Item(f"text of {c} {s}", text=f"A {c} {s} on a white background.") for c, s in pairs]
    items += [Item(f"card of {s}", text=f"A red {s}", image=images["red", s]) for s in SHAPES]
    return items


def show(title: str, hits: list[Hit]) -> None:
    """Print the hits of one query."""
    print(f"\n{title}")
    for hit in hits:
        print(f"  {hit.score:.3f}  {hit.modality.label:<10}  {hit.id:<24}  codes {' '.join(map(str, hit.codes))}")


def main() -> None:
    """Build the index, search it, change it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        index = Index.create(folder / "shapes.genius", Genius.from_pretrained("mini"))
        report = index.add(make_items(folder))
        print(f"{report.added} items added, {len(report.bad)} bad.")

        circle = folder / "red-circle.png"
        show("Text to image", index.search(Query(text="a blue triangle", target="image"), k=3))
        show("Image to text", index.search(Query(image=circle, target=Modality.TEXT), k=3))
        show("Image and text to image", index.search(Query("the same in green", circle, target="image"), k=3))
        show(
            "An instruction with a modality",
            index.search(Query("square", instruction="Find a picture with its text."), k=3),
        )

        # The three modes. A list of queries returns a list of lists of hits.
        queries = [Query(text=f"a {colour} square", target="image") for colour in COLOURS]
        for mode in ("generate", "rerank", "fast"):
            best = [hits[0].id for hits in index.search(queries, k=1, mode=mode)]
            print(f"\nmode {mode}: {', '.join(best)}")

        index.upsert([Item("red-circle", text="Now with words", image=circle)])
        index.delete(["blue-square", "green-square"])
        changed = index.get("red-circle")
        assert changed is not None
        print(f"\nAfter changes: {len(index)} items; red-circle now has the modality {changed.modality.label!r}.")


if __name__ == "__main__":
    main()
