"""Versions: opening one, and finding out which of them are whole.

A version is whole if its manifest and all data and deletion files that this names are as they were written.
"""

import struct
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import lance

from genius.errors import BadIndex
from genius.index.checksums import (
    HINT,
    TRANSACTIONS,
    Checksum,
    Checksums,
    DamagedChecksums,
    checksums_file,
    data_checksums,
    manifests,
    read_checksums,
    recorded_versions,
    version_files,
)
from genius.index.folder import Folder
from genius.index.lance_errors import Unreadable, lance_errors
from genius.index.storage import ITEMS, Header, other_format

CHANGED = "has changed since it was written"
MISSING = "is missing"

_FOOTER = struct.Struct("<QQQIIHH4s")  # of a Lance file
_CHECKS = 8  # files checked at once


# Opening


def open_dataset(folder: Folder, version: int | None = None) -> lance.LanceDataset:
    """Open the dataset of an index, at its latest version or an older one."""
    check_folder(folder)
    present = manifests(folder)
    if not present:
        raise _without_versions(folder)
    if version is not None and version not in present:
        raise BadIndex(
            f"{folder} has no version {version}. `genius index versions` lists the versions that can be opened."
        )
    check_manifest(folder, max(present) if version is None else version)
    with lance_errors(lambda reason: Unreadable(folder, version, reason)):
        return lance.dataset(folder.uri(ITEMS), version=version, storage_options=folder.storage_options)


def _without_versions(folder: Folder) -> BadIndex:
    path = folder.uri(ITEMS)
    return BadIndex(f"{path} cannot be opened: it has no versions. Restore it from a copy, or build the index again.")


def check_folder(folder: Folder) -> None:
    """Raise BadIndex if a folder is not an index of this format."""
    if not folder.exists():
        raise BadIndex(f"There is no index at {folder}. Create one with `genius index create`.")
    if folder.has("index.json"):  # formats 1 and 2
        raise other_format(folder, "2 or older")
    if ITEMS not in folder.names():
        raise BadIndex(f"{folder} is not an index: it has no {ITEMS}. Create one with `genius index create`.")


def check_manifest(folder: Folder, version: int) -> None:
    """Raise Unreadable if the manifest of a version is damaged. Lance panics on some that are."""
    try:
        recorded = read_checksums(folder, version) or {}
    except DamagedChecksums:  # `verify` reports it
        return
    for path, checksum in recorded.items():
        if path.endswith(".manifest"):
            problem = _compare(folder, path, checksum)
            if problem == CHANGED:  # a missing one may have been removed by another process
                raise Unreadable(folder, version, problem, folder.uri(f"{ITEMS}/{path}"))


def check_fragments(folder: Folder, dataset: lance.LanceDataset, checked: Collection[str] = ()) -> set[str]:
    """Check what Lance trusts blindly: footers of data files, and deletion files. A wrong number ends the process.

    Args:
        folder: The index.
        dataset: A version of it.
        checked: Files that need not be checked again.

    Returns:
        All data and deletion files of the version.
    """
    files = version_files(dataset)
    new = [path for path in files if path not in checked]
    recorded: Checksums = {}
    if any(not path.startswith("data/") for path in new):
        try:
            recorded = read_checksums(folder, dataset.version) or {}
        except DamagedChecksums:
            recorded = {}

    def problem(path: str) -> str | None:
        if path.startswith("data/"):
            return check_footer(folder, path, files[path])
        return _compare(folder, path, recorded[path]) if path in recorded else None

    with ThreadPoolExecutor(_CHECKS) as pool:  # an object store takes a while to answer each request
        for path, reason in zip(new, pool.map(problem, new), strict=True):
            if reason is not None:
                raise Unreadable(folder, dataset.version, reason, folder.uri(f"{ITEMS}/{path}"))
    return set(files)


def check_footer(folder: Folder, path: str, size: int | None) -> str | None:
    """Check the numbers at the end of a data file; return what is wrong.

    They are three offsets, two counts of 16-byte entries, the version of the file format, and the magic bytes. Lance
    trusts them: a wrong one makes it allocate until it is killed.

    Args:
        folder: The index.
        path: The data file, relative to the dataset.
        size: Its size according to Lance.
    """
    try:
        end, found = folder.end(f"{ITEMS}/{path}", _FOOTER.size, size)
        *offsets, buffers, columns, _, _, magic = _FOOTER.unpack(end)
    except FileNotFoundError:
        return MISSING
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    except struct.error:
        return "is truncated"
    if magic != b"LANC" or max(*offsets, 16 * buffers, 16 * columns) > found:
        return "has a damaged footer"
    return None


def _compare(folder: Folder, path: str, checksum: Checksum) -> str | None:
    """Compare a file of the dataset with its checksum; return what is wrong."""
    try:
        if Checksum.of(folder.blocks(f"{ITEMS}/{path}")) == checksum:
            return None
    except FileNotFoundError:
        return MISSING
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    return CHANGED


# Checking


