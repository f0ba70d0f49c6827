"""Hostile input for tests, made by code: images, bodies, addresses, and raw bytes on a connection.

images()      Images by name: each says whether it must be read, must be refused, or may be either
json_bodies()   bodies that call themselves JSON, by name
form_bodies()   bodies that call themselves forms, with their content types
STRANGE_IDS     ids that are no names of files one would like to open
CONDITIONS      conditions that are none, or not harmless
raw_requests()  what is no HTTP, or hardly, as bytes
"""

import base64
import functools
import io
import json
import random
import struct
import zlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image, ImageDraw

Fate = Literal["read", "refused", "either"]


@dataclass(frozen=True)
class HostileImage:
    data: bytes
    fate: Fate


# Images


def drawing(mode: str = "RGB", size: tuple[int, int] = (48, 40), shade: int = 0) -> Image.Image:
    image = Image.new("RGB", size, "white")
    ImageDraw.Draw(image).ellipse((4, 4, size[0] - 4, size[1] - 4), fill=(200, shade, 40))
    return image.convert(mode)


def saved(image: Image.Image, format: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, format, **options)  # type: ignore[arg-type]
    return out.getvalue()


def frames(format: str, count: int = 6, size: tuple[int, int] = (48, 40)) -> bytes:
    made = [drawing(size=size, shade=(n * 37) % 255) for n in range(count)]
    return saved(made[0], format, save_all=True, append_images=made[1:], duration=20)


def chunk(kind: bytes, data: bytes, length: int | None = None, crc: int | None = None) -> bytes:
    """A chunk of a PNG, whose length and checksum may be lies."""
    checked = zlib.crc32(kind + data) if crc is None else crc
    return struct.pack(">I", len(data) if length is None else length) + kind + data + struct.pack(">I", checked)


def png_of(
    width: int, height: int, *between: bytes, rows: bytes = b"", depth: int = 8, colour: int = 2, interlace: int = 0
) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    body = chunk(b"IDAT", zlib.compress(rows, 9))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(between) + body + chunk(b"IEND", b"")


def _good_png(*between: bytes) -> bytes:
    return png_of(8, 8, *between, rows=(b"\0" + b"\xc8\x00\x28" * 8) * 8)


def _zeros(megabytes: int) -> bytes:
    return zlib.compress(bytes(megabytes << 20), 9)


def _jpeg_segments(data: bytes) -> list[tuple[int, bytes]]:
    """The marker segments of a JPEG, each scan with the data that follows it."""
    found, at = [], 2
    while data[at + 1] != 0xD9:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at + 1] == 0xDA:
            while not (data[end] == 0xFF and data[end + 1] not in (0, *range(0xD0, 0xD8))):
                end += 1
        found.append((data[at + 1], data[at:end]))
        at = end
    return found


def jpeg_of_scans(size: tuple[int, int], scans: int) -> bytes:
    """A progressive JPEG whose last scan comes again and again: few bytes, and each goes over all pixels."""
    segments = _jpeg_segments(saved(Image.new("L", size, 128), "JPEG", progressive=True))
    last = [data for marker, data in segments if marker == 0xDA][-1]
    return b"\xff\xd8" + b"".join(data for _, data in segments) + last * scans + b"\xff\xd9"


def _resized_jpeg(width: int, height: int) -> bytes:
    """A JPEG that claims another size."""
    data = bytearray(saved(drawing(), "JPEG"))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def tiff_of(*tags: tuple[int, int, int, int], next_at: int = 0, tail: bytes = b"") -> bytes:
    """A TIFF with one directory of these tags: number, type, count, value."""
    entries = b"".join(struct.pack("<HHII", *tag) for tag in sorted(tags))
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", next_at) + tail


def _tiff(across: int, down: int, **changed: tuple[int, int, int]) -> bytes:
    tags = {
        "width": (256, 4, 1, across),
        "height": (257, 4, 1, down),
        "bits": (258, 3, 1, 8),
        "compression": (259, 3, 1, 1),
        "photometric": (262, 3, 1, 1),
        "offsets": (273, 4, 1, 200),
        "samples": (277, 3, 1, 1),
        "rows": (278, 4, 1, down),
        "counts": (279, 4, 1, across * down & 0xFFFFFFFF),
    }
    for name, (kind, count, value) in changed.items():
        tags[name] = (tags[name][0], kind, count, value)
    return tiff_of(*tags.values(), tail=bytes(400))


def _bmp(width: int, height: int, bits: int = 24, compression: int = 0, data: bytes = b"") -> bytes:
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, compression, len(data), 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54 + len(data), 0, 0, 54) + header + data


def _gif(width: int, height: int, *blocks: bytes) -> bytes:
    return (
        b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff" + b"".join(blocks) + b";"
    )


def _gif_frame(x: int, y: int, width: int, height: int, data: bytes = b"\x02\x02\x44\x01\x00") -> bytes:
    return b"," + struct.pack("<HHHHB", x, y, width, height, 0) + data


