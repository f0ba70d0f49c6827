"""Blocks and their state, without Ray: each would be right on a worker too, which calls the same functions."""

from pathlib import Path

import pytest
from fakes import tiny_model
from sources import write_all, write_csv

from genius.data.items import Item
from genius.data.parts import read_part
from genius.data.readers import read_items
from genius.errors import BadItem
from genius.index.folder import open_folder
from genius.index.index import Index
from genius.index.session import Session
from genius.scale import blocks
from genius.scale.blocks import full_schema, read_chunk, rewrite_chunk, write_block
from genius.scale.build import _fragments, _merge_fields, _report
from genius.scale.state import FOLDER, Block, BuildState


def write_index(path: Path, sources: list[Path], size: int) -> tuple[Index, BuildState]:
    """Write all blocks of a plan, last one first, and commit them."""
    model = tiny_model()
    Index.create(path, model)
    session = Session.open(open_folder(path), model, None, None, 10.0)
    with session.writing() as snapshot:
        state = BuildState(path)
        state.plan(sources, size, snapshot.header)
        for number in reversed(state.waiting()):
            items = read_part(BuildState.read_part(path, number))
            state.record(number, write_block(path, snapshot.header, model, items, state.fields))
        fields = _merge_fields(state)
        for number, block in state.done.items():
            chunks = [rewrite_chunk(path, snapshot.header, chunk, [], fields) for chunk in block.chunks]
            state.record(number, Block([chunk for chunk in chunks if chunk], block.bad))
        fragments, checksums = _fragments(state)
        session.adopt(full_schema(snapshot.header, fields), fragments, checksums)
    return Index.open(path, model), state


@pytest.mark.parametrize("size", [3, 1000])
def test_blocks_in_any_order_give_the_index_that_adding_gives(tmp_path: Path, size: int) -> None:
    sources = write_all(tmp_path / "sources")
    sources.remove(tmp_path / "sources" / "rows.csv")  # its repeated ids are for the driver
    index, state = write_index(tmp_path / "built", sources, size)
    plain = Index.create(tmp_path / "plain", tiny_model())
    reports = [plain.add(read_items(source)) for source in sources]
    assert [item.id for item in index] == [item.id for item in plain]
    assert index.dataset.to_table().drop(list(index.fields)[4:]) == plain.dataset.to_table().drop(
        list(plain.fields)[4:]
    )
    assert sorted(index.fields) == sorted(plain.fields)
    assert _report(state).added == sum(report.added for report in reports)
    assert {(bad.id, bad.reason) for bad in _report(state).bad} == {
        (bad.id, bad.reason) for report in reports for bad in report.bad
    }
    assert index.verify(deep=True) == []
    assert index.files_without_checksum() == []


def test_files_that_no_block_names_are_removed_by_the_commit(tmp_path: Path) -> None:
    source = write_csv(tmp_path / "rows.csv", 5)
    index, _ = write_index(tmp_path / "built", [source], 4)
    used = {file.path for one in index.dataset.get_fragments() for file in one.data_files()}
    assert {path.name for path in (tmp_path / "built" / "items.lance" / "data").iterdir()} == used


def test_a_block_is_written_in_chunks_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "CHUNK_ROWS", 130)
    model = tiny_model()
    index = Index.create(tmp_path / "index", model)
    items: list[Item | BadItem] = [Item(f"i{number}", f"word {number}") for number in range(600)]
    items[7] = BadItem("i7", "it is bad.")
    items[300] = Item("i300", "nan")
    block = write_block(tmp_path / "index", index.header, model, items, {})
    assert [chunk.rows for chunk in block.chunks] == [255, 255, 88]
    assert [id for id, _ in block.bad] == ["i7", "i300"]
    assert block.items == 600
    found = [id for chunk in block.chunks for id in read_chunk(index.path, chunk, ["id"])["id"].to_pylist()]
    assert found == [f"i{number}" for number in range(600) if number not in (7, 300)]
    assert Block.from_json(block.to_json()) == block


def test_a_plan_that_was_not_completed_is_made_again(tmp_path: Path) -> None:
    source = write_csv(tmp_path / "rows.csv")
    header = Index.create(tmp_path / "index", tiny_model()).header
    state = BuildState(tmp_path / "index")
    state.plan([source], 10, header)
    assert (state.blocks, state.items, state.fields) == (4, 33, {"year": "number"})
    (state.folder / "plan.json").unlink()
    again = BuildState(tmp_path / "index")
    assert not again.planned
    again.plan([source], 20, header)
    assert BuildState(tmp_path / "index").waiting() == [0, 1]


def test_the_plan_outlives_changes_of_its_sources(tmp_path: Path) -> None:
    source = write_csv(tmp_path / "rows.csv")
    header = Index.create(tmp_path / "index", tiny_model()).header
    BuildState(tmp_path / "index").plan([source], 10, header)
    source.write_text("id,text\nother,other\n")
    state = BuildState(tmp_path / "index")
    ids = [item.id for number in state.waiting() for item in read_part(state.read_part(tmp_path / "index", number))]
    assert len(ids) == 33
    assert "t0" in ids
    state.remove()
    assert not (tmp_path / "index" / FOLDER).exists()
