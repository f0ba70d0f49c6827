"""Images from files, bytes or PIL, as RGB images that are safe to decode.

Knows the ways image files go wrong. Does not know sizes, crops or normalisation: those belong to an encoder.
"""

import io
import os
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image, ImageOps

from genius.data.items import ImageSource, printable
from genius.errors import BadImage

MAX_PIXELS = 64_000_000
"""An image with more pixels is refused before it is decoded: a small file can claim to fill the memory."""

MAX_SCANS = 100
"""A JPEG with more is refused: a small file can ask for hours of decoding."""

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
"""What is tried, by PIL's names. A closed list keeps rarely used, rarely tested parsers away from strangers' files."""

SUFFIXES = frozenset(
    [".png", ".jpg", ".jpeg", ".jfif", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".avif"]
)
"""File name endings taken for images when a folder is read."""

_SAVE_AS = "Save it again as PNG, JPEG or WebP."


def load_image(source: ImageSource) -> Image.Image:
    """The image as a new, upright RGB image: first frame (of a PIL image: the current one), transparency on white.

    Raises BadImage with the image's name and what to do, whatever the reason it cannot be read.
    """
    if isinstance(source, Image.Image):
        return _convert(source, "the image")
    if isinstance(source, bytes):
        return _decode(io.BytesIO(source), "the image (bytes)", head=source[:512], size=len(source))
    if not isinstance(source, str | os.PathLike):
        raise BadImage(f"An image must be a path, bytes or a PIL image, not {type(source).__name__}.")
    return _read(os.fsdecode(source))


def _read(path: str) -> Image.Image:
    name = printable(path)
    if path.startswith(("http://", "https://")):
        raise BadImage(f"{name}: images are not fetched from the network. Download it and give the file's path.")
    try:
        if not Path(path).is_file():
            what = "this is a folder, not an image" if Path(path).is_dir() else "there is no such file"
            raise BadImage(f"{name}: {what}. Check the path.")
        with open(path, "rb") as file:
            head = file.read(512)
            file.seek(0)
            return _decode(file, name, head, size=os.fstat(file.fileno()).st_size)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise BadImage(
            f"{name}: the file cannot be opened ({_reason(error)}). Check the path and its permissions."
        ) from error


def _decode(file: IO[bytes], name: str, head: bytes, size: int) -> Image.Image:
    if size == 0:
        raise BadImage(f"{name}: the file is empty (0 bytes). Copy or download it again.")
    try:
        image = Image.open(file, formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise BadImage(f"{name}: {_too_large()}") from error
    except Exception as error:  # parsers raise many kinds: struct.error, SyntaxError, OverflowError ...
        raise BadImage(f"{name}: {_what_else(head)}") from error
    with image:
        if image.format in ("JPEG", "MPO") and _scans(file) > MAX_SCANS:
            raise BadImage(f"{name}: the image has more than {MAX_SCANS} scans, which none needs. {_SAVE_AS}")
        return _convert(image, name)


def _scans(file: IO[bytes]) -> int:
    """How often a JPEG file goes over its pixels: each time costs as much as decoding a whole image."""
    place, count, before = file.tell(), 0, b""
    file.seek(0)
    while block := file.read(1 << 20):
        count += (before + block).count(b"\xff\xda")  # a marker cannot occur within a scan
        before = block[-1:]
    file.seek(place)
    return count


def _convert(image: Image.Image, name: str) -> Image.Image:
    width, height = image.size  # from the header: nothing is decoded yet
    if width * height > MAX_PIXELS:
        raise BadImage(f"{name}: {_too_large(width, height)}")
    if width < 1 or height < 1:
        raise BadImage(f"{name}: the image has no pixels ({width} x {height}). {_SAVE_AS}")
    try:
        image.load()
        return _to_rgb(_upright(image))
    except Exception as error:  # decoders raise many kinds: OSError, SyntaxError, struct.error, EOFError ...
        raise BadImage(
            f"{name}: the image is truncated or damaged ({_reason(error)}). Copy or download it again."
        ) from error


def _upright(image: Image.Image) -> Image.Image:
    """A copy, turned as the camera's EXIF note says; a damaged note is no reason to lose the image."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # EXIF parsers raise many kinds
        return image.copy()


def _to_rgb(image: Image.Image) -> Image.Image:
    """RGB with full contrast and transparent parts white, whatever the mode."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = _to_grey(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _to_grey(image: Image.Image) -> Image.Image:
    """8-bit grey from 16 or 32 bits a pixel. PIL's own conversion clips at 255, which turns most pixels white."""
    values = np.asarray(image, dtype=np.float32)
    if image.mode.startswith("I;16") or values.max() > 255:  # 32-bit images say nowhere what white is
        values = values * (255 / max(65535, values.max()))
    return Image.fromarray(values.clip(0, 255).round().astype(np.uint8))


def _too_large(width: int | None = None, height: int | None = None) -> str:
    size = f"{width} x {height} pixels" if width else "the image"
    return f"{size} is more than the limit of {MAX_PIXELS // 1_000_000} megapixels. Make the image smaller."


def _what_else(head: bytes) -> str:
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith(b"<svg") or (start.startswith((b"<?xml", b"<!doctype", b"<!--")) and b"<svg" in start):
        return "SVG drawings are not supported. Render it to PNG first."
    if start.startswith((b"<!doctype html", b"<html")):
        return "this is a web page, not an image. Download the image itself."
    return f"this is not an image that can be read, or its beginning is damaged. {_SAVE_AS}"


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")
