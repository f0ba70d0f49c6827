"""Open image files and refuse those that would cost too much, before anything is decoded.

A few bytes can ask for gigabytes of memory or minutes of computing. Everything that decodes an image opens it here, so
all limits hold for indexes, the service, its clients and thumbnails alike. No accepted file may cost more than an
ordinary image of `MAX_PIXELS` does; `tests/data/test_image_costs.py` tries it for every format.
"""

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from PIL import Image

from genius.errors import BadImage

MAX_PIXELS = 64_000_000
"""Images with more pixels are refused. Decoded, this many take 256 MB."""

MAX_SIDE = 65_535
"""Pixels of the longer side: the most that a JPEG can have. Resizing a line of 40 million pixels takes gigabytes."""

MAX_RATIO = 200
"""Longer side to shorter side. Panoramas have up to 20, screenshots of whole pages up to 100. Encoders see images at
224 to 512 pixels: beyond this ratio, the shorter side would be about one pixel."""

MAX_SCANS = 100
"""Scans of a JPEG. Most have 1, progressive ones 10 to 18."""

MAX_SCANNED = 20 * MAX_PIXELS
"""Pixels of a JPEG times its scans: each scan goes over the whole image."""

MAX_READS = 20_000
"""Reads of a parser, and chunks of a PNG, besides one for each 4 kB. Parsers walk through empty chunks one by one."""

MAX_PYTHON_PIXELS = 1_000_000
"""Pixels of rare kinds (BMP with run lengths, PPM as text) that Pillow decodes in Python, up to 100 times slower."""

MAX_TIFF_VALUES = 200_000
"""Values of a TIFF tag other than bytes: one strip for each row of `MAX_SIDE` rows, in three planes."""

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF")
"""Accepted formats, by their PIL names. Rare parsers are poorly tested, so untrusted files never reach them."""

SAVE_AS = "Save it again as PNG, JPEG or WebP."

_PNG = b"\x89PNG\r\n\x1a\n"
_HEIC = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"))
_BYTES_PER_PIXEL = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}  # 4 in other modes
_DECODER_BYTES = {"WEBP": 12, "AVIF": 12, "TIFF": 4}  # per pixel, held by the decoders themselves
_TIFF_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
_TILE_WIDTH, _TILE_LENGTH = 322, 323


@dataclass(frozen=True)
class ImageHeader:
    """What is known about an image before it is decoded. `memory`: bytes needed for decoding, approximately."""

    format: str
    width: int
    height: int
    memory: int

    @property
    def pixels(self) -> int:
        """Number of pixels."""
        return self.width * self.height


def image_header(
    content: bytes, name: str = "the image", formats: tuple[str, ...] = FORMATS, max_pixels: int | None = None
) -> ImageHeader:
    """Check an image file without decoding it.

    Args:
        content: Content of the file.
        name: Name of the image in error messages.
        formats: Accepted formats.
        max_pixels: Pixel limit, by default `MAX_PIXELS`.

    Raises:
        BadImage: The file is not an image, or it exceeds a limit.
    """
    with open_image(content, name, formats, max_pixels) as image:
        return ImageHeader(image.format or "", *image.size, decoding_memory(image))


def open_image(
    content: bytes, name: str, formats: tuple[str, ...] = FORMATS, max_pixels: int | None = None
) -> Image.Image:
    """Open an image file and check all limits; `load` of the result decodes it. Arguments: see `image_header`."""
    if not content:
        raise BadImage(f"{name}: the file is empty (0 bytes). Copy or download it again.")
    if "TIFF" in formats and content.startswith((b"II", b"MM")):
        _check_tiff(content, name)
    file = _CountedReads(content)
    try:
        image = Image.open(file, formats=formats)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise BadImage(f"{name}: {_too_large('the image', max_pixels)}") from error
    except _TooManyReads as error:
        raise BadImage(f"{name}: the file has too many parts. {SAVE_AS}") from error
    except Exception as error:  # parsers raise many types: struct.error, SyntaxError, OverflowError ...
        raise BadImage(f"{name}: {_not_an_image(content[:512])}") from error
    file.left = None
    try:
        check_size(*image.size, name, max_pixels)
        _check_parts(image, content, name)
    except BadImage:
        image.close()
        raise
    return image


def check_size(width: int, height: int, name: str, max_pixels: int | None = None) -> None:
    """Raise BadImage if an image has too many pixels or none, or is too long."""
    shown = f"{name}: an image of {width:,} x {height:,} pixels"
    if width < 1 or height < 1:
        raise BadImage(f"{name}: the image has no pixels ({width} x {height}). {SAVE_AS}")
    if width * height > (max_pixels or MAX_PIXELS):
        raise BadImage(f"{name}: {_too_large(f'{width} x {height} pixels', max_pixels)}")
    if max(width, height) > MAX_SIDE:
        raise BadImage(f"{shown} is longer than the limit of {MAX_SIDE:,} pixels. Make the image smaller.")
    if max(width, height) > MAX_RATIO * min(width, height):
        raise BadImage(f"{shown} is more than {MAX_RATIO} times as long as it is wide. Cut the image into parts.")


