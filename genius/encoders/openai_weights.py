"""Converts the tensors of OpenAI's CLIP to the names and the configuration of `transformers`."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from genius.errors import BadModel

TOP = {
    "positional_embedding": "text_model.embeddings.position_embedding.weight",
    "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
    "visual.class_embedding": "vision_model.embeddings.class_embedding",
    "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
    "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    "logit_scale": "logit_scale",
}
NORMS = {
    "ln_final": "text_model.final_layer_norm",
    "visual.ln_pre": "vision_model.pre_layrnorm",  # spelled so in `transformers`
    "visual.ln_post": "vision_model.post_layernorm",
}
TRANSPOSED = {"text_projection": "text_projection.weight", "visual.proj": "visual_projection.weight"}
IN_BLOCK = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "attn.out_proj": "self_attn.out_proj",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
}
BLOCK = re.compile(r"(visual\.)?transformer\.resblocks\.(\d+)\.(.+)")
IGNORED = {"input_resolution", "context_length", "vocab_size"}  # scalars in OpenAI's own files


def bare_names(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The CLIP's tensors, without the prefix `clip_model.` and in float32."""
    behind = [name for name in state_dict if name.startswith("clip_model.")] or list(state_dict)
    bare = {re.sub(r"^(clip_model\.)+", "", name): state_dict[name] for name in behind}
    return {name: value.detach().float() for name, value in bare.items() if name not in IGNORED}


def inferred_config(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """The `transformers` configuration, inferred from shapes. OpenAI's heads are all 64 wide."""
    if any(name.startswith("visual.layer1.") for name in weights):
        raise BadModel("This CLIP has a ResNet as image encoder; only vision transformers (ViT-...) are supported.")
    shape_of = {name: tuple(value.shape) for name, value in weights.items()}
    try:
        length, width = shape_of["positional_embedding"]
        vocabulary, dim = shape_of["token_embedding.weight"][0], shape_of["text_projection"][1]
        vision_width, _, patch, _ = shape_of["visual.conv1.weight"]
        grid = round((shape_of["visual.positional_embedding"][0] - 1) ** 0.5)
        text_mlp = shape_of["transformer.resblocks.0.mlp.c_fc.weight"][0]
        vision_mlp = shape_of["visual.transformer.resblocks.0.mlp.c_fc.weight"][0]
    except KeyError as error:
        raise BadModel(f"These are not the weights of a CLIP of OpenAI's names: {error} is missing.") from error
    found = [match for match in map(BLOCK.fullmatch, weights) if match]
    layers = {visual: len({int(m[2]) for m in found if bool(m[1]) == visual}) for visual in (False, True)}
    same = {"hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "attention_dropout": 0.0, "projection_dim": dim}
    return {
        "model_type": "clip",
        "projection_dim": dim,
        "text_config": same
        | {"model_type": "clip_text_model", "vocab_size": vocabulary, "max_position_embeddings": length}
        | {"hidden_size": width, "intermediate_size": text_mlp, "num_hidden_layers": layers[False]}
        | {"num_attention_heads": max(1, width // 64), "bos_token_id": vocabulary - 2, "eos_token_id": vocabulary - 1}
        | {"pad_token_id": vocabulary - 1},
        "vision_config": same
        | {"model_type": "clip_vision_model", "image_size": grid * patch, "patch_size": patch, "num_channels": 3}
        | {"hidden_size": vision_width, "intermediate_size": vision_mlp, "num_hidden_layers": layers[True]}
        | {"num_attention_heads": max(1, vision_width // 64)},
    }


def renamed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under the names of `transformers`."""
    out: dict[str, Tensor] = {"logit_scale": torch.tensor(0.0)}  # default: no vector depends on it
    unknown = []
    for name, value in weights.items():
        stem, _, kind = name.rpartition(".")
        if name in TOP:
            out[TOP[name]] = value
        elif name in TRANSPOSED:
            out[TRANSPOSED[name]] = value.T.contiguous()
        elif stem in NORMS:
            out[f"{NORMS[stem]}.{kind}"] = value
        elif block := BLOCK.fullmatch(name):
            tower = "vision_model" if block[1] else "text_model"
            at, inner = f"{tower}.encoder.layers.{block[2]}", block[3]
            part, _, kind = inner.rpartition(".")
            if inner in ("attn.in_proj_weight", "attn.in_proj_bias"):
                kind = inner.removeprefix("attn.in_proj_")
                for letter, piece in zip("qkv", value.chunk(3), strict=True):
                    out[f"{at}.self_attn.{letter}_proj.{kind}"] = piece.contiguous()
            elif part in IN_BLOCK:
                out[f"{at}.{IN_BLOCK[part]}.{kind}"] = value
            else:
                unknown.append(name)
        else:
            unknown.append(name)
    if unknown:
        raise BadModel(f"These tensors are not part of OpenAI's CLIP: {some(unknown)}. Give the CLIP's own file.")
    return out


def some(names: Iterable[str]) -> str:
    """The first five names, and the number of others."""
    listed = sorted(names)
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
