"""Images in the service: uploads are checked before they are decoded, and items are shown as thumbnails.

A stored file is never sent to a client: thumbnails are encoded from the pixels.
"""

import hashlib
import io
import os
import threading
from collections import OrderedDict
from pathlib import Path

from PIL import Image

from genius.data.images import load_image
from genius.data.items import Item
from genius.errors import BadImage
from genius.serve.limits import MAX_PIXELS
from genius.serve.problems import HttpProblem

THUMBNAIL_TYPE = "image/webp"
QUALITY = 82
CACHE_BYTES = 64_000_000
MAX_FILE = 200_000_000  # bytes of an image file that is read from the disk
MAX_READS = 20_000  # reads of an image parser, and chunks of a PNG
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "AVIF")
"""Formats that clients may upload. Fewer than an operator may index: few parsers should face the network."""
_PNG = b"\x89PNG\r\n\x1a\n"
_UNREADABLE = "The image of this item cannot be read. Its file may have been moved."


def check_image(data: bytes, max_pixels: int = MAX_PIXELS) -> None:
    """Refuse data that is not an image, or that would take too long or too much memory to decode."""
    if not data:
        raise HttpProblem(422, "`image` is empty. Send an image file.", "image")
    try:
        with Image.open(_LimitedReads(data), formats=FORMATS) as image:
            width, height = image.size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        width = height = max_pixels + 1
    except Exception as error:  # parsers raise many types: struct.error, SyntaxError, OverflowError ...
        formats = "PNG, JPEG, WebP, GIF, BMP or AVIF"
        raise HttpProblem(422, f"`image` is not a readable image. Send {formats}.", "image") from error
    if width * height > max_pixels:
        limit = f"{max_pixels / 1_000_000:,.3g} megapixels"
        raise HttpProblem(422, f"`image` has too many pixels: at most {limit} are allowed.", "image")
    if data.startswith(_PNG) and _has_many_chunks(data):
        raise HttpProblem(422, "`image` has too many chunks. Save it again.", "image")


class _LimitedReads(io.BytesIO):
    """A file that allows MAX_READS reads: some parsers walk through millions of empty chunks one by one."""

    left = MAX_READS

    def read(self, size: int | None = -1, /) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise OSError("too many reads")
        return super().read(size)


def _has_many_chunks(png: bytes) -> bool:
    at = len(_PNG)
    for _ in range(MAX_READS):
        if at + 8 > len(png):
            return False
        at += 12 + int.from_bytes(png[at : at + 4], "big")
    return True


def image_bytes(item: Item, field: str) -> bytes:
    """The image file of an indexed item. `field` is the request field that named the item."""
    if isinstance(item.image, bytes):
        return item.image
    assert isinstance(item.image, str | os.PathLike)
    try:
        path = Path(item.image)
        if path.stat().st_size > MAX_FILE:
            raise HttpProblem(404, _UNREADABLE, field)
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise HttpProblem(404, _UNREADABLE, field) from error


def thumbnail_tag(item: Item, size: int) -> str:
    """A hash that changes with the image. Files are identified by path, size and time of modification."""
    digest = hashlib.blake2b(f"{THUMBNAIL_TYPE} {QUALITY} {size} ".encode(), digest_size=16)
    if isinstance(item.image, bytes):
        digest.update(item.image)
    else:
        assert isinstance(item.image, str | os.PathLike)
        try:
            found = os.stat(item.image)
        except (OSError, ValueError) as error:
            raise HttpProblem(404, _UNREADABLE, "id") from error
        digest.update(f"{os.fsdecode(item.image)} {found.st_mtime_ns} {found.st_size}".encode(errors="replace"))
    return digest.hexdigest()


class Thumbnails:
    """Thumbnails with an LRU cache. Thread-safe."""

    def __init__(self, capacity: int = CACHE_BYTES) -> None:
        self._capacity = capacity
        self.used = 0  # bytes
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, tag: str) -> bytes | None:
        """A cached thumbnail."""
        with self._lock:
            if tag in self._cache:
                self._cache.move_to_end(tag)
            return self._cache.get(tag)

    def make(self, tag: str, item: Item, size: int) -> bytes:
        """The thumbnail of an item, its longer side at most `size`. Smaller images are not enlarged."""
        cached = self.get(tag)  # another request may have made it in the meantime
        if cached is not None:
            return cached
        assert item.image is not None
        try:
            image = load_image(item.image)
        except BadImage as error:
            raise HttpProblem(404, _UNREADABLE, "id") from error
        image.thumbnail((size, size), Image.Resampling.LANCZOS, reducing_gap=2.0)
        out = io.BytesIO()
        image.save(out, "WEBP", quality=QUALITY, method=2)
        thumbnail = out.getvalue()
        with self._lock:
            self.used += len(thumbnail) - len(self._cache.pop(tag, b""))
            self._cache[tag] = thumbnail
            while self.used > self._capacity:
                self.used -= len(self._cache.popitem(last=False)[1])
        return thumbnail
