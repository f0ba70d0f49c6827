from pathlib import Path

import pytest
from fakes import tiny_model
from PIL import Image

from genius import Index, Item

COLOURS = {"red": (220, 20, 30), "green": (20, 200, 40), "blue": (20, 40, 220)}
SHAPES = ["disc", "star", "ring", "cube", "cone", "arrow", "cross", "moon", "leaf", "wave", "bolt", "crown"]
HOSTILE = "</script><img src=x onerror=alert(1)> <b>bold</b> %%data%%"


def items() -> list[Item]:
    found = []
    for name, colour in COLOURS.items():
        for number in range(12):
            image = Image.new("RGB", (40, 30), tuple(min(255, part + number) for part in colour))
            found.append(Item(f"{name}-image-{number}", image=image))
            found.append(Item(f"{name}-text-{number}", text=f"A {name} square with a {SHAPES[number]}."))
            found.append(Item(f"{name}-pair-{number}", image=image, text=f"The {name} squares."))
    return [*found, *(Item(f"hostile-{number}", text=HOSTILE) for number in range(3))]


@pytest.fixture(scope="session")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    made = Index.create(tmp_path_factory.mktemp("atlas") / "squares.genius", tiny_model(), store_images=True)
    assert not made.add(items()).bad
    return made


@pytest.fixture(scope="session")
def atlas_folder(index: Index, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from genius.atlas.writing import write_atlas

    folder = tmp_path_factory.mktemp("written")
    write_atlas(index, folder)
    return folder
