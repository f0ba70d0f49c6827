"""The decoder against the published one's numbers, and its step-by-step path against its whole-ID path."""

import functools
from typing import Any

import golden
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from genius.errors import BadModel
from genius.model.decoder import Decoder, DecoderConfig, dropout, position_bucket

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
    if decoder.skip is not None:
        decoder.start_skip([torch.randn(size, 8) for size in sizes], gain=0.5)
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
@pytest.mark.parametrize("tied", [False, True])
def test_forward_is_the_log_softmax_of_the_logits(tied: bool, whole_vocabulary: bool) -> None:
    decoder = tiny(tied=tied, whole_vocabulary=whole_vocabulary)
    z, codes = torch.randn(7, 8), some_codes(decoder.config.sizes, 7)
    logits = decoder.logits(z, codes)
    assert [tuple(level.shape) for level in logits] == [(7, size) for size in decoder.config.sizes]
    if whole_vocabulary:
        total = decoder.all_logits(decoder.hidden(z, codes), None).logsumexp(-1)
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
def test_the_linear_path_adds_the_products_with_the_code_vectors(whole_vocabulary: bool) -> None:
    decoder, plain = (tiny(skip=skip, whole_vocabulary=whole_vocabulary) for skip in (True, False))
    z, codes = torch.randn(4, 8), some_codes(decoder.config.sizes, 4)
    plain.load_state_dict({name: value for name, value in decoder.state_dict().items() if name != "skip"})
    books = [torch.randn(size, 8) for size in decoder.config.sizes]
    decoder.start_skip(books, gain=3.0)
    for with_path, without, book in zip(decoder.logits(z, codes), plain.logits(z, codes), books, strict=True):
        torch.testing.assert_close(with_path, without + 3 * z @ book.T)
    assert not torch.allclose(decoder(z, codes), plain(z, codes))
    with pytest.raises(BadModel, match="skip=True"):
        plain.start_skip(books, gain=3.0)


def test_levels_that_are_not_written_are_left_to_the_linear_path() -> None:
    whole, short = tiny(skip=True), tiny(skip=True, written=2)
    short.load_state_dict(whole.state_dict())
    z, codes = torch.randn(4, 8), some_codes(whole.config.sizes, 4)
    assert short.skip is not None
    for level, (all_layers, got) in enumerate(zip(whole.logits(z, codes), short.logits(z, codes), strict=True)):
        expected = all_layers if level < 2 else z @ short.skip[short.rows(level)].T
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("bad", [{"written": 2}, {"written": 5, "skip": True}, {"written": -1, "skip": True}])
def test_written_levels_need_a_linear_path_and_must_exist(bad: dict[str, Any]) -> None:
    with pytest.raises(BadModel, match="written"):
        tiny(**bad)


def test_position_buckets_are_t5s() -> None:
    buckets = position_bucket(torch.tensor([0, 1, 15, 16, 18, 19, 31, 64, 127, 128, 1000]))
    assert buckets.tolist() == [0, 1, 15, 16, 16, 17, 21, 26, 31, 31, 31]


def test_prefix_network_may_have_a_hidden_layer() -> None:
    decoder = tiny(prefix_hidden=4)
    assert decoder.prefix_embeddings(torch.randn(2, 8)).shape == (2, 3, 16)


def test_dropout_only_in_training() -> None:
    decoder = tiny()
    z, codes = torch.randn(2, 8), some_codes(decoder.config.sizes, 2)
    torch.testing.assert_close(decoder(z, codes), decoder(z, codes))
    decoder.train()
    assert not torch.allclose(decoder(z, codes), decoder(z, codes))


def test_dropout_zeroes_its_part_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    x = torch.ones(1001, 101, requires_grad=True)
    y = dropout(x, 0.25, True)
    assert (y == 0).float().mean().item() == pytest.approx(0.25, abs=0.01)
    assert y.mean().item() == pytest.approx(1, abs=0.01)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())  # what is dropped gets no gradient
    assert dropout(x, 0.0, True) is x


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
    config = DecoderConfig(dim=8, sizes=(3, 5), d_model=4, prefix_hidden=2, tied=False)
    assert DecoderConfig.from_json(config.to_json()) == config


def test_bad_configs_are_refused() -> None:
    with pytest.raises(BadModel, match="layers"):
        DecoderConfig(dim=8, sizes=(3, 5), layers=0)
    with pytest.raises(BadModel, match="dropout"):
        DecoderConfig(dim=8, sizes=(3, 5), dropout=1.0)
    with pytest.raises(BadModel, match="level"):
        DecoderConfig(dim=8, sizes=())
    with pytest.raises(BadModel, match="colour"):
        DecoderConfig.from_dict({"dim": 8, "sizes": [3, 5], "colour": "red"})
