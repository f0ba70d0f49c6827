"""Beam search against brute force, against a slow step-by-step search, and against the published results."""

import functools

import golden
import numpy as np
import pytest
import torch
from fakes import torch_decoder
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from genius.errors import GeniusError
from genius.model.decoder_runtime import DecoderRuntime
from genius.networks.decoder import Decoder
from genius.search.beam import Beams, beam_search
from genius.search.trie import Trie
from tests.networks.test_decoder import golden_decoder, tiny

Path = tuple[int, ...]
SIZES = (3, 5, 4, 6)
exact = settings(deadline=None, derandomize=True, max_examples=40)


@functools.cache
def engine_of(levels: int, seed: int) -> DecoderRuntime:
    """Decoders of all kinds."""
    kinds: list[dict[str, object]] = [{}, {"residual_input": True}, {"residual_gain": 1.0}]
    kinds.append({"layers": 0, "residual_gain": 2.0} if levels > 1 else {"residual_input": True, "residual_gain": 1.0})
    return tiny(SIZES[:levels], seed, **kinds[seed]).runtime()


@st.composite
def collections(draw: st.DrawFn) -> NDArray[np.uint16]:
    """Codes of up to 30 items with one to four levels, many of them sharing prefixes or whole IDs."""
    levels = draw(st.integers(1, 4))
    rows = st.tuples(*(st.integers(0, size - 1) for size in SIZES[:levels]))
    return np.array(draw(st.lists(rows, min_size=1, max_size=30)), np.uint16)


def queries_of(count: int, seed: int) -> torch.Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))


def scores_of(decoder: Decoder, z: torch.Tensor, paths: list[Path]) -> dict[Path, float]:
    """Each whole ID's summed log-probability by teacher forcing."""
    with torch.inference_mode():
        totals = decoder(z.expand(len(paths), -1), torch.tensor(paths)).double().sum(1)
    return dict(zip(paths, totals.tolist(), strict=True))


def slow_beam_search(decoder: Decoder, z: torch.Tensor, rows: list[Path], width: int) -> list[tuple[Path, float]]:
    """One query; every prefix is scored from scratch."""
    beams: list[tuple[Path, float]] = [((), 0.0)]
    for level in range(len(rows[0])):
        grown = []
        for path, score in beams:
            filled = torch.tensor([[*path, *[0] * (len(rows[0]) - level)]])
            with torch.inference_mode():
                log_probs = decoder.logits(z, filled)[level][0].log_softmax(-1).tolist()
            children = {row[level] for row in rows if row[:level] == path}
            grown += [((*path, code), score + log_probs[code]) for code in children]
        beams = sorted(grown, key=lambda beam: (-beam[1], beam[0]))[:width]
    return beams


def paths_of(trie: Trie, beams: Beams) -> list[Path]:
    return [tuple(path[: beams.level]) for path in trie.ids(beams.lo).tolist()]


def as_rows(codes: NDArray[np.uint16]) -> list[Path]:
    return [tuple(row) for row in codes.tolist()]


def test_beams_are_the_published_ones() -> None:
    trie = Trie(golden.tensor("cand_codes").numpy())
    found = beam_search(golden_decoder().runtime(), trie, golden.tensor("query_fused"), 10)
    for beams, codes, logprob in zip(found, golden.tensor("beam_codes"), golden.tensor("beam_logprob"), strict=True):
        assert trie.ids(beams.lo).tolist() == codes.tolist()
        np.testing.assert_allclose(beams.logprob, logprob.numpy(), atol=1e-3)


@exact
@given(collections(), st.integers(0, 3))
def test_wide_beams_equal_brute_force(codes: NDArray[np.uint16], seed: int) -> None:
    engine, trie, z = engine_of(codes.shape[1], seed), Trie(codes), queries_of(2, seed)
    for beams, vector in zip(beam_search(engine, trie, z, len(codes)), z, strict=True):
        expected = scores_of(torch_decoder(engine), vector, sorted(set(as_rows(codes))))
        assert paths_of(trie, beams) == sorted(expected, key=lambda path: (-expected[path], path))
        np.testing.assert_allclose(beams.logprob, sorted(expected.values(), reverse=True), atol=1e-4)
        assert sorted(trie.leaves(beams.lo, beams.hi).tolist()) == list(range(len(codes)))


@exact
@given(collections(), st.integers(1, 6), st.integers(0, 3))
def test_narrow_beams_equal_a_slow_search(codes: NDArray[np.uint16], width: int, seed: int) -> None:
    engine, trie, z = engine_of(codes.shape[1], seed), Trie(codes), queries_of(2, seed)
    for beams, vector in zip(beam_search(engine, trie, z, width), z, strict=True):
        expected = slow_beam_search(torch_decoder(engine), vector[None], as_rows(codes), width)
        assert paths_of(trie, beams) == [path for path, _ in expected]
        np.testing.assert_allclose(beams.logprob, [score for _, score in expected], atol=1e-4)


@exact
@given(
    collections(),
    st.integers(1, 6),
    st.lists(st.integers(-1, 2), min_size=1, max_size=6),
    st.booleans(),
    st.integers(0, 3),
)
def test_a_query_gets_the_same_alone_and_in_a_batch(
    codes: NDArray[np.uint16], width: int, targets: list[int], tails: bool, seed: int
) -> None:
    engine, trie, z = engine_of(codes.shape[1], seed), Trie(codes), queries_of(len(targets), 0)
    together = beam_search(engine, trie, z, width, targets=targets, tails=tails)
    for i, beams in enumerate(together):
        (alone,) = beam_search(engine, trie, z[i : i + 1], width, targets=targets[i : i + 1], tails=tails)
        assert (alone.level, alone.lo.tolist(), alone.hi.tolist()) == (
            beams.level,
            beams.lo.tolist(),
            beams.hi.tolist(),
        )
        np.testing.assert_allclose(alone.logprob, beams.logprob, atol=1e-5)


