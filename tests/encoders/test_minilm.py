"""The text backbone against `transformers` on the same weights; token states packed, taken and padded."""

import numpy as np
import pytest
import torch
from torch_backbones import bert

from genius.encoders import minilm as module
from genius.encoders.minilm import MAX_TOKENS, MiniLM, TokenStates

TEXTS = [
    "A cat asleep on a sofa.",
    "",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich!",
    "猫がソファで眠っている 🐈",
    "yes",
    "antidisestablishmentarianism, deoxyribonucleic   acid\tand\nso on",
    "Two dogs run through a field of tall grass while a child throws a ball into the air behind them.",
    "A cat asleep on a mat..",
    " ".join(f"word{n}" for n in range(300)),
    "z" * 90,
]


@torch.inference_mode()
def test_states_are_those_of_transformers(minilm: MiniLM) -> None:
    """There, texts are padded and masked."""
    ids, states = minilm.tokenize(TEXTS), minilm.states(TEXTS)
    padded = torch.zeros(len(ids), MAX_TOKENS, dtype=torch.long)
    for row, tokens in zip(padded, ids, strict=True):
        row[: len(tokens)] = torch.tensor(tokens)
    mask = torch.arange(MAX_TOKENS) < torch.tensor([len(tokens) for tokens in ids])[:, None]
    theirs = bert()(input_ids=padded, attention_mask=mask.long()).last_hidden_state
    np.testing.assert_allclose(states.states, theirs[mask].numpy(), atol=1e-5)


def test_tokens_are_those_of_bert(minilm: MiniLM) -> None:
    """Lower case, no accents, [CLS] and [SEP] around; an empty text has these two alone."""
    naive, plain, empty = minilm.tokenize(["Naïve CAFÉ", "naive cafe", ""])
    assert naive == plain
    assert empty == [naive[0], naive[-1]] == [101, 102]


def test_long_texts_are_cut(minilm: MiniLM) -> None:
    long = "cat " * 25_000
    assert len(long) == 100_000
    assert minilm.states([long]).lengths.tolist() == [MAX_TOKENS]
    cut, whole = minilm.tokenize(["cat " * (MAX_TOKENS - 2), "cat " * (MAX_TOKENS - 1)])
    assert cut == whole == minilm.tokenize([long])[0]
    assert len(minilm.tokenize(["cat " * (MAX_TOKENS - 3)])[0]) == MAX_TOKENS - 1


def test_a_long_text_without_spaces_is_read_too(minilm: MiniLM) -> None:
    assert len(minilm.states(["x" * 100_000, "猫" * 100_000])) == 2


def test_states_do_not_depend_on_the_batch(minilm: MiniLM) -> None:
    together = minilm.states(TEXTS * 3)
    for number, text in enumerate(TEXTS * 3):
        alone = minilm.states([text]).states
        np.testing.assert_allclose(alone, together.take(np.array([number])).states, atol=1e-5)


def test_batches_hold_every_row_once_are_of_one_length_and_of_no_more_tokens_than_allowed(
    minilm: MiniLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, whole = minilm.tokenize(TEXTS * 9), minilm.states(TEXTS * 2).states
    monkeypatch.setattr(module, "TOKENS_A_BATCH", 2 * MAX_TOKENS)
    batches, offsets = minilm.plan(ids)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(ids)))
    np.testing.assert_array_equal(np.diff(offsets), [len(i) for i in ids])
    assert all(len({len(ids[row]) for row in rows}) == 1 for rows in batches)
    assert all(sum(len(ids[row]) for row in rows) <= 2 * MAX_TOKENS for rows in batches)
    np.testing.assert_allclose(minilm.states(TEXTS * 2).states, whole, atol=1e-5)
    assert minilm.plan([])[0] == []


def test_plan_and_fill_write_each_text_to_its_place(minilm: MiniLM) -> None:
    ids = minilm.tokenize(TEXTS[:4])
    batches, offsets = minilm.plan(ids)
    states = np.full((offsets[-1], 384), np.nan, np.float16)
    for rows in reversed(batches):
        minilm.fill(states, offsets, ids, [rows])
    assert not np.isnan(states).any()
    np.testing.assert_allclose(states, minilm.states(TEXTS[:4]).states, atol=2e-3)


@pytest.fixture
def packed() -> TokenStates:
    """Texts of 3, 1, 4 and 3 tokens; every state names its text and its token."""
    lengths = [3, 1, 4, 3]
    states = np.array([[text, token] for text, length in enumerate(lengths) for token in range(length)], np.float16)
    return TokenStates(states, np.concatenate([[0], np.cumsum(lengths)]))


def test_taking_texts_keeps_their_states(packed: TokenStates) -> None:
    taken = packed.take(np.array([3, 0, 3, 1]))
    assert (len(taken), taken.lengths.tolist()) == (4, [3, 3, 3, 1])
    assert taken.states[:, 0].tolist() == [3, 3, 3, 0, 0, 0, 3, 3, 3, 1]
    assert taken.states[:, 1].tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert len(packed.take(np.array([], dtype=int))) == 0


def test_padding_is_masked(packed: TokenStates) -> None:
    x, mask = packed.padded(np.array([1, 2, 0]))
    assert x.dtype == np.float32
    assert x.shape == (3, 4, 2)
    assert mask is not None
    assert mask.sum(axis=1).tolist() == [1, 4, 3]
    for row, text in enumerate([1, 2, 0]):
        inside = x[row][mask[row]]
        assert (inside[:, 0] == text).all()
        assert inside[:, 1].tolist() == list(range(len(inside)))


def test_rows_of_one_length_need_no_mask(packed: TokenStates) -> None:
    x, mask = packed.padded(np.array([3, 0]))
    assert mask is None
    assert x[:, :, 0].tolist() == [[3, 3, 3], [0, 0, 0]]
