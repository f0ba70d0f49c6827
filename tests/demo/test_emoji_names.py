"""Names, concepts and traits of emoji."""

import pytest

from genius.demo.emoji_names import change, concept_and_traits, plain_name, wordings


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (":grinning_face:", "grinning face"),
        (":man_red_hair:", "man with red hair"),
        (":woman_bald:", "bald woman"),
        (":family_man_woman_girl_boy:", "family: man, woman, girl and boy"),
        (":kiss_woman_man:", "kiss: woman and man"),
    ],
)
def test_plain_names(name: str, expected: str) -> None:
    assert plain_name(name) == expected


def test_flag_names() -> None:
    assert plain_name(":Côte_d’Ivoire:", is_flag=True) == "flag of Côte d'Ivoire"


def test_skin_and_gender_are_traits_of_one_concept() -> None:
    plain, no_traits = concept_and_traits(("1f9d1", "200d", "1f692"), "firefighter", "People & Body")
    dark_woman, traits = concept_and_traits(("1f469", "1f3ff", "200d", "1f692"), "woman firefighter", "People & Body")
    cook, _ = concept_and_traits(("1f469", "1f3ff", "200d", "1f373"), "woman cook", "People & Body")
    assert plain == dark_woman != cook
    assert no_traits == {"gender": "person"}
    assert traits == {"gender": "woman", "tone": "dark"}


def test_colours_views_and_directions_are_traits() -> None:
    assert concept_and_traits(("1f499",), "blue heart", "Smileys & Emotion") == ("heart", {"colour": "blue"})
    assert concept_and_traits(("1f436",), "dog face", "Animals & Nature") == ("dog", {"view": "face"})
    assert concept_and_traits(("1f415",), "dog", "Animals & Nature") == ("dog", {})
    concept, traits = concept_and_traits(("1f6b6", "200d", "27a1"), "person walking facing right", "People & Body")
    assert (concept, traits) == ("1f6b6", {"facing": "right"})


def test_change_is_the_one_trait_that_differs() -> None:
    assert change({"gender": "man"}, {"gender": "man", "tone": "dark"}) == ("tone", "dark")
    assert change({"gender": "man", "tone": "dark"}, {"gender": "man"}) == ("tone", "")
    assert change({"gender": "man"}, {"gender": "woman", "tone": "dark"}) is None
    assert change({"colour": "red"}, {"colour": "red"}) is None


def test_every_trait_with_a_wording_names_its_value() -> None:
    for trait, value in (("tone", "dark"), ("gender", "woman"), ("hair", "red hair"), ("colour", "blue")):
        assert wordings(trait, value)
        assert all(value in words for words in wordings(trait, value))
    assert wordings("time", "one o'clock") == ()
