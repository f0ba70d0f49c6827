"""An index over time: any changes, several processes' views of it, older versions, and encoding anew."""

import itertools
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pytest
from fakes import LEVELS, TinyEncoder, draw_image, tiny_model
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

from genius.data.items import Item, Modality, Query
from genius.encoders.base import Vectors
from genius.errors import BadIndex, GeniusError
from genius.index import commits, ingest, storage
from genius.index import vectors as vector_ingest
from genius.index.folder import LOCK
from genius.index.index import Index
from genius.model.genius import Genius
from genius.search.options import MODES

WORDS = ["cat", "dog", "sofa", "beach", "mountain", "car", "tree", "river", "bread", "lamp", "violin", "snow"]
QUERIES = [Query(text="cat on a sofa"), Query(text="snow", target="text"), Query(image=draw_image("red"))]
NOW = timedelta(0)


def text(i: int, word: str = "") -> Item:
    return Item(f"t{i}", f"{WORDS[i % 12]} {WORDS[i // 12 % 5]} {word}", metadata={"number": i})


def texts(n: int, start: int = 0) -> list[Item]:
    return [text(i) for i in range(start, start + n)]


@pytest.fixture(scope="module")
def model() -> Genius:
    return tiny_model()


@pytest.fixture
def index(tmp_path: Path, model: Genius) -> Index:
    return Index.create(tmp_path / "things.genius", model)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many items each call of the encoder was for."""
    calls: list[int] = []
    encode = TinyEncoder.encode
    monkeypatch.setattr(
        TinyEncoder, "encode", lambda self, inputs, **more: calls.append(len(inputs)) or encode(self, inputs, **more)
    )
    return calls


def answers(index: Index, mode: str = "fast") -> list[list[tuple[str, float]]]:
    found = index.search(QUERIES, k=6, mode=mode, beam=8, budget=10)
    return [[(hit.id, hit.score) for hit in hits] for hits in found]


def content(index: Index) -> dict[str, Item]:
    return {item.id: item for item in index.items()}


# Whatever happens


OPERATIONS = st.one_of(
    st.tuples(st.just("add"), st.lists(st.integers(0, 25), max_size=12)),
    st.tuples(st.just("upsert"), st.lists(st.tuples(st.integers(0, 25), st.sampled_from(["", "x", "y"])), max_size=12)),
    st.tuples(st.just("delete"), st.lists(st.integers(0, 25), max_size=8)),
    st.tuples(st.just("vectors"), st.lists(st.integers(26, 32), unique=True, max_size=4)),
    st.tuples(st.sampled_from(["compact", "reopen", "look", "reindex"]), st.just([])),
)


@pytest.fixture(scope="module")
def quick_disk() -> Iterator[None]:
    """For tests that write a lot and do not ask whether it survives a power cut."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


