"""Material Design icons as a benchmark: a collection unlike the one that the bundled model was trained on.

    python benchmarks/icons.py OUT

renders the icons of the npm package @mdi/svg (Apache 2.0) in black on white, and makes a benchmark in M-BEIR layout
with `genius.data.dataset`: the name, the aliases and the tags of an icon -> the icon, and the icon -> its names.
Needs npm (to download the package, unless --archive names it) and the extra `demo` (resvg-py).
"""

import argparse
import io
import json
import re
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import resvg_py
from PIL import Image
from rich.console import Console
from rich.progress import track

from genius.data.dataset import DatasetReport, make_dataset
from genius.data.items import Item, Query
from genius.data.pairs import Pair

PACKAGE = "@mdi/svg@7.4.47"
SIDE = 224
console = Console()


def download(folder: Path) -> Path:
    """Download the package with npm; return the archive."""
    console.print(f"Downloading {PACKAGE} with npm.")
    done = subprocess.run(["npm", "pack", PACKAGE, "--json"], cwd=folder, capture_output=True, text=True, check=True)
    return folder / json.loads(done.stdout)[0]["filename"]


def render(svg: str) -> bytes:
    """Draw an icon in black on white; return a PNG file."""
    drawn = resvg_py.svg_to_bytes(svg_string=svg, width=SIDE, height=SIDE, background="#ffffff")
    png = io.BytesIO()
    Image.open(io.BytesIO(bytes(drawn))).convert("L").save(png, "PNG")
    return png.getvalue()


def words(name: str) -> str:
    """'account-arrow-left' -> 'account arrow left'."""
    return re.sub(r"[-_\s]+", " ", name).strip()


def texts(icon: dict[str, Any]) -> list[str]:
    """The name, each alias, and the name with its tags."""
    name, tags = words(icon["name"]), ", ".join(tag.replace(" / ", " and ") for tag in icon["tags"])
    return [name, *map(words, icon["aliases"]), *([f"{name} ({tags})"] if tags else [])]


def make(archive: Path, out: Path, limit: int | None = None) -> DatasetReport:
    """Make the benchmark from the archive of the package."""
    files: dict[str, bytes] = {}
    with tarfile.open(archive) as package:  # in one pass: to go back is slow in a compressed archive
        for member in package:
            if (file := package.extractfile(member)) is not None:
                files[member.name] = file.read()
    icons = json.loads(files["package/meta.json"])[:limit]

    def items() -> Iterator[Item]:
        for icon in track(icons, "rendering", console=console):
            yield Item(icon["name"], image=render(files[f"package/svg/{icon['name']}.svg"].decode()))

    pairs = [Pair(Query(text), icon["name"]) for icon in icons for text in texts(icon)]
    return make_dataset(out, items(), pairs, both_ways=True, test=0.2, name="icons")


def main() -> None:
    """Parse the options and make the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder to create")
    parser.add_argument("--archive", type=Path, help="the package as npm pack writes it; downloaded if missing")
    parser.add_argument("--limit", type=int, help="the first icons only")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        archive = options.archive
        if archive is None or not archive.is_file():
            archive = download(Path(folder))
        report = make(archive, options.out, options.limit)
    for row in report.rows:
        console.print(f"{row.split}: {row.task.name}, {row.queries} queries, {row.candidates} candidates")
    console.print(
        f"{report.merged} icons are identical to another one; {report.divided} queries have icons in several splits; "
        f"{report.one_way} pairs are searched in one direction; {len(report.bad)} bad."
    )


if __name__ == "__main__":
    main()
