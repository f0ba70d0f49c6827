"""Tiny random CLIP, SigLIP and SigLIP 2 models in the layout of the hub, with tokenizers made here; for several tests.

`save(family, folder)` writes a whole model of `transformers`; `openai_weights(seed)` gives tensors with OpenAI's names.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor

FAMILIES = ("clip", "siglip", "siglip2")
WORDS = [
    "a",
    "an",
    "the",
    "cat",
    "dog",
    "house",
    "tree",
    "red",
    "blue",
    "on",
    "of",
    "in",
    "with",
    "sofa",
    "big",
    "photo",
]
TOWER = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
LENGTH = 12
SIDE = 30


def save(family: str, folder: Path, seed: int = 0) -> Path:
    """A model of the family, its weights random and not small, so that nothing is lost in rounding."""
    network(family, seed).save_pretrained(folder)
    TOKENIZERS[family]().save_pretrained(folder)
    processor(family).save_pretrained(folder)
    return folder


def network(family: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    vocabulary = len(TOKENIZERS[family]())
    text = {"vocab_size": vocabulary, "max_position_embeddings": LENGTH, **TOWER}
    vision = {"patch_size": 10, "image_size": SIDE, **TOWER}
    if family == "clip":
        text |= {"eos_token_id": vocabulary - 1, "bos_token_id": vocabulary - 2, "pad_token_id": vocabulary - 1}
        config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=24)
        model: Any = transformers.CLIPModel(config)
    elif family == "siglip":
        model = transformers.SiglipModel(transformers.SiglipConfig(text_config=text, vision_config=vision))
    else:
        vision = {"patch_size": 4, "num_patches": 16, **TOWER}
        model = transformers.Siglip2Model(transformers.Siglip2Config(text_config=text, vision_config=vision))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval()


def processor(family: str) -> Any:
    """The image processor of `transformers` that works with PIL."""
    if family == "clip":
        size = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
        return transformers.CLIPImageProcessorPil(**size)
    if family == "siglip":
        return transformers.SiglipImageProcessorPil(size={"height": SIDE, "width": SIDE})
    return transformers.Siglip2ImageProcessorPil(patch_size=4, max_num_patches=16)


def clip_tokenizer() -> Any:
    """Byte pairs as in CLIP: every byte, at the end of a word or not, and a few merges."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("c", "a"), ("ca", "t</w>"), ("d", "o"), ("do", "g</w>"), ("r", "e"), ("re", "d</w>")]
    pieces = letters + [letter + "</w>" for letter in letters] + ["".join(merge) for merge in merges]
    vocabulary = {piece: i for i, piece in enumerate([*pieces, "<|startoftext|>", "<|endoftext|>"])}
    return transformers.CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=LENGTH)


def siglip_tokenizer() -> Any:
    """Whole words, ended by </s>, in lower case."""
    vocabulary = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        padding_side="right",
        model_max_length=LENGTH,
    )


def siglip2_tokenizer() -> Any:
    """Byte pairs as in Gemma, ended by <eos>, in lower case."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *letters, "ca", "cat", "do", "dog", "re", "red"]
    return transformers.Siglip2Tokenizer(
        vocab={piece: i for i, piece in enumerate(pieces)},
        merges=[("c", "a"), ("ca", "t"), ("d", "o"), ("do", "g"), ("r", "e"), ("re", "d")],
        add_bos_token=False,
        add_eos_token=True,
        padding_side="right",
        model_max_length=LENGTH,
    )


TOKENIZERS = {"clip": clip_tokenizer, "siglip": siglip_tokenizer, "siglip2": siglip2_tokenizer}


def openai_weights(
    seed: int = 0,
    text_width: int = 64,
    vision_width: int = 128,
    layers: tuple[int, int] = (2, 3),
    vocabulary: int = 520,
    dim: int = 24,
    patch: int = 10,
    grid: int = 3,
    length: int = LENGTH,
) -> dict[str, Tensor]:
    """Random tensors under the names, and in the shapes, of OpenAI's CLIP."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int, around: float = 0.0, scale: float = 0.1) -> Tensor:
        return torch.from_numpy((around + scale * rng.standard_normal(shape)).astype(np.float32))

    out = {
        "positional_embedding": draw(length, text_width),
        "token_embedding.weight": draw(vocabulary, text_width, scale=1.0),
        "text_projection": draw(text_width, dim),
        "logit_scale": torch.tensor(4.6),
        "visual.class_embedding": draw(vision_width),
        "visual.positional_embedding": draw(grid * grid + 1, vision_width),
        "visual.proj": draw(vision_width, dim),
        "visual.conv1.weight": draw(vision_width, 3, patch, patch),
    }
    for name, width in (("ln_final", text_width), ("visual.ln_pre", vision_width), ("visual.ln_post", vision_width)):
        out |= {f"{name}.weight": draw(width, around=1.0), f"{name}.bias": draw(width)}
    for tower, width, depth in (("", text_width, layers[0]), ("visual.", vision_width, layers[1])):
        for layer in range(depth):
            at = f"{tower}transformer.resblocks.{layer}"
            for norm in ("ln_1", "ln_2"):
                out |= {f"{at}.{norm}.weight": draw(width, around=1.0), f"{at}.{norm}.bias": draw(width)}
            out |= {f"{at}.attn.in_proj_weight": draw(3 * width, width), f"{at}.attn.in_proj_bias": draw(3 * width)}
            for part, rows, columns in (("attn.out_proj", 1, 1), ("mlp.c_fc", 4, 1), ("mlp.c_proj", 1, 4)):
                out[f"{at}.{part}.weight"] = draw(rows * width, columns * width)
                out[f"{at}.{part}.bias"] = draw(rows * width)
    return out
