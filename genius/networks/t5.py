"""Exports the decoder as a `transformers` T5, for programs without this package.

The result is a `T5ForConditionalGeneration` without encoder layers, whose encoder only norms the prefix embeddings. The
folder also holds what T5 has no place for: the prefix network (Eq. 9) and the tokens of the codes. T5 cannot express
residual inputs and scores. It normalises over all tokens; a decoder without `whole_vocabulary` normalises over the
codes of a level, and the folder's README.md says which of the two was trained.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import save_file
from torch import Tensor

from genius.encoders.model_files import needs_extra
from genius.errors import GeniusError
from genius.model.decoder_runtime import DecoderRuntime

BLOCK = {  # our names -> T5's; where there are several, ours is their concatenation
    "self_norm": ("layer.0.layer_norm",),
    "self_qkv": ("layer.0.SelfAttention.q", "layer.0.SelfAttention.k", "layer.0.SelfAttention.v"),
    "self_out": ("layer.0.SelfAttention.o",),
    "cross_norm": ("layer.1.layer_norm",),
    "cross_q": ("layer.1.EncDecAttention.q",),
    "cross_kv": ("layer.1.EncDecAttention.k", "layer.1.EncDecAttention.v"),
    "cross_out": ("layer.1.EncDecAttention.o",),
    "ff_norm": ("layer.2.layer_norm",),
    "ff_in": ("layer.2.DenseReluDense.wi",),
    "ff_out": ("layer.2.DenseReluDense.wo",),
}
PAD, END = 0, 1

README = """---
library_name: transformers
tags: [t5, generative-retrieval, semantic-ids]
---

# Decoder of a GENIUS model, as T5

`T5ForConditionalGeneration` without encoder layers. `prefix_network.safetensors` holds the layer that T5 has no place
for: it computes the {prefix} embeddings that the decoder attends to from a query vector of {dim} dimensions.
`codes.json` holds the tokens of the codes: code c of level l is the token `starts[l] + c`. An ID has one code of each
of the {levels} levels; the first level is the modality (0 image, 1 text, 2 both).

```python
import json

import torch
from safetensors.torch import load_file
from transformers import T5ForConditionalGeneration

t5 = T5ForConditionalGeneration.from_pretrained(FOLDER).eval()
weights = load_file(FOLDER + "/prefix_network.safetensors")
network = torch.nn.Sequential({layers})
network.load_state_dict(weights)
about = json.load(open(FOLDER + "/codes.json"))

z = torch.nn.functional.normalize(torch.randn(1, {dim}), dim=-1)          # a fused query vector
prefix = network(z).unflatten(-1, (about["prefix"], t5.config.d_model))
tokens = torch.tensor([[0]])                                                # the start of every ID
logits = t5(inputs_embeds=prefix, decoder_input_ids=tokens).logits[:, -1]
modality = logits[:, about["starts"][0] : about["starts"][1]]               # of the first level's codes
```

{normalised}
To generate only IDs of existing items, give `generate` a `prefix_allowed_tokens_fn`.
"""
WHOLE = "It was trained with log-probabilities over all tokens: use `logits.log_softmax(-1)`.\n"
LEVELS = (
    "It was trained with log-probabilities over a level's own codes: take the level's logits first, then their "
    "`log_softmax`.\n`generate` normalises over all tokens, and its scores differ from those of this model.\n"
)


def as_t5(decoder: DecoderRuntime, blocks_only: bool = False) -> Any:
    """The decoder's blocks as a `T5ForConditionalGeneration` without encoder layers.

    `blocks_only` leaves out residual inputs and scores of a decoder that has them. The result is then another model.
    """
    try:
        from transformers import T5Config, T5ForConditionalGeneration
    except ImportError as error:
        raise needs_extra("T5 needs", "transformers") from error
    config = decoder.config
    if config.uses_sums and not blocks_only:
        raise GeniusError(
            "This decoder has residual inputs or scores, which T5 cannot express. Train with residual_input = false "
            "and residual_gain = 0, or export to ONNX, which can."
        )
    t5 = T5ForConditionalGeneration(
        T5Config(
            vocab_size=config.vocabulary,
            d_model=config.d_model,
            d_kv=config.d_kv,
            d_ff=config.d_ff,
            num_layers=0,
            num_decoder_layers=config.layers,
            num_heads=config.heads,
            dropout_rate=config.dropout,
            pad_token_id=PAD,
            eos_token_id=END,
        )
    )
    missing, unknown = t5.load_state_dict(t5_weights(decoder), strict=False)
    if unknown or any(".block." in name or "norm" in name for name in missing):
        raise GeniusError(
            f"The decoder's weights do not fit this version's T5: {[*missing, *unknown]}. Use another transformers."
        )
    t5.generation_config.decoder_start_token_id = PAD
    return t5.eval()


def t5_weights(decoder: DecoderRuntime) -> dict[str, Tensor]:
    """The decoder's weights by T5's names."""
    state = {name: torch.from_numpy(value) for name, value in decoder.weights.items()}
    table = state["table"]
    weights = {
        "encoder.final_layer_norm.weight": state["prefix_norm.weight"],
        "decoder.final_layer_norm.weight": state["final_norm.weight"],
        "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": state["position_bias"],
        "shared.weight": table,
        "encoder.embed_tokens.weight": table,
        "decoder.embed_tokens.weight": table,
        "lm_head.weight": table,
    }
    for layer in range(decoder.config.layers):
        for ours, parts in BLOCK.items():
            stacked = state[f"blocks.{layer}.{ours}.weight"]
            for name, part in zip(parts, stacked.chunk(len(parts)), strict=True):
                weights[f"decoder.block.{layer}.{name}.weight"] = part
    return weights


def save_t5(decoder: DecoderRuntime, folder: str | os.PathLike[str]) -> None:
    """Write a folder for `T5ForConditionalGeneration.from_pretrained`, with the prefix network and a README.md."""
    t5, config, folder = as_t5(decoder), decoder.config, Path(folder)
    t5.save_pretrained(folder)
    network = {f"0.{part}": decoder.weights[f"prefix_network.0.{part}"] for part in ("weight", "bias")}
    save_file(network, folder / "prefix_network.safetensors")
    about = {
        "dim": config.dim,
        "prefix": config.prefix,
        "sizes": list(config.sizes),
        "starts": config.row_bounds()[:-1].tolist(),
        "whole_vocabulary": config.whole_vocabulary,
    }
    (folder / "codes.json").write_text(json.dumps(about, indent=2) + "\n")
    readme = README.format(
        dim=config.dim,
        prefix=config.prefix,
        levels=len(config.sizes),
        layers=f"torch.nn.Linear({config.dim}, {config.prefix * config.d_model})",
        normalised=WHOLE if config.whole_vocabulary else LEVELS,
    )
    (folder / "README.md").write_text(readme, encoding="utf-8")
