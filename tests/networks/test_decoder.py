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
    decoder.init_codebooks([torch.randn(size, 8) * 0.5 for size in sizes])
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
        total = decoder.table_logits(decoder.hidden(z, codes), decoder.table).logsumexp(-1)
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


def slow_sums(decoder: Decoder, codes: list[int]) -> list[Tensor]:
    """The sum of the code vectors before each level of one ID, one by one."""
    sums = [torch.zeros(8)]
    for level, code in enumerate(codes[:-1]):
        sums.append(sums[-1] + decoder.codebooks[decoder.config.rows(level)][code])
    return sums


@pytest.mark.parametrize("layers", [0, 2])
def test_the_residual_score_is_added_to_the_logits_of_every_semantic_level(layers: int) -> None:
    decoder = tiny(layers=layers, residual_gain=3.0, query_scale=1.5)
    z, codes = torch.randn(4, 8), some_codes(decoder.config.sizes, 4)
    if layers:
        plain = tiny(layers=layers)
        plain.load_state_dict(decoder.state_dict())
        expected = [level.clone() for level in plain.logits(z, codes)]
    else:
        expected = [torch.zeros(4, size) for size in decoder.config.sizes]
    for query in range(4):
        sums = slow_sums(decoder, codes[query].tolist())
        for level in (1, 2, 3):
            for code, vector in enumerate(decoder.codebooks[decoder.config.rows(level)]):
                score = (1.5 * z[query] - sums[level]) @ vector - vector @ vector / 2
                expected[level][query, code] += 3.0 * score
    for got, wanted in zip(decoder.logits(z, codes), expected, strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


def test_residual_scores_sum_up_to_the_nearness_of_the_reconstruction() -> None:
    decoder = tiny(layers=0, residual_gain=2.0)
    z, codes = torch.randn(4, 8), some_codes(decoder.config.sizes, 4)
    total = sum(level.gather(1, codes[:, i, None])[:, 0] for i, level in enumerate(decoder.logits(z, codes)))
    vectors = torch.stack([decoder.codebooks[decoder.starts[i] + codes[:, i]] for i in range(4)], 1)

    def nearness(q: Tensor) -> Tensor:
        return 1.25 * (z * q).sum(1) - q.square().sum(1) / 2

    torch.testing.assert_close(total, 2.0 * (nearness(vectors.sum(1)) - nearness(vectors[:, 0])), atol=1e-4, rtol=1e-4)


def test_the_residual_input_is_made_of_query_sums_and_last_token() -> None:
    decoder = tiny(residual_input=True)
    with torch.no_grad():
        for weight in (decoder.query_input.weight, decoder.sum_input.weight, decoder.token_scale):
            weight.normal_()
    z, codes = torch.randn(3, 8), some_codes(decoder.config.sizes, 3)
    given: list[Tensor] = []
    hook = decoder.blocks[0].register_forward_pre_hook(lambda module, inputs: given.append(inputs[0]))
    decoder.hidden(z, codes)
    hook.remove()
    for query in range(3):
        for level, sums in enumerate(slow_sums(decoder, codes[query].tolist())):
            token = int(decoder.starts[level - 1] + codes[query, level - 1]) if level else 0
            expected = decoder.query_input.weight @ z[query] - decoder.sum_input.weight @ sums
            torch.testing.assert_close(given[0][query, level], expected + decoder.token_scale * decoder.table[token])


@pytest.mark.parametrize("d_model", [4, 8, 16])
def test_the_token_table_and_the_residual_input_start_from_the_code_vectors(d_model: int) -> None:
    decoder = tiny(d_model=d_model, residual_input=True)
    books = [torch.randn(size, 8) for size in decoder.config.sizes]
    specials = decoder.table[:3].clone()
    decoder.init_table(books, scale=5.0)
    assert torch.equal(decoder.table[:3], specials)
    table, vectors = decoder.table[3:], 5.0 * torch.cat(books)
    if d_model >= 8:  # inner products are kept
        torch.testing.assert_close(table @ table.T, vectors @ vectors.T, atol=1e-3, rtol=1e-4)
    if d_model == 8:
        assert torch.equal(table, vectors)
    torch.testing.assert_close(table / 5.0, decoder.sum_input(torch.cat(books)) / 16.0)
    torch.testing.assert_close(decoder.query_input.weight, 1.25 * decoder.sum_input.weight)


def test_code_vectors_are_neither_trained_nor_saved() -> None:
    decoder = tiny(residual_input=True, residual_gain=1.0)
    assert decoder.codebooks[3:].abs().min() > 0
    assert not decoder.codebooks[:3].any()
    assert "codebooks" not in {**decoder.state_dict(), **dict(decoder.named_parameters())}


def test_a_decoder_without_layers_has_no_weights_and_finds_all_modalities_equally_likely() -> None:
    decoder = tiny(layers=0, residual_gain=10.0)
    assert not decoder.state_dict()
    z, codes = torch.randn(4, 8), some_codes(decoder.config.sizes, 4)
    torch.testing.assert_close(decoder(z, codes)[:, 0], torch.full((4,), 1 / 3).log())


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
    config = DecoderConfig(dim=8, sizes=(3, 5), d_model=4, residual_input=True, residual_gain=2.0, query_scale=1.5)
    assert DecoderConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_options_of_later_versions_are_stored_only_if_used() -> None:
    """Keys and their order are part of every model's fingerprint."""
    stored = DecoderConfig(dim=8, sizes=(3, 5)).to_dict()
    assert list(stored)[-4:] == ["tied", "whole_vocabulary", "skip", "written"]
    assert (stored["skip"], stored["written"]) == (False, 0)
    used = DecoderConfig(dim=8, sizes=(3, 5), residual_gain=1.0).to_dict()
    assert list(used) == [*stored, "residual_gain"]


@pytest.mark.parametrize("former", [{"tied": False}, {"prefix_hidden": 4}, {"skip": True}, {"written": 2}], ids=str)
def test_former_options_are_read_only_with_the_supported_value(former: dict[str, Any]) -> None:
    stored = DecoderConfig(dim=8, sizes=(3, 5)).to_dict()
    assert DecoderConfig.from_dict(stored) == DecoderConfig(dim=8, sizes=(3, 5))
    with pytest.raises(BadModel, match=next(iter(former))):
        DecoderConfig.from_dict(stored | former)


def test_bad_configs_are_refused() -> None:
    with pytest.raises(BadModel, match="layers"):
        DecoderConfig(dim=8, sizes=(3, 5), layers=0)
    with pytest.raises(BadModel, match="residual_input"):
        DecoderConfig(dim=8, sizes=(3, 5), layers=0, residual_gain=1.0, residual_input=True)
    with pytest.raises(BadModel, match="whole_vocabulary"):
        DecoderConfig(dim=8, sizes=(3, 5), residual_gain=1.0, whole_vocabulary=True)
    with pytest.raises(BadModel, match="query_scale"):
        DecoderConfig(dim=8, sizes=(3, 5), query_scale=float("nan"))
    with pytest.raises(BadModel, match="dropout"):
        DecoderConfig(dim=8, sizes=(3, 5), dropout=1.0)
    with pytest.raises(BadModel, match="level"):
        DecoderConfig(dim=8, sizes=())
    with pytest.raises(BadModel, match="colour"):
        DecoderConfig.from_dict({"dim": 8, "sizes": [3, 5], "colour": "red"})
