"""An index for tests of the service: it answers every query with its own words, and can be held up at any moment."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from genius.data.items import Item, Modality, Query
from genius.encoders.base import Prepared, Vectors
from genius.errors import BadIndex, BadItem, GeniusError
from genius.search.results import AddReport, Branch, Hit, Hits, SearchResult

PATIENCE = 30.0  # seconds; what takes longer has come to a standstill


async def until(holds: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "it has come to a standstill"
        await asyncio.sleep(0.001)


class Gate:
    """A place where a thread may have to wait. `reached` counts those that came."""

    def __init__(self) -> None:
        self.reached = 0
        self._open = threading.Event()
        self._open.set()

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def pass_through(self) -> None:
        self.reached += 1
        assert self._open.wait(PATIENCE), "nobody opened the gate"


@dataclass(eq=False)
class FakeModel:
    """Remembers texts by their place in a list. Queries that say "broken" cannot be encoded, nor can their batch."""

    name: str
    said: list[str]
    gate: Gate
    batches: list[list[str]]

    def prepare_query(self, query: Query) -> Prepared:
        if query.text == "unreadable":
            raise BadItem("query", "the image cannot be read.")
        return Prepared(None, f"{self.name} {query.text}")

    def encode(self, prepared: Sequence[Prepared]) -> Vectors:
        self.batches.append([one.text for one in prepared])
        self.gate.pass_through()
        if any("broken" in one.text for one in prepared):
            raise GeniusError("It is broken.")
        places = []
        for one in prepared:
            places.append([float(len(self.said))])
            self.said.append(one.text)
        return Vectors(np.zeros((len(places), 1), np.float32), np.array(places, np.float32))


class FakeIndex:
    """Searching: `model.batches` says what was encoded together, `groups` what was answered together, and how.

    Writing: `items` is the index; `commits` says what was written or deleted in one step. Texts that say "bad" are
    refused; `failure` is raised by the next write.

    `gate` holds up encoding and writing, `search_gate` searching.
    """

    def __init__(self) -> None:
        self.gate, self.search_gate, self.said = Gate(), Gate(), list[str]()
        self.batches: list[list[str]] = []
        self.groups: list[tuple[list[str], dict[str, Any]]] = []
        self.model = self.new_model("A")
        self.version = 1
        self.items: dict[str, Item] = {}
        self.commits: list[list[str]] = []
        self.compacted = 0
        self.failure: Exception | None = None

    def new_model(self, name: str) -> FakeModel:
        return FakeModel(name, self.said, self.gate, self.batches)

    def __len__(self) -> int:
        return len(self.items)

    @property
    def searcher(self) -> None:
        return None

    def answer_vectors(self, vectors: Vectors, targets: Sequence[Modality | None], **how: Any) -> list[SearchResult]:
        texts = [self.said[int(place)] for place in vectors.text[:, 0]]
        self.groups.append((texts, how))
        self.search_gate.pass_through()
        if how["where"] == "wrong":
            raise GeniusError("The condition is wrong.")
        if any("nan" in text for text in texts):
            raise GeniusError("A vector holds values that are not numbers.")
        return [
            SearchResult(
                Hits([Hit(text, 1.0, Modality.TEXT, (1,), Item(text, text))]), [Branch((1,), 0.0, 1)], 1, {"read": 0.0}
            )
            for text in texts
        ]

    def search(self, query: Any, **how: Any) -> None:
        return None

    # Writing

    def refresh(self) -> bool:
        return False

    def get(self, ids: list[str]) -> list[Item | None]:
        return [self.items.get(id) for id in ids]

    def upsert(self, items: Iterable[Item | BadItem], on_commit: Callable[[list[str]], None]) -> AddReport:
        return self._write(list(items), on_commit, replace=True)

    def add(self, items: Iterable[Item | BadItem], on_commit: Callable[[list[str]], None]) -> AddReport:
        return self._write(list(items), on_commit, replace=False)

    def _write(self, items: list[Item | BadItem], on_commit: Callable[[list[str]], None], replace: bool) -> AddReport:
        self.gate.pass_through()
        self._fail()
        written, unchanged, bad, replaced = [], 0, [], 0
        for item in items:
            if isinstance(item, BadItem):
                bad.append(item)
            elif item.text == "bad":
                bad.append(BadItem(item.id, "it is bad."))
            elif self.items.get(item.id) == item:
                unchanged += 1
            elif item.id in self.items and not replace:
                bad.append(BadItem(item.id, "it is taken."))
            else:
                replaced += item.id in self.items
                written.append(item)
        if written:
            self.items |= {item.id: item for item in written}
            self._commit([item.id for item in written])
            on_commit([item.id for item in written])
        return AddReport(len(written), unchanged, bad, replaced)

    def delete(self, ids: list[str] | None = None, *, where: str | None = None) -> int:
        """A filter is the text of the items that it matches."""
        self.gate.pass_through()
        self._fail()
        if ids is None:
            ids = [id for id, item in self.items.items() if item.text == where]
        gone = [id for id in ids if self.items.pop(id, None) is not None]
        if gone:
            self._commit(gone)
        return len(gone)

    def compact(self, keep: object) -> None:
        self.compacted += 1

    def _commit(self, ids: list[str]) -> None:
        self.commits.append(ids)
        self.version += 1

    def _fail(self) -> None:
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure


LOCKED = BadIndex("Another process is writing to it. Try again when it has finished.")


def _hit(text: str) -> Hit:
    return Hit(text, 1.0, Modality.TEXT, (1,), Item(text, text))
