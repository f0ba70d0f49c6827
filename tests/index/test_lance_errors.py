"""Messages say nothing about the machine on which Lance was built."""

import re
import shutil
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from fakes import tiny_model

from genius import GeniusError, Index, Item, Query
from genius.index.lance_errors import lance_reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Not found: a/_versions, /home/runner/work/lance/rust/commit.rs:653:26, /home/x/builder.rs:921:29", None),
        (
            "External error: LanceError(IO): Generic memory error: no, /rustc/48a2/library/core/src/function.rs:250:5",
            "no",
        ),
        ("Error optimizing (wrong type, /home/runner/planner.rs:1100:20), /home/runner/scanner.rs:848:21", None),
        ("cut off, location: C:\\build\\lance\\src\\reader.rs:7:1", "cut off"),
        ("Not found: /data/photos.genius/items.lance/data/a.lance", None),
    ],
)
def test_places_in_the_source_of_lance_are_left_out(text: str, reason: str | None) -> None:
    cleaned = lance_reason(OSError(text))
    assert ".rs" not in cleaned
    assert reason is None or cleaned == reason
    assert "data" not in text or cleaned == text  # a user's own path stays


def test_no_message_of_a_damaged_index_names_a_source_file(tmp_path: Path) -> None:
    index = Index.create(tmp_path / "whole", tiny_model())
    index.add([Item(str(n), text=f"number {n}") for n in range(4)])

    def message(damage: str) -> str:
        folder = tmp_path / damage.replace("*", "all").replace("/", "-")
        shutil.copytree(tmp_path / "whole", folder)
        for file in folder.glob(f"items.lance/{damage}"):
            file.write_bytes(b"x" * 100)
        with pytest.raises(GeniusError) as caught:
            Index.open(folder, tiny_model()).search(Query(text="one"))
        return str(caught.value)

    for said in (message("data/*.lance"), message("_versions/*")):
        assert not re.search(r"\.rs\b|/home/runner|rustc", said), said


def test_lance_still_names_its_sources(tmp_path: Path) -> None:
    """Otherwise this module has no purpose any more."""
    lance.write_dataset(pa.table({"a": [1]}), tmp_path / "a.lance")
    with pytest.raises(ValueError, match=r"\.rs:\d+"):
        lance.dataset(tmp_path / "a.lance").to_table(filter="b = 1")
