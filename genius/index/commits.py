"""Commits: changes of an index that are either complete or not there at all, also after a power cut.

Each commit records the checksums of its files.
"""

import errno
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import FragmentMetadata, write_fragments
from lance.optimize import Compaction

from genius.errors import BadIndex, GeniusError
from genius.index.checksums import (
    HINT,
    MANIFESTS,
    TRANSACTIONS,
    Checksums,
    DamagedChecksums,
    compute,
    data_checksums,
    known_checksums,
    manifests,
    read_checksums,
    recorded_versions,
    remove_checksums,
    version_files,
    write_checksums,
)
from genius.index.folder import Folder
from genius.index.lance_errors import lance_errors, lance_reason
from genius.index.storage import ITEMS, Header, has_row_id

MERGED_ROWS = 65_536
"""Files with fewer rows can be merged."""
MAX_SMALL_FILES = 32
"""A commit merges small files as soon as there are this many."""
MERGED_BYTES = 1 << 26
"""A commit does not write merged files larger than this."""
LARGE_ROWS = 1 << 20
"""`compact` merges larger files into ones of this number of rows: reading the rows of hits takes time for each file."""
LARGE_BYTES = 1 << 30
"""`compact` does not write files much larger than this, unless they have fewer than MERGED_ROWS rows."""
MAX_LARGE_FILES = 8
"""`compact` merges larger files as soon as there are this many, so that a row is rewritten only a few times."""

_WRITTEN_FOLDERS = ("data", "_deletions", "_transactions", "_versions")  # the folders that a commit writes to
_STORAGE: dict[str, Any] = {"enable_stable_row_ids": True, "data_storage_version": "2.1"}
_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota is used up",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "there is no permission: the folder is read-only for you",
}


@dataclass(frozen=True)
class CompactReport:
    """Result of `Index.compact`.

    Attributes:
        files_merged: Number of data files that were merged into others.
        versions_removed: Number of versions that were removed.
        bytes_removed: Disk space that was freed.
        versions_kept: Number of older versions that were kept because they are younger than `keep`. The latest
            version, which is always kept, is not counted.
    """

    files_merged: int
    versions_removed: int
    bytes_removed: int
    versions_kept: int


def create_dataset(folder: Folder, header: Header) -> lance.LanceDataset:
    """Create a dataset without rows in a folder."""
    files = _Files(folder)
    dataset = lance.write_dataset(
        header.schema().empty_table(),
        folder.uri(ITEMS),
        mode="create",
        storage_options=folder.storage_options,
        **_STORAGE,
    )
    files.after_commit(dataset)
    return dataset


def change(folder: Folder, dataset: lance.LanceDataset, gone: np.ndarray, table: pa.Table | None) -> lance.LanceDataset:
    """Delete the rows with the row ids `gone` and append the rows of `table` in one commit."""
    files = _Files(folder)
    updated: list[FragmentMetadata] = []
    emptied: list[int] = []
    if len(gone):
        where = has_row_id(gone)
        addresses = dataset.to_table(columns=["_rowaddr"], filter=where)["_rowaddr"].to_numpy()
        affected = set(np.unique(addresses >> 32).tolist())  # the upper half of an address is the fragment
        for fragment in dataset.get_fragments():
            if fragment.fragment_id in affected:
                remaining = fragment.delete(where)
                if remaining is None:
                    emptied.append(fragment.fragment_id)
                else:
                    updated.append(remaining)
    added = [] if table is None else write_fragments(table, dataset, mode="append")
    if not len(gone):
        return files.commit(dataset, lance.LanceOperation.Append(added))
    if not added:
        return files.commit(dataset, lance.LanceOperation.Delete(updated, emptied, "_rowid IN (...)"))
    return files.commit(dataset, lance.LanceOperation.Update(emptied, updated, added))


def drop_fragments(folder: Folder, dataset: lance.LanceDataset, fragment_ids: Sequence[int]) -> lance.LanceDataset:
    """Remove fragments, readable or not."""
    return _Files(folder).commit(dataset, lance.LanceOperation.Delete([], list(fragment_ids), "damaged"))


def add_fields(folder: Folder, dataset: lance.LanceDataset, columns: Sequence[pa.Field]) -> lance.LanceDataset:
    """Add columns of nulls."""
    files = _Files(folder)
    changed = dataset.checkout_version(dataset.version)  # a copy: a snapshot may use the other one
    files.before_commit(dataset.version)
    changed.add_columns(list(columns))
    files.after_commit(changed)
    return changed


def replace_all(
    folder: Folder, dataset: lance.LanceDataset, header: Header, tables: Iterable[pa.Table]
) -> lance.LanceDataset:
    """Replace header and rows. The tables have the columns of the new header, then the present metadata fields."""
    files = _Files(folder)
    field_columns = list(dataset.schema)[len(Header.of(dataset).schema()) :]
    schema = pa.schema([*header.schema(), *field_columns], metadata=header.schema().metadata)
    added: list[FragmentMetadata] = []
    for table in tables:
        added += write_fragments(
            table.cast(schema),
            dataset.uri,
            mode="overwrite",
            return_transaction=False,
            storage_options=folder.storage_options,
            **_STORAGE,
        )
    return files.commit(dataset, lance.LanceOperation.Overwrite(schema, added))


