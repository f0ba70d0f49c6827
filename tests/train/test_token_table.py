"""The start of the token table against the authors' recipe, written out: a random linear map of unit code vectors."""

import pytest
import torch

from genius.model.decoder_config import DecoderConfig
from genius.networks.decoder import Decoder
from genius.train.config import TABLES
from genius.train.token_table import start_table

DIM, WIDTH, SIZES = 96, 64, (3, 200, 200)


def make() -> tuple[Decoder, list[torch.Tensor]]:
    """A decoder, and codebooks whose vectors become shorter level by level."""
    torch.manual_seed(0)
    config = DecoderConfig(dim=DIM, sizes=SIZES, d_model=WIDTH, layers=1, heads=2, d_kv=8, d_ff=16, prefix=2)
    return Decoder(config), [torch.randn(size, DIM) * 0.3**level for level, size in enumerate(SIZES)]


def lengths(decoder: Decoder) -> list[float]:
    """Mean length of the rows of each level."""
    return [float(decoder.table.detach()[decoder.config.rows(level)].norm(dim=1).mean()) for level in range(len(SIZES))]


def test_the_published_start_has_the_lengths_of_the_authors_table() -> None:
    """nn.Linear without bias of normalised code vectors, times 100, level by level."""
    decoder, codebooks = make()
    start_table(decoder, codebooks, "published")
    theirs = torch.nn.Linear(DIM, WIDTH, bias=False)
    with torch.no_grad():
        mapped = [100 * theirs(torch.nn.functional.normalize(book, dim=1)) for book in codebooks]
    expected = [float(rows.norm(dim=1).mean()) for rows in mapped]
    assert lengths(decoder) == pytest.approx(expected, rel=0.1)
    assert expected[1] == pytest.approx(100 * (WIDTH / (3 * DIM)) ** 0.5, rel=0.05)


def test_a_start_keeps_angles_and_only_the_published_one_forgets_lengths() -> None:
    """The nearest codes of a level stay the nearest; with equal widths, exactly."""
    config = DecoderConfig(dim=DIM, sizes=SIZES, d_model=DIM, layers=1, heads=2, d_kv=8, d_ff=16, prefix=2)
    _, codebooks = make()
    for variant in ("codebooks", "published"):
        decoder = Decoder(config)
        start_table(decoder, codebooks, variant)
        for level, book in enumerate(codebooks):
            rows = torch.nn.functional.normalize(decoder.table.detach()[config.rows(level)], dim=1)
            torch.testing.assert_close(rows, torch.nn.functional.normalize(book, dim=1))
        long, short = lengths(decoder)[0], lengths(decoder)[2]
        assert long / short == pytest.approx(1 if variant == "published" else 0.3**-2, rel=0.1)


def test_a_random_start_and_the_special_tokens_stay_as_they_are() -> None:
    for variant in TABLES:
        decoder, codebooks = make()
        before = decoder.table.detach().clone()
        start_table(decoder, codebooks, variant)
        changed = (decoder.table != before).any(dim=1)
        first = decoder.config.rows(0).start
        assert not changed[:first].any()
        assert changed[first:].all() == (variant != "random")
        assert changed.any() == (variant != "random")
