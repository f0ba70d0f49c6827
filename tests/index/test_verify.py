"""Real damage to real files: each kind is named, and the offered repair mends it."""

import shlex
import shutil
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
from fakes import draw_image, tiny_model
from lance.file import LanceFileReader

from genius.cli.app import main
from genius.data.items import Item, Query
from genius.encoders.base import Vectors
from genius.errors import BadIndex, GeniusError
from genius.index.index import Index
from genius.index.storage import code_columns
from genius.index.verify import IndexProblem
from genius.model.genius import Genius

WORDS = ["cat", "dog", "owl", "fox", "hen", "ant", "bee", "cow"]


@pytest.fixture(autouse=True)
def _models(monkeypatch) -> None:
    """The tiny model wherever one is loaded: "mini", or another one."""

    def from_pretrained(name: str) -> Genius:
        model = tiny_model(seed=0 if name == "mini" else 1)
        model.source = str(name)
        return model

    monkeypatch.setattr(Genius, "from_pretrained", from_pretrained)


def make(path: Path, embeddings: bool = True) -> Index:
    return Index.create(path, Genius.from_pretrained("mini"), embeddings=embeddings)


def texts(prefix: str = "t", count: int = 8) -> list[Item]:
    return [Item(f"{prefix}{i}", f"{WORDS[i % 8]} number {prefix} {i}", metadata={"n": i}) for i in range(count)]


@pytest.fixture
def index(tmp_path) -> Index:
    """Two fragments of texts, and images by path, by bytes and with text."""
    for colour in ("red", "green", "blue"):
        draw_image(colour).save(tmp_path / f"{colour}.png")
    index = make(tmp_path / "my index")
    index.add(texts("a"))
    index.add(texts("b"))
    index.add(
        [
            Item("red", image=tmp_path / "red.png"),
            Item("green", "a green one", tmp_path / "green.png"),
            Item("blue", image=(tmp_path / "blue.png").read_bytes()),
        ]
    )
    assert len(index) == 19
    return index


def dataset(index: Index) -> lance.LanceDataset:
    return lance.dataset(index.path / "items.lance")


def check(index: Index, **options) -> list[IndexProblem]:
    """As another process sees the index, with the model that it names."""
    return Index.open(index.path).verify(**options)


def kinds(problems: list[IndexProblem]) -> list[tuple[str, str | None]]:
    return [(problem.kind, problem.id) for problem in problems]


def run(command: str) -> int:
    """Runs a repair as the shell would."""
    program, *arguments = shlex.split(command)
    assert program == "genius"
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    return int(exit.value.code or 0)


def test_an_index_in_order_has_no_problems(index):
    zeros = np.zeros((2, index.header.dim), np.float32)
    index.add_vectors(["v0", "v1"], Vectors(zeros, zeros + np.eye(index.header.dim, dtype=np.float32)[:2]))
    index.delete(["a1", "red"])
    index.upsert([Item("a2", "something else"), Item("a3", "cat number a 3", metadata={"new": "field"})])
    for options in ({}, {"sample": 0}, {"sample": 3}, {"deep": True}):
        assert check(index, **options) == []
    index.compact()
    assert check(index, deep=True) == []
    assert check(make(index.path.parent / "empty"), deep=True) == []
    codes_only = make(index.path.parent / "codes", embeddings=False)
    codes_only.add(texts())
    assert check(codes_only, deep=True) == []


def test_a_number_of_items_is_asked_for(index):
    with pytest.raises(GeniusError, match="sample is -1"):
        check(index, sample=-1)


# Images


def test_a_missing_image_is_named_and_deleting_the_item_mends_it(index, tmp_path):
    (tmp_path / "red.png").unlink()
    (problem,) = check(index, deep=True)
    assert kinds([problem]) == [("image", "red")]
    assert f"{tmp_path / 'red.png'} is missing" in problem.message
    assert run(problem.repair) == 0
    assert check(index) == []
    assert len(Index.open(index.path)) == 18


