"""Small files that ask for much memory or time when they are decoded, in every format that is accepted.

`corpus()` makes them by code. As a program, it decodes each and prints its peak memory and what became of it as JSON:
a process of its own, because peaks of a process that has done other things mean little. `PIXELS` stands for the pixel
limit, so that the files are quick to make.
"""

import ctypes
import json
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

from hostile import chunk, drawing, frames, png_of, saved, tiff_of
from PIL import Image

PIXELS = 4_000_000
SIDE = 2_000  # of an image of as many pixels as are allowed
TAGS = 65_535  # in an EXIF or TIFF directory, each of them as long as the whole
MEGABYTE = 1 << 20


def corpus() -> dict[str, Callable[[], bytes]]:
    """Files by name. Names that begin with "refused" must be refused; all others may be read."""
    return {**_png(), **_jpeg(), **_webp(), **_gif(), **_bmp(), **_tiff(), **_ppm(), **_avif()}


def _flat(mode: str, format: str, size: tuple[int, int] = (SIDE, SIDE), **options: object) -> Callable[[], bytes]:
    return lambda: saved(Image.new(mode, size), format, **options)


def _png() -> dict[str, Callable[[], bytes]]:
    def full(
        depth: int, colour: int, interlace: int = 0, *between: bytes, size: tuple[int, int] = (SIDE, SIDE)
    ) -> bytes:
        channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
        rows = bytes((size[0] * channels * depth // 8 + 9) * size[1] * (1 + interlace))
        palette = (chunk(b"PLTE", bytes(768)),) if colour == 3 else ()
        return png_of(*size, *palette, *between, rows=rows, depth=depth, colour=colour, interlace=interlace)

    def small(*between: bytes) -> bytes:
        return png_of(8, 8, *between, rows=(b"\0" + bytes(24)) * 8)

    made: dict[str, Callable[[], bytes]] = {
        f"png {depth} bits colour {colour}": lambda depth=depth, colour=colour: full(depth, colour)
        for depth, colour in ((1, 0), (8, 0), (16, 0), (8, 3), (8, 2), (16, 2), (8, 4), (16, 4), (8, 6), (16, 6))
    }
    megabytes = zlib.compress(bytes(MEGABYTE - 10), 9)
    return made | {
        "png interlaced": lambda: full(8, 6, 1),
        "png palette with transparency": lambda: full(8, 3, 0, chunk(b"tRNS", bytes(256))),
        "png colour with transparency": lambda: full(8, 2, 0, chunk(b"tRNS", bytes(6))),
        "png longest": lambda: full(8, 6, 0, size=(28_000, 140)),
        "refused png line down": lambda: png_of(1, PIXELS, rows=b"\0\0", colour=0),
        "refused png line across": lambda: full(8, 0, 0, size=(PIXELS, 1)),
        "refused png beyond the side": lambda: full(1, 0, 0, size=(66_000, 2)),
        "refused png ratio": lambda: full(8, 2, 0, size=(2_010, 10)),
        "png surplus data": lambda: png_of(8, 8, rows=bytes(256 * MEGABYTE)),
        "refused png texts": lambda: small(*[chunk(b"zTXt", b"a%d\0\0" % n + megabytes) for n in range(100)]),
        "refused png profile": lambda: small(chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(128 * MEGABYTE)))),
        "png exif tags": lambda: small(chunk(b"eXIf", _directory())),
        "png exif value": lambda: small(chunk(b"eXIf", tiff_of((274, 5, 500_000, 26), tail=bytes(4_000_000)))),
        "refused png empty chunks": lambda: small(*[chunk(b"abCd", b"")] * 100_000),
        "refused png tiny data": lambda: small(*[chunk(b"IDAT", b"")] * 100_000),
        "png frames": lambda: small(chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0))),
    }


