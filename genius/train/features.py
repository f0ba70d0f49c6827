"""Features of the frozen backbones and vectors of whole encoders, computed once and memory-mapped.

The name of a cache folder holds a digest of its content. Rows are written in order and counted, so that an interrupted
run continues where it stopped. A lock lets one process write while others that share the folder wait. Memory holds one
block of rows.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from filelock import FileLock, Timeout
from PIL import Image, ImageOps
from rich.console import Console

from genius.data.images import load_image
from genius.encoders import efficientnet
from genius.encoders.base import Encoder, Prepared
from genius.encoders.efficientnet import EfficientNetLite2, to_pixels
from genius.encoders.minilm import MAX_TOKENS, WIDTH, MiniLM, TokenStates
from genius.errors import BadModel
from genius.train import distributed
from genius.train.files import write_json
from genius.train.loop import progress_bar

IMAGE_BLOCK = 256
TEXT_BLOCK = 2048
BATCHES_A_BLOCK = 32  # batches of texts between two records of the progress
CROP_AREA = (0.5, 0.95)  # share of the image's area that a crop keeps


T = TypeVar("T")


class _Cache:
    """A folder of .npy files, filled block by block by the training that has entered the context.

    The lock ends with its process, process 0 of a training. If that is killed, the next training continues after the
    last finished block.
    """

    def __init__(self, folder: Path, shapes: dict[str, tuple[int, ...]], console: Console) -> None:
        self.folder, self.shapes, self.console = folder, shapes, console
        self.counter = folder / "progress.json"
        folder.mkdir(parents=True, exist_ok=True)
        self.lock = FileLock(folder / "lock")

    def __enter__(self) -> "_Cache":
        self.done: int = distributed.from_main(self._begin)
        if not distributed.is_main():
            self._open("r+")
        return self

    def _begin(self) -> int:
        """Take the lock and open the files, in process 0. Returns what was done before."""
        try:
            self.lock.acquire(blocking=False)
        except Timeout:
            self.console.print(f"Waiting for another training that is filling {self.folder}.")
            self.lock.acquire()
        done: int = json.loads(self.counter.read_text()) if self.counter.exists() else 0
        self._open("r+" if done else "w+")
        return done

    def _open(self, mode: Literal["r+", "w+"]) -> None:
        self.arrays = {
            name: np.lib.format.open_memmap(self.folder / f"{name}.npy", mode, np.float16, shape)
            for name, shape in self.shapes.items()
        }

    def __exit__(self, *_: object) -> None:
        self.lock.release()

    def fill(self, blocks: Sequence[T], work: Callable[[Sequence[T]], Iterator[object]]) -> Iterator[int]:
        """Write blocks, one by each process at a time. work: writes a block of a list whenever it is advanced.

        Yields the number of blocks that are written so far, after each round. The caller records it: see `finished`.
        """
        mine = iter(work(distributed.own(blocks)))
        for first in range(0, len(blocks), distributed.world()):
            if first + distributed.rank() < len(blocks):
                next(mine)
            yield min(first + distributed.world(), len(blocks))

    def finished(self, done: int) -> None:
        """Record that everything up to `done` is written."""
        for array in self.arrays.values():
            array.flush()
        distributed.barrier()
        self.done = done
        if distributed.is_main():
            write_json(self.counter, done)


def _folder_name(content: str, names: Iterable[str]) -> str:
    """`content` and a digest of the JSON list [content, *names], which is never held in memory."""
    digest = hashlib.sha256(b"[" + json.dumps(content).encode())
    for name in names:
        digest.update(b", " + json.dumps(name).encode())
    digest.update(b"]")
    return f"{content}-{digest.hexdigest()[:16]}"


def _blocks(first: int, rows: int, size: int) -> list[range]:
    return [range(start, min(start + size, rows)) for start in range(first, rows, size)]


class ImageFeatures:
    """Features of one view of n images: map (n, 352, 49), pooled (n, 1280), logits (n, 1000), float16 on disk.

    View 0 is the whole image. Each further view is a random crop, mirrored half of the time.
    """

    def __init__(self, names: Sequence[str], cache: Path, view: int, threads: int, console: Console) -> None:
        n = len(names)
        shapes = {
            "map": (n, efficientnet.CHANNELS, efficientnet.GRID),
            "pooled": (n, efficientnet.POOLED),
            "logits": (n, efficientnet.CLASSES),
        }
        blocks = _blocks(0, n, IMAGE_BLOCK)

        def load(row: int) -> np.ndarray:
            return _view(load_image(names[row]), view, row)

        with _Cache(cache / _folder_name(f"images{view}", names), shapes, console) as store:
            if store.done < len(blocks):
                backbone, before = EfficientNetLite2(threads), store.done
                with progress_bar(console) as progress, ThreadPoolExecutor(threads) as pool:

                    def work(mine: Sequence[range]) -> Iterator[None]:
                        for block, pixels in _ahead(pool, load, mine):
                            values = backbone.features(np.stack(pixels))
                            for array, value in zip(store.arrays.values(), values, strict=True):
                                array[block.start : block.stop] = value
                            yield

                    bar = progress.add_task(f"images, view {view}", total=n, note="")
                    for done in store.fill(blocks[before:], work):
                        store.finished(before + done)
                        progress.update(bar, completed=blocks[store.done - 1].stop)
            self.map, self.pooled, self.logits = store.arrays.values()


def _ahead(
    pool: ThreadPoolExecutor, load: Callable[[int], T], blocks: Sequence[range]
) -> Iterator[tuple[range, list[T]]]:
    """Yield blocks with their loaded rows. Reads the next block while the caller works on this one."""
    coming = [pool.submit(load, row) for row in (blocks[0] if blocks else ())]
    for number, block in enumerate(blocks):
        rows = [future.result() for future in coming]
        coming = [pool.submit(load, row) for after in blocks[number + 1 : number + 2] for row in after]
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


def text_features(texts: Sequence[str], cache: Path, int8: bool, console: Console) -> TokenStates:
    """Token states of all texts, cached on disk. int8: see `MiniLM`."""
    backbone = MiniLM(int8)
    ids = backbone.tokenize(texts)
    batches, offsets = backbone.plan(ids)
    shapes: dict[str, tuple[int, ...]] = {"states": (int(offsets[-1]), WIDTH)}
    folder = cache / _folder_name(f"texts-{MAX_TOKENS}{'-int8' if int8 else ''}", texts)
    with _Cache(folder, shapes, console) as store, progress_bar(console) as progress:
        states = store.arrays["states"]
        bar = progress.add_task("texts", total=len(texts), note="")
        blocks = [batches[start : start + BATCHES_A_BLOCK] for start in range(0, len(batches), BATCHES_A_BLOCK)]
        before = -(-store.done // BATCHES_A_BLOCK)

        def work(mine: Sequence[list[np.ndarray]]) -> Iterator[None]:
            for block in mine:
                backbone.fill(states, offsets, ids, block)
                yield

        for done in store.fill(blocks[before:], work):
            store.finished(min((before + done) * BATCHES_A_BLOCK, len(batches)))
            progress.update(bar, completed=sum(map(len, batches[: store.done])))
    return TokenStates(states, offsets)


# Vectors of a whole encoder


def encoder_digest(encoder: Encoder) -> str:
    """Digest of an encoder's configuration and weights, as a model folder stores them."""
    digest = hashlib.sha256(json.dumps(encoder.config(), sort_keys=True).encode())
    for name, value in sorted(encoder.state().items()):
        digest.update(name.encode())
        digest.update((value.astype(np.float16) if np.issubdtype(value.dtype, np.floating) else value).tobytes())
    return digest.hexdigest()[:16]


