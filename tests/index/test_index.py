"""The index on real Lance folders, with a tiny model."""

import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest
from fakes import TinyEncoder, draw_image, tiny_model
from PIL import Image

from genius.data.items import Item, Modality, Query
from genius.errors import BadIndex, BadItem, GeniusError
from genius.index import ingest
from genius.index.index import Index
from genius.index.snapshot import Snapshot
from genius.model.genius import Genius
from genius.search.options import MODES

WORDS = ["cat", "dog", "sofa", "beach", "mountain", "car", "tree", "river", "bread", "lamp", "violin", "snow"]


def texts(n: int, start: int = 0) -> list[Item]:
    """Texts of three words, each different."""
    return [
        Item(f"t{i}", f"{WORDS[i % 12]} {WORDS[i // 12 % 12]} {WORDS[i // 144 % 12]} {i}", metadata={"number": i})
        for i in range(start, start + n)
    ]


@pytest.fixture(scope="module")
def model() -> Genius:
    return tiny_model()


@pytest.fixture
def index(tmp_path: Path, model: Genius) -> Index:
    return Index.create(tmp_path / "things.genius", model)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "BATCH", 4)
    monkeypatch.setattr(ingest, "COMMIT", 8)
    monkeypatch.setattr("genius.index.reindex.BATCH", 4)
    monkeypatch.setattr("genius.index.reindex.COMMIT", 8)


def file_of(colour: str, path: Path) -> Path:
    draw_image(colour).save(path)
    return path


def answers(index: Index, mode: str = "fast") -> list[list[tuple[str, float]]]:
    queries = [Query(text=f"{word} {other}") for word, other in zip(WORDS, WORDS[5:], strict=False)]
    found = index.search(queries, k=7, mode=mode, beam=10, budget=12)
    return [sorted((hit.id, round(hit.score, 4)) for hit in hits) for hits in found]


def assert_like_new(index: Index) -> None:
    """Memory and disk are in step: the index answers as one opened afresh does."""
    fresh = Index.open(index.path, index.model)
    assert len(index) == len(fresh) == len(index.codes)
    assert (index.codes == fresh.codes).all()
    for mode in MODES:
        assert answers(index, mode) == answers(fresh, mode)


# What goes in comes out


def test_an_item_is_found_by_its_own_words(index):
    assert index.add(texts(50)).added == 50
    item = texts(50)[17]
    hit = index.search(Query(text=item.text, instruction=""), k=1)[0]
    assert (hit.id, hit.modality, hit.item) == (item.id, Modality.TEXT, item)
    assert hit.score == pytest.approx(1, abs=1e-3)
    assert hit.codes == tuple(index.codes[17].tolist())
    assert hit.codes[0] == Modality.TEXT


def test_images_come_back_as_they_were_given(index, tmp_path):
    data = file_of("red", tmp_path / "red.png").read_bytes()
    drawn = draw_image("blue")
    report = index.add(
        [Item("path", image=tmp_path / "red.png"), Item("bytes", image=data, text="red"), Item("pil", image=drawn)]
    )
    assert (report.added, report.bad) == (3, [])
    assert index.get("path").image == str(tmp_path / "red.png")
    assert index.get("bytes").image == data
    assert index.get("bytes").modality == Modality.IMAGE_TEXT
    assert Image.open(io.BytesIO(index.get("pil").image)).tobytes() == drawn.tobytes()


def test_stored_images_need_no_files(tmp_path, model):
    index = Index.create(tmp_path / "i", model, store_images=True)
    data = file_of("red", tmp_path / "red.png").read_bytes()
    index.add([Item("red", image=tmp_path / "red.png")])
    (tmp_path / "red.png").unlink()
    assert index.get("red").image == data
    assert index.verify() == []


