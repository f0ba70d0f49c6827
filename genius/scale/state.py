"""State of a build that can be interrupted: its blocks, and which of them are written.

It is stored in the folder `build` of the index. The plan is made once, so that a repeated command finds the same blocks
even if the sources have changed. The driver records a block when its worker has reported it. Files of a killed worker
belong to no block and are removed.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from genius.data.parts import Part, read_part, split_source
from genius.errors import BadItem
from genius.index.checksums import Checksum, Checksums
from genius.index.ingest import COMMIT
from genius.index.storage import FIELD_TYPES, Header, field_columns

FOLDER = "build"
"""Name of the folder in the index."""

Fields = dict[str, str]
"""Types of metadata fields by name, in the order of their columns."""
ChunkKey = tuple[int, int]
"""Number of a block, and position of a chunk in it."""


@dataclass(frozen=True)
class Chunk:
    """Rows of a block that are in one fragment.

    Attributes:
        fragment: The fragment as Lance describes it in JSON.
        checksums: Size and CRC-32 of its files, by path.
        fields: Name and type of the metadata fields that have columns.
        rows: Number of rows.
    """

    fragment: dict[str, Any]
    checksums: dict[str, list[int]]
    fields: list[list[str]]
    rows: int

    @property
    def file(self) -> str:
        """Path of the data file in the Lance dataset."""
        return f"data/{self.fragment['files'][0]['path']}"

    def recorded(self) -> Checksums:
        """The checksums in the form that an index records."""
        return {path: Checksum(*values) for path, values in self.checksums.items()}

    @classmethod
    def from_json(cls, text: str) -> "Chunk":
        """The inverse of `to_json`."""
        return cls(**json.loads(text))

    def to_json(self) -> str:
        """The chunk as JSON."""
        return json.dumps(asdict(self))


@dataclass
class Block:
    """A part of a source that is written.

    Attributes:
        chunks: Its rows, in order.
        bad: Id and reason of each item that cannot be indexed.
        unchanged: Number of items that were left out because they are equal to an earlier item.
    """

    chunks: list[Chunk]
    bad: list[list[str]]
    unchanged: int = 0

    @property
    def items(self) -> int:
        """Number of items in the part of the source."""
        return sum(chunk.rows for chunk in self.chunks) + len(self.bad) + self.unchanged

    @classmethod
    def from_json(cls, text: str | bytes) -> "Block":
        """The inverse of `to_json`."""
        values = json.loads(text)
        return cls([Chunk(**chunk) for chunk in values["chunks"]], values["bad"], values["unchanged"])

    def to_json(self) -> str:
        """The block as JSON."""
        return json.dumps(asdict(self))


class BuildState:
    """The folder `build` of an index.

    Args:
        index: Folder of the index.

    Attributes:
        folder: The folder `build`.
        blocks: Number of blocks; 0 if there is no plan.
        items: Number of items in all blocks; None if it is unknown.
        fields: Metadata fields of the first items, which decide the types of their columns.
        done: The blocks that are written, by number.
    """

    def __init__(self, index: Path) -> None:
        self.folder = index / FOLDER
        self.blocks = 0
        self.items: int | None = None
        self.fields: Fields = {}
        self.done: dict[int, Block] = {}
        self._read()

    def _read(self) -> None:
        try:
            plan = json.loads((self.folder / "plan.json").read_bytes())
        except FileNotFoundError:
            return
        self.blocks, self.items, self.fields = plan["blocks"], plan["items"], dict(plan["fields"])
        for name in sorted(os.listdir(self.folder / "done")):
            if name.endswith(".json"):
                self.done[int(name[:-5])] = Block.from_json((self.folder / "done" / name).read_bytes())

    @property
    def planned(self) -> bool:
        """Whether there is a plan."""
        return self.blocks > 0

    def plan(self, sources: Iterable[str | os.PathLike[str]], size: int, header: Header) -> None:
        """Split the sources into blocks, and write the plan.

        Args:
            sources: Folders, files and URLs.
            size: Maximum number of items of a block.
            header: Header of the index.

        Raises:
            BadData: A source has no items or cannot be read.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "done").mkdir(parents=True)
        (self.folder / "parts").mkdir()
        count, known = 0, True
        opened = [split_source(source, size) for source in sources]  # a wrong path is an error before anything is read
        number = 0
        fields: Fields = {}
        for parts in opened:
            for part in parts:
                if number == 0:
                    fields = first_fields(part, header)
                _write(_part(self.folder, number), json.dumps(asdict(part)))
                known = known and part.count is not None
                count += part.count or 0
                number += 1
        plan = {"blocks": number, "items": count if known else None, "fields": list(fields.items())}
        _write(self.folder / "plan.json", json.dumps(plan))  # last: an interrupted plan is made again
        self._read()

    @staticmethod
    def read_part(index: Path, number: int) -> Part:
        """Read which part of a source a block is made of. Workers call it; they do not need the rest of the state."""
        return Part.from_dict(json.loads(_part(index / FOLDER, number).read_bytes()))

    def record(self, number: int, block: Block) -> None:
        """Record that a block is written."""
        _write(self.folder / "done" / f"{number:08}.json", block.to_json())
        self.done[number] = block

    def waiting(self) -> list[int]:
        """Numbers of the blocks that are not written yet."""
        return [number for number in range(self.blocks) if number not in self.done]

    def chunks(self) -> Iterator[tuple[ChunkKey, Chunk]]:
        """The chunks of all written blocks, in the order of the sources."""
        for number, block in sorted(self.done.items()):
            for place, chunk in enumerate(block.chunks):
                yield (number, place), chunk

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def first_fields(part: Part, header: Header) -> Fields:
    """The metadata fields that the first commit of `Index.add` would give columns."""
    items = [item for item in islice(read_part(part), COMMIT) if not isinstance(item, BadItem)]
    return column_types(field_columns([item.metadata for item in items], {}, header.schema().names))


def column_types(columns: Mapping[str, pa.Array]) -> Fields:
    """Types of the metadata fields in some columns."""
    names = {type: name for name, type in FIELD_TYPES.items()}
    return {name: names[column.type] for name, column in columns.items()}


def _part(folder: Path, number: int) -> Path:
    return folder / "parts" / f"{number:08}.json"


def _write(path: Path, text: str) -> None:
    """Write a file atomically and flush it to disk."""
    temporary = path.with_suffix(".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
