import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from genius.data.items import Item, Modality, Query, clean_text, to_queries, to_query
from genius.errors import BadItem


@pytest.mark.parametrize(
    ("words", "modality"),
    [
        (("image", "images", "picture", "pictures", " Image ", "IMAGE"), Modality.IMAGE),
        (("text", "texts", "Text"), Modality.TEXT),
        (("image,text", "text,image", "pair", "pairs", "image, text", "Text, Image"), Modality.IMAGE_TEXT),
    ],
)
def test_modality_parse_understands_every_name(words, modality):
    for word in words:
        assert Modality.parse(word) is modality
    assert Modality.parse(modality) is modality
    assert Modality.parse(modality.label) is modality


def test_modality_values_are_the_first_codes():
    assert [(m.value, m.label) for m in Modality] == [(0, "image"), (1, "text"), (2, "image,text")]
    assert Modality.parse(None) is None


@pytest.mark.parametrize("word", ["video", "", "image,image", "image;text", 1, 2.0, ["image"]])
def test_modality_parse_refuses_others_and_lists_what_it_takes(word):
    with pytest.raises(BadItem, match=r'"image", "text" or "image,text"') as caught:
        Modality.parse(word)
    assert repr(word) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a cat", "A cat."),
        ("  a cat\r\n", "A cat."),
        ('"a cat"', "A cat."),
        ('" a cat "', "A cat."),
        ("a\r\nb", "A\nb."),
        ("Is it a cat?", "Is it a cat?"),
        ("cat!", "Cat!"),
        ("cat.", "Cat."),
        ('the "big" cat', 'The "big" cat.'),
        ("éclair", "Éclair."),
        ("猫", "猫."),
        ("4 cats", "4 cats."),
        ("", ""),
        (None, ""),
        (" \r\n\t", ""),
        ('" "" "', ""),
    ],
)
def test_clean_text_follows_the_rules(text, cleaned):
    assert clean_text(text) == cleaned


@given(st.text() | st.text(alphabet=' "\r\n.?!aß'))
def test_clean_text_is_stable_and_well_formed(text):
    cleaned = clean_text(text)
    assert clean_text(cleaned) == cleaned
    if cleaned:
        assert cleaned[-1] in ".?!"
        assert "\r" not in cleaned
        assert cleaned[0] not in ' "\n'
    else:
        assert not text.replace('"', "").strip()


def test_item_modality_is_what_it_has():
    image = Image.new("RGB", (2, 2))
    assert Item("a", text="cat").modality is Modality.TEXT
    assert Item("a", image="cat.jpg").modality is Modality.IMAGE
    assert Item("a", image=b"bytes").modality is Modality.IMAGE
    assert Item("a", text="cat", image=image).modality is Modality.IMAGE_TEXT
    assert Item("a", text=" \n", image=image).modality is Modality.IMAGE


@pytest.mark.parametrize("text", [None, "", "  \r\n", '""'])
def test_item_without_content_says_so_when_asked(text):
    item = Item("empty-one", text=text)  # can be made: adding many items lists it as bad
    with pytest.raises(BadItem, match="neither text nor an image") as caught:
        _ = item.modality
    assert caught.value.id == "empty-one"


@pytest.mark.parametrize("id", ["", "  ", None, 7, 7.0, b"a", "\udc80.jpg"])
def test_item_id_must_be_a_real_string(id):
    with pytest.raises(BadItem, match="id") as caught:
        Item(id, text="cat")
    assert str(caught.value).encode()  # the message can always be printed


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"text": 5}, "text must be a string or None, not int"),
        ({"text": float("nan")}, "text must be a string or None, not float"),
        ({"text": b"cat"}, "text must be a string or None, not bytes"),
        ({"text": "a \ud800 b"}, "not valid Unicode"),
        ({"image": 5}, "image must be a path, bytes, a PIL image or None, not int"),
        ({"image": " "}, "empty path"),
        ({"metadata": [1]}, "dict with string keys"),
        ({"metadata": {1: 2}}, "dict with string keys"),
        ({"metadata": {"price": float("nan")}}, "'price' is not JSON"),
        ({"metadata": {"when": object()}}, "'when' is not JSON"),
        ({"metadata": {"word": "\ud800"}}, "'word' is not JSON"),
    ],
)
def test_item_of_wrong_types_is_refused_by_name(wrong, words):
    with pytest.raises(BadItem, match=words) as caught:
        Item("p1", **wrong)
    assert caught.value.id == "p1"


