"""The three modes against brute force over all IDs and all embeddings."""

import numpy as np
import pytest
import torch
from fakes import TinyEncoder, tiny_model, torch_decoder
from hypothesis import given, settings
from hypothesis import strategies as st

from genius.data.items import Modality
from genius.encoders.base import Vectors
from genius.errors import GeniusError
from genius.model.encoder_only import encoder_only
from genius.model.genius import Genius
from genius.search import searcher as searcher_module
from genius.search.beam import beam_search
from genius.search.nearest import nearest_search
from genius.search.options import MODES, Mode, SearchOptions, automatic_budget
from genius.search.results import TopK
from genius.search.searcher import SPARE, AppendBuffer, Searcher

N, QUERIES = 300, 7
ALL = N  # a beam as wide as the collection: nothing is pruned


def vectors(n: int, seed: int, kinds: int = 3) -> Vectors:
    rng = np.random.default_rng(seed)
    image, text = (rng.standard_normal((n, 16)).astype(np.float32) for _ in range(2))
    kind = rng.integers(0, kinds, n)
    image[kind == Modality.TEXT] = 0
    text[kind == Modality.IMAGE] = 0
    return Vectors(image, text)


@pytest.fixture(scope="module")
def model() -> Genius:
    return tiny_model()


@pytest.fixture(scope="module")
def items() -> Vectors:
    return vectors(N, seed=1)


@pytest.fixture(scope="module")
def queries() -> Vectors:
    return vectors(QUERIES, seed=2)


@pytest.fixture(scope="module")
def searcher(model: Genius, items: Vectors) -> Searcher:
    return Searcher(model, model.codes(items), items.embedding().astype(np.float16))


def codes_of(searcher: Searcher) -> np.ndarray:
    """(rows, levels): zeros for rows that were removed."""
    codes = np.zeros((searcher.rows, searcher.trie.levels), np.uint16)
    codes[searcher.trie.order] = searcher.trie.codes.T
    return codes


def ask(searcher: Searcher, queries: Vectors, targets=None, **options) -> TopK:
    fused = searcher.model.fuse(queries)
    return searcher.search(fused, queries.embedding(), targets, SearchOptions(**options)).top


def log_probabilities(model: Genius, codes: np.ndarray, fused: np.ndarray) -> np.ndarray:
    """(q, n) by teacher forcing."""
    ids = torch.from_numpy(codes.astype(np.int64))
    decoder = torch_decoder(model.decoder)
    rows = [decoder(torch.from_numpy(z).expand(len(ids), -1), ids).sum(1).numpy() for z in fused]
    return np.stack(rows)


def test_generate_ranks_all_items_by_the_probability_of_their_ids(searcher, queries):
    found = ask(searcher, queries, k=N, mode="generate", beam=ALL)
    expected = log_probabilities(searcher.model, codes_of(searcher), searcher.model.fuse(queries))
    assert (np.sort(found.rows) == np.arange(N)).all()
    np.testing.assert_allclose(found.scores, np.take_along_axis(expected, found.rows, 1), atol=1e-3)
    assert (np.diff(found.scores) <= 0).all()


@pytest.mark.parametrize("mode", ["rerank", "fast"])
def test_with_a_wide_beam_re_ranking_is_exact_search(searcher, queries, mode):
    found = ask(searcher, queries, k=10, mode=mode, beam=ALL)
    similarity = queries.embedding() @ searcher.embeddings.astype(np.float32).T
    assert (found.rows == np.argsort(-similarity, kind="stable")[:, :10]).all()
    np.testing.assert_allclose(found.scores, np.take_along_axis(similarity, found.rows, 1), atol=1e-6)


@pytest.mark.parametrize("mode", ["rerank", "fast"])
def test_without_embeddings_the_codes_re_rank(searcher, queries, mode):
    codes_only = Searcher(searcher.model, codes_of(searcher))
    found = ask(codes_only, queries, k=10, mode=mode, beam=ALL)
    sums = searcher.model.quantizer.decode(codes_of(searcher))
    similarity = searcher.model.fuse(queries) @ (sums / np.linalg.norm(sums, axis=1, keepdims=True)).T
    np.testing.assert_allclose(found.scores, -np.sort(-similarity)[:, :10], atol=1e-5)


