"""BLIP-FF against values recorded from UniIR's code: network, preprocessing, tokenizer, masks, what is absent."""

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import golden_blip as golden
import numpy as np
import pytest
import torch
from fakes import draw_image
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor

from genius.data.items import Modality
from genius.encoders import blip
from genius.encoders.base import Encoder, Prepared, Vectors
from genius.encoders.blip import BlipEncoder, blip_tokenizer
from genius.encoders.blip_network import BlipConfig, BlipNetwork
from genius.encoders.loading import load_encoder
from genius.errors import BadModel

SHAPE = BlipConfig(48, 16, 64, 2, 4, 256, 100, 32, 48, 2, 4, 192)
CASES = golden.arrays()["case_names"].tolist()


@pytest.fixture(scope="module")
def network() -> BlipNetwork:
    return BlipNetwork.with_weights(SHAPE, golden.weights())


# The network


def test_the_recorded_sizes() -> None:
    stored = json.loads(str(golden.arrays()["config_json"]))
    names = {"image_size": "image_size", "patch": "patch_size", "image_width": "vit_width", "image_layers": "vit_depth"}
    names |= {"image_heads": "vit_heads", "words": "vocab_size", "positions": "max_position_embeddings"}
    names |= {"text_width": "hidden_size", "text_layers": "num_hidden_layers", "text_heads": "num_attention_heads"}
    names |= {"text_hidden": "intermediate_size"}
    assert {name: getattr(SHAPE, name) for name in names} == {name: stored[theirs] for name, theirs in names.items()}
    inferred = BlipConfig.inferred(golden.weights())
    assert dataclasses.replace(inferred, image_heads=4, text_heads=4) == SHAPE  # heads of 64 are the published ones


def test_the_published_size_has_the_expected_tensors() -> None:
    with torch.device("meta"):
        state = BlipNetwork(BlipConfig()).state_dict()
    listed = golden.keys("large")
    used = {name: shape for name, (shape, dtype, used) in listed.items() if used and dtype == "float32"}
    assert {name: tuple(value.shape) for name, value in state.items()} == used
    weights = {name: torch.empty(shape, device="meta") for name, (shape, _, _) in listed.items()}
    assert BlipConfig.inferred(weights) == BlipConfig()
    assert sum(value.numel() for value in state.values()) == 303_301_632 + 142_567_680


class Outputs:
    """Outputs of the modules of a network, by the names of the recording, for one input."""

    def __init__(self, network: BlipNetwork) -> None:
        vision, text = network.visual_encoder, network.text_encoder
        self.found: dict[str, Tensor] = {}
        modules = {"image_tokens": vision, "text_tokens": text.embeddings, "pooler_dense": text.pooler["dense"]}
        modules |= {f"vit_block_{i}": block for i, block in enumerate(vision.blocks)}
        for i, layer in enumerate(text.layers):
            modules |= {f"text_layer_{i}_after_self": layer.attention, f"text_layer_{i}_out": layer}
            modules[f"text_layer_{i}_after_cross"] = layer.crossattention
        modules["vit_patch_embed"] = vision.patch_embed["proj"]
        self.hooks = [module.register_forward_hook(self._keep(name)) for name, module in modules.items()]
        self.hooks.append(vision.blocks[0].register_forward_pre_hook(self._keep_input))

    def _keep(self, name: str) -> Any:
        def keep(module: object, given: object, out: Tensor) -> None:
            self.found[name] = out.flatten(2).transpose(1, 2) if name == "vit_patch_embed" else out

        return keep

    def _keep_input(self, module: object, given: tuple[Tensor]) -> None:
        self.found["vit_embed_with_pos"] = given[0]


@pytest.fixture
def outputs(network: BlipNetwork) -> Iterator[Outputs]:
    outputs = Outputs(network)
    yield outputs
    for hook in outputs.hooks:
        hook.remove()


@torch.inference_mode()
@pytest.mark.parametrize("case", CASES)
def test_every_step_agrees_with_the_recording(network: BlipNetwork, outputs: Outputs, case: str) -> None:
    """Padding is left out, which is what the recorded mask does."""
    recorded, row = golden.arrays(), CASES.index(case)
    length = int(recorded["attention_mask"][row].sum())
    assert recorded["attention_mask"][row, :length].all()
    ids = torch.from_numpy(recorded["input_ids"][row : row + 1, :length])
    images = network.read_images(torch.from_numpy(recorded["pixels"][row : row + 1]))
    vector = network(ids, images, torch.tensor([0]))[0]
    np.testing.assert_allclose(vector, recorded["embeddings"][row], atol=1e-5, rtol=0)
    np.testing.assert_allclose(vector, recorded["embeddings_f64"][row], atol=1e-5, rtol=0)
    assert len(outputs.found) == 5 + 2 + 3 * 2
    for name, found in outputs.found.items():
        wanted = recorded[name][row]
        wanted = wanted[:length] if name.startswith("text_") else wanted
        np.testing.assert_allclose(found[0], wanted, atol=1e-5, rtol=0, err_msg=name)


