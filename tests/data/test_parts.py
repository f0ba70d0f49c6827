import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from object_store import object_store, upload
from sources import png, write_all, write_csv, write_folder, write_lance, write_parquet, write_tar

from genius.data.images import image_bytes, image_exists
from genius.data.items import Item
from genius.data.parts import Part, read_part, split_source
from genius.data.readers import count_items, read_items
from genius.errors import BadData, BadImage, BadItem


def plain(item: Item | BadItem) -> tuple[object, ...]:
    if isinstance(item, BadItem):
        return item.id, item.reason
    return item.id, item.text, item.image, item.metadata


def from_parts(source: str | Path, size: int) -> list[tuple[object, ...]]:
    parts = [Part.from_dict(json.loads(json.dumps(asdict(part)))) for part in split_source(source, size)]
    assert all(part.count is None or part.count <= size for part in parts)
    return [plain(item) for part in parts for item in read_part(part)]


@pytest.mark.parametrize("size", [1, 4, 7, 1000])
def test_the_parts_of_a_source_give_its_items(tmp_path: Path, size: int) -> None:
    for source in write_all(tmp_path):
        items = [plain(item) for item in read_items(source)]
        assert from_parts(source, size) == items
        assert count_items(source) in (None, len(items))


def test_a_shard_gives_its_images_texts_and_metadata(tmp_path: Path) -> None:
    items = list(read_items(write_tar(tmp_path / "a.tar")))
    assert [item.id for item in items] == [f"a.tar/train/{number:04}" for number in range(10)]
    first, second, third = items[:3]
    assert plain(first)[1:] == ("described 0", png(0), {"cls": 0, "year": 0})
    assert plain(second)[1:] == ("sample 1", png(1), {"cls": 1})
    assert plain(third)[1:] == (None, png(2), {"cls": 2})


def test_a_shard_that_is_cut_off_gives_what_can_be_read(tmp_path: Path) -> None:
    whole = write_tar(tmp_path / "a.tar")
    cut = tmp_path / "cut.tar"
    cut.write_bytes(whole.read_bytes()[:9000])
    *items, last = read_items(cut)
    assert items
    assert all(isinstance(item, Item) for item in items)
    assert isinstance(last, BadItem)
    assert "cannot be read" in last.reason
    (tmp_path / "no.tar").write_bytes(b"something else" * 100)
    with pytest.raises(BadData, match="not a tar"):
        read_items(tmp_path / "no.tar")


def test_vectors_of_a_lance_dataset_are_no_metadata(tmp_path: Path) -> None:
    items = [item for item in read_items(write_lance(tmp_path / "a.lance")) if isinstance(item, Item)]
    assert items[1].metadata == {"year": "1"}
    assert items[1].image == png(1)


def test_parts_of_a_lance_dataset_stay_at_their_version(tmp_path: Path) -> None:
    import lance

    path = write_lance(tmp_path / "a.lance")
    before, parts = [plain(item) for item in read_items(path)], list(split_source(path, 4))
    lance.dataset(path).delete("id = 'l2'")
    assert [plain(item) for part in parts for item in read_part(part)] == before


def test_a_source_that_is_not_there_is_an_error_before_the_first_part(tmp_path: Path) -> None:
    for name in ("no.csv", "no.tar", "no.lance", "no.parquet", "no"):
        with pytest.raises(BadData, match="no such file"):
            split_source(tmp_path / name, 10)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadData, match="no items"):
        split_source(tmp_path / "empty", 10)


def test_sources_in_an_object_store_give_the_same_items(tmp_path: Path) -> None:
    def here(item: Item | BadItem) -> Item | BadItem:
        """With the content of its image, wherever it is."""
        if isinstance(item, Item) and isinstance(item.image, str):
            return replace(item, image=image_bytes(item.image))
        return item

    folder = write_folder(tmp_path / "folder")
    images = tmp_path / "images.csv"
    images.write_text("id,image\na,folder/000.png\nb,folder/sub/001.png\n")
    with object_store() as bucket:
        upload(folder, f"{bucket}/folder")
        for source in (
            folder,
            images,
            write_csv(tmp_path / "rows.csv"),
            write_parquet(tmp_path / "rows.parquet"),
            write_lance(tmp_path / "rows.lance"),
            write_tar(tmp_path / "shard.tar"),
        ):
            url = f"{bucket}/{source.name}"
            if source != folder:
                upload(source, url)
            local, remote = list(read_items(source)), list(read_items(url))
            assert [plain(here(item)) for item in remote] == [plain(here(item)) for item in local]
            assert from_parts(url, 4) == [plain(item) for item in remote]
        url = f"{bucket}/folder/000.png"
        assert image_exists(url)
        assert not image_exists(f"{url}x")
        assert [plain(item) for item in read_items(url)] == [("000.png", None, url, {})]
        with pytest.raises(BadImage, match="no such file"):
            image_bytes(f"{url}x")
        with pytest.raises(BadData, match="no such folder"):
            read_items(f"{bucket}/nothing")
