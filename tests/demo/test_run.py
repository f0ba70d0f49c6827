"""The demo from end to end, on a few emoji and an index that answers in order of words in common."""

import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakes import tiny_model
from rich.console import Console

from genius.data.items import Item, Modality, Query
from genius.data.mbeir import TASKS
from genius.demo import collection
from genius.demo.benchmark import SPLITS
from genius.demo.collection import Emoji, list_emoji
from genius.demo.run import EXAMPLES, about_page, run_demo
from genius.errors import BadIndex, BadItem
from genius.model.genius import Genius

ITEMS = 4 * 8 + 8
"""Eight emoji, each drawn twice, described and paired, and the eight groups they are of."""


@dataclass
class Hit:
    id: str
    score: float
    modality: Modality
    codes: tuple[int, ...]
    item: Item


class FakeIndex:
    """Keeps its items in a JSON file; stands in for genius.index.index.Index."""

    added: list[int]
    """How many items each call of `add` was given, over all instances."""
    stop_after: int | None = None

    model = tiny_model()

    def __init__(self, path: Path, model: str) -> None:
        self.path, self.model_name = path, model

    @property
    def file(self) -> Path:
        return self.path / "items.json"

    @classmethod
    def create(cls, path: Path, model: str) -> "FakeIndex":
        path.mkdir()
        index = cls(path, model)
        index.file.write_text(json.dumps({"model": model, "items": []}))
        return index

    @classmethod
    def open(cls, path: Path, model: str) -> "FakeIndex":
        index = cls(path, model)
        if json.loads(index.file.read_text())["model"] != model:
            raise BadIndex("another model")
        return index

    def items(self) -> list[Item]:
        return [Item(**entry) for entry in json.loads(self.file.read_text())["items"]]

    def add(self, items: list[Item], progress: bool) -> SimpleNamespace:
        assert progress
        FakeIndex.added.append(len(items))
        kept = self.items() + items[: FakeIndex.stop_after]
        self.file.write_text(json.dumps({"model": self.model_name, "items": [vars(item) for item in kept]}))
        if FakeIndex.stop_after is not None:
            raise KeyboardInterrupt
        bad = [BadItem(item.id, "broken") for item in items if not Path(str(item.image or __file__)).exists()]
        return SimpleNamespace(added=len(items), bad=bad)

    def __len__(self) -> int:
        return len(self.items())

    def search(self, queries: list[Query], k: int) -> list[list[Hit]]:
        assert all(query.instruction for query in queries)
        return [self._search(query)[:k] for query in queries]

    def _search(self, query: Query) -> list[Hit]:
        words = set((query.text or "").split()) | {Path(str(query.image)).stem.lower()}
        fit = [item for item in self.items() if item.modality == query.target_modality]
        about = {item.id: f"{item.id} {item.text} {item.metadata['name']}".lower() for item in fit}
        fit.sort(key=lambda item: -sum(word in about[item.id] for word in words))
        return [Hit(item.id, 0.5, item.modality, (int(item.modality), n, 3), item) for n, item in enumerate(fit)]


@pytest.fixture(scope="module")
def emoji() -> list[Emoji]:
    return list_emoji()


@pytest.fixture
def console(emoji: list[Emoji], monkeypatch: pytest.MonkeyPatch) -> Console:
    keys = {example.emoji for example in EXAMPLES} | {"1f9e9", "1f99c", "1f370"}
    few = [one for one in emoji if one.key in keys]
    monkeypatch.setattr(collection, "list_emoji", lambda: few)
    FakeIndex.added, FakeIndex.stop_after = [], None
    monkeypatch.setitem(sys.modules, "genius.index.index", SimpleNamespace(Index=FakeIndex))
    model = SimpleNamespace(Genius=SimpleNamespace(from_pretrained=lambda name: name))
    monkeypatch.setitem(sys.modules, "genius.model.genius", model)
    return Console(file=io.StringIO(), width=150, highlight=False)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_one_example_of_each_task_from_emoji_kept_out_of_training(emoji: list[Emoji], tmp_path: Path) -> None:
    assert [example.task for example in EXAMPLES] == list(TASKS)
    for example in EXAMPLES:
        asked = (example.text is not None, example.emoji is not None)
        wanted = TASKS[example.task][0]
        assert asked == (wanted != Modality.IMAGE, wanted != Modality.TEXT)
    known = {one.key: one for one in emoji}
    used = [known[example.emoji] for example in EXAMPLES if example.emoji]
    assert {_split(one) for one in used} == {"test"}


