"""The quiz and the generated collection of benchmarks/atlas.py."""

from pathlib import Path

import numpy as np
from fakes import tiny_model

from benchmarks import atlas
from genius import Index, Item

TOPICS = ("cat", "violin", "mountain", "bread", "river", "lamp")


def test_names_pick_the_codes_of_items_that_follow_the_words(tmp_path: Path):
    index = Index.create(tmp_path / "topics.genius", tiny_model())
    index.add(Item(f"{topic}-{n}", text=f"{topic} {topic} {topic}.") for topic in TOPICS for n in range(40))
    result = atlas.quiz(index, codes=50, held_out=3)
    assert result["items"] == 3 * result["codes"] > 0
    assert result["vector"]["value"] > result["chance"]
    assert result["vector"]["low"] <= result["vector"]["value"] <= result["vector"]["high"]


def test_generated_items_are_the_same_every_time_and_of_all_modalities(tmp_path: Path):
    first, again = (list(atlas.generated_items(tmp_path / "images", 30)) for _ in range(2))
    assert first == again
    assert [int(item.modality) for item in first[:3]] == [0, 1, 2]
    encoder = atlas.GeneratedEncoder(16)
    model = tiny_model(encoder=encoder)
    vectors = model.encode_items(first)
    assert np.isfinite(vectors.image).all()
    np.testing.assert_allclose(np.linalg.norm(vectors.text[1::3], axis=1), 1, atol=1e-5)
