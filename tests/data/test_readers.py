import datetime
import decimal
import json
import os
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from genius.data import json_array
from genius.data.images import load_image
from genius.data.items import Item, Modality
from genius.data.mbeir import Candidate, Task
from genius.data.mbeir_writer import write_global_pool, write_pool
from genius.data.readers import count_items, read_items
from genius.errors import BadData, BadImage, BadItem


def image(path: Path, colour: str = "red") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), colour).save(path)
    return path


def read(path: Path) -> list[Item | BadItem]:
    """Every source in these tests is also counted, except where the damage of a file ends the reading."""
    found = list(read_items(path))
    assert count_items(path) == len(found) or "all rows after it" in str(found[-1])
    return found


def good(path: Path) -> list[Item]:
    found = read(path)
    assert not [item for item in found if isinstance(item, BadItem)]
    return found


def split(path: Path) -> tuple[list[str], list[BadItem]]:
    found = read(path)
    bad = [item for item in found if isinstance(item, BadItem)]
    assert all(str(item).encode() for item in bad)
    return [item.id for item in found if isinstance(item, Item)], bad


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


class TestFolder:
    def test_images_at_any_depth_with_relative_ids_in_order(self, tmp_path):
        for name in ("b.png", "a.JPG", "sub/deep/c.webp", ".hidden.png", ".git/d.png"):
            image(tmp_path / name)
        (tmp_path / "notes.md").write_text("passed over")
        items = good(tmp_path)
        assert [item.id for item in items] == ["a.JPG", "b.png", "sub/deep/c.webp"]
        assert all(item.modality is Modality.IMAGE and load_image(item.image).size == (4, 4) for item in items)

    def test_captions_in_side_files(self, tmp_path):
        for name in ("plain.png", "txt.png", "json.png", "both.png", "caption.png", "LOUD.PNG"):
            image(tmp_path / name)
        (tmp_path / "txt.txt").write_text("\ufeffa red square\n", "utf-8")
        (tmp_path / "LOUD.TXT").write_text("loud")
        (tmp_path / "json.json").write_text(json.dumps({"text": "rot", "lang": "de", "tags": ["a", 1]}))
        (tmp_path / "both.json").write_text(json.dumps({"price": 3.5}))
        (tmp_path / "both.txt").write_text("from the text file")
        (tmp_path / "caption.json").write_text(json.dumps({"caption": "a caption"}))
        items = {item.id: item for item in good(tmp_path)}
        assert {id: item.text for id, item in items.items()} == {
            "plain.png": None,
            "txt.png": "a red square",
            "json.png": "rot",
            "both.png": "from the text file",
            "caption.png": "a caption",
            "LOUD.PNG": "loud",
        }
        assert items["json.png"].metadata == {"lang": "de", "tags": ["a", 1]}
        assert items["both.png"].metadata == {"price": 3.5}
        assert items["txt.png"].modality is Modality.IMAGE_TEXT

    def test_text_without_a_image_is_a_text(self, tmp_path):
        image(tmp_path / "a/x.png")
        (tmp_path / "x.txt").write_text("on its own: the image of this name is in another folder")
        items = good(tmp_path)
        assert [(item.id, item.modality) for item in items] == [("x.txt", Modality.TEXT), ("a/x.png", Modality.IMAGE)]

    def test_broken_side_files_spoil_their_image_only(self, tmp_path):
        for name in ("a.png", "b.png", "c.png", "d.png", "good.png"):
            image(tmp_path / name)
        (tmp_path / "a.json").write_text('{"text": "cut')
        (tmp_path / "b.json").write_text('["a list"]')
        (tmp_path / "c.txt").write_bytes(b"\xff\xfe caf\xe9")
        (tmp_path / "d.json").write_text('{"text": 5}')
        (tmp_path / "e.txt").write_text("  \n")
        ids, bad = split(tmp_path)
        assert ids == ["good.png"]
        assert [item.id for item in bad] == ["a.png", "b.png", "c.png", "d.png", "e.txt"]
        for item, words in zip(
            bad, ("a.json is not JSON", "object", "c.txt", "must be a string", "neither"), strict=True
        ):
            assert words in item.reason

    def test_unreadable_kinds_of_image_are_reported_not_passed_over(self, tmp_path):
        (tmp_path / "drawing.svg").write_text("<svg/>")
        (item,) = good(tmp_path)
        with pytest.raises(BadImage, match="SVG"):
            load_image(item.image)

    def test_file_name_that_is_not_unicode(self, tmp_path):
        image(tmp_path / "good.png")
        try:
            os.rename(image(tmp_path / "odd.png"), os.fsencode(tmp_path) + b"/\xff.png")
        except OSError:
            pytest.skip("this file system has Unicode names only")
        ids, (bad,) = split(tmp_path)
        assert ids == ["good.png"]
        assert "Unicode" in bad.reason

    def test_single_image(self, tmp_path):
        path = image(tmp_path / "cat.png")
        (tmp_path / "cat.txt").write_text("a cat")
        assert good(path) == [Item("cat.png", text="a cat", image=str(path))]