def write_rows(folder: Folder, schema: pa.Schema, table: pa.Table) -> tuple[list[FragmentMetadata], Checksums]:
    """Write files that `adopt_fragments` can make part of the index. Any process may do so, without a lock.

    Returns the fragments, and the checksums of their files, which are on the disk.
    """
    fragments = write_fragments(
        table.cast(schema),
        folder.uri(ITEMS),
        mode="overwrite",
        return_transaction=False,
        storage_options=folder.storage_options,
        **_STORAGE,
    )
    files = [f"data/{file.path}" for fragment in fragments for file in fragment.files]
    folder.sync(f"{ITEMS}/{file}" for file in files)
    return fragments, compute(folder, files)


def adopt_fragments(
    folder: Folder,
    dataset: lance.LanceDataset,
    schema: pa.Schema,
    fragments: Sequence[FragmentMetadata],
    checksums: Checksums,
) -> lance.LanceDataset:
    """Replace all rows by fragments that `write_rows` wrote, in one commit, and remove files that nobody adopted."""
    for name in folder.names(f"{ITEMS}/data"):
        if f"data/{name}" not in checksums:
            folder.delete(f"{ITEMS}/data/{name}")  # of a process that was killed
    operation = lance.LanceOperation.Overwrite(schema, list(fragments))
    return _Files(folder).commit(dataset, operation, dict(checksums))


def compact(
    folder: Folder, dataset: lance.LanceDataset, keep: timedelta | None
) -> tuple[lance.LanceDataset, CompactReport]:
    """Merge small files, and remove unused files and the versions older than `keep` (None: keep all)."""
    before = len(dataset.get_fragments())
    merged = _merge(folder, dataset, _compacted_rows(dataset))
    changed = dataset if merged is None else merged
    removed = changed.cleanup_old_versions(
        older_than=timedelta(days=36500) if keep is None else keep,
        delete_unverified=True,
        error_if_tagged_old_versions=False,
    )
    record_checksums(folder, changed)
    return changed, CompactReport(
        files_merged=before - len(changed.get_fragments()),
        versions_removed=removed.old_versions,
        bytes_removed=removed.bytes_removed,
        versions_kept=len(changed.versions()) - 1,
    )