def _split(one: Emoji) -> str:
    share = collection.fraction(one.concept, "split")
    return next(split for split, end in SPLITS.items() if share < end)


def test_the_first_run_builds_the_second_only_asks(tmp_path: Path, console: Console) -> None:
    page = run_demo(tmp_path / "demo", console=console)
    assert FakeIndex.added == [ITEMS]
    first = page.read_text()
    run_demo(tmp_path / "demo", console=console)
    assert FakeIndex.added == [ITEMS]
    assert page.read_text() == first


def test_what_is_shown(tmp_path: Path, console: Console) -> None:
    page = run_demo(tmp_path / "demo", console=console).read_text()
    said = printed(console)
    for text in ("jigsaw", "image + text → image", "american football by Twemoji", "CC BY 4.0", "CC BY-SA 4.0"):
        assert text in said
        assert text in page
    for command in ("genius index create my.genius IMAGES_FOLDER", "genius search my.genius"):
        assert command in said
    assert page.count('<section class="card">') == 8
    assert "kept out of training" in page


def test_the_page_says_how_many_codes_the_decoder_generates() -> None:
    bundled = " ".join(about_page(Genius.from_pretrained("mini"), 5))
    assert "generates all 13 codes" in bundled
    assert "ranks these by comparing their embeddings" in bundled
    assert "generates all 4 codes" in about_page(tiny_model(), 5)[0]


def test_the_image_asked_with_is_not_an_answer(tmp_path: Path, console: Console) -> None:
    page = run_demo(tmp_path / "demo", console=console).read_text()
    assert 'title="openmoji/1F3F0"' in page
    castle = page.split("<section")[5]
    assert 'title="twemoji/1f3f0"' not in castle


def test_an_interrupted_run_goes_on(tmp_path: Path, console: Console) -> None:
    FakeIndex.stop_after = 10
    with pytest.raises(KeyboardInterrupt):
        run_demo(tmp_path / "demo", console=console)
    FakeIndex.stop_after = None
    run_demo(tmp_path / "demo", console=console)
    assert FakeIndex.added == [ITEMS, ITEMS - 10]
    ids = [item.id for item in FakeIndex(tmp_path / "demo" / "emoji.genius", "mini").items()]
    assert len(set(ids)) == len(ids) == ITEMS


def test_another_model_or_other_items_rebuild_the_index(tmp_path: Path, console: Console) -> None:
    run_demo(tmp_path / "demo", console=console)
    run_demo(tmp_path / "demo", model="another", console=console)  # type: ignore[arg-type]
    assert FakeIndex.added == [ITEMS] * 2
    (tmp_path / "demo").rename(tmp_path / "moved")
    run_demo(tmp_path / "moved", model="another", console=console)  # type: ignore[arg-type]
    assert FakeIndex.added == [ITEMS] * 3


def test_a_folder_that_is_not_the_demos_is_left_alone(tmp_path: Path, console: Console) -> None:
    mine = tmp_path / "emoji.genius" / "precious"
    mine.mkdir(parents=True)
    with pytest.raises(BadIndex, match="another folder"):
        run_demo(tmp_path, console=console)
    assert mine.exists()


def test_a_bad_item_stops_the_demo(tmp_path: Path, console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    report = SimpleNamespace(added=0, bad=[BadItem("twemoji/1f986", "the image is cut off.")])
    monkeypatch.setattr(FakeIndex, "add", lambda self, items, progress: report)
    with pytest.raises(BadItem, match="twemoji/1f986"):
        run_demo(tmp_path, console=console)


def test_markup_in_names_is_not_interpreted(tmp_path: Path, console: Console) -> None:
    run_demo(tmp_path, console=console)
    assert "[american football by Twemoji]" in printed(console)
