"""The gallery page: complete, self-contained, and nothing in it is taken for HTML."""

import re
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from genius.data.items import Item, Modality, Query
from genius.demo.gallery import GalleryEntry, gallery

IMAGE = Image.new("RGB", (300, 200), "teal")
TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1).filter(lambda text: bool(text.strip(' "')))


@dataclass
class Hit:
    id: str
    score: float
    modality: Modality
    codes: tuple[int, ...]
    item: Item


def hit(text: str | None = "a cat", image: Any = None, codes: tuple[int, ...] = (5, 6), **metadata: Any) -> Any:
    item = Item("some/id", text, image, metadata)
    return Hit(item.id, 0.5, item.modality, (int(item.modality), *codes), item)


class Reader(HTMLParser):
    """Collects the tags, the words and the attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@given(TEXT, TEXT, TEXT)
def test_everything_is_escaped(text: str, name: str, title: str) -> None:
    answers = [GalleryEntry(Query(text, IMAGE, name), [hit(text, IMAGE, name=name), hit(text, artist=name)], title)]
    harmless = [GalleryEntry(Query("x", IMAGE, "x"), [hit("x", IMAGE, name="x"), hit("x", artist="x")], "x")]
    page = Reader(gallery(answers, title, [text], [name]))
    assert page.tags == Reader(gallery(harmless, "x", ["x"], ["x"])).tags
    words = "".join(page.words)
    assert all(given in words for given in (text, name, title))
    assert ("alt", name) in page.attributes
    assert ("alt", title) in page.attributes


def test_nothing_is_fetched() -> None:
    page = gallery([GalleryEntry(Query("x", IMAGE), [hit(image=IMAGE)])], "Title", ["About."], ["https://example.org"])
    addresses = [value for name, value in Reader(page).attributes if name in ("src", "href", "srcset")]
    assert len(addresses) == 2
    assert all(value.startswith("data:image/webp;base64,") for value in addresses)
    assert not re.search(r"@import|url\(|<script|<link", page)


def test_images_are_small_and_keep_their_shape() -> None:
    import base64
    import io

    page = gallery([GalleryEntry(Query("x"), [hit(None, IMAGE, name="cat")])], "Title")
    data = re.search(r"base64,([^\"]+)", page)
    assert data is not None
    assert Image.open(io.BytesIO(base64.b64decode(data[1]))).size == (128, 85)
    assert IMAGE.size == (300, 200)


def test_shared_codes_have_one_colour_and_others_none() -> None:
    hits = [hit("a", codes=(7, 8, 1)), hit("b", codes=(7, 8, 2)), hit("c", codes=(9, 8, 2)), hit("d", codes=(7, 3, 2))]
    page = gallery([GalleryEntry(Query("x"), hits)], "Title")
    lists = re.findall(r'<li.*?<div class="codes".*?</div>', page, re.DOTALL)
    colours = [re.findall(r"--hue:(\d+)\">(\d+)", entry) for entry in lists]
    assert [[code for _, code in entry] for entry in colours] == [["7", "8"], ["7", "8"], [], ["7"]]
    assert colours[0] == colours[1]
    assert "3 of 4 hits begin with" in page


def test_the_sentence_when_nothing_is_shared() -> None:
    page = gallery([GalleryEntry(Query("x"), [hit(codes=(1, 2)), hit(codes=(3, 2))])], "Title")
    assert "shares only its modality" in page
    assert "--hue:" not in page


def test_task_names() -> None:
    assert GalleryEntry(Query("x", target="image"), []).task_name == "text → image"
    assert GalleryEntry(Query("x", IMAGE, target="pair"), []).task_name == "image + text → image + text"
    assert GalleryEntry(Query(image=IMAGE), []).task_name == "image → anything"


def test_no_answers() -> None:
    assert "Nothing was found." in gallery([GalleryEntry(Query("x"), [])], "Title")