@torch.inference_mode()
def test_texts_and_images_of_a_batch_do_not_touch_each_other(network: BlipNetwork) -> None:
    recorded = golden.arrays()
    images = network.read_images(torch.from_numpy(recorded["pixels"]))
    rows = [CASES.index(name) for name in ("text_only_short", "both_img0_txt2")]  # of one length
    assert (recorded["input_ids"][rows, 5:] == 0).all()
    found = network(torch.from_numpy(recorded["input_ids"][rows, :5]), images, torch.tensor(rows))
    np.testing.assert_allclose(found, recorded["embeddings"][rows], atol=1e-5, rtol=0)


# The encoder, with the recorded network


@pytest.fixture
def recorded_encoder(network: BlipNetwork, monkeypatch: pytest.MonkeyPatch) -> BlipEncoder:
    """Texts are the recorded token ids without the two ends. Pixels are given normalised, as they were recorded."""

    def tokens(self: BlipEncoder, texts: list[str]) -> list[list[int]]:
        return [[1, *map(int, text.split()), 2] for text in texts]

    monkeypatch.setattr(BlipEncoder, "tokens", tokens)
    monkeypatch.setattr(BlipEncoder, "values", lambda self, pixels: torch.from_numpy(pixels))
    return BlipEncoder(network, Tokenizer.from_str(small_tokenizer()), "small")


def small_tokenizer() -> str:
    stored = json.loads(blip_tokenizer().to_str())
    stored["model"]["vocab"] = {f"w{n}" if n else "[UNK]": n for n in range(90)}
    stored["added_tokens"], stored["post_processor"] = [], None
    return json.dumps(stored)