def image_rows(encoder: Encoder, names: Sequence[str], cache: Path, threads: int, console: Console) -> np.ndarray:
    """(images + 1, d) float16 on disk: vectors of images. The last row, which number -1 selects, is zero."""

    def load(row: int) -> Prepared:
        return Prepared(encoder.pixels(load_image(names[row])), "")

    def blocks(pool: ThreadPoolExecutor, left: Sequence[range]) -> Iterator[np.ndarray]:
        return (encoder.encode(prepared).image for _, prepared in _ahead(pool, load, left))

    return _rows(encoder, "images", names, len(names), blocks, IMAGE_BLOCK, cache, threads, console)


def text_rows(encoder: Encoder, names: Sequence[str], cache: Path, threads: int, console: Console) -> np.ndarray:
    """(texts + 1, d) float16 on disk: vectors of texts. The last row, which number -1 selects, is zero."""

    def blocks(_: ThreadPoolExecutor, left: Sequence[range]) -> Iterator[np.ndarray]:
        return (encoder.encode([Prepared(None, names[row]) for row in block]).text for block in left)

    return _rows(encoder, "texts", names, len(names), blocks, TEXT_BLOCK, cache, threads, console)


def joint_rows(
    encoder: Encoder,
    pairs: np.ndarray,
    texts: Sequence[str],
    images: Sequence[str],
    cache: Path,
    threads: int,
    console: Console,
) -> np.ndarray:
    """(m, d) float16 on disk: vectors of pairs (m, 2) of a text and an image, by number, of a joint encoder."""

    def name(row: int) -> tuple[str, str]:
        text, image = pairs[row]
        return texts[text] if text >= 0 else "", images[image] if image >= 0 else ""

    @lru_cache(IMAGE_BLOCK)  # pairs that share an image follow each other
    def pixels(image: str) -> np.ndarray | None:
        return encoder.pixels(load_image(image)) if image else None

    def load(row: int) -> Prepared:
        text, image = name(row)
        return Prepared(pixels(image), text)

    def blocks(pool: ThreadPoolExecutor, left: Sequence[range]) -> Iterator[np.ndarray]:
        encoded = (encoder.encode(prepared) for _, prepared in _ahead(pool, load, left))
        return (vectors.image + vectors.text for vectors in encoded)

    names = ("\n".join(name(row)) for row in range(len(pairs)))  # never all at once: as long as all texts together
    return _rows(encoder, "pairs", names, len(pairs), blocks, IMAGE_BLOCK, cache, threads, console)[:-1]