class TestCsv:
    @pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
    def test_columns_delimiter_and_metadata(self, tmp_path, mark):
        rows = [
            ["id", " Text", "IMAGE", "price", "sku", "sale"],
            ["a", "red; or | not, so", "images/a.png", "3.50", "007", "true"],
            ["b", "", "images/b.png", "4", "", ""],
        ]
        table = "\n".join(mark.join(f'"{cell}"' for cell in row) for row in rows)
        path = write(tmp_path / "products.csv", "\ufeff" + table + "\n")
        first, second = good(path)
        assert first == Item(
            "a",
            text="red; or | not, so",
            image=str(tmp_path / "images/a.png"),
            metadata={"price": 3.5, "sku": "007", "sale": True},
        )
        assert second == Item("b", image=str(tmp_path / "images/b.png"), metadata={"price": 4})
        assert type(second.metadata["price"]) is int

    def test_row_without_id_gets_one_from_its_number(self, tmp_path):
        path = write(tmp_path / "t.csv", "text\nfirst\n\nthird\n")
        assert [(item.id, item.text) for item in good(path)] == [("t.csv#2", "first"), ("t.csv#4", "third")]
        assert good(path) == good(path)

    def test_broken_rows_are_named_and_the_rest_is_read(self, tmp_path):
        path = write(
            tmp_path / "t.csv",
            b"id,text,image\n"
            b"a,good,\n"
            b"b,one,two,too many\n"
            b"c,caf\xe9,\n"
            b"d,,\n"
            b'e,"quo"ted,\n'
            b'f,"two\nlines",\n'
            b"g,short\n"
            b'h,"never closed,\n',
        )
        ids, bad = split(path)
        assert ids == ["a", "f", "g"]
        assert [item.id for item in bad] == ["t.csv#3", "c", "d", "t.csv#6", "t.csv#9"]
        rows = zip(bad, (3, 4, 5, 6, 9), ("4 cells", "Unicode", "neither", "quotes", "quotes"), strict=True)
        for item, row, words in rows:
            assert f"t.csv, row {row}: " in item.reason
            assert words in item.reason

    def test_number_too_large_for_json_stays_a_string(self, tmp_path):
        (item,) = good(write(tmp_path / "t.csv", "text,a,b,c,d\nx,1e999,-5,NaN,1e3\n"))
        assert item.metadata == {"a": "1e999", "b": -5, "c": "NaN", "d": 1000.0}

    def test_long_text(self, tmp_path):
        path = write(tmp_path / "t.csv", "id,text\na," + "x" * 300_000 + "\n")
        assert len(good(path)[0].text) == 300_000

    @pytest.mark.parametrize("content", ["name,age\na,5\n", "\x00\x01", "just words\n", "ïd".encode("utf-16")])
    def test_table_without_text_or_image_is_refused(self, tmp_path, content):
        with pytest.raises(BadData, match=r"t\.csv: there is no column `text` or `image`"):
            read_items(write(tmp_path / "t.csv", content))

    def test_address_of_a_image_is_left_alone(self, tmp_path):
        (item,) = good(write(tmp_path / "t.csv", "id,image\na,https://example.org/a.png\n"))
        with pytest.raises(BadImage, match="not downloaded"):
            load_image(item.image)