@pytest.mark.usefixtures("quick_disk")
@settings(max_examples=25, deadline=None)
@given(operations=st.lists(OPERATIONS, max_size=8), embeddings=st.booleans(), mode=st.sampled_from(MODES))
def test_any_changes_leave_the_answers_of_an_index_built_anew(tmp_path_factory, model, operations, embeddings, mode):
    folder = tmp_path_factory.mktemp("any")
    index = Index.create(folder / "changed", model, embeddings=embeddings)
    reader = Index.open(index.path, model)
    answers(index), answers(reader)  # so that there is something in memory to keep in step
    there: dict[str, Item | int] = {}  # in the order of the index; a number stands for a vector

    def vectors(numbers: list[int]) -> Vectors:
        return model.encode_items([text(i) for i in numbers])

    for operation, given_values in operations:
        match operation:
            case "add":
                index.add([text(i) for i in given_values])
                there |= {f"t{i}": text(i) for i in given_values if f"t{i}" not in there}
            case "upsert":
                items = [text(i, word) for i, word in given_values]
                index.upsert(items)
                for item in items:
                    if there.get(item.id) != item:
                        there.pop(item.id, None)
                        there[item.id] = item
            case "delete":
                present = {f"t{i}" for i in given_values} & set(there)
                assert index.delete([f"t{i}" for i in given_values]) == len(present)
                there = {id: item for id, item in there.items() if id not in present}
            case "vectors":
                report = index.add_vectors([f"t{i}" for i in given_values], vectors(given_values))
                new = [i for i in given_values if f"t{i}" not in there]
                assert (report.added, report.unchanged, report.bad) == (len(new), len(given_values) - len(new), [])
                there |= {f"t{i}": i for i in new}
            case "compact":
                index.compact(NOW)
            case "reopen":
                index = Index.open(index.path, model)
            case "look":
                reader.refresh()
            case "reindex":
                index.reindex()
        assert len(index) == len(there)
        answers(index, mode)
    anew = Index.create(folder / "anew", model, embeddings=embeddings)
    for whole, group in itertools.groupby(there.values(), key=lambda item: isinstance(item, Item)):
        some = list(group)
        if whole:
            anew.add(some)
        else:
            anew.add_vectors([f"t{i}" for i in some], vectors(some))
    reader.refresh()
    expected = answers(anew, mode)
    for one in (index, reader, Index.open(index.path, model)):
        assert [item.id for item in one.items()] == list(there)
        assert one.get(list(there)) == [item if isinstance(item, Item) else Item(id) for id, item in there.items()]
        assert answers(one, mode) == expected
        assert one.get([f"t{i}" for i in range(33) if f"t{i}" not in there]) == [None] * (33 - len(there))


def test_items_that_share_an_id_are_all_kept_and_found(index, model):
    index.add([Item(f"a{i}", "the very same") for i in range(5)])
    answers(index)
    index.add([Item(f"b{i}", "the very same") for i in range(5)])
    index.delete(["a1", "b1"])
    everything = {"a0", "a2", "a3", "a4", "b0", "b2", "b3", "b4"}
    for one in (index, Index.open(index.path, model)):
        assert one.info().ids == 1
        for mode in MODES:
            assert {hit.id for hit in one.search(Query(text="the very same"), k=20, mode=mode)} == everything


# What is there is not encoded again


def test_a_broken_off_addition_is_completed_by_repeating_it(index, monkeypatch, encoded):
    monkeypatch.setattr(ingest, "BATCH", 4)
    monkeypatch.setattr(ingest, "COMMIT", 8)
    monkeypatch.setattr("genius.index.reindex.BATCH", 4)
    monkeypatch.setattr("genius.index.reindex.COMMIT", 8)

    def source() -> Iterator[Item]:
        yield from texts(18)
        raise RuntimeError("the source broke")

    acknowledged: list[str] = []
    with pytest.raises(RuntimeError):
        index.add(source(), on_commit=acknowledged.extend)
    assert acknowledged == [f"t{i}" for i in range(16)] == list(content(index))
    encoded.clear()
    report = index.add(texts(20), on_commit=acknowledged.extend)
    assert (report.added, report.unchanged, report.bad) == (4, 16, [])
    assert sum(encoded) == 4
    assert acknowledged == [f"t{i}" for i in range(20)] == list(content(index))


def test_only_what_changed_is_encoded(index, encoded, tmp_path):
    red, other = tmp_path / "red.png", tmp_path / "other.png"
    draw_image("red").save(red)
    draw_image("red").save(other)
    index.add([*texts(10), Item("red", image=red)])
    codes = {hit.id: hit.codes for hit in index.search(Query(text="cat"), k=20)}
    encoded.clear()
    report = index.upsert(
        [
            text(0),
            Item("t1", text(1).text, metadata={"number": -1, "new": "x"}),
            text(2, "changed"),
            Item("red", image=other),
            Item("new", "brand new"),
        ]
    )
    assert (report.added, report.unchanged) == (4, 1)
    assert sum(encoded) == 2
    assert index.get("t1").metadata == {"number": -1, "new": "x"}
    assert index.get("red").image == str(other)
    assert index.count("new = 'x'") == 1
    hits = {hit.id: hit for hit in index.search(Query(text="cat"), k=20)}
    assert {id: hits[id].codes for id in ("t1", "red")} == {id: codes[id] for id in ("t1", "red")}
    assert index.verify(deep=True) == []