def mapped_rows(
    encoder: Encoder,
    side: str,
    names: Sequence[str],
    rows: np.ndarray,
    weight: np.ndarray,
    cache: Path,
    console: Console,
) -> np.ndarray:
    """The result of `image_rows` or `text_rows` after a linear map (d, d) was added to the encoder, without encoding.

    side: "images" or "texts". rows: vectors of the encoder without the map.
    """

    def blocks(_: ThreadPoolExecutor, left: Sequence[range]) -> Iterator[np.ndarray]:
        return (np.asarray(rows[block.start : block.stop], np.float32) @ weight.T for block in left)

    return _rows(encoder, side, names, len(names), blocks, TEXT_BLOCK, cache, 1, console)


def _rows(
    encoder: Encoder,
    side: str,
    names: Iterable[str],
    count: int,
    values_of: Callable[[ThreadPoolExecutor, Sequence[range]], Iterator[np.ndarray]],
    size: int,
    cache: Path,
    threads: int,
    console: Console,
) -> np.ndarray:
    folder = cache / _folder_name(f"{side}-{encoder_digest(encoder)}", names)
    with _Cache(folder, {"vectors": (count + 1, encoder.dim)}, console) as store:
        vectors, left = store.arrays["vectors"], _blocks(store.done, count, size)
        with progress_bar(console) as progress, ThreadPoolExecutor(threads) as pool:
            bar = progress.add_task(f"vectors of {side}", total=count, completed=store.done, note="")

            def work(mine: Sequence[range]) -> Iterator[None]:
                for block, values in zip(mine, values_of(pool, mine), strict=True):
                    if not np.isfinite(values).all():
                        raise BadModel(
                            f"The encoder gave vectors of {side} that are not numbers. Train stage 1 at a lower rate, "
                            'or with precision = "float32".'
                        )
                    vectors[block.start : block.stop] = values
                    yield

            for done in store.fill(left, work):
                store.finished(left[done - 1].stop)
                progress.update(bar, completed=store.done)
    return vectors