class TestJsonl:
    def test_rows(self, tmp_path):
        rows = [
            {"id": "a", "text": "one", "image": "a.png", "tags": ["x"], "n": None},
            {"id": 7, "caption": "two", "metadata": {"lang": "en"}, "price": 3},
            {"text": "three", "caption": "kept"},
            {"id": "d", "image": str(tmp_path / "elsewhere.png"), "text": None},
        ]
        path = write(tmp_path / "t.jsonl", "\n".join(map(json.dumps, rows)) + "\n\n")
        assert good(path) == [
            Item("a", text="one", image=str(tmp_path / "a.png"), metadata={"tags": ["x"]}),
            Item("7", text="two", metadata={"lang": "en", "price": 3}),
            Item("t.jsonl#3", text="three", metadata={"caption": "kept"}),
            Item("d", image=str(tmp_path / "elsewhere.png")),
        ]

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ('{"id": "b", "text": "cut', "not JSON"),
            ("[1]", "must be an object"),
            ('{"id": "b"}', "neither text nor an image"),
            ('{"id": "b", "text": 5}', "text must be a string"),
            ('{"id": 1.5, "text": "a"}', "id must be a string"),
            ('{"id": "b", "image": {"bytes": null}}', "neither text nor an image"),
            ('{"id": "b", "image": 5}', "image must be a path"),
            ('{"id": "b", "text": "\\ud800"}', "Unicode"),
            ('{"id": "b", "text": "a", "price": NaN}', "'price' is not JSON"),
            ("[" * 100_000, "not JSON"),
        ],
    )
    def test_broken_line_is_named_and_the_rest_is_read(self, tmp_path, line, words):
        path = write(tmp_path / "t.jsonl", '{"id": "a", "text": "x"}\n' + line + '\n{"id": "c", "text": "x"}\n')
        ids, (bad,) = split(path)
        assert ids == ["a", "c"]
        assert bad.reason.startswith("t.jsonl, row 2: ")
        assert words in bad.reason

    def test_bytes_that_are_not_text(self, tmp_path):
        ids, bad = split(write(tmp_path / "t.jsonl", b'\xff\xfe\n{"id": "a", "text": "x"}\n'))
        assert (ids, len(bad)) == (["a"], 1)

    def test_reading_is_lazy(self, tmp_path):
        path = write(tmp_path / "t.jsonl", '{"id": "a", "text": "x"}\n')
        items = read_items(path)
        with path.open("a") as file:
            file.write('{"id": "b", "text": "x"}\n')
        assert [item.id for item in items] == ["a", "b"]


class TestCandidatePool:
    POOL = (
        Candidate("9:1", None, "images/1.png", Modality.IMAGE),
        Candidate("9:2", "a text", None, Modality.TEXT),
        Candidate("9:3", "a pair", "images/3.png", Modality.IMAGE_TEXT),
    )

    def test_images_are_found_from_the_root(self, tmp_path):
        write_pool(tmp_path, Task("tiny", 0), "test", self.POOL)
        write_global_pool(tmp_path, "test", self.POOL)
        expected = [
            Item("9:1", image=str(tmp_path / "images/1.png")),
            Item("9:2", text="a text"),
            Item("9:3", text="a pair", image=str(tmp_path / "images/3.png")),
        ]
        assert good(tmp_path / "cand_pool/local/mbeir_tiny_task0_test_cand_pool.jsonl") == expected
        assert good(tmp_path / "cand_pool/global/mbeir_union_test_cand_pool.jsonl") == expected

    def test_pool_on_its_own(self, tmp_path, monkeypatch):
        row = {"did": "9:1", "txt": None, "img_path": "1.png", "modality": "image", "src_content": "{}", "extra": 5}
        write(tmp_path / "pool.jsonl", json.dumps(row) + "\n")
        monkeypatch.chdir(tmp_path)
        (item,) = good(Path("pool.jsonl"))
        assert item == Item("9:1", image=os.path.join(".", "1.png"), metadata={"extra": 5})


