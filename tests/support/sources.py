"""Sources of every kind with the same sort of items: small images, captions and metadata."""

import csv
import io
import json
import tarfile
from pathlib import Path

import lance
import pyarrow as pa
import pyarrow.parquet as pq
from fakes import draw_image

COLOURS = ("red", "green", "blue", "white", "black", "orange", "purple")


def png(number: int) -> bytes:
    file = io.BytesIO()
    draw_image(COLOURS[number % len(COLOURS)]).resize((20 + number, 24)).save(file, "PNG")
    return file.getvalue()


def write_folder(root: Path, count: int = 12) -> Path:
    """Images, half of them in a subfolder; some with captions. A text alone, and a file that is no image."""
    (root / "sub").mkdir(parents=True)
    for number in range(count):
        image = root / ("sub" if number % 2 else ".") / f"{number:03}.png"
        image.write_bytes(png(number))
        if number % 3 == 0:
            image.with_suffix(".txt").write_text(f"caption {number}")
        elif number % 3 == 1:
            image.with_suffix(".json").write_text(json.dumps({"caption": f"words {number}", "shelf": number}))
    (root / "sub" / "note.txt").write_text("a text alone")
    (root / "broken.jpg").write_bytes(b"no image")
    return root


def write_csv(path: Path, count: int = 30) -> Path:
    """Rows whose later ones have another field; an id that comes again with other text, one again the same, a blank."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "text", "year", "mark"])
        for number in range(count):
            rows.writerow([f"t{number}", f"a text about {number} cats", 1990 + number, "late" if number > 20 else ""])
        rows.writerow(["t3", "another text", "", ""])
        rows.writerow(["t4", "a text about 4 cats", 1994, ""])
        rows.writerow(["", "", 1, ""])
    return path


def table(count: int) -> pa.Table:
    return pa.table(
        {
            "id": [f"p{number}" for number in range(count)],
            "caption": [f"row {number}" if number % 2 else None for number in range(count)],
            "image": [png(number) if number % 4 else b"damaged" for number in range(count)],
            "vector": pa.array([[float(number)] * 4 for number in range(count)], pa.list_(pa.float32(), 4)),
            "year": [str(number) for number in range(count)],
        }
    )


def write_parquet(path: Path, count: int = 25) -> Path:
    """Images as bytes, in row groups of seven; a field that is a number in other sources is a text here."""
    pq.write_table(table(count).drop(["vector"]), path, row_group_size=7)
    return path


def write_lance(path: Path, count: int = 15) -> Path:
    """Images as bytes and a column of vectors, in two fragments."""
    rows = table(count)
    rows = rows.set_column(0, "id", pa.array([f"l{number}" for number in range(count)]))
    lance.write_dataset(rows, path, max_rows_per_file=9)
    return path


def write_tar(path: Path, count: int = 10) -> Path:
    """A WebDataset shard: image, text and JSON of an item follow each other."""
    with tarfile.open(path, "w") as tar:
        for number in range(count):
            files = {"png": png(number), "cls": str(number).encode()}
            if number % 2:
                files["txt"] = f"sample {number}".encode()
            if number % 3 == 0:
                files["json"] = json.dumps({"caption": f"described {number}", "year": number}).encode()
            for suffix, content in files.items():
                member = tarfile.TarInfo(f"train/{number:04}.{suffix}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return path


def write_all(root: Path) -> list[Path]:
    """One source of each kind."""
    root.mkdir(parents=True, exist_ok=True)
    return [
        write_folder(root / "folder"),
        write_csv(root / "rows.csv"),
        write_parquet(root / "rows.parquet"),
        write_lance(root / "rows.lance"),
        write_tar(root / "shard-000.tar"),
    ]
