"""Image preprocessing of CLIP and SigLIP: resize, crop and scale, as `preprocessor_config.json` of a model says.

Equal to the PIL-based image processors of `transformers`, without needing them or torchvision.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from genius.errors import BadModel

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)
LARGEST = 16_000_000
"""Maximum pixels of a resized image before it is cropped. At 512 pixels, an image of 1 x 200 would need 52 million."""

# Defaults of the image processors of the three families.
DEFAULTS: dict[str, dict[str, Any]] = {
    "clip": {
        "size": {"shortest_edge": 224},
        "do_center_crop": True,
        "crop_size": 224,
        "image_mean": CLIP_MEAN,
        "image_std": CLIP_STD,
    },
    "siglip": {"size": {"height": 224, "width": 224}, "image_mean": HALF, "image_std": HALF},
    "siglip2": {"patch_size": 16, "max_num_patches": 256, "resample": 2, "image_mean": HALF, "image_std": HALF},
}
FAMILY_OF = {"CLIP": "clip", "Siglip": "siglip", "Siglip2": "siglip2"}


@dataclass(frozen=True)
class ImageTransform:
    """How an image becomes pixels. Values v become (v * scale - mean) / std."""

    shortest: int | None = None  # shorter edge after resizing; proportions are kept
    size: tuple[int, int] | None = None  # (height, width) after resizing; proportions are not kept
    crop: tuple[int, int] | None = None  # (height, width) cut from the centre
    patches: int | None = None  # maximum number of patches; resized to about its own proportions, not cropped
    patch: int = 16  # pixels of a patch's edge
    resample: int = int(Image.Resampling.BICUBIC)
    scale: float = 1 / 255
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)

    @classmethod
    def from_processor(cls, stored: dict[str, Any], family: str) -> "ImageTransform":
        """Read the contents of `preprocessor_config.json`. family: "clip", "siglip" or "siglip2"."""
        name = str(stored.get("image_processor_type") or stored.get("feature_extractor_type") or "")
        family = FAMILY_OF.get(name.removesuffix("Fast").removesuffix("ImageProcessor"), family)
        given = DEFAULTS[family] | {key: value for key, value in stored.items() if value is not None}
        fields: dict[str, Any] = {"resample": int(given.get("resample", Image.Resampling.BICUBIC))}
        if family == "siglip2":
            fields |= {"patches": int(given["max_num_patches"]), "patch": int(given["patch_size"])}
        elif given.get("do_resize", True):
            fields |= _resizing(given["size"], square=family == "siglip")
        if given.get("do_center_crop", False):
            fields["crop"] = _pair(given["crop_size"])
        fields["scale"] = float(given.get("rescale_factor", 1 / 255)) if given.get("do_rescale", True) else 1.0
        if given.get("do_normalize", True):
            fields |= {"mean": _triple(given["image_mean"]), "std": _triple(given["image_std"])}
        return cls(**fields)

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> "ImageTransform":
        """Read the form of `to_dict`, where JSON may have made lists of tuples."""
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in stored.items()}
        return cls(**fields)

    def to_dict(self) -> dict[str, Any]:
        """The fields, as stored in a model's configuration."""
        return asdict(self)

    @property
    def shape(self) -> tuple[int, int] | None:
        """(height, width) of all transformed images, or None if it depends on the image."""
        return self.crop or self.size

    def pixels(self, image: Image.Image) -> np.ndarray:
        """Resize and crop an RGB image: (height, width, 3) uint8, not yet scaled."""
        width, height = image.size
        if self.patches is not None:
            rows, columns = patch_grid(height, width, self.patch, self.patches)
            return _resized(image, rows * self.patch, columns * self.patch, self.resample)
        if self.size is not None:
            height, width = self.size
        elif self.shortest is not None:
            longest = int(self.shortest * max(width, height) / min(width, height))
            height, width = (longest, self.shortest) if width <= height else (self.shortest, longest)
        if self.crop is None:
            return _resized(image, height, width, self.resample)
        if height * width > LARGEST:
            return _resized_middle(image, height, width, self.crop, self.resample)
        return _cropped(_resized(image, height, width, self.resample), *self.crop)

    def values(self, pixels: Tensor) -> Tensor:
        """Scale and normalise: (..., 3) uint8 -> the same shape in float32."""
        mean, std = (_on_device(given, pixels.device) for given in (self.mean, self.std))
        return (pixels.float() * self.scale - mean) / std

    def patch_values(self, pixels: np.ndarray) -> tuple[Tensor, tuple[int, int]]:
        """One image as (patches, patch * patch * 3) float32, and its (rows, columns) of patches."""
        side = self.patch
        rows, columns = pixels.shape[0] // side, pixels.shape[1] // side
        values = self.values(torch.from_numpy(pixels)).view(rows, side, columns, side, 3)
        return values.transpose(1, 2).reshape(rows * columns, side * side * 3), (rows, columns)


