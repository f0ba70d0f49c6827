"""Export: write the items of an index to CSV, JSONL, Parquet or an M-BEIR candidate pool.

Items are read and written a few at a time. The result appears under its name only when it is complete.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from genius.data.csv_writer import CsvWriter
from genius.data.image_folder import ImageFolder
from genius.data.items import Item
from genius.errors import BadData, BadItem, GeniusError
from genius.index.snapshot import Snapshot
from genius.index.storage import metadata_fields
from genius.runtime.progress import show_progress

FORMATS = ("csv", "jsonl", "parquet", "mbeir")
POOL = "cand_pool/global/mbeir_union_test_cand_pool.jsonl"
"""Path of the pool in an exported M-BEIR folder."""

_SUFFIXES = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", "": "mbeir"}
_COLUMNS = ["id", "text", "image", "image_bytes", "metadata"]
_ROWS = 256  # read together: each may hold an image
_GROUP_ROWS, _GROUP_BYTES = 16_384, 64 << 20  # limits of a Parquet row group
_MBEIR_KEYS = frozenset(("did", "id", "txt", "img_path", "modality", "src_content"))


@dataclass(frozen=True)
class ExportReport:
    """Result of `Index.export`.

    Attributes:
        items: Number of items written.
        images: Number of images written. Equal images are written once.
        without_content: Number of items that were added as vectors. An M-BEIR pool leaves them out.
        bad: Items whose image could not be copied. They are written with the path of the image.
    """

    items: int
    images: int
    without_content: int
    bad: list[BadItem]


def export(
    snapshot: Snapshot,
    path: str | os.PathLike[str],
    format: str | None = None,
    where: str | None = None,
    copy_images: bool = False,
    progress: bool = False,
) -> ExportReport:
    """Write items to `path`, which must not exist. See `Index.export`."""
    path = Path(path)
    chosen = format or _SUFFIXES.get(path.suffix.lower())
    if chosen not in FORMATS:
        what = (
            f"{path} does not end in .csv, .jsonl or .parquet" if format is None else f"There is no format {format!r}"
        )
        raise GeniusError(f"{what}. Choose one of the formats {', '.join(FORMATS)}.")
    for target in (path, _images_folder(path)) if chosen in ("csv", "jsonl") else (path,):
        if target.exists():
            raise BadData(f"{target} exists already. Choose another name, or remove it first.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            unfinished = Path(folder, path.name)
            report = _write(snapshot, unfinished, chosen, where, copy_images, progress)
            for made in sorted(Path(folder).iterdir(), key=lambda made: made == unfinished):  # the images first
                os.replace(made, path.parent / made.name)
    except OSError as error:
        raise BadData(
            f"{path} could not be written ({error}). Nothing was written; check the disk's space and permissions."
        ) from error
    return report


class _Writer(Protocol):
    @property
    def images(self) -> int: ...  # written so far

    def write(self, row: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


def _writer(path: Path, format: str, fields: list[str]) -> _Writer:
    if format == "parquet":
        return _ParquetWriter(path)
    return _CsvWriter(path, fields) if format == "csv" else _JsonWriter(path, format == "mbeir")


def _write(
    snapshot: Snapshot, path: Path, format: str, where: str | None, copy_images: bool, progress: bool
) -> ExportReport:
    items = without_content = 0
    bad: list[BadItem] = []
    total = len(snapshot) if where is None else len(snapshot.row_ids(where))
    writer = _writer(path, format, list(metadata_fields(snapshot.dataset, snapshot.header)))
    with closing(writer), show_progress("exporting", total, progress) as advance:
        for row in _rows(snapshot, where, copy_images, bad):
            has_content = any(row[name] is not None for name in ("text", "image", "image_bytes"))
            without_content += not has_content
            if has_content or format != "mbeir":
                writer.write(row)
                items += 1
            advance(1)
    return ExportReport(items, writer.images, without_content, bad)


def _rows(snapshot: Snapshot, where: str | None, copy_images: bool, bad: list[BadItem]) -> Iterator[dict[str, Any]]:
    """Yield the values of _COLUMNS for each item. `image_bytes` has the content of an image that is to be written."""
    for batch in snapshot.batches(_COLUMNS, where, _ROWS):
        for row in batch.to_pylist():
            if copy_images and row["image"] is not None and row["image_bytes"] is None:
                row["image_bytes"] = _read_image(row["id"], row["image"], bad)
            yield row


def _read_image(id: str, path: str, bad: list[BadItem]) -> bytes | None:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        bad.append(BadItem(id, f"{path} cannot be read ({error.strerror}). Put it back."))
        return None


class _CsvWriter:
    """A CSV file, and a folder of images."""

    def __init__(self, path: Path, fields: list[str]) -> None:
        self._images = ImageFolder(_images_folder(path))
        self._file: IO[str] = open(path, "w", encoding="utf-8", newline="")  # noqa: SIM115 (closed by `close`)
        self._table = CsvWriter(self._file, fields)

    @property
    def images(self) -> int:
        return self._images.count

    def write(self, row: dict[str, Any]) -> None:
        image = row["image"] if row["image_bytes"] is None else self._images.save(row["image_bytes"])
        self._table.write(row["id"], row["text"], image, json.loads(row["metadata"]))

    def close(self) -> None:
        self._file.close()


class _JsonWriter:
    """A file with one JSON object per line, and a folder of images."""

    def __init__(self, path: Path, mbeir: bool) -> None:
        self._mbeir = mbeir
        file = path / POOL if mbeir else path
        self._images = ImageFolder(path / "mbeir_images" if mbeir else _images_folder(path))
        file.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[str] = open(file, "w", encoding="utf-8", newline="\n")  # noqa: SIM115 (closed by `close`)

    def write(self, row: dict[str, Any]) -> None:
        id, text, image, metadata = row["id"], row["text"], row["image"], json.loads(row["metadata"])
        if row["image_bytes"] is not None:
            image = self._images.save(row["image_bytes"])
        if self._mbeir:
            modality = Item(id, text, image).modality.label
            values = {"did": id, "txt": text, "img_path": image, "modality": modality, "src_content": None}
            values |= {key: value for key, value in metadata.items() if key not in _MBEIR_KEYS}
        else:
            values = {"id": id, "text": text, "image": image, "metadata": metadata}
        self._file.write(json.dumps(values, ensure_ascii=False, separators=(",", ":")) + "\n")

    @property
    def images(self) -> int:
        return self._images.count

    def close(self) -> None:
        self._file.close()


def _images_folder(path: Path) -> Path:
    return path.with_name(f"{path.stem}_images")


class _ParquetWriter:
    SCHEMA = pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            pa.field("text", pa.string()),
            pa.field("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
            pa.field("metadata", pa.string(), nullable=False),
        ]
    )

    def __init__(self, path: Path) -> None:
        self.images = 0
        self._writer = pq.ParquetWriter(path, self.SCHEMA, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0

    def write(self, row: dict[str, Any]) -> None:
        path, content = row["image"], row["image_bytes"]
        image = None if path is None and content is None else {"bytes": content, "path": path}
        self._rows.append({"id": row["id"], "text": row["text"], "image": image, "metadata": row["metadata"]})
        self.images += content is not None
        self._bytes += len(content or b"") + len(row["text"] or "") + len(row["metadata"])
        if len(self._rows) >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_pylist(self._rows, self.SCHEMA))
        self._rows, self._bytes = [], 0

    def close(self) -> None:
        if self._rows:
            self._flush()
        self._writer.close()
