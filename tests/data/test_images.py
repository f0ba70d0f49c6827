import io
import struct
import tracemalloc
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from genius.data.image_headers import MAX_PIXELS
from genius.data.images import _MemoryBudget, decoded, image_bytes, load_image, thumbnail
from genius.errors import BadImage

RED, GREEN, WHITE = (255, 0, 0), (0, 255, 0), (255, 255, 255)


def saved(image: Image.Image, format: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def gradient(width: int = 64, height: int = 48) -> Image.Image:
    rows, columns = np.mgrid[0:height, 0:width]
    return Image.fromarray(np.stack([rows * 5, columns * 3, rows + columns], 2).astype(np.uint8))


def png_claiming(width: int, height: int) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 1_000_000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def close(image: Image.Image, colour: tuple[int, int, int], at: tuple[int, int] = (0, 0)) -> bool:
    return bool(np.abs(np.array(image.getpixel(at)) - colour).max() <= 8)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "AVIF", "MPO"])
def test_reads_path_bytes_and_pil_alike(tmp_path, format):
    data = saved(gradient(), format)
    path = tmp_path / "image"
    path.write_bytes(data)
    from_path, from_str, from_bytes = load_image(path), load_image(str(path)), load_image(data)
    from_pil = load_image(Image.open(path))
    for image in (from_path, from_str, from_bytes, from_pil):
        assert image.mode == "RGB"
        assert image.size == (64, 48)
        assert image.tobytes() == from_path.tobytes()
    assert np.abs(np.asarray(from_path, int) - np.asarray(gradient(), int)).mean() < 12


def test_the_callers_image_is_left_alone():
    mine = gradient()
    load_image(mine).putpixel((0, 0), RED)
    assert mine.tobytes() == gradient().tobytes()


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF"])
def test_truncated_image_is_refused_by_name(tmp_path, format):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8))
    data = saved(noise, format)
    path = tmp_path / f"cut.{format.lower()}"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(BadImage, match="damaged") as caught:
        load_image(path)
    assert path.name in str(caught.value)
    with pytest.raises(BadImage, match="damaged"):
        load_image(data[: len(data) // 2])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("zero.jpg", b"", "empty .0 bytes."),
        ("words.png", b"this is no image", "not an image"),
        ("noise.jpg", bytes(range(256)) * 8, "not an image"),
        ("magic.jpg", b"\xff\xd8\xff", "not an image"),
        ("magic.png", b"\x89PNG\r\n\x1a\n", "not an image"),
        ("page.jpg", b"<!DOCTYPE html><html>404</html>", "web page"),
        ("drawing.svg", b'<svg xmlns="http://www.w3.org/2000/svg"/>', "SVG drawings are not supported"),
        ("drawing.png", b'\xef\xbb\xbf<?xml version="1.0"?>\n<svg/>', "SVG drawings are not supported"),
        (
            "photo.heic",
            b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(99),
            "HEIC images are not supported. Convert it to JPEG",
        ),
        ("photo.jpg", b"\0\0\0\x1cftypmif1\0\0\0\0mif1heix" + bytes(99), "HEIC images are not supported"),
        ("damaged.avif", b"\0\0\0\x1cftypmif1\0\0\0\0mif1avif" + bytes(99), "not an image"),
        ("script.eps", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n", "not an image"),
    ],
)
def test_file_that_is_no_image_is_refused_by_name(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(BadImage, match=words) as caught:
        load_image(path)
    assert name in str(caught.value)
    with pytest.raises(BadImage, match=words):
        load_image(content)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("nowhere/at/all.jpg", "no such file"),
        (Path(__file__).parent, "folder, not an image"),
        ("https://example.org/cat.jpg", "not downloaded"),
        ("a\0b.jpg", "cannot be opened|no such file"),
        ("\udc80.jpg", "no such file"),
        (5, "must be a path, bytes or a PIL image"),
    ],
)
def test_source_that_cannot_be_opened_is_refused(source, words):
    with pytest.raises(BadImage, match=words) as caught:
        load_image(source)
    assert str(caught.value).encode()


