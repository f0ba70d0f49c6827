"""The service and `kill -9`: what it has acknowledged is there when it starts again, once, and can be found.

Threads put, replace and delete items and add many at once, others search meanwhile; each keeps a ledger of what it was
told. The server is killed while they are at it, and the next one goes on with what is left on the disk.
"""

import itertools
import random
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes import tiny_model
from processes import PATIENCE, Other, Talk, folder_in_memory, other
from serving import mini_model, running_server

from genius.index.index import Index
from genius.model.genius import Genius

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills are those of Unix")

BULK = 60  # items of a bulk addition
Gone = None


@dataclass
class Ledger:
    """What one client knows. A content is a number, which the item's text names; None: there is no such item.

    sure: by id, what was acknowledged last; hoped: what had been asked for and not acknowledged when the server died.
    """

    sure: dict[str, int | None] = field(default_factory=dict)
    hoped: dict[str, int | None] = field(default_factory=dict)

    def told(self, id: str, content: int | None) -> None:
        self.sure[id] = content
        del self.hoped[id]


def text_of(id: str, content: int) -> str:
    return f"{id} in its take{content}"


class Load:
    """Clients at work until the server dies under them."""

    def __init__(self, url: str, seed: int) -> None:
        self._url, self._seed = url, seed
        self.acknowledged = 0  # single changes
        self.added = 0  # items of bulk additions
        self.answered = 0  # searches
        self._counting = threading.Lock()

    def start(self, pool: ThreadPoolExecutor, ledgers: dict[str, Ledger]) -> list[Any]:
        works = [pool.submit(self._until_it_dies, self._search, Ledger(), name) for name in ("x", "y")]
        for name, ledger in ledgers.items():
            work = self._add_many if name.startswith("bulk") else self._change
            works.append(pool.submit(self._until_it_dies, work, ledger, name))
        return works

    def _until_it_dies(self, work: Any, ledger: Ledger, name: str) -> None:
        with (
            suppress(httpx.TransportError),
            httpx.Client(base_url=self._url, timeout=PATIENCE, trust_env=False) as client,
        ):
            work(client, ledger, name, random.Random(f"{self._seed} {name}"))

    def _count(self) -> None:
        with self._counting:
            self.acknowledged += 1

    def _change(self, client: httpx.Client, ledger: Ledger, name: str, choice: random.Random) -> None:
        """Put new items, replace some, delete some."""
        for number in itertools.count():
            there = [id for id, content in ledger.sure.items() if content is not Gone]
            kind = choice.random() if there else 0.0
            id = f"{name}/{self._seed}/{number}" if kind < 0.6 else choice.choice(there)
            if kind > 0.85:
                ledger.hoped[id] = Gone
                assert client.delete(f"/v1/items/{id}").status_code == 204
            else:
                content = (ledger.sure.get(id) or 0) + 1
                ledger.hoped[id] = content
                answer = client.put(f"/v1/items/{id}", json={"text": text_of(id, content), "metadata": {"n": content}})
                assert answer.status_code == (201 if kind < 0.6 else 200), answer.text
            ledger.told(id, ledger.hoped[id])
            self._count()

    def _add_many(self, client: httpx.Client, ledger: Ledger, name: str, choice: random.Random) -> None:
        """Bulk additions, one after the other; what a job says to be done counts as acknowledged."""
        for turn in itertools.count():
            ids = [f"{name}/{self._seed}/{turn}/{number}" for number in range(BULK)]
            ledger.hoped |= dict.fromkeys(ids, 1)
            answer = client.post("/v1/items", json={"items": [{"id": id, "text": text_of(id, 1)} for id in ids]})
            assert answer.status_code == 202, answer.text
            done = 0
            while done < len(ids):
                job = client.get(answer.json()["location"]).json()
                assert job["bad"] == []
                for id in ids[done : job["done"]]:
                    ledger.told(id, 1)
                self.added += job["done"] - done
                done = job["done"]

    def _search(self, client: httpx.Client, ledger: Ledger, name: str, choice: random.Random) -> None:
        while True:
            answer = client.post(
                "/v1/search", json={"text": f"{choice.choice('abcd')}/{self._seed}/{choice.randrange(50)} take1"}
            )
            assert answer.status_code == 200, answer.text
            self.answered += 1


def survivors(ledgers: dict[str, Ledger], index: Index) -> dict[str, int]:
    """What is left after a kill, if it is what the clients were told; from here on they know it for sure."""
    items = list(index.items())
    found = {item.id: int(item.text.rpartition("take")[2]) for item in items if item.text is not None}
    assert len(found) == len(items) == len(index), "an item is there twice"
    for ledger in ledgers.values():
        for id, content in ledger.sure.items():
            allowed = {content, ledger.hoped.get(id, content)}
            assert found.get(id) in allowed, f"{id} is {found.get(id)}, and should be one of {allowed}"
        for id, content in ledger.hoped.items():
            assert id in ledger.sure or found.get(id) in (content, Gone)
            ledger.sure[id] = found.get(id)
        ledger.hoped.clear()
    known = {id for ledger in ledgers.values() for id in ledger.sure}
    assert found.keys() <= known
    assert all(item.text == text_of(item.id, found[item.id]) for item in items)
    return found