@pytest.mark.parametrize("id", ["-x", "it's", 'a "b" $HOME `c`', "日本 語"])
def test_repairs_can_be_pasted_whatever_the_id(index, tmp_path, id):
    index.add([Item(id, image=tmp_path / "red.png")])
    index.delete("red")
    (tmp_path / "red.png").unlink()
    (problem,) = check(index)
    assert run(problem.repair) == 0
    assert check(index) == []


def test_a_image_that_was_exchanged_is_found_and_indexing_anew_mends_it(index, tmp_path):
    shutil.copy(tmp_path / "green.png", tmp_path / "red.png")
    assert check(index, sample=0) == []  # not looked into
    (problem,) = check(index, deep=True)
    assert kinds([problem]) == [("content", "red")]
    assert run(problem.repair) == 0
    assert check(index, deep=True) == []
    query = Query(image=draw_image("green"), target="image", instruction="")
    assert Index.open(index.path).search(query, k=1)[0].id == "red"


def test_a_image_that_is_no_image_any_more_is_found(index, tmp_path):
    (tmp_path / "red.png").write_bytes(b"<html>")
    (problem,) = check(index, deep=True)
    assert kinds([problem]) == [("content", "red")]


# Codes and embeddings


def rewrite(index: Index, id: str, column: str, value: object) -> None:
    """Change one cell, behind the index's back."""
    data = dataset(index)
    table = data.to_table(filter=f"id = '{id}'")
    place = table.schema.get_field_index(column)
    changed = table.set_column(place, table.schema.field(column), pa.array([value], table.schema.field(column).type))
    data.merge_insert("id").when_matched_update_all().execute(changed)


@pytest.mark.parametrize(
    ("column", "value", "options"),
    [
        ("code1", 60_000, {"sample": 0}),  # there is no such code
        ("code0", 0, {"sample": 0}),  # not the code of a text
        ("modality", "image", {"sample": 0}),
        ("code2", None, {"deep": True}),  # a code that exists, but not its own
        ("code2", None, {"sample": 100}),
    ],
)
def test_codes_that_are_not_the_models_are_found_and_indexing_anew_mends_them(index, column, value, options):
    if value is None:
        own = dataset(index).to_table(filter="id = 'b3'", columns=[column])[column][0].as_py()
        value = (own + 3) % index.header.sizes[2]
    before = {hit.id: hit.score for hit in index.search(Query(text="owl number b 3"), k=19)}
    rewrite(index, "b3", column, value)
    (problem,) = check(index, **options)
    assert kinds([problem]) == [("codes", "b3")]
    assert run(problem.repair) == 0
    assert check(index, deep=True) == []
    again = Index.open(index.path).search(Query(text="owl number b 3"), k=19)
    assert {hit.id: hit.score for hit in again} == before


@pytest.mark.parametrize(
    ("vector", "options"),
    [
        (np.full(16, np.nan), {"sample": 0}),
        (np.full(16, np.inf), {"sample": 0}),
        (np.full(16, 1.0), {"sample": 0}),  # of length 4
        (np.eye(16)[3], {"deep": True}),  # of another item
    ],
)
def test_embeddings_that_are_wrong_are_found_and_indexing_anew_mends_them(index, vector, options):
    rewrite(index, "b3", "embedding", list(vector.astype(np.float16)))
    (problem,) = check(index, **options)
    assert kinds([problem]) == [("embedding", "b3")]
    assert run(problem.repair) == 0
    assert check(index, deep=True) == []


def test_embeddings_of_the_wrong_size_are_named(index):
    data = dataset(index).to_table()
    wide = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(len(data) * 32, np.float16)), 32)
    place = data.schema.get_field_index("embedding")
    wrong = data.set_column(place, "embedding", wide)
    lance.write_dataset(wrong, index.path / "items.lance", mode="overwrite", schema=wrong.schema)
    with pytest.raises(BadIndex, match=r"32.*16"):
        Index.open(index.path)