def _webp(kind: bytes, data: bytes) -> bytes:
    body = b"WEBP" + kind + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def _float_tiff() -> bytes:
    values = np.full((16, 16), np.nan, np.float32)
    values[0], values[1] = np.inf, -np.inf
    return saved(Image.fromarray(values), "TIFF")


def _exif(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[274] = orientation
    return saved(drawing(), "JPEG", exif=exif)


def _huge_exif() -> bytes:
    """EXIF that points back into itself."""
    loop = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 1) + struct.pack("<HHII", 0x8769, 4, 1, 8) + struct.pack("<I", 8)
    data = saved(drawing(), "JPEG")
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(loop) + 2) + loop + data[2:]


FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "TIFF", "BMP")
UNWANTED = (b"II", b"MM", b"P1", b"P2", b"P3", b"P4", b"P5", b"P6")
"""How TIFF and PPM begin: images that the package reads from files, but the service does not take from strangers."""
SCRIPT = b"<script>alert(document.domain)</script>"


@functools.cache
def images() -> dict[str, HostileImage]:
    """All of them. Nothing here is larger than a few megabytes."""
    made: dict[str, HostileImage] = {}

    def add(fate: Fate, **more: bytes) -> None:
        for name, data in more.items():
            made[name] = HostileImage(data, fate)

    add("read", **{f"good {one}": saved(drawing(), one) for one in (*FORMATS, "PPM", "AVIF")})
    add("read", **{f"animated {one}": frames(one) for one in ("GIF", "PNG", "WEBP", "TIFF")})
    for mode, format in (
        *(("CMYK", "JPEG"), ("CMYK", "TIFF"), ("L", "JPEG"), ("I;16", "PNG"), ("I;16", "TIFF"), ("P", "PNG")),
        *(("P", "GIF"), ("1", "PNG"), ("1", "TIFF"), ("LA", "PNG"), ("RGBA", "WEBP"), ("RGBA", "PNG"), ("F", "TIFF")),
        *(("YCbCr", "JPEG"), ("LAB", "TIFF"), ("L", "PPM"), ("1", "PPM"), ("P", "BMP"), ("1", "BMP")),
    ):
        image = drawing("L").convert("I;16") if mode == "I;16" else drawing(mode if mode != "LAB" else "RGB")
        add("read", **{f"{mode} {format}": saved(image, format)})
    add("read", **{f"orientation {n}": _exif(n) for n in (1, 3, 6, 8)}, orientation_999=_exif(999), loop=_huge_exif())
    add("read", one_pixel=saved(Image.new("RGB", (1, 1)), "PNG"), tall=saved(Image.new("L", (100, 20_000)), "PNG"))
    add("read", wide=saved(Image.new("1", (60_000, 300)), "PNG"), many_frames=frames("GIF", 400, (8, 8)))
    add("refused", line=saved(Image.new("L", (1, 30_000)), "PNG"), long=saved(Image.new("1", (66_000, 400)), "PNG"))
    add("refused", png_line=png_of(1, 40_000_000, rows=b"\0\0", colour=0), heic=b"\0\0\0\x18ftypheic" + bytes(12))
    add("either", floats=_float_tiff())

    # Damaged
    noise = random.Random(0)
    for one in FORMATS:
        whole = saved(drawing(), one)
        cuts = (1, 4, 12, 20, 30, len(whole) // 2)
        add("refused", **{f"{one} cut at {cut}": whole[:cut] for cut in cuts})
        add("either", **{f"{one} without its last byte": whole[:-1], f"{one} twice": whole * 2})
        for turn in range(6):
            broken = bytearray(whole)
            for _ in range(1 + turn * 4):
                broken[noise.randrange(2, len(broken))] = noise.randrange(256)
            add("either", **{f"{one} with {1 + turn * 4} wrong bytes": bytes(broken)})
    for one in ("GIF", "PNG", "WEBP"):
        whole = frames(one)
        add("either", **{f"animated {one} cut": whole[: len(whole) // 2]})
    add("refused", nothing=b"", zeros=bytes(1000), noise=noise.randbytes(5000), text=b"hello")

    # Larger than they are: by their headers, by their tables, by what is packed into them
    add("refused", png_50000=png_of(50_000, 50_000), png_largest=png_of(2**31 - 1, 2**31 - 1))
    add("refused", png_over=png_of(2**32 - 1, 1), png_nothing=png_of(0, 0), png_flat=png_of(100, 0))
    add("refused", png_over_the_limit=png_of(6400, 6400, rows=bytes(6400 * 801), depth=1, colour=0))
    add("read", png_below_the_limit=png_of(4000, 4000, rows=bytes(4000 * 501), depth=1, colour=0))
    add(
        "refused", png_odd=png_of(8, 8, depth=7, colour=9), png_empty=png_of(8, 8), png_short=png_of(64, 64, rows=b"\0")
    )
    add("either", png_interlaced=png_of(3000, 3000, rows=bytes(100), depth=1, colour=0, interlace=1))
    add("either", png_surplus=png_of(8, 8, rows=bytes(8 << 20)), png_crc=_good_png(chunk(b"tEXt", b"a\0b", crc=1)))
    add("either", ztxt=_good_png(chunk(b"zTXt", b"a\0\0" + _zeros(100))))
    add("either", itxt=_good_png(chunk(b"iTXt", b"a\0\1\0\0\0" + _zeros(100))))
    add("either", many_texts=_good_png(*[chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(900_000), 9))] * 100))
    add("either", iccp=_good_png(chunk(b"iCCP", b"a\0\0" + _zeros(100))), icc=_good_png(chunk(b"iCCP", b"a\0\0xx")))
    add("either", exif_chunk=_good_png(chunk(b"eXIf", bytes(60_000))), long_chunk=_good_png(chunk(b"tEXt", b"", 2**31)))
    add("either", apng=_good_png(chunk(b"acTL", struct.pack(">II", 2**31 - 1, 0))))
    add("refused", many_chunks=_good_png(*[chunk(b"abCd", b"")] * 50_000))
    add("refused", jpeg_65500=_resized_jpeg(65_500, 65_500), jpeg_flat=_resized_jpeg(0, 40))
    add("either", jpeg_grown=_resized_jpeg(5_000, 5_000))
    add("refused", **{"jpeg with 2000 scans": jpeg_of_scans((3_000, 3_000), 2_000)})
    add("read", progressive=saved(drawing(), "JPEG", progressive=True))
    add("refused", gif_65535=_gif(65_535, 65_535, _gif_frame(0, 0, 65_535, 65_535)), gif_bare=_gif(8, 8))
    add("either", gif_beyond=_gif(8, 8, _gif_frame(60_000, 60_000, 5_000, 5_000)))
    add("either", gif_lzw=_gif(8, 8, _gif_frame(0, 0, 8, 8, b"\x0c\xff" + noise.randbytes(255) + b"\0")))
    add("either", gif_frames=_gif(8, 8, *[_gif_frame(0, 0, 8, 8)] * 20_000))
    add("either", gif_comments=_gif(8, 8, *[b"!\xfe\xff" + b"x" * 255 + b"\0"] * 4_000, _gif_frame(0, 0, 8, 8)))
    add("refused", webp_canvas=_webp(b"VP8X", struct.pack("<I", 2) + b"\xff\xff\xff\xff\xff\xff"))
    add("refused", webp_lossless=_webp(b"VP8L", b"\x2f" + b"\xff" * 40), webp_length=b"RIFF\xff\xff\xff\xffWEBPVP8 ")
    add("refused", tiff_huge=_tiff(2**31, 2**31), tiff_50000=_tiff(50_000, 50_000), tiff_flat=_tiff(0, 0))
    add("refused", tiff_counts=_tiff(8, 8, counts=(4, 2**32 - 1, 200)), tiff_offsets=_tiff(8, 8, offsets=(4, 2**31, 8)))
    add("refused", tiff_samples=_tiff(8, 8, samples=(3, 1, 65_535)), tiff_bits=_tiff(8, 8, bits=(3, 1, 77)))
    add("refused", tiff_compression=_tiff(8, 8, compression=(3, 1, 34_712)), tiff_empty=tiff_of())
    add("refused", tiff_loop=tiff_of((256, 4, 1, 8), next_at=8), tiff_big=b"II+\0\x08\0\0\0" + b"\xff" * 64)
    add("either", tiff_deflate=_tiff(6_000, 6_000, compression=(3, 1, 8)), tiff_rows=_tiff(8, 8, rows=(4, 1, 0)))
    add("either", tiff_types=_tiff(8, 8, width=(12, 2**30, 8)), tiff_past=_tiff(8, 8, offsets=(4, 1, 2**32 - 1)))
    add("refused", bmp_50000=_bmp(50_000, 50_000), bmp_least=_bmp(-(2**31), -(2**31)), bmp_bits=_bmp(8, 8, 7))
    add("either", bmp_rle=_bmp(2_000, 2_000, 8, 1, noise.randbytes(500)), bmp_fields=_bmp(8, 8, 32, 3, bytes(300)))
    add(
        "refused",
        ppm_huge=b"P6 99999 99999 255\n",
        ppm_digits=b"P6 " + b"9" * 100_000,
        ppm_zero=b"P6 8 8 0\n" + bytes(192),
    )
    add(
        "either",
        ppm_text=b"P3 500 500 255 " + b"1 " * 900,
        ppm_comments=b"P6 " + b"#x\n" * 100_000 + b"1 1 255\n\0\0\0",
    )
    add("refused", avif_cut=saved(drawing(), "AVIF")[:200], avif_header=b"\0\0\0\x1cftypavif" + bytes(40))

    # What is two things at once, or something else altogether
    good_gif, good_jpeg = saved(drawing(), "GIF"), saved(drawing(), "JPEG")
    add("read", gif_script=good_gif + b"/*" + SCRIPT + b"*/", png_page=_good_png() + b"<html>" + SCRIPT + b"</html>")
    add("read", jpeg_comment=good_jpeg[:2] + b"\xff\xfe\x00\x28<?php system('id'); ?>               " + good_jpeg[2:])
    add("read", jpeg_zip=good_jpeg + b"PK\x03\x04" + bytes(26), png_text=_good_png(chunk(b"tEXt", b"x\0" + SCRIPT)))
    add("refused", gif_trick=b"GIF89a=1;/*" + SCRIPT + b"*/", page=b"<!doctype html>" + SCRIPT)
    add("refused", svg=b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)">' + SCRIPT + b"</svg>")
    entity = b'<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><svg xmlns="http://www.w3.org/2000/svg">&e;</svg>'
    add(
        "refused",
        svg_entity=b'<?xml version="1.0"?>' + entity,
        pdf=b"%PDF-1.7\n1 0 obj<</OpenAction 2 0 R>>endobj\n%%EOF",
    )
    add("refused", postscript=b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(/etc/passwd) (r) file\n")
    add("refused", zip=b"PK\x03\x04" + bytes(100), elf=b"\x7fELF" + bytes(100), pickle=b"\x80\x04cos\nsystem\n.")
    add("refused", psd=b"8BPS\0\1" + bytes(100), icon=saved(drawing(), "ICO"), tga=saved(drawing(), "TGA"))
    add(
        "refused",
        fli=bytes(4) + b"\x11\xaf" + bytes(200),
        xpm=b"/* XPM */ static char *x[] = {",
        dds=b"DDS " + bytes(200),
    )
    add(
        "refused",
        path=b"/etc/passwd",
        address=b"http://169.254.169.254/latest/meta-data/",
        data=b"data:image/png;base64,AA",
    )
    return {
        name: HostileImage(one.data, "refused") if one.data.startswith(UNWANTED) else one for name, one in made.items()
    }


# Bodies


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def json_bodies() -> dict[str, bytes]:
    """Bodies for POST /v1/search and others: wrong as JSON, wrong as values, or merely odd."""
    deep = 100_000
    raw = {
        "nothing": b"",
        "blank": b"   \n",
        "cut": b'{"text": "a',
        "two": b'{"text": "a"}{"text": "b"}',
        "comma": b'{"text": "a",}',
        "single quotes": b"{'text': 'a'}",
        "comment": b'{"text": "a" /* b */}',
        "nan": b'{"text": "a", "k": NaN}',
        "infinity": b'{"text": "a", "k": Infinity}',
        "minus infinity": b'{"text": "a", "k": -Infinity}',
        "1e400": b'{"text": "a", "k": 1e400}',
        "k 1e400": b'{"text": "a", "k": 1e400}',
        "k -1e400": b'{"text": "a", "k": -1e400}',
        "many digits": b'{"text": "a", "k": 1' + b"0" * 5000 + b"}",
        "more digits": b'{"text": "a", "k": 0.' + b"1" * 500_000 + b"}",
        "lists": b"[" * deep + b"]" * deep,
        "open lists": b"[" * deep,
        "objects": b'{"text":' * deep + b"1" + b"}" * deep,
        "deep text": b'{"text": ' + b"[" * deep + b"]" * deep + b"}",
        "deep metadata": b'{"text": "a", "metadata": {"x": ' + b"[" * 500 + b"]" * 500 + b"}}",
        "double keys": b'{"text": "a", "text": "b", "k": 1, "k": 2}',
        "many keys": b"{" + b",".join(b'"k%d": 1' % n for n in range(100_000)) + b"}",
        "one long key": b'{"' + b"k" * 1_000_000 + b'": 1}',
        "utf-16": '{"text": "a"}'.encode("utf-16"),
        "utf-32": '{"text": "a"}'.encode("utf-32"),
        "byte order mark": b'\xef\xbb\xbf{"text": "a"}',
        "latin-1": '{"text": "é"}'.encode("latin-1"),
        "half a character": b'{"text": "\xc3"}',
        "overlong": b'{"text": "\xc0\x80"}',
        "surrogate": b'{"text": "\\ud800"}',
        "surrogate bytes": b'{"text": "\xed\xa0\x80"}',
        "surrogate key": b'{"text": "a", "metadata": {"\\udfff": 1}}',
        "surrogate where": b'{"text": "a", "where": "id = \'\\ud800\'"}',
        "surrogate id": b'{"like": "\\udc00"}',
        "nul": b'{"text": "a\\u0000b"}',
        "bare nul": b'{"text": "a\0b"}',
        "control": b'{"text": "a\nb"}',
        "10 MB text": b'{"text": "' + b"a" * 10_000_000 + b'"}',
        "10 MB space": b" " * 10_000_000 + b'{"text": "a"}',
        "10 MB base64": b'{"image": "' + b"A" * 10_000_000 + b'"}',
        "21 MB": b'{"text": "' + b"a" * 21_000_000 + b'"}',
        "xml": b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><x>&e;</x>',
        "form": b"text=a&k=3",
        "yaml": b"!!python/object/apply:os.system ['id']",
        "pickle": b"\x80\x04cos\nsystem\n(S'id'\ntR.",
    }
    values: dict[str, object] = {f"top {value!r}": value for value in (None, True, 0, -1, 0.5, "text", [], {}, [{}])}
    for field in ("text", "image", "like", "instruction", "target", "mode", "where"):
        for value in (0, True, [], {}, ["a"], {"a": 1}, 1.5):
            values[f"{field} {value!r}"] = {"text": "a", field: value}
    for field in ("k", "beam", "budget"):
        for value in ("10", None, True, [], 1.5, 0, -1, 2**31, 2**63, 2**64, -(2**63), 10**30, 1e300):
            values[f"{field} {value!r}"] = {"text": "a", field: value}
    for value in (
        "",
        "a b",
        "../x",
        "file:///etc/passwd",
        "http://127.0.0.1/",
        "AA",
        "AAAA=",
        "A" * 7,
        "é" * 8,
        "\0" * 8,
    ):
        values[f"image {value!r}"] = {"image": value}
    values |= {
        "nothing to search with": {},
        "blank text": {"text": "   "},
        "quotes": {"text": '""'},
        "unknown field": {"text": "a", "path": "/etc/passwd"},
        "prototype": {"text": "a", "__proto__": {"k": 1}, "constructor": 1},
        "url": {"image_url": "http://127.0.0.1:1/"},
        "ids of numbers": {"text": "a", "ids": [1, 2]},
        "ids of nothing": {"text": "a", "ids": [None]},
        "ids that are text": {"text": "a", "ids": "abc"},
        "no ids": {"text": "a", "ids": []},
        "many ids": {"text": "a", "ids": [f"x{n}" for n in range(10_001)]},
        "long id": {"like": "x" * 100_000},
        "odd characters": {"text": "".join(map(chr, (0xFFFE, 0xFFFF, 0x202E, 0x200B, 0x10FFFF, 0xE000, 7, 27, 127)))},
        "combining": {"text": "a" + "\u0301" * 9_000},
        "arabic ligatures": {"text": "\ufdfa" * 9_000},
        "spaces": {"text": " " * 9_999 + "a"},
        "words": {"text": "word " * 1_999},
        "emoji": {"text": "👩‍👩‍👧‍👦" * 900},
        "a 10,000 character word": {"text": "x" * 10_000},
        "template": {"text": "{{7*7}} ${7*7} %s%s%n {0.__class__}"},
        "image and like": {"image": encoded(b"x"), "like": "x"},
        "everything": {"text": "a", "k": 200, "beam": 500, "budget": 10_000, "explain": True},
        "batch of none": {"queries": []},
        "batch": {"queries": [{"text": "a"}, {"text": 1}, {}]},
        "batch of batches": {"queries": [{"queries": [{"text": "a"}]}]},
        "large batch": {"queries": [{"text": "a"}] * 65},
        "items of none": {"items": []},
        "items of nothing": {"items": [None, 1, "a", {}, {"id": ""}]},
        "item without content": {"items": [{"id": "x"}]},
        "metadata list": {"text": "a", "metadata": []},
        "large metadata": {"text": "a", "metadata": {"x": "y" * 70_000}},
        "metadata names": {
            "text": "a",
            "metadata": {"": 1, " ": 2, "a.b": 3, "`": 4, "id": 5, "_rowid": 6, "codes": 7},
        },
    }
    return raw | {name: json.dumps(value).encode() for name, value in values.items()}


def form(*fields: tuple[str, str | None, bytes], boundary: str = "XyZ", end: bool = True) -> bytes:
    """A form of (name, file name, data)."""
    parts = []
    for name, filename, data in fields:
        more = "" if filename is None else f'; filename="{filename}"'
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
        parts.append(head.encode("utf-8", "surrogateescape") + data + b"\r\n")
    return b"".join(parts) + (f"--{boundary}--\r\n".encode() if end else b"")


def form_bodies() -> dict[str, tuple[str, bytes]]:
    """Content type and body."""
    kind = "multipart/form-data; boundary=XyZ"
    image = saved(drawing(), "PNG")
    names = (
        "../../../etc/passwd",
        "/etc/passwd",
        "C:\\x.png",
        "a\0b.png",
        "x" * 5_000,
        "<script>.png",
        "..",
        "",
        "con",
    )
    found = {f"file called {name[:30]!r}": (kind, form(("image", name, image))) for name in names}
    bodies: dict[str, tuple[str, bytes]] = {
        "no boundary": ("multipart/form-data", form(("text", None, b"a"))),
        "another boundary": ("multipart/form-data; boundary=abc", form(("text", None, b"a"))),
        "long boundary": (f"multipart/form-data; boundary={'b' * 5000}", b"--" + b"b" * 5000 + b"--"),
        "empty boundary": ('multipart/form-data; boundary=""', form(("text", None, b"a"))),
        "odd boundary": ("multipart/form-data; boundary=\x7f;boundary=b", b"----"),
        "no body": (kind, b""),
        "no end": (kind, form(("text", None, b"a"), end=False)),
        "only the end": (kind, b"--XyZ--"),
        "no name": (kind, b"--XyZ\r\nContent-Disposition: form-data\r\n\r\na\r\n--XyZ--\r\n"),
        "no disposition": (kind, b"--XyZ\r\n\r\na\r\n--XyZ--\r\n"),
        "no blank line": (kind, b"--XyZ\r\nContent-Disposition: form-data; name=text\r\n--XyZ--\r\n"),
        "bare line feeds": (kind, b"--XyZ\nContent-Disposition: form-data; name=text\n\na\n--XyZ--\n"),
        "long header": (kind, b"--XyZ\r\n" + b"X: " + b"y" * 200_000 + b"\r\n\r\na\r\n--XyZ--\r\n"),
        "many headers": (kind, b"--XyZ\r\n" + b"X: y\r\n" * 20_000 + b"\r\na\r\n--XyZ--\r\n"),
        "many fields": (kind, form(*[("text", None, b"a")] * 20_000)),
        "many names": (kind, form(*[(f"f{n}", None, b"a") for n in range(2_000)])),
        "text twice": (kind, form(("text", None, b"a"), ("text", None, b"b"))),
        "text as a file": (kind, form(("text", "a.txt", b"a"))),
        "image as text": (kind, form(("image", None, b"/etc/passwd"))),
        "image by its address": (kind, form(("image", None, b"http://127.0.0.1:1/x.png"))),
        "wrong number": (kind, form(("text", None, b"a"), ("k", None, b"ten"))),
        "not utf-8": (kind, form(("text", None, b"\xff\xfe"))),
        "name not utf-8": (kind, form(("\udcff\udcfe", None, b"a"))),
        "nan": (kind, form(("text", None, b"a"), ("k", None, b"nan"))),
        "k nan": (kind, form(("text", None, b"a"), ("k", None, b"nan"))),
        "k of many digits": (kind, form(("text", None, b"a"), ("k", None, b"9" * 10_000))),
        "k with an underline": (kind, form(("text", None, b"a"), ("k", None, b"1_0"))),
        "arabic digits": (kind, form(("text", None, b"a"), ("k", None, "٣".encode()))),
        "metadata that is no json": (kind, form(("text", None, b"a"), ("metadata", None, b"{"))),
        "encoded part": (
            kind,
            b"--XyZ\r\nContent-Disposition: form-data; name=text\r\nContent-Transfer-Encoding: base64\r\n\r\n"
            b"YQ==\r\n--XyZ--\r\n",
        ),
        "rfc 2231 name": (
            kind,
            b"--XyZ\r\nContent-Disposition: form-data; name=image; filename*=UTF-8''%2e%2e%2fx.png\r\n\r\n"
            + image
            + b"\r\n--XyZ--\r\n",
        ),
        "nested": (kind, form(("image", "x", form(("text", None, b"a"), boundary="XyZa")))),
        "json": (kind, b'{"text": "a"}'),
    }
    return bodies | found


CONTENT_TYPES = (
    *(
        "",
        "text/plain",
        "text/html",
        "application/x-www-form-urlencoded",
        "application/xml",
        "application/octet-stream",
    ),
    *(
        "image/png",
        "application/json; charset=utf-16",
        "APPLICATION/JSON",
        "application/json\t;;;",
        "json",
        "*/*",
        ",",
        ";",
    ),
    *("application/x-python-pickle", "application/msgpack", "multipart/mixed; boundary=XyZ", "x" * 2_000),
)


# Names and conditions

STRANGE_IDS = (
    *(
        "../../etc/passwd",
        "..\\..\\windows\\win.ini",
        "/etc/passwd",
        "//etc/passwd",
        "file:///etc/passwd",
        "~root",
        ".",
    ),
    *(
        "....//....//etc/passwd",
        "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "..%00/",
        "..;/",
        "http://127.0.0.1/x",
        "\\\\host\\x",
    ),
    *(
        "a\0b",
        "a\nb",
        "a\r\nSet-Cookie: x=1",
        "a b",
        " ",
        "\u202egnp.exe",
        "\ufeff",
        "é",
        "e\u0301",
        "\U0001f600",
        "NULL",
    ),
    *("' OR '1'='1", "'; DROP TABLE items; --", '"', "`", "${jndi:ldap://x}", "{{7*7}}", "<script>alert(1)</script>"),
    *("CON", "aux.txt", "items.lance", "write.lock", "-rf", "*", "?", "#", "%", "&index=x", "con/../con", "x" * 512),
    *("x" * 513, "x" * 8_000, "é" * 512, "/" * 100, "../" * 100 + "etc/shadow", "..", "items.lance/../../escaped"),
)

CONDITIONS = (
    *(
        "'",
        '"',
        "`",
        "--",
        ";",
        "(",
        ")",
        "()",
        "1",
        "1=1",
        "TRUE",
        "NULL",
        "id",
        "id =",
        "= 'a'",
        "id = 'a",
        "id == ='a'",
    ),
    *(
        "id = 'a'; DROP TABLE items",
        "id = 'a' UNION SELECT * FROM items",
        "id IN (SELECT id FROM items)",
        "EXISTS(SELECT 1)",
    ),
    *("pg_sleep(10)", "sleep(10) = 0", "load_extension('x')", "read_csv('/etc/passwd')", "now() > 0", "random() < 1"),
    *(
        "_rowid > 0",
        "_rowaddr = 1",
        "codes IS NOT NULL",
        "embedding IS NULL",
        "vector[0] > 0",
        "number / 0 = 1",
        "id[1] = 'a'",
    ),
    *(
        "number % 0 = 1",
        "number = 1e999",
        "number = NaN",
        "number = 99999999999999999999999999",
        "number = 'abc'",
        "-number = 1",
    ),
    *(
        "CAST('x' AS INT) = 1",
        "cast(number as text) like '%'",
        "text LIKE '" + "%a" * 60 + "'",
        "text LIKE '" + "_" * 101 + "'",
    ),
    *(
        "id = '" + "x" * 10_001 + "'",
        " OR ".join(["number = 1"] * 400),
        "(" * 500 + "number = 1" + ")" * 500,
        "NOT " * 400 + "TRUE",
    ),
    *(
        "number = 1 AND " * 20 + "number = 1",
        "number IN (" + ",".join(map(str, range(2_000))) + ")",
        "id = 'a\0b'",
        "\0",
        "   ",
    ),
    *(
        "id = '\u2019'",
        "id = \u2018a\u2019",
        "ïd = 'a'",
        "метка = 1",
        "@@version = 1",
        "id = $1",
        "id = ?",
        "id = :x",
        "a.b.c = 1",
    ),
    *(
        "metadata LIKE '%\"x\"%'",
        "metadata->>'x' = '1'",
        "json_extract(metadata, '$') = 1",
        "CASE WHEN 1=1 THEN TRUE END",
    ),
    *(
        "lower(text) = 'a'",
        "length(text) > 99999999999999999999",
        "text ~ '(a+)+$'",
        "regexp_match(text, '(a|a)*$')",
        "text SIMILAR TO 'a'",
    ),
    *(
        "repeat('a', 1000000000) = text",
        "lpad('a', 2000000000) = text",
        "date '2020-01-01' > 1",
        "interval '1' day > 1",
        "x'ff' = text",
    ),
    *(
        "number BETWEEN 1",
        "number IS",
        "number IN ()",
        "id LIKE 'a' ESCAPE ''",
        "id LIKE '\\'",
        "id ILIKE '%A%'",
        "number = 0x10",
        "1;1",
    ),
)


# Not quite HTTP


def raw_requests() -> dict[str, bytes]:
    """Bytes for a connection. Whatever the answer, it must come or the connection must end, and others be served."""
    host = b"Host: 127.0.0.1\r\n"
    post = b"POST /v1/search HTTP/1.1\r\n" + host + b"Content-Type: application/json\r\n"
    good = post + b'Content-Length: 13\r\n\r\n{"text": "a"}'
    return {
        "nothing": b"",
        "blank lines": b"\r\n" * 100,
        "http 0.9": b"GET /\r\n",
        "http 1.0": b"GET /healthz HTTP/1.0\r\n\r\n",
        "http 2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "http 3.7": b"GET / HTTP/3.7\r\n" + host + b"\r\n",
        "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        "ssh": b"SSH-2.0-OpenSSH_9.0\r\n",
        "zeros": bytes(10_000),
        "noise": random.Random(1).randbytes(10_000),
        "no host": b"GET /healthz HTTP/1.1\r\n\r\n",
        "two hosts": b"GET /healthz HTTP/1.1\r\n" + host + b"Host: example.com\r\n\r\n",
        "another host": b"GET /healthz HTTP/1.1\r\nHost: example.com\r\n\r\n",
        "absolute": b"GET http://169.254.169.254/ HTTP/1.1\r\n" + host + b"\r\n",
        "connect": b"CONNECT 127.0.0.1:22 HTTP/1.1\r\n" + host + b"\r\n",
        "options": b"OPTIONS * HTTP/1.1\r\n" + host + b"\r\n",
        "trace": b"TRACE / HTTP/1.1\r\n" + host + b"\r\n",
        "unknown method": b"FROBNICATE / HTTP/1.1\r\n" + host + b"\r\n",
        "small letters": b"get / http/1.1\r\n" + host + b"\r\n",
        "bare line feeds": b"GET /healthz HTTP/1.1\nHost: 127.0.0.1\n\n",
        "long address": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n" + host + b"\r\n",
        "long query": b"GET /healthz?" + b"a=b&" * 30_000 + b" HTTP/1.1\r\n" + host + b"\r\n",
        "many headers": b"GET /healthz HTTP/1.1\r\n" + host + b"X: y\r\n" * 20_000 + b"\r\n",
        "long header": b"GET /healthz HTTP/1.1\r\n" + host + b"X: " + b"y" * 200_000 + b"\r\n\r\n",
        "endless header": b"GET /healthz HTTP/1.1\r\n" + host + b"X: " + b"y" * 300_000,
        "folded header": b"GET /healthz HTTP/1.1\r\n" + host + b"X: a\r\n b\r\n\r\n",
        "nul in a header": b"GET /healthz HTTP/1.1\r\n" + host + b"X: a\0b\r\n\r\n",
        "space before the colon": b"GET /healthz HTTP/1.1\r\nHost : 127.0.0.1\r\n\r\n",
        "no colon": b"GET /healthz HTTP/1.1\r\n" + host + b"nonsense\r\n\r\n",
        "odd path": b"GET /%00%ff%zz\x80\xff HTTP/1.1\r\n" + host + b"\r\n",
        "bare path": b"GET healthz HTTP/1.1\r\n" + host + b"\r\n",
        "dots": b"GET /page/../../../../etc/passwd HTTP/1.1\r\n" + host + b"\r\n",
        "encoded dots": b"GET /page/%2e%2e/%2e%2e/%2e%2e/etc/passwd HTTP/1.1\r\n" + host + b"\r\n",
        "double encoded dots": b"GET /page/%252e%252e%252fsettings.py HTTP/1.1\r\n" + host + b"\r\n",
        "backslashes": b"GET /page/..\\..\\settings.py HTTP/1.1\r\n" + host + b"\r\n",
        "page of nul": b"GET /page/%00 HTTP/1.1\r\n" + host + b"\r\n",
        "long page": b"GET /page/" + b"a" * 5_000 + b" HTTP/1.1\r\n" + host + b"\r\n",
        "fragment": b"GET /healthz#x HTTP/1.1\r\n" + host + b"\r\n",
        "get with a body": b"GET /healthz HTTP/1.1\r\n" + host + b"Content-Length: 5\r\n\r\nhello",
        "no length": post + b'\r\n{"text": "a"}',
        "negative length": post + b'Content-Length: -1\r\n\r\n{"text": "a"}',
        "huge length": post + b'Content-Length: 99999999999999999999999\r\n\r\n{"text": "a"}',
        "large length": post + b'Content-Length: 1099511627776\r\n\r\n{"text": "a"}',
        "two lengths": post + b'Content-Length: 13\r\nContent-Length: 5\r\n\r\n{"text": "a"}',
        "length with a plus": post + b'Content-Length: +13\r\n\r\n{"text": "a"}',
        "length in hexadecimals": post + b'Content-Length: 0xd\r\n\r\n{"text": "a"}',
        "length and chunks": post
        + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        "odd coding": post + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "unknown coding": post + b"Transfer-Encoding: x\r\n\r\n",
        "chunks": post + b'Transfer-Encoding: chunked\r\n\r\nd\r\n{"text": "a"}\r\n0\r\n\r\n',
        "chunk too long": post + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{",
        "chunk size that is none": post + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n{",
        "chunk extensions": post + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"a=b;" * 30_000 + b"\r\n{\r\n0\r\n\r\n",
        "trailers": post
        + b'Transfer-Encoding: chunked\r\n\r\nd\r\n{"text": "a"}\r\n0\r\n'
        + b"X: y\r\n" * 9_000
        + b"\r\n",
        "small chunks": post
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + b"1\r\n \r\n" * 20_000
        + b'd\r\n{"text": "a"}\r\n0\r\n\r\n',
        "expect": post + b'Content-Length: 13\r\nExpect: 100-continue\r\n\r\n{"text": "a"}',
        "odd expect": post + b'Content-Length: 13\r\nExpect: cake\r\n\r\n{"text": "a"}',
        "expect too much": post + b"Content-Length: 90000000\r\nExpect: 100-continue\r\n\r\n",
        "gzip": post + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00",
        "websocket": b"GET /v1/search HTTP/1.1\r\n" + host + b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n",
        "h2c": b"GET / HTTP/1.1\r\n"
        + host
        + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n",
        "pipelined": good * 20,
        "pipelined garbage": good + random.Random(2).randbytes(3_000),
        "pipelined after a refusal": b"GET /nowhere HTTP/1.1\r\n" + host + b"\r\n" + good,
        "surplus body": good + b"surplus",
        "another origin": post + b'Origin: http://evil.example\r\nContent-Length: 13\r\n\r\n{"text": "a"}',
        "method override": b"GET /v1/items/x HTTP/1.1\r\n" + host + b"X-HTTP-Method-Override: DELETE\r\n\r\n",
        "forwarded": b"GET /healthz HTTP/1.1\r\n"
        + host
        + b'X-Forwarded-For: 1.2.3.4, 999\r\nForwarded: for="_x"\r\n\r\n',
        "range": b"GET / HTTP/1.1\r\n" + host + b"Range: bytes=" + b"0-," * 5_000 + b"\r\n\r\n",
        "authorization": b"GET /v1/indexes HTTP/1.1\r\n" + host + b"Authorization: Bearer \xff\xfe\r\n\r\n",
        "conditional": b"GET / HTTP/1.1\r\n"
        + host
        + b"If-None-Match: "
        + b'"x",' * 5_000
        + b"\r\nIf-Modified-Since: never\r\n\r\n",
        "accept": b"GET / HTTP/1.1\r\n"
        + host
        + b"Accept: "
        + b"a/b;q=1," * 5_000
        + b"\r\nAccept-Encoding: \xff\r\n\r\n",
    }
