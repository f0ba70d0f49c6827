from pathlib import Path

import numpy as np
import pytest
from fakes import TinyEncoder, tiny_model

from genius import BadIndex, Genius, Index, Item, Vectors
from genius.encoders.base import Encoder
from genius.encoders.loading import ENCODERS
from genius.fit.encoders import OpenedEncoder
from genius.fit.refit import create_fitted, refit
from tests.fit.test_run import SMALL, words


@pytest.fixture(autouse=True)
def _tiny_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TinyEncoder, "from_state", classmethod(lambda cls, *_: cls()), raising=False)
    monkeypatch.setitem(ENCODERS, "tiny", ("mini", "TinyEncoder"))
    monkeypatch.setattr("genius.encoders.mini.TinyEncoder", TinyEncoder, raising=False)


def items(first: int, last: int) -> list[Item]:
    return [Item(f"t{i}", text=words(i), metadata={"n": i}) for i in range(first, last)]


def created(path: Path, encoder: Encoder | None = None, embeddings: bool = True) -> Index:
    opened = OpenedEncoder(encoder or TinyEncoder(), False)
    return create_fitted(path, opened, ["x"], lambda index: index.add(items(0, 60)), SMALL, embeddings=embeddings)[0]


def test_an_index_is_created_with_codes_fitted_to_its_items(tmp_path: Path) -> None:
    class Counting(TinyEncoder):
        encoded = 0

        def encode(self, inputs, progress=False):  # type: ignore[no-untyped-def]
            Counting.encoded += len(inputs)
            return super().encode(inputs, progress)

    index = created(tmp_path / "a.genius", Counting())
    assert Counting.encoded == 60
    assert index.header.sizes == (3, 8, 8, 8)
    assert len(index.versions()) == 1
    moved = tmp_path / "b.genius"
    (tmp_path / "a.genius").rename(moved)
    opened = Index.open(moved)  # the model is inside
    assert opened.search(words(7), k=1)[0].id == "t7"
    assert opened.search(words(7), k=1, mode="generate", where="n = 7")[0].item.metadata == {"n": 7}
    assert not opened.verify()
    assert [path.name for path in (moved / "models").iterdir()] == [opened.header.fingerprint]


def test_a_creation_interrupted_during_the_fit_continues_without_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.genius"

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("genius.fit.refit.fit_vectors", killed)
        with pytest.raises(KeyboardInterrupt):
            created(path)
    unfinished = Index.open(path)
    assert unfinished.info().unfinished
    assert unfinished.search(words(7), k=1)[0].id == "t7"  # exactly, without codes

    class Refusing(TinyEncoder):
        def encode(self, inputs, progress=False):  # type: ignore[no-untyped-def]
            assert not len(inputs)
            return super().encode(inputs, progress)

    index = created(path, Refusing())
    assert index.header.sizes == (3, 8, 8, 8)
    assert not index.info().unfinished
    with pytest.raises(BadIndex, match="exists already"):
        created(path)


def test_a_folder_with_other_files_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_bytes(b"")
    with pytest.raises(BadIndex, match="not empty"):
        created(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]


def test_drift_is_told_and_a_refit_lowers_it(tmp_path: Path) -> None:
    index = created(tmp_path / "a.genius")
    assert index.info().drift is None
    rng = np.random.default_rng(5)
    centre = rng.standard_normal(16) * 3
    strange = (centre + rng.standard_normal((40, 16))).astype(np.float32)
    index.add_vectors([f"v{i}" for i in range(40)], Vectors(strange, np.zeros_like(strange)))
    drift = index.info().drift
    assert drift is not None
    index.compact()
    assert index.info().drift == drift
    assert drift.added == 40
    assert drift.ratio > 1.25
    assert "refit" in drift.words
    before, version = index.codes.copy(), index.version
    old = Index.open(index.path)
    refit(index, SMALL)
    assert index.version == version + 1
    assert len(index) == 100
    assert not np.array_equal(index.codes, before)
    assert index.info().drift is None
    assert np.array_equal(old.codes, before)  # others read the old version until they refresh
    assert old.refresh()
    assert np.array_equal(old.codes, index.codes)
    asked = Vectors(strange[:3], np.zeros_like(strange[:3]))
    assert index.ids(index.search_vectors(asked, k=1).rows[:, 0]) == ["v0", "v1", "v2"]
    assert index.search(words(7), k=1)[0].id == "t7"


def test_an_index_without_embeddings_cannot_be_refitted(tmp_path: Path) -> None:
    index = created(tmp_path / "a.genius", embeddings=False)
    assert not index.header.embeddings
    assert index.search(words(7), k=5)
    with pytest.raises(BadIndex, match="no embeddings"):
        refit(index, SMALL)


def test_an_index_of_another_model_is_refitted_with_its_encoder(tmp_path: Path) -> None:
    model = tiny_model()
    model.save_pretrained(tmp_path / "model")
    index = Index.create(tmp_path / "a.genius", Genius.from_pretrained(tmp_path / "model"))
    index.add(items(0, 60))
    report = refit(index, SMALL)
    assert report.in_index
    assert Index.open(index.path).search(words(7), k=1)[0].id == "t7"