def test_fast_finds_whatever_rerank_finds_and_better(searcher, queries):
    rerank = ask(searcher, queries, k=5, mode="rerank", beam=5)
    fast = ask(searcher, queries, k=5, mode="fast", beam=5, budget=40)
    assert (fast.scores >= rerank.scores).all()
    assert (fast.scores > rerank.scores).any()


def test_rerank_orders_the_items_of_the_best_ids(searcher, queries):
    similarity = queries.embedding() @ searcher.embeddings.astype(np.float32).T
    found = ask(searcher, queries, k=4, mode="rerank", beam=5)
    beams = beam_search(searcher.model.decoder, searcher.trie, searcher.model.fuse(queries), 5)
    for query, best in enumerate(beams):
        items = searcher.trie.leaves(best.lo, best.hi)
        assert found.rows[query].tolist() == items[np.argsort(-similarity[query, items])][:4].tolist()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("embeddings", [True, False])
def test_many_queries_at_once_are_answered_as_one_by_one(searcher, queries, mode, embeddings):
    if not embeddings:
        searcher = Searcher(searcher.model, codes_of(searcher))
    targets = [None, Modality.TEXT, None, Modality.IMAGE, Modality.IMAGE_TEXT, None, None]
    together = ask(searcher, queries, targets=targets, k=8, mode=mode, beam=10, budget=50)
    for i in range(QUERIES):
        alone = ask(searcher, queries[i : i + 1], targets=targets[i : i + 1], k=8, mode=mode, beam=10, budget=50)
        assert (alone.rows[0] == together.rows[i]).all()
        np.testing.assert_allclose(alone.scores[0], together.scores[i], rtol=1e-5)


