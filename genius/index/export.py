"""Export: the items of an index as files that other programs can read, and `genius index add` too.

Three formats: JSONL, Parquet, and an M-BEIR candidate pool. Items are read and written a few at a time, so an index of
any size will do, and what is half written is never left behind. Knows nothing of models, codes or searching: vectors
are not exported, they are made again from the content.
"""

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from genius.data.images import FORMATS as IMAGE_FORMATS
from genius.data.items import Item
from genius.errors import BadData, BadIndex, BadItem, GeniusError
from genius.runtime.progress import show_progress

if TYPE_CHECKING:
    from genius.index.index import Index

FORMATS = ("jsonl", "parquet", "mbeir")
POOL = "cand_pool/global/mbeir_union_test_cand_pool.jsonl"
"""Where the pool stands in an exported M-BEIR folder."""

_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", "": "mbeir"}
_COLUMNS = ["id", "text", "image", "image_bytes", "metadata"]
_ROWS = 256  # read together: each may hold a whole image
_GROUP_ROWS, _GROUP_BYTES = 16_384, 64 << 20  # of Parquet: written together as soon as one of the two is reached
_MBEIR_KEYS = frozenset(("did", "id", "txt", "img_path", "modality", "src_content"))


@dataclass(frozen=True)
class ExportReport:
    """What was exported.

    images: how many images were written; of equal image files there is one.
    without_content: items added as ready vectors, which have neither text nor image; an M-BEIR pool leaves them out.
    bad: items whose image could not be copied; they are there with the path of their image.
    """

    items: int
    images: int
    without_content: int
    bad: list[BadItem]