class TestParquet:
    @pytest.fixture
    def png(self, tmp_path):
        return image(tmp_path / "a.png").read_bytes()

    def test_images_as_path_bytes_and_struct(self, tmp_path, png):
        columns = {
            "path": ["a.png", None],
            "bytes": [png, None],
            "struct": [{"bytes": png, "path": "gone.png"}, {"bytes": None, "path": "a.png"}],
        }
        for kind, images in columns.items():
            path = tmp_path / f"{kind}.parquet"
            pq.write_table(pa.table({"id": ["a", "b"], "text": [None, "words"], "image": images}), path)
            first, second = good(path)
            assert load_image(first.image).getpixel((0, 0)) == (255, 0, 0)
            assert first.text is None
            assert second.text == "words"
            if kind == "struct":
                assert load_image(second.image).size == (4, 4)
            else:
                assert second.image is None

    def test_metadata_becomes_json(self, tmp_path):
        table = pa.table(
            {
                "id": [1, 2],
                "Text": ["a", "b"],
                "when": [datetime.datetime(2024, 5, 6, 7, 8), None],
                "day": [datetime.date(2024, 5, 6), None],
                "price": [decimal.Decimal("3.50"), None],
                "score": [float("nan"), 0.5],
                "tags": [["x", None], []],
                "size": [{"w": 3, "on": datetime.date(2024, 5, 6)}, None],
                "raw": [b"\0", b"\1"],
            }
        )
        pq.write_table(table, tmp_path / "t.parquet")
        first, second = good(tmp_path / "t.parquet")
        assert (first.id, first.text) == ("1", "a")
        assert first.metadata == {
            "when": "2024-05-06T07:08:00",
            "day": "2024-05-06",
            "price": 3.5,
            "tags": ["x", None],
            "size": {"w": 3, "on": "2024-05-06"},
        }
        assert second.metadata == {"score": 0.5, "tags": []}

    def test_many_rows_and_bad_ones(self, tmp_path):
        texts = [None if n % 100 == 50 else f"text {n}" for n in range(300)]
        pq.write_table(pa.table({"text": texts}), tmp_path / "t.parquet")
        ids, bad = split(tmp_path / "t.parquet")
        assert len(ids) == 297
        assert ids[0] == "t.parquet#1"
        assert [item.id for item in bad] == ["t.parquet#51", "t.parquet#151", "t.parquet#251"]
        assert "t.parquet, row 51: the item has neither" in bad[0].reason

    def test_damaged_file_is_refused(self, tmp_path):
        with pytest.raises(BadData, match=r"t\.parquet: the file is damaged or not Parquet"):
            read_items(write(tmp_path / "t.parquet", b"PAR1 no table"))
        pq.write_table(pa.table({"name": ["a"]}), tmp_path / "u.parquet")
        with pytest.raises(BadData, match="no column `text` or `image`"):
            read_items(tmp_path / "u.parquet")

    def test_damage_in_the_middle_keeps_what_came_before(self, tmp_path):
        path = tmp_path / "t.parquet"
        table = pa.table({"text": [f"{n:05d} " * 30 for n in range(512)]})
        pq.write_table(table, path, row_group_size=128, compression="snappy", use_dictionary=False)
        start = pq.ParquetFile(path).metadata.row_group(2).column(0).data_page_offset
        data = bytearray(path.read_bytes())
        data[start : start + 400] = b"\xff" * 400
        ids, bad = split(write(path, bytes(data)))
        assert len(ids) >= 128
        assert "all rows after it cannot be read" in bad[-1].reason


@pytest.mark.parametrize("name", ["film.mp4", "noextension", "list.xml", "book.xlsx"])
def test_unknown_kind_is_refused_with_what_is_understood(tmp_path, name):
    with pytest.raises(
        BadData, match=r"not supported.*folder of images.*\.csv, \.tsv, \.json, \.jsonl, \.parquet"
    ) as caught:
        read_items(write(tmp_path / name, b"something"))
    assert name in str(caught.value)


def test_nothing_to_read_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/readme.md").write_text("no image")
    with pytest.raises(BadData, match=r"empty: there are no items in it\. Give a folder of images"):
        read_items(tmp_path / "empty")
    with pytest.raises(BadData, match="there are no items"):
        read_items(write(tmp_path / "t.jsonl", "\n"))
    with pytest.raises(BadData, match="there are no items"):
        read_items(write(tmp_path / "t.csv", "id,text\n"))
    with pytest.raises(BadData, match="no such file or folder"):
        read_items(tmp_path / "nowhere")


cells = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0")).filter(
    lambda text: bool(text.replace('"', "").strip())
)


@settings(deadline=None)
@given(st.lists(cells, min_size=1, max_size=5))
def test_any_text_survives_every_kind_of_table(tmp_path_factory, texts):
    folder = tmp_path_factory.mktemp("tables")
    quoted = (text.replace('"', '""') for text in texts)
    write(folder / "t.csv", "text\n" + "".join(f'"{text}"\n' for text in quoted))
    write(folder / "t.jsonl", "".join(json.dumps({"text": text}) + "\n" for text in texts))
    pq.write_table(pa.table({"text": texts}), folder / "t.parquet")
    for name in ("t.csv", "t.jsonl", "t.parquet"):
        assert [item.text for item in good(folder / name)] == texts


