"""Keys: secrets that let a client read, or read and write. Only their SHA-256 digests are kept.

Knows files and the environment. Knows no HTTP.
"""

import hashlib
import hmac
import re
import secrets
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from genius.errors import BadData

SHORTEST = 20  # characters; new keys have 43, which is 256 bits
LONGEST = 200
VARIABLES = {"GENIUS_READ_KEY": "read", "GENIUS_WRITE_KEY": "write"}

_KEY = re.compile(r"[A-Za-z0-9._~+/=-]+")  # what fits into a header: RFC 6750


@dataclass(frozen=True)
class Keys:
    """Digests of the keys that may read, and of those that may read and write."""

    read: frozenset[bytes] = frozenset()
    write: frozenset[bytes] = frozenset()


def new_key() -> str:
    """A key that nobody can guess."""
    return secrets.token_urlsafe(32)


def digest(key: str) -> bytes:
    """What is kept of a key. A fast hash will do: keys are random and long, and cannot be tried out."""
    return hashlib.sha256(key.encode()).digest()


def known(given: bytes, digests: Iterable[bytes]) -> bool:
    """Whether a digest is one of some. All are compared, each in constant time, so that the time tells nothing."""
    found = False
    for one in digests:
        found |= hmac.compare_digest(given, one)
    return found


def read_keys(file: Path | None, environment: Mapping[str, str]) -> Keys:
    """The keys of a file (`read KEY` or `write KEY` a line, # before comments), and those of VARIABLES."""
    scopes: dict[str, set[bytes]] = {"read": set(), "write": set()}
    for scope, key, place in [*_from_file(file), *_from_environment(environment)]:
        scopes[scope].add(digest(_checked(key, place)))
    return Keys(frozenset(scopes["read"]), frozenset(scopes["write"]))


def others_can_read(file: Path) -> bool:
    """Whether other users of this machine can read a file."""
    return bool(file.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))


def _from_file(file: Path | None) -> list[tuple[str, str, str]]:
    """Scope, key and place of each line that is not empty."""
    if file is None:
        return []
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeError) as error:
        raise BadData(f"The keys in {file} cannot be read ({error}). Give a text file with a key a line.") from error
    found = []
    for number, line in enumerate(lines, 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or words[0] not in ("read", "write"):
            raise BadData(f"Line {number} of {file} is neither `read KEY` nor `write KEY`.")
        found.append((words[0], words[1], f"Line {number} of {file}"))
    if not found:
        raise BadData(f"{file} holds no key. Write `read KEY` or `write KEY`: genius serve --new-key makes one.")
    return found


def _from_environment(environment: Mapping[str, str]) -> list[tuple[str, str, str]]:
    return [(scope, environment[name], name) for name, scope in VARIABLES.items() if name in environment]


def _checked(key: str, place: str) -> str:
    """The key, or an error that does not show it."""
    if not SHORTEST <= len(key) <= LONGEST:
        raise BadData(
            f"{place}: the key has {len(key)} characters; {SHORTEST} to {LONGEST} are needed. "
            "genius serve --new-key makes a good one."
        )
    if not _KEY.fullmatch(key):
        raise BadData(f"{place}: a key is made of letters, digits and . _ ~ + / = - only.")
    return key
