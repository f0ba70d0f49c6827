"""Search in mode "fast" against slow and obvious versions."""

import functools

import numpy as np
import pytest
import torch
from fakes import torch_decoder
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from genius.errors import GeniusError
from genius.model.decoder_runtime import DecoderRuntime
from genius.search.nearest import MANY, MIN_NODES, QUERY_SCALE, SAMPLE, _best_nodes, nearest, nearest_search
from genius.search.rerank import CodeVectors
from genius.search.trie import Trie
from tests.networks.test_decoder import tiny

SIZES = (3, 4, 3, 5)
exact = settings(deadline=None, derandomize=True, max_examples=60)


@functools.cache
def engine_of(seed: int) -> DecoderRuntime:
    return tiny(SIZES, seed, **[{}, {"residual_input": True}, {"layers": 0, "residual_gain": 2.0}][seed]).runtime()  # type: ignore[arg-type]


@st.composite
def collections(draw: st.DrawFn) -> NDArray[np.uint16]:
    rows = st.tuples(*(st.integers(0, size - 1) for size in SIZES))
    return np.array(draw(st.lists(rows, min_size=1, max_size=60)), np.uint16)


def queries_of(count: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, 8)).astype(np.float32)


def slow_score(books: list[NDArray[np.float32]], query: NDArray[np.float32], item: list[int]) -> float:
    """The residual score of one item, whose code vectors are summed one by one."""
    total = np.zeros(len(query))
    for book, code in zip(books, item, strict=True):
        total += book[code]
    return float(query @ total - total @ total / 2)


def vectors_of(books: list[NDArray[np.float32]], trie: Trie) -> tuple[CodeVectors, NDArray[np.float32]]:
    """The code vectors, and |q|^2 / 2 of each item of the trie."""
    vectors = CodeVectors(books)
    return vectors, vectors.half_norms(trie.codes.T)


@exact
@given(collections(), st.integers(1, 30), st.integers(0, 2), st.data())
def test_nearest_are_the_highest_residual_scores(
    codes: NDArray[np.uint16], count: int, seed: int, data: st.DataObject
) -> None:
    trie, books, query = Trie(codes), engine_of(seed).codebooks, queries_of(1, seed)[0]
    modality = data.draw(st.sampled_from(sorted(set(codes[:, 0].tolist()))))
    inside = np.flatnonzero(trie.codes[0] == modality)
    vectors, halves = vectors_of(books, trie)
    got = nearest(trie, (inside[0], inside[-1] + 1), vectors.table @ query, vectors, halves, count)
    assert len(set(got.tolist())) == len(got) == min(count, len(inside))
    assert np.isin(got, inside).all()
    total = np.array([slow_score(books, query, item) for item in trie.ids(np.arange(len(trie))).tolist()])
    best = np.sort(total[inside])[::-1][: len(got)]
    np.testing.assert_allclose(np.sort(total[got])[::-1], best, atol=1e-4)  # so few items are all compared


def test_nearest_follows_the_best_nodes_of_a_large_collection() -> None:
    """Codes as a quantizer gives them: of vectors, each level the nearest to what the others leave."""
    rng = np.random.default_rng(0)
    items = rng.standard_normal((60_000, 8)).astype(np.float32)
    books, codes, rest = [np.zeros((1, 8), np.float32)], [np.zeros(len(items), np.uint16)], items.copy()
    for _ in range(6):
        book = rest[rng.choice(len(rest), 32, replace=False)] * np.float32(0.8)
        nearest_code = (np.square(book).sum(1) - 2 * rest @ book.T).argmin(axis=1)
        rest -= book[nearest_code]
        books.append(book)
        codes.append(nearest_code.astype(np.uint16))
    table = np.stack(codes, axis=1)
    trie, query = Trie(table), 1.25 * queries_of(1, 1)[0]
    vectors, halves = vectors_of(books, trie)
    decoded = vectors.decode(table)
    total = decoded @ query - np.square(decoded).sum(1) / 2
    for count, share in ((50, 0.75), (2 * MANY, 0.95)):  # many: some are dropped early
        got = nearest(trie, (0, len(trie)), vectors.table @ query, vectors, halves, count)
        assert len(set(got.tolist())) == count
        assert np.isin(np.argsort(-total)[:count], trie.order[got]).mean() > share


