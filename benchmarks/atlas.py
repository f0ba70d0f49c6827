"""The atlas measured: a quiz on the names of codes, and the time and size of a page of a large collection.

    python benchmarks/atlas.py quiz INDEX [--codes 50] [--held-out 5]
    python benchmarks/atlas.py speed OUT [--items 100000]

quiz: names of codes of level 2, made without some held-out items, have to pick the codes of these items. An item is
matched with a name by vector (the name encoded as a text, the nearest of all names) and by words (most words of the
name; ties count in parts). Intervals: bootstrap over codes.

speed: makes a collection of generated texts, images and pairs in OUT, and writes its atlas. Only the atlas is timed.
"""

import argparse
import json
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from genius import Genius, Index, Item
from genius.atlas.collection import Collection
from genius.atlas.names import Name, name_groups
from genius.atlas.words import words_of
from genius.atlas.writing import write_atlas
from genius.data.items import clean_text
from genius.encoders.base import Prepared, Vectors
from genius.evaluation.metrics import interval

MIN_ITEMS = 20
TOPICS = 400


def quiz(index: Index, codes: int = 50, held_out: int = 5, seed: int = 0) -> dict[str, Any]:
    """Ask for the code of each held-out item. Returns accuracies in percent."""
    collection = Collection.read(index)
    second = collection.codes[:, 1].astype(np.int64)
    random = np.random.default_rng(seed)
    large = np.flatnonzero(np.bincount(second) >= MIN_ITEMS)
    asked = np.sort(random.permutation(large)[:codes])
    held = np.concatenate([random.permutation(np.flatnonzero(second == code))[:held_out] for code in asked])
    others = np.setdiff1d(np.arange(len(collection)), held)
    # Nothing of the held-out items is used for the names, not even their texts for images near to them.
    rest = collection.select(others)
    names = name_groups(words_of(rest), second[others], np.zeros(int(second.max()) + 1, np.int64), asked)
    truth = np.searchsorted(asked, second[held])
    nearest = _by_vector(collection, held, names)
    overlap = _by_words(collection, held, others, names)
    results = {"codes": len(asked), "items": len(held), "chance": 100 / len(asked), "names": [str(n) for n in names]}
    for way, right in (("vector", (nearest == truth).astype(float)), ("words", overlap[np.arange(len(held)), truth])):
        results[way] = _accuracy(right, truth)
        for label, mine in (("images", collection.modality[held] == 0), ("texts", collection.modality[held] == 1)):
            if mine.any():
                results[f"{way}, {label}"] = _accuracy(right[mine], truth[mine])
    return results


def _by_vector(collection: Collection, held: np.ndarray, names: Sequence[Name]) -> np.ndarray:
    encoded = collection.model.encode([Prepared(None, clean_text(str(name))) for name in names])
    return np.asarray((collection.directions[held] @ encoded.embedding().T).argmax(axis=1))


def _by_words(collection: Collection, held: np.ndarray, others: np.ndarray, names: Sequence[Name]) -> np.ndarray:
    """(items, names) the chance that each name is chosen by most common words."""
    words = words_of(collection.select(np.concatenate([others, held])))
    found: list[set[str]] = [set() for _ in held]
    start = len(others)
    for item, word in zip(words.item.tolist(), words.word.tolist(), strict=True):
        if item >= start:
            found[item - start].add(words.vocabulary[word])
    common = np.array([[sum(w.word in own for w in name.words) for name in names] for own in found])
    best = (common == common.max(axis=1, keepdims=True)) & (common.max(axis=1, keepdims=True) > 0)
    return np.asarray(best / np.maximum(1, best.sum(axis=1, keepdims=True)))


def _accuracy(right: np.ndarray, code: np.ndarray) -> dict[str, float]:
    means = np.array([right[code == one].mean() for one in np.unique(code)])
    low, high = interval(means)
    return {"value": 100 * float(right.mean()), "low": 100 * low, "high": 100 * high, "items": len(right)}


class GeneratedEncoder:
    """A text or an image names its topic, whose vector it gets, with noise that is the same for the same input."""

    kind, joint = "generated", False

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self.centres = np.random.default_rng(0).normal(size=(TOPICS, dim)).astype(np.float32)

    def pixels(self, image: Image.Image) -> np.ndarray:
        red, green = np.asarray(image)[0, 0, :2]
        return np.array([int(red) * 256 + int(green)])

    def encode(self, inputs: Sequence[Prepared], progress: bool = False) -> Vectors:
        none = np.zeros(self.dim, np.float32)
        image = [none if one.pixels is None else self._vector(int(one.pixels[0]), int(one.pixels[0])) for one in inputs]
        text = [self._vector(_topic(one.text), zlib.crc32(one.text.encode())) if one.text else none for one in inputs]
        return Vectors(np.array(image).reshape(-1, self.dim), np.array(text).reshape(-1, self.dim))

    def _vector(self, topic: int, seed: int) -> np.ndarray:
        noisy = self.centres[topic % TOPICS] + np.random.default_rng(seed).normal(size=self.dim)
        return np.asarray(noisy / np.linalg.norm(noisy), np.float32)

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def config(self) -> dict[str, Any]:
        return {"kind": self.kind}


def _topic(text: str) -> int:
    """The number that a generated text begins with; 0 of any other text."""
    number = text[5:8]
    return int(number) if number.isdigit() else 0


def generated_items(folder: Path, count: int) -> Any:
    """A third each of images, texts and pairs. Texts are a topic and eight words of its own or of all."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(1)
    for number in range(TOPICS * 5):
        pixels = random.integers(0, 255, (48, 64, 3), np.uint8)
        pixels[0, 0, :2] = divmod(number, 256)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    vocabulary = np.array(["".join(letters[random.integers(0, 26, random.integers(4, 9))]) for _ in range(8000)])
    for number in range(count):
        topic = int(random.integers(TOPICS))
        own = topic * 20 + random.integers(0, 20, 5)
        chosen = vocabulary[np.concatenate([own, np.minimum(random.zipf(1.3, 5), 8000) - 1])]
        text = f"Item {topic:03d} {' '.join(chosen)} {number}."
        image = folder / f"{topic + TOPICS * int(random.integers(5))}.png"
        yield Item(str(number), text if number % 3 else None, image if number % 3 != 1 else None)


def speed(out: Path, items: int) -> dict[str, Any]:
    """Write the atlas of a generated collection."""
    mini = Genius.from_pretrained("mini")
    model = Genius(GeneratedEncoder(mini.dim), mini.fusion, mini.quantizer, mini.decoder)
    path = out / "generated.genius"
    index = Index.open(path, model) if path.exists() else Index.create(path, model)
    if len(index) < items:
        index.add(generated_items(out / "images", items), progress=True, total=items)
    began, used = time.perf_counter(), time.process_time()
    atlas = write_atlas(index, out / "atlas")
    return {
        "items": len(index),
        "prefixes": len(atlas.tree.nodes),
        "seconds": time.perf_counter() - began,
        "processor_seconds": time.process_time() - used,
        "megabytes": (out / "atlas" / "atlas.html").stat().st_size / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    asked = commands.add_parser("quiz")
    asked.add_argument("index", type=Path)
    asked.add_argument("--codes", type=int, default=50)
    asked.add_argument("--held-out", type=int, default=5)
    timed = commands.add_parser("speed")
    timed.add_argument("out", type=Path)
    timed.add_argument("--items", type=int, default=100_000)
    given = parser.parse_args()
    if given.command == "quiz":
        result = quiz(Index.open(given.index), given.codes, given.held_out)
    else:
        result = speed(given.out, given.items)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
