"""The model card: what a model is made of, how it is used and what was measured, as the hub and its readers want it.

Knows models and run folders; does not measure, and knows nothing of the hub but the form of its metadata.
"""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from genius.errors import BadData
from genius.evaluation.report import read_run
from genius.evaluation.runs import BASELINES, METHODS, TaskResult, headline
from genius.model.genius import Genius
from genius.model.hub import hub_library

TAGS = ["genius-search", "generative-retrieval", "multimodal-retrieval", "semantic-ids"]


def model_card(model: Genius, name: str, run: str | os.PathLike[str] | None = None, license: str | None = None) -> str:
    """A README.md for the hub: what the model is made of, how it is used, and the figures of a run, if one is given."""
    measured = None if run is None else _measured(model, Path(run))
    metadata = hub_library().ModelCardData(
        library_name="genius-search",
        tags=TAGS,
        license=license,
        model_name=name,
        eval_results=None if measured is None else _results(*measured),
    )
    parts = [f"---\n{metadata.to_yaml()}\n---", f"# {name}", _about(model), _usage(name)]
    if measured is not None:
        parts.append(_figures(*measured))
    return "\n\n".join(parts) + "\n"


def _measured(model: Genius, folder: Path) -> tuple[dict[str, Any], list[TaskResult]]:
    """What was measured and the scores of a run folder, which must be this model's."""
    found = read_run(folder)
    if found.run is None or not found.scores:
        raise BadData(f"{folder} has no scores. Give a folder that `genius evaluate --out` has written.")
    theirs = found.run["model"]["fingerprint"]
    if theirs != model.fingerprint:
        raise BadData(
            f"{folder} holds the figures of another model ({theirs}; this one is {model.fingerprint}). Measure this "
            "one: genius evaluate DATA --model MODEL --out RUN"
        )
    return found.run, found.scores


def _results(run: dict[str, Any], scores: Sequence[TaskResult]) -> list[Any]:
    """Of GENIUS's own methods, in the form in which the hub compares models."""
    return [
        hub_library().EvalResult(
            task_type="retrieval",
            task_name=f"{score.modalities}, {score.setting} pool",
            dataset_type=score.dataset,
            dataset_name=f"{score.task} ({score.setting})",
            dataset_split=run.get("split"),
            dataset_config=f"{score.task}_{score.setting}",  # what results are grouped by
            metric_type=f"recall_at_{headline(score.dataset)}",
            metric_name=f"Recall@{headline(score.dataset)} ({score.method})",
            metric_value=round(score.recall[headline(score.dataset)], 2),
            metric_config=score.method,
        )
        for score in scores
        if score.method in ("generate", "rerank", "fast")
    ]


def _about(model: Genius) -> str:
    sizes = model.sizes
    levels = f"{sizes[0]} modality codes, then " + _levels(sizes[1:])
    decoder = model.decoder.config
    shape = f"T5 shape, {decoder.layers} layers of width {decoder.d_model}, prefix of {decoder.prefix}"
    shape += ", with a linear path from the query to the codes" * decoder.skip
    encoder = sum(value.numel() for value in model.encoder.state().values())
    rows = [
        ("encoder", f"`{model.encoder.kind}`, {model.dim} dimensions", encoder),
        ("fusion", f"hidden width {model.fusion.hidden}", _count(model.fusion)),
        ("quantizer", levels, sum(sizes) * model.dim),
        ("decoder", shape, _count(model.decoder)),
    ]
    lines = [f"| {part} | {what} | {number:,} |" for part, what, number in rows]
    return "\n".join(
        [
            "A generative search model for images, texts and pairs of both, in the manner of *GENIUS: A Generative "
            "Framework for Universal Multimodal Search*: a query is answered by generating the ID of an item.",
            "",
            "| part | what | parameters in this repository |",
            "|---|---|---:|",
            *lines,
            "",
            f"Fingerprint `{model.fingerprint}`: an index belongs to the model with the same one.",
        ]
    )


def _levels(sizes: Sequence[int]) -> str:
    return f"{len(sizes)} levels of {sizes[0]:,} codes" if len(set(sizes)) == 1 else ", ".join(map(str, sizes))


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _usage(name: str) -> str:
    return f"""## Use

```
pip install "genius-search[clip]"
genius index create photos.genius FOLDER --model {name}
genius search photos.genius "a cat asleep on a sofa"
```

```python
from genius import Genius, Index, Query

index = Index.open("photos.genius", model=Genius.from_pretrained("{name}"))
hits = index.search(Query(text="a cat asleep on a sofa", target="image"), k=10)
```"""


def _figures(run: dict[str, Any], scores: Sequence[TaskResult]) -> str:
    """A table for each setting: recall of every method on every task."""
    by_setting: dict[str, list[TaskResult]] = defaultdict(list)
    for score in scores:
        by_setting[score.setting].append(score)
    limit = run.get("limit")
    asked = "all queries" if limit is None else f"at most {limit:,} queries of each task"
    head = (
        f"## Figures\n\n{run.get('benchmark', 'Benchmark')}, {run.get('split', 'test')} split, {asked}, measured by "
        "`genius evaluate`. Recall in percent: any right item among the first so many."
    )
    return "\n\n".join([head, *(_table(setting, mine) for setting, mine in by_setting.items())])


def _table(setting: str, scores: Sequence[TaskResult]) -> str:
    methods = [method for method in METHODS + BASELINES if any(score.method == method for score in scores)]
    return "\n".join(
        [
            f"| {setting} pools | queries | items | " + " | ".join(methods) + " |",
            "|---|---:|---:|" + "---:|" * len(methods),
            *_rows(scores, methods),
        ]
    )


def _rows(scores: Sequence[TaskResult], methods: Sequence[str]) -> Iterator[str]:
    found = {(score.task, score.method): score for score in scores}
    for task in dict.fromkeys(score.task for score in scores):
        mine = [found.get((task, method)) for method in methods]
        one = next(score for score in mine if score is not None)
        cut = headline(one.dataset)
        cells = ["–" if score is None else f"{score.recall[cut]:.1f}" for score in mine]
        yield f"| {task}, R@{cut} | {one.queries:,} | {one.candidates:,} | " + " | ".join(cells) + " |"
