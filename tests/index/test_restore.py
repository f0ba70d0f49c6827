"""Going back to an earlier version: by choice, or because files of the newest are damaged."""

import random
import shutil
import sys
import time
from pathlib import Path

import pytest
from fakes import tiny_model
from processes import Talk, other

from genius.cli.app import main
from genius.data.items import Item, Query
from genius.errors import BadIndex
from genius.index.folder import LOCK
from genius.index.index import Index
from genius.model.genius import Genius


def texts(prefix: str, count: int = 8) -> list[Item]:
    return [Item(f"{prefix}{i}", f"thing {prefix} {i}", metadata={"n": i}) for i in range(count)]


def ids(index: Index) -> set[str]:
    found = {hit.id for hit in index.search(Query(text="thing"), k=1000)}
    assert found == {item.id for item in index.items()}
    assert len(found) == len(index)
    return found


def newest_manifest(path: Path) -> Path:
    return min((path / "items.lance" / "_versions").glob("*.manifest"))


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0x10
    file.write_bytes(content)


@pytest.fixture(scope="module")
def model() -> Genius:
    return tiny_model()


@pytest.fixture
def path(tmp_path: Path, model: Genius) -> Path:
    """Items a, then b, then a0 deleted."""
    index = Index.create(tmp_path / "index", model)
    index.add(texts("a"))
    index.add(texts("b"))
    index.delete("a0")
    return index.path


def names(*prefixes: str) -> set[str]:
    return {item.id for prefix in prefixes for item in texts(prefix)}


def test_a_damaged_manifest_is_set_aside_and_the_version_before_comes_back(path: Path, model: Genius) -> None:
    version = Index.open(path, model).version
    damaged = newest_manifest(path)
    damage(damaged)
    with pytest.raises(BadIndex, match=f"{damaged} has changed.*genius index restore"):
        Index.open(path, model)
    (problem,) = Index.verify_files(path)
    assert str(damaged) in problem.message
    assert f"newest version that is whole is {version - 1}" in problem.message
    assert Index.open(path, model, version=version - 1).get("a0") is not None
    report = Index.restore(path)
    assert (report.restored, report.items) == (version - 1, 16)
    assert report.version > version  # readers know that number as another version
    assert f"items.lance/_versions/{damaged.name}" in report.set_aside
    assert (path / "quarantine" / "_versions" / damaged.name).is_file()
    index = Index.open(path, model)
    assert ids(index) == names("a", "b")
    assert index.verify(deep=True) == []
    index.add(texts("c"))
    assert index.delete("a0") == 1
    assert ids(Index.open(path, model)) == names("a", "b", "c") - {"a0"}
    index.compact()
    assert index.verify(deep=True) == []
    assert Index.restore(path).version == index.version  # nothing left to do


def test_several_damaged_manifests(path: Path, model: Genius) -> None:
    manifests = sorted((path / "items.lance" / "_versions").glob("*.manifest"))
    for manifest in manifests[:2]:
        manifest.write_bytes(b"")
    report = Index.restore(path)
    assert report.version > Index.open(path, model).versions()[-2].number
    index = Index.open(path, model)
    assert ids(index) == names("a")
    assert index.verify(deep=True) == []


def test_a_version_of_choice(path: Path, model: Genius) -> None:
    index, reader = Index.open(path, model), Index.open(path, model)
    before = {version.number: version.items for version in index.versions()}
    assert ids(reader) == names("a", "b") - {"a0"}
    chosen = next(number for number, items in before.items() if items == 8)
    report = Index.restore(path, chosen)
    assert (report.restored, report.items, report.set_aside, report.damaged) == (chosen, 8, [], [])
    assert reader.refresh()
    assert ids(reader) == names("a")
    index.add(texts("c"))  # an index that was open before
    assert ids(index) == names("a", "c")
    assert reader.refresh()
    assert ids(reader) == names("a", "c")
    Index.restore(path, max(before))
    reader.refresh()
    assert ids(reader) == names("a", "b") - {"a0"}
    assert reader.upsert(texts("a")).added == 1  # the others are unchanged
    assert reader.verify(deep=True) == []
    assert {version.number for version in reader.versions()} > set(before)


def test_damaged_data_bring_back_the_version_that_does_not_need_them(path: Path, model: Genius) -> None:
    index = Index.open(path, model)
    damaged = path / "items.lance" / "data" / index.dataset.get_fragments()[1].data_files()[0].path
    damage(damaged)
    report = Index.restore(path)
    assert report.items == 8
    index = Index.open(path, model)
    assert ids(index) == names("a")
    assert index.verify(deep=True) == []
    assert damaged.is_file()