@exact
@given(collections(), st.integers(1, 6), st.integers(-1, 2), st.integers(0, 3))
def test_stopping_at_one_id_a_beam_finds_the_same_items(
    codes: NDArray[np.uint16], width: int, modality: int, seed: int
) -> None:
    engine, trie, z = engine_of(codes.shape[1], seed), Trie(codes), queries_of(1, 1)
    (whole,) = beam_search(engine, trie, z, width, targets=[modality])
    (short,) = beam_search(engine, trie, z, width, targets=[modality], tails=False)
    assert set(trie.leaves(short.lo, short.hi).tolist()) == set(trie.leaves(whole.lo, whole.hi).tolist())
    assert short.level <= whole.level


@exact
@given(collections(), st.integers(1, 6), st.integers(0, 2))
def test_a_target_modality_searches_its_subtree_only(codes: NDArray[np.uint16], width: int, modality: int) -> None:
    engine, trie, z = engine_of(codes.shape[1], 2), Trie(codes), queries_of(1, 2)
    (beams,) = beam_search(engine, trie, z, width, targets=[modality])
    rows = [row for row in as_rows(codes) if row[0] == modality]
    if not rows:
        assert len(beams) == 0
        return
    expected = slow_beam_search(torch_decoder(engine), z, rows, width)
    assert paths_of(trie, beams) == [path for path, _ in expected]
    free = (
        np.array([score for _, score in expected])
        - torch_decoder(engine).logits(z, torch.tensor(rows[:1]))[0].log_softmax(-1)[0, modality].item()
    )
    np.testing.assert_allclose(beams.logprob, free, atol=1e-4)


def test_ties_go_to_the_lower_codes() -> None:
    decoder = tiny(SIZES)
    with torch.no_grad():
        decoder.table.zero_()  # every code of a level is equally probable
    codes = np.random.default_rng(0).integers(0, SIZES, (60, 4)).astype(np.uint16)
    trie = Trie(codes)
    (beams,) = beam_search(decoder.runtime(), trie, queries_of(1, 0), 7)
    assert paths_of(trie, beams) == sorted(set(as_rows(codes)))[:7]


def test_a_batch_larger_than_one_chunk_comes_back_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, z = tiny(SIZES).runtime(), queries_of(9, 0)
    trie = Trie(np.random.default_rng(0).integers(0, SIZES, (60, 4)).astype(np.uint16))
    whole = beam_search(engine, trie, z, 5)
    monkeypatch.setattr("genius.search.beam.CHUNK", 11)
    for a, b in zip(whole, beam_search(engine, trie, z, 5), strict=True):
        assert a.lo.tolist() == b.lo.tolist()


def test_empty_trie_and_no_queries() -> None:
    engine, empty = tiny(SIZES).runtime(), Trie(np.zeros((0, 4), np.uint16))
    assert [len(beams) for beams in beam_search(engine, empty, queries_of(2, 0), 5)] == [0, 0]
    assert beam_search(engine, Trie(np.array([[0, 1, 2, 3]])), queries_of(0, 0), 5) == []


def test_bad_input_is_refused() -> None:
    engine, trie = tiny(SIZES).runtime(), Trie(np.array([[0, 1, 2, 3]]))
    with pytest.raises(GeniusError, match="width is 0"):
        beam_search(engine, trie, queries_of(1, 0), 0)
    with pytest.raises(GeniusError, match="shape"):
        beam_search(engine, trie, torch.randn(1, 7), 5)
    with pytest.raises(GeniusError, match="query 1"):
        beam_search(engine, trie, [[0.0] * 8, [float("nan")] * 8], 5)
    with pytest.raises(GeniusError, match="highest codes"):
        beam_search(engine, Trie(np.array([[0, 1, 2, 6]])), queries_of(1, 0), 5)
    with pytest.raises(GeniusError, match="have 2 codes"):
        beam_search(engine, Trie(np.array([[0, 1]])), queries_of(1, 0), 5)


@exact
@given(collections(), st.integers(0, 3), st.integers(1, 8), st.sampled_from([0.05, 0.3, 0.6, 1.0]))
def test_improbable_modalities_are_not_searched(codes: NDArray[np.uint16], seed: int, width: int, ratio: float) -> None:
    engine, trie = engine_of(codes.shape[1], seed), Trie(codes)
    z = queries_of(1, seed)
    with torch.inference_mode():
        first = (
            torch_decoder(engine)
            .logits(z, torch.zeros(1, codes.shape[1], dtype=torch.long))[0][0]
            .log_softmax(-1)
            .exp()
            .tolist()
        )
    there = sorted(set(codes[:, 0].tolist()), key=lambda code: (-first[code], code))[:width]
    kept: list[int] = []
    for code in there:
        if first[code] >= ratio * first[there[0]] * (1 - 1e-6) or np.isin(codes[:, 0], kept).sum() < width:
            kept.append(code)
    some = Trie(codes[np.isin(codes[:, 0], kept)])
    (got,) = beam_search(engine, trie, z, width, min_modality_ratio=ratio)
    (expected,) = beam_search(engine, some, z, width)
    assert paths_of(trie, got) == paths_of(some, expected)
    np.testing.assert_allclose(got.logprob, expected.logprob, atol=1e-5)