def test_an_item_that_comes_with_other_metadata_is_not_silently_dropped(index):
    index.add(texts(2))
    report = index.add([Item("t1", text(1).text, metadata={"number": 7})])
    assert (report.added, report.unchanged, [bad.id for bad in report.bad]) == (0, 0, ["t1"])


def test_a_change_and_back_in_one_call(index):
    index.add([text(1)])
    index.upsert([text(1, "changed"), text(1)])
    assert index.get("t1") == text(1)
    index.upsert([text(1), text(1, "changed")])
    assert index.get("t1") == text(1, "changed")


# Ready vectors


def test_items_added_as_vectors_are_found_like_others(index, model, tmp_path):
    items = [*texts(20), Item("red", image=draw_image("red")), Item("both", "red", draw_image("red"))]
    index.add_vectors([item.id for item in items], model.encode_items(items), [{"place": i} for i in range(len(items))])
    other = Index.create(tmp_path / "other", model)
    other.add(items)
    for mode in MODES:
        assert answers(index, mode) == answers(other, mode)
    assert index.info().modalities == other.info().modalities
    assert index.get("both") == Item("both", metadata={"place": 21})
    assert [item.id for item in index.filter("place = 3 OR modality = 'image'")] == ["t3", "red"]
    assert index.verify(deep=True) == []
    hashes = index.dataset.to_table(columns=["hash"])["hash"]
    assert hashes.null_count == len(items)


def test_vectors_that_are_there_are_unchanged_replaced_or_refused(index, model):
    vectors = model.encode_items(texts(6))
    index.add_vectors(["a", "b", "c"], vectors[:3])
    report = index.add_vectors(["a", "b", "d"], vectors[[0, 4, 3]])
    assert (report.added, report.unchanged, [bad.id for bad in report.bad]) == (1, 1, ["b"])
    assert index.add_vectors(["b", "e"], vectors[4:], replace=True).added == 2
    assert [item.id for item in index.items()] == ["a", "c", "d", "b", "e"]
    assert index.search_vectors(vectors[4:5], k=1).scores[0, 0] == pytest.approx(1, abs=1e-3)
    assert index.upsert([Item("a", "now with text")]).added == 1
    assert index.get("a").text == "now with text"


def test_vectors_are_committed_in_parts(index, model, monkeypatch):
    monkeypatch.setattr(vector_ingest, "BLOCK", 4)
    commits: list[list[str]] = []
    ids = [f"v{i}" for i in range(10)]
    index.add_vectors([*ids, "v3"], model.encode_items(texts(11)), on_commit=commits.append)
    assert commits == [ids[:4], ids[4:8], ids[8:]]


def test_vectors_that_cannot_be_are_refused(index, model):
    vectors = model.encode_items(texts(7))
    vectors.text[1] = np.nan
    vectors.text[2] = 0
    report = index.add_vectors(["fine", "nan", "zero", " ", "fine", "\udcff", 7], vectors)
    assert report.added == len(index) == 1
    reasons = [bad.reason for bad in report.bad]
    assert len(reasons) == 6
    for reason, word in zip(
        reasons, ["not finite", "zero", "empty", "more than once", "Unicode", "must be a string"], strict=True
    ):
        assert word in reason
    with pytest.raises(GeniusError, match="2 ids, 7 vectors do not match"):
        index.add_vectors(["a", "b"], vectors)
    with pytest.raises(GeniusError, match="have 5 dimensions; this index needs 16"):
        index.add_vectors(["a"], Vectors(np.ones((1, 5), np.float32), np.ones((1, 5), np.float32)))