@pytest.mark.parametrize("mode", ["generate", "rerank"])
def test_unlikely_modalities_are_left_out_as_asked(searcher, queries, mode):
    """With ratio 1 only the most probable modality of a query is searched, with 0 every one that the beams reach."""
    fused, embedding, options = searcher.model.fuse(queries), queries.embedding(), SearchOptions(mode=mode, k=20)
    first = codes_of(searcher)[:, 0]
    one, every = (searcher.search(fused, embedding, None, options, ratio).top.rows for ratio in (1.0, 0.0))
    assert [len(set(first[rows])) for rows in one] == [1] * QUERIES
    assert max(len(set(first[rows])) for rows in every) > 1
    usual = searcher.search(fused, embedding, None, options).top.rows
    np.testing.assert_array_equal(
        usual, searcher.search(fused, embedding, None, options, searcher_module.MIN_MODALITY_RATIO).top.rows
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("modality", list(Modality))
def test_only_items_of_the_target_modality_come_out(searcher, queries, mode, modality):
    found = ask(searcher, queries, targets=np.full(QUERIES, modality), k=N, mode=mode)
    assert set(codes_of(searcher)[found.rows[found.rows >= 0], 0]) == {modality}
    assert ((found.rows >= 0).sum(1) == (codes_of(searcher)[:, 0] == modality).sum()).all()
    assert np.isneginf(found.scores[found.rows < 0]).all()


@pytest.mark.parametrize("mode", MODES)
def test_a_kind_that_is_not_there_is_not_found(searcher, queries, mode):
    texts = searcher.remove(np.flatnonzero(codes_of(searcher)[:, 0] != Modality.TEXT))
    found = ask(texts, queries, targets=[Modality.IMAGE] * QUERIES, k=3, mode=mode)
    assert (found.rows == -1).all()


@pytest.mark.parametrize("mode", MODES)
def test_items_that_share_an_id_all_come_out(searcher, queries, mode):
    double = searcher.insert(codes_of(searcher), searcher.embeddings)
    found = ask(double, queries, k=6, mode=mode, beam=ALL)
    for rows, scores in zip(found.rows, found.scores, strict=True):
        best = [row for row, score in zip(rows, scores, strict=True) if score == scores[0]]
        assert {best[0], (best[0] + N) % (2 * N)} <= set(best)


@pytest.mark.parametrize("mode", ["rerank", "fast"])
def test_equally_similar_items_come_in_the_order_of_their_rows(searcher, queries, mode):
    alike = Searcher(searcher.model, codes_of(searcher), np.ones_like(searcher.embeddings))
    assert (ask(alike, queries, k=9, mode=mode, beam=ALL).rows == np.arange(9)).all()


@pytest.mark.parametrize("mode", MODES)
def test_k_items_are_found_though_the_beam_is_narrower(searcher, queries, mode):
    assert (ask(searcher, queries, k=30, mode=mode, beam=2, budget=3).rows >= 0).all()


@settings(max_examples=40, deadline=None)
@given(data=st.data(), mode=st.sampled_from(MODES), embeddings=st.booleans())
def test_any_changes_leave_the_answers_of_a_searcher_built_anew(model, items, queries, data, mode, embeddings):
    codes, vectors = model.codes(items), items.embedding().astype(np.float16)
    end = data.draw(st.sampled_from([0, 1, 100]))
    searcher = Searcher(model, codes[:end], vectors[:end] if embeddings else None)
    there, numbers = list(range(end)), list(range(end))  # items, and the rows they are
    for _ in range(data.draw(st.integers(1, 5))):
        before = searcher, np.array(there, int), np.array(numbers, int)
        if data.draw(st.booleans()):
            new = data.draw(st.lists(st.integers(0, N - 1), max_size=60))
            numbers += range(searcher.rows, searcher.rows + len(new))
            there += new
            searcher = searcher.insert(codes[new], vectors[new] if embeddings else None)
        elif there:
            gone = data.draw(st.sets(st.integers(0, len(there) - 1)))
            searcher = searcher.remove(np.array([numbers[place] for place in gone], int))
            there = [item for place, item in enumerate(there) if place not in gone]
            numbers = [number for place, number in enumerate(numbers) if place not in gone]
        for one, left, rows in (before, (searcher, np.array(there, int), np.array(numbers, int))):
            assert len(one) == len(left)
            anew = Searcher(model, codes[left], vectors[left] if embeddings else None)
            found, expected = (ask(each, queries, k=10, mode=mode, beam=20, budget=50) for each in (one, anew))
            assert (found.rows == np.where(expected.rows < 0, -1, np.append(rows, -1)[expected.rows])).all()
            np.testing.assert_array_equal(found.scores, expected.scores)


def test_rows_are_added_without_copying_the_others():
    rows = AppendBuffer.of_size(3, 2, np.dtype(np.float16))
    rows.first(3)[:] = np.arange(6).reshape(3, 2)
    view = rows.first(3)
    more = rows.put(np.full((SPARE, 2), 7), behind=3)
    assert np.shares_memory(more.first(3 + SPARE), view)
    other = rows.put(np.full((1, 2), 9), behind=3)  # a second future of the same past
    assert not np.shares_memory(other.first(4), view)
    full = more.put(np.full((1, 2), 8), behind=3 + SPARE)
    for grown, end, last in ((more, 3 + SPARE, 7), (other, 4, 9), (full, 4 + SPARE, 8)):
        assert (grown.first(end)[:3] == view).all()
        assert (grown.first(end)[-1] == last).all()


def test_new_items_need_embeddings_where_the_others_have_them(searcher):
    with pytest.raises(GeniusError, match="300 IDs to be added need as many embeddings"):
        searcher.insert(codes_of(searcher))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_restricted_searcher_is_a_collection_of_these_rows_alone(model, items, queries, data):
    n = data.draw(st.sampled_from([1, 2, 30, N]))
    ids = data.draw(st.integers(1, n))  # fewer than n: items share IDs
    codes = model.codes(items)[np.arange(n) % ids]
    embeddings = items.embedding()[:n] if data.draw(st.booleans()) else None
    whole = Searcher(model, codes, embeddings)
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, n - 1), max_size=data.draw(st.sampled_from([3, n]))))), int)
    options = {
        "k": data.draw(st.sampled_from([1, 5, n + 1])),
        "mode": data.draw(st.sampled_from(MODES)),
        "beam": data.draw(st.sampled_from([1, 10, n])),
        "budget": data.draw(st.sampled_from([1, 20])),
        "targets": data.draw(st.none() | st.lists(st.sampled_from([None, *Modality]), min_size=7, max_size=7)),
    }
    shuffled = np.array(data.draw(st.permutations(rows.tolist())), int)
    found = ask(whole.restrict(shuffled), queries, **options)
    alone = ask(Searcher(model, codes[rows], None if embeddings is None else embeddings[rows]), queries, **options)
    expected = np.where(alone.rows < 0, -1, np.append(rows, -1)[alone.rows])
    assert (found.rows == expected).all()
    np.testing.assert_array_equal(found.scores, alone.scores)
    if options["targets"] is None:
        assert ((found.rows >= 0).sum(1) == min(options["k"], len(rows))).all()


