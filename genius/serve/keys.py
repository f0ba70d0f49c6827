"""Keys: secrets that allow a client to read, or to read and write. Only SHA-256 digests are kept in memory."""

import hashlib
import hmac
import re
import secrets
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from genius.errors import BadData

MIN_LENGTH = 20  # characters; new keys have 43, which hold 256 bits
MAX_LENGTH = 200
VARIABLES = {"GENIUS_READ_KEY": "read", "GENIUS_WRITE_KEY": "write"}

_KEY = re.compile(rf"[A-Za-z0-9._~+/=-]{{{MIN_LENGTH},{MAX_LENGTH}}}")  # characters of a bearer token (RFC 6750)


@dataclass(frozen=True)
class Keys:
    """Digests of the read keys and of the write keys. Write keys may also read."""

    read: frozenset[bytes] = frozenset()
    write: frozenset[bytes] = frozenset()


def new_key() -> str:
    """A random key of 256 bits."""
    return secrets.token_urlsafe(32)


def digest(key: str) -> bytes:
    """SHA-256 of a key. A fast hash is enough because keys are long and random."""
    return hashlib.sha256(key.encode()).digest()


def is_known(given: bytes, digests: Iterable[bytes]) -> bool:
    """Whether a digest is in `digests`. Compares all of them in constant time, so timing reveals nothing."""
    found = False
    for one in digests:
        found |= hmac.compare_digest(given, one)
    return found


def read_keys(file: Path | None, environment: Mapping[str, str]) -> Keys:
    """Read keys from a file with lines such as `read KEY  # comment`, and from environment variables.

    Raises BadData if the file cannot be read or a key is malformed. The message never shows a key.
    """
    scopes: dict[str, set[bytes]] = {"read": set(), "write": set()}
    from_environment = [(scope, environment[name], name) for name, scope in VARIABLES.items() if name in environment]
    for scope, key, place in [*_keys_in_file(file), *from_environment]:
        _check_key(key, place)
        scopes[scope].add(digest(key))
    return Keys(frozenset(scopes["read"]), frozenset(scopes["write"]))


def others_can_read(file: Path) -> bool:
    """Whether other users of this machine can read a file."""
    return bool(file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))


def _keys_in_file(file: Path | None) -> list[tuple[str, str, str]]:
    """Scope, key and place of every key in the file."""
    if file is None:
        return []
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeError) as error:
        raise BadData(
            f"The key file {file} cannot be read ({error}). Give a text file with one key per line."
        ) from error
    found = []
    for number, line in enumerate(lines, 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or words[0] not in ("read", "write"):
            raise BadData(f"Line {number} of {file} is neither `read KEY` nor `write KEY`.")
        found.append((words[0], words[1], f"Line {number} of {file}"))
    if not found:
        raise BadData(f"{file} holds no key. Write `read KEY` or `write KEY`; genius serve --new-key prints a new key.")
    return found


def _check_key(key: str, place: str) -> None:
    if not _KEY.fullmatch(key):
        raise BadData(
            f"{place}: a key has {MIN_LENGTH} to {MAX_LENGTH} letters, digits or . _ ~ + / = - characters. "
            "genius serve --new-key prints one."
        )