class TestJsonArrays:
    ROWS: ClassVar = [{"id": f"r{n}", "text": f"text {n} ü", "n": n, "of": {"list": [1, "]", {}]}} for n in range(300)]

    @pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
    @pytest.mark.parametrize("indent", [None, 2])
    @pytest.mark.parametrize("block", [1, 7, 1 << 16])
    def test_an_array_is_read_as_lines_are(self, tmp_path, name, indent, block, monkeypatch):
        monkeypatch.setattr(json_array, "_BLOCK", block)
        write(tmp_path / "lines.jsonl", "\n".join(map(json.dumps, self.ROWS)).encode())
        array = write(tmp_path / name, b"\xef\xbb\xbf \n" + json.dumps(self.ROWS, indent=indent).encode() + b"\n")
        assert list(read_items(array)) == list(read_items(tmp_path / "lines.jsonl"))

    def test_lines_in_a_json_file_are_read(self, tmp_path):
        assert split(write(tmp_path / "a.json", b'{"id": "a", "text": "x"}\n{"id": "b", "text": "y"}'))[0] == ["a", "b"]

    def test_candidates_of_mbeir_may_be_an_array(self, tmp_path):
        (item,) = read_items(write(tmp_path / "a.json", b'[{"did": "9:1", "txt": "x", "img_path": null}]'))
        assert (item.id, item.text) == ("9:1", "x")

    def test_a_bad_element_does_not_stop_the_others(self, tmp_path):
        ids, bad = split(
            write(tmp_path / "a.json", b'[{"id": "a", "text": "x"}, 5, {"id": "b"}, {"id": "c", "text": "y"}]')
        )
        assert ids == ["a", "c"]
        assert [one.id for one in bad] == ["a.json#2", "b"]
        assert "must be an object" in bad[0].reason
        assert "row 3" in bad[1].reason

    @pytest.mark.parametrize(
        "rest", [b"", b",", b", {", b" {}", b", {}] more", b", {} x", b", nul]", b",]", b", " + b"[" * 100_000]
    )
    def test_what_follows_a_syntax_error_is_reported(self, tmp_path, rest):
        ids, bad = split(write(tmp_path / "a.json", b'[{"id": "a", "text": "x"}' + rest))
        assert ids == ["a"]
        assert "all rows after it cannot be read" in bad[-1].reason
        assert "a.json, row" in bad[-1].reason

    @pytest.mark.parametrize("content", [b"[", b"[nothing]", b"[,]", b"[nul"])
    def test_a_file_that_is_no_array_is_refused(self, tmp_path, content):
        with pytest.raises(BadData, match=r"a\.json, row 1: the file is not a JSON array"):
            list(read_items(write(tmp_path / "a.json", content)))

    def test_an_empty_array_has_no_items(self, tmp_path):
        with pytest.raises(BadData, match="no items"):
            read_items(write(tmp_path / "a.json", b" [ ] "))

    @pytest.mark.parametrize("content", [b'{\n "items": []\n}', b"words", b'"text"', b"12"])
    def test_other_json_is_refused(self, tmp_path, content):
        with pytest.raises(BadData, match="neither an array of objects"):
            read_items(write(tmp_path / "a.json", content))

    def test_one_element_is_held_at_a_time(self, tmp_path, monkeypatch):
        monkeypatch.setattr(json_array, "_BLOCK", 1000)
        monkeypatch.setattr(json_array, "MAX_ELEMENT", 5000)
        rows = [{"id": str(n), "text": "x" * 500} for n in range(1000)]
        assert len(split(write(tmp_path / "a.json", json.dumps(rows).encode()))[0]) == 1000
        rows[500]["text"] = "x" * 20_000
        ids, bad = split(write(tmp_path / "b.json", json.dumps(rows).encode()))
        assert len(ids) == 500
        assert "not complete after 5,000 characters" in bad[0].reason


def test_heic_files_of_a_folder_are_named_not_skipped(tmp_path):
    (tmp_path / "photo.HEIC").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(99))
    (item,) = read_items(tmp_path)
    with pytest.raises(BadImage, match=r"photo.HEIC: HEIC images are not supported. Convert it to JPEG"):
        load_image(item.image)
