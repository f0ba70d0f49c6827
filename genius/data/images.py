"""Image files: read their bytes and decode them safely to RGB."""

import io
import os
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from genius.data.items import ImageSource, printable
from genius.errors import BadImage

MAX_PIXELS = 64_000_000
"""Images with more pixels are refused before decoding: a small file can claim a size that exhausts the memory."""

MAX_BYTES = 1 << 30
"""Larger files are refused before reading. `MAX_PIXELS` uncompressed pixels of 16 bytes each still fit."""

MAX_SCANS = 100
"""JPEG files with more scans are refused: a small file can ask for hours of decoding."""

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
"""Accepted formats, by their PIL names. Rare parsers are poorly tested, so untrusted files never reach them."""

SUFFIXES = frozenset(
    [".png", ".jpg", ".jpeg", ".jfif", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".avif"]
)
"""Suffixes of the files that a folder reader takes for images."""

_SAVE_AS = "Save it again as PNG, JPEG or WebP."


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


def load_image(source: ImageSource, name: str | None = None) -> Image.Image:
    """Decode an image to a new upright RGB image on a white background.

    Animations give their first frame, PIL images their current one.

    Args:
        source: Path, file content or PIL image.
        name: Name of the image in error messages; by default its path.

    Raises:
        BadImage: The image cannot be decoded. The message has its name and says what to do.
    """
    if isinstance(source, Image.Image):
        return _convert(source, name or "the image")
    content = image_bytes(source)
    if name is None:
        name = "the image (bytes)" if isinstance(source, bytes) else printable(os.fsdecode(source))
    if not content:
        raise BadImage(f"{name}: the file is empty (0 bytes). Copy or download it again.")
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise BadImage(f"{name}: {_too_large()}") from error
    except Exception as error:  # parsers raise many types: struct.error, SyntaxError, OverflowError ...
        raise BadImage(f"{name}: {_not_an_image(content[:512])}") from error
    with image:
        # Each scan costs as much as decoding the whole image. The marker cannot occur inside a scan.
        if image.format in ("JPEG", "MPO") and content.count(b"\xff\xda") > MAX_SCANS:
            raise BadImage(f"{name}: the JPEG has more than {MAX_SCANS} scans. {_SAVE_AS}")
        return _convert(image, name)


def thumbnail(source: ImageSource, size: int, format: str = "WEBP", quality: int = 80) -> bytes:
    """Encode an image as a small file. Its sides have at most `size` pixels."""
    image = load_image(source)
    image.thumbnail((size, size))
    file = io.BytesIO()
    image.save(file, format, quality=quality)
    return file.getvalue()


def _convert(image: Image.Image, name: str) -> Image.Image:
    width, height = image.size  # from the file header: nothing is decoded yet
    if width * height > MAX_PIXELS:
        raise BadImage(f"{name}: {_too_large(width, height)}")
    if width < 1 or height < 1:
        raise BadImage(f"{name}: the image has no pixels ({width} x {height}). {_SAVE_AS}")
    try:
        image.load()
        return _to_rgb(_upright(image))
    except Exception as error:  # decoders raise many types: OSError, SyntaxError, struct.error, EOFError ...
        raise BadImage(
            f"{name}: the image is truncated or damaged ({_reason(error)}). Copy or download it again."
        ) from error


def _upright(image: Image.Image) -> Image.Image:
    """Return a copy, rotated as its EXIF data says; damaged EXIF data is ignored."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # EXIF parsers raise many types
        return image.copy()


def _to_rgb(image: Image.Image) -> Image.Image:
    """Convert any mode to RGB, with full contrast and transparency on white."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = _to_grey(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _to_grey(image: Image.Image) -> Image.Image:
    """Convert 16 or 32 bits per pixel to 8-bit grey. PIL clips at 255, which turns most pixels white."""
    values = np.asarray(image, dtype=np.float32)
    if image.mode.startswith("I;16") or values.max() > 255:  # 32-bit images do not state their white level
        values = values * (255 / max(65535, values.max()))
    return Image.fromarray(values.clip(0, 255).round().astype(np.uint8))


def _too_large(width: int | None = None, height: int | None = None) -> str:
    size = f"{width} x {height} pixels" if width else "the image"
    return f"{size} is more than the limit of {MAX_PIXELS // 1_000_000} megapixels. Make the image smaller."


def _not_an_image(head: bytes) -> str:
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith(b"<svg") or (start.startswith((b"<?xml", b"<!doctype", b"<!--")) and b"<svg" in start):
        return "SVG drawings are not supported. Convert it to PNG first."
    if start.startswith((b"<!doctype html", b"<html")):
        return "this is a web page, not an image. Download the image itself."
    return f"this is not an image of a supported format, or its beginning is damaged. {_SAVE_AS}"


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).rstrip(".")