@pytest.mark.parametrize("size", [(60_000, 60_000), (8_001, 8_000), (10_000, 10_000)])
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_bomb_is_refused_before_decoding(tmp_path, size):
    path = tmp_path / "bomb.png"
    path.write_bytes(png_claiming(*size))
    tracemalloc.start()
    with pytest.raises(BadImage, match="64 megapixels") as caught:
        load_image(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "bomb.png" in str(caught.value)
    assert peak < 5_000_000


def test_pil_image_above_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr("genius.data.image_headers.MAX_PIXELS", 100)
    assert load_image(Image.new("RGB", (10, 10))).size == (10, 10)
    with pytest.raises(BadImage, match="11 x 10 pixels"):
        load_image(Image.new("RGB", (11, 10)))


def test_limit_does_not_depend_on_pils_own(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with pytest.raises(BadImage, match="60000 x 60000 pixels"):
        load_image(png_claiming(60_000, 60_000))
    assert MAX_PIXELS == 64_000_000


@pytest.mark.parametrize("format", ["GIF", "WEBP", "PNG"])
def test_animation_gives_its_first_frame(format):
    frames = [Image.new("RGB", (20, 10), colour) for colour in (RED, GREEN)]
    data = saved(frames[0], format, save_all=True, append_images=frames[1:])
    assert Image.open(io.BytesIO(data)).is_animated
    assert close(load_image(data), RED)
    opened = Image.open(io.BytesIO(data))
    opened.seek(1)
    assert close(load_image(opened), GREEN)  # the caller chose this frame


def test_cmyk_jpeg():
    image = load_image(saved(Image.new("RGB", (16, 16), RED).convert("CMYK"), "JPEG"))
    assert image.mode == "RGB"
    assert close(image, RED)


def test_palette_with_transparency_is_laid_on_white():
    palette_image = Image.new("P", (4, 4), 0)
    palette_image.putpalette([*RED, *GREEN])
    palette_image.putpixel((1, 0), 1)
    image = load_image(saved(palette_image, "PNG", transparency=0))
    assert close(image, WHITE)
    assert close(image, GREEN, at=(1, 0))


@pytest.mark.parametrize("format", ["PNG", "WEBP"])
def test_alpha_is_laid_on_white(format):
    data = saved(Image.new("RGBA", (8, 8), (255, 0, 0, 128)), format)
    assert close(load_image(data), (255, 127, 127))
    assert close(load_image(saved(Image.new("RGBA", (8, 8), (0, 0, 0, 0)), format, exact=True)), WHITE)


def test_grey_with_alpha_and_one_bit():
    assert close(load_image(saved(Image.new("LA", (4, 4), (0, 0)), "PNG")), WHITE)
    assert close(load_image(saved(Image.new("1", (4, 4), 1), "PNG")), WHITE)


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_16_bit_grey_keeps_its_contrast(format):
    ramp = np.linspace(0, 65535, 256).astype(np.uint16).repeat(4).reshape(-1, 4)
    image = load_image(saved(Image.fromarray(ramp), format))
    assert np.abs(np.asarray(image)[:, 0, 0].astype(int) - np.arange(256)).max() <= 1


def test_dark_16_bit_and_float_grey():
    dark = load_image(saved(Image.fromarray(np.full((4, 4), 200, np.uint16)), "PNG"))
    assert close(dark, (1, 1, 1))
    assert close(load_image(Image.fromarray(np.full((4, 4), 200, np.float32))), (200, 200, 200))
    assert close(load_image(Image.fromarray(np.full((4, 4), 32_768, np.int32))), (128, 128, 128))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotation_is_applied(orientation):
    upright = Image.new("RGB", (32, 16), GREEN)
    upright.paste(RED, (0, 0, 16, 8))  # red top left corner
    undo = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = upright.transpose(undo) if undo is not None else upright
    image = load_image(saved(stored, "PNG", exif=exif))
    assert image.size == (32, 16)
    assert image.tobytes() == upright.tobytes()


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF", "MPO"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_rotation_is_that_of_pillow_in_every_format(format, orientation):
    exif = Image.Exif()
    exif[0x010F], exif[0x0112], exif[0x0131] = "maker", orientation, "software"
    data = saved(gradient(), format, exif=exif)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    assert load_image(data).tobytes() == expected.convert("RGB").tobytes()


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize(("kind", "value"), [(1, "B"), (3, "H"), (4, "I")])
def test_rotation_is_read_in_every_byte_order_and_size(order, kind, value):
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "IH", 8, 1)
    entry = struct.pack(order + "HHI" + value, 0x0112, kind, 1, 6).ljust(12, b"\0")
    data = saved(gradient(), "JPEG", exif=b"Exif\0\0" + head + entry + bytes(4))
    assert load_image(data).size == (48, 64)


def test_rotation_in_xmp_is_applied():
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    assert load_image(saved(gradient(), "JPEG", xmp=xmp)).size == (48, 64)


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "PA", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "I;16"])
def test_parts_are_converted_like_the_whole(monkeypatch, mode):
    image = gradient(64, 48)
    if mode in ("I", "F", "I;16"):
        image = Image.fromarray(np.arange(48 * 64, dtype=np.uint16).reshape(48, 64) * 20)
        image = image if mode == "I;16" else image.convert(mode)
    elif mode in ("RGBA", "LA", "PA"):
        image.putalpha(Image.linear_gradient("L").resize(image.size))
        image = image.convert(mode)
    else:
        image = image.convert(mode)
    whole = load_image(image)
    monkeypatch.setattr("genius.data.images.BAND", 64 * 5)
    assert load_image(image).tobytes() == whole.tobytes()
    assert len(whole.getcolors(10_000)) > 1