def _compacted_rows(dataset: lance.LanceDataset) -> int:
    """Rows of a file, below which `compact` merges it with others."""
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    size = sum(file.file_size_bytes or 0 for one in fragments for file in one.files)
    rows = min(LARGE_ROWS, LARGE_BYTES * sum(one.physical_rows for one in fragments) // max(1, size))
    many = sum(MERGED_ROWS // 2 <= one.physical_rows < rows for one in fragments) >= MAX_LARGE_FILES
    return max(rows, MERGED_ROWS) if many else MERGED_ROWS


def merge_small(folder: Folder, dataset: lance.LanceDataset) -> lance.LanceDataset | None:
    """Merge small files if there are many of them; return None if there are few.

    The smallest files are merged with each other first, so a row is rewritten only a few times. Files that are large
    because they hold images are left alone.
    """
    fragments = [fragment.metadata for fragment in dataset.get_fragments()]
    for limit in (MERGED_ROWS // MAX_SMALL_FILES // 2, MERGED_ROWS):
        small = [one for one in fragments if one.physical_rows < limit]
        size = sum(file.file_size_bytes or 0 for one in small for file in one.files)
        rows = sum(one.physical_rows for one in small)
        limit = min(limit, MERGED_BYTES * rows // max(1, size))
        if sum(one.physical_rows < limit for one in small) >= MAX_SMALL_FILES:
            return _merge(folder, dataset, limit)
    return None


def _merge(folder: Folder, dataset: lance.LanceDataset, rows: int) -> lance.LanceDataset | None:
    """Merge files of fewer than `rows` rows; return None if there is nothing to merge."""
    files = _Files(folder)
    plan = Compaction.plan(dataset, {"target_rows_per_fragment": rows})
    if not plan.num_tasks():
        return None
    merged = [task.execute(dataset) for task in plan.tasks]
    files.before_commit(dataset.version)
    changed = dataset.checkout_version(dataset.version)  # a copy: a snapshot may use the other one
    Compaction.commit(changed, merged)
    changed = changed.checkout_version(changed.latest_version)
    files.after_commit(changed)
    return changed


def go_back(folder: Folder, dataset: lance.LanceDataset, version: int) -> lance.LanceDataset:
    """Make an earlier version the latest one, in one commit on top of `dataset`.

    The header is changed with it (see `Header.restored`). Lance has no operation for both, so the changed header is
    written as a detached version, which nobody sees, and that is restored.
    """
    files = _Files(folder)
    old = dataset.checkout_version(version)
    header = replace(Header.of(old), restored=dataset.version + 1)
    update = lance.LanceOperation.UpdateConfig(
        schema_metadata_updates=lance.LanceOperation.UpdateMap({**header.metadata()})
    )
    detached = lance.LanceDataset.commit(old, update, read_version=version, detached=True)
    leftovers = files.new()
    try:
        return files.commit(dataset, lance.LanceOperation.Restore(detached.version), data_checksums(folder))
    finally:
        for leftover in leftovers:
            with suppress(OSError):
                folder.delete(leftover)


def record_checksums(folder: Folder, dataset: lance.LanceDataset) -> None:
    """Record the checksums of all files of a version that have none, and remove those of versions that are gone."""
    present = manifests(folder)
    try:
        own = read_checksums(folder, dataset.version) or {}
    except DamagedChecksums:
        own = {}
    manifest, known = present[dataset.version], data_checksums(folder)
    files = {file: known[file] for file in version_files(dataset) if file in known}
    files |= {
        file: own[file]
        for file in own
        if file.startswith((manifest, TRANSACTIONS, HINT)) and folder.has(f"{ITEMS}/{file}")
    }
    files |= compute(folder, [file for file in (*version_files(dataset), manifest, HINT) if file not in files])
    if files != own:
        write_checksums(folder, dataset.version, files)
    remove_checksums(folder, set(recorded_versions(folder)) - set(present))


class _Files:
    """The files of a dataset: flushes new ones to the disk, which Lance does not do, and records their checksums."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._synced = self._all()
        self._checksums: Checksums = {}

    def _all(self) -> set[str]:
        """Paths of the files and folders that a commit may write."""
        folders = [ITEMS, *(f"{ITEMS}/{name}" for name in _WRITTEN_FOLDERS)]
        return {f"{folder}/{name}" for folder in folders for name in self._folder.names(folder)}

    def new(self) -> set[str]:
        """Files and folders that are not synced yet."""
        return self._all() - self._synced

    def _sync(self) -> list[str]:
        """Sync new files. Returns their paths relative to the dataset."""
        new = self.new()
        self._folder.sync(new)
        self._synced |= new
        paths = [path.removeprefix(f"{ITEMS}/") for path in new]
        return [path for path in paths if path not in _WRITTEN_FOLDERS]

    def before_commit(self, version: int, known: Checksums | None = None) -> None:
        """Bring data files and their checksums to the disk. known: checksums of the other files that will be used."""
        new = [path for path in self._sync() if not path.startswith((MANIFESTS, TRANSACTIONS))]
        self._checksums = known_checksums(self._folder, version) if known is None else known
        self._checksums |= compute(self._folder, new)
        self._folder.check_lock()
        write_checksums(self._folder, version + 1, self._checksums)

    def after_commit(self, dataset: lance.LanceDataset) -> None:
        """Bring the manifest to the disk, and record its checksum."""
        new, manifest = self._sync(), manifests(self._folder).get(dataset.version)
        with suppress(OSError):  # committed; the next commit records it
            transactions = [path for path in new if path.startswith(f"{TRANSACTIONS}/{dataset.version - 1}-")]
            files = {path: self._checksums[path] for path in version_files(dataset) if path in self._checksums}
            files |= compute(self._folder, [*transactions, *([manifest] if manifest else []), HINT])
            write_checksums(self._folder, dataset.version, files)

    def commit(
        self,
        dataset: lance.LanceDataset,
        operation: lance.LanceOperation.BaseOperation,
        known: Checksums | None = None,
    ) -> lance.LanceDataset:
        """Sync the data files before the manifest that names them: a power cut leaves the old version or the new."""
        self.before_commit(dataset.version, known)
        changed = lance.LanceDataset.commit(
            dataset, operation, read_version=dataset.version, enable_stable_row_ids=True, max_retries=0
        )
        self.after_commit(changed)
        return changed


@contextmanager
def writing_to(folder: Folder) -> Iterator[None]:
    """Turn an error of the disk or of Lance into a BadIndex that gives the reason."""
    try:
        with lance_errors(lambda reason: _Damaged(reason)):
            yield
    except _Damaged as error:
        reason = _disk_problem(error.__cause__)
        if reason is None:
            raise BadIndex(
                f"{folder} could not be written to ({error}). Earlier commits are safe. Run `genius index verify "
                f"{folder}`: it lists damaged files and the commands that repair them."
            ) from error.__cause__
        raise BadIndex(
            f"{folder} could not be written to ({reason}). Earlier commits are safe; check the disk's space and "
            "permissions, then repeat the command."
        ) from error.__cause__


class _Damaged(GeniusError):
    """A reason without a sentence around it."""


def _disk_problem(error: BaseException | None) -> str | None:
    """Return what is wrong with the disk, if this is why Lance failed. Its errors have the number only in the text."""
    for number, reason in _REASONS.items():
        if (isinstance(error, OSError) and error.errno == number) or f"os error {number})" in str(error):
            return reason
    return lance_reason(error) if isinstance(error, OSError) and error.errno is not None else None
