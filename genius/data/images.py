"""Image files: read their bytes and decode them safely to RGB."""

import io
import os
import re
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from genius.data.image_headers import check_size, decoding_memory, open_image
from genius.data.items import ImageSource, printable
from genius.data.locations import file_size, is_url, open_stream
from genius.errors import BadData, BadImage

MAX_BYTES = 1 << 30
"""Larger files are refused before reading. 64 million uncompressed pixels of 16 bytes each still fit."""

SUFFIXES = frozenset(
    [".png", ".jpg", ".jpeg", ".jfif", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".avif"]
)
"""Suffixes of the files that a folder reader takes for images."""

DECODING_BYTES = max(1 << 30, (128 << 20) * (os.cpu_count() or 1))
"""Memory of all images that are decoded at the same time: a photo of 12 megapixels takes about 100 MB."""

BAND = 1 << 20
"""Pixels that are converted at once. Pillow keeps other Python threads waiting while it converts."""

_ORIENTATION = 0x0112
_TRANSPOSITIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def image_bytes(source: ImageSource) -> bytes:
    """Return an image as the bytes of an image file: read from its path, unchanged, or encoded as PNG.

    Raises:
        BadImage: The file cannot be read, or the PIL image cannot be decoded.
    """
    if isinstance(source, bytes):
        return source
    if isinstance(source, Image.Image):
        png = io.BytesIO()
        load_image(source).save(png, "PNG")
        return png.getvalue()
    if not isinstance(source, str | os.PathLike):
        raise BadImage(f"An image must be a path, bytes or a PIL image, not {type(source).__name__}.")
    path = os.fsdecode(source)
    name = printable(path)
    if path.startswith(("http://", "https://")):
        raise BadImage(f"{name}: images are not downloaded. Download the image and give the path of the file.")
    if is_url(path):
        return _remote_bytes(path)
    try:
        if not Path(path).is_file():
            reason = "this is a folder, not an image" if Path(path).is_dir() else "there is no such file"
            raise BadImage(f"{name}: {reason}. Check the path.")
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size > MAX_BYTES:
                raise BadImage(f"{name}: the file is larger than {MAX_BYTES >> 30} GB. Make the image smaller.")
            return file.read()
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise BadImage(
            f"{name}: the file cannot be opened ({_reason(error)}). Check the path and its permissions."
        ) from error


def image_exists(path: str) -> bool:
    """Whether there is a file at a path, or at the URL of an object store."""
    try:
        return file_size(path) is not None if is_url(path) else os.path.isfile(path)
    except (OSError, BadData):
        return False


def _remote_bytes(url: str) -> bytes:
    """Read an image from an object store."""
    name = printable(url)
    try:
        size = file_size(url)
        if size is None:
            raise BadImage(f"{name}: there is no such file. Check the URL.")
        if size > MAX_BYTES:
            raise BadImage(f"{name}: the file is larger than {MAX_BYTES >> 30} GB. Make the image smaller.")
        with open_stream(url) as file:
            return file.read()
    except (OSError, ValueError, BadData) as error:
        raise BadImage(
            f"{name}: the file cannot be read ({_reason(error)}). Check the URL and the credentials."
        ) from error


def load_image(source: ImageSource, name: str | None = None) -> Image.Image:
    """Decode an image to a new upright RGB image on a white background.

    Animations give their first frame, PIL images their current one.

    Args:
        source: Path, file content or PIL image.
        name: Name of the image in error messages; by default its path.

    Raises:
        BadImage: The image cannot be decoded. The message has its name and says what to do.
    """
    with decoded(source, name) as image:
        return image


@contextmanager
def decoded(source: ImageSource, name: str | None = None, side: int | None = None) -> Iterator[Image.Image]:
    """`load_image` for images that are needed briefly: their memory counts as used until the end of the block.

    Waits while other threads decode images of `DECODING_BYTES` in all.

    Args:
        source: Path, file content or PIL image.
        name: Name of the image in error messages; by default its path.
        side: Longer side of the image that is needed. Large JPEG files are decoded at a fraction of their size, but
            not below twice this. The pixels differ a little from those of the whole image.

    Raises:
        BadImage: The image cannot be decoded. The message has its name and says what to do.
    """
    if isinstance(source, Image.Image):
        name = name or "the image"
        check_size(*source.size, name)
        with _DECODING.taken(decoding_memory(source)):
            yield _decode(source, name, own=False)
        return
    content = image_bytes(source)
    if name is None:
        name = "the image (bytes)" if isinstance(source, bytes) else printable(os.fsdecode(source))
    with open_image(content, name) as image:
        if side is not None:
            image.draft("RGB", (2 * side, 2 * side))
        with _DECODING.taken(decoding_memory(image)):
            yield _decode(image, name, own=True)


