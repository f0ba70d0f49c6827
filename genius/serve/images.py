"""Images in the service: looked at before they are decoded, and shown as small copies made anew from the pixels.

What a client sends is bytes and nothing else. What is shown is never a stored file as it is: a file can be more than a
image. Knows nothing of HTTP but the sentences for clients.
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
from genius.serve.problems import Problem

TYPE = "image/webp"
QUALITY = 82
CACHE = 64_000_000  # bytes of small images that are kept
LARGEST = 200_000_000  # bytes of an image file that is read
READS = 20_000  # pieces that an image may consist of
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "AVIF")
"""What clients may send, by PIL's names: less than an operator may index, for parsers open to all should be few."""
_NAMES = "PNG, JPEG, WebP, GIF, BMP or AVIF"
_PNG = b"\x89PNG\r\n\x1a\n"
_GONE = "The image of this item is gone or cannot be read any more. Its file may have been moved."


def check_image(data: bytes, max_pixels: int) -> None:
    """Refuses what is no image, and what would take too long or too much memory, before anything is decoded."""
    if not data:
        raise Problem(422, "`image` is empty. Send the bytes of an image file.", "image")
    try:
        with Image.open(_Impatient(data), formats=FORMATS) as image:
            width, height = image.size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        width = height = max_pixels + 1
    except Exception as error:  # parsers raise many kinds: struct.error, SyntaxError, OverflowError ...
        raise Problem(422, f"`image` is not an image that can be read. Send {_NAMES}.", "image") from error
    if width * height > max_pixels:
        limit = f"{max_pixels / 1_000_000:,.3g} megapixels"
        raise Problem(422, f"`image` has too many pixels: at most {limit} are allowed. Make it smaller.", "image")
    if data.startswith(_PNG) and _many_chunks(data):
        raise Problem(422, "`image` is cut into too many pieces. Save it again.", "image")


class _Impatient(io.BytesIO):
    """A file that lets itself be asked only so often: some parsers go through millions of empty pieces one by one."""

    left = READS

    def read(self, size: int | None = -1, /) -> bytes:
        self.left -= 1
        if self.left < 0:
            raise OSError("too many pieces")
        return super().read(size)


def _many_chunks(png: bytes) -> bool:
    """Whether a PNG has more chunks than any honest one."""
    at = len(_PNG)
    for _ in range(READS):
        if at + 8 > len(png):
            return False
        at += 12 + int.from_bytes(png[at : at + 4], "big")
    return True


def image_bytes(item: Item, field: str) -> bytes:
    """The image file of a stored item, which may lie where the operator's path says. field: that named the item."""
    if isinstance(item.image, bytes):
        return item.image
    assert isinstance(item.image, str | os.PathLike)
    try:
        path = Path(item.image)
        if path.stat().st_size > LARGEST:
            raise Problem(404, _GONE, field)
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise Problem(404, _GONE, field) from error


def fingerprint(item: Item, size: int) -> str:
    """Names a small image: it changes when the image does. Files are not read for it."""
    digest = hashlib.blake2b(f"{TYPE} {QUALITY} {size} ".encode(), digest_size=16)
    if isinstance(item.image, bytes):
        digest.update(item.image)
    else:
        assert isinstance(item.image, str | os.PathLike)
        try:
            found = os.stat(item.image)
        except (OSError, ValueError) as error:
            raise Problem(404, _GONE, "id") from error
        digest.update(f"{os.fsdecode(item.image)} {found.st_mtime_ns} {found.st_size}".encode(errors="replace"))
    return digest.hexdigest()


class Thumbnails:
    """Small images, the ones last used kept in memory. May be used from many threads."""

    def __init__(self, room: int = CACHE) -> None:
        self._room, self._used = room, 0
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Bytes that are kept."""
        return self._used

    def get(self, tag: str) -> bytes | None:
        with self._lock:
            if tag in self._kept:
                self._kept.move_to_end(tag)
            return self._kept.get(tag)

    def make(self, tag: str, item: Item, size: int) -> bytes:
        """The image of an item, its longer side at most `size`; larger than it is, it does not become."""
        again = self.get(tag)  # another request may have made it while this one waited
        if again is not None:
            return again
        assert item.image is not None
        try:
            image = load_image(item.image)
        except BadImage as error:
            raise Problem(404, _GONE, "id") from error
        image.thumbnail((size, size), Image.Resampling.LANCZOS, reducing_gap=2.0)
        out = io.BytesIO()
        image.save(out, "WEBP", quality=QUALITY, method=2)
        self._keep(tag, out.getvalue())
        return out.getvalue()

    def _keep(self, tag: str, image: bytes) -> None:
        with self._lock:
            if tag in self._kept or len(image) > self._room:
                return
            self._kept[tag] = image
            self._used += len(image)
            while self._used > self._room:
                self._used -= len(self._kept.popitem(last=False)[1])