def _jpeg() -> dict[str, Callable[[], bytes]]:
    small = saved(drawing(), "JPEG")

    def with_segments(marker: int, *bodies: bytes) -> bytes:
        parts = (bytes((0xFF, marker)) + struct.pack(">H", len(body) + 2) + body for body in bodies)
        return small[:2] + b"".join(parts) + small[20:]

    def claims(start_of_frame: int) -> bytes:
        data = bytearray(small)
        at = data.index(b"\xff\xc0")
        data[at + 1] = start_of_frame
        data[at + 5 : at + 9] = struct.pack(">HH", SIDE, SIDE)
        return bytes(data)

    def scans(mode: str, count: int) -> bytes:
        whole = saved(Image.new(mode, (SIDE, SIDE)), "JPEG", progressive=True, subsampling=0)
        return whole[:-2] + whole[whole.rindex(b"\xff\xda") : -2] * count + b"\xff\xd9"

    exif = _directory()
    pieces = [b"Exif\0\0" + exif[at : at + 65_000] for at in range(0, len(exif), 65_000)]
    return {
        "jpeg": _flat("RGB", "JPEG"),
        "jpeg grey": _flat("L", "JPEG"),
        "jpeg cmyk": _flat("CMYK", "JPEG"),
        "jpeg progressive": _flat("RGB", "JPEG", progressive=True, subsampling=0),
        "jpeg progressive cmyk": _flat("CMYK", "JPEG", progressive=True, subsampling=0),
        "refused jpeg scans": lambda: scans("RGB", 40),
        "refused jpeg grey scans": lambda: scans("L", 90),
        "jpeg claims": lambda: claims(0xC0),
        "jpeg arithmetic": lambda: claims(0xC9),
        "refused jpeg comments": lambda: with_segments(0xFE, *[b""] * 100_000),
        "refused jpeg junk": lambda: small[:2] + b"\xff\xfe\0\2" + b"a" * 500_000 + small[2:],
        "refused jpeg fill bytes": lambda: small[:2] + b"\xff" * 500_000 + small[2:],
        "jpeg exif tags": lambda: with_segments(0xE1, *pieces),
        "jpeg index of images": lambda: with_segments(0xE2, b"MPF\0" + _directory(2_700, 32_000)[:65_000]),
        "jpeg profiles": lambda: with_segments(
            0xE2, *[b"ICC_PROFILE\0" + bytes((n, 255)) + bytes(60_000) for n in range(1, 256)]
        ),
    }


def _webp() -> dict[str, Callable[[], bytes]]:
    frame = saved(Image.new("RGB", (8, 8)), "WEBP", lossless=True)[12:]
    animation = b"ANMF" + struct.pack("<I", 16 + len(frame)) + bytes(6) + b"\7\0\0\7\0\0" + bytes(4) + frame

    def canvas(width: int, height: int, *parts: bytes, flags: int = 2) -> bytes:
        sides = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
        head = b"WEBPVP8X" + struct.pack("<II", 10, flags) + sides + b"ANIM" + struct.pack("<IIH", 6, 0, 0)
        body = head + b"".join(parts)
        return b"RIFF" + struct.pack("<I", len(body)) + body

    exif = _directory()
    return {
        "webp": _flat("RGB", "WEBP", method=0),
        "webp lossless": _flat("RGBA", "WEBP", lossless=True, method=0),
        "webp large canvas, small frame": lambda: canvas(SIDE, SIDE, animation),
        "refused webp largest canvas": lambda: canvas(16_384, 16_384, animation),
        "refused webp canvas is a line": lambda: canvas(1 << 22, 1, animation),
        "webp frames": lambda: canvas(8, 8, animation * 50_000),
        "webp chunks": lambda: canvas(8, 8, (b"abcd" + bytes(4)) * 200_000, animation),
        "webp exif tags": lambda: canvas(8, 8, animation, b"EXIF" + struct.pack("<I", len(exif)) + exif, flags=10),
    }


