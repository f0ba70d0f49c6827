"""The model card: parts, use and results of a model, in the form that the Hugging Face hub reads."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from genius.encoders.model_files import hub_library
from genius.errors import BadData
from genius.evaluation.recall_tables import SettingResults
from genius.evaluation.report_sections import render
from genius.evaluation.runs import TaskResult, headline
from genius.evaluation.saved_results import SavedResults
from genius.model.genius import Genius
from genius.model.hub import TAGS


def model_card(model: Genius, name: str, run: str | os.PathLike[str] | None = None, license: str | None = None) -> str:
    """A README.md for the hub.

    Args:
        model: The model.
        name: Its name on the hub, owner/name.
        run: Folder of `genius evaluate --out` with results of this model.
        license: Short name of the license on the hub, such as "mit".

    Raises:
        BadData: The folder has no results, or those of another model.
    """
    facts, results = (None, []) if run is None else _read_results(model, Path(run))
    metadata = hub_library().ModelCardData(
        library_name="genius-search",
        tags=TAGS,
        license=license,
        model_name=name,
        eval_results=_hub_results(facts, results) if facts else None,
    )
    return render(
        "model_card.md",
        metadata=metadata.to_yaml(),
        name=name,
        parts=_parts(model),
        fingerprint=model.fingerprint,
        run=facts,
        settings=SettingResults.all(results),
        headline=headline,
    )


def _read_results(model: Genius, path: Path) -> tuple[dict[str, Any], list[TaskResult]]:
    folder = SavedResults.read(path)
    if folder.run is None or not folder.results:
        raise BadData(f"{path} has no results. Give a folder written by `genius evaluate --out`.")
    measured = folder.run["model"]["fingerprint"]
    if measured != model.fingerprint:
        raise BadData(
            f"{path} holds the results of another model ({measured}; this one is {model.fingerprint}). Measure this "
            "one: genius evaluate DATA --model MODEL --out RUN"
        )
    return folder.run, folder.results


def _hub_results(run: dict[str, Any], results: Sequence[TaskResult]) -> list[Any]:
    """Results of the three search modes in the form in which the hub compares models."""
    return [
        hub_library().EvalResult(
            task_type="retrieval",
            task_name=f"{result.modalities}, {result.setting} pool",
            dataset_type=result.dataset,
            dataset_name=f"{result.task} ({result.setting})",
            dataset_split=run.get("split"),
            dataset_config=f"{result.task}_{result.setting}",  # the hub groups results by it
            metric_type=f"recall_at_{headline(result.dataset)}",
            metric_name=f"Recall@{headline(result.dataset)} ({result.method})",
            metric_value=round(result.recall[headline(result.dataset)], 2),
            metric_config=result.method,
        )
        for result in results
        if result.method in ("generate", "rerank", "fast")
    ]


def _parts(model: Genius) -> list[tuple[str, str, int]]:
    """(part, description, parameters)."""
    modality, *sizes = model.sizes
    levels = f"{len(sizes)} levels of {sizes[0]:,} codes" if len(set(sizes)) == 1 else ", ".join(map(str, sizes))
    decoder = model.decoder.config
    shape = f"T5 shape, {decoder.layers} layers of width {decoder.d_model}, prefix of {decoder.prefix}"
    if decoder.residual_input:
        shape += ", which read the residual of the query"
    if decoder.residual_gain:
        shape += f", with the residual score times {decoder.residual_gain:g}"
    if not decoder.layers:
        shape = f"no layers: the residual score times {decoder.residual_gain:g} alone"
    encoder = _count(model.encoder.state())
    return [
        ("encoder", f"`{model.encoder.kind}`, {model.dim} dimensions", encoder),
        ("fusion", f"hidden width {model.fusion.hidden}", _count(model.fusion.weights)),
        ("quantizer", f"{modality} modality codes, then {levels}", sum(model.sizes) * model.dim),
        ("decoder", shape, sum(map(math.prod, decoder.weight_shapes().values()))),
    ]


def _count(weights: Mapping[str, np.ndarray]) -> int:
    return sum(value.size for value in weights.values())