@lru_cache
def _on_device(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Kept: a copy in every batch would make the CPU wait for the GPU."""
    with torch.inference_mode(False):
        return torch.tensor(values, device=device)


def patch_grid(height: int, width: int, patch: int, most: int) -> tuple[int, int]:
    """(rows, columns) of the largest grid of at most `most` patches in about the image's proportions.

    Bisection with the bounds and the precision of the published preprocessing: the exact optimum would sometimes have
    one row more.
    """

    def grid(scale: float) -> tuple[int, int]:
        return max(1, math.ceil(height * scale / patch)), max(1, math.ceil(width * scale / patch))

    low, high = 1e-6, 100.0
    while high - low >= 1e-5:
        middle = (low + high) / 2
        rows, columns = grid(middle)
        low, high = (middle, high) if rows * columns <= most else (low, middle)
    return grid(low)


def _resized(image: Image.Image, height: int, width: int, resample: int) -> np.ndarray:
    return np.array(image.resize((width, height), Image.Resampling(resample)))


def _cropped(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """The centre (height, width), padded with black where the image is smaller."""
    above, left = pixels.shape[0] - height, pixels.shape[1] - width
    if above < 0 or left < 0:
        edges = [(-(gap // 2), -gap + gap // 2) if gap < 0 else (0, 0) for gap in (above, left)]
        pixels = np.pad(pixels, [*edges, (0, 0)])
        above, left = max(above, 0), max(left, 0)
    return pixels[above // 2 : above // 2 + height, left // 2 : left // 2 + width]


def _resized_middle(image: Image.Image, height: int, width: int, crop: tuple[int, int], resample: int) -> np.ndarray:
    """Resize and crop in one step, for images that would be huge in between. Edges may differ by a rounding."""
    rows, columns = min(crop[0], height), min(crop[1], width)
    top, left = (height - rows) // 2 * image.height / height, (width - columns) // 2 * image.width / width
    bottom, right = top + rows * image.height / height, left + columns * image.width / width
    box = (left, top, min(right, image.width), min(bottom, image.height))
    return _cropped(np.array(image.resize((columns, rows), Image.Resampling(resample), box=box)), *crop)


def _resizing(size: Any, square: bool) -> dict[str, Any]:
    if isinstance(size, int | float):
        return {"size": (int(size), int(size))} if square else {"shortest": int(size)}
    if set(size) == {"shortest_edge"}:
        return {"shortest": int(size["shortest_edge"])}
    return {"size": _pair(size)}


def _pair(size: Any) -> tuple[int, int]:
    if isinstance(size, int | float):
        return int(size), int(size)
    if not isinstance(size, dict) or not {"height", "width"} <= set(size):
        raise BadModel(f"The model's preprocessor_config.json has an unknown form of image size: {size!r}.")
    return int(size["height"]), int(size["width"])


def _triple(values: float | Sequence[float]) -> tuple[float, ...]:
    if isinstance(values, int | float):
        return (float(values),) * 3
    return tuple(float(value) for value in values)
