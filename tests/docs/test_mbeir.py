"""docs/mbeir.md: its configuration is read, its counts are those of the table it cites, its commands exist."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from genius.data.mbeir_check import PUBLISHED
from genius.train.config import TrainConfig, check

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/mbeir.md").read_text(encoding="utf-8")


def test_the_papers_configuration_is_used_with_another_encoder_for_table_3(tmp_path: Path) -> None:
    """examples/paper.toml itself is checked by tests/train/test_paper_settings.py."""
    assert "--config examples/paper.toml" in PAGE
    paper = (ROOT / "examples/paper.toml").read_text(encoding="utf-8")
    (clip,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    (tmp_path / "table3.toml").write_text(re.sub(r"(?ms)^\[clip\].*?(?=^\[quantizer\])", clip, paper))
    table3, config = TrainConfig.read(tmp_path / "table3.toml"), TrainConfig.read(ROOT / "examples/paper.toml")
    check(table3)
    assert (table3.clip.tune, table3.clip.rate, config.clip.tune) == ("full", 1e-5, "none")
    assert replace(table3, clip=config.clip) == config


def test_every_result_is_of_the_papers_protocol() -> None:
    commands = re.findall(r"^ *genius evaluate (?:.*\\\n)*.*$", PAGE, re.M)
    assert len(commands) >= 6
    assert all("--protocol paper" in command for command in commands)


def test_the_papers_run_is_validated_once_in_an_epoch() -> None:
    queries = sum(1000 * float(row.queries["train"][:-1]) for row in PUBLISHED.values())
    for stage in (config := TrainConfig.read(ROOT / "examples/paper.toml")).quantizer, config.decoder:
        assert stage.validate_every == pytest.approx(queries / stage.batch, rel=0.05)


def test_counts_of_images_and_texts_follow_from_the_table() -> None:
    def total(*task_ids: int) -> float:
        rows = [row.candidates for task, row in PUBLISHED.items() if task.task_id in task_ids]
        return sum(float(figure[:-1]) * {"K": 1e-3, "M": 1}[figure[-1]] for figure in rows)

    images, pairs, texts = total(0, 4, 7), total(2, 8), total(1, 3, 6)
    assert f"{images:.2f} million images" in PAGE
    assert f"{pairs:.2f} million pairs" in PAGE
    assert f"{texts:.2f} million texts" in PAGE
    assert f"{images + pairs:.1f} million images" in PAGE
    queries = sum(float(row.queries["test"][:-1]) for row in PUBLISHED.values())
    assert f"{round(queries, -1):.0f},000 queries" in PAGE


def test_every_data_set_is_in_the_loop() -> None:
    (names,) = re.findall(r"for data in (visualnews.*?); do", PAGE)
    assert set(names.split()) == {task.dataset for task in PUBLISHED}
