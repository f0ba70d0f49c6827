"""Cached features: computed once, resumed where a run stopped, and the right picture in every row."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from genius.encoders.minilm import MiniLM
from genius.errors import BadImage
from genius.train import features
from genius.train.features import CROP_AREA, ImageFeatures, text_features

QUIET = Console(quiet=True)


class Killed(BaseException):
    pass


class Backbone:
    """Features that name the picture: its first red value. Dies after `lives` blocks."""

    lives = 10**6
    seen: list[int]

    def __init__(self, threads: int) -> None:
        pass

    def features(self, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if Backbone.lives == 0:
            raise Killed
        Backbone.lives -= 1
        values = pixels[:, 0, 0, 0].astype(np.float32)
        Backbone.seen += values.astype(int).tolist()
        grid = np.broadcast_to(values[:, None, None], (len(values), 352, 49))
        return grid, np.tile(values[:, None], 1280), np.tile(values[:, None] + 1, 1000)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backbone above, in blocks of four pictures."""
    monkeypatch.setattr(features, "EfficientNetLite2", Backbone)
    monkeypatch.setattr(features, "IMAGE_BLOCK", 4)
    Backbone.lives, Backbone.seen = 10**6, []


@pytest.fixture
def names(tmp_path: Path) -> list[str]:
    """Ten pictures, each of one colour: its red value is its number times ten."""
    (tmp_path / "pictures").mkdir()
    for number in range(10):
        Image.new("RGB", (6, 5), (10 * number, 0, 0)).save(tmp_path / f"pictures/{number}.png")
    return [str(tmp_path / f"pictures/{number}.png") for number in range(10)]


def image_features(names: list[str], cache: Path, view: int = 0) -> ImageFeatures:
    return ImageFeatures(names, cache, view, 2, QUIET)


@pytest.mark.parametrize("view", [0, 1])
def test_every_picture_has_its_own_row(names: list[str], tmp_path: Path, view: int) -> None:
    made = image_features(names, tmp_path / "cache", view)
    assert (made.map.shape, made.pooled.shape, made.logits.shape) == ((10, 352, 49), (10, 1280), (10, 1000))
    assert made.map.dtype == made.pooled.dtype == made.logits.dtype == np.float16
    np.testing.assert_array_equal(made.map[:, 7, 8], np.arange(10) * 10)
    np.testing.assert_array_equal(made.pooled[:, 5], np.arange(10) * 10)
    np.testing.assert_array_equal(made.logits[:, 5], np.arange(10) * 10 + 1)


@pytest.mark.parametrize("lives", [0, 1, 2])
def test_an_interrupted_cache_goes_on_where_it_stopped(names: list[str], tmp_path: Path, lives: int) -> None:
    Backbone.lives = lives
    with pytest.raises(Killed):
        image_features(names, tmp_path / "cache")
    Backbone.lives, Backbone.seen = 10**6, []
    made = image_features(names, tmp_path / "cache")
    assert Backbone.seen == [10 * n for n in range(4 * lives, 10)]
    np.testing.assert_array_equal(made.pooled[:, 0], np.arange(10) * 10)


def test_a_full_cache_is_only_read(names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = image_features(names, tmp_path / "cache")
    monkeypatch.setattr(features, "EfficientNetLite2", None)
    again = image_features(names, tmp_path / "cache")
    for name in ("map", "pooled", "logits"):
        np.testing.assert_array_equal(getattr(again, name), getattr(first, name))


def test_other_pictures_and_other_views_have_a_cache_of_their_own(names: list[str], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    image_features(names, cache)
    image_features(names, cache, view=1)
    back = image_features(names[::-1], cache)
    np.testing.assert_array_equal(back.pooled[:, 0], np.arange(10)[::-1] * 10)
    np.testing.assert_array_equal(image_features(names, cache).pooled[:, 0], np.arange(10) * 10)
    assert len(list(cache.iterdir())) == 3


def test_no_pictures_at_all_are_no_mistake(tmp_path: Path) -> None:
    """A benchmark may be of texts alone."""
    assert image_features([], tmp_path / "cache").pooled.shape == (0, 1280)


def test_a_picture_that_cannot_be_read_is_named_and_stops_nothing_for_good(names: list[str], tmp_path: Path) -> None:
    whole = Path(names[6]).read_bytes()
    Path(names[6]).write_bytes(b"")
    with pytest.raises(BadImage, match=names[6]):
        image_features(names, tmp_path / "cache")
    Path(names[6]).write_bytes(whole)
    np.testing.assert_array_equal(image_features(names, tmp_path / "cache").pooled[:, 0], np.arange(10) * 10)


def test_views_are_crops_mirrored_every_other_time_and_always_the_same() -> None:
    """On a picture that goes from black at the left to white at the right, a crop's ends tell where it lies."""
    ramp = Image.fromarray(np.tile(np.linspace(0, 255, 300).astype(np.uint8)[None, :, None], (200, 1, 3)))
    whole = features._view(ramp, 0, 0)[100, :, 0].astype(int)
    assert whole[0] < 3
    assert whole[-1] > 252
    mirrored, ends = 0, set()
    for row in range(60):
        crop = features._view(ramp, 1, row)
        np.testing.assert_array_equal(crop, features._view(ramp, 1, row))
        left, right = (int(crop[100, at, 0]) for at in (0, -1))
        mirrored += left > right
        ends.add(min(left, right))
        share = abs(right - left) / 255
        assert CROP_AREA[0] ** 0.5 - 0.02 < share < CROP_AREA[1] ** 0.5 + 0.02
    assert 15 < mirrored < 45
    assert len(ends) > 10
    assert not np.array_equal(features._view(ramp, 1, 0), features._view(ramp, 2, 0))


# Texts

TEXTS = [f"{'word ' * (n % 3 + 6)}number {n}" for n in range(60)]


@pytest.fixture
def in_small_batches(minilm: MiniLM, monkeypatch: pytest.MonkeyPatch) -> MiniLM:
    monkeypatch.setattr(features, "MiniLM", lambda: minilm)
    monkeypatch.setattr("genius.encoders.minilm.TOKENS_A_BATCH", 16)
    return minilm


def test_token_states_are_those_of_the_backbone(in_small_batches: MiniLM, tmp_path: Path) -> None:
    made = text_features(TEXTS, tmp_path, QUIET)
    expected = in_small_batches.states(TEXTS)
    np.testing.assert_array_equal(made.offsets, expected.offsets)
    np.testing.assert_allclose(made.states, expected.states, atol=4e-3)
    assert made.states.dtype == np.float16


def test_interrupted_texts_go_on_where_they_stopped(
    in_small_batches: MiniLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = text_features(TEXTS, tmp_path / "whole", QUIET)
    batches = len(in_small_batches.plan(in_small_batches.tokenize(TEXTS))[0])
    assert batches > 36
    fill, calls = MiniLM.fill, 0

    def deadly(self, states, offsets, ids, rows):  # type: ignore[no-untyped-def]
        nonlocal calls
        if calls == 35:
            raise Killed
        calls += 1
        fill(self, states, offsets, ids, rows)

    monkeypatch.setattr(MiniLM, "fill", deadly)
    with pytest.raises(Killed):
        text_features(TEXTS, tmp_path / "cut", QUIET)
    calls = -(10**6)
    resumed = text_features(TEXTS, tmp_path / "cut", QUIET)
    assert calls + 10**6 == batches - 32  # written down after every 32 batches
    np.testing.assert_array_equal(resumed.states, whole.states)
    calls = 35  # the next would be deadly
    np.testing.assert_array_equal(text_features(TEXTS, tmp_path / "cut", QUIET).states, whole.states)
