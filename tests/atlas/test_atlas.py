import json
import re
from pathlib import Path

import pytest
from fakes import tiny_model
from typer.testing import CliRunner

from genius import Index
from genius.atlas.page import render_page
from genius.atlas.writing import write_atlas
from genius.cli.app import app
from genius.errors import GeniusError


def test_the_json_describes_the_tree(index, atlas_folder: Path):
    content = json.loads((atlas_folder / "atlas.json").read_text())
    assert content["items"] == len(index)
    assert content["modalities"] == {"image": 36, "text": 39, "image,text": 36}
    assert sum(node["items"] for node in content["nodes"] if len(node["codes"]) == 1) == len(index)
    for node in content["nodes"] + content["codes"]:
        assert all(0 <= place < len(content["examples"]) for place in node["examples"])
        assert all(0 <= here <= 1 and 0 <= elsewhere <= 1 for _, here, elsewhere in node["name"])


def test_the_page_loads_nothing_and_holds_its_data(atlas_folder: Path):
    page = (atlas_folder / "atlas.html").read_text()
    assert not re.findall(r"(?:src|href)=[\"']?(?!data:)https?:", page)
    assert "default-src 'none'" in page
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert json.loads(data[1]) == json.loads((atlas_folder / "atlas.json").read_text())
    assert page.count("</script>") == 3


def test_thumbnails_stop_where_the_page_is_full(index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("genius.atlas.writing.PAGE_BYTES", 0)
    monkeypatch.setattr("genius.atlas.writing.MIN_ROOM", 5000)
    write_atlas(index, tmp_path)
    thumbnails = re.search(r'id="thumbnails">(.*?)</script>', (tmp_path / "atlas.html").read_text())[1]
    assert 0 < len(thumbnails) <= 5200


def test_a_placeholder_inside_the_data_stays_data():
    page = render_page({"index": "%%script%%", "x": "</script>"}, {})
    assert '"index":"%%script%%"' in page
    assert "<title>Atlas of %%script%%</title>" in page


def test_an_empty_index_is_refused_with_a_sentence(tmp_path: Path):
    with pytest.raises(GeniusError, match="is empty"):
        write_atlas(Index.create(tmp_path / "empty.genius", tiny_model()), tmp_path / "out")


def test_the_command(index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("genius.cli.atlas.open_index", lambda path: index)
    result = CliRunner().invoke(app, ["atlas", str(index.path), "--out", str(tmp_path / "made")])
    assert result.exit_code == 0, result.output
    assert "111 items" in result.output
    assert {file.name for file in (tmp_path / "made").iterdir()} == {"atlas.html", "atlas.json"}


def test_models_cannot_be_compared_without_queries(index, tmp_path: Path):
    with pytest.raises(GeniusError, match="Give queries as well"):
        write_atlas(index, tmp_path, compare={"other": tiny_model(1)})