def decoding_memory(image: Image.Image) -> int:
    """Bytes that decoding an opened image to RGB takes at most, approximately."""
    stored = _BYTES_PER_PIXEL.get(image.mode, 4)
    of_decoder = _DECODER_BYTES.get(image.format or "", 0)
    if image.info.get("progressive"):  # the decoder keeps two bytes of each channel until the last scan
        of_decoder += 2 * len(image.getbands())
    # 4 bytes of RGB, once more if the image is rotated. The decoder's own memory is free again by then.
    return image.width * image.height * max(stored + of_decoder, stored + 4, 8)


def _check_parts(image: Image.Image, content: bytes, name: str) -> None:
    """Refuse files whose parts take longer to decode than their pixels."""
    pixels = image.width * image.height
    if image.format in ("JPEG", "MPO"):
        scans = content.count(b"\xff\xda")  # the marker cannot occur inside a scan
        if scans > MAX_SCANS or scans * pixels > MAX_SCANNED:
            most = min(MAX_SCANS, MAX_SCANNED // pixels)
            raise BadImage(f"{name}: the JPEG has more than {most} scans. {SAVE_AS}")
    if image.format == "PNG" and _has_many_chunks(content):
        raise BadImage(f"{name}: the PNG has too many chunks. {SAVE_AS}")
    in_python = any(tile[0] in Image.DECODERS for tile in getattr(image, "tile", ()))
    if in_python and (pixels > MAX_PYTHON_PIXELS or len(content) > 16 * MAX_PYTHON_PIXELS):
        raise BadImage(f"{name}: this rare kind of {image.format} is too large to be decoded. {SAVE_AS}")


def _has_many_chunks(png: bytes) -> bool:
    at = len(_PNG)
    for _ in range(_allowed_reads(png)):
        if at + 8 > len(png):
            return False
        at += 12 + int.from_bytes(png[at : at + 4], "big")
    return True


def _allowed_reads(content: bytes) -> int:
    return MAX_READS + len(content) // 4096


class _TooManyReads(OSError):
    pass


class _CountedReads(io.BytesIO):
    """A file that allows a limited number of reads, until `left` is None."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.left: int | None = _allowed_reads(content)

    def read(self, size: int | None = -1, /) -> bytes:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise _TooManyReads("too many reads")
        return super().read(size)


# TIFF: parsers read all tags of the first directory, and decode whole tiles


def _check_tiff(content: bytes, name: str) -> None:
    """Refuse TIFF files with huge tiles, or whose tags are longer than the file. Damage is left to the parser."""
    tiles = {_TILE_WIDTH: 1, _TILE_LENGTH: 1}
    total = 0
    for tag, kind, count, value in _tiff_tags(content):
        total += count * _TIFF_SIZES.get(kind, 0)
        if total > len(content) or (count > MAX_TIFF_VALUES and _TIFF_SIZES.get(kind, 0) > 1):
            raise BadImage(f"{name}: the tags of the TIFF have too many values. {SAVE_AS}")
        if tag in tiles:
            tiles[tag] = value
    if tiles[_TILE_WIDTH] * tiles[_TILE_LENGTH] > MAX_PIXELS:
        raise BadImage(f"{name}: {_too_large('a tile of the TIFF', None)}")


def _tiff_tags(content: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Number, type, count and first value (or offset) of each tag in the first directory of a TIFF or BigTIFF."""
    order = "<" if content.startswith(b"II") else ">"
    big = content[2:4] in (b"+\0", b"\0+")
    start, number, entry = ("Q", "Q", "HHQ8s") if big else ("I", "H", "HHI4s")
    try:
        (at,) = struct.unpack_from(order + start, content, 8 if big else 4)
        (tags,) = struct.unpack_from(order + number, content, at)
        at += struct.calcsize(order + number)
        for _ in range(min(tags, MAX_SIDE)):
            tag, kind, count, value = struct.unpack_from(order + entry, content, at)
            at += struct.calcsize(order + entry)
            yield tag, kind, count, struct.unpack_from(order + ("H" if kind == 3 else "I"), value)[0]
    except (struct.error, OverflowError):  # the directory is cut off, or its offset is wrong
        return


# Sentences


def _too_large(what: str, max_pixels: int | None) -> str:
    limit = f"{(max_pixels or MAX_PIXELS) / 1_000_000:.3g} megapixels"
    return f"{what} is more than the limit of {limit}. Make the image smaller."


def _not_an_image(head: bytes) -> str:
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if start.startswith(b"<svg") or (start.startswith((b"<?xml", b"<!doctype", b"<!--")) and b"<svg" in start):
        return "SVG drawings are not supported. Convert it to PNG first."
    if start.startswith((b"<!doctype html", b"<html")):
        return "this is a web page, not an image. Download the image itself."
    if _is_heic(head):
        return "HEIC images are not supported. Convert it to JPEG first; phones can also be set to take JPEG."
    return f"this is not an image of a supported format, or its beginning is damaged. {SAVE_AS}"


def _is_heic(head: bytes) -> bool:
    """Whether this is a HEIC or HEIF file. AVIF files share some of its brands."""
    if head[4:8] != b"ftyp":
        return False
    box = head[8 : min(len(head), max(12, int.from_bytes(head[:4], "big")))]
    brands = {box[:4], *(box[at : at + 4] for at in range(8, len(box), 4))}
    return bool(brands & _HEIC) and not brands & {b"avif", b"avis"}
