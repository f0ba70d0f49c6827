"""Finding rows by their ids: against a dictionary, whatever the ids are and however they came in."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from genius.index.snapshot import Names, _hashes, _strings

ids_of_a_batch = st.lists(st.text(min_size=1, max_size=5), max_size=30)


@settings(deadline=None)
@given(st.lists(ids_of_a_batch, max_size=8), ids_of_a_batch)
def test_every_id_leads_to_its_rows(batches: list[list[str]], others: list[str]) -> None:
    names, rows, last = Names(), {}, -1
    for batch in batches:
        row_ids = last + 1 + np.arange(len(batch)) * 3
        names = names.insert(pa.chunked_array([pa.array(batch, pa.string())]), row_ids)
        last = max([last, *row_ids.tolist()])
        for id, row_id in zip(batch, row_ids.tolist(), strict=True):
            rows.setdefault(id, set()).add(row_id)
    assert names.last == last
    for id in [*rows, *others]:
        found = names.candidates(pa.array([id]))
        assert set(found.tolist()) >= rows.get(id, set())
    asked = names.candidates(pa.array([*rows, *others], pa.string()))
    assert set(asked.tolist()) >= set().union(*rows.values())


def test_hardly_any_other_row_is_suspected() -> None:
    ids = pa.array([f"9:{number}" for number in range(50_000)])
    names = Names.of([(ids.slice(0, 20_000), np.arange(20_000))], 20_000)
    for start in range(20_000, 50_000, 1000):
        names = names.insert(ids.slice(start, 1000), np.arange(start, start + 1000))
    assert sorted(names.candidates(ids).tolist()) == list(range(50_000))
    assert len(names.candidates(pa.array([f"8:{number}" for number in range(50_000)]))) < 10


def test_runs_stay_few() -> None:
    names = Names()
    for number in range(1000):
        names = names.insert(pa.array([str(number)]), np.array([number]))
    assert len(names._runs) <= 10


@settings(deadline=None)
@given(st.lists(st.text(max_size=5), max_size=20), st.integers(0, 20), st.integers(0, 20))
def test_a_hash_depends_on_the_text_alone(ids: list[str], start: int, count: int) -> None:
    array = pa.array(ids, pa.string())
    one_by_one = [_hashes(pa.array([id], pa.string()))[0] for id in ids]
    assert _hashes(array).tolist() == one_by_one
    assert _hashes(array.slice(start, count)).tolist() == one_by_one[start : start + count]
    assert _hashes(pa.chunked_array([array, array])).tolist() == one_by_one * 2
    assert len({*one_by_one}) == len({*ids})


def test_what_no_item_can_be_called_is_passed_over() -> None:
    assert _strings(["a", 5, "\ud800", "b"]).to_pylist() == ["a", "b"]  # type: ignore[list-item]