def _gif() -> dict[str, Callable[[], bytes]]:
    def frame(size: tuple[int, int], place: tuple[int, int] = (0, 0)) -> bytes:
        return b"," + struct.pack("<HHHHB", *place, *size, 0) + b"\x02\x02\x44\x01\0"

    def gif(*blocks: bytes) -> bytes:
        head = b"GIF89a" + struct.pack("<HHBBB", 8, 8, 0x80, 0, 0)
        return head + b"\0\0\0\xff\xff\xff" + b"".join(blocks) + b";"

    def small_canvas() -> bytes:
        whole = saved(Image.new("P", (SIDE, SIDE)), "GIF")
        return whole[:6] + struct.pack("<HH", 8, 8) + whole[10:]

    return {
        "gif": _flat("P", "GIF"),
        "gif interlaced": _flat("P", "GIF", interlace=1),
        "gif small canvas, large frame": small_canvas,
        "refused gif small canvas, huge frame": lambda: gif(frame((65_535, 65_535))),
        "refused gif frame far outside": lambda: gif(frame((500, 60), (65_000, 60_000))),
        "refused gif frame is a line": lambda: gif(frame((60_000, 1))),
        "gif frames": lambda: frames("GIF", 300, (24, 24)),
        "refused gif comments": lambda: gif(*[b"!\xfe\1x\0"] * 100_000, frame((8, 8))),
        "refused gif long comment": lambda: gif(b"!\xfe" + (b"\xff" + bytes(255)) * 20_000 + b"\0", frame((8, 8))),
        "refused gif junk": lambda: gif(bytes(500_000), frame((8, 8))),
    }


def _bmp() -> dict[str, Callable[[], bytes]]:
    def bmp(width: int, height: int, bits: int, compression: int, data: bytes) -> bytes:
        header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, compression, len(data), 0, 0, 0, 0)
        return b"BM" + struct.pack("<IHHI", 54 + len(data), 0, 0, 54) + header + data

    return {
        "bmp": _flat("RGB", "BMP"),
        "bmp 32 bits": lambda: bmp(SIDE, SIDE, 32, 0, bytes(4 * SIDE * SIDE)),
        "refused bmp claims": lambda: bmp(SIDE, SIDE, 24, 0, b""),
        "refused bmp run lengths": lambda: bmp(SIDE, SIDE, 8, 1, b"\1\0\0\0" * SIDE),
        "refused bmp long run lengths": lambda: bmp(500, 500, 8, 1, b"\0\0" * 9_000_000),
        "refused bmp run lengths down": lambda: bmp(28_000, 140, 4, 2, b"\0\2\xff\xff" * 1_000),
    }


def _tiff() -> dict[str, Callable[[], bytes]]:
    def tiff(side: int, tail: bytes, *more: tuple[int, int, int, int]) -> bytes:
        shared = {256: (4, 1, side), 257: (4, 1, side), 258: (3, 1, 8), 259: (3, 1, 1), 262: (3, 1, 1), 277: (3, 1, 1)}
        tags = shared | {number: (kind, count, value) for number, kind, count, value in more}
        return tiff_of(*((number, *tag) for number, tag in tags.items()), tail=tail)

    def tiled(side: int, tile: int, tiles: int, tail: bytes, compression: int = 1) -> bytes:
        at = 8 + 2 + 10 * 12 + 4
        where = [
            (322, 4, 1, tile),
            (323, 4, 1, tile),
            (324, 4, tiles, at),
            (325, 4, tiles, at if tiles > 1 else len(tail)),
        ]
        return tiff(side, tail, (259, 3, 1, compression), *where)

    def huge_tile() -> bytes:
        return tiled(8, 8_192, 1, zlib.compress(bytes(8_192 * 8_192), 9), compression=8)

    modes = (("RGBA", "tiff_deflate"), ("CMYK", "tiff_lzw"), ("F", "tiff_deflate"), ("I", "tiff_deflate"))
    modes += (("I;16", "tiff_lzw"), ("LAB", "tiff_deflate"), ("1", "group4"), ("RGB", "jpeg"), ("RGB", "packbits"))
    return {
        **{f"tiff {mode} {compression}": _flat(mode, "TIFF", compression=compression) for mode, compression in modes},
        "refused tiff huge tile": huge_tile,
        "refused tiff tiny tiles": lambda: tiled(700, 1, 490_000, bytes(4 * 490_000)),
        "refused tiff tags": _directory,
        "refused tiff values": lambda: tiff(8, bytes(4_000_000), (258, 3, 2_000_000, 122)),
        "tiff directories": lambda: frames("TIFF", 300, (24, 24)),
    }


