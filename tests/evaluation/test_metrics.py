"""The measures against trec_eval (through pytrec_eval), and the interval against drawing every query."""

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from genius.evaluation.metrics import interval, ndcg, recall, reciprocal_rank

CUTS = (1, 5, 10)


def by_trec_eval(right: np.ndarray, positives: np.ndarray, answers: int) -> list[dict[str, float]]:
    """Each query has `positives` right candidates, those found first; the others are nowhere in the ranking."""
    run = {f"q{q}": {f"d{place}": float(-place) for place in range(answers)} for q in range(len(right))}
    qrels = {}
    for q, row in enumerate(right):
        found = [f"d{place}" for place in np.flatnonzero(row)]
        lost = [f"lost{n}" for n in range(positives[q] - len(found))]
        qrels[f"q{q}"] = dict.fromkeys([*found, *lost], 1)
    measures = {f"success.{','.join(map(str, CUTS))}", "ndcg_cut.10", "recip_rank"}
    found = pytrec_eval.RelevanceEvaluator(qrels, measures).evaluate(run)
    return [found[f"q{q}"] for q in range(len(right))]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 10))
def test_every_measure_is_that_of_trec_eval(seed: int, queries: int, answers: int) -> None:
    rng = np.random.default_rng(seed)
    right = rng.random((queries, answers)) < 0.2
    positives = np.maximum(right.sum(axis=1) + rng.integers(0, 14, queries), 1)
    theirs = by_trec_eval(right, positives, answers)
    for cut in CUTS:
        np.testing.assert_allclose(recall(right, cut), [one[f"success_{cut}"] for one in theirs])
    np.testing.assert_allclose(reciprocal_rank(right, 10), [one["recip_rank"] for one in theirs])
    np.testing.assert_allclose(ndcg(right, positives, 10), [one["ndcg_cut_10"] for one in theirs])


def test_what_lies_behind_the_cut_does_not_count() -> None:
    right = np.array([[False, False, True], [False, True, True]])
    assert recall(right, 2).tolist() == [0, 1]
    assert reciprocal_rank(right, 2).tolist() == [0, 0.5]
    assert ndcg(right, np.array([1, 2]), 2)[0] == 0


def test_no_answers_and_nothing_to_find_give_zero() -> None:
    nothing = np.zeros((2, 0), bool)
    for values in (recall(nothing, 5), reciprocal_rank(nothing, 5), ndcg(nothing, np.array([1, 0]), 5)):
        assert values.tolist() == [0, 0]


@pytest.mark.parametrize("distinct", [(0.0, 1.0), (0.0, 0.25, 0.5, 0.75, 1.0)])
def test_the_interval_is_that_of_drawing_every_query(distinct: tuple[float, ...]) -> None:
    rng = np.random.default_rng(0)
    values = rng.choice(distinct, 300)
    means = rng.choice(values, (20_000, 300)).mean(axis=1)
    assert interval(values, rounds=20_000) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=0.004)
    low, high = interval(values, rounds=20_000, level=0.5)
    assert (low, high) == pytest.approx(tuple(np.quantile(means, [0.25, 0.75])), abs=0.004)


def test_the_interval_depends_on_seed_alone_and_closes_on_certainty() -> None:
    values = np.random.default_rng(1).integers(0, 2, 50).astype(float)
    assert interval(values) == interval(values)
    assert interval(values) != interval(values, seed=1)
    assert interval(np.ones(9)) == (1, 1)
