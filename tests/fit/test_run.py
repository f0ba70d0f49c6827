import json
from pathlib import Path

import numpy as np
import pytest
from fakes import TinyEncoder, draw_image

from genius import Genius, Index, Item, Query, Vectors
from genius.errors import BadData, BadModel, GeniusError
from genius.fit.run import fit
from genius.fit.settings import FitSettings
from genius.model.fit_report import FitReport

SMALL = FitSettings(codes=8, levels=3, rounds=1, code_beams=2, check_queries=20)


def clustered(items: int = 120, dim: int = 12, seed: int = 0) -> np.ndarray:
    """Vectors around ten centres: codes can tell them apart."""
    rng = np.random.default_rng(seed)
    return (
        rng.standard_normal((10, dim))[rng.integers(10, size=items)] + 0.3 * rng.standard_normal((items, dim))
    ).astype(np.float32)


def words(number: int) -> str:
    return " ".join(f"w{(number * factor) % 23}" for factor in (1, 5, 7))


def test_ready_vectors_become_a_model_that_finds_what_exact_search_finds(tmp_path: Path) -> None:
    vectors = clustered()
    model, report = fit(vectors, out=tmp_path / "model", settings=SMALL)
    loaded = Genius.from_pretrained(tmp_path / "model")
    assert loaded.fingerprint == model.fingerprint
    assert loaded.sizes == (3, 8, 8, 8)
    assert FitReport.read(tmp_path / "model") == report
    assert report.recall["fast"] == 1.0
    assert report.recall["generate"] > 0.3
    assert 0 < report.lost < 0.5
    index = Index.create(tmp_path / "index", loaded)
    index.add_vectors([f"v{i}" for i in range(len(vectors))], Vectors(np.zeros_like(vectors), vectors))
    asked = Vectors(np.zeros_like(vectors[:5]), vectors[:5])
    for mode in ("generate", "rerank", "fast"):
        found = index.search_vectors(asked, k=3, mode=mode)  # type: ignore[arg-type]
        assert (found.rows == np.arange(5)[:, None]).any(axis=1).all()


def test_the_same_seed_gives_the_same_model() -> None:
    first, second = (fit(clustered(), settings=SMALL)[0] for _ in range(2))
    assert first.fingerprint == second.fingerprint


def test_items_are_encoded_once_and_an_interrupted_fit_continues(tmp_path: Path) -> None:
    class Counting(TinyEncoder):
        encoded = 0

        def encode(self, inputs, progress=False):  # type: ignore[no-untyped-def]
            Counting.encoded += len(inputs)
            return super().encode(inputs, progress)

    items = [Item(f"t{i}", text=words(i)) for i in range(60)]
    model, _ = fit(items, Counting(), tmp_path, SMALL)
    assert Counting.encoded == 60
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "fit" / "codebooks.safetensors").unlink()
    again, _ = fit(items, Counting(), tmp_path, SMALL)
    assert Counting.encoded == 60
    assert again.fingerprint == model.fingerprint


def test_bad_items_are_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    items = [Item(f"t{n}", text=words(n)) for n in range(60)]
    broken = [Item(f"b{n}", image=b"no image") for n in range(7)]
    _, report = fit([*items, *broken], TinyEncoder(), tmp_path / "model", SMALL)
    assert report.items == 60
    assert "7 bad items left out: b0: " in caplog.text
    assert "b4: " in caplog.text
    assert "b5: " not in caplog.text


def test_another_fit_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    fit(clustered(), out=tmp_path, settings=SMALL)
    with pytest.raises(BadData, match="other items"):
        fit(clustered(items=130), out=tmp_path, settings=SMALL)


def test_a_function_is_an_encoder_and_is_given_again_when_the_model_is_loaded(tmp_path: Path) -> None:
    tiny = TinyEncoder()

    def vectors(inputs: list) -> np.ndarray:  # type: ignore[type-arg]
        from genius.encoders.base import Prepared

        ready = [Prepared(None, one) if isinstance(one, str) else Prepared(tiny.pixels(one), "") for one in inputs]
        found = tiny.encode(ready)
        return found.image + found.text

    items = [Item(f"t{i}", text=words(i)) for i in range(40)]
    items += [Item(f"i{i}", image=draw_image(f"rgb({i * 5}, {250 - i * 5}, 40)")) for i in range(40)]
    model = Genius.fit(items, encoder=vectors, out=tmp_path / "model", settings=SMALL)
    assert not model.instructions
    with pytest.raises(BadModel, match="Python function"):
        Genius.from_pretrained(tmp_path / "model").encode_queries([Query("w1")])
    loaded = Genius.from_pretrained(tmp_path / "model", encoder=vectors)
    assert loaded.fingerprint == model.fingerprint
    index = Index.create(tmp_path / "index", loaded)
    index.add(items)
    assert index.search(Query(words(3), target="text"), k=1)[0].id == "t3"
    # The encoder knows no instructions: the target decides about the modality.
    assert {hit.modality.label for hit in index.search(Query("w1 w5", target="image"), k=5, mode="generate")} == {
        "image"
    }
    assert {hit.modality.label for hit in index.search("w1 w5", k=80)} == {"image", "text"}


def test_too_few_items_and_missing_encoders_are_sentences() -> None:
    with pytest.raises(GeniusError, match="at least 16"):
        fit(clustered(items=10))
    with pytest.raises(GeniusError, match="encoder"):
        fit([Item("a", text="b")])
    with pytest.raises(BadModel, match="no encoder 'nothing'"):
        fit([Item("a", text="b")], "nothing")
    with pytest.raises(BadData, match="row 3"):
        fit(np.where(np.arange(20)[:, None] == 3, 0, clustered(items=20)).astype(np.float32))
    with pytest.raises(BadData, match="dimensions"):
        fit(clustered(items=30), TinyEncoder())


def test_small_collections_get_fewer_codes() -> None:
    assert FitSettings().for_items(1_000).codes == 32
    assert FitSettings().for_items(30_000).codes == 256
    with pytest.raises(GeniusError, match="cannot fill"):
        FitSettings(codes=512).for_items(100)


def test_layers_are_trained_and_continue_from_their_checkpoint(tmp_path: Path) -> None:
    layered = FitSettings(codes=8, levels=3, rounds=0, code_beams=2, check_queries=20, layers=1, d_model=16, steps=12)
    model, report = fit(clustered(), out=tmp_path, settings=layered)
    assert report.layers == model.decoder.config.layers == 1
    again, _ = fit(clustered(), out=tmp_path, settings=layered)
    assert again.fingerprint == model.fingerprint
    assert any(
        json.loads(line)["stage"] == "decoder" for line in (tmp_path / "fit" / "log.jsonl").read_text().splitlines()
    )