def test_all_inputs_at_once_have_the_recorded_vectors(recorded_encoder: BlipEncoder) -> None:
    """Texts of six lengths, with and without images. The last input is neither, and no item of ours."""
    recorded = golden.arrays()
    ids, mask = recorded["input_ids"], recorded["attention_mask"].astype(bool)
    texts = [" ".join(map(str, row[kept][1:-1])) for row, kept in zip(ids, mask, strict=True)]
    pixels = [image if shown else None for image, shown in zip(recorded["pixels"], recorded["img_mask"], strict=True)]
    assert [bool(text) for text in texts] == recorded["txt_mask"].astype(bool).tolist()
    given = [Prepared(image, text) for image, text in zip(pixels, texts, strict=True)][:-1]
    vectors = recorded_encoder.encode(given)
    np.testing.assert_allclose(vectors.image + vectors.text, recorded["embeddings"][:-1], atol=1e-5, rtol=0)
    np.testing.assert_allclose(vectors.embedding(), recorded["embeddings_normalized"][:-1], atol=1e-5, rtol=0)
    assert vectors.modality.tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 2]
    similarity = vectors.embedding() @ vectors.embedding().T
    np.testing.assert_allclose(similarity, recorded["similarity"][:-1, :-1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_preprocessing_is_exact(number: int) -> None:
    recorded = golden.arrays()
    wanted = recorded[f"pre{number}_pixels"]
    network = BlipNetwork(dataclasses.replace(SHAPE, image_size=wanted.shape[-1]))
    encoder = BlipEncoder(network, Tokenizer.from_str(small_tokenizer()), "small")
    pixels = encoder.pixels(Image.fromarray(recorded[f"pre{number}_rgb_uint8"]))
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(encoder.values(pixels[None])[0], wanted)


# The tokenizer


def test_the_words_are_those_of_bert_base_uncased() -> None:
    words = blip_tokenizer().get_vocab()
    listed = sorted(words, key=lambda word: words[word])
    vocabulary = "".join(f"{word}\n" for word in listed[:30522])
    digest = "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"  # of its published vocab.txt
    assert hashlib.sha256(vocabulary.encode()).hexdigest() == digest
    assert listed[30522:] == ["[DEC]", "[ENC]"]


@pytest.fixture(scope="module")
def small() -> BlipEncoder:
    """A small network with the published tokenizer."""
    tensors = golden.checkpoint(sharpness=20)
    config = BlipConfig.inferred(tensors)
    with torch.device("meta"):
        names = list(BlipNetwork(config).state_dict())
    network = BlipNetwork.with_weights(config, {name: tensors[name] for name in names})
    return BlipEncoder(network, blip_tokenizer(), "small.pth")


def test_texts_begin_with_cls_end_with_sep_and_are_cut_at_100(small: BlipEncoder) -> None:
    empty, short, long = small.tokens(["", "A Cat [ENC] café.", "word " * 500])
    assert empty == [101, 102]
    assert short == [101, 1037, 4937, 30523, 7668, 1012, 102]
    assert (len(long), long[0], long[-1]) == (100, 101, 102)


# One of the encoders


def inputs(encoder: BlipEncoder) -> list[Prepared]:
    red, blue = (encoder.pixels(draw_image(colour, (9, 5))) for colour in ("red", "blue"))
    return [
        Prepared(red, ""),
        Prepared(None, "A cat."),
        Prepared(red, "A cat."),
        Prepared(blue, "A cat."),
        Prepared(blue, "A much longer text, with more tokens than the others have."),
        Prepared(blue, ""),
    ]


def test_it_follows_the_protocol(small: BlipEncoder) -> None:
    assert isinstance(small, Encoder)
    vectors = small.encode(inputs(small))
    assert vectors.modality.tolist() == [Modality.IMAGE, Modality.TEXT, *[Modality.IMAGE_TEXT] * 3, Modality.IMAGE]
    assert vectors.image.shape == (6, small.dim)
    similarity = vectors.embedding() @ vectors.embedding().T
    assert (similarity[~np.eye(6, dtype=bool)] < 0.999).all()  # they are all different
    assert len(small.encode([])) == 0


def test_a_vector_does_not_depend_on_its_batch(small: BlipEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs(small)
    whole = small.encode(given)
    single = Vectors.concatenate([small.encode([one]) for one in given])
    np.testing.assert_allclose(single.image, whole.image, atol=1e-5)
    np.testing.assert_allclose(single.text, whole.text, atol=1e-5)
    monkeypatch.setattr(blip, "IMAGES_A_BATCH", 1)
    monkeypatch.setattr(blip, "TEXTS_A_BATCH", 1)
    np.testing.assert_allclose(small.encode(given).embedding(), whole.embedding(), atol=1e-5)


def test_an_image_that_several_share_is_read_once(small: BlipEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    read_images = small.network.read_images

    def counted(pixels: Tensor) -> object:
        read.append(len(pixels))
        return read_images(pixels)

    monkeypatch.setattr(small.network, "read_images", counted)
    small.encode([one for one in inputs(small) if one.pixels is not None])
    assert read == [2]
    small.to("cpu")  # forgets the memory of the absent image
    for _ in range(3):
        small.encode([Prepared(None, "A text."), Prepared(None, "Another.")])
    assert read == [2, 1]


def test_it_is_stored_and_restored(small: BlipEncoder) -> None:
    config = json.loads(json.dumps(small.config()))
    assert config["kind"] == "blip-ff"
    again = load_encoder(config, small.state())
    assert again.joint
    given = inputs(small)
    np.testing.assert_array_equal(again.encode(given).embedding(), small.encode(given).embedding())
    broken = {name: value for name, value in small.state().items() if not name.endswith("pos_embed")}
    with pytest.raises(BadModel, match=r"do not fit the network.*pos_embed.*Convert the model again"):
        load_encoder(config, broken)


def test_weights_for_other_words_are_refused(network: BlipNetwork) -> None:
    with pytest.raises(BadModel, match=r"tokenizer has 30524 tokens, the network of other\.pth 100"):
        BlipEncoder(network, blip_tokenizer(), "other.pth")


def test_a_device_that_is_not_there(small: BlipEncoder) -> None:
    with pytest.raises(BadModel, match="cannot be moved to the device nowhere"):
        small.to("nowhere")


def test_damaged_weights_give_no_vectors(small: BlipEncoder) -> None:
    state = small.state()
    state["model.text_encoder.pooler.dense.bias"] = np.full(small.dim, np.nan, np.float32)
    with pytest.raises(BadModel, match="NaN or infinity"):
        load_encoder(small.config(), state).encode([Prepared(None, "A cat.")])
