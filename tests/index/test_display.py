"""Hits and indexes as a notebook shows them: what is on view, that nothing breaks it, and that a kernel chooses it."""

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
from fakes import draw_image, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from IPython.core.formatters import DisplayFormatter
from nbclient import NotebookClient
from PIL import Image

from genius.data.items import Item, Modality, Query
from genius.index.index import Index
from genius.search.cards import MAX_CARDS, shared_prefixes
from genius.search.results import Hit, HitLists, Hits

VOID = {"img", "br", "hr"}
TAGS = {"div", "span", "b", "bdi", "img"}
ATTRIBUTES = {"class", "style", "title", "role", "src", "alt"}


class Page(HTMLParser):
    """What a browser would see: elements, their attributes, and the text between them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def titles(self) -> str:
        return "\n".join(attributes.get("title", "") for _, attributes in self.elements)


def well_formed(html: str) -> Page:
    """A page of the few elements that are meant to be there, all closed, that fetches nothing."""
    page = Page(html)
    assert page.open == []
    for tag, attributes in page.elements:
        assert tag in TAGS
        assert attributes.keys() <= ATTRIBUTES
        assert attributes.get("src", "data:image/webp;base64,").startswith("data:image/webp;base64,")
        assert "url(" not in attributes.get("style", "")
    return page


def hit(id: str, item: Item | None = None, modality: Modality = Modality.TEXT, codes: tuple[int, ...] = (1, 2)) -> Hit:
    return Hit(id, 0.5, modality, codes, item or Item(id, "words"))


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    index = Index.create(tmp_path_factory.mktemp("notebook") / "things.genius", tiny_model())
    index.add(
        [
            Item("p1", image=draw_image("red", (800, 400)), metadata={"year": 1999}),
            Item("t1", "the cat sleeps on the sofa", metadata={"lang": "en"}),
            Item("x1", "a red car", draw_image("blue")),
        ]
    )
    return index


def hits_html(hits: list[Hit]) -> str:
    return Hits(hits)._repr_html_()


# What is on view


def test_a_hit_shows_id_score_kind_codes_text_and_on_hover_its_metadata():
    item = Item("x1", "a red car", draw_image("red"), {"year": 1999, "tags": ["fast", "loud"]})
    page = well_formed(hits_html(Hits([Hit("x1", 0.8312, Modality.IMAGE_TEXT, (2, 17, 203), item)])))
    for part in ("1 hit", "x1", "0.831", "image + text", "a red car", "17", "203"):
        assert part in page.text
    assert 'year: 1999\ntags: ["fast", "loud"]' in page.titles
    assert page.all("img")[0]["alt"] == "a red car"


def test_images_are_made_small():
    noise = Image.effect_noise((1500, 900), 90).convert("RGB")
    (image,) = well_formed(hit("p", Item("p", image=noise), Modality.IMAGE)._repr_html_()).all("img")
    data = base64.b64decode(image["src"].partition(",")[2])
    assert max(Image.open(io.BytesIO(data)).size) <= 256
    assert len(data) < 40_000


def test_every_hit_is_shown_best_first_up_to_a_limit():
    page = well_formed(hits_html([hit(f"id{i}.") for i in range(MAX_CARDS + 7)]))
    assert re.findall(r"id\d+\.", page.text) == [f"id{i}." for i in range(MAX_CARDS)]
    assert f"{MAX_CARDS + 7} hits, the first {MAX_CARDS} shown" in page.text


def test_no_hits_are_said_in_words():
    assert "Nothing was found." in well_formed(hits_html(Hits())).text


def test_codes_that_hits_share_from_the_beginning_have_a_colour():
    assert shared_prefixes([(0, 5, 7), (0, 5, 8), (1, 5, 7)]) == {(0, 5)}
    hits = [hit("a", codes=(0, 5, 7)), hit("b", codes=(0, 5, 8)), hit("c", codes=(1, 5, 7))]
    coloured = re.findall(r"hsla[^>]*>(\d+)<", hits_html(hits))
    assert coloured == ["5", "5"]


def test_an_index_shows_what_it_holds(index):
    page = well_formed(index._repr_html_())
    for part in ("things.genius: 3 items", "1 image, 1 text, 1 pair", "1 of 3, 3 of 8", "embeddings"):
        assert part in page.text
    assert "lang (text)" in page.text
    assert "year (number)" in page.text
    assert len(page.all("img")) == 2


def test_slices_and_hits_of_many_queries_are_shown(index):
    lists = index.search(["a cat", draw_image("red")], k=3)
    page = well_formed(lists._repr_html_())
    assert "Query 1: 3 hits" in page.text
    assert "Query 2: 3 hits" in page.text
    assert len(page.all("img")) == 4
    assert "2 hits" in well_formed(lists[0][:2]._repr_html_()).text
    assert "Query 2" not in well_formed(lists[:1]._repr_html_()).text
    assert "No queries." in well_formed(index.search([])._repr_html_()).text
    many = HitLists([Hits([hit("a"), hit("b")])] * (MAX_CARDS + 3))
    shown = well_formed(many._repr_html_()).text
    assert f"Query {MAX_CARDS}: 2 hits, the first 1 shown" in shown
    assert "and 3 more queries" in shown
    assert isinstance(lists[0][0], Hit)


def test_an_empty_index_and_one_of_vectors_alone_are_shown_too(tmp_path):
    index = Index.create(tmp_path / "new.genius", tiny_model())
    assert "nothing yet" in well_formed(index._repr_html_()).text
    index.add_vectors(["v"], index.model.encode_items([Item("v", image=draw_image("red"))]))
    assert "vector only" in well_formed(index._repr_html_()).text
    (found,) = index.search(Query(text="red"), k=1)
    assert "The image is not at hand." in well_formed(found._repr_html_()).text


# What could go wrong


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("/nowhere/cat.png", "there is no such file"),
        (b"GIF89a, but no more", "not an image|truncated or damaged"),
        (b"", "empty"),
        ("https://example.com/cat.png", "not downloaded"),
        ("zero\0byte", "cannot be opened|no such file"),
    ],
)
def test_a_image_that_cannot_be_shown_leaves_its_reason_and_the_others(source, reason):
    good = hit("good", Item("good", image=draw_image("red")), Modality.IMAGE)
    bad = hit("bad", Item("bad", image=source), Modality.IMAGE)
    page = well_formed(hits_html([bad, good]))
    assert re.search(reason, page.text)
    assert "bad" in page.text
    assert len(page.all("img")) == 1


def test_even_a_broken_image_object_leaves_the_others(monkeypatch):
    def fail(source, side):
        raise MemoryError("no room")

    monkeypatch.setattr("genius.data.images.decoded", fail)
    page = well_formed(hits_html([hit("p", Item("p", image=draw_image("red")), Modality.IMAGE)]))
    assert "no room" in page.text


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</div></div><h1>",
    "<!-- ",
    "&lt;b&gt; &amp; &",
    "javascript:alert(1)",
    "a\0b\x1b[31m\x08",
    "\u202eevil\u2066",
    "$$\\frac{1}{2}$$",
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_ids_texts_metadata_and_paths_stay_text(hostile):
    item = Item(hostile, hostile, f"/nowhere/{hostile}", {hostile: hostile, "list": [hostile]})
    page = well_formed(hits_html([hit(hostile, item, Modality.IMAGE_TEXT)]))
    shown = re.sub(r"[\x00-\x1f]", " ", hostile)
    assert shown in page.text
    assert shown in page.titles


@settings(max_examples=50, deadline=None)
@given(
    st.text(min_size=1).filter(str.strip), st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.text()))
)
def test_any_text_is_only_text(text, metadata):
    page = well_formed(hits_html([hit("id", Item("id", text, metadata=metadata))]))
    assert [tag for tag, _ in page.elements].count("b") == 1
    assert "id" in page.text


def test_long_texts_are_cut():
    item = Item("id" * 200, "word " * 5000, metadata={"long": "x" * 100_000})
    assert len(hits_html([hit(item.id, item)])) < 10_000


def test_formulas_are_left_alone():
    assert "mathjax_ignore" in hits_html([hit("a")])


# Notebooks


def test_a_notebook_chooses_the_html_form(index):
    formatter = DisplayFormatter()
    for shown in (index, index.search(Query(text="cat")), index.search(Query(text="cat"))[0]):
        data, _ = formatter.format(shown)
        assert well_formed(data["text/html"]).text
        assert data["text/plain"]


def test_a_kernel_shows_an_index_and_hits_with_their_images(index, tmp_path):
    """The real thing: a notebook run by a kernel in a process of its own."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "support")!r})
from fakes import tiny_model
from genius import Index, Query
index = Index.open({str(index.path)!r}, tiny_model())
display(index)
index.search(Query(text="cat"), k=3)
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = notebook.cells[0].outputs
    assert [output.output_type for output in outputs] == ["display_data", "execute_result"]
    assert "things.genius: 3 items" in well_formed(outputs[0].data["text/html"]).text
    found = well_formed(outputs[1].data["text/html"])
    assert "3 hits" in found.text
    assert len(found.all("img")) == 2