def check_served(url: str, found: dict[str, int], choice: random.Random) -> None:
    """A server that was started after a kill shows these items and finds them."""
    with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as client:
        assert client.get("/v1/items?limit=1").json()["total"] == len(found)
        some = choice.sample(sorted(found), min(len(found), 60))
        for id in some[:20]:
            assert client.get(f"/v1/items/{id}").json()["text"] == text_of(id, found[id])
        queries = [{"text": text_of(id, found[id]), "ids": [id], "k": 2} for id in some]
        if queries:
            answers = client.post("/v1/search/batch", json={"queries": queries}).json()["answers"]
            assert [[hit["id"] for hit in answer["hits"]] for answer in answers] == [[id] for id in some]


def kill_under_load(url: str, ledgers: dict[str, Ledger], seed: int, kill: Any) -> Load:
    """Let clients work until so many changes are acknowledged, a number that chance decides; then kill."""
    load, wanted = Load(url, seed), random.Random(seed).randint(5, 40)
    with ThreadPoolExecutor(len(ledgers) + 2) as pool:
        works = load.start(pool, ledgers)
        deadline = time.monotonic() + PATIENCE
        while load.acknowledged < wanted and time.monotonic() < deadline and not any(work.done() for work in works):
            time.sleep(0.001)
        kill()
        for work in works:
            work.result()
    assert load.acknowledged >= wanted, "the server has come to a standstill"
    return load


def new_ledgers() -> dict[str, Ledger]:
    return {name: Ledger() for name in ("a", "b", "c", "d", "bulk")}


# In a process that starts quickly, with a model that is quick


def serve_tiny(talk: Talk, path: Path) -> None:
    """The server as `genius serve` runs it; says its port when it is ready."""
    from genius.serve.app import create_app
    from genius.serve.hosted import HostedIndex
    from genius.serve.server import listen, run
    from genius.serve.settings import Settings

    settings = Settings(port=0)
    listener = listen(settings)
    served = HostedIndex("tiny", Index.open(path, tiny_model(), refresh=settings.refresh), settings)
    port = listener.getsockname()[1]
    app = create_app({"tiny": served}, settings)
    run(app, settings, listener, lambda: served.ready, lambda: talk.say(port), access_log=False)


@contextmanager
def tiny_server(path: Path) -> Iterator[tuple[str, Other]]:
    with other(serve_tiny, path) as process:
        yield f"http://127.0.0.1:{process.hear()}", process


def survive(path: Path, model: Genius, rounds: int) -> int:
    """How many single changes were acknowledged in so many rounds."""
    ledgers, found, total, added, seen = new_ledgers(), dict[str, int](), 0, 0, 0
    for seed in range(rounds):
        with tiny_server(path) as (url, process):
            check_served(url, found, random.Random(seed))
            load = kill_under_load(url, ledgers, seed, process.kill)
        total, added, seen = total + load.acknowledged, added + load.added, seen + load.answered
        index = Index.open(path, model)
        found = survivors(ledgers, index)
        assert index.verify() == []
    with tiny_server(path) as (url, _):
        check_served(url, found, random.Random(rounds))
    assert added > 0
    assert seen > 0
    return total


def test_what_was_acknowledged_survives_a_kill() -> None:
    with folder_in_memory() as folder:
        model = tiny_model()
        Index.create(folder / "tiny", model)
        assert survive(folder / "tiny", model, rounds=3) >= 15


@pytest.mark.slow
def test_what_was_acknowledged_survives_many_kills() -> None:
    with folder_in_memory() as folder:
        model = tiny_model()
        Index.create(folder / "tiny", model)
        assert survive(folder / "tiny", model, rounds=100) >= 500


@pytest.mark.slow
def test_the_command_survives_kills_too(tmp_path: Path) -> None:
    """`genius serve` itself, on a disk, with the model that it ships with."""
    path, ledgers, found = tmp_path / "real.genius", new_ledgers(), dict[str, int]()
    Index.create(path, mini_model())
    for seed in range(10):
        with running_server(path, options=("--quiet",)) as server:
            check_served(server.url, found, random.Random(seed))
            kill_under_load(server.url, ledgers, seed, server.process.kill)
        index = Index.open(path, mini_model())
        found = survivors(ledgers, index)
        assert index.verify() == []
    with running_server(path, options=("--quiet",)) as server:
        check_served(server.url, found, random.Random(10))
