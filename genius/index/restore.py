"""Restore: go back to an earlier version, and set damaged files aside.

Nothing is deleted. Damaged files go to the folder `quarantine` of the index, as do the manifests of versions that are
not whole, since Lance reads all manifests when it looks for unused files. If the process is killed, what is left can be
restored again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from genius.errors import BadIndex
from genius.index.checksums import checksums_file, manifests
from genius.index.commits import go_back, record_checksums
from genius.index.folder import Folder
from genius.index.storage import ITEMS
from genius.index.versions import FolderState, VersionState, check_files, open_dataset

QUARANTINE = "quarantine"


@dataclass(frozen=True)
class RestoreReport:
    """Result of `Index.restore`.

    Attributes:
        restored: The version that the index went back to.
        version: Number of the version that is the newest now, with the same items.
        items: Number of its items.
        set_aside: Names of files that were moved to the folder `quarantine` of the index.
        damaged: Damaged files that the newest version needs. Empty unless a version was asked for that is not whole.
    """

    restored: int
    version: int
    items: int
    set_aside: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)


def restore(folder: Folder, version: int | None) -> RestoreReport:
    """Go back to a version, by default to the newest that is whole. The caller holds the write lock."""
    state = check_files(folder)
    target = _choose(folder, state, version)
    unreadable = [one for one in state.versions if not one.readable]
    gone = max([*manifests(folder, QUARANTINE), *(one.number for one in unreadable)], default=0)
    moved = [*_set_aside_versions(folder, unreadable), *_set_aside(folder, state.spare)]
    dataset = open_dataset(folder)
    if dataset.version != target.number:
        dataset = go_back(folder, dataset, target.number)
    while dataset.version <= gone:  # a number that readers may know as another version
        dataset = go_back(folder, dataset, target.number)
    moved += _set_aside_versions(
        folder, [one for one in state.versions if one.readable and one.damaged and one.number < dataset.version]
    )
    record_checksums(folder, dataset)
    damaged = [folder.uri(f"{ITEMS}/{path}") for path in target.damaged]
    return RestoreReport(target.number, dataset.version, dataset.count_rows(), moved, damaged)


def set_aside_damaged(folder: Folder) -> list[str]:
    """Set aside all damaged versions but the newest. Returns the names of the files that were moved."""
    older = check_files(folder).versions[:-1]
    return _set_aside_versions(folder, [version for version in older if version.damaged])


def _choose(folder: Folder, state: FolderState, version: int | None) -> VersionState:
    whole = state.newest_whole
    if version is None:
        if whole is not None:
            return whole
        readable = [one.number for one in state.versions if one.readable]
        if not readable:
            raise BadIndex(f"No version of {folder} can be read. Restore it from a copy, or build the index again.")
        raise BadIndex(
            f"No version of {folder} is whole. `genius index restore {folder} --version {readable[-1]}` goes back to "
            "the newest that can be opened; `genius index verify --drop-damaged` then removes the items in damaged "
            "files."
        )
    chosen = next((one for one in state.versions if one.number == version), None)
    if chosen is not None and chosen.readable:
        return chosen
    newest = "" if whole is None else f" The newest version that is whole is {whole.number}."
    if chosen is None:
        raise BadIndex(f"{folder} has no version {version}; `genius index versions` lists them.{newest}")
    raise BadIndex(f"Version {version} of {folder} cannot be restored: its manifest is damaged.{newest}")


def _set_aside_versions(folder: Folder, versions: list[VersionState]) -> list[str]:
    """Move manifests, then their checksums: without these, a damaged manifest might pass as whole after a kill."""
    checksums = [checksums_file(one.number) for one in versions]
    return _set_aside(folder, [*(f"{ITEMS}/{one.manifest}" for one in versions), *checksums])


def _set_aside(folder: Folder, files: Iterable[str]) -> list[str]:
    """Move files to the quarantine. Returns their paths, relative to the folder of the index."""
    moved = []
    for file in files:
        if not folder.has(file):
            continue
        target = name = f"{QUARANTINE}/{file.removeprefix(f'{ITEMS}/')}"
        number = 0
        while folder.has(target):
            number += 1
            target = f"{name}.{number}"
        folder.move(file, target)
        moved.append(file)
    return moved