def thumbnail(source: ImageSource, size: int, format: str = "WEBP", quality: int = 80) -> bytes:
    """Encode an image as a small file. Its sides have at most `size` pixels."""
    with decoded(source, side=size) as image:
        image.thumbnail((size, size))
        file = io.BytesIO()
        image.save(file, format, quality=quality)
        return file.getvalue()


class _MemoryBudget:
    """Limits the memory of images that threads decode at the same time."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._turn = threading.Lock()
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Wait until `size` bytes are free, and use them. A larger size than the limit waits for all."""
        size = min(size, self.limit)
        with self._turn, self._changed:  # only one thread waits for memory, so small images do not overtake it forever
            self._changed.wait_for(lambda: self.used + size <= self.limit)
            self.used += size
        try:
            yield
        finally:
            with self._changed:
                self.used -= size
                self._changed.notify()


_DECODING = _MemoryBudget(DECODING_BYTES)


def _decode(image: Image.Image, name: str, own: bool) -> Image.Image:
    """Decode and convert an opened image. own: whether the pixels may become part of the result."""
    try:
        image.load()
        if own and hasattr(image, "_decoder"):  # of WebP and AVIF: it holds several copies of the image
            image._decoder = None
        rgb = _to_rgb(image)
        if not own and rgb is image:
            rgb = image.copy()
        method = _TRANSPOSITIONS.get(_orientation(image, own))
        return rgb if method is None else rgb.transpose(method)
    except Exception as error:  # decoders raise many types: OSError, SyntaxError, struct.error, EOFError ...
        raise BadImage(
            f"{name}: the image is truncated or damaged ({_reason(error)}). Copy or download it again."
        ) from error


# Rotation


def _orientation(image: Image.Image, own: bool) -> int:
    """The EXIF orientation, 1 to 8. Damaged EXIF data is ignored.

    Pillow reads all EXIF tags, which may take seconds in a hostile file. For a PIL image of the caller it is the only
    way; TIFF files are rotated by Pillow when they are loaded.
    """
    try:
        if not own:
            return int(image.getexif().get(_ORIENTATION, 1))
        if image.format == "TIFF":
            return 1
        exif = image.info.get("exif")
        if exif is None and (profile := image.info.get("Raw profile type exif")):
            exif = bytes.fromhex("".join(profile.split("\n")[3:]))
        return _exif_orientation(exif or b"") or _xmp_orientation(image) or 1
    except Exception:  # EXIF parsers raise many types
        return 1


def _exif_orientation(exif: bytes) -> int | None:
    """The orientation in EXIF data, which has the form of a TIFF file."""
    exif = re.sub(b"^(Exif\0\0){1,2}", b"", exif[:20]) + exif[20:]
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None:
        return None
    (at,) = struct.unpack_from(order + "I", exif, 4)
    (tags,) = struct.unpack_from(order + "H", exif, at)
    for entry in range(at + 2, at + 2 + 12 * tags, 12):
        tag, kind, count = struct.unpack_from(order + "HHI", exif, entry)
        if tag == _ORIENTATION:
            value = {1: "B", 3: "H", 4: "I"}.get(kind)
            return None if value is None or count != 1 else int(struct.unpack_from(order + value, exif, entry + 8)[0])
    return None


def _xmp_orientation(image: Image.Image) -> int | None:
    xmp = image.info.get("XML:com.adobe.xmp") or image.info.get("xmp")
    if isinstance(xmp, str):
        xmp = xmp.encode("utf-8", "replace")
    found = re.search(rb'tiff:Orientation(="|>)([0-9])', xmp) if xmp else None
    return int(found[2]) if found else None


# Modes


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to RGB, with full contrast and transparency on white. RGB is returned as it is."""
    if image.mode == "RGB" and not image.has_transparency_data:
        return image
    white = None
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        white = _white_level(image)
    rgb = Image.new("RGB", image.size)
    for top, band in _bands(image):
        rgb.paste(_band_to_rgb(band, white), (0, top))
    return rgb


def _bands(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Parts of an image with their first row. Conversions need no other copy of the whole image this way."""
    rows = max(1, BAND // image.width)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(top + rows, image.height)))


def _band_to_rgb(band: Image.Image, white: float | None) -> Image.Image:
    if white is not None:
        # PIL clips 16 and 32 bits at 255, which turns most pixels white.
        values = np.asarray(band, dtype=np.float32) * (255 / white)
        band = Image.fromarray(values.clip(0, 255).round().astype(np.uint8))
    if band.has_transparency_data:
        band = band.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", band.size, "white"), band).convert("RGB")
    return band.convert("RGB")


def _white_level(image: Image.Image) -> float:
    """The value of white in an image of 16 or 32 bits per pixel."""
    if image.mode.startswith("I;16"):
        return 65535.0
    brightest = float(np.max([np.asarray(band, dtype=np.float32).max() for _, band in _bands(image)]))
    return max(65535.0, brightest) if brightest > 255 else 255.0  # 32-bit images do not state their white level


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")
