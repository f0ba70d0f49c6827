"""The ONNX graph of the image backbone against the same network in torch."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from PIL import Image
from torch_backbones import efficientnet_features

from genius.encoders.efficientnet import BATCH, EfficientNetLite2, to_pixels

Features = tuple[np.ndarray, np.ndarray, np.ndarray]


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    """Noise of many scales and brightnesses, one more image than a batch."""
    rng = np.random.default_rng(0)
    images = []
    for number in range(BATCH + 1):
        side = int(rng.integers(2, 224))
        noise = rng.integers(0, 40 + 12 * number, (side, side, 3)).astype(np.uint8)
        images.append(to_pixels(Image.fromarray(noise)))
    return np.stack(images)


@pytest.fixture(scope="module")
def by_torch(pixels: np.ndarray) -> Features:
    grid, pooled, logits = efficientnet_features(torch.from_numpy(pixels))
    return grid.numpy(), pooled.numpy(), logits.numpy()


def close(ours: Features, theirs: Features, rows: slice) -> Iterator[bool]:
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == np.float32
        assert mine.shape == other[rows].shape
        yield np.abs(mine - other[rows]).max() < 1e-5 * max(1, np.abs(other).max())


def test_the_graph_is_the_network(efficientnet: EfficientNetLite2, pixels: np.ndarray, by_torch: Features) -> None:
    assert by_torch[0].shape == (BATCH + 1, 352, 49)
    assert all(close(efficientnet.features(pixels), by_torch, slice(None)))


@pytest.mark.parametrize("rows", [slice(0, 1), slice(2, 5), slice(9, 16)])
def test_odd_batches_give_the_same(
    efficientnet: EfficientNetLite2, pixels: np.ndarray, by_torch: Features, rows: slice
) -> None:
    assert all(close(efficientnet.features(pixels[rows]), by_torch, rows))


def test_pixels_are_the_whole_image_at_one_size() -> None:
    """The left half is black and the right half white, whatever the image's shape was."""
    for size in ((50, 400), (640, 480), (1, 2), (224, 224)):
        image = Image.new("RGB", size)
        image.paste("white", (size[0] // 2, 0, *size))
        pixels = to_pixels(image)
        assert (pixels.shape, pixels.dtype) == ((224, 224, 3), np.uint8)
        if size[0] > 1:
            assert pixels[:, :100].max() == 0
            assert pixels[:, 124:].min() == 255


def test_a_image_of_the_right_size_is_left_alone() -> None:
    noise = np.random.default_rng(1).integers(0, 256, (224, 224, 3)).astype(np.uint8)
    np.testing.assert_array_equal(to_pixels(Image.fromarray(noise)), noise)