def test_a_relative_path_is_found_from_elsewhere(index, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file_of("red", tmp_path / "red.png")
    index.add([Item("red", image="red.png")])
    monkeypatch.chdir("/")
    assert index.get("red").image == str(tmp_path / "red.png")
    assert index.verify() == []


def test_ids_may_hold_any_characters(index):
    ids = ["it's", 'a "quoted" id', "é/ü\\n", "日本語", "' OR 1=1 --", "100%_"]
    assert index.add([Item(id, "some text") for id in ids]).added == len(ids)
    assert all(id in index for id in ids)
    assert index.get("it's").id == "it's"
    assert index.delete(ids[:5]) == 5
    assert [id in index for id in ids] == [False] * 5 + [True]


def test_membership_and_get(index):
    index.add(texts(3))
    assert "t1" in index
    assert "t9" not in index
    assert 1 not in index
    assert index.get("t9") is None
    assert index.get("t1") == texts(3)[1]


def test_equal_content_has_equal_hash_and_only_that(index, tmp_path):
    data = file_of("red", tmp_path / "red.png").read_bytes()
    index.add(
        [
            Item("path", image=tmp_path / "red.png"),
            Item("bytes", image=data, metadata={"note": 1}),
            Item("pair", "red", data),
            Item("text", "red"),
            Item("other", image=file_of("blue", tmp_path / "blue.png")),
        ]
    )
    hashes = lance.dataset(index.path / "items.lance").to_table(columns=["hash"])["hash"].to_pylist()
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 4


# Opening


def test_an_index_survives_closing(index, model):
    index.add(texts(40))
    before = answers(index)
    again = Index.open(index.path, model)
    assert len(again) == 40
    assert answers(again) == before


def test_an_index_loads_its_own_model_when_it_needs_it(tmp_path, monkeypatch):
    model = tiny_model()
    model.source = "mini"
    Index.create(tmp_path / "i", model).add(texts(5))
    loaded = []
    monkeypatch.setattr(Genius, "from_pretrained", lambda name: loaded.append(name) or tiny_model())
    index = Index.open(tmp_path / "i")
    assert "t3" in index
    index.info()
    index.delete("t3")
    assert loaded == []
    index.search(Query(text="cat"))
    index.search(Query(text="dog"))
    assert loaded == ["mini"]


def test_a_model_folder_is_remembered_as_an_absolute_path(tmp_path, monkeypatch):
    (tmp_path / "models" / "own").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    model = tiny_model()
    model.source = "models/own"
    assert Index.create("i", model).header.model == str(tmp_path / "models" / "own")


def test_an_index_of_an_unsaved_model_asks_for_it(index):
    with pytest.raises(BadIndex, match="a model that was not saved"):
        Index.open(index.path).search(Query(text="cat"))


def test_another_model_is_refused_by_name(index, model, monkeypatch):
    other = tiny_model(seed=1)
    other.source = "models/other"
    with pytest.raises(BadIndex, match=r"unsaved model.*models/other") as error:
        Index.open(index.path, other)
    assert model.fingerprint in str(error.value)
    assert other.fingerprint in str(error.value)


def test_a_model_that_changed_in_its_folder_is_refused(tmp_path, monkeypatch):
    model = tiny_model()
    model.source = "mini"
    Index.create(tmp_path / "i", model)
    monkeypatch.setattr(Genius, "from_pretrained", lambda name: tiny_model(seed=1))
    index = Index.open(tmp_path / "i")
    with pytest.raises(BadIndex, match="was made with mini"):
        index.search(Query(text="cat"))


def test_what_is_no_index_is_not_opened(tmp_path, model):
    with pytest.raises(BadIndex, match=r"There is no index at .*nowhere"):
        Index.open(tmp_path / "nowhere")
    with pytest.raises(BadIndex, match=r"it has no items\.lance"):
        Index.open(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 3}', "null"])
def test_a_damaged_header_is_named(index, model, content):
    lance.dataset(index.path / "items.lance").update_schema_metadata({"genius": content})
    with pytest.raises(BadIndex, match="its header is damaged"):
        Index.open(index.path, model)


@pytest.mark.parametrize("format", [4, 99])
def test_an_index_of_a_later_format_is_refused(index, model, format):
    dataset = lance.dataset(index.path / "items.lance")
    header = json.loads(dataset.schema.metadata[b"genius"])
    dataset.update_schema_metadata({"genius": json.dumps(header | {"format": format})})
    with pytest.raises(BadIndex, match=f"index format {format}; this release reads format 3. Build the index again"):
        Index.open(index.path, model)


def test_an_index_of_an_older_format_is_refused(index, model):
    (index.path / "index.json").write_text('{"format": 2}')  # where formats 1 and 2 had their header
    with pytest.raises(BadIndex, match=r"index format 2 or older; this release reads format 3. Build the index again"):
        Index.open(index.path, model)


def test_missing_or_foreign_items_are_named(index, model):
    shutil.rmtree(index.path / "items.lance" / "_versions")
    with pytest.raises(BadIndex, match=r"items\.lance cannot be opened"):
        Index.open(index.path, model)
    shutil.rmtree(index.path / "items.lance")
    shutil.rmtree(index.path / "checksums")
    lance.write_dataset(pa.table({"a": [1]}), index.path / "items.lance")
    with pytest.raises(BadIndex, match="is not the dataset of an index"):
        Index.open(index.path, model)


def test_columns_that_the_header_does_not_promise_are_named(index, model):
    dataset = lance.dataset(index.path / "items.lance")
    header = json.loads(dataset.schema.metadata[b"genius"])
    dataset.update_schema_metadata({"genius": json.dumps(header | {"dim": 8})})
    with pytest.raises(BadIndex, match=r"embedding is fixed_size_list.*\[16\], and should be .*\[8\]"):
        Index.open(index.path, model)
    dataset.update_schema_metadata({"genius": json.dumps(header | {"sizes": [3, 8, 8, 8, 8]})})
    with pytest.raises(BadIndex, match="code4 is missing"):
        Index.open(index.path, model)


def test_an_index_is_not_created_over_something_else(index, model, tmp_path):
    with pytest.raises(BadIndex, match="exists already"):
        Index.create(index.path, model)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(BadIndex, match="exists already"):
        Index.create(tmp_path / "file", model)
    with pytest.raises(BadIndex, match="cannot be created"):
        Index.create(tmp_path / "file" / "below", model)
    (tmp_path / "empty").mkdir()
    assert len(Index.create(tmp_path / "empty", model)) == 0


# Bad input


def bad_ids(report) -> dict[str, str]:
    return {error.id: error.reason for error in report.bad}


def test_an_image_file_is_read_once(index, model, tmp_path, monkeypatch):
    """Hash and codes come from the same bytes, although the file changes after each read."""
    path, opened = file_of("red", tmp_path / "a.png"), []
    red, blue = path.read_bytes(), file_of("blue", tmp_path / "b.png").read_bytes()

    def open_and_replace(file: str, mode: str) -> io.BytesIO:
        opened.append(Path(file).name)
        content = path.read_bytes()
        path.write_bytes(blue if content == red else red)
        return StoredFile(content)

    class StoredFile(io.BytesIO):
        def fileno(self) -> int:
            return descriptor

    with open(tmp_path / "b.png", "rb") as other:
        descriptor = other.fileno()
        monkeypatch.setattr("genius.data.images.open", open_and_replace, raising=False)
        item = Item("a", image=str(path))
        assert index.add([item]).added == 1  # reads red, leaves blue
        assert index.upsert([item]).replaced == 1  # reads blue, leaves red
        assert index.add([item]).added == 0  # reads red, which is not what is stored
        assert index.reindex().added == 1  # reads blue, leaves red
    assert opened == ["a.png"] * 4
    fresh = Index.create(tmp_path / "fresh", model)
    fresh.add([Item("a", image=blue)])
    for column in ("hash", "embedding"):
        assert index.dataset.to_table(columns=[column]).equals(fresh.dataset.to_table(columns=[column]))
    assert (index.codes == fresh.codes).all()


def test_ids_are_looked_up_once_unless_another_process_writes(index, model, monkeypatch, small_batches):
    lookups, original = [], Snapshot.find

    def find(snapshot: Snapshot, ids: Any) -> Any:
        lookups.append(len(ids))
        return original(snapshot, ids)

    monkeypatch.setattr(Snapshot, "find", find)
    index.add(texts(8))
    assert lookups == [4, 4]
    index.upsert([Item(item.id, item.text, metadata={"new": True}) for item in texts(8)])
    assert lookups == [4] * 4
    lookups.clear()
    other = Index.open(index.path, model)

    def interrupted() -> Iterator[Item]:
        yield from texts(5, 100)
        other.add([Item("t103", "cat"), texts(1, 104)[0]])
        yield from texts(3, 105)

    report = index.add(interrupted())
    assert (report.added, report.unchanged, list(bad_ids(report))) == (6, 1, ["t103"])
    assert lookups == [4, 2, 4, 8]  # two batches and, because of the other writer, the commit
    assert_like_new(index)


def test_metadata_is_written_as_json_once_and_never_parsed(index, monkeypatch):
    dumped, parsed, dumps, loads = [], [], json.dumps, json.loads
    items = [Item("a", "cat", metadata={"year": 1999, "tags": ["x"]}), Item("b", "dog")]
    with monkeypatch.context() as watched:
        watched.setattr(json, "dumps", lambda value, **options: (dumped.append(value), dumps(value, **options))[1])
        watched.setattr(json, "loads", lambda text: (parsed.append(loads(text)), parsed[-1])[1])
        assert index.add(items).added == 2
    assert [value for value in dumped if "year" in value] == [items[0].metadata]
    assert [value for value in parsed if not {"sizes", "crc"} & set(value)] == []  # headers and checksums only
    assert [item.id for item in index.filter("year = 1999")] == ["a"]


def test_bad_items_are_listed_and_good_ones_added(index, tmp_path):
    whole = file_of("red", tmp_path / "red.png").read_bytes()
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8))
    noise.save(tmp_path / "noise.png")
    (tmp_path / "truncated.png").write_bytes((tmp_path / "noise.png").read_bytes()[:2000])
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "page.png").write_text("<html>not found</html>")
    bomb = io.BytesIO()
    Image.new("1", (8_500, 8_500)).save(bomb, "PNG")
    report = index.add(
        [
            Item("good", image=tmp_path / "red.png"),
            Item("truncated", image=tmp_path / "truncated.png"),
            Item("empty", image=tmp_path / "empty.png"),
            Item("page", image=tmp_path / "page.png"),
            Item("missing", image=tmp_path / "missing.png"),
            Item("bomb", image=bomb.getvalue()),
            Item("nothing", text="  "),
            Item("nan", text="this is nan"),
            BadItem("row 7", "the row has no columns"),
            Item("also good", text="a cat", image=whole),
        ]
    )
    assert report.added == len(index) == 2
    reasons = bad_ids(report)
    assert list(reasons) == ["truncated", "empty", "page", "missing", "bomb", "nothing", "row 7", "nan"]
    assert "truncated.png" in reasons["truncated"]
    assert "0 bytes" in reasons["empty"]
    assert "web page" in reasons["page"]
    assert "no such file" in reasons["missing"]
    assert "megapixels" in reasons["bomb"]
    assert "neither text nor an image" in reasons["nothing"]
    assert "not finite" in reasons["nan"]
    assert reasons["row 7"] == "the row has no columns"
    assert "good" in index
    assert "also good" in index
    assert "nan" not in index


