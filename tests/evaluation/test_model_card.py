"""Model cards: metadata that the hub can read, the results of the model's own run and no other's."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from fakes import tiny_model

from genius.errors import BadData
from genius.evaluation.model_card import model_card
from genius.evaluation.runs import TaskResult


def score(task: str, method: str, recall: float, setting: str = "local") -> dict[str, Any]:
    dataset = task.split("_")[0]
    cuts = {1: recall / 2, 5: recall, 10: recall + 5}
    result = TaskResult(
        setting,
        task,
        dataset,
        "text->image",
        method,
        1200,
        34000,
        cuts,
        {cut: (value - 1, value + 1) for cut, value in cuts.items()},
        0.5,
        0.5,
        99.0,
        0.001,
        12.25,
    )
    return asdict(result)


def write_run(folder: Path, fingerprint: str, scores: list[dict[str, Any]], **facts: Any) -> Path:
    folder.mkdir(exist_ok=True)
    run = {"format": 1, "model": {"fingerprint": fingerprint}, "benchmark": "bench", "split": "test", "limit": None}
    (folder / "run.json").write_text(json.dumps(run | facts | {"results": scores}))
    return folder


def metadata(card: str) -> dict[str, Any]:
    _, head, _ = card.split("---\n", 2)
    return yaml.safe_load(head)


def test_a_card_without_results_says_what_the_model_is() -> None:
    model = tiny_model()
    card = model_card(model, "someone/tiny", license="mit")
    found = metadata(card)
    assert found["library_name"] == "genius-search"
    assert found["license"] == "mit"
    assert "model-index" not in found
    assert 'from_pretrained("someone/tiny")' in card
    assert model.fingerprint in card
    assert "3 modality codes, then 3 levels of 8 codes" in card
    parameters = sum(one.size for name, one in model.decoder.weights.items() if name != "codebooks")
    assert f"| {parameters:,} |" in card
    assert "Results" not in card


def test_the_results_of_a_run_are_in_metadata_and_tables(tmp_path: Path) -> None:
    model = tiny_model()
    scores = [
        score("mscoco_task0", "exact", 60.0),
        score("mscoco_task0", "generate", 51.25),
        score("fashioniq_task7", "generate", 20.0),
        score("mscoco_task0", "generate", 40.0, "global"),
        score("mscoco_task3", "generate", 70.0),
        score("mscoco_task3", "fast", 75.0),
    ]
    card = model_card(model, "someone/tiny", write_run(tmp_path / "run", model.fingerprint, scores))
    (entry,) = metadata(card)["model-index"]
    results = {
        (one["dataset"]["name"], metric["name"]): (metric["type"], metric["value"])
        for one in entry["results"]
        for metric in one["metrics"]
    }
    assert results == {
        ("mscoco_task0 (local)", "Recall@5 (generate)"): ("recall_at_5", 51.25),
        ("fashioniq_task7 (local)", "Recall@10 (generate)"): ("recall_at_10", 25.0),
        ("mscoco_task0 (global)", "Recall@5 (generate)"): ("recall_at_5", 40.0),
        ("mscoco_task3 (local)", "Recall@5 (generate)"): ("recall_at_5", 70.0),
        ("mscoco_task3 (local)", "Recall@5 (fast)"): ("recall_at_5", 75.0),
    }
    assert "| mscoco_task0, R@5 | 1,200 | 34,000 | 60.0 | 51.2 | – |" in card
    assert "| fashioniq_task7, R@10 | 1,200 | 34,000 | – | 25.0 | – |" in card
    assert "bench, test split, all queries" in card


def test_a_limited_run_says_so(tmp_path: Path) -> None:
    model = tiny_model()
    run = write_run(tmp_path / "run", model.fingerprint, [score("mscoco_task0", "fast", 50.0)], limit=100)
    assert "at most 100 queries per task" in model_card(model, "someone/tiny", run)


def test_the_results_of_another_model_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", tiny_model(1).fingerprint, [score("mscoco_task0", "fast", 50.0)])
    with pytest.raises(BadData, match="another model"):
        model_card(tiny_model(2), "someone/tiny", run)


def test_a_run_without_scores_is_refused(tmp_path: Path) -> None:
    model = tiny_model()
    with pytest.raises(BadData, match="no results"):
        model_card(model, "someone/tiny", write_run(tmp_path / "run", model.fingerprint, []))
