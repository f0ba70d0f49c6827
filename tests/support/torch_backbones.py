"""The backbones of `mini` in torch, from the files of the package: what the ONNX graphs are compared with."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from genius.encoders import efficientnet, minilm
from genius.encoders.backbone_files import BackboneWeights

BERT_NAMES = {
    "attended": "attention.output.dense",
    "norm_1": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "norm_2": "output.LayerNorm",
}


def bert() -> nn.Module:
    """MiniLM as a model of `transformers`."""
    weights = BackboneWeights(minilm.WEIGHTS)
    words = weights.floats("words") * weights["words.scale"]
    shape = {"hidden_size": minilm.WIDTH, "num_hidden_layers": minilm.LAYERS, "num_attention_heads": minilm.HEADS}
    config = BertConfig(
        vocab_size=len(words),
        intermediate_size=4 * minilm.WIDTH,
        max_position_embeddings=minilm.MAX_TOKENS,
        layer_norm_eps=1e-12,
        **shape,
    )
    model = BertModel(config, add_pooling_layer=False)
    state = {
        "embeddings.word_embeddings.weight": words,
        "embeddings.position_embeddings.weight": weights.floats("positions"),
        "embeddings.token_type_embeddings.weight": 0 * words[:2],  # part of the positions
    }
    for kind in ("weight", "bias"):
        state[f"embeddings.LayerNorm.{kind}"] = weights.floats(f"norm.{kind}")
        for layer in range(minilm.LAYERS):
            theirs, ours = f"encoder.layer.{layer}.", f"layers.{layer}."
            parts = weights.floats(f"{ours}qkv.{kind}").reshape(3, minilm.WIDTH, *([-1] if kind == "weight" else []))
            for name, part in zip(("query", "key", "value"), parts, strict=True):
                state[f"{theirs}attention.self.{name}.{kind}"] = part
            for mine, other in BERT_NAMES.items():
                state[f"{theirs}{other}.{kind}"] = weights.floats(f"{ours}{mine}.{kind}")
    found = model.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()}, strict=False)
    assert not found.unexpected_keys
    assert set(found.missing_keys) <= {"embeddings.position_ids", "embeddings.token_type_ids"}
    return model.eval()


@torch.inference_mode()
def efficientnet_features(pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """pixels: (n, 224, 224, 3) uint8 -> map (n, 352, 49), pooled (n, 1280), logits (n, 1000)."""
    stored = BackboneWeights(efficientnet.WEIGHTS)
    weights = {name: torch.from_numpy(stored.floats(name)) for name in stored}

    def conv(x: Tensor, name: str, stride: int = 1, groups: int = 1) -> Tensor:
        weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        size, side = weight.shape[-1], x.shape[-1]
        out = -(-side // stride)
        padding = max((out - 1) * stride + size - side, 0)
        x = F.pad(x, [padding // 2, padding - padding // 2] * 2)  # the larger half at the end, as in TensorFlow
        return F.conv2d(x, weight, bias, stride, groups=groups)

    x = F.relu6(conv((pixels.permute(0, 3, 1, 2).float() - 127) / 128, "stem", stride=2))
    # (blocks, stride of the first one) of each stage of EfficientNet-Lite2
    stages = [(1, 1), (3, 2), (3, 2), (4, 2), (4, 1), (5, 2), (1, 1)]
    strides = [stride if block == 0 else 1 for blocks, stride in stages for block in range(blocks)]
    for block, stride in enumerate(strides):
        y = x
        if f"blocks.{block}.expand.weight" in weights:
            y = F.relu6(conv(y, f"blocks.{block}.expand"))
        y = F.relu6(conv(y, f"blocks.{block}.depthwise", stride, groups=y.shape[1]))
        y = conv(y, f"blocks.{block}.project")
        x = x + y if x.shape == y.shape else y
    pooled = F.relu6(conv(x, "head")).mean(dim=(2, 3))
    return x.flatten(2), pooled, F.linear(pooled, weights["classes.weight"], weights["classes.bias"])