def test_a_version_that_is_not_whole_only_by_choice(path: Path, model: Genius) -> None:
    index = Index.open(path, model)
    whole, newest = index.versions()[-2].number, index.version
    for fragment in index.dataset.get_fragments():
        damage(path / "items.lance" / "data" / fragment.data_files()[0].path)
    damage(newest_manifest(path))
    for version in range(1, whole):
        if version < 3:  # the empty ones are whole
            manifest = path / "items.lance" / "_versions" / f"{2**64 - 1 - version}.manifest"
            damage(manifest)
    with pytest.raises(BadIndex, match=f"No version of .* is whole.*--version {whole}"):
        Index.restore(path)
    with pytest.raises(BadIndex, match=f"Version {newest} .*its manifest is damaged"):
        Index.restore(path, newest)
    with pytest.raises(BadIndex, match="no version 99"):
        Index.restore(path, 99)
    report = Index.restore(path, whole)
    assert report.damaged
    index = Index.open(path, model)
    assert {problem.kind for problem in index.verify()} == {"fragment"}
    assert index.drop_damaged() == 16
    assert index.verify() == []


def test_what_is_not_needed_is_set_aside_and_no_version_made(path: Path, model: Genius) -> None:
    version = Index.open(path, model).version
    damaged = [
        max((path / "items.lance" / "_versions").glob("*.manifest")),
        max((path / "items.lance" / "_transactions").iterdir(), key=lambda file: file.stat().st_mtime_ns),
        path / "items.lance" / "_versions" / "latest_version_hint.json",
        path / "checksums" / f"{version - 1}.json",
    ]
    for file in damaged:
        damage(file)
    messages = [problem.message for problem in Index.verify_files(path)]
    for file in damaged:
        assert any(str(file) in message for message in messages), file
    assert Index.restore(path).version == version
    index = Index.open(path, model)
    assert index.verify(deep=True) == []
    assert index.files_without_checksum() == []
    index.add(texts("c"))
    assert index.verify(deep=True) == []
    index.compact()


def test_the_command(path: Path, model: Genius, capsys) -> None:
    damage(newest_manifest(path))
    for command, status, said in (
        (["verify", str(path)], 1, "newest version that is whole is"),
        (["restore", str(path), "--version", "77"], 1, "no version 77"),
        (["restore", str(path)], 0, "16 items"),
        (["restore", str(path)], 0, "newest one and whole"),
    ):
        with pytest.raises(SystemExit) as exit:
            main(["index", *command])
        output = capsys.readouterr()
        assert exit.value.code in ((status, None) if status == 0 else (status,)), command
        assert said in " ".join((output.out + output.err).split()), command
    assert ids(Index.open(path, model)) == names("a", "b")


def test_what_cannot_be_restored_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadIndex, match="There is no index at"):
        Index.restore(tmp_path / "nothing")
    with pytest.raises(BadIndex, match="is not an index"):
        Index.restore(tmp_path)


def test_restore_waits_for_writers(path: Path, model: Genius) -> None:
    from filelock import FileLock

    with FileLock(path / LOCK), pytest.raises(BadIndex, match="Another process is writing"):
        Index.restore(path, wait=0.05)


# Kills


def restore_when_told(talk: Talk, path: Path) -> None:
    talk.say("ready")
    talk.hear()
    Index.restore(path)


@pytest.mark.skipif(sys.platform == "win32", reason="the processes are forked")
def test_a_restore_that_was_killed_can_be_repeated(path: Path, model: Genius, tmp_path: Path) -> None:
    generator, states = random.Random(0), set()
    for kill in range(12):
        copy = tmp_path / f"copy {kill}"
        shutil.copytree(path, copy)
        damaged = newest_manifest(copy)
        damage(damaged)
        with other(restore_when_told, copy) as process:
            process.hear()
            process.say("go on")
            # Often just after the first file was moved. The restored version takes the name of the damaged one.
            while kill % 3 and not (copy / "quarantine").exists():
                time.sleep(0.0002)
            time.sleep(generator.uniform(0, 0.03))
        try:
            states.add(ids(Index.open(copy, model)) == names("a", "b"))
        except BadIndex:
            states.add(False)
        Index.restore(copy)
        index = Index.open(copy, model)
        assert ids(index) == names("a", "b")
        assert index.verify(deep=True) == []
        assert index.version > 5
        index.add(texts("c"))
        assert index.verify() == []
    assert True in states