def test_memory_of_images_that_are_decoded_together_is_limited(monkeypatch):
    budget = _MemoryBudget(limit=8 * 100 * 100 * 2)  # two of the images below
    monkeypatch.setattr("genius.data.images._DECODING", budget)
    data, used = saved(Image.new("RGB", (100, 100)), "PNG"), []

    def decode(_: int) -> None:
        with decoded(data):
            used.append(budget.used)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(decode, range(40)))
    assert len(used) == 40
    assert max(used) <= budget.limit
    assert budget.used == 0
    with pytest.raises(BadImage), decoded(data[:60]):
        pass
    assert budget.used == 0
    assert load_image(saved(Image.new("RGB", (300, 300)), "PNG")).size == (300, 300)  # larger than the limit


def test_a_thumbnail_of_a_large_jpeg_needs_a_fraction_of_its_pixels():
    data = saved(gradient(1600, 1200), "JPEG")
    with decoded(data, side=64) as small:
        assert small.size == (200, 150)
    with decoded(data) as whole:
        assert whole.size == (1600, 1200)
    assert max(Image.open(io.BytesIO(thumbnail(data, 64))).size) == 64


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_broken_exif_does_not_matter():
    image = load_image(saved(gradient(), "JPEG", exif=b"Exif\0\0II*\0garbage"))
    assert image.size == (64, 48)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
@pytest.mark.filterwarnings("ignore")
def test_damaged_bytes_give_a_image_or_bad_image_and_nothing_else(format):
    good, random = saved(gradient(), format), np.random.default_rng(0)
    outcomes = set()
    for _ in range(200):
        data = bytearray(good)
        start = random.integers(0, min(len(data), 400))
        for place in random.integers(start, min(len(data), start + 40), random.integers(1, 9)):
            data[place] = random.integers(0, 256)
        try:
            outcomes.add(load_image(bytes(data)).mode)
        except BadImage as error:
            outcomes.add(str(error).partition(":")[0])
    assert outcomes == {"RGB", "the image (bytes)"}


def test_file_is_closed_again(tmp_path, recwarn):
    path = tmp_path / "a.png"
    path.write_bytes(saved(gradient(), "PNG"))
    for _ in range(50):
        load_image(path)
    assert not [warning for warning in recwarn if warning.category is ResourceWarning]


def test_a_jpeg_of_very_many_scans_is_refused_before_it_is_decoded():
    whole = saved(Image.new("L", (64, 64), 128), "JPEG", progressive=True)
    last = whole.rindex(b"\xff\xda")
    load_image(whole[:-2] + whole[last:-2] * 50 + whole[-2:])
    with pytest.raises(BadImage, match="more than 100 scans"):
        load_image(whole[:-2] + whole[last:-2] * 200 + whole[-2:])


def test_a_huge_file_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("genius.data.images.MAX_BYTES", 1 << 10)
    (tmp_path / "film.jpg").write_bytes(b"\xff\xd8\xff" + bytes(1 << 10))
    with pytest.raises(BadImage, match=r"film.jpg: the file is larger than"):
        load_image(tmp_path / "film.jpg")


def test_the_bytes_of_an_image_are_those_of_its_file(tmp_path):
    data = saved(gradient(), "JPEG")
    (tmp_path / "a.jpg").write_bytes(data)
    assert image_bytes(tmp_path / "a.jpg") == image_bytes(str(tmp_path / "a.jpg")) == image_bytes(data) == data
    assert load_image(image_bytes(gradient())).tobytes() == gradient().tobytes()


def test_bytes_are_called_by_the_given_name():
    with pytest.raises(BadImage, match=r"^cat.jpg: the file is empty"):
        load_image(b"", "cat.jpg")
