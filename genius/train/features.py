"""Features of the frozen backbones, computed once and kept in files that are mapped into memory.

Knows the backbones and the cache; knows nothing of heads or losses. A cache folder is named by a digest of what is in
it. Rows are written in order and counted, so that an interrupted run goes on where it stopped.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from rich.console import Console

from genius.encoders import efficientnet
from genius.encoders.efficientnet import EfficientNetLite2, to_pixels
from genius.encoders.minilm import MAX_TOKENS, WIDTH, MiniLM, TokenStates
from genius.images import load_image
from genius.train.loop import progress_bar, write_atomically

IMAGE_BLOCK = 256
CROP_AREA = (0.5, 0.95)  # share of the picture that a cropped view keeps


class _Cache:
    """A folder of .npy files that are filled block by block."""

    def __init__(self, folder: Path, shapes: dict[str, tuple[int, ...]]) -> None:
        self.folder, self.counter = folder, folder / "progress.json"
        folder.mkdir(parents=True, exist_ok=True)
        self.done: int = json.loads(self.counter.read_text()) if self.counter.exists() else 0
        mode = "r+" if self.done else "w+"
        self.arrays = {
            name: np.lib.format.open_memmap(folder / f"{name}.npy", mode, np.float16, shape)
            for name, shape in shapes.items()
        }

    def finished(self, blocks: int) -> None:
        for array in self.arrays.values():
            array.flush()
        self.done = blocks
        write_atomically(self.counter, lambda p: p.write_text(json.dumps(blocks)))


def _digest(kind: str, names: Sequence[str]) -> str:
    return f"{kind}-{hashlib.sha256(json.dumps([kind, *names]).encode()).hexdigest()[:16]}"


class ImageFeatures:
    """Features of one view of n pictures: map (n, 352, 49), pooled (n, 1280), logits (n, 1000), float16 on disk."""

    def __init__(self, names: Sequence[str], cache: Path, view: int, threads: int, console: Console) -> None:
        """View 0 is the whole picture; each further view is a crop of its own, mirrored every other time."""
        n = len(names)
        shapes = {
            "map": (n, efficientnet.CHANNELS, efficientnet.GRID),
            "pooled": (n, efficientnet.POOLED),
            "logits": (n, efficientnet.CLASSES),
        }
        store = _Cache(cache / _digest(f"images{view}", names), shapes)
        blocks = [range(start, min(start + IMAGE_BLOCK, n)) for start in range(0, n, IMAGE_BLOCK)]
        if store.done < len(blocks):
            backbone = EfficientNetLite2(threads)
            with progress_bar(console) as progress, ThreadPoolExecutor(threads) as pool:
                bar = progress.add_task(f"pictures, view {view}", total=n, note="")

                def load(row: int) -> np.ndarray:
                    return _view(load_image(names[row]), view, row)

                for number, (block, pixels) in enumerate(_ahead(pool, load, blocks, store.done), store.done):
                    values = backbone.features(np.stack(pixels))
                    for array, value in zip(store.arrays.values(), values, strict=True):
                        array[block.start : block.stop] = value
                    store.finished(number + 1)
                    progress.update(bar, completed=block.stop)
        self.map, self.pooled, self.logits = store.arrays.values()


def _ahead(
    pool: ThreadPoolExecutor, load: Callable[[int], np.ndarray], blocks: Sequence[range], start: int
) -> Iterator[tuple[range, list[np.ndarray]]]:
    """Blocks with their loaded rows, the next block being read while the caller works on this one."""
    coming = None
    for block, after in zip(blocks[start:], [*blocks[start + 1 :], range(0)], strict=True):
        rows = list(pool.map(load, block)) if coming is None else [future.result() for future in coming]
        coming = [pool.submit(load, row) for row in after]
        yield block, rows


def _view(image: Image.Image, view: int, row: int) -> np.ndarray:
    if view == 0:
        return to_pixels(image)
    rng = np.random.default_rng([view, row])
    side = rng.uniform(*CROP_AREA) ** 0.5
    width, height = image.width * side, image.height * side
    left, top = rng.uniform(0, image.width - width), rng.uniform(0, image.height - height)
    size = (efficientnet.SIZE, efficientnet.SIZE)
    crop = image.resize(size, Image.Resampling.BICUBIC, box=(left, top, left + width, top + height))
    return to_pixels(ImageOps.mirror(crop) if rng.random() < 0.5 else crop)


def text_features(texts: Sequence[str], cache: Path, console: Console) -> TokenStates:
    """Token states of all texts."""
    backbone = MiniLM()
    ids = backbone.tokenize(texts)
    batches, offsets = backbone.plan(ids)
    store = _Cache(cache / _digest(f"texts-{MAX_TOKENS}", texts), {"states": (int(offsets[-1]), WIDTH)})
    states = store.arrays["states"]
    with progress_bar(console) as progress:
        bar = progress.add_task("texts", total=len(texts), note="")
        for number, rows in enumerate(batches):
            if number >= store.done:
                backbone.fill(states, offsets, ids, rows)
                if number % 32 == 31 or number + 1 == len(batches):
                    store.finished(number + 1)
            progress.advance(bar, len(rows))
    return TokenStates(states, offsets)
