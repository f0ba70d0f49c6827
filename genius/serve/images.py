"""Images in the service: uploads are checked before they are decoded, and items are shown as thumbnails.

A stored file is never sent to a client: thumbnails are encoded from the pixels.
"""

import hashlib
import io
import os
import threading
from collections import OrderedDict

from PIL import Image

from genius.data.image_headers import ImageHeader, image_header
from genius.data.images import decoded
from genius.data.images import image_bytes as read_image
from genius.data.items import Item
from genius.data.locations import file_size, is_url
from genius.errors import BadImage, GeniusError
from genius.serve.limits import MAX_PIXELS
from genius.serve.problems import HttpProblem

THUMBNAIL_TYPE = "image/webp"
QUALITY = 82
CACHE_BYTES = 64_000_000
MAX_FILE = 200_000_000  # bytes of an image file that is read from the disk
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "AVIF")
"""Formats that clients may upload. Fewer than an operator may index: few parsers should face the network."""
_UNREADABLE = "The image of this item cannot be read. Its file may have been moved."


def check_image(data: bytes, max_pixels: int = MAX_PIXELS) -> ImageHeader:
    """Refuse data that is not an image, or that would take too long or too much memory to decode."""
    try:
        return image_header(data, "`image`", FORMATS, max_pixels)
    except BadImage as error:
        raise HttpProblem(422, str(error), "image") from error


def image_bytes(item: Item, field: str) -> bytes:
    """The image file of an indexed item. `field` is the request field that named the item."""
    if isinstance(item.image, bytes):
        return item.image
    assert isinstance(item.image, str | os.PathLike)
    try:
        if _size_and_time(item.image)[0] > MAX_FILE:
            raise HttpProblem(404, _UNREADABLE, field)
        return read_image(item.image)
    except (OSError, ValueError, GeniusError) as error:  # ValueError: a null byte in the path
        raise HttpProblem(404, _UNREADABLE, field) from error


def _size_and_time(image: str | os.PathLike[str]) -> tuple[int, int]:
    """Size of an image file and, on this machine, when it was changed. Files in object stores are rarely replaced."""
    if isinstance(image, str) and is_url(image):
        size = file_size(image)
        if size is None:
            raise FileNotFoundError(image)
        return size, 0
    found = os.stat(image)
    return found.st_size, found.st_mtime_ns


def image_pixels(data: bytes) -> int:
    """Number of pixels of an indexed image; 0 if it cannot be read."""
    try:
        return image_header(data).pixels
    except BadImage:
        return 0


def thumbnail_tag(item: Item, size: int) -> str:
    """A hash that changes with the image. Files are identified by path, size and time of modification."""
    digest = hashlib.blake2b(f"{THUMBNAIL_TYPE} {QUALITY} {size} ".encode(), digest_size=16)
    if isinstance(item.image, bytes):
        digest.update(item.image)
    else:
        assert isinstance(item.image, str | os.PathLike)
        try:
            length, changed = _size_and_time(item.image)
        except (OSError, ValueError, GeniusError) as error:
            raise HttpProblem(404, _UNREADABLE, "id") from error
        digest.update(f"{os.fsdecode(item.image)} {changed} {length}".encode(errors="replace"))
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
        out = io.BytesIO()
        try:
            with decoded(item.image, side=size) as image:
                image.thumbnail((size, size), Image.Resampling.LANCZOS, reducing_gap=2.0)
                image.save(out, "WEBP", quality=QUALITY, method=2)
        except BadImage as error:
            raise HttpProblem(404, _UNREADABLE, "id") from error
        thumbnail = out.getvalue()
        with self._lock:
            self.used += len(thumbnail) - len(self._cache.pop(tag, b""))
            self._cache[tag] = thumbnail
            while self.used > self._capacity:
                self.used -= len(self._cache.popitem(last=False)[1])
        return thumbnail