# Readers


def test_a_reader_keeps_its_snapshot_until_it_refreshes(index, model):
    index.add(texts(10))
    reader = Index.open(index.path, model)
    before = answers(reader)
    assert not reader.refresh()
    index.add(texts(10, start=10))
    index.delete("t0")
    index.upsert([text(3, "changed")])
    assert (len(reader), reader.get("t0"), answers(reader)) == (10, text(0), before)
    assert reader.refresh()
    assert not reader.refresh()
    assert content(reader) == content(index)
    assert answers(reader) == answers(index)


def test_a_reader_can_refresh_by_itself(index, model):
    index.add(texts(3))
    eager, lazy = (Index.open(index.path, model, refresh=seconds) for seconds in (0, 3600))
    assert len(eager) == len(lazy) == 3
    index.add(texts(3, start=3))
    assert len(eager.search(Query(text="cat"), k=10)) == len(eager) == 6
    assert len(lazy.search(Query(text="cat"), k=10)) == len(lazy) == 3
    assert lazy.refresh()
    assert len(lazy) == 6


def test_a_reader_whose_files_are_removed_goes_on_with_the_latest(index, model):
    index.add(texts(30))
    readers = [Index.open(index.path, model) for _ in range(5)]
    index.add(texts(30, start=30))
    index.delete([f"t{i}" for i in range(20)])
    index.compact(NOW)
    expected = {f"t{i}" for i in range(20, 60)}
    assert {hit.id for hit in readers[0].search(Query(text="cat"), k=100)} == expected
    assert readers[1].get("t0") is None
    assert readers[1].get("t59") == text(59)
    assert readers[2].count("number >= 0") == 40
    assert {item.id for item in readers[3].filter("number >= 0")} == expected
    assert "t59" in readers[4]


def test_threads_may_search_while_one_writes(index, model):
    index.add(texts(20))
    errors: list[BaseException] = []
    done = threading.Event()

    def search() -> None:
        try:
            while not done.is_set():
                for hits in index.search(QUERIES, k=5):
                    assert len({hit.id for hit in hits}) == 5
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    for step in range(8):
        index.add(texts(5, start=20 + 5 * step))
        index.upsert([text(3, str(step))])
        index.delete([f"t{20 + 5 * step}"])
    index.compact(NOW)
    done.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert answers(index) == answers(Index.open(index.path, model))


# Writers


def test_a_writer_waits_for_another_and_then_says_so(index, model):
    other = Index.open(index.path, model, wait=0.1)
    with FileLock(index.path / LOCK):
        for write in (lambda: other.add(texts(1)), lambda: other.delete("a"), other.compact, other.reindex):
            with pytest.raises(BadIndex, match=r"Another process is writing to .* did not end in 0\.1 seconds"):
                write()
        assert len(other.search(Query(text="cat"))) == 0  # reading needs no lock
    assert other.add(texts(1)).added == 1


def test_what_another_writer_added_in_the_meantime_is_not_added_twice(index, model, monkeypatch):
    other = Index.open(index.path, model)
    prepare = Genius.prepare

    def meanwhile(self: Genius, item: Item, image_name: str | None) -> Any:
        monkeypatch.setattr(Genius, "prepare", prepare)
        other.add([text(1), text(2, "other")])
        return prepare(self, item, image_name)

    monkeypatch.setattr(Genius, "prepare", meanwhile)
    report = index.add(texts(3))
    assert (report.added, report.unchanged, [bad.id for bad in report.bad]) == (1, 1, ["t2"])
    assert content(index) == {"t0": text(0), "t1": text(1), "t2": text(2, "other")}