def test_unusual_images_are_read(index, tmp_path):
    frames = [draw_image("red"), draw_image("blue")]
    frames[0].save(tmp_path / "animated.gif", save_all=True, append_images=frames[1:])
    draw_image("red").convert("CMYK").save(tmp_path / "cmyk.jpg")
    draw_image("red").convert("P").save(tmp_path / "palette.png")
    names = ["animated.gif", "cmyk.jpg", "palette.png"]
    report = index.add([Item(name, image=tmp_path / name) for name in names])
    assert (report.added, report.bad) == (3, [])


def test_a_very_long_text_is_kept_whole(index):
    text = "all work and no play " * 5000
    index.add([Item("long", text)])
    assert index.get("long").text == text


def test_an_id_that_is_taken_is_refused_with_the_remedy(index):
    index.add(texts(3))
    report = index.add([Item("t1", "another"), Item("t3", "new"), Item("t3", "twice")])
    assert report.added == 1
    assert [error.id for error in report.bad] == ["t1", "t3"]
    assert all("another item with this id. Use upsert" in error.reason for error in report.bad)
    assert index.get("t1") == texts(3)[1]
    assert index.get("t3").text == "new"


def test_an_id_twice_in_one_call_is_refused_however_far_apart(index, small_batches):
    items = texts(30)
    report = index.add([*items, Item("t0", "again"), Item("t29", "again")])
    assert report.added == len(index) == 30
    assert [error.id for error in report.bad] == ["t0", "t29"]
    assert all("upsert" in error.reason for error in report.bad)