def export(
    index: "Index",
    path: str | os.PathLike[str],
    format: str | None = None,
    copy_images: bool = False,
    progress: bool = False,
) -> ExportReport:
    """Write all items of the index to `path`, which must not exist yet.

    format: without it, the ending of `path` decides.
      "jsonl": a line an item: id, text, image, metadata. Images that the index keeps go to the folder NAME_images.
      "parquet": the columns id, text, image (a struct of bytes and path) and metadata (JSON).
      "mbeir": a folder with a candidate pool and images. Metadata fields stand beside M-BEIR's own, but for those
        that have the name of one.
    copy_images: write copies of the images of which the index only has the paths, so that the export can be moved.
    """
    path = Path(path)
    kind = format or _SUFFIXES.get(path.suffix.lower())
    if kind not in FORMATS:
        what = f"{path} does not end in .jsonl or .parquet" if format is None else f"There is no format {format!r}"
        raise GeniusError(f"{what}. Choose one of the formats {', '.join(FORMATS)}.")
    images = path.with_name(f"{path.stem}_images")
    for target in (path, images) if kind == "jsonl" else (path,):
        if target.exists():
            raise BadData(f"{target} exists already. Choose another name, or remove it first.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            unfinished = Path(folder, path.name)
            writer = _WRITERS[kind](unfinished)
            report = _write(index, writer, copy_images, progress)
            for made in sorted(Path(folder).iterdir(), key=lambda made: made == unfinished):  # the table last
                os.replace(made, path.parent / made.name)
    except OSError as error:
        raise BadData(
            f"{path} could not be written ({error}). Nothing is left of it; check the disk's space and permissions."
        ) from error
    return report


@dataclass(frozen=True)
class _Row:
    """An item on its way out. image: its bytes, where they are to be written; path: of its file, if it has one."""

    id: str
    text: str | None
    path: str | None
    image: bytes | None
    metadata: str

    @property
    def has_content(self) -> bool:
        return self.text is not None or self.path is not None or self.image is not None


class _Writer(Protocol):
    @property
    def images(self) -> int:
        """Images written so far."""
        ...

    def write(self, row: _Row) -> bool:
        """False where the format has no place for the item."""
        ...

    def close(self) -> None: ...


def _write(index: "Index", writer: _Writer, copy_images: bool, progress: bool) -> ExportReport:
    items = without_content = 0
    bad: list[BadItem] = []
    with _closing(writer), show_progress("exporting", len(index), progress) as advance:
        for row in _rows(index, copy_images, bad):
            without_content += not row.has_content
            items += writer.write(row)
            advance(1)
    return ExportReport(items, writer.images, without_content, bad)


@contextmanager
def _closing(writer: _Writer) -> Iterator[None]:
    try:
        yield
    finally:
        writer.close()


def _rows(index: "Index", copy_images: bool, bad: list[BadItem]) -> Iterator[_Row]:
    for batch in _batches(index):
        for row in batch.to_pylist():
            image = row["image_bytes"]
            if image is None and row["image"] is not None and copy_images:
                try:
                    image = Path(row["image"]).read_bytes()
                except OSError as error:
                    bad.append(BadItem(row["id"], f"{row['image']} cannot be read ({error.strerror}). Put it back."))
            yield _Row(row["id"], row["text"], row["image"], image, row["metadata"])


def _batches(index: "Index") -> Iterator[pa.RecordBatch]:
    batches = iter(index.dataset.to_batches(columns=_COLUMNS, batch_size=_ROWS))
    while True:
        try:
            batch = next(batches, None)
        except (OSError, ValueError) as error:
            raise BadIndex(
                f"Some of the items in {index.path} cannot be read. Run `genius index verify {index.path}`: it names "
                "the damaged files, and what can be done."
            ) from error
        if batch is None:
            return
        yield batch


class _Images:
    """A folder of images, named by their content: of equal ones there is one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.count = 0

    def write(self, image: bytes) -> str:
        """The path of the image, from the folder that holds this one."""
        name = hashlib.blake2b(image, digest_size=16).hexdigest()
        file = self._folder / name[:2] / f"{name[2:]}{_suffix(image)}"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(image)
            self.count += 1
        return file.relative_to(self._folder.parent).as_posix()


def _suffix(content: bytes) -> str:
    try:
        with Image.open(io.BytesIO(content), formats=IMAGE_FORMATS) as image:
            return f".{(image.format or 'img').lower()}"
    except Exception:  # parsers raise many kinds; a copied file may be anything by now
        return ".img"


class _Jsonl:
    def __init__(self, path: Path) -> None:
        self._file: IO[str] = open(path, "w", encoding="utf-8", newline="\n")  # noqa: SIM115 (closed by `close`)
        self._images = _Images(path.with_name(f"{path.stem}_images"))

    @property
    def images(self) -> int:
        return self._images.count

    def write(self, row: _Row) -> bool:
        image = row.path if row.image is None else self._images.write(row.image)
        _dump(self._file, {"id": row.id, "text": row.text, "image": image, "metadata": json.loads(row.metadata)})
        return True

    def close(self) -> None:
        self._file.close()


class _Mbeir:
    def __init__(self, root: Path) -> None:
        pool = root / POOL
        pool.parent.mkdir(parents=True)
        self._file: IO[str] = open(pool, "w", encoding="utf-8", newline="\n")  # noqa: SIM115 (closed by `close`)
        self._images = _Images(root / "mbeir_images")

    @property
    def images(self) -> int:
        return self._images.count

    def write(self, row: _Row) -> bool:
        if not row.has_content:
            return False
        image = row.path if row.image is None else self._images.write(row.image)
        modality = Item(row.id, row.text, image).modality.label
        more = {key: value for key, value in json.loads(row.metadata).items() if key not in _MBEIR_KEYS}
        candidate = {"did": row.id, "txt": row.text, "img_path": image, "modality": modality, "src_content": None}
        _dump(self._file, candidate | more)
        return True

    def close(self) -> None:
        self._file.close()


class _Parquet:
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

    def write(self, row: _Row) -> bool:
        image = None if row.path is None and row.image is None else {"bytes": row.image, "path": row.path}
        self._rows.append({"id": row.id, "text": row.text, "image": image, "metadata": row.metadata})
        self.images += row.image is not None
        self._bytes += len(row.image or b"") + len(row.text or "") + len(row.metadata)
        if len(self._rows) >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._flush()
        return True

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_pylist(self._rows, self.SCHEMA))
        self._rows, self._bytes = [], 0

    def close(self) -> None:
        if self._rows:
            self._flush()
        self._writer.close()


_WRITERS: dict[str, Callable[[Path], _Writer]] = {"jsonl": _Jsonl, "parquet": _Parquet, "mbeir": _Mbeir}


def _dump(file: IO[str], row: dict[str, Any]) -> None:
    file.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
