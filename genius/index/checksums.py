"""Checksums: size and CRC-32 of every file of a version, in the file `checksums/VERSION.json` of an index.

Lance keeps none. Those of data and deletion files are on the disk before the commit that makes the files part of the
index; those of its manifest and its transaction follow it. A process that is killed in between leaves a manifest
without a checksum, and the next commit adds it. A file lists all files of its version, so that the files of other
versions can be removed.
"""

import json
import os
import re
import zlib
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import NamedTuple

import lance

from genius.index.folder import Folder
from genius.index.storage import ITEMS

CHECKSUMS = "checksums"
MANIFESTS = "_versions"
TRANSACTIONS = "_transactions"
HINT = f"{MANIFESTS}/latest_version_hint.json"
"""Where Lance keeps the number of the latest version, to find it faster. Each commit changes it."""

_LAST_VERSION = 2**64 - 1  # Lance names manifests by the distance from it, so that the newest comes first


class Checksum(NamedTuple):
    """Checksum of a file."""

    size: int
    crc: int

    @classmethod
    def of(cls, blocks: Iterable[bytes]) -> "Checksum":
        """Compute the checksum of a file from its content."""
        size = crc = 0
        for block in blocks:
            size, crc = size + len(block), zlib.crc32(block, crc)
        return cls(size, crc)


Checksums = dict[str, Checksum]
"""Checksums by path, relative to the dataset."""


class DamagedChecksums(Exception):
    """A file of checksums cannot be read, or is not as it was written."""


def checksums_file(version: int) -> str:
    """Path of the file with the checksums of a version, relative to the folder of the index."""
    return f"{CHECKSUMS}/{version}.json"


def read_checksums(folder: Folder, version: int) -> Checksums | None:
    """The checksums of a version; None if none were recorded. Raises DamagedChecksums."""
    try:
        content = folder.read(checksums_file(version))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedChecksums(f"cannot be read ({error.strerror or error})") from error
    try:
        files = {path: Checksum(*values) for path, values in json.loads(content)["files"].items()}
        intact = _serialize(version, files) == content
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        intact = False
    if not intact:
        raise DamagedChecksums("has changed since it was written")
    return files


def write_checksums(folder: Folder, version: int, files: Checksums) -> None:
    """Record the checksums of a version atomically. A power cut may lose them: items are safe without them."""
    folder.write(checksums_file(version), _serialize(version, files))


def _serialize(version: int, files: Checksums) -> bytes:
    body = json.dumps({"files": files, "version": version}, sort_keys=True, separators=(",", ":"))
    return f'{{"crc":{zlib.crc32(body.encode())},{body[1:]}\n'.encode()


def recorded_versions(folder: Folder) -> list[int]:
    """Numbers of the versions that have a file of checksums, ascending."""
    return sorted(int(name[:-5]) for name in folder.names(CHECKSUMS) if re.fullmatch(r"[0-9]+\.json", name))


def all_checksums(folder: Folder) -> Checksums:
    """Checksums of the files of all versions, as far as they can be read."""
    found: Checksums = {}
    for version in recorded_versions(folder):
        try:
            found |= read_checksums(folder, version) or {}
        except DamagedChecksums:
            continue
    return found


def data_checksums(folder: Folder) -> Checksums:
    """Checksums of the data and deletion files of all versions. Their names are never used for other files."""
    return _data_only(all_checksums(folder))


def known_checksums(folder: Folder, version: int) -> Checksums:
    """Checksums of the data and deletion files that a commit after this version can take over.

    Completes those of the version itself if its writer was killed before it had recorded the manifest.
    """
    try:
        found = read_checksums(folder, version)
    except DamagedChecksums:
        found = None
    if found is None:
        found = data_checksums(folder)
    else:
        manifest = manifests(folder).get(version)
        if manifest is not None and manifest not in found:
            write_checksums(folder, version, found | compute(folder, [manifest, HINT]))
    return _data_only(found)


def _data_only(files: Checksums) -> Checksums:
    return {path: checksum for path, checksum in files.items() if not path.startswith((MANIFESTS, TRANSACTIONS))}


def compute(folder: Folder, paths: Iterable[str]) -> Checksums:
    """Compute the checksums of the files of the dataset that exist."""
    found: Checksums = {}
    for path in paths:
        with suppress(FileNotFoundError):
            found[path] = Checksum.of(folder.blocks(f"{ITEMS}/{path}"))
    return found


def manifests(folder: Folder, dataset_path: str = ITEMS) -> dict[int, str]:
    """Paths of the manifests by version number, ascending. dataset_path: where the dataset is in the folder."""
    found = {}
    for name in folder.names(f"{dataset_path}/{MANIFESTS}"):
        number, suffix = os.path.splitext(name)
        if suffix == ".manifest" and number.isdecimal():
            found[_LAST_VERSION - int(number) if len(number) == 20 else int(number)] = f"{MANIFESTS}/{name}"
    return dict(sorted(found.items()))


def version_files(dataset: lance.LanceDataset) -> dict[str, int | None]:
    """Paths of the data and deletion files of a version, with their sizes if Lance knows them."""
    return {file: size for fragment in dataset.get_fragments() for file, size in fragment_files(fragment).items()}


def fragment_files(fragment: lance.LanceFragment) -> dict[str, int | None]:
    """Like `version_files`, for one fragment."""
    files: dict[str, int | None] = {f"data/{file.path}": file.file_size_bytes or None for file in fragment.data_files()}
    deletions = fragment.deletion_file()
    return files if deletions is None else files | {deletions: None}


def remove_checksums(folder: Folder, versions: Collection[int]) -> None:
    """Remove the checksums of versions that are gone."""
    for version in versions:
        folder.delete(checksums_file(version))