def test_files_are_on_the_disk_before_a_commit_is_acknowledged(index, monkeypatch):
    """In order: data and deletion files, then the manifest, then the word."""
    index.add(texts(3))
    events: list[Any] = []
    fsync, commit = os.fsync, lance.LanceDataset.commit
    monkeypatch.setattr(os, "fsync", lambda fd: events.append(os.readlink(f"/proc/self/fd/{fd}")) or fsync(fd))

    def committed(*args: Any, **more: Any) -> lance.LanceDataset:
        events.append("commit")
        return commit(*args, **more)

    monkeypatch.setattr(lance.LanceDataset, "commit", committed)
    root = index.path / "items.lance"

    def files() -> set[str]:
        return {str(path) for path in root.rglob("*") if path.is_file() and path.suffix != ".json"}

    for write in (
        lambda: index.add(texts(3, start=3), on_commit=lambda ids: events.append("word")),
        lambda: index.upsert([text(1, "changed")], on_commit=lambda ids: events.append("word")),
        lambda: index.delete("t0"),
        lambda: index.reindex(),
    ):
        before = files()
        write()
        new = files() - before
        first = events.index("commit")
        data = {path for path in new if "/data/" in path or "/_deletions/" in path}
        assert data <= set(events[:first])
        assert {path for path in new if "/_versions/" in path} <= set(events[first:])
        assert new <= set(events)
        assert {str(Path(path).parent) for path in new} <= set(events)
        assert "word" not in events or events[-1] == "word"
        events.clear()


# Versions


def test_older_versions_can_be_opened_and_only_read(index, model):
    seen = []
    for step in range(3):
        index.add(texts(5, start=5 * step))
        seen.append((index.version, answers(index), content(index)))
    index.delete([f"t{i}" for i in range(0, 15, 2)])
    index.compact()  # keeps versions for a day
    versions = {version.number: version for version in index.versions()}
    assert [version.items for version in index.versions()][:2] == [0, 0]  # before and after the first field came
    assert sorted(versions) == list(versions)
    for number, found, items in seen:
        old = Index.open(index.path, model, version=number, refresh=0)
        assert (old.version, answers(old), content(old)) == (number, found, items)
        assert versions[number].items == len(items) == len(old)
        assert not old.refresh()
        for write in (lambda old=old: old.add(texts(1)), lambda old=old: old.delete("t1"), old.compact, old.reindex):
            with pytest.raises(BadIndex, match=f"opened at version {number}, which does not change"):
                write()
    assert [version.time for version in versions.values()] == sorted(version.time for version in versions.values())


def test_versions_are_removed_when_they_are_old(index, model):
    for step in range(4):
        index.add(texts(50, start=50 * step))
    old = Index.open(index.path, model, version=3)
    report = index.compact(NOW)
    assert report.versions_removed >= 4
    assert report.files_merged == 3
    assert report.bytes_removed > 1000
    assert [version.number for version in index.versions()] == [index.version]
    with pytest.raises(BadIndex, match=r"has no version 3. `genius index versions` lists"):
        Index.open(index.path, model, version=3)
    with pytest.raises(BadIndex, match=r"Version 3 of .* cannot be read"):
        old.search(Query(text="cat"))
    assert len(Index.open(index.path, model).search(Query(text="cat"), k=300)) == 200


def test_compacting_removes_what_broken_off_writes_left(index, model):
    index.add(texts(5))
    orphan = index.path / "items.lance" / "data" / "0123456789abcdef.lance"
    orphan.write_bytes(b"half a file")
    index.compact()
    assert not orphan.exists()
    assert len(Index.open(index.path, model).search(Query(text="cat"))) == 5


# Encoding anew


