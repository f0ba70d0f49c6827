"""An index of a model whose first codes are not the items' modalities."""

from pathlib import Path

import numpy as np
from fakes import DIM, tiny_model

from genius.data.items import Modality
from genius.encoders.base import Vectors
from genius.index.index import Index
from genius.model.genius import Genius


def nearest_model() -> Genius:
    model = tiny_model()
    return Genius(model.encoder, model.fusion, model.quantizer, model.decoder, first_code="nearest")


def test_kinds_are_those_of_the_items_whatever_their_first_codes(tmp_path: Path) -> None:
    model = nearest_model()
    image, text = np.random.default_rng(0).standard_normal((2, 90, DIM), dtype=np.float32)
    image[1::3], text[0::3] = 0, 0
    vectors = Vectors(image, text)
    assert (model.codes(vectors)[:, 0] != vectors.modality).any()
    index = Index.create(tmp_path / "index", model)
    index.add_vectors([str(row) for row in range(90)], vectors, [{"odd": row % 2} for row in range(90)])
    assert index.info().modalities == {"image": 30, "text": 30, "image,text": 30}
    assert not index.verify()
    wanted = [Modality.TEXT, None, Modality.IMAGE, Modality.TEXT]
    for mode in ("generate", "rerank", "fast"):
        found = index.search_vectors(vectors[:4], wanted, k=30, mode=mode, where="odd = 1 OR odd = 5")
        for query, kind in enumerate(wanted):
            rows = found.rows[query][found.rows[query] >= 0]
            assert (rows % 2 == 1).all()
            assert len(rows) == (30 if kind is None else 15)
            assert kind is None or (vectors.modality[rows] == kind).all()