def test_items_compare_by_content_and_hash():
    assert Item("a", text="cat", metadata={"n": [1]}) == Item("a", text="cat", metadata={"n": [1]})
    assert Item("a", text="cat") != Item("a", text="dog")
    assert len({Item("a", text="cat", metadata={"n": [1]}), Item("a", text="cat", metadata={"n": [1]})}) == 1
    assert Item("a").metadata is not Item("a").metadata


def test_long_text_is_accepted():
    long = "cat " * 25_000
    assert Item("a", text=long).modality is Modality.TEXT
    assert len(Query(text=long).prompt()) > 99_000


@pytest.mark.parametrize("text", [None, "", " \r\n", '"'])
def test_query_without_content_is_refused(text):
    with pytest.raises(BadItem, match="neither text nor an image to search with") as caught:
        Query(text=text, instruction="Find a picture.")
    assert caught.value.id == "query"


def test_query_modality_and_wanted():
    assert Query(text="cat").modality is Modality.TEXT
    assert Query(image="cat.jpg").modality is Modality.IMAGE
    assert Query(image="cat.jpg", text=" ", instruction="Find it.").modality is Modality.IMAGE
    assert Query(image="cat.jpg", text="in red").modality is Modality.IMAGE_TEXT
    assert Query(text="cat").target_modality is None
    assert Query(text="cat", target="pair").target_modality is Modality.IMAGE_TEXT
    assert Query(text="cat", target=Modality.IMAGE).target_modality is Modality.IMAGE


@pytest.mark.parametrize(
    "wrong", [{"text": 5}, {"text": "a", "instruction": 5}, {"image": 5}, {"text": "a", "target": "video"}]
)
def test_query_of_wrong_types_is_refused(wrong):
    with pytest.raises(BadItem):
        Query(**wrong)


@pytest.mark.parametrize(
    ("query", "prompt"),
    [
        (Query(text="a cat", target="image"), "Find a picture. a cat."),
        (Query(text="a cat", target="text"), "Find a text. a cat."),
        (Query(text="a cat?", target="pair"), "Find a picture with its text. a cat?"),
        (Query(text="a cat"), "Find a match. a cat."),
        (Query(image="a.jpg", target="image"), "Find a picture."),
        (Query(image="a.jpg"), "Find a match."),
        (Query(image="a.jpg", text="in red", instruction="find the photo"), "Find the photo. in red."),
        (Query(text="a cat", target="image", instruction=""), "A cat."),
        (Query(image="a.jpg", instruction=" "), ""),
    ],
)
def test_prompt_is_instruction_and_text_as_one_string(query, prompt):
    assert query.prompt() == prompt


def test_a_bad_item_says_the_same_in_another_process() -> None:
    error = BadItem("p1", "it is empty.")
    again = copy.copy(error)
    assert (str(error), str(again), again.id, again.reason) == (
        "p1: it is empty.",
        "p1: it is empty.",
        "p1",
        "it is empty.",
    )


def test_content_becomes_a_query(tmp_path):
    file = tmp_path / "cat.jpg"
    file.write_bytes(b"image")
    image = Image.new("RGB", (2, 2))
    given = Query(text="x", target="image")
    assert to_query("a dog") == Query(text="a dog")
    assert to_query(str(file)) == Query(text=str(file))  # a string is a text, whatever it names
    assert to_query(file) == Query(image=file)
    assert to_query(b"image") == Query(image=b"image")
    assert to_query(image) == Query(image=image)
    assert to_query(given) is given
    assert to_queries("a dog") == ([Query(text="a dog")], True)
    assert to_queries(file) == ([Query(image=file)], True)
    for many in (["a dog", file, given], ("a dog", file, given), iter(["a dog", file, given])):
        assert to_queries(many) == ([Query(text="a dog"), Query(image=file), given], False)
    assert to_queries([]) == ([], False)


@pytest.mark.parametrize("content", [5, None, {"text": "a dog"}, ["a", 5], [["a dog"]], object()])
def test_other_content_is_refused(content):
    with pytest.raises(BadItem, match="cannot be searched with"):
        to_queries(content)


def test_blank_content_is_refused():
    with pytest.raises(BadItem, match="neither text nor an image"):
        to_query(" ")
