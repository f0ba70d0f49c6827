"""docs/mbeir.md: its configuration is read, its counts are those of the table it cites, its commands exist."""

import re
from pathlib import Path

from genius.data.mbeir_check import PUBLISHED
from genius.train.config import TrainConfig

PAGE = (Path(__file__).parents[2] / "docs/mbeir.md").read_text(encoding="utf-8")


def test_the_configuration_is_read_and_is_the_papers(tmp_path: Path) -> None:
    (content,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    (tmp_path / "mbeir.toml").write_text(content)
    config = TrainConfig.read(tmp_path / "mbeir.toml")
    assert (config.quantizer.codes_per_level, config.quantizer.levels) == (4096, 8)
    assert (config.decoder.d_model, config.decoder.layers, config.decoder.prefix) == (512, 6, 30)
    queries = sum(1000 * float(row.queries["train"][:-1]) for row in PUBLISHED.values())
    assert abs(config.quantizer.steps * config.quantizer.batch / queries - 20) < 0.5


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
