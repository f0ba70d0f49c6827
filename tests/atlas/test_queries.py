from pathlib import Path

import numpy as np
import pytest
from fakes import tiny_model
from tiny_benchmark import write_tiny_benchmark

from genius import Index
from genius.atlas import writing
from genius.atlas.collection import Collection
from genius.atlas.queries import QuerySample, alignment, candidates_of, check_comparable, cloud, generated_agreement
from genius.data.mbeir import Benchmark
from genius.errors import BadData


@pytest.fixture(scope="module")
def benchmark_data(tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    return write_tiny_benchmark(tmp_path_factory.mktemp("shapes"))


@pytest.fixture(scope="module")
def shapes(benchmark_data: Benchmark, tmp_path_factory: pytest.TempPathFactory) -> Index:
    index = Index.create(tmp_path_factory.mktemp("indexes") / "shapes.genius", tiny_model())
    index.add(benchmark_data.item(one) for one in benchmark_data.global_pool("test"))
    return index


@pytest.fixture(scope="module")
def sample(shapes: Index, benchmark_data: Benchmark) -> QuerySample:
    return QuerySample.read(Collection.read(shapes), benchmark_data, per_task=4)


def test_queries_are_read_with_their_answers(shapes: Index, benchmark_data: Benchmark, sample: QuerySample):
    collection = Collection.read(shapes)
    assert len(sample.tasks) == 8
    assert np.bincount(sample.task).tolist() == [4] * 8
    for rows, target in zip(sample.answers, sample.target.tolist(), strict=True):
        assert set(collection.modality[rows]) == {target}


def test_a_benchmark_of_other_items_is_refused(index: Index, benchmark_data: Benchmark):
    with pytest.raises(BadData, match="has an answer in this index"):
        QuerySample.read(Collection.read(index), benchmark_data)


def test_generated_codes_are_those_of_a_search(shapes: Index, sample: QuerySample):
    collection = Collection.read(shapes)
    found = shapes.search_vectors(sample.vectors, None, k=1, mode="generate")
    pairs = zip(sample.answers, found.codes[:, 0, 0].tolist(), strict=True)
    expected = np.mean([(collection.codes[rows, 0] == code).any() for rows, code in pairs])
    rows = generated_agreement(shapes, collection, sample).rows
    assert rows[0].value == pytest.approx(100 * expected)
    assert [row.value for row in rows] == sorted((row.value for row in rows), reverse=True)


def test_a_query_at_its_answer_is_aligned_and_a_collapsed_one_is_not(shapes: Index, sample: QuerySample):
    collection = Collection.read(shapes)
    chosen = candidates_of(collection, sample, 100)
    made = cloud(collection.model, sample, chosen, collection.vectors(shapes, chosen))
    np.testing.assert_array_equal(made.codes[~made.is_query], collection.codes[chosen])
    queries = int(made.is_query.sum())
    made.quantized[:queries] = made.quantized[made.answer]
    cosine, found, _ = alignment(made, "same").rows
    assert cosine.value == pytest.approx(100, abs=1e-3)
    assert found.value > 50
    made.quantized[:] = made.quantized[0]
    made.codes[:] = made.codes[0]
    _, found, alone = alignment(made, "collapsed").rows
    assert found.value == 100 * (len(chosen) <= 20)
    assert alone.value == 0


def test_models_of_other_encoders_cannot_be_compared(index: Index):
    class Other:
        class encoder:
            @staticmethod
            def state():
                return {"weights": np.ones(3)}

    check_comparable([index.model, tiny_model(1)])
    with pytest.raises(BadData, match="different encoders"):
        check_comparable([index.model, Other()])


def test_figures_are_written_as_svg_pdf_and_png(
    shapes: Index, benchmark_data: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("genius.evaluation.charts.flatten", lambda vectors: vectors[:, :2])
    monkeypatch.setattr("genius.atlas.figures.DPI", 40)
    writing.write_atlas(shapes, tmp_path, benchmark_data, draw=True, compare={"other": tiny_model(1)})
    names = {file.stem for file in (tmp_path / "figures").iterdir()}
    assert {"umap-modality", "umap-code"} <= names
    assert any(name.startswith("codes-level") for name in names)
    assert {file.suffix for file in (tmp_path / "figures").iterdir()} == {".svg", ".pdf", ".png"}
    assert "aligned: other" in (tmp_path / "atlas.json").read_text()
