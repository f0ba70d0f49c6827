"""A model without an encoder says what it is missing."""

import pytest
from PIL import Image

from genius.encoders.base import Encoder, Prepared
from genius.encoders.loading import load_encoder
from genius.encoders.precomputed import PrecomputedEncoder
from genius.errors import BadModel


def test_it_knows_its_dimensions_and_says_which_file_is_needed() -> None:
    encoder = load_encoder(PrecomputedEncoder(48).config(), PrecomputedEncoder(48).state())
    assert isinstance(encoder, Encoder)
    assert (encoder.kind, encoder.dim) == ("ready", 48)
    with pytest.raises(BadModel, match="genius convert --clip"):
        encoder.pixels(Image.new("RGB", (2, 2)))
    with pytest.raises(BadModel, match="48 dimensions"):
        encoder.encode([Prepared(None, "a cat")])