@pytest.mark.parametrize("share", [0.01, 0.5, 1])
def test_few_and_many_rows_are_searched_alike(searcher, queries, share):
    rows = np.flatnonzero(np.random.default_rng(3).random(N) < share)
    found = ask(searcher.restrict(rows), queries, k=N, mode="fast")
    assert (np.sort(found.rows)[:, N - len(rows) :] == rows).all()


def test_nothing_is_found_in_an_empty_collection(searcher, queries):
    found = ask(searcher.remove(np.arange(N)), queries, k=3)
    assert found.rows.shape == found.scores.shape == (QUERIES, 3)
    assert (found.rows == -1).all()


def test_the_budget_follows_the_number_of_items_unless_it_is_given(searcher, queries, monkeypatch):
    seen = []

    def search(decoder, trie, vectors, halves, z, count, **kwargs):
        seen.append(count)
        return nearest_search(decoder, trie, vectors, halves, z, count, **kwargs)

    monkeypatch.setattr("genius.search.searcher.nearest_search", search)
    monkeypatch.setattr("genius.search.options.MIN_BUDGET", 1)
    half = searcher.restrict(np.arange(0, N, 2))
    for each, options in ((searcher, {}), (half, {}), (searcher, {"budget": 7}), (searcher, {"mode": "rerank"})):
        ask(each, queries, k=1, **options)
    assert seen == [automatic_budget(N), automatic_budget(N // 2), 7]
    assert seen[1] < seen[0]


def test_the_automatic_budget_grows_more_slowly_than_the_collection():
    sizes = [0, 10, 10_000, 100_000, 1_000_000, 5_600_000]
    assert [automatic_budget(size) for size in sizes] == [1000, 1000, 1000, 1000, 1757, 6395]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"k": 0}, "k is 0; it must be at least 1"),
        ({"k": -3}, "k is -3"),
        ({"beam": 0}, "beam is 0"),
        ({"budget": 0}, "budget is 0"),
        ({"mode": "fastest"}, "no search mode 'fastest'. Choose one of generate, rerank, fast"),
        ({"targets": [None]}, "7 queries and 1 targets"),
    ],
)
def test_impossible_wishes_are_refused(searcher, queries, options, sentence):
    with pytest.raises(GeniusError, match=sentence):
        ask(searcher, queries, **options)


def test_queries_that_are_not_numbers_are_refused_by_number(searcher, queries):
    text = queries.text.copy()
    text[3] = np.nan
    with pytest.raises(GeniusError, match="query 3 holds values that are not numbers"):
        searcher.search(searcher.model.fuse(queries), Vectors(queries.image, text).embedding())


def test_embeddings_must_be_those_of_the_codes(searcher):
    with pytest.raises(GeniusError, match="300 IDs and 299 embeddings"):
        Searcher(searcher.model, codes_of(searcher), searcher.embeddings[1:])


# Models without codebooks


@pytest.mark.parametrize("mode", ["fast", "rerank"])
@pytest.mark.parametrize("stored", [np.float32, np.float16])
def test_without_codebooks_search_compares_the_query_with_every_item(
    mode: Mode, stored: type[np.floating], monkeypatch: pytest.MonkeyPatch
) -> None:
    """More items than beams or budget, and than are read at once."""
    monkeypatch.setattr(searcher_module, "RANK_BLOCK", 100)
    model = encoder_only(TinyEncoder())
    assert model.encoder_only
    items, queries = vectors(700, 1), vectors(20, 2)
    embeddings = items.embedding(stored)
    searcher = Searcher(model, model.codes(items), embeddings)
    options = SearchOptions(k=7, mode=mode, beam=2, budget=5)
    scores = queries.embedding() @ embeddings.astype(np.float32).T
    np.testing.assert_allclose(model.fuse(queries), queries.embedding(), atol=1e-6)
    found = searcher.search(model.fuse(queries), queries.embedding(), None, options).top
    np.testing.assert_array_equal(found.rows, np.argsort(-scores, axis=1, kind="stable")[:, :7])
    targets = np.arange(20) % 3
    found = searcher.search(model.fuse(queries), queries.embedding(), targets, options).top
    scores[items.modality != targets[:, None]] = -2
    np.testing.assert_array_equal(found.rows, np.argsort(-scores, axis=1, kind="stable")[:, :7])
    with pytest.raises(GeniusError, match="no codebooks"):
        searcher.search(model.fuse(queries), queries.embedding(), None, SearchOptions(mode="generate"))
