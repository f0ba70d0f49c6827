"""What an index exports comes back the same through `read_items`, whatever the items look like."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from fakes import draw_image, tiny_model
from PIL import Image

import genius.index.export
from genius.data.items import Item, Query
from genius.data.mbeir import Benchmark
from genius.data.readers import read_items
from genius.encoders.base import Vectors
from genius.errors import BadData, BadIndex, GeniusError
from genius.index.export import POOL
from genius.index.index import Index
from genius.model.genius import Genius

UNUSUAL = [
    Item("it's", "a 'quoted' text", metadata={"lang": "en", "year": 1999}),
    Item('a "b" c', 'double "quotes"\nand\r\na new line\u2028and another', metadata={"tags": ["a", {"b": 1.5}]}),
    Item("é/ü\\n ?#%", "日本語 🦉", metadata={"id": "inner", "did": 7, "text": "inner", "deep": {"x": {"y": [1]}}}),
    Item("' OR 1=1 --", "-", metadata={"big": 2**70, "small": -0.5, "yes": True, "": "no name"}),
    Item("-f", "\tspace around \n", metadata={"null character": "a\0b"}),
    Item("x" * 500, "long " * 2000),
]


@pytest.fixture(scope="module")
def model() -> Genius:
    return tiny_model()


@pytest.fixture
def index(model, tmp_path) -> Index:
    """Texts, images by path and by bytes, pairs; two of the images are the same."""
    for colour in ("red", "green"):
        draw_image(colour).save(tmp_path / f"{colour} one.png")
    draw_image("blue").save(tmp_path / "blue.jpg")
    index = Index.create(tmp_path / "index", model)
    index.add(
        [
            *UNUSUAL,
            Item("path", image=tmp_path / "red one.png", metadata={"lang": "it"}),
            Item("pair", "green", tmp_path / "green one.png"),
            Item("bytes", image=(tmp_path / "blue.jpg").read_bytes()),
            Item("same bytes", "blue", (tmp_path / "blue.jpg").read_bytes(), {"n": 1}),
            Item("pil", image=Image.new("RGBA", (4, 4), "navy")),
        ]
    )
    assert len(index) == len(UNUSUAL) + 5
    return index


def pixels(item: Item) -> bytes | None:
    if item.image is None:
        return None
    return item.image if isinstance(item.image, bytes) else Path(str(item.image)).read_bytes()


def contents(index: Index) -> dict[str, tuple[object, ...]]:
    return {item.id: (item.text, pixels(item), item.metadata) for item in index.items()}


def answers(index: Index) -> list[list[tuple[str, float]]]:
    queries = [Query(text="a text about blue"), Query(image=draw_image("red")), Query(text="日本語", target="text")]
    return [[(hit.id, hit.score) for hit in hits] for hits in index.search(queries, k=len(index))]


def imported(source: Path, model: Genius, path: Path) -> Index:
    index = Index.create(path, model)
    assert index.add(read_items(source)).bad == []
    return index


@pytest.mark.parametrize("copy_images", [False, True])
@pytest.mark.parametrize("name", ["out.csv", "out.jsonl", "out.ndjson", "new folder/out.parquet"])
def test_what_is_exported_comes_back_the_same(index, model, tmp_path, name, copy_images):
    before, expected = contents(index), answers(index)
    report = index.export(tmp_path / name, copy_images=copy_images)
    assert (report.items, report.without_content, report.bad) == (len(index), 0, [])
    if copy_images:  # nothing outside the export is needed
        for file in tmp_path.glob("*.png"):
            file.unlink()
    again = imported(tmp_path / name, model, tmp_path / "again")
    assert contents(again) == before
    assert answers(again) == expected


@pytest.mark.parametrize("copy_images", [False, True])
def test_an_mbeir_folder_comes_back_but_for_fields_with_names_of_its_own(index, model, tmp_path, copy_images):
    before, expected = contents(index), answers(index)
    report = index.export(tmp_path / "bench", "mbeir", copy_images)
    assert (report.items, report.bad) == (len(index), [])
    again = imported(tmp_path / "bench" / POOL, model, tmp_path / "again")
    for _, _, metadata in before.values():
        for name in ("id", "did"):
            metadata.pop(name, None)
    assert contents(again) == before
    assert answers(again) == expected
    (tmp_path / "bench" / "query").mkdir()  # where the queries of a benchmark would go
    candidates = list(Benchmark(tmp_path / "bench").global_pool("test"))
    assert {c.did: c.modality for c in candidates} == {item.id: item.modality for item in index.items()}
    if copy_images:
        paths = [c.image_path for c in candidates if c.image_path]
        assert all(not Path(path).is_absolute() and (tmp_path / "bench" / path).is_file() for path in paths)


def test_equal_images_are_written_once_and_can_be_told_by_their_names(index, tmp_path):
    report = index.export(tmp_path / "out.jsonl")
    files = [file for file in (tmp_path / "out_images").rglob("*") if file.is_file()]
    assert report.images == len(files) == 2  # one of the same bytes, one of PIL's
    assert sorted(file.suffix for file in files) == [".jpeg", ".png"]
    assert index.export(tmp_path / "all.jsonl", copy_images=True).images == 4


def test_parquet_has_plain_columns(index, tmp_path):
    index.export(tmp_path / "out.parquet")
    rows = {row["id"]: row for row in pq.read_table(tmp_path / "out.parquet").to_pylist()}
    assert json.loads(rows["it's"]["metadata"]) == {"lang": "en", "year": 1999}
    assert rows["it's"]["image"] is None
    assert rows["path"]["image"] == {"bytes": None, "path": str(tmp_path / "red one.png")}
    assert rows["bytes"]["image"] == {"bytes": (tmp_path / "blue.jpg").read_bytes(), "path": None}


def test_a_image_that_is_gone_is_named_and_its_path_exported(index, tmp_path):
    (tmp_path / "red one.png").unlink()
    report = index.export(tmp_path / "out.jsonl", copy_images=True)
    assert [error.id for error in report.bad] == ["path"]
    assert "red one.png cannot be read" in report.bad[0].reason
    lines = {line["id"]: line for line in map(json.loads, (tmp_path / "out.jsonl").read_text("utf-8").split("\n")[:-1])}
    assert lines["path"]["image"] == str(tmp_path / "red one.png")


def test_items_added_as_vectors_have_an_id_and_metadata_only(index, tmp_path):
    rng = np.random.default_rng(0)
    zeros = np.zeros((2, index.header.dim), np.float32)
    texts = rng.standard_normal(zeros.shape).astype(np.float32)
    index.add_vectors(["v1", "v2"], Vectors(zeros, texts), [{"a": 1}, {}])
    report = index.export(tmp_path / "out.jsonl")
    assert (report.items, report.without_content) == (len(index), 2)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").split("\n")[:-1]]
    assert {"id": "v1", "text": None, "image": None, "metadata": {"a": 1}} in lines
    report = index.export(tmp_path / "bench")
    assert (report.items, report.without_content) == (len(index) - 2, 2)


def test_an_empty_index_can_be_exported(model, tmp_path):
    index = Index.create(tmp_path / "index", model)
    for name in ("out.jsonl", "out.parquet", "bench"):
        assert index.export(tmp_path / name).items == 0
    assert (tmp_path / "out.jsonl").read_bytes() == b""
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 0


def test_nothing_is_overwritten(index, tmp_path):
    (tmp_path / "out.jsonl").write_text("mine")
    (tmp_path / "b_images").mkdir()
    for name in ("out.jsonl", "b.jsonl", "index"):
        with pytest.raises(BadData, match="exists already"):
            index.export(tmp_path / name, "mbeir" if name == "index" else None)
    assert (tmp_path / "out.jsonl").read_text() == "mine"


def test_formats_that_are_not_known_are_named(index, tmp_path):
    with pytest.raises(GeniusError, match=r"out\.xml does not end in .* csv, jsonl, parquet, mbeir"):
        index.export(tmp_path / "out.xml")
    with pytest.raises(GeniusError, match="no format 'xml'"):
        index.export(tmp_path / "out.xml", "xml")
    assert index.export(tmp_path / "out.xml", "jsonl").items == len(index)


def test_only_items_that_match_are_exported(index, tmp_path):
    chosen = [item.id for item in index.filter("modality = 'text'")]
    assert 0 < len(chosen) < len(index)
    for name in ("out.csv", "out.jsonl", "out.parquet", "bench"):
        assert index.export(tmp_path / name, where="modality = 'text'").items == len(chosen)
        source = tmp_path / name if name != "bench" else tmp_path / name / POOL
        assert [item.id for item in read_items(source)] == chosen
    with pytest.raises(GeniusError, match="no field wings"):
        index.export(tmp_path / "none.csv", where="wings = 2")
    assert not (tmp_path / "none.csv").exists()


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl", "out.parquet", "bench"])
def test_a_broken_off_export_leaves_nothing(index, tmp_path, monkeypatch, name):
    before = sorted(tmp_path.iterdir())
    rows = genius.index.export._rows

    def broken(*arguments):
        yield from list(rows(*arguments))[:5]
        raise OSError("No space left on device")

    monkeypatch.setattr(genius.index.export, "_rows", broken)
    with pytest.raises(BadData, match="No space left"):
        index.export(tmp_path / name)
    assert sorted(tmp_path.iterdir()) == before


def test_a_damaged_index_is_not_exported_in_part(index, tmp_path):
    for file in (index.path / "items.lance" / "data").iterdir():
        file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(BadIndex, match="genius index verify"):
        Index.open(index.path).export(tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize("name", ["out.csv", "out.jsonl", "out.parquet", "bench"])
def test_memory_does_not_grow_with_the_index(model, tmp_path, monkeypatch, name):
    monkeypatch.setattr(genius.index.export, "_ROWS", 8)
    monkeypatch.setattr(genius.index.export, "_GROUP_BYTES", 1 << 20)
    index = Index.create(tmp_path / "index", model)
    noise = np.random.default_rng(0).integers(0, 255, (64, 100, 300, 3), np.uint8)  # 64 images of 90 kB
    index.add([Item(f"p{i}", image=Image.fromarray(pixels)) for i, pixels in enumerate(noise)])
    tracemalloc.start()
    index.export(tmp_path / name)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 3 << 20 < 64 * 90_000
