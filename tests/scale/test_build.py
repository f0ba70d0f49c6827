"""Builds on Ray, which runs on this machine with two workers. It is started once for the module."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sources import write_all, write_csv
from typer.testing import CliRunner

from genius.cli.app import app
from genius.data.items import Item
from genius.data.readers import read_items
from genius.errors import BadData, BadIndex, BadModel, GeniusError
from genius.index.index import Index
from genius.index.storage import to_matrix
from genius.model.genius import Genius
from genius.scale import build as module
from genius.scale.build import BlockWorker, Workers, build
from genius.scale.state import FOLDER, Block, BuildState

pytest.importorskip("ray")


@pytest.fixture(scope="module")
def mini() -> Genius:
    return Genius.from_pretrained("mini")


@pytest.fixture
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker is in this process: a pool of actors takes seconds to start."""

    def written(driver: module._Driver, numbers: list[int]) -> Iterator[tuple[int, Block]]:
        model = {"model": "mini", "fingerprint": driver.model.fingerprint, "device": "cpu"}
        worker = BlockWorker({"folder": driver.folder, "fields": driver.state.fields, **model})
        for number in reversed(numbers):
            done = worker({"block": [number]})
            assert done["error"] == [""]
            yield number, Block.from_json(done["report"][0])

    monkeypatch.setattr(module._Driver, "_written", written)


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    with module._ray(Workers(2)):
        yield


def embeddings(index: Index) -> np.ndarray:
    return to_matrix(index.dataset.to_table(columns=["embedding"])["embedding"])


def test_a_build_gives_the_index_that_adding_gives(tmp_path: Path, mini: Genius) -> None:
    sources = write_all(tmp_path / "sources")
    index, report = build(tmp_path / "built", mini, sources, workers=Workers(2), block_items=6)
    plain = Index.create(tmp_path / "plain", mini)
    reports = [plain.add(read_items(source)) for source in sources]

    assert [item.id for item in index] == [item.id for item in plain]
    assert list(index) == list(plain)
    np.testing.assert_array_equal(index.codes, plain.codes)
    np.testing.assert_array_equal(embeddings(index), embeddings(plain))
    assert set(index.fields) == set(plain.fields)
    for mode in ("fast", "generate", "rerank"):
        for query in ("a red image", "cats", "caption 3"):
            found = [(hit.id, hit.score, hit.codes) for hit in index.search(query, mode=mode)]
            assert found == [(hit.id, hit.score, hit.codes) for hit in plain.search(query, mode=mode)]
    assert index.count("year >= 2000") == plain.count("year >= 2000") > 0
    assert report.added == len(index) == sum(one.added for one in reports)
    assert report.unchanged == sum(one.unchanged for one in reports) == 1
    assert sorted((bad.id, bad.reason) for bad in report.bad) == sorted(
        (bad.id, bad.reason) for one in reports for bad in one.bad
    )

    assert index.verify(deep=True) == []
    assert index.files_without_checksum() == []
    assert [version.number for version in index.versions()] == [1, 2]
    assert not (index.path / FOLDER).exists()
    assert index.info().unfinished in (None, [], ())

    assert index.add([Item("new", "a new text", metadata={"year": 7, "other": True})]).added == 1
    assert index.delete(["t0", "rows.csv#34"]) == 1
    assert Index.open(index.path).verify() == []
    with pytest.raises(BadIndex, match="exists already"):
        build(tmp_path / "built", mini, sources)


@pytest.mark.usefixtures("_here")
def test_a_driver_that_died_goes_on_where_it_was(tmp_path: Path, mini: Genius, monkeypatch: pytest.MonkeyPatch) -> None:
    source, path = write_csv(tmp_path / "rows.csv"), tmp_path / "built"

    class Died(BaseException):
        pass

    def dying(recorded: int, record: object = BuildState.record) -> None:
        def record_some(state: BuildState, number: int, block: object) -> None:
            if len(state.done) == recorded:
                raise Died
            record(state, number, block)  # type: ignore[operator]

        monkeypatch.setattr(BuildState, "record", record_some)

    dying(2)
    with pytest.raises(Died):
        build(path, mini, [source], workers=Workers(2), block_items=5)
    assert len(Index.open(path)) == 0
    assert len(BuildState(path).done) == 2
    runner = CliRunner().invoke(app, ["index", "create", str(path), str(source)])
    assert isinstance(runner.exception, GeniusError)
    assert "--engine ray" in str(runner.exception)

    dying(1000)
    with monkeypatch.context() as patch:
        patch.setattr(module.Session, "adopt", lambda *_: (_ for _ in ()).throw(Died()))
        with pytest.raises(Died):
            build(path, mini, [source], workers=Workers(2), block_items=5)
    written: list[int] = []
    monkeypatch.setattr(module._Driver, "_written", lambda self, numbers: written.extend(numbers) or iter(()))
    index, report = build(path, mini, [source], workers=Workers(2), block_items=5)
    assert not written
    assert (len(index), report.added, report.unchanged, len(report.bad)) == (30, 30, 1, 2)
    assert index.verify() == []


@pytest.mark.usefixtures("_here")
def test_the_command_builds_with_both_engines(tmp_path: Path) -> None:
    source = write_csv(tmp_path / "rows.csv", 8)
    for engine in ("ray", "local"):
        out = tmp_path / engine
        done = CliRunner().invoke(app, ["index", "build", str(out), str(source), "--engine", engine])
        assert done.exit_code == 2, done.output
        assert f"{out} now holds 8 items" in " ".join(done.output.split())
        assert "rows.csv#12" in done.output
    assert list(Index.open(tmp_path / "ray")) == list(Index.open(tmp_path / "local"))
    wrong = CliRunner().invoke(app, ["index", "build", str(tmp_path / "x"), str(source), "--workers", "2"])
    assert "need --engine ray" in str(wrong.exception)


def test_what_cannot_be_built_is_an_error(tmp_path: Path, mini: Genius) -> None:
    with pytest.raises(BadData, match="no such file"):
        build(tmp_path / "a", mini, [tmp_path / "nothing"])
    with pytest.raises(GeniusError, match="nothing to build"):
        build(tmp_path / "b", mini, [])
    from fakes import tiny_model

    with pytest.raises(BadModel, match="Workers cannot load"):
        build(tmp_path / "c", tiny_model(), [tmp_path])
