"""Finding rows by their ids: against a dictionary, whatever the ids are and however they came in."""

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from genius.index.item_ids import ItemIds, to_strings

ids_of_a_batch = st.lists(st.text(min_size=1, max_size=5), max_size=30)


@settings(deadline=None)
@given(st.lists(ids_of_a_batch, max_size=8), ids_of_a_batch)
def test_every_id_leads_to_its_rows(batches: list[list[str]], others: list[str]) -> None:
    found_ids, rows, last = ItemIds.of([]), {}, -1
    for batch in batches:
        row_ids = last + 1 + np.arange(len(batch)) * 3
        found_ids = found_ids.insert(pa.chunked_array([pa.array(batch, pa.string())]), row_ids)
        last = max([last, *row_ids.tolist()])
        for id, row_id in zip(batch, row_ids.tolist(), strict=True):
            rows.setdefault(id, set()).add(row_id)
    assert found_ids.last == last
    for id in [*rows, *others]:
        found = found_ids.candidates(pa.array([id]))
        assert set(found.tolist()) >= rows.get(id, set())
    asked = found_ids.candidates(pa.array([*rows, *others], pa.string()))
    assert set(asked.tolist()) >= set().union(*rows.values())


def test_hardly_any_other_row_is_suspected() -> None:
    ids = pa.array([f"9:{number}" for number in range(50_000)])
    found_ids = ItemIds.of([(ids.slice(0, 20_000), np.arange(20_000))])
    for start in range(20_000, 50_000, 1000):
        found_ids = found_ids.insert(ids.slice(start, 1000), np.arange(start, start + 1000))
    assert sorted(found_ids.candidates(ids).tolist()) == list(range(50_000))
    assert len(found_ids.candidates(pa.array([f"8:{number}" for number in range(50_000)]))) < 10


def test_what_no_item_can_be_called_is_passed_over() -> None:
    assert to_strings(["a", 5, "\ud800", "b"]).to_pylist() == ["a", "b"]  # type: ignore[list-item]