def test_vectors_cannot_be_indexed_anew_and_are_offered_to_be_deleted(index):
    zeros = np.zeros((1, index.header.dim), np.float32)
    index.add_vectors(["v"], Vectors(zeros, zeros + 1))
    rewrite(index, "v", "code1", 60_000)
    (problem,) = check(index)
    assert kinds([problem]) == [("codes", "v")]
    assert "delete" in problem.repair
    assert run(problem.repair) == 0
    assert check(index) == []


def test_all_items_of_a_sample_are_looked_at_and_no_more(index):
    for id in ("a0", "b7"):
        own = dataset(index).to_table(filter=f"id = '{id}'", columns=["code2"])["code2"][0].as_py()
        rewrite(index, id, "code2", (own + 3) % 8)
    assert kinds(check(index, sample=19)) in ([("codes", "a0"), ("codes", "b7")], [("codes", "b7"), ("codes", "a0")])
    found = [len(check(index, sample=5)) for _ in range(30)]
    assert 0 < sum(found) < 30 * 2


# Contents


def test_a_text_that_was_damaged_is_found_and_adding_the_item_again_mends_it(index):
    rewrite(index, "a5", "text", "ant numbor a 5")
    (problem,) = check(index, sample=0)
    assert kinds([problem]) == [("content", "a5")]
    assert run(problem.repair) == 0
    report = Index.open(index.path, index.model).add(texts("a"))
    assert (report.added, report.unchanged, report.bad) == (1, 7, [])
    assert check(index, deep=True) == []


def test_a_kept_image_or_metadata_that_was_damaged_is_found(index, tmp_path):
    rewrite(index, "blue", "image_bytes", (tmp_path / "blue.png").read_bytes()[:-1])
    rewrite(index, "a1", "metadata", '{"n": 1')
    assert sorted(kinds(check(index, deep=True))) == [("content", "a1"), ("content", "blue")]


def test_an_id_that_is_there_twice_is_found_and_adding_the_item_again_mends_it(index):
    row = dataset(index).to_table(filter="id = 'a5'")
    lance.write_dataset(row, index.path / "items.lance", mode="append")
    (problem,) = check(index)
    assert kinds([problem]) == [("id", "a5")]
    assert "2 items have this id" in problem.message
    assert run(problem.repair) == 0
    again = Index.open(index.path)
    assert "a5" not in again
    again.add(texts("a"))
    assert check(index) == []
    assert len(again) == 19


# The model


def test_another_model_is_named_and_indexing_anew_mends_it(index, monkeypatch):
    monkeypatch.setattr(Genius, "from_pretrained", lambda name: _named(tiny_model(seed=5), name))
    problems = check(index)
    assert kinds(problems) == [("model", None)]
    assert "was made with mini" in problems[0].message
    assert run(problems[0].repair.replace("MODEL", "mini")) == 0
    assert check(index, deep=True) == []
    assert Index.open(index.path).header.fingerprint == tiny_model(seed=5).fingerprint


def _named(model: Genius, name: str) -> Genius:
    model.source = name
    return model


def test_an_index_of_a_model_that_is_gone_is_checked_as_far_as_possible(index, monkeypatch):
    rewrite(index, "b3", "code1", 60_000)

    def missing(name: str) -> Genius:
        raise GeniusError("There is no model 'mini'.")

    monkeypatch.setattr(Genius, "from_pretrained", missing)
    assert kinds(check(index, deep=True)) == [("model", None), ("codes", "b3")]


# Files


def data_file(index: Index, fragment: int) -> Path:
    return index.path / "items.lance" / "data" / dataset(index).get_fragment(fragment).data_files()[0].path