def test_nothing_at_all_can_be_added(index):
    assert index.add([]).added == 0
    assert index.upsert(iter([])).added == 0
    assert len(index) == 0


def test_image_names_that_are_no_text_are_refused(index, tmp_path):
    name = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.png")
    draw_image("red").save(name, "PNG")
    report = index.add([Item("odd", image=name)])
    assert "Rename the file" in bad_ids(report)["odd"]


# Changing


def test_upsert_replaces_and_adds(index):
    index.add(texts(20))
    answers(index)
    report = index.upsert([Item("t3", "quite another thing"), Item("new", "one more"), Item("t9", text=" ")])
    assert report.added == 2
    assert list(bad_ids(report)) == ["t9"]
    assert len(index) == 21
    assert index.get("t3").text == "quite another thing"
    assert index.get("t9") == texts(20)[9]
    assert index.search(Query(text="quite another thing", instruction=""), k=1)[0].id == "t3"
    assert_like_new(index)


def test_the_last_of_several_upserts_stays(index, small_batches):
    for distance in (1, 30):
        index.upsert([Item("x", "first"), *texts(distance), Item("x", "last")])
        assert index.get("x").text == "last"
        assert len(index) == distance + 1


def test_deleted_items_are_gone(index):
    index.add(texts(30))
    answers(index)
    assert index.delete(["t3", "t4", "unknown"]) == 2
    assert index.delete("t5") == 1
    assert index.delete([]) == index.delete("unknown") == 0
    assert len(index) == 27
    assert not {"t3", "t4", "t5"} & {id for found in answers(index) for id, _ in found}
    assert_like_new(index)


