"""The benchmark of icons: names find icons and icons names, drawn in black on white."""

import io
import json
import sys
import tarfile
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("resvg_py")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import icons

from genius.data.mbeir import Benchmark, Task
from genius.data.mbeir_check import check

SVG = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24"><path d="M2,2H{n}V12H2Z"/></svg>'


def write_archive(path: Path, count: int) -> Path:
    """A package with rectangles of different widths."""
    meta = [{"name": f"bar-{n}", "aliases": [f"beam_{n}"], "tags": ["Shape", "Home / Garden"]} for n in range(count)]
    files = {"meta.json": json.dumps(meta)} | {f"svg/bar-{n}.svg": SVG.format(n=n + 4) for n in range(count)}
    with tarfile.open(path, "w:gz") as package:
        for name, text in files.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(text)
            package.addfile(member, io.BytesIO(text.encode()))
    return path


def test_names_aliases_and_tags_find_icons(tmp_path: Path) -> None:
    report = icons.make(write_archive(tmp_path / "mdi.tgz", 15), tmp_path / "out")
    assert not report.bad
    assert check(tmp_path / "out", own=True).whole
    bench = Benchmark(tmp_path / "out")
    texts = {query.text for split in bench.splits() for query in bench.queries(Task("icons", 0), split)}
    assert {"bar 3", "beam 3", "bar 3 (Shape, Home and Garden)"} <= texts
    assert len(texts) == 45
    assert [len(bench.queries(Task("icons", 3), split)) for split in ("train", "val", "test")] == [10, 2, 3]
    first = next(bench.pool(Task("icons", 0), "test"))
    with Image.open(str(bench.image(first.image_path))) as image:
        assert image.size == (icons.SIDE, icons.SIDE)
        assert image.convert("L").getextrema() == (0, 255)
        assert image.convert("L").getpixel((0, 0)) == 255
