"""Names of codes for the page, made in a thread of low priority and kept for the version they were made from."""

import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from genius.atlas.collection import Collection
from genius.atlas.tree import code_tree
from genius.atlas.words import words_of
from genius.index.index import Index
from genius.serve.threads import lower_priority

log = logging.getLogger("genius.serve")

MAX_ITEMS = 100_000
"""Items that names are made from; of a larger index, a random sample."""
PAUSE = 10.0
"""Seconds, and multiple of the time that the last names took, before names are made for a newer version."""


class CodeNames:
    """The names of an index's codes. Thread-safe."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._names: Mapping[str, dict[str, Any]] = {}
        self._version = -1  # of the names
        self._next = 0.0  # when the next names may be made
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def ready(self) -> bool:
        """Whether there are names, or the attempt to make them failed."""
        return self._version >= 0

    def refresh(self) -> None:
        """Start to make names if there are none for the current version. Returns at once."""
        with self._lock:
            running = self._thread is not None and self._thread.is_alive()
            if running or self._version == self._index.version or time.monotonic() < self._next:
                return
            self._thread = threading.Thread(target=self._make, name="genius-names", daemon=True)
            self._thread.start()

    def of(self, prefixes: Iterable[Sequence[int | None]]) -> dict[str, dict[str, Any]]:
        """The names of those prefixes, and of the prefixes of these, that have one. None stands for any code."""
        names, found = self._names, {}
        for prefix in prefixes:
            for length in range(1, len(prefix) + 1):
                key = "-".join("*" if code is None else str(code) for code in prefix[:length])
                if key in names:
                    found[key] = names[key]
        return found

    def wait(self, timeout: float) -> None:
        """Wait for names that are being made."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout)

    def _make(self) -> None:
        lower_priority()
        version, began = self._index.version, time.monotonic()
        try:
            names = code_names(self._index)
        except Exception as error:  # the page works with numbers
            log.warning("The codes of %s have no names: %s", self._index.path, error)
            names = {}
        with self._lock:
            self._names, self._version = names, version
            self._next = time.monotonic() + max(PAUSE, PAUSE * (time.monotonic() - began))


def code_names(index: Index) -> dict[str, dict[str, Any]]:
    """Names by prefix, such as "0-17", and "*-17" for a code with any prefix."""
    if not len(index):
        return {}
    collection = Collection.read(index, MAX_ITEMS)
    tree = code_tree(collection, words_of(collection), examples=1)
    return {
        "-".join("*" if code < 0 else str(code) for code in node.codes): {
            "name": str(node.name),
            "purity": round(node.name.purity, 3),
            "elsewhere": round(node.name.elsewhere, 4),
        }
        for node in [*tree.nodes, *tree.codes]
        if node.name.words and len(node.codes) > 1
    }