@dataclass(frozen=True)
class VersionState:
    """State of the files of a version.

    Attributes:
        number: Number of the version.
        manifest: Path of its manifest, relative to the dataset, as all paths here.
        readable: Whether Lance can read the manifest, and it is as it was written.
        damaged: What is wrong with each damaged file that the version needs.
        unrecorded: Files of the version without a checksum.
    """

    number: int
    manifest: str
    readable: bool = True
    damaged: dict[str, str] = field(default_factory=dict)
    unrecorded: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class FolderState:
    """State of all files of an index.

    Attributes:
        versions: The versions, oldest first.
        spare: What is wrong with damaged files that no version needs: transactions, checksums, Lance's hint. Paths are
            relative to the folder of the index.
    """

    versions: list[VersionState]
    spare: dict[str, str]

    @property
    def newest(self) -> VersionState:
        """The newest version, damaged or not."""
        return self.versions[-1]

    @property
    def newest_whole(self) -> VersionState | None:
        """The newest version without damage."""
        return next((version for version in reversed(self.versions) if not version.damaged), None)


def check_files(folder: Folder) -> FolderState:
    """Compare all files of all versions with their checksums."""
    check_folder(folder)
    present = manifests(folder)
    recorded, spare = _read_all(folder)
    known = {file: checksum for checksums in recorded.values() for file, checksum in checksums.items()}
    found: dict[str, str | None] = {}

    def problem(file: str, checksum: Checksum | None, size: int | None = None) -> str | None:
        if file not in found:
            found[file] = _compare_size(folder, file, size) if checksum is None else _compare(folder, file, checksum)
        return found[file]

    versions = []
    for number, manifest in present.items():
        checksum = recorded.get(number, {}).get(manifest)
        state = VersionState(number, manifest, damaged={}, unrecorded=[] if checksum else [manifest])
        reason = problem(manifest, checksum)
        files: dict[str, int | None] = {}
        if reason is None:
            try:
                files = _files_of(folder, number)
            except BadIndex:
                reason = "cannot be read"
        if reason is not None:
            if not folder.has(f"{ITEMS}/{manifest}") and number != max(present):  # removed by another process meanwhile
                continue
            versions.append(VersionState(number, manifest, False, {manifest: reason}))
            continue
        for file, size in files.items():
            reason = problem(file, known.get(file), size)
            if reason is not None:
                state.damaged[file] = reason
            if file not in known:
                state.unrecorded.append(file)
        if folder.has(f"{ITEMS}/{manifest}"):
            versions.append(state)
        for file, checksum in recorded.get(number, {}).items():
            if file.startswith(TRANSACTIONS) and problem(file, checksum) == CHANGED:
                spare[f"{ITEMS}/{file}"] = CHANGED
    for number, checksums in recorded.items():
        lost = _manifest_of(checksums)
        if number > max(present, default=0) and lost is not None:
            versions.append(VersionState(number, lost, False, {lost: MISSING}))
    if not versions:
        raise _without_versions(folder)
    hint = recorded.get(max(present, default=0), {}).get(HINT)
    if hint is not None and problem(HINT, hint) == CHANGED and max(manifests(folder), default=0) == max(present):
        spare[f"{ITEMS}/{HINT}"] = CHANGED
    return FolderState(versions, spare)


def _read_all(folder: Folder) -> tuple[dict[int, Checksums], dict[str, str]]:
    """All checksums by version, ascending, and the damaged files of checksums."""
    recorded: dict[int, Checksums] = {}
    damaged: dict[str, str] = {}
    for number in recorded_versions(folder):
        try:
            recorded[number] = read_checksums(folder, number) or {}
        except DamagedChecksums as error:
            damaged[checksums_file(number)] = str(error)
    return recorded, damaged


def _manifest_of(checksums: Checksums) -> str | None:
    return next((path for path in checksums if path.endswith(".manifest")), None)


def _files_of(folder: Folder, version: int) -> dict[str, int | None]:
    """Files of a version whose manifest may be damaged."""
    with lance_errors(lambda reason: Unreadable(folder, version, reason)):
        dataset = lance.dataset(folder.uri(ITEMS), version=version, storage_options=folder.storage_options)
        Header.of(dataset)
        return version_files(dataset)


def _compare_size(folder: Folder, path: str, size: int | None) -> str | None:
    """Compare the size of a file that has no checksum."""
    try:
        return CHANGED if size not in (None, Checksum.of(folder.blocks(f"{ITEMS}/{path}")).size) else None
    except FileNotFoundError:
        return MISSING


def damaged_files(folder: Folder, dataset: lance.LanceDataset) -> dict[str, str]:
    """What is wrong with each damaged data and deletion file of one version."""
    known, found = data_checksums(folder), {}
    for file in version_files(dataset):
        problem = _compare(folder, file, known[file]) if file in known else None
        if problem is not None:
            found[file] = problem
    return found


def unrecorded_files(folder: Folder, dataset: lance.LanceDataset) -> list[str]:
    """Files of a version that have no checksum."""
    known, manifest = data_checksums(folder), manifests(folder).get(dataset.version)
    with suppress(DamagedChecksums):
        known |= read_checksums(folder, dataset.version) or {}
    return [file for file in (*version_files(dataset), *([manifest] if manifest else [])) if file not in known]
