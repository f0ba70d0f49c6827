"""The exported ONNX files, run by fresh sessions of ONNX Runtime, against the networks in torch."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tiny_clip
import torch
import transformers
from fakes import TinyEncoder, tiny_model
from PIL import Image

from genius.encoders.base import Prepared
from genius.encoders.clip import ClipEncoder
from genius.encoders.mini import MiniEncoder
from genius.encoders.sentence import SentenceEncoder
from genius.errors import GeniusError
from genius.networks.fusion import Fusion
from genius.networks.onnx_export import decoder_files, encoder_files, export_onnx
from tests.model.test_decoder_runtime import SHAPES, picked, queries, teacher_forced
from tests.networks.test_decoder import tiny


def written(folder: Path, files: dict[str, bytes]) -> dict[str, Path]:
    for name, content in files.items():
        (folder / f"{name}.onnx").write_bytes(content)
    return {name: folder / f"{name}.onnx" for name in files}


def run(file: Path, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    onnx.checker.check_model(str(file), full_check=True)  # standard operators only
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    taken = {one.name: inputs[one.name] for one in session.get_inputs()}
    return dict(zip((one.name for one in session.get_outputs()), session.run(None, taken), strict=True))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_beams_stepped_through_the_files_score_as_in_the_decoder(tmp_path: Path, shape: dict[str, Any]) -> None:
    decoder, z, rng = tiny(**shape), queries(3), np.random.default_rng(2)
    sizes, files = decoder.config.sizes, written(tmp_path, decoder_files(decoder.runtime()))
    state = run(files["decoder_open"], {"z": z})
    log_probs = state["log_probs"]
    codes, score = np.zeros((3, 1, 0), np.int64), np.zeros((3, 1))
    for level, width in enumerate((2, 4, 3, 5)):
        parents = rng.integers(0, codes.shape[1], (3, width))
        before = np.take_along_axis(codes, parents[..., None], 1)
        codes = np.concatenate([before, rng.integers(0, sizes[level], (3, width, 1))], 2)
        ahead = np.take_along_axis(log_probs, parents[..., None], 1)
        score = np.take_along_axis(score, parents, 1) + picked(ahead, codes[..., -1])
        if level + 1 < len(sizes):
            step = run(files["decoder_step"], state | {"codes": codes[..., -1], "parents": parents})
            log_probs = step.pop("log_probs")
            state |= {name.removeprefix("new_"): value for name, value in step.items()}
    np.testing.assert_allclose(score, teacher_forced(decoder, z, codes).sum(-1), atol=1e-4)


def test_a_decoder_of_one_level_has_no_steps() -> None:
    assert list(decoder_files(tiny((3,)).runtime())) == ["decoder_open"]


@torch.inference_mode()
def test_fusion_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    fusion = Fusion(8, 4).eval()
    for parameter in fusion.parameters():
        parameter.normal_()
    image, text = torch.randn(5, 8), torch.randn(5, 8)
    image[1], text[2] = 0, 0
    files = written(tmp_path, {"fusion": fusion.runtime().model().to_bytes()})
    got = run(files["fusion"], {"image": image.numpy(), "text": text.numpy()})["fused"]
    np.testing.assert_allclose(got, fusion(image, text).numpy(), atol=1e-6)


def test_mini_encoder_files(tmp_path: Path, mini: MiniEncoder) -> None:
    files = written(tmp_path, encoder_files(mini))
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 255, (90, 60 + n, 3), np.uint8)) for n in range(3)]
    pixels = np.stack([mini.pixels(image) for image in images])
    expected = mini.encode([Prepared(one, "") for one in pixels]).image
    np.testing.assert_allclose(run(files["encoder_image"], {"pixels": pixels})["vectors"], expected, atol=2e-5)
    for texts in (["one cat"], ["a much longer sentence about two dogs", "a much longer sentence about two cats"]):
        ids = np.array(mini._words.tokenize(texts))
        expected = mini.encode([Prepared(None, text) for text in texts]).text
        np.testing.assert_allclose(run(files["encoder_text"], {"ids": ids})["vectors"], expected, atol=2e-5)


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_clip_encoder_files(tmp_path: Path, family: str) -> None:
    encoder = ClipEncoder.from_hub(tiny_clip.save(family, tmp_path))
    files, rng = written(tmp_path, encoder_files(encoder)), np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 255, (41, 33, 3), np.uint8)) for _ in range(3)]
    pixels = np.stack([encoder.pixels(image) for image in images])
    expected = encoder.encode([Prepared(one, "") for one in pixels]).image
    np.testing.assert_allclose(run(files["encoder_image"], {"pixels": pixels})["vectors"], expected, atol=2e-5)
    for text in ("a cat", "the red dog on a sofa"):
        ids = np.array(encoder.tokens([text]))
        expected = encoder.encode([Prepared(None, text)]).text
        np.testing.assert_allclose(run(files["encoder_text"], {"ids": ids})["vectors"], expected, atol=2e-5)


def test_images_of_any_proportions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GeniusError, match="naflex"):
        encoder_files(ClipEncoder.from_hub(tiny_clip.save("siglip2", tmp_path)))


def test_sentence_encoder_file(tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    torch.manual_seed(0)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "cat", "dog", "sleeps"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path / "bert")
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=len(words), **shape)
    transformers.BertModel(config).save_pretrained(tmp_path / "bert")
    backbone = Transformer(str(tmp_path / "bert"))
    model = SentenceTransformer(modules=[backbone, Pooling(16)], device="cpu")
    encoder = SentenceEncoder(model, "tiny")
    file = written(tmp_path, encoder_files(encoder))["encoder_text"]
    texts = ["a cat", "a dog sleeps a cat sleeps"]
    tokens = model.tokenizer(texts, padding=True, return_tensors="np")
    got = run(file, {"ids": tokens["input_ids"], "mask": tokens["attention_mask"]})["vectors"]
    np.testing.assert_allclose(got, encoder.encode([Prepared(None, text) for text in texts]).text, atol=1e-5)


def test_a_folder_says_what_is_in_it(tmp_path: Path) -> None:
    model = tiny_model()
    assert isinstance(model.encoder, TinyEncoder)
    names = export_onnx(model, tmp_path / "out")
    assert names == ["fusion", "decoder_open", "decoder_step"]  # no file for an encoder of a kind it does not know
    about = json.loads((tmp_path / "out/onnx.json").read_text())
    assert about["fingerprint"] == model.fingerprint
    assert about["networks"]["fusion"]["inputs"]["image"] == ["float32", "n", model.dim]
    assert about["networks"]["decoder_open"]["outputs"]["log_probs"] == ["float32", "q", 1, 3]
    assert sorted(file.stem for file in (tmp_path / "out").glob("*.onnx")) == sorted(names)
