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
from pathlib import Path
from typing import NamedTuple

import lance

from genius.index.storage import ITEMS

CHECKSUMS = "checksums"
MANIFESTS = "_versions"
TRANSACTIONS = "_transactions"
HINT = f"{MANIFESTS}/latest_version_hint.json"
"""Where Lance keeps the number of the latest version, to find it faster. Each commit changes it."""

_BLOCK = 1 << 20  # bytes read at once
_LAST_VERSION = 2**64 - 1  # Lance names manifests by the distance from it, so that the newest comes first


class Checksum(NamedTuple):
    """Checksum of a file."""

    size: int
    crc: int

    @classmethod
    def of(cls, file: Path) -> "Checksum":
        """Read a file and compute its checksum."""
        size = crc = 0
        with open(file, "rb", buffering=0) as opened:
            while block := opened.read(_BLOCK):
                size, crc = size + len(block), zlib.crc32(block, crc)
        return cls(size, crc)


Checksums = dict[str, Checksum]
"""Checksums by path, relative to the dataset."""


class DamagedChecksums(Exception):
    """A file of checksums cannot be read, or is not as it was written."""


def checksums_file(folder: Path, version: int) -> Path:
    """The file with the checksums of a version."""
    return folder / CHECKSUMS / f"{version}.json"


def read_checksums(folder: Path, version: int) -> Checksums | None:
    """The checksums of a version; None if none were recorded. Raises DamagedChecksums."""
    try:
        content = checksums_file(folder, version).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedChecksums(f"cannot be read ({error.strerror})") from error
    try:
        files = {path: Checksum(*values) for path, values in json.loads(content)["files"].items()}
        intact = _serialize(version, files) == content
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        intact = False
    if not intact:
        raise DamagedChecksums("has changed since it was written")
    return files


def write_checksums(folder: Path, version: int, files: Checksums) -> None:
    """Record the checksums of a version atomically. A power cut may lose them, but never leaves half of them."""
    file = checksums_file(folder, version)
    file.parent.mkdir(exist_ok=True)
    temporary = file.with_suffix(".tmp")
    with open(temporary, "wb") as opened:
        opened.write(_serialize(version, files))
        opened.flush()
        os.fsync(opened.fileno())
    os.replace(temporary, file)  # the folder is not synced: items are safe without their checksums


def _serialize(version: int, files: Checksums) -> bytes:
    body = json.dumps({"files": files, "version": version}, sort_keys=True, separators=(",", ":"))
    return f'{{"crc":{zlib.crc32(body.encode())},{body[1:]}\n'.encode()


def recorded_versions(folder: Path) -> list[int]:
    """Numbers of the versions that have a file of checksums, ascending."""
    names = os.listdir(folder / CHECKSUMS) if (folder / CHECKSUMS).is_dir() else []
    return sorted(int(name[:-5]) for name in names if re.fullmatch(r"[0-9]+\.json", name))


def data_checksums(folder: Path) -> Checksums:
    """Checksums of the data and deletion files of all versions. Their names are never used for other files."""
    found: Checksums = {}
    for version in recorded_versions(folder):
        try:
            found |= _data_only(read_checksums(folder, version) or {})
        except DamagedChecksums:
            continue
    return found


def known_checksums(folder: Path, version: int) -> Checksums:
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
        manifest = manifests(folder / ITEMS).get(version)
        if manifest is not None and manifest not in found:
            write_checksums(folder, version, found | compute(folder / ITEMS, [manifest, HINT]))
    return _data_only(found)


def _data_only(files: Checksums) -> Checksums:
    return {path: checksum for path, checksum in files.items() if not path.startswith((MANIFESTS, TRANSACTIONS))}


def compute(dataset_path: Path, paths: Iterable[str]) -> Checksums:
    """Compute the checksums of the files that exist."""
    return {path: Checksum.of(dataset_path / path) for path in paths if (dataset_path / path).is_file()}


def manifests(dataset_path: Path) -> dict[int, str]:
    """Paths of the manifests by version number, ascending."""
    folder = dataset_path / MANIFESTS
    names = os.listdir(folder) if folder.is_dir() else []
    found = {}
    for name in names:
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


def remove_checksums(folder: Path, versions: Collection[int]) -> None:
    """Remove the checksums of versions that are gone."""
    for version in versions:
        checksums_file(folder, version).unlink(missing_ok=True)


def sync(path: str | Path) -> None:
    """Flush a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