@exact
@given(st.integers(1, 6000), st.integers(1, 60_000), st.integers(0, 2), st.integers(0, 9))
def test_the_best_nodes_are_the_first_that_hold_enough_items(nodes: int, wanted: int, kind: int, seed: int) -> None:
    """Also where the nodes of the sample are unlike the others."""
    rng = np.random.default_rng(seed)
    score, items = rng.standard_normal(nodes).astype(np.float32), rng.integers(1, 20, nodes)
    sampled = slice(None, None, max(1, nodes // SAMPLE))
    items[sampled] += (0, 5_000, 0)[kind]
    score[sampled] += np.float32((0, 0, 9)[kind])
    kept, held = [], 0
    for node in np.argsort(-score).tolist():
        if held >= wanted and len(kept) >= MIN_NODES:
            break
        kept.append(node)
        held += items[node]
    assert _best_nodes(score, items, wanted).tolist() == sorted(kept)


@exact
@given(collections(), st.integers(1, 40), st.integers(0, 2), st.integers(-1, 2), st.sampled_from([0.0, 0.5, 1.0]))
def test_the_budget_goes_to_the_nearest_items_of_the_kept_modalities(
    codes: NDArray[np.uint16], count: int, seed: int, target: int, ratio: float
) -> None:
    engine, trie, z = engine_of(seed), Trie(codes), queries_of(1, seed)
    books = engine.codebooks
    options = {"targets": [target], "min_modality_ratio": ratio}
    (found,) = nearest_search(engine, trie, *vectors_of(books, trie), z, count, **options)  # type: ignore[arg-type]
    rows = trie.leaves(found.lo, found.hi).tolist()
    assert len(set(rows)) == len(rows)
    allowed = codes[:, 0] == target if target >= 0 else np.ones(len(codes), bool)
    assert allowed[rows].all()
    assert len(rows) == min(count, allowed.sum())
    with torch.inference_mode():
        logits = torch_decoder(engine).logits(torch.from_numpy(z), torch.zeros(1, 4, dtype=torch.long))
        first = logits[0][0].softmax(0).numpy()
    there = sorted(set(codes[allowed, 0].tolist()), key=lambda code: -first[code])
    for modality in there:  # of each modality, the nearest
        inside = np.flatnonzero(codes[:, 0] == modality)
        total = [slow_score(books, np.float32(QUERY_SCALE) * z[0], item) for item in codes[inside].tolist()]
        mine = [one for row, one in zip(inside, total, strict=True) if row in rows]
        np.testing.assert_allclose(sorted(mine, reverse=True), sorted(total, reverse=True)[: len(mine)], atol=1e-4)
        likely = target >= 0 or first[modality] >= ratio * first[there[0]] * (1 + 1e-6)
        share = count // len(there)
        if likely:  # several modalities share the budget
            assert len(mine) >= min(len(inside), share)


@exact
@given(collections(), st.integers(1, 20), st.lists(st.integers(-1, 2), min_size=1, max_size=5), st.integers(0, 2))
def test_a_query_gets_the_same_alone_and_in_a_batch(
    codes: NDArray[np.uint16], count: int, targets: list[int], seed: int
) -> None:
    engine, trie, z = engine_of(seed), Trie(codes), queries_of(len(targets), 0)
    code_vectors = vectors_of(engine.codebooks, trie)
    together = nearest_search(engine, trie, *code_vectors, z, count, targets=targets)
    for i, found in enumerate(together):
        (alone,) = nearest_search(engine, trie, *code_vectors, z[i : i + 1], count, targets=targets[i : i + 1])
        assert (alone.level, alone.lo.tolist(), alone.hi.tolist()) == (
            found.level,
            found.lo.tolist(),
            found.hi.tolist(),
        )
        np.testing.assert_allclose(alone.logprob, found.logprob, atol=1e-5)


@exact
@given(collections(), st.integers(1, 20), st.integers(0, 2))
def test_items_have_the_log_probability_of_their_first_two_codes(
    codes: NDArray[np.uint16], count: int, seed: int
) -> None:
    engine, trie, z = engine_of(seed), Trie(codes), queries_of(1, seed)
    (found,) = nearest_search(engine, trie, *vectors_of(engine.codebooks, trie), z, count)
    if found.level == 1:
        return  # all items fit
    ids = torch.from_numpy(trie.ids(found.lo))
    with torch.inference_mode():
        expected = torch_decoder(engine)(torch.from_numpy(z).expand(len(ids), -1), ids)[:, :2].sum(1)
    np.testing.assert_allclose(found.logprob, expected, atol=1e-4)


def test_few_items_need_no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny(SIZES).runtime()
    codes = np.random.default_rng(0).integers(0, SIZES, (60, 4)).astype(np.uint16)
    trie = Trie(codes)
    code_vectors = vectors_of(engine.codebooks, trie)
    monkeypatch.setattr(engine, "open", None)
    (found,) = nearest_search(engine, trie, *code_vectors, queries_of(1, 0), 60)
    assert sorted(trie.leaves(found.lo, found.hi).tolist()) == list(range(60))


def test_empty_trie_no_queries_and_bad_input() -> None:
    engine, empty = engine_of(0), Trie(np.zeros((0, 4), np.uint16))
    code_vectors = vectors_of(engine.codebooks, empty)
    found = nearest_search(engine, empty, *code_vectors, queries_of(2, 0), 5)
    assert [len(one) for one in found] == [0, 0]
    assert nearest_search(engine, empty, *code_vectors, queries_of(0, 0), 5) == []
    with pytest.raises(GeniusError, match="query 1"):
        nearest_search(engine, empty, *code_vectors, [[0.0] * 8, [float("nan")] * 8], 5)
