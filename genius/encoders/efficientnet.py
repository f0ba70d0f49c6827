"""EfficientNet-Lite2 as a frozen image backbone: images -> features.

The ONNX graph is built here from the weights that come with the package, whose batch norms are folded into the
convolutions.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto
from PIL import Image

from genius.encoders.backbone_files import FOLDER, BackboneWeights
from genius.runtime.onnx_graph import Graph, Inputs, Shape

WEIGHTS = FOLDER / "efficientnet_lite2.safetensors"
SIZE = 224
GRID = 7 * 7
CHANNELS = 352  # of the last feature map
POOLED = 1280
CLASSES = 1000
BLOCKS = 21
HALVING = (1, 4, 7, 15)  # blocks of stride 2
BATCH = 16
PIXELS: Inputs = {"pixels": (np.uint8, ["n", SIZE, SIZE, 3])}


def to_pixels(image: Image.Image) -> np.ndarray:
    """Resize an RGB image to the network's input, (224, 224, 3) uint8, without cropping or keeping its proportions."""
    if image.size != (SIZE, SIZE):
        image = image.resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    return np.asarray(image, dtype=np.uint8)


class Features(NamedTuple):
    """Names of the features in a graph."""

    map: str  # (n, 352, 49)
    pooled: str  # (n, 1280)
    logits: str  # (n, 1000)


def write_features(g: Graph, weights: BackboneWeights) -> Features:
    """Pixels (n, 224, 224, 3) uint8 -> features, float32."""

    def conv(x: str, name: str, stride: int = 1, clip: bool = True) -> str:
        """A convolution, followed by ReLU6 if `clip`."""
        weight, bias = weights.floats(f"{name}.weight"), weights.floats(f"{name}.bias")
        group = len(weight) if name.endswith("depthwise") else 1
        shape: dict[str, Any] = {"auto_pad": "SAME_UPPER", "strides": [stride, stride], "group": group}
        x = g.node("Conv", x, g.constant(weight), g.constant(bias), **shape)
        return g.node("Clip", x, g.constant(np.float32(0)), g.constant(np.float32(6))) if clip else x

    x = g.node("Transpose", g.node("Cast", "pixels", to=TensorProto.FLOAT), perm=[0, 3, 1, 2])
    x = g.node("Mul", g.node("Sub", x, g.constant(np.float32(127))), g.constant(np.float32(1 / 128)))
    x = conv(x, "stem", stride=2)
    channels = len(weights["stem.weight"])
    for block in range(BLOCKS):
        start, before, at = x, channels, f"blocks.{block}."
        stride = 2 if block in HALVING else 1
        if block:  # the first block does not expand
            x = conv(x, f"{at}expand")
        x = conv(conv(x, f"{at}depthwise", stride), f"{at}project", clip=False)
        channels = len(weights[f"{at}project.weight"])
        if stride == 1 and channels == before:
            x = g.node("Add", x, start)
    grid = g.reshape(x, 0, CHANNELS, GRID)
    pooled = g.node("Flatten", g.node("GlobalAveragePool", conv(x, "head")))
    weight, bias = weights.floats("classes.weight"), weights.floats("classes.bias")
    logits = g.node("Gemm", pooled, g.constant(weight), g.constant(bias), transB=1)
    return Features(grid, pooled, logits)


class EfficientNetLite2:
    """The backbone without a head: what training caches. threads: number of cores to use."""

    def __init__(self, threads: int) -> None:
        g = Graph()
        names = write_features(g, BackboneWeights(WEIGHTS))
        for name, feature in zip(Features._fields, names, strict=True):
            g.node("Identity", feature, output=name)
        shapes: dict[str, Shape] = {"map": ["n", CHANNELS, GRID], "pooled": ["n", POOLED], "logits": ["n", CLASSES]}
        self.session = g.model(PIXELS, shapes).session(threads)

    def features(self, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """pixels: (n, 224, 224, 3) uint8 -> map (n, 352, 49), pooled (n, 1280), logits (n, 1000), float32."""
        parts = [self.session.run(list(Features._fields), {"pixels": part}) for part in batches(pixels)]
        grid, pooled, logits = (np.concatenate(p) for p in zip(*parts, strict=True))
        return grid, pooled, logits


def batches(pixels: np.ndarray) -> Iterator[np.ndarray]:
    """Images in batches that the network takes at once."""
    for start in range(0, len(pixels), BATCH):
        yield pixels[start : start + BATCH]
