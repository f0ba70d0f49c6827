"""Draw a few images, index them with some texts, and search with words, with an image, and with both.

Run it with `python examples/quickstart.py`. It needs nothing but the package, and leaves nothing behind.
"""

import tempfile
from pathlib import Path

from PIL import Image, ImageDraw

from genius import Genius, Hit, Index, Item, Modality, Query

SHAPES = ("circle", "square", "triangle")
COLOURS = ("red", "green", "blue")


def draw(shape: str, colour: str, path: Path) -> Path:
    """One shape on white."""
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
    kinds = [(colour, shape) for colour in COLOURS for shape in SHAPES]
    images = {kind: draw(kind[1], kind[0], folder / f"{kind[0]}-{kind[1]}.png") for kind in kinds}
    items = [Item(path.stem, image=path, metadata={"colour": c}) for (c, _), path in images.items()]
    items += [Item(f"text of {c} {s}", text=f"A {c} {s} on a white background.") for c, s in kinds]
    items += [Item(f"card of {s}", text=f"A red {s}", image=images["red", s]) for s in SHAPES]
    return items


def show(question: str, hits: list[Hit]) -> None:
    print(f"\n{question}")
    for hit in hits:
        print(f"  {hit.score:.3f}  {hit.modality.label:<10}  {hit.id:<24}  codes {' '.join(map(str, hit.codes))}")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        index = Index.create(folder / "shapes.genius", Genius.from_pretrained("mini"))
        report = index.add(make_items(folder))
        print(f"{report.added} items added, {len(report.bad)} bad.")

        circle = folder / "red-circle.png"
        show("An image for words", index.search(Query(text="a blue triangle", target="image"), k=3))
        show("A text for an image", index.search(Query(image=circle, target=Modality.TEXT), k=3))
        show("An image for an image and words", index.search(Query("the same in green", circle, target="image"), k=3))
        show("Anything, as told", index.search(Query("square", instruction="Find a picture with its text."), k=3))

        # The three modes, and many queries in one call: a list of queries gives a list of lists.
        queries = [Query(text=f"a {colour} square", target="image") for colour in COLOURS]
        for mode in ("generate", "rerank", "fast"):
            best = [hits[0].id for hits in index.search(queries, k=1, mode=mode)]
            print(f"\nmode {mode}: {', '.join(best)}")

        index.upsert([Item("red-circle", text="Now with words", image=circle)])
        index.delete(["blue-square", "green-square"])
        changed = index.get("red-circle")
        assert changed is not None
        print(f"\nAfter changes: {len(index)} items; red-circle is now of the kind {changed.modality.label!r}.")


if __name__ == "__main__":
    main()
