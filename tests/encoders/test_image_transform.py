"""Images, framed as the image processors of `transformers` frame them."""

import io
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from genius.data.images import load_image
from genius.encoders.image_transform import LARGEST, ImageTransform, patch_grid
from genius.errors import BadModel

PROCESSORS: dict[str, tuple[str, Any]] = {
    "clip": ("clip", transformers.CLIPImageProcessorPil()),
    "clip, odd": ("clip", transformers.CLIPImageProcessorPil(size={"shortest_edge": 37}, crop_size=31)),
    "clip, crop beyond the image": (
        "clip",
        transformers.CLIPImageProcessorPil(size={"shortest_edge": 20}, crop_size=33),
    ),
    "clip, bilinear and square": (
        "clip",
        transformers.CLIPImageProcessorPil(size={"height": 50, "width": 50}, resample=2),
    ),
    "siglip": ("siglip", transformers.SiglipImageProcessorPil()),
    "siglip, own mean": (
        "siglip",
        transformers.SiglipImageProcessorPil(image_mean=[0.1, 0.2, 0.3], image_std=[0.3] * 3),
    ),
    "siglip, values as they are": (
        "siglip",
        transformers.SiglipImageProcessorPil(do_rescale=False, do_normalize=False),
    ),
}
SIZES = [(1, 1), (3, 500), (500, 3), (224, 224), (225, 223), (97, 311), (640, 480), (30, 30)]


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """Smooth enough to be an image, rough enough to show a wrong filter."""
    rng = np.random.default_rng([seed, width, height])
    return Image.fromarray(rng.integers(0, 256, (height, width, 3)).astype(np.uint8))


def kinds() -> dict[str, Image.Image | bytes]:
    """Images of the modes and notes that go wrong most often."""
    photo = noise(61, 45)
    turned = io.BytesIO()
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    photo.save(turned, "JPEG", exif=exif)
    ink = io.BytesIO()
    photo.convert("CMYK").save(ink, "JPEG")
    return {
        "palette": photo.quantize(32),
        "grey": photo.convert("L"),
        "black and white": photo.convert("1"),
        "turned": turned.getvalue(),
        "ink": ink.getvalue(),
    }


def transformed(transform: ImageTransform, image: Image.Image) -> np.ndarray:
    """(3, height, width) float32, as a processor returns it."""
    return transform.values(torch.from_numpy(transform.pixels(image))).permute(2, 0, 1).numpy()


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("size", SIZES)
def test_any_size_is_framed_as_by_the_processor(name: str, size: tuple[int, int]) -> None:
    family, processor = PROCESSORS[name]
    transform = ImageTransform.from_processor(processor.to_dict(), family)
    image = noise(*size)
    expected = np.asarray(processor(image)["pixel_values"][0])
    np.testing.assert_allclose(transformed(transform, image), expected, atol=1e-3)
    assert transform.shape == expected.shape[1:]


@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_any_kind_of_image_is_framed_as_by_the_processor(name: str, kind: str) -> None:
    family, processor = PROCESSORS[name]
    given = kinds()[kind]
    # The processor does not turn a photo upright, so it is given one that was turned.
    other = Image.open(io.BytesIO(given)) if isinstance(given, bytes) else given
    upright = other.transpose(Image.Transpose.ROTATE_270) if kind == "turned" else other
    expected = np.asarray(processor(upright)["pixel_values"][0])
    transform = ImageTransform.from_processor(processor.to_dict(), family)
    np.testing.assert_allclose(transformed(transform, load_image(given)), expected, atol=1e-3)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("patches", [(16, 256), (4, 16), (14, 100)])
def test_patches_are_those_of_the_processor(size: tuple[int, int], patches: tuple[int, int]) -> None:
    processor = transformers.Siglip2ImageProcessorPil(patch_size=patches[0], max_num_patches=patches[1])
    transform = ImageTransform.from_processor(processor.to_dict(), "siglip2")
    image = noise(*size)
    expected = processor(image)
    values, shape = transform.patch_values(transform.pixels(image))
    assert shape == tuple(np.asarray(expected["spatial_shapes"][0]))
    assert len(values) == np.asarray(expected["pixel_attention_mask"][0]).sum() <= patches[1]
    np.testing.assert_allclose(values, np.asarray(expected["pixel_values"][0])[: len(values)], atol=1e-3)


def test_a_grid_has_at_least_one_patch_each_way_and_never_too_many() -> None:
    for height, width in [(1, 10_000), (10_000, 1), (1, 1), (333, 777)]:
        rows, columns = patch_grid(height, width, 16, 64)
        assert rows >= 1
        assert columns >= 1
        assert rows * columns <= 64


def test_a_ribbon_does_not_fill_the_memory() -> None:
    transform = ImageTransform.from_processor({}, "clip")
    ribbon = Image.fromarray(np.linspace(0, 255, 3 * 9000).reshape(9000, 1, 3).astype(np.uint8))
    assert transform.shortest is not None
    assert transform.shortest**2 * 9000 > LARGEST
    out = transform.pixels(ribbon)
    assert out.shape == (224, 224, 3)
    assert np.abs(out.astype(int) - np.asarray(ribbon)[4499:4501].mean()).max() <= 2  # the middle


def test_old_files_give_sizes_as_bare_numbers() -> None:
    old = {"size": 336, "crop_size": 336, "resample": 3, "feature_extractor_type": "CLIPFeatureExtractor"}
    new = {
        "size": {"shortest_edge": 336},
        "crop_size": {"height": 336, "width": 336},
        "image_processor_type": "CLIPImageProcessor",
    }
    assert ImageTransform.from_processor(old, "clip") == ImageTransform.from_processor(new, "clip")
    assert ImageTransform.from_processor(old, "clip").shape == (336, 336)


def test_an_image_transform_survives_json() -> None:
    for family in ("clip", "siglip", "siglip2"):
        transform = ImageTransform.from_processor({}, family)
        stored = {key: list(v) if isinstance(v, tuple) else v for key, v in transform.to_dict().items()}
        assert ImageTransform.from_dict(stored) == transform


def test_a_size_nobody_understands_is_named() -> None:
    with pytest.raises(BadModel, match="longest_edge"):
        ImageTransform.from_processor({"size": {"longest_edge": 7}}, "clip")