def test_another_model_takes_over_in_one_step(tmp_path, model):
    saved, other = tmp_path / "model", tiny_model(seed=1)
    index = Index.create(tmp_path / "i", model)
    index.add([*texts(30), Item("red", "red", draw_image("red"))])
    reader = Index.open(index.path, model)
    before, items = answers(reader), content(index)
    number = index.version
    other.source = str(saved)
    report = index.reindex(other)
    assert (report.added, report.unchanged, report.bad) == (31, 0, [])
    assert index.header.fingerprint == other.fingerprint == index.info().fingerprint
    assert (index.header.model, index.header.generation) == (str(saved), 1)
    assert content(index) == items
    assert index.count("number = 7") == 1
    built = Index.create(tmp_path / "built", other)
    built.add(items.values())
    assert answers(index) == answers(built)
    assert answers(reader) == before  # its snapshot
    assert answers(Index.open(index.path, model, version=number)) == before
    index.add(texts(5, start=50))
    index.upsert([text(1, "changed")])
    assert answers(index) == answers(Index.open(index.path, other))
    assert index.verify(deep=True) == []


def test_a_reader_follows_to_the_new_model_or_says_why_not(tmp_path, model, monkeypatch):
    index = Index.create(tmp_path / "i", model)
    index.add(texts(30))
    readers = [Index.open(index.path, model) for _ in range(2)]
    before = [answers(reader) for reader in readers]
    index.reindex(tiny_model(seed=1))
    with pytest.raises(BadIndex, match="a model that was not saved"):
        readers[0].refresh()
    assert answers(readers[0]) == before[0]
    other = tiny_model(seed=2)
    other.source = "mini"
    index.reindex(other)
    monkeypatch.setattr(Genius, "from_pretrained", lambda name: {"mini": other}[name])
    assert readers[1].refresh()
    assert readers[1].model is other
    assert answers(readers[1]) == answers(index)


def test_a_writer_that_was_overtaken_by_a_new_model_stops(index, model, monkeypatch):
    other = tiny_model(seed=1)
    other.source = "mini"
    monkeypatch.setattr(Genius, "from_pretrained", lambda name: tiny_model(seed=1))

    def source() -> Iterator[Item]:
        yield from texts(3)
        Index.open(index.path, model).reindex(other)

    with pytest.raises(BadIndex, match=r"Another process encoded .* again in the meantime"):
        index.add(source())
    assert len(index) == 0
    assert index.add(texts(3)).added == 3
    assert index.verify(deep=True) == []


def test_the_same_model_mends_codes_and_keeps_what_it_cannot_encode(index, model, tmp_path):
    gone, changed = tmp_path / "gone.png", tmp_path / "changed.png"
    draw_image("red").save(gone)
    draw_image("blue").save(changed)
    index.add([*texts(10), Item("gone", image=gone), Item("changed", image=changed)])
    index.add_vectors(["vector"], model.encode_items([text(20)]))
    codes = dict(zip(content(index), index.codes.tolist(), strict=True))
    index.dataset.checkout_version(index.version).update({"code1": "7 - code1"}, where="id = 't3'")
    gone.unlink()
    draw_image("white").save(changed)
    assert index.refresh()
    report = index.reindex()
    assert (report.added, report.unchanged, [bad.id for bad in report.bad]) == (11, 1, ["gone"])
    now = dict(zip(content(index), index.codes.tolist(), strict=True))
    white = model.codes(model.encode_items([Item("white", image=draw_image("white"))]))[0].tolist()
    assert now == codes | {"changed": white}
    assert len(white) == 1 + LEVELS
    assert index.header.generation == 1
    assert [problem.id for problem in index.verify(deep=True)] == ["gone"]


def test_another_model_refuses_what_it_cannot_encode_and_changes_nothing(index, model, tmp_path):
    gone = tmp_path / "gone.png"
    draw_image("red").save(gone)
    index.add([*texts(5), Item("gone", image=gone)])
    index.add_vectors(["v0", "v1"], model.encode_items(texts(2)))
    version = index.version
    other = tiny_model(seed=1)
    with pytest.raises(BadIndex, match=r"has 2 items added as vectors"):
        index.reindex(other)
    index.delete(["v0", "v1"])
    gone.unlink()
    with pytest.raises(BadIndex, match=r"has 1 item whose image is missing, such as 'gone'"):
        index.reindex(other)
    gone.write_text("no image")
    with pytest.raises(BadIndex, match=r"gone: .*Nothing was changed"):
        index.reindex(other)
    assert index.version == version + 1
    assert len(index) == len(index.search(Query(text="cat"), k=10)) == 6
    index.delete("gone")
    assert index.reindex(other).added == 5


