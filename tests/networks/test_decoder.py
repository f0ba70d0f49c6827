"""The decoder against the published one's numbers, and its step-by-step path against its whole-ID path."""

import functools
import json
from typing import Any

import golden
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from genius.errors import BadModel
from genius.model.decoder_config import DecoderConfig, position_buckets
from genius.networks.decoder import Decoder

T5_BLOCK = {  # our names -> the published ones; several are stacked into one matrix
    "self_norm": ["layer.0.layer_norm"],
    "self_qkv": ["layer.0.SelfAttention.q", "layer.0.SelfAttention.k", "layer.0.SelfAttention.v"],
    "self_out": ["layer.0.SelfAttention.o"],
    "cross_norm": ["layer.1.layer_norm"],
    "cross_q": ["layer.1.EncDecAttention.q"],
    "cross_kv": ["layer.1.EncDecAttention.k", "layer.1.EncDecAttention.v"],
    "cross_out": ["layer.1.EncDecAttention.o"],
    "ff_norm": ["layer.2.layer_norm"],
    "ff_in": ["layer.2.DenseReluDense.wi"],
    "ff_out": ["layer.2.DenseReluDense.wo"],
}


@functools.cache
def golden_decoder() -> Decoder:
    """The published decoder with the recipe's weights."""
    decoder = Decoder(DecoderConfig(dim=768, sizes=(3, 256, 256, 256, 256), whole_vocabulary=True)).eval()
    t5, projector = golden.weights("id_generator"), golden.weights("embed_projector")
    ours = {
        "prefix_network.0.weight": projector["0.weight"],
        "prefix_network.0.bias": projector["0.bias"],
        "prefix_norm.weight": t5["encoder.final_layer_norm.weight"],
        "table": t5["shared.weight"],
        "position_bias": t5["decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"],
        "final_norm.weight": t5["decoder.final_layer_norm.weight"],
    }
    for layer in range(decoder.config.layers):
        for name, parts in T5_BLOCK.items():
            stacked = [t5[f"decoder.block.{layer}.{part}.weight"] for part in parts]
            ours[f"blocks.{layer}.{name}.weight"] = torch.cat(stacked)
    decoder.load_state_dict(ours)
    return decoder


def tiny(sizes: tuple[int, ...] = (3, 5, 4, 6), seed: int = 0, **changes: object) -> Decoder:
    torch.manual_seed(seed)
    shape = {"d_model": 16, "layers": 2, "heads": 2, "d_kv": 8, "d_ff": 32, "prefix": 3, "dropout": 0.3} | changes
    decoder = Decoder(DecoderConfig(dim=8, sizes=sizes, **shape)).eval()  # type: ignore[arg-type]
    if decoder.linear_head is not None:
        decoder.init_linear_head([torch.randn(size, 8) for size in sizes], gain=0.5)
    return decoder


def some_codes(sizes: tuple[int, ...], *shape: int) -> Tensor:
    return torch.stack([torch.randint(0, size, shape) for size in sizes], dim=-1)


def test_prefix_is_the_published_one() -> None:
    prefix = golden_decoder().prefix_embeddings(golden.tensor("query_fused")[:1])[0]
    torch.testing.assert_close(prefix, golden.tensor("prefix_q0"), atol=1e-4, rtol=1e-4)


def test_log_probabilities_are_the_published_ones() -> None:
    decoder, codes = golden_decoder(), golden.tensor("cand_codes")[:256]
    z = golden.tensor("query_fused")[:1].expand(256, -1)
    with torch.inference_mode():
        torch.testing.assert_close(decoder(z, codes).sum(1), golden.tensor("q0_first256_logprob"), atol=1e-3, rtol=0)


def test_beams_log_probabilities_are_the_published_ones() -> None:
    z, codes = golden.tensor("query_fused"), golden.tensor("beam_codes")
    with torch.inference_mode():
        total = golden_decoder()(z.repeat_interleave(10, 0), codes.flatten(0, 1)).sum(1)
    torch.testing.assert_close(total.view(6, 10), golden.tensor("beam_logprob"), atol=1e-3, rtol=0)


@pytest.mark.parametrize("whole_vocabulary", [False, True])
def test_forward_is_the_log_softmax_of_the_logits(whole_vocabulary: bool) -> None:
    decoder = tiny(whole_vocabulary=whole_vocabulary)
    z, codes = torch.randn(7, 8), some_codes(decoder.config.sizes, 7)
    logits = decoder.logits(z, codes)
    assert [tuple(level.shape) for level in logits] == [(7, size) for size in decoder.config.sizes]
    if whole_vocabulary:
        total = decoder.table_logits(decoder.hidden(z, codes)).logsumexp(-1)
        picked = [level.gather(1, codes[:, i, None])[:, 0] - total[:, i] for i, level in enumerate(logits)]
    else:
        picked = [-F.cross_entropy(level, codes[:, i], reduction="none") for i, level in enumerate(logits)]
    torch.testing.assert_close(decoder(z, codes), torch.stack(picked, 1))


