"""CLIP and SigLIP encoders: the vectors of `transformers` itself, alone or in company, saved or not."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from PIL import Image
from tiny_clip import FAMILIES, LENGTH, clip_tokenizer, openai_weights, processor, save
from tokenizers import Tokenizer
from torch import Tensor

from genius.data.items import Item
from genius.encoders.base import Encoder, Prepared
from genius.encoders.clip import CLEANERS, ClipEncoder, from_openai, openai_tokenizer
from genius.encoders.loading import load_encoder
from genius.errors import BadModel, GeniusError
from genius.model.decoder_config import DecoderConfig
from genius.model.genius import Genius
from genius.networks.decoder import Decoder
from genius.networks.fusion import Fusion
from genius.networks.quantizer import Quantizer

TEXTS = [
    "A cat",
    "the red dog on a sofa",
    "cat",
    "a big house in the tree with a cat and a dog and a sofa of red",
    "?!",
]
SIZES = [(30, 30), (61, 45), (7, 90), (200, 33), (31, 30)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {family: save(family, tmp_path_factory.mktemp(family)) for family in FAMILIES}


@pytest.fixture(scope="module")
def encoders(folders: dict[str, Path]) -> dict[str, ClipEncoder]:
    return {family: ClipEncoder.from_hub(folder) for family, folder in folders.items()}


def images() -> list[Image.Image]:
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (h, w, 3)).astype(np.uint8)) for w, h in SIZES]


def prepared(encoder: Encoder) -> list[Prepared]:
    """Pairs, then the same images and texts alone."""
    pixels = [encoder.pixels(image) for image in images()]
    pairs = [Prepared(p, t) for p, t in zip(pixels, TEXTS, strict=True)]
    return pairs + [Prepared(p, "") for p in pixels] + [Prepared(None, t) for t in TEXTS]


def pooled(out: Any) -> np.ndarray:
    return getattr(out, "pooler_output", out).detach().numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_are_those_of_transformers(
    family: str, folders: dict[str, Path], encoders: dict[str, ClipEncoder]
) -> None:
    encoder = encoders[family]
    reference = transformers.AutoModel.from_pretrained(folders[family]).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folders[family])
    texts = tokenizer(TEXTS, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt")
    # A CLIP may be given the mask; a SigLIP was trained without one.
    given = dict(texts) if family == "clip" else {"input_ids": texts["input_ids"]}
    given.pop("token_type_ids", None)
    inputs = [processor(family)(image, return_tensors="pt") for image in images()]
    vectors = encoder.encode([Prepared(encoder.pixels(p), t) for p, t in zip(images(), TEXTS, strict=True)])
    np.testing.assert_allclose(vectors.text, pooled(reference.get_text_features(**given)), atol=1e-5)
    expected = np.concatenate([pooled(reference.get_image_features(**image)) for image in inputs])
    np.testing.assert_allclose(vectors.image, expected, atol=1e-5)
    assert np.linalg.norm(expected, axis=1).min() > 0.1  # of a size that makes 1e-5 strict
    assert vectors.text.shape == vectors.image.shape == (len(TEXTS), encoder.dim)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_content_has_the_same_vector_whatever_the_batch(
    family: str, encoders: dict[str, ClipEncoder], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = encoders[family]
    inputs = prepared(encoder)
    together = encoder.encode(inputs)
    n = len(TEXTS)
    assert together.modality.tolist() == [2] * n + [0] * n + [1] * n
    np.testing.assert_allclose(together.image[:n], together.image[n : 2 * n], atol=1e-5)
    np.testing.assert_allclose(together.text[:n], together.text[2 * n :], atol=1e-5)
    alone = [encoder.encode([given]) for given in inputs]
    np.testing.assert_allclose(np.concatenate([v.image for v in alone]), together.image, atol=1e-5)
    np.testing.assert_allclose(np.concatenate([v.text for v in alone]), together.text, atol=1e-5)
    monkeypatch.setattr("genius.encoders.clip.IMAGES_A_BATCH", 2)
    monkeypatch.setattr("genius.encoders.clip.TOKENS_A_BATCH", 24)
    split = encoder.encode(inputs)
    np.testing.assert_allclose(split.image, together.image, atol=1e-5)
    np.testing.assert_allclose(split.text, together.text, atol=1e-5)
    np.testing.assert_allclose(encoder.text_vectors(TEXTS), together.text[:n], atol=1e-5)  # as training asks
    assert len(encoder.encode([])) == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_configuration_and_state_make_the_encoder_again(family: str, encoders: dict[str, ClipEncoder]) -> None:
    encoder = encoders[family]
    config = json.loads(json.dumps(encoder.config()))
    state = {name: value.copy() for name, value in encoder.state().items()}
    again = load_encoder(config, state)
    assert isinstance(again, Encoder)
    assert again.config() == config
    assert {name: value.shape for name, value in again.state().items()} == {n: v.shape for n, v in state.items()}
    np.testing.assert_array_equal(again.state()["tokenizer"], state["tokenizer"])
    first, second = encoder.encode(prepared(encoder)), again.encode(prepared(again))
    np.testing.assert_allclose(first.image, second.image, atol=1e-5)
    np.testing.assert_allclose(first.text, second.text, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_folder_holds_the_whole_encoder(family: str, encoders: dict[str, ClipEncoder], tmp_path: Path) -> None:
    encoder = encoders[family]
    quantizer = Quantizer(encoder.dim, codes_per_level=8, levels=2)
    shape = DecoderConfig(encoder.dim, quantizer.sizes, d_model=16, layers=1, heads=2, d_kv=8, d_ff=16, prefix=2)
    model = Genius(encoder, Fusion(encoder.dim, 16).runtime(), quantizer.runtime(), Decoder(shape).runtime())
    model.save_pretrained(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    again = Genius.from_pretrained(tmp_path)
    assert again.fingerprint == model.fingerprint
    items = [Item("a", text="a cat"), Item("b", image=images()[1]), Item("c", image=images()[2], text="red dog")]
    first, second = model.encode_items(items), again.encode_items(items)
    assert second.modality.tolist() == [1, 0, 2]
    np.testing.assert_allclose(second.embedding(), first.embedding(), atol=5e-3)  # weights are kept as float16
    np.testing.assert_array_equal(again.codes(second), Genius.from_pretrained(tmp_path).codes(second))


def test_a_state_without_a_tensor_is_refused_by_name(encoders: dict[str, ClipEncoder]) -> None:
    state = encoders["clip"].state()
    del state["model.visual_projection.weight"]
    with pytest.raises(BadModel, match=r"missing tensors visual_projection\.weight"):
        load_encoder(encoders["clip"].config(), state)


def test_half_precision_is_near_and_keeps_the_weights(folders: dict[str, Path]) -> None:
    encoder = ClipEncoder.from_hub(folders["siglip"])
    full = encoder.encode(prepared(encoder))
    half = encoder.to("cpu", torch.bfloat16).encode(prepared(encoder))
    assert half.image.dtype == np.float32
    assert 1e-5 < np.abs(half.image - full.image).max() < 0.05 * np.abs(full.image).max()
    assert 1e-5 < np.abs(half.text - full.text).max() < 0.05 * np.abs(full.text).max()
    assert all(value.dtype == np.float32 for name, value in encoder.state().items() if name != "tokenizer")


def test_a_device_that_is_not_there_is_named(folders: dict[str, Path]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(BadModel, match="device cuda"):
        ClipEncoder.from_hub(folders["clip"], device="cuda")


def test_gradients_reach_the_network(encoders: dict[str, ClipEncoder]) -> None:
    encoder = encoders["clip"]
    weights = [encoder.model.text_projection.weight, encoder.model.visual_projection.weight]
    for weight in weights:
        weight.requires_grad_(True)
    total = encoder.text_vectors(TEXTS) + encoder.image_vectors([encoder.pixels(p) for p in images()])
    total.square().sum().backward()
    for weight in weights:
        assert weight.grad is not None
        assert weight.grad.abs().max() > 0
        weight.grad = None
        weight.requires_grad_(False)


# Texts


def test_long_texts_are_cut_with_their_end_kept(encoders: dict[str, ClipEncoder]) -> None:
    for encoder in encoders.values():
        long, short = encoder.tokens(["cat " * 50_000, "cat"])
        assert len(long) == LENGTH
        assert long[-1] in short  # the end token
    assert len(encoders["siglip"].tokens(["cat"])[0]) == LENGTH
    assert len(encoders["clip"].tokens(["cat"])[0]) == 3  # start, cat, end


def test_texts_are_cleaned_as_each_network_was_trained(folders: dict[str, Path], tmp_path: Path) -> None:
    assert ClipEncoder.from_hub(folders["siglip2"]).clean == "lower"
    assert ClipEncoder.from_hub(folders["siglip"]).clean is None  # a tokenizer that is not one of Google's
    for made_for, expected in (("SiglipTokenizer", "words"), ("GemmaTokenizer", "lower")):
        folder = shutil.copytree(folders["siglip"], tmp_path / made_for)
        stored = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps(stored | {"tokenizer_class": made_for}))
        assert ClipEncoder.from_hub(folder).clean == expected
    with_ends = json.loads((folder / "tokenizer_config.json").read_text()) | {
        "add_bos_token": True,
        "bos_token": "<unk>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(with_ends))
    assert ClipEncoder.from_hub(folder).tokens(["cat"])[0][:3] == [2, 6, 0]  # what the file says, no longer </s>
    assert CLEANERS["words"]("  A cat's\n(red) Sofa! ") == "a cats red sofa"
    assert CLEANERS["lower"]("A Cat!") == "a cat!"
    assert CLEANERS["openai"]("It’s &amp;amp; “fine” ") == 'It\'s & "fine"'


# What is missing or wrong


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(file: str, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["clip"], tmp_path / "clip")
    (folder / file).unlink()
    with pytest.raises(BadModel, match=f"{file} is missing"):
        ClipEncoder.from_hub(folder)


def test_the_preprocessing_may_stand_in_either_file(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["clip"], tmp_path / "clip")
    stored = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(BadModel, match=r"preprocessor_config\.json is missing"):
        ClipEncoder.from_hub(folder)
    (folder / "processor_config.json").write_text(json.dumps({"image_processor": stored}))
    assert ClipEncoder.from_hub(folder).transform == ClipEncoder.from_hub(folders["clip"]).transform


def test_files_of_different_models_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["clip"], tmp_path / "clip")
    (folder / "preprocessor_config.json").write_text(json.dumps({"size": 224, "crop_size": 224}))
    with pytest.raises(BadModel, match=r"\(224, 224\).*\(30, 30\)"):
        ClipEncoder.from_hub(folder)
    shutil.copy(folders["clip"] / "preprocessor_config.json", folder)
    words = clip_tokenizer()
    words.add_tokens([f"more{i}" for i in range(5)])
    words.save_pretrained(folder)
    with pytest.raises(BadModel, match="tokenizer has"):
        ClipEncoder.from_hub(folder)


def test_another_kind_of_network_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(BadModel, match="'bert'"):
        ClipEncoder.from_hub(tmp_path)


def test_without_network_and_files_one_sentence_says_what_to_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(BadModel) as caught:
        ClipEncoder.from_hub("nobody/has-this-model")
    for word in ("nobody/has-this-model", "model.safetensors", "preprocessor_config.json", "tokenizer.json", "folder"):
        assert word in str(caught.value)
    with pytest.raises(BadModel, match="no folder 'not/a/hub/id'"):
        ClipEncoder.from_hub("not/a/hub/id")


def fetched(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[list[str]]:
    """The hub gives `folder`, whatever it is asked for. Returns what it will have been asked for."""
    asked: list[list[str]] = []

    def fetch(name: str, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    return asked


def test_a_hub_id_is_fetched_and_kept_as_the_source(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fetched(monkeypatch, folders["clip"])
    encoder = ClipEncoder.from_hub("some/clip")
    assert encoder.config()["source"] == "some/clip"
    assert not any("bin" in pattern for patterns in asked for pattern in patterns)


def test_pickled_weights_are_taken_where_there_are_no_others_and_never_run(
    folders: dict[str, Path], encoders: dict[str, ClipEncoder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(folders["clip"], tmp_path / "clip")
    (folder / "model.safetensors").unlink()
    torch.save(encoders["clip"].model.state_dict(), folder / "pytorch_model.bin")
    asked = fetched(monkeypatch, folder)
    encoder = ClipEncoder.from_hub("some/old-clip")
    assert any("bin" in pattern for pattern in asked[-1])
    texts = [Prepared(None, text) for text in TEXTS]
    np.testing.assert_allclose(encoder.encode(texts).text, encoders["clip"].encode(texts).text, atol=1e-5)

    class Hostile:
        def __reduce__(self) -> tuple[Any, tuple[Path]]:
            return Path.touch, (tmp_path / "run",)

    torch.save({"text_projection.weight": Hostile()}, folder / "pytorch_model.bin")
    with pytest.raises(BadModel, match="more than tensors"):
        ClipEncoder.from_hub("some/old-clip")
    assert not (tmp_path / "run").exists()


def test_without_transformers_the_extra_is_named(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(GeniusError, match=r"genius-search\[clip\]"):
        ClipEncoder.from_hub(folders["clip"])


# OpenAI's names


def directly(weights: dict[str, Tensor], tower: str, x: Tensor, causal: bool) -> Tensor:
    """The blocks of OpenAI's transformer, written down plainly. x: (n, tokens, width)."""
    width = x.shape[2]
    mask = torch.full((x.shape[1], x.shape[1]), -torch.inf).triu(1) if causal else None
    layer = 0
    while f"{tower}transformer.resblocks.{layer}.ln_1.weight" in weights:
        w = {
            n.split(f"resblocks.{layer}.")[1]: v
            for n, v in weights.items()
            if n.startswith(f"{tower}transformer.resblocks.{layer}.")
        }
        attention = torch.nn.MultiheadAttention(width, width // 64, batch_first=True)
        attention.load_state_dict({n.removeprefix("attn."): v for n, v in w.items() if n.startswith("attn.")})
        y = F.layer_norm(x, (width,), w["ln_1.weight"], w["ln_1.bias"])
        x = x + attention(y, y, y, need_weights=False, attn_mask=mask)[0]
        y = F.layer_norm(x, (width,), w["ln_2.weight"], w["ln_2.bias"]) @ w["mlp.c_fc.weight"].T + w["mlp.c_fc.bias"]
        x = x + y * torch.sigmoid(1.702 * y) @ w["mlp.c_proj.weight"].T + w["mlp.c_proj.bias"]
        layer += 1
    return x


def direct_image(weights: dict[str, Tensor], pixels: Tensor) -> Tensor:
    x = F.conv2d(pixels, weights["visual.conv1.weight"], stride=weights["visual.conv1.weight"].shape[2])
    x = x.flatten(2).transpose(1, 2)
    x = (
        torch.cat([weights["visual.class_embedding"].expand(len(x), 1, -1), x], 1)
        + weights["visual.positional_embedding"]
    )
    x = F.layer_norm(x, x.shape[2:], weights["visual.ln_pre.weight"], weights["visual.ln_pre.bias"])
    x = directly(weights, "visual.", x, causal=False)[:, 0]
    x = F.layer_norm(x, x.shape[1:], weights["visual.ln_post.weight"], weights["visual.ln_post.bias"])
    return x @ weights["visual.proj"]


def direct_text(weights: dict[str, Tensor], ids: Tensor) -> Tensor:
    """ids: (n, length), filled up with zeros as OpenAI does."""
    x = directly(weights, "", weights["token_embedding.weight"][ids] + weights["positional_embedding"], causal=True)
    x = F.layer_norm(x, x.shape[2:], weights["ln_final.weight"], weights["ln_final.bias"])
    return x[torch.arange(len(x)), ids.argmax(dim=1)] @ weights["text_projection"]


@pytest.mark.parametrize("before", ["", "clip_model.", "clip_model.clip_model."])
@torch.inference_mode()
def test_openai_names_give_the_vectors_of_a_direct_computation(before: str) -> None:
    weights = openai_weights()
    tokenizer = Tokenizer.from_str(clip_tokenizer().backend_tokenizer.to_str())
    stored = {before + name: value for name, value in weights.items()}
    if before:
        stored["vq.embed"] = torch.zeros(3)  # something else in the same file
    encoder = from_openai(stored, tokenizer)
    inputs = [Prepared(encoder.pixels(p), t) for p, t in zip(images(), TEXTS, strict=True)]
    vectors = encoder.encode(inputs)
    ids = torch.zeros((len(TEXTS), LENGTH), dtype=torch.long)
    for row, found in zip(ids, encoder.tokens(TEXTS), strict=True):
        row[: len(found)] = torch.tensor(found)
    np.testing.assert_allclose(vectors.text, _with_last_token_highest(weights, ids), atol=1e-5)
    pixels = torch.stack([torch.tensor(processor("clip")(p)["pixel_values"][0]) for p in images()])
    np.testing.assert_allclose(vectors.image, direct_image(weights, pixels), atol=1e-5)
    assert encoder.dim == 24
    again = load_encoder(encoder.config(), encoder.state())
    np.testing.assert_allclose(again.encode(inputs).text, vectors.text, atol=1e-5)


def _with_last_token_highest(weights: dict[str, Tensor], ids: Tensor) -> Tensor:
    assert int(ids.max()) == len(weights["token_embedding.weight"]) - 1
    return direct_text(weights, ids)


def test_other_sizes_are_inferred() -> None:
    weights = openai_weights(
        1, text_width=128, vision_width=64, layers=(1, 1), vocabulary=600, dim=16, patch=7, grid=4, length=9
    )
    config = from_openai(weights).config()
    text, vision = config["model"]["text_config"], config["model"]["vision_config"]
    assert (text["hidden_size"], text["num_attention_heads"], text["vocab_size"]) == (128, 2, 600)
    assert (vision["hidden_size"], vision["num_attention_heads"], vision["image_size"]) == (64, 1, 28)
    assert config["tokens"]["length"] == 9
    assert config["pixels"]["crop"] == (28, 28)


def test_openai_weights_without_a_tokenizer_read_images_only() -> None:
    encoder = from_openai(openai_weights())
    image = Prepared(encoder.pixels(images()[0]), "")
    assert encoder.encode([image]).has_image.all()
    again = load_encoder(encoder.config(), encoder.state())
    with pytest.raises(BadModel, match=r"tokenizer\.json of openai/clip-vit-large-patch14"):
        again.encode([Prepared(None, "a cat")])


def test_the_tokenizer_is_looked_for_where_it_was_put(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = clip_tokenizer()("a red cat")["input_ids"]
    assert openai_tokenizer(folders["clip"]).encode("a red cat").ids == expected
    words = json.loads((folders["clip"] / "tokenizer.json").read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(words["vocab"]))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(pair) for pair in words["merges"]))
    assert openai_tokenizer(tmp_path).encode("a red cat").ids == expected
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(BadModel, match=r"tokenizer\.json of openai/clip-vit-large-patch14"):
        openai_tokenizer(tmp_path / "nowhere")


def test_unknown_missing_and_foreign_tensors_are_named() -> None:
    weights = openai_weights()
    with pytest.raises(BadModel, match=r"visual\.extra"):
        from_openai(weights | {"visual.extra": torch.zeros(1)})
    with pytest.raises(BadModel, match=r"resblocks\.0\.attn\.rotary"):
        from_openai(weights | {"transformer.resblocks.0.attn.rotary": torch.zeros(1)})
    without = {name: value for name, value in weights.items() if name != "visual.ln_post.bias"}
    with pytest.raises(BadModel, match=r"missing tensors vision_model\.post_layernorm\.bias"):
        from_openai(without)
    with pytest.raises(BadModel, match="token_embedding"):
        from_openai({name: value for name, value in weights.items() if "token_embedding" not in name})
    with pytest.raises(BadModel, match="ResNet"):
        from_openai(weights | {"visual.layer1.0.conv1.weight": torch.zeros(1)})