def test_an_empty_index_can_change_its_model(index):
    other = tiny_model(seed=1)
    assert index.reindex(other).added == 0
    index.add(texts(3))
    assert len(index.search(Query(text="cat"))) == 3


def test_fragments_can_be_dropped(index, model):
    for step in range(3):
        index.add(texts(5, start=5 * step))
    answers(index)
    index.delete("t7")
    assert index._session.drop_fragments([1]) == 4
    assert list(content(index)) == [f"t{i}" for i in (*range(5), *range(10, 15))]
    assert answers(index) == answers(Index.open(index.path, model))


# Space


def test_codes_alone_take_few_bytes(tmp_path, model):
    index = Index.create(tmp_path / "i", model, embeddings=False)
    rng = np.random.default_rng(0)
    n = 20_000
    vectors = Vectors(*(rng.standard_normal((n, 16)).astype(np.float32) for _ in range(2)))
    index.add_vectors([f"9:{i}" for i in range(n)], vectors)
    assert index.info().bytes / n < 4 + 1 + (LEVELS * 3 + 2) / 8 + 2  # id, modality, codes and what is constant


def test_all_metadata_columns_survive_encoding_anew(index):
    index.add([Item("a", "cat", metadata={"x": 1, "y": "b", "z": True, "tags": ["c"]}), Item("b", "dog")])
    fields, items = index.fields, content(index)
    index.reindex()
    assert (index.fields, content(index)) == (fields, items)
    assert [item.id for item in index.filter("x = 1 AND y = 'b' AND z")] == ["a"]
    assert Modality.parse("text").label in storage.to_labels(np.array([1])).to_pylist()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_vectors_that_are_zero_or_not_finite_are_refused(index: Index, model: Genius, bad: float) -> None:
    rows = np.zeros((6, model.dim), np.float32)
    rows[:, :2] = [[0, 1e-45], [-0.0, 0], [bad, 1], [3e18, -3e18], [0, bad], [-bad, 0]]
    report = index.add_vectors([f"v{i}" for i in range(6)], Vectors(np.zeros_like(rows), rows))
    assert {error.id: error.reason.partition(" has ")[0].partition(" are ")[0] for error in report.bad} == {
        "v1": "its vectors",
        "v2": "its vector",
        "v4": "its vector",
        "v5": "its vector",
    }
    assert [item.id for item in index.items()] == ["v0", "v3"]


@pytest.mark.parametrize("with_metadata", [False, True])
def test_vectors_of_many_blocks_are_added_as_of_one(tmp_path, model, monkeypatch, with_metadata):
    texts = np.random.default_rng(0).standard_normal((50, model.dim)).astype(np.float32)
    texts[13], texts[20, 1], texts[49] = 0, np.nan, 0
    images = np.where(np.arange(50)[:, None] % 3 == 0, texts[::-1], 0).astype(np.float32)
    vectors = Vectors(images, texts)
    ids = [f"i{number}" for number in range(50)]
    ids[7], ids[30] = " ", "i29"
    metadata = [{"n": number} for number in range(50)] if with_metadata else None
    whole = Index.create(tmp_path / "whole", model)
    report = whole.add_vectors(ids, vectors, metadata)
    monkeypatch.setattr(vector_ingest, "BLOCK", 8)
    pieces, commits = Index.create(tmp_path / "pieces", model), []
    again = pieces.add_vectors(ids, vectors, metadata, on_commit=commits.append)
    refused = [(one.id, str(one)) for one in report.bad]
    assert refused == [(one.id, str(one)) for one in again.bad]
    assert [id for id, _ in refused] == ["' '", "i13", "i20", "i29", "i49"]
    assert report.added == again.added == 45
    assert len(commits) == 7
    assert [*itertools.chain.from_iterable(commits)] == [item.id for item in pieces.items()]
    assert list(pieces.items()) == list(whole.items())
    assert (pieces.codes == whole.codes).all()
    assert pieces.codes[:, 0].tolist() == np.delete(vectors.modality, [7, 13, 20, 30, 49]).tolist()
    assert pieces.dataset.to_table(columns=["embedding"]).equals(whole.dataset.to_table(columns=["embedding"]))


