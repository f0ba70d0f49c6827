"""Codes and embeddings that processes share through mapped files."""

import os
from pathlib import Path

import numpy as np
import pytest
from fakes import tiny_model
from processes import Talk, other

from genius import Index, Item
from genius.index.mapped import mapped_arrays
from genius.model.genius import Genius
from genius.search.options import MODES


@pytest.fixture(scope="module")
def model() -> Genius:
    return tiny_model()


def texts(prefix: str, count: int = 40) -> list[Item]:
    return [Item(f"{prefix}{i}", f"thing {prefix} {i}") for i in range(count)]


def hits(index: Index) -> list[list[tuple[str, float]]]:
    queries = [f"thing {prefix} {number}" for prefix in "ab" for number in range(3)]
    return [
        [(hit.id, round(hit.score, 4)) for hit in found]
        for mode in MODES
        for found in index.search(queries, k=7, mode=mode)
    ]


@pytest.mark.parametrize("embeddings", [True, False])
def test_a_shared_index_answers_as_one_in_private_memory(tmp_path: Path, model: Genius, embeddings: bool) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    path = tmp_path / "a.genius"
    Index.create(path, model, embeddings=embeddings).add(texts("a"))
    first, second = (Index.open(path, model, shared=shared) for _ in range(2))
    assert hits(first) == hits(second) == hits(Index.open(path, model))
    files = {file.name for folder in shared.iterdir() if folder.is_dir() for file in folder.iterdir()}
    assert {"codes", "order", "row_ids"} <= files
    second.add(texts("b"))
    second.delete(["a0", "b1"])
    assert first.refresh()
    assert hits(first) == hits(second) == hits(Index.open(path, model))
    assert "a0" in [hit.id for hit in Index.open(path, model, version=2, shared=shared).search("thing a 0", k=40)]


def test_appended_rows_are_not_written_to_the_files(tmp_path: Path, model: Genius) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    path = tmp_path / "a.genius"
    Index.create(path, model).add(texts("a"))
    index = Index.open(path, model, shared=shared)
    hits(index)
    (file,) = shared.glob("*/embeddings")
    before = file.read_bytes()
    index.add(texts("b"))
    hits(index)
    assert file.read_bytes() == before


def mapped_file(talk: Talk, path: Path, shared: Path) -> tuple[int, list[str]]:
    index = Index.open(path, tiny_model(), shared=shared)
    found = [hit.id for hit in index.search("thing a 1", k=3)]
    return os.stat(next(shared.glob("*/embeddings"))).st_ino, found


def test_processes_map_the_same_files(tmp_path: Path, model: Genius) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    Index.create(tmp_path / "a.genius", model).add(texts("a"))
    arguments = tmp_path / "a.genius", shared
    with other(mapped_file, *arguments) as one, other(mapped_file, *arguments) as two:
        assert one.hear() == two.hear()
    assert len(list(shared.glob("*/embeddings"))) == 1


def test_arrays_are_made_once_and_older_ones_removed(tmp_path: Path) -> None:
    made: list[int] = []

    def load(version: int) -> dict[str, np.ndarray]:
        made.append(version)
        return {"a": np.full((3, 2), version, np.int16), "none": np.zeros((0, 4), np.float32)}

    for version in (1, 1, 2, 2):
        arrays = mapped_arrays(tmp_path, "index", version, ("a",), lambda version=version: load(version))
        assert (arrays["a"][:3] == version).all()
        assert len(arrays["a"]) > 3  # free rows
        assert arrays["none"].shape == (0, 4)
    assert made == [1, 2]
    assert len([one for one in tmp_path.iterdir() if one.is_dir()]) == 1


def test_files_of_a_killed_process_are_made_again(tmp_path: Path) -> None:
    def killed() -> dict[str, np.ndarray]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mapped_arrays(tmp_path, "index", 1, (), killed)
    arrays = mapped_arrays(tmp_path, "index", 1, (), lambda: {"a": np.arange(3)})
    assert arrays["a"].tolist() == [0, 1, 2]
