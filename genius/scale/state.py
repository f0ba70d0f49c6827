"""State of a build that can be interrupted: its blocks, and which of them are written.

It is the folder `build` of the index. The plan is made once, so that a repeated command finds the same blocks, also if
the sources have changed. The driver records a block when its worker has reported it; what a killed worker left behind
belongs to no block, and is removed.
"""

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from genius.data.items import Item
from genius.data.parts import Part, read_part, split_source
from genius.errors import BadItem
from genius.index.checksums import Checksum, Checksums
from genius.index.ingest import COMMIT
from genius.index.storage import FIELD_TYPES, Header, field_columns

FOLDER = "build"
"""Name of the folder in the index."""

Fields = dict[str, str]
"""Types of metadata fields, in the order of their columns."""


@dataclass(frozen=True)
class Chunk:
    """Rows of a block that are in one fragment.

    Attributes:
        fragment: The fragment, as Lance writes it in JSON.
        checksums: Size and CRC-32 by path of its files.
        fields: The metadata fields that have columns.
        rows: Number of rows.
    """

    fragment: dict[str, Any]
    checksums: dict[str, list[int]]
    fields: list[list[str]]
    rows: int

    @property
    def file(self) -> str:
        """Path of the data file in the dataset."""
        return f"data/{self.fragment['files'][0]['path']}"

    def recorded(self) -> Checksums:
        """The checksums."""
        return {path: Checksum(*values) for path, values in self.checksums.items()}


@dataclass
class Block:
    """A part of a source as it was written.

    Attributes:
        chunks: Its rows, in order.
        bad: Id and reason of items that cannot be indexed.
        unchanged: Number of items that were left out because an equal item came before.
    """

    chunks: list[Chunk]
    bad: list[list[str]]
    unchanged: int = 0

    @property
    def items(self) -> int:
        """Number of items that the block was made of."""
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

    Attributes:
        folder: The folder.
        blocks: Number of blocks.
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
        """Split the sources into blocks of at most `size` items, and write the plan.

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
        """The part of a source that a block is made of. Workers call it."""
        return Part.from_dict(json.loads(_part(index / FOLDER, number).read_bytes()))

    def record(self, number: int, block: Block) -> None:
        """Remember a block that is written."""
        _write(self.folder / "done" / f"{number:08}.json", block.to_json())
        self.done[number] = block

    def waiting(self) -> list[int]:
        """Numbers of the blocks that are not written yet."""
        return [number for number in range(self.blocks) if number not in self.done]

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def first_fields(part: Part, header: Header) -> Fields:
    """The metadata fields of the first items, as a first commit would give them columns."""
    items = [item for item in islice(read_part(part), COMMIT) if not isinstance(item, BadItem)]
    return fields_of(items, header)


def fields_of(items: Iterable[Item], header: Header) -> Fields:
    """The metadata fields of items, with their types."""
    columns = field_columns([item.metadata for item in items], {}, header.schema().names)
    names = {type: name for name, type in FIELD_TYPES.items()}
    return {name: names[column.type] for name, column in columns.items()}


def _part(folder: Path, number: int) -> Path:
    return folder / "parts" / f"{number:08}.json"


def _write(path: Path, text: str) -> None:
    """Write a file atomically and bring it to the disk."""
    temporary = path.with_suffix(".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