@pytest.mark.parametrize("mode", MODES)
def test_deleting_and_adding_again_leaves_the_answers_of_a_new_index(index, model, tmp_path, mode):
    index.add(texts(40))
    index.delete([f"t{i}" for i in range(0, 40, 3)])
    index.add(texts(40)[::3])
    new = Index.create(tmp_path / "new", model)
    new.add(texts(40))
    for changed, built in zip(answers(index, mode), answers(new, mode), strict=True):
        last = min(score for _, score in built)  # the last place goes to one of several items that share an ID
        assert sorted(score for _, score in changed) == sorted(score for _, score in built)
        assert [hit for hit in changed if hit[1] > last] == [hit for hit in built if hit[1] > last]


def test_memory_keeps_in_step_with_the_disk(index, small_batches):
    rng = np.random.default_rng(0)
    present: dict[str, Item] = {}
    for step in range(12):
        answers(index)  # so that there is something in memory to keep in step
        chosen = [texts(1, start=int(i))[0] for i in rng.choice(60, 15, replace=False)]
        match step % 3:
            case 0:
                index.add(chosen)
                present = {item.id: item for item in chosen} | present
            case 1:
                index.delete([item.id for item in chosen])
                present = {id: item for id, item in present.items() if id not in {one.id for one in chosen}}
            case 2:
                changed = [Item(item.id, f"{item.text} {step}") for item in chosen]
                index.upsert(changed)
                present |= {item.id: item for item in changed}
        assert len(index) == len(present)
        assert_like_new(index)
    assert all(index.get(id) == item for id, item in present.items())