def test_a_level_depends_only_on_the_codes_before_it() -> None:
    decoder = tiny()
    z, codes = torch.randn(4, 8), some_codes(decoder.config.sizes, 4)
    other = codes.clone()
    other[:, 2] = (codes[:, 2] + 1) % 4
    before, after = decoder.logits(z, codes), decoder.logits(z, other)
    for level in range(3):
        torch.testing.assert_close(before[level], after[level])
    assert not torch.allclose(before[3], after[3])


def test_the_first_codes_of_ids_score_as_in_whole_ids() -> None:
    decoder = tiny()
    z, codes = torch.randn(4, 8), some_codes(decoder.config.sizes, 4)
    torch.testing.assert_close(decoder(z, codes[:, :2]), decoder(z, codes)[:, :2])


@pytest.mark.parametrize("whole_vocabulary", [False, True])
def test_the_linear_head_adds_the_products_with_the_code_vectors(whole_vocabulary: bool) -> None:
    decoder, plain = (tiny(linear_head=linear, whole_vocabulary=whole_vocabulary) for linear in (True, False))
    z, codes = torch.randn(4, 8), some_codes(decoder.config.sizes, 4)
    plain.load_state_dict({name: value for name, value in decoder.state_dict().items() if name != "linear_head"})
    books = [torch.randn(size, 8) for size in decoder.config.sizes]
    decoder.init_linear_head(books, gain=3.0)
    for with_head, without, book in zip(decoder.logits(z, codes), plain.logits(z, codes), books, strict=True):
        torch.testing.assert_close(with_head, without + 3 * z @ book.T)
    assert not torch.allclose(decoder(z, codes), plain(z, codes))
    with pytest.raises(BadModel, match="linear_head=True"):
        plain.init_linear_head(books, gain=3.0)


def test_levels_after_the_decoder_levels_are_left_to_the_linear_head() -> None:
    whole, short = tiny(linear_head=True), tiny(linear_head=True, decoder_levels=2)
    short.load_state_dict(whole.state_dict())
    z, codes = torch.randn(4, 8), some_codes(whole.config.sizes, 4)
    assert short.linear_head is not None
    for level, (all_layers, got) in enumerate(zip(whole.logits(z, codes), short.logits(z, codes), strict=True)):
        expected = all_layers if level < 2 else z @ short.linear_head[short.config.rows(level)].T
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(("levels", "linear_head"), [(2, False), (5, True), (-1, True)])
def test_decoder_levels_need_a_linear_head_and_must_exist(levels: int, linear_head: bool) -> None:
    with pytest.raises(BadModel, match="decoder_levels"):
        tiny(decoder_levels=levels, linear_head=linear_head)


def test_position_buckets_are_t5s() -> None:
    distances = np.array([0, 1, 15, 16, 18, 19, 31, 64, 127, 128, 1000])
    assert position_buckets(1001)[1000, 1000 - distances].tolist() == [
        0,
        1,
        15,
        16,
        16,
        17,
        21,
        26,
        31,
        31,
        31,
    ]


def test_dropout_only_in_training() -> None:
    decoder = tiny()
    z, codes = torch.randn(2, 8), some_codes(decoder.config.sizes, 2)
    torch.testing.assert_close(decoder(z, codes), decoder(z, codes))
    decoder.train()
    assert not torch.allclose(decoder(z, codes), decoder(z, codes))


def test_it_learns() -> None:
    decoder = tiny(dropout=0.0).train()
    z, codes = torch.randn(16, 8), some_codes(decoder.config.sizes, 16)
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        loss = -decoder(z, codes).sum(1).mean()  # Eq. 10
        loss.backward()
        optimizer.step()
    assert loss.item() < 1.0


def test_config_survives_json() -> None:
    config = DecoderConfig(dim=8, sizes=(3, 5), d_model=4, linear_head=True, decoder_levels=1)
    assert DecoderConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize("former", [{"tied": False}, {"prefix_hidden": 4}], ids=str)
def test_former_options_are_read_only_with_the_supported_value(former: dict[str, Any]) -> None:
    stored = DecoderConfig(dim=8, sizes=(3, 5)).to_dict()
    assert DecoderConfig.from_dict(stored) == DecoderConfig(dim=8, sizes=(3, 5))
    with pytest.raises(BadModel, match=next(iter(former))):
        DecoderConfig.from_dict(stored | former)


def test_bad_configs_are_refused() -> None:
    with pytest.raises(BadModel, match="layers"):
        DecoderConfig(dim=8, sizes=(3, 5), layers=0)
    with pytest.raises(BadModel, match="dropout"):
        DecoderConfig(dim=8, sizes=(3, 5), dropout=1.0)
    with pytest.raises(BadModel, match="level"):
        DecoderConfig(dim=8, sizes=())
    with pytest.raises(BadModel, match="colour"):
        DecoderConfig.from_dict({"dim": 8, "sizes": [3, 5], "colour": "red"})
