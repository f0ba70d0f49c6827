"""Encoders by name: a GENIUS model, a CLIP, a sentence-transformers model, and names that nothing has."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tiny_clip
from fakes import draw_image
from typer.testing import CliRunner

from genius import BadData, BadModel, Genius, Index, Item, Modality, Query
from genius.cli.app import app
from genius.fit.collection import is_vector_file, read_vectors
from genius.fit.encoders import open_encoder
from genius.fit.run import fit
from tests.fit.test_run import SMALL, clustered

COLOURS = [f"rgb({i * 6}, {255 - i * 5}, {i * 37 % 255})" for i in range(40)]


def test_a_clip_in_a_folder_is_fitted_and_searched_without_instructions(tmp_path: Path) -> None:
    folder = tiny_clip.save("clip", tmp_path / "clip")
    items = [Item(f"i{i}", image=draw_image(colour, (32, 32))) for i, colour in enumerate(COLOURS)]
    words = [f"a {one} {two}" for one in ("red", "blue", "big") for two in ("cat", "dog", "house", "tree", "sofa")]
    items += [Item(f"t{i}", text=text) for i, text in enumerate(words)]
    model, report = fit(items, folder, tmp_path / "model", SMALL)
    assert model.encoder.kind == "clip"
    assert not model.instructions
    assert report.modalities["image"] == 40
    loaded = Genius.from_pretrained(tmp_path / "model")
    assert loaded.fingerprint == model.fingerprint
    plain, derived = (
        loaded.encode_queries([query]).text
        for query in (Query("a red cat", instruction=""), Query("a red cat", target="image"))
    )
    assert np.array_equal(plain, derived)
    index = Index.create(tmp_path / "index", loaded)
    index.add(items)
    assert {hit.modality for hit in index.search(Query("a red cat", target="image"), k=5)} == {Modality.IMAGE}
    assert index.search(Query(image=draw_image(COLOURS[7], (32, 32)), target="image"), k=1)[0].score > 0.99


def test_the_encoder_of_a_model_of_this_package_keeps_its_instructions() -> None:
    opened = open_encoder("mini")
    assert opened.encoder.kind == "mini"
    assert opened.instructions


def test_a_folder_that_holds_no_encoder_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(BadModel, match="bert"):
        open_encoder(tmp_path)
    with pytest.raises(BadModel, match="not an encoder"):
        open_encoder(3)  # type: ignore[arg-type]


def test_vectors_are_read_from_npy_and_parquet(tmp_path: Path) -> None:
    vectors = clustered(20)
    np.save(tmp_path / "v.npy", vectors)
    assert read_vectors(tmp_path / "v.npy", Modality.IMAGE).modality.tolist() == [0] * 20
    pq.write_table(pa.table({"vector": list(vectors)}), tmp_path / "one.parquet")
    assert np.array_equal(read_vectors(tmp_path / "one.parquet", Modality.TEXT).vectors, vectors)
    half = [*vectors[:10], *[None] * 10]
    pq.write_table(pa.table({"image_vector": list(vectors), "text_vector": half}), tmp_path / "two.parquet")
    both = read_vectors(tmp_path / "two.parquet", Modality.TEXT)
    assert both.modality.tolist() == [2] * 10 + [0] * 10
    assert np.allclose(both.vectors[10:], vectors[10:])
    assert len(both.texts) == 10
    pq.write_table(pa.table({"id": ["a"]}), tmp_path / "none.parquet")
    assert not is_vector_file(tmp_path / "none.parquet")
    with pytest.raises(BadData, match="column `vector`"):
        read_vectors(tmp_path / "none.parquet", Modality.TEXT)
    np.save(tmp_path / "bad.npy", np.ones((3, 2), int))
    with pytest.raises(BadData, match="floats"):
        read_vectors(tmp_path / "bad.npy", Modality.TEXT)


def test_the_commands(tmp_path: Path) -> None:
    np.save(tmp_path / "v.npy", clustered(64))
    run = CliRunner().invoke
    arguments = ["fit", str(tmp_path / "v.npy"), "--out", str(tmp_path / "model"), "--codes", "8", "--levels", "2"]
    made = run(app, [*arguments, "--modality", "image"])
    assert made.exit_code == 0, made.output
    assert "Fitted" in made.output
    shown = run(app, ["model", "info", str(tmp_path / "model")])
    assert "residual score" in shown.output
    assert "exact search" in shown.output