def test_two_open_indexes_see_each_other_when_they_write(index, model):
    index.add(texts(10))
    other = Index.open(index.path, model)
    answers(index), answers(other)
    other.add(texts(10, start=10))
    assert len(index) == 10  # a snapshot
    assert_ids_match(index)
    assert bad_ids(index.add([Item("t12", "taken by the other one")]))
    index.add(texts(5, start=20))
    assert_like_new(index)
    other.delete("t0")
    assert_like_new(other)


def test_what_another_process_writes_in_the_middle_of_an_add_is_seen(index, model, small_batches):
    index.add(texts(10))
    answers(index)

    def items() -> Iterator[Item]:
        yield from texts(3, start=10)
        Index.open(index.path, model).add(texts(5, start=50))
        yield from texts(2, start=13)

    index.add(items())
    assert len(index) == 20
    assert_like_new(index)
    assert_ids_match(index)


def assert_ids_match(index: Index) -> None:
    """Every hit's codes are those of its item."""
    for hit in index.search(Query(text="cat"), k=100, beam=200):
        vectors = index.model.encode_items([hit.item])
        assert hit.codes == tuple(index.model.codes(vectors)[0].tolist())


# Failing in the middle


def failing(items: list[Item], after: int) -> Iterator[Item]:
    yield from items[:after]
    raise RuntimeError("the source broke")


def test_a_source_that_breaks_leaves_whole_batches(index, small_batches):
    answers(index)
    with pytest.raises(RuntimeError, match="the source broke"):
        index.add(failing(texts(30), after=18))
    assert len(index) == 16
    assert_like_new(index)
    index.add(texts(30)[16:])
    assert len(index) == 30


def test_an_encoder_that_fails_leaves_the_index_as_it_was(index, monkeypatch):
    index.add(texts(10))
    before = answers(index)

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(TinyEncoder, "encode", fail)
        with pytest.raises(MemoryError):
            index.add(texts(5, start=10))
    assert answers(index) == before


def test_a_disk_that_cannot_be_written_to_is_named(index, monkeypatch):
    index.add(texts(10))
    before = answers(index)

    def full(*_: object, **__: object) -> None:
        raise OSError("LanceError(IO): No space left on device (os error 28)")

    changes = (
        lambda: index.add(texts(5, start=10)),
        lambda: index.upsert([Item("t1", "other")]),
        lambda: index.delete("t1"),
        lambda: index.reindex(),
    )
    for change in changes:
        with monkeypatch.context() as patch:
            patch.setattr(lance.LanceDataset, "commit", full)
            with pytest.raises(BadIndex, match=r"could not be written to \(the disk is full\)"):
                change()
        assert answers(index) == before
    assert_like_new(index)


