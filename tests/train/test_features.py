"""Cached features: computed once, resumed where a run stopped, and the right image in every row."""

import json
import multiprocessing
import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from genius.data.images import load_image
from genius.encoders.base import Prepared, Vectors
from genius.encoders.minilm import MiniLM
from genius.errors import BadImage, BadModel
from genius.train import features
from genius.train.features import (
    CROP_AREA,
    ImageFeatures,
    encoder_digest,
    image_rows,
    joint_rows,
    mapped_rows,
    text_features,
    text_rows,
)

QUIET = Console(quiet=True)


class Killed(BaseException):
    pass


class Backbone:
    """Features that name the image: its first red value. Dies after `lives` blocks."""

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
    """The backbone above, in blocks of four images."""
    monkeypatch.setattr(features, "EfficientNetLite2", Backbone)
    monkeypatch.setattr(features, "IMAGE_BLOCK", 4)
    Backbone.lives, Backbone.seen = 10**6, []


@pytest.fixture
def names(tmp_path: Path) -> list[str]:
    """Ten images, each of one colour: its red value is its number times ten."""
    (tmp_path / "images").mkdir()
    for number in range(10):
        Image.new("RGB", (6, 5), (10 * number, 0, 0)).save(tmp_path / f"images/{number}.png")
    return [str(tmp_path / f"images/{number}.png") for number in range(10)]


def image_features(names: list[str], cache: Path, view: int = 0) -> ImageFeatures:
    return ImageFeatures(names, cache, view, 2, QUIET)


@pytest.mark.parametrize("view", [0, 1])
def test_every_image_has_its_own_row(names: list[str], tmp_path: Path, view: int) -> None:
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


