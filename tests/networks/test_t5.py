"""The decoder as a T5 of `transformers`: the same numbers from the saved folder, and clear refusals."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import T5ForConditionalGeneration

from genius.errors import GeniusError
from genius.networks.decoder import Decoder
from genius.networks.t5 import save_t5
from tests.networks.test_decoder import golden_decoder, tiny


def logits_of_the_folder(folder: Path, decoder: Decoder, z: Tensor, codes: Tensor) -> Tensor:
    """(n, levels, vocabulary), with nothing but transformers, torch and the files."""
    about = json.loads((folder / "codes.json").read_text())
    t5 = T5ForConditionalGeneration.from_pretrained(folder).eval()
    weights = load_file(folder / "prefix_network.safetensors")
    prefix = nn.functional.linear(z, weights["0.weight"], weights["0.bias"]).unflatten(
        -1, (about["prefix"], t5.config.d_model)
    )
    tokens = nn.functional.pad((codes + torch.tensor(about["starts"]))[:, :-1], (1, 0))
    return t5(inputs_embeds=prefix, decoder_input_ids=tokens).logits


@pytest.mark.parametrize("shape", [{}, {"whole_vocabulary": True}], ids=str)
@torch.inference_mode()
def test_a_saved_t5_gives_the_decoders_numbers(tmp_path: Path, shape: dict[str, Any]) -> None:
    decoder = tiny(**shape)
    save_t5(decoder.runtime(), tmp_path)
    codes = torch.stack([torch.arange(4) % size for size in decoder.config.sizes], dim=1)
    z = torch.randn(4, 8)
    logits = logits_of_the_folder(tmp_path, decoder, z, codes)
    expected = decoder.table_logits(decoder.hidden(z, codes), decoder.table)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    about = json.loads((tmp_path / "codes.json").read_text())
    for level, (start, size) in enumerate(zip(about["starts"], about["sizes"], strict=True)):
        own = logits[:, level] if about["whole_vocabulary"] else logits[:, level, start : start + size]
        first = start if about["whole_vocabulary"] else 0
        got = own.log_softmax(-1)[torch.arange(4), first + codes[:, level]]
        torch.testing.assert_close(got, decoder(z, codes)[:, level], atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_the_published_decoder_comes_back_as_the_published_t5(tmp_path: Path) -> None:
    import golden

    decoder = golden_decoder()
    save_t5(decoder.runtime(), tmp_path)
    z, codes = golden.tensor("query_fused"), golden.tensor("beam_codes")[:, 0]
    logits = logits_of_the_folder(tmp_path, decoder, z, codes)
    tokens = codes + torch.tensor(json.loads((tmp_path / "codes.json").read_text())["starts"])
    total = logits.log_softmax(-1).gather(-1, tokens[..., None]).sum((1, 2))
    torch.testing.assert_close(total, golden.tensor("beam_logprob")[:, 0], atol=1e-3, rtol=0)


@pytest.mark.parametrize("shape", [{}, {"whole_vocabulary": True}], ids=str)
def test_the_code_in_the_folders_readme_runs(tmp_path: Path, shape: dict[str, Any]) -> None:
    decoder = tiny(**shape)
    save_t5(decoder.runtime(), tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", (tmp_path / "README.md").read_text(), re.S)
    names: dict[str, Any] = {"FOLDER": str(tmp_path)}
    with torch.inference_mode():
        exec(code, names)
        expected = decoder.logits(names["z"], torch.zeros(1, 1, dtype=torch.long))[0]
    torch.testing.assert_close(names["modality"], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "shape", [{"residual_input": True}, {"residual_gain": 1.0}, {"layers": 0, "residual_gain": 1.0}], ids=str
)
def test_what_t5_cannot_express_is_refused(tmp_path: Path, shape: dict[str, Any]) -> None:
    with pytest.raises(GeniusError, match="residual_input = false"):
        save_t5(tiny(**shape).runtime(), tmp_path / "out")
    assert not (tmp_path / "out").exists()