def _ppm() -> dict[str, Callable[[], bytes]]:
    head = b"%s %d %d %s\n"
    return {
        "ppm": lambda: head % (b"P6", SIDE, SIDE, b"255") + bytes(3 * SIDE * SIDE),
        "ppm 16 bits grey": lambda: head % (b"P5", SIDE, SIDE, b"65535") + bytes(2 * SIDE * SIDE),
        "ppm one bit": lambda: head % (b"P4", SIDE, SIDE, b"") + bytes(SIDE * SIDE // 8),
        "ppm float": lambda: head % (b"Pf", SIDE, SIDE, b"-1.0") + bytes(4 * SIDE * SIDE),
        "refused ppm odd white": lambda: head % (b"P6", SIDE, SIDE, b"100") + bytes(3 * SIDE * SIDE),
        "refused ppm text": lambda: head % (b"P3", SIDE, SIDE, b"255") + b"1 " * 3 * SIDE * SIDE,
        "refused ppm comments": lambda: b"P6 " + b"#x\n" * 50_000 + b"1 1 255\n\0\0\0",
        "refused ppm spaces": lambda: b"P6 " + b" " * 100_000 + b"1 1 255\n\0\0\0",
    }


def _avif() -> dict[str, Callable[[], bytes]]:
    def claims(side: int, width: int, height: int) -> bytes:
        data = bytearray(saved(Image.new("RGB", (side, side)), "AVIF", speed=10))
        at = data.index(b"ispe") + 8
        data[at : at + 8] = struct.pack(">II", width, height)
        return bytes(data)

    return {
        "avif": _flat("RGB", "AVIF", speed=10),
        "avif with alpha": _flat("RGBA", "AVIF", speed=10),
        "avif claims more": lambda: claims(64, SIDE, SIDE),
        "avif claims less": lambda: claims(SIDE, 10, 10),
        "refused avif claims too much": lambda: claims(64, 16_000, 16_000),
        "refused avif is a line": lambda: claims(64, 30_000, 1),
        "avif frames": lambda: frames("AVIF", 20, (64, 64)),
        "avif exif tags": lambda: saved(Image.new("RGB", (64, 64)), "AVIF", exif=b"Exif\0\0" + _directory()),
    }


def _directory(tags: int = TAGS, length: int = 900_000) -> bytes:
    """A TIFF directory whose tags all have the same long value."""
    entries = b"".join(struct.pack("<HHII", tag, 7, length, 8) for tag in range(tags))
    return b"II*\0" + struct.pack("<IH", 8, tags) + entries + bytes(max(0, length - len(entries) + 100))


# Measuring


def peak() -> int:
    """The largest memory of this process since `forget_peak`, in bytes (Linux)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def forget_peak() -> int:
    """Return free memory to the system, so that it counts when it is used again, and start a new peak."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def main() -> None:
    from genius.data import image_headers
    from genius.data.images import load_image
    from genius.encoders.efficientnet import to_pixels
    from genius.errors import BadImage

    image_headers.MAX_SCANNED = image_headers.MAX_SCANNED * PIXELS // image_headers.MAX_PIXELS
    image_headers.MAX_PIXELS = PIXELS
    load_image(saved(drawing(), "JPEG"))
    found = {}
    for name, make in corpus().items():
        data = make()
        before = forget_peak()
        try:
            image = load_image(data, "it")
            shown = f"read {image.size}, {to_pixels(image).shape}"
            image = None
        except BadImage as error:
            shown = str(error)
        found[name] = [peak() - before, len(data), shown]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