@pytest.mark.parametrize("damage", ["truncated", "empty", "missing", "overwritten"])
def test_a_damaged_file_is_named_and_the_rest_can_be_saved(index, damage):
    file = data_file(index, 1)
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        worse = {"truncated": content[: len(content) // 2], "empty": b"", "overwritten": bytes(len(content))}
        file.write_bytes(worse[damage])
    (problem,) = check(index)
    assert kinds([problem]) == [("fragment", None)]
    assert str(file) in problem.message
    assert "8 items" in problem.message
    assert run(problem.repair) == 0
    again = Index.open(index.path)
    assert check(index, deep=True) == []
    assert sorted(item.id for item in again.items()) == sorted([*(f"a{i}" for i in range(8)), "red", "green", "blue"])
    assert again.search(Query(text="owl number a 2", instruction=""), k=1)[0].id == "a2"
    report = again.add([*texts("a"), *texts("b")])  # from where they came from
    assert (report.added, report.unchanged, report.bad) == (8, 8, [])
    assert check(index, deep=True) == []
    assert len(again) == 19


def test_an_open_index_goes_on_after_damaged_files_were_dropped(index):
    index.search(Query(text="cat"))
    data_file(index, 0).unlink()
    assert index.drop_damaged() == 8
    assert len(index) == 11
    assert {hit.id for hit in index.search(Query(text="cat number a 0"), k=19)} == {item.id for item in index.items()}
    assert index.drop_damaged() == 0


def test_a_damaged_list_of_deletions_is_named(index):
    index.delete("b3")
    (file,) = (index.path / "items.lance" / "_deletions").iterdir()
    file.write_bytes(file.read_bytes()[:20])
    (problem,) = check(index)
    assert problem.kind == "fragment"
    assert str(file) in problem.message
    assert "7 items" in problem.message
    assert run(problem.repair) == 0
    assert check(index) == []


def test_codes_that_cannot_be_read_are_made_anew_from_the_content(index):
    file = data_file(index, 1)
    column = dataset(index).schema.get_field_index("code1")
    first = LanceFileReader(str(file)).metadata().columns[column].pages[0].buffers[0]
    content = bytearray(file.read_bytes())
    content[first.position : first.position + first.size] = b"\xff" * first.size  # how the codes are packed
    file.write_bytes(content)
    (problem,) = check(index, sample=0)
    assert problem.kind == "fragment"
    assert str(file) in problem.message
    assert "computed again" in problem.message
    assert run(problem.repair) == 0
    (problem,) = check(index, deep=True)  # of the versions before
    assert problem.kind == "version"
    assert str(file) in problem.message
    assert run(problem.repair) == 0
    assert check(index, deep=True) == []
    assert len(Index.open(index.path)) == 19


def test_without_checksums_no_flipped_byte_that_changes_content_stays_unseen(tmp_path):
    """Wherever one lies, verify ends well; and where it changes content or codes, it finds something."""
    index = make(tmp_path / "index", embeddings=False)
    index.add([Item(item.id, item.text) for item in texts(count=50)])
    shutil.rmtree(index.path / "checksums")  # as earlier releases left it
    columns = ["text", "hash", "modality", *code_columns(index.header)]
    before = dataset(index).to_table(columns=columns)
    file = data_file(index, 0)
    content = file.read_bytes()
    changed = unreadable = 0
    for place in {*range(0, len(content), 89), *range(len(content) - 16, len(content))}:
        file.write_bytes(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
        problems = check(index, deep=True)
        if any(problem.kind == "fragment" for problem in problems):  # reading it might end the process
            unreadable += 1
            continue
        same = dataset(index).to_table(columns=columns) == before
        changed += not same
        assert same or problems, f"a flipped byte at {place} was not seen"
    assert changed > 5
    assert unreadable > 5
    file.write_bytes(content)
    assert check(index, deep=True) == []


def test_damaged_files_are_listed_before_missing_images(index, tmp_path):
    (tmp_path / "red.png").unlink()
    data_file(index, 0).unlink()
    assert [problem.kind for problem in check(index)] == ["fragment", "image"]
