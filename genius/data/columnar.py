"""Rows of Parquet files and Lance datasets, all or a range of them, at a path or URL."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from genius.data import tables
from genius.data.items import Item, printable
from genius.data.locations import file_name, is_url, open_file, parent
from genius.data.rows import CONTENT_COLUMNS, check_columns, item_from_row
from genius.data.tables import Place, cells, known_name
from genius.errors import BadData, BadItem

_BATCH = 64  # rows read at once: they may hold whole images


def count_parquet(path: str) -> int:
    """Number of rows of a Parquet file."""
    with open_file(path) as file:
        return int(pq.ParquetFile(file).metadata.num_rows)


def read_parquet(path: str, start: int = 0, count: int | None = None) -> Iterator[Item | BadItem]:
    """Read items of a Parquet file. start, count: the range of rows.

    Raises:
        BadData: The file is not Parquet, or has no columns of an item.
    """
    rows = tables.read_parquet(path, CONTENT_COLUMNS, partial(check_columns, path), start, count)
    return (row if isinstance(row, BadItem) else item_from_row(row[1], row[0], _root(path)) for row in rows)


# Lance


def is_lance(path: Path) -> bool:
    """Whether a folder is a Lance dataset."""
    return (path / "_versions").is_dir()


def count_lance(uri: str) -> int:
    """Number of rows of a Lance dataset."""
    import lance

    return int(lance.dataset(uri).count_rows())


def lance_version(uri: str) -> int:
    """Number of the latest version of a Lance dataset. Raises BadData."""
    import lance

    try:
        return int(lance.dataset(uri).version)
    except (OSError, ValueError) as error:
        raise BadData(
            f"{printable(uri)} is not a Lance dataset, or cannot be read ({error}). Check the path."
        ) from error


def read_lance(
    uri: str, start: int = 0, count: int | None = None, version: int | None = None
) -> Iterator[Item | BadItem]:
    """Read rows of a Lance dataset. start, count: the range of rows.

    Raises:
        BadData: The dataset cannot be read, or has no columns of an item.
    """
    import lance

    number = start
    try:
        dataset = lance.dataset(uri, version=version)
        names = {name: known_name(name, CONTENT_COLUMNS) for name in dataset.schema.names}
        check_columns(uri, list(names.values()))
        columns = [field.name for field in dataset.schema if names[field.name] == "image" or not _is_binary(field)]
        batches = dataset.scanner(columns, offset=start, limit=count, batch_size=_BATCH, scan_in_order=True)
        for batch in batches.to_batches():
            for row in batch.to_pylist():
                number += 1
                place = Place(Path(file_name(uri)), number)
                yield item_from_row(cells(row, {name: names[name] for name in row}, CONTENT_COLUMNS), place, _root(uri))
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = f"the dataset is damaged or not a Lance dataset ({' '.join(str(error).split())}). Write it again."
        if number == 0:
            raise BadData(f"{printable(uri)}: {reason}") from error
        place = Place(Path(file_name(uri)), number + 1)
        yield BadItem(place.id, f"{place} and all rows after it cannot be read: {reason}")


def _is_binary(field: pa.Field) -> bool:
    """Whether a column holds vectors or bytes, which are no metadata."""
    type = field.type
    return bool(
        pa.types.is_fixed_size_list(type)
        or pa.types.is_binary(type)
        or pa.types.is_large_binary(type)
        or pa.types.is_fixed_size_binary(type)
    )


def _root(path: str) -> str:
    """The folder that image paths are relative to."""
    return parent(path) if is_url(path) else str(Path(path).parent)