def test_an_index_that_cannot_be_finished_can_be_created_again(tmp_path, model, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(BadIndex, match=r"cannot be created \(No space left"):
            Index.create(tmp_path / "i", model)
    assert len(Index.create(tmp_path / "i", model)) == 0


# Searching


@pytest.mark.parametrize("mode", MODES)
def test_a_list_of_queries_is_answered_as_each_alone(index, mode):
    index.add([*texts(40), *[Item(c, image=draw_image(c)) for c in ("red", "green", "blue", "white")]])
    queries = [
        Query(text="cat and dog"),
        Query(image=draw_image("red")),
        Query(text="violin", target="text"),
        Query(text="snow", image=draw_image("white"), target="image"),
    ]
    together = index.search(queries, k=5, mode=mode)
    alone = [index.search(query, k=5, mode=mode) for query in queries]
    assert [[hit.id for hit in hits] for hits in together] == [[hit.id for hit in hits] for hits in alone]
    assert {hit.modality for hit in together[2]} == {Modality.TEXT}
    assert sorted(hit.id for hit in together[3]) == ["blue", "green", "red", "white"]
    assert all(len(hits) == 5 for hits in together[:3])


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_index_answers_with_nothing(index, mode):
    assert index.search(Query(text="cat"), mode=mode) == []
    assert index.search([Query(text="cat")] * 2, mode=mode) == [[], []]
    assert index.search([], mode=mode) == []


def test_impossible_searches_are_refused(index):
    with pytest.raises(GeniusError, match="k is 0"):
        index.search(Query(text="cat"), k=0)
    with pytest.raises(GeniusError, match="no search mode 'best'"):
        index.search(Query(text="cat"), mode="best")
    for content in (5, None, {"text": "cat"}, ["cat", 5]):
        with pytest.raises(GeniusError, match="cannot be searched with"):
            index.search(content)
    for options in ({"k": 1.5}, {"k": True}, {"k": "3"}, {"beam": 2.0}, {"budget": 0.5}):
        with pytest.raises(GeniusError, match="must be a whole number"):
            index.search("cat", **options)
    for options in ({"limit": 1.5}, {"offset": "3"}, {"limit": True}):
        with pytest.raises(GeniusError, match="must be a whole number"):
            index.filter(**options)
        with pytest.raises(GeniusError, match="must be a whole number"):
            index.browse_codes(**options)
    with pytest.raises(BadItem, match="there is no such file"):
        index.search(Query(image="no/such/image.png"))


def test_the_content_of_a_query_is_enough(index, tmp_path):
    index.add([*texts(20), Item("red", image=draw_image("red"))])
    file = tmp_path / "red.png"
    draw_image("red").save(file)
    assert index.search("cat", k=5) == index.search(Query(text="cat"), k=5)
    assert index.search(str(file), k=5) == index.search(Query(text=str(file)), k=5)  # a string is a text
    by_image = index.search(Query(image=file), k=5)
    assert by_image[0].id == "red"
    for content in (file, file.read_bytes(), draw_image("red")):
        assert index.search(content, k=5) == by_image
    mixed = index.search(["cat", file, Query(text="dog")], k=5)
    assert mixed == [index.search("cat", k=5), by_image, index.search("dog", k=5)]
    assert index.answer("cat", k=5).hits == index.search("cat", k=5)
    assert [result.hits for result in index.answer(["cat"], k=5)] == [index.search("cat", k=5)]


def test_without_embeddings_the_index_still_searches(tmp_path, model):
    index = Index.create(tmp_path / "i", model, embeddings=False)
    index.add(texts(60))
    assert "embedding" not in lance.dataset(index.path / "items.lance").schema.names
    assert len(index.search(Query(text="cat dog"), k=5)) == 5
    index.delete("t1")
    index.add(texts(10, start=60))
    assert_like_new(index)


def test_ready_vectors_can_be_searched_with(index, model):
    index.add(texts(30))
    queries = [Query(text="cat"), Query(text="dog")]
    found = index.search_vectors(model.encode_queries(queries), k=4)
    expected = [[hit.id for hit in hits] for hits in index.search(queries, k=4)]
    assert [index.ids(rows) for rows in found.rows] == expected
    index.delete(["t0", expected[0][0]])
    index.add(texts(3, start=30))
    changed = index.search_vectors(model.encode_queries(queries), k=4)
    expected = [[hit.id for hit in hits] for hits in index.search(queries, k=4)]
    assert [index.ids(rows) for rows in changed.rows] == expected


# Inspection


def test_info_counts(index, model, tmp_path):
    index.add(
        [Item("a", "text"), Item("b", "text"), Item("c", image=draw_image("red")), Item("d", "x", draw_image("red"))]
    )
    info = index.info()
    assert info.items == 4
    assert info.modalities == {"image": 1, "text": 2, "image,text": 1}
    assert info.ids == 3
    assert (info.model, info.fingerprint, info.sizes) == (None, model.fingerprint, model.sizes)
    assert info.bytes > 1000


def test_a_sound_index_verifies(index):
    index.add([*texts(20), Item("red", image=draw_image("red"))])
    assert index.verify() == []


def test_progress_shows_rate_and_bad_items(index, capsys, small_batches):
    index.add([*texts(10), Item("nothing")], progress=True)
    shown = capsys.readouterr().err
    assert "11/11" in shown
    assert "items/s, 1 bad" in shown
