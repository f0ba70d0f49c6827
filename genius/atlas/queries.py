"""Queries of a benchmark beside the items of a collection: what the decoder generates, and where the vectors lie."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from genius.atlas.collection import Collection, sampled
from genius.atlas.measures import Measure, Row, agreement_rows, share
from genius.data.items import Query
from genius.data.mbeir import Benchmark
from genius.encoders.base import Vectors
from genius.errors import BadData
from genius.evaluation.metrics import interval
from genius.index.index import Index
from genius.model.genius import Genius
from genius.search.options import SearchOptions

PER_TASK = 100  # queries of each task
NEAREST = 10


@dataclass(frozen=True)
class QuerySample:
    """Queries whose answers are in a collection.

    Attributes:
        tasks: Names of the tasks.
        task: (q,) the task of each query, a position in `tasks`.
        target: (q,) modality of its answers.
        answers: For each query, the rows of its answers.
        vectors: The encoder's vectors of the queries.
    """

    tasks: list[str]
    task: np.ndarray
    target: np.ndarray
    answers: list[np.ndarray]
    vectors: Vectors

    @classmethod
    def read(
        cls, collection: Collection, benchmark: Benchmark, split: str = "test", per_task: int = PER_TASK
    ) -> "QuerySample":
        """Read and encode a random sample of the queries of each task, with the first prompt of the task.

        Raises:
            BadData: No query has an answer in the collection.
        """
        rows = {id: row for row, id in enumerate(collection.ids)}
        names: list[str] = []
        queries: list[Query] = []
        task: list[int] = []
        target: list[int] = []
        answers: list[np.ndarray] = []
        for one in benchmark.tasks(split):
            known = [
                (query, found)
                for query in benchmark.queries(one, split)
                if (found := [rows[id] for id in query.positives if id in rows])
            ]
            for place in sampled(len(known), per_task).tolist():
                query, found = known[place]
                queries.append(benchmark.query(query))
                answers.append(np.array(found))
                task.append(len(names))
                target.append(int(one.target_modality))
            names += [one.name] if known else []
        if not queries:
            raise BadData(
                f"No {split} query of {benchmark.root} has an answer in this index. Give the benchmark whose "
                "candidates the index holds."
            )
        vectors = collection.model.encode_queries(queries)
        return cls(names, np.array(task), np.array(target), answers, vectors)


def generated_agreement(index: Index, collection: Collection, sample: QuerySample) -> Measure:
    """How far the most probable ID that the decoder generates for a query agrees with the ID of an answer."""
    model = collection.model
    options = SearchOptions(k=1, mode="generate")
    found = index.searcher.search(model.fuse(sample.vectors), sample.vectors.embedding(), None, options).top
    answers = [collection.codes[rows] for rows in sample.answers]
    return Measure(
        "First codes that a generated ID shares with an answer's",
        f"The most probable ID for each of {len(answers):,} queries of {len(sample.tasks)} tasks, generated without "
        "being told the target. By chance: with the answers of another query of the same task.",
        agreement_rows(found.codes[:, 0], answers, group=sample.task),
    )


@dataclass(frozen=True)
class Cloud:
    """Queries and candidates as vectors of one model.

    Attributes:
        fused: (q + c, d) fused vectors, the queries first.
        quantized: (q + c, d) the sums of their code vectors.
        codes: (q + c, levels) their IDs. The first code of a query is the modality of its answers, as in training.
        is_query: (q + c,) bool.
        modality: (q + c,) the first codes.
        answer: (q,) the row of an answer of each query.
    """

    fused: np.ndarray
    quantized: np.ndarray
    codes: np.ndarray
    is_query: np.ndarray
    modality: np.ndarray
    answer: np.ndarray


def cloud(model: Genius, sample: QuerySample, chosen: np.ndarray, candidates: Vectors) -> Cloud:
    """Fuse and quantize queries and candidates with a model, which may be another one than that of the index.

    Args:
        model: The model. Its encoder must be that of the index.
        sample: The queries.
        chosen: (c,) rows of the candidates; they hold an answer of each query.
        candidates: Their vectors.
    """
    fused = np.concatenate([model.fuse(sample.vectors), model.fuse(candidates)])
    modality = np.concatenate([sample.target, candidates.modality]).astype(np.int64)
    codes = model.quantizer.encode(fused, modality, beams=model.code_beams)
    queries = len(sample.answers)
    place = {row: number for number, row in enumerate(chosen.tolist())}
    answer = np.array([queries + next(place[row] for row in rows.tolist() if row in place) for rows in sample.answers])
    is_query = np.arange(len(fused)) < queries
    return Cloud(fused, model.quantizer.decode(codes), codes, is_query, modality, answer)


def candidates_of(collection: Collection, sample: QuerySample, others: int) -> np.ndarray:
    """Rows of one answer of each query and of random other items, ascending."""
    answers = np.array([rows[0] for rows in sample.answers])
    return np.union1d(answers, sampled(len(collection), others))


def alignment(cloud: Cloud, name: str) -> Measure:
    """How near queries are to their answers after quantization, and how many different vectors are left."""
    queries = cloud.quantized[cloud.is_query]
    candidates = cloud.quantized[~cloud.is_query]
    unit = [v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-12) for v in (queries, candidates)]
    scores = unit[0] @ unit[1].T
    answer = cloud.answer - len(queries)
    right = scores[np.arange(len(queries)), answer]
    # Candidates with the same vector as the answer count half, as if their order were drawn.
    above = (scores > right[:, None] + 1e-6).sum(axis=1)
    equal = (np.abs(scores - right[:, None]) <= 1e-6).sum(axis=1)
    found = above + (equal - 1) / 2 < NEAREST
    other = np.random.default_rng(0).permutation(answer)
    wrong = scores[np.arange(len(queries)), other] if len(queries) > 1 else right
    ids = np.unique(cloud.codes[~cloud.is_query], axis=0, return_inverse=True)[1].reshape(-1)
    alone = np.bincount(ids)[ids] == 1
    return Measure(
        f"Queries and answers after quantization, {name}",
        f"{len(queries):,} queries and {len(candidates):,} candidates. Cosine: 100 times the mean cosine of a query "
        "and its answer, by chance with another query's answer. Found: the answer is among the "
        f"{NEAREST} nearest candidates. "
        "Alone: candidates that share their ID with no other.",
        [
            _mean("cosine", right, float(wrong.mean())),
            share(f"found in {NEAREST}", found, NEAREST / len(candidates)),
            share("alone", alone),
        ],
    )


def _mean(level: str, values: np.ndarray, chance: float) -> Row:
    low, high = interval(np.asarray(values, np.float64))
    return Row(level, 100 * float(values.mean()), 100 * low, 100 * high, 100 * chance)


def check_comparable(models: Sequence[Genius]) -> None:
    """Raise BadData unless all models have the same encoder."""
    first, *others = ({name: value.tobytes() for name, value in model.encoder.state().items()} for model in models)
    if any(other != first for other in others):
        raise BadData("The models to compare have different encoders. Train them on the vectors of one encoder.")