def test_other_images_and_other_views_have_a_cache_of_their_own(names: list[str], tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    image_features(names, cache)
    image_features(names, cache, view=1)
    back = image_features(names[::-1], cache)
    np.testing.assert_array_equal(back.pooled[:, 0], np.arange(10)[::-1] * 10)
    np.testing.assert_array_equal(image_features(names, cache).pooled[:, 0], np.arange(10) * 10)
    assert len(list(cache.iterdir())) == 3


def test_no_images_at_all_are_no_mistake(tmp_path: Path) -> None:
    """A benchmark may be of texts alone."""
    assert image_features([], tmp_path / "cache").pooled.shape == (0, 1280)


def test_a_image_that_cannot_be_read_is_named_and_stops_nothing_for_good(names: list[str], tmp_path: Path) -> None:
    whole = Path(names[6]).read_bytes()
    Path(names[6]).write_bytes(b"")
    with pytest.raises(BadImage, match=names[6]):
        image_features(names, tmp_path / "cache")
    Path(names[6]).write_bytes(whole)
    np.testing.assert_array_equal(image_features(names, tmp_path / "cache").pooled[:, 0], np.arange(10) * 10)


def test_views_are_crops_mirrored_every_other_time_and_always_the_same() -> None:
    """On an image that goes from black at the left to white at the right, a crop's ends tell where it lies."""
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
    monkeypatch.setattr(features, "MiniLM", lambda int8: minilm)
    monkeypatch.setattr("genius.encoders.minilm.TOKENS_A_BATCH", 16)
    return minilm


def test_token_states_are_those_of_the_backbone(in_small_batches: MiniLM, tmp_path: Path) -> None:
    made = text_features(TEXTS, tmp_path, False, QUIET)
    expected = in_small_batches.states(TEXTS)
    np.testing.assert_array_equal(made.offsets, expected.offsets)
    np.testing.assert_allclose(made.states, expected.states, atol=4e-3)
    assert made.states.dtype == np.float16


def test_interrupted_texts_go_on_where_they_stopped(
    in_small_batches: MiniLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = text_features(TEXTS, tmp_path / "whole", False, QUIET)
    batches = len(in_small_batches.plan(in_small_batches.tokenize(TEXTS))[0])
    assert batches > 36
    fill, calls = MiniLM.fill, 0

    def deadly(self, states, offsets, ids, batches):  # type: ignore[no-untyped-def]
        nonlocal calls
        for rows in batches:
            if calls == 35:
                raise Killed
            calls += 1
            fill(self, states, offsets, ids, [rows])

    monkeypatch.setattr(MiniLM, "fill", deadly)
    with pytest.raises(Killed):
        text_features(TEXTS, tmp_path / "cut", False, QUIET)
    calls = -(10**6)
    resumed = text_features(TEXTS, tmp_path / "cut", False, QUIET)
    assert calls + 10**6 == batches - 32  # written down after every 32 batches
    np.testing.assert_array_equal(resumed.states, whole.states)
    calls = 35  # the next would be deadly
    np.testing.assert_array_equal(text_features(TEXTS, tmp_path / "cut", False, QUIET).states, whole.states)


# Vectors of a whole encoder


class Counting:
    """An encoder whose vectors name their input, and which counts what it is given. Dies after `lives` calls."""

    kind, dim, joint = "counting", 3, False

    def __init__(self, weight: float = 1.0, lives: int = 10**6) -> None:
        self.weight, self.lives, self.seen = np.full(2, weight, np.float32), lives, 0

    def pixels(self, image: Image.Image) -> np.ndarray:
        return np.asarray(image)

    def encode(self, inputs: Sequence[Prepared], progress: bool = False) -> Vectors:
        if self.lives == 0:
            raise Killed
        self.lives -= 1
        self.seen += len(inputs)
        image = [[0 if p.pixels is None else p.pixels[0, 0, 0]] * 3 for p in inputs]
        text = [[len(p.text)] * 3 for p in inputs]
        return Vectors(np.array(image, np.float32) * float(self.weight[0]), np.array(text, np.float32))

    def state(self) -> dict[str, np.ndarray]:
        return {"weight": self.weight}

    def config(self) -> dict[str, Any]:
        return {"kind": self.kind}


WORDS = ["a" * (n % 40 + 1) for n in range(90)]


@pytest.fixture
def blocks_of_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "TEXT_BLOCK", 8)


def test_every_text_and_image_has_the_row_of_its_number(names: list[str], tmp_path: Path) -> None:
    images = image_rows(Counting(), names, tmp_path, 2, QUIET)
    texts = text_rows(Counting(), WORDS, tmp_path, 2, QUIET)
    np.testing.assert_array_equal(images, np.array([*range(0, 100, 10), 0])[:, None].repeat(3, 1))
    np.testing.assert_array_equal(texts, np.array([*map(len, WORDS), 0])[:, None].repeat(3, 1))
    assert images.dtype == texts.dtype == np.float16
    assert isinstance(images, np.memmap)


@pytest.mark.usefixtures("blocks_of_eight")
@pytest.mark.parametrize("lives", [0, 1, 7])
def test_vectors_go_on_where_they_stopped_and_nothing_is_encoded_twice(tmp_path: Path, lives: int) -> None:
    with pytest.raises(Killed):
        text_rows(Counting(lives=lives), WORDS, tmp_path, 1, QUIET)
    second = Counting()
    rows = text_rows(second, WORDS, tmp_path, 1, QUIET)
    assert second.seen == len(WORDS) - 8 * lives
    np.testing.assert_array_equal(rows[:-1, 0], [*map(len, WORDS)])
    third = Counting()
    text_rows(third, WORDS, tmp_path, 1, QUIET)
    assert third.seen == 0


def test_vectors_of_other_weights_are_other_vectors(names: list[str], tmp_path: Path) -> None:
    one = image_rows(Counting(1.0), names, tmp_path, 1, QUIET)
    two = image_rows(Counting(2.0), names, tmp_path, 1, QUIET)
    np.testing.assert_array_equal(two, 2 * one)
    assert encoder_digest(Counting(1.0)) == encoder_digest(Counting(1.0)) != encoder_digest(Counting(2.0))


def test_vectors_that_are_not_numbers_are_refused_and_not_kept(names: list[str], tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=r"vectors of images that are not numbers.*float32"):
        image_rows(Counting(float("nan")), names, tmp_path, 1, QUIET)
    with pytest.raises(BadModel):
        image_rows(Counting(float("nan")), names, tmp_path, 1, QUIET)


def test_pairs_of_a_joint_encoder_are_encoded_once_and_their_images_read_once(
    names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def counted(path: str) -> Image.Image:
        read.append(path)
        return load_image(path)

    monkeypatch.setattr(features, "load_image", counted)
    pairs = np.array([[3, -1], [-1, 2], [0, 2], [5, 2], [1, 4]])
    first, second = Counting(), Counting()
    rows = joint_rows(first, pairs, WORDS, names, tmp_path, 1, QUIET)
    expected = [len(WORDS[3]), 20, 20 + len(WORDS[0]), 20 + len(WORDS[5]), 40 + len(WORDS[1])]
    np.testing.assert_array_equal(rows, np.array(expected)[:, None].repeat(3, 1))
    assert sorted(read) == [names[2], names[4]]
    np.testing.assert_array_equal(joint_rows(second, pairs, WORDS, names, tmp_path, 1, QUIET), rows)
    assert (first.seen, second.seen) == (5, 0)


def test_the_names_of_pairs_are_not_held_together(tmp_path: Path) -> None:
    """Each of 2,000 pairs has a text of 20,000 characters: 40 MB, if all names were made at once."""
    pairs = np.stack([np.zeros(2000, np.int64), np.full(2000, -1)], axis=1)
    joint_rows(Counting(), pairs, ["a" * 20_000], [], tmp_path, 1, QUIET)  # imports, and the cache
    tracemalloc.start()
    joint_rows(Counting(), pairs, ["a" * 20_000], [], tmp_path, 1, QUIET)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5e6


def test_mapped_vectors_are_those_of_the_mapped_encoder(names: list[str], tmp_path: Path) -> None:
    """They lie where the new encoder's own would: it finds them there."""
    frozen, tuned = Counting(1.0), Counting(3.0)
    rows = image_rows(frozen, names, tmp_path, 1, QUIET)
    mapped = mapped_rows(tuned, "images", names, rows, 3 * np.eye(3, dtype=np.float32), tmp_path, QUIET)
    np.testing.assert_array_equal(mapped, 3 * rows)
    np.testing.assert_array_equal(image_rows(tuned, names, tmp_path, 1, QUIET), mapped)
    assert tuned.seen == 0


def fill(cache: Path, out: Path) -> None:
    """What one of several processes does."""
    features.TEXT_BLOCK = 1
    encoder = Counting()
    rows = text_rows(encoder, WORDS, cache, 1, QUIET)
    out.write_text(json.dumps([encoder.seen, rows[:, 0].tolist()]))


def test_trainings_that_share_a_cache_encode_everything_once(tmp_path: Path) -> None:
    """Three at once, one of which is killed on its way."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["genius.train.features"])
    children = [context.Process(target=fill, args=(tmp_path / "cache", tmp_path / str(n))) for n in range(3)]
    for child in children:
        child.start()
    deadline = time.monotonic() + 120
    while not list((tmp_path / "cache").glob("*/progress.json")) and time.monotonic() < deadline:
        time.sleep(0.001)
    children[0].kill()
    for child in children:
        child.join(120)
    assert [child.exitcode for child in children[1:]] == [0, 0]
    reports = [json.loads((tmp_path / str(n)).read_text()) for n in range(3) if (tmp_path / str(n)).exists()]
    assert all(rows == [*map(len, WORDS), 0] for _, rows in reports)
    assert sum(seen for seen, _ in reports) <= len(WORDS)


def test_memory_does_not_grow_with_the_number_of_vectors(tmp_path: Path) -> None:
    """Eight times the rows: the files are eight times as large, what is held in memory is not."""

    class Wide(Counting):
        dim = 512

        def encode(self, inputs: Sequence[Prepared], progress: bool = False) -> Vectors:
            rows = np.ones((len(inputs), self.dim), np.float32)
            return Vectors(np.zeros_like(rows), rows)

    peaks, sizes = [], []
    for count in (4_000, 32_000):
        texts = ["the same"] * count
        tracemalloc.start()
        rows = text_rows(Wide(), texts, tmp_path, 1, QUIET)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert rows[count // 2].any()
        sizes.append(Path(str(rows.filename)).stat().st_size)  # type: ignore[attr-defined]
    assert sizes[1] > 7.9 * sizes[0]
    assert sizes[1] > 32_000_000
    assert peaks[1] < 1.2 * peaks[0]