# Small files


def sizes_of_files(index: Index) -> list[int]:
    return [fragment.count_rows() for fragment in index.dataset.get_fragments()]


def test_small_files_are_merged_as_they_pile_up(index: Index, model: Genius, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "MAX_SMALL_FILES", 4)
    monkeypatch.setattr(commits, "MERGED_ROWS", 64)
    reader = Index.open(index.path, model)
    reader.search(QUERIES[0])
    before = index.version
    for start in range(0, 90, 3):
        index.add(texts(3, start))
        if start % 9 == 0:
            index.delete(f"t{start + 1}")
        assert len(sizes_of_files(index)) <= 8
        if start % 15 == 0:
            assert reader.refresh()
            assert list(reader.items()) == list(index.items())
    assert max(sizes_of_files(index)) >= 32
    kept = [item for item in texts(90) if int(item.id[1:]) % 9 != 1]
    assert list(index.items()) == kept
    reader.refresh()
    anew = Index.create(index.path.parent / "anew", model)
    anew.add(kept)
    for query in QUERIES:
        hits = [(hit.id, round(hit.score, 5)) for hit in anew.search(query)]
        assert [(hit.id, round(hit.score, 5)) for hit in index.search(query)] == hits
        assert [(hit.id, round(hit.score, 5)) for hit in reader.search(query)] == hits
    assert index.verify() == []
    assert list(Index.open(index.path, model, version=before).items()) == []  # versions stay


def test_large_files_are_left_alone(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "MAX_SMALL_FILES", 3)
    monkeypatch.setattr(commits, "MERGED_BYTES", 1)
    for number in range(8):
        index.add(texts(1, number))
    assert sizes_of_files(index) == [1] * 8
    assert index.compact().files_merged == 7  # when asked to


def test_compaction_merges_large_files_once_there_are_many(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "MERGED_ROWS", 4)
    monkeypatch.setattr(commits, "LARGE_ROWS", 64)
    monkeypatch.setattr(commits, "MAX_LARGE_FILES", 5)
    for start in range(0, 20, 5):
        index.add(texts(5, start))
    assert index.compact().files_merged == 0  # four files are not many
    index.add(texts(5, 20))
    monkeypatch.setattr(commits, "LARGE_BYTES", 1)
    assert index.compact().files_merged == 0  # a file would be too large
    monkeypatch.setattr(commits, "LARGE_BYTES", 1 << 30)
    hits = [index.search(query) for query in QUERIES]
    assert index.compact().files_merged == 4
    assert sizes_of_files(index) == [25]
    assert [index.search(query) for query in QUERIES] == hits
    for number in range(25, 28):
        index.add(texts(1, number))
    assert index.compact().files_merged == 2  # the large file is not written again
    assert sizes_of_files(index) == [25, 3]
    assert list(index.items()) == texts(28)
    assert index.verify() == []


def test_what_is_written_stays_if_merging_fails(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "MAX_SMALL_FILES", 2)

    def full(*_: object) -> None:
        raise OSError("No space left on device (os error 28)")

    monkeypatch.setattr(commits, "_merge", full)
    for number in range(4):
        assert index.add(texts(1, number)).added == 1
    assert sizes_of_files(index) == [1] * 4
    monkeypatch.undo()
    assert [item.id for item in Index.open(index.path, index.model).items()] == ["t0", "t1", "t2", "t3"]
