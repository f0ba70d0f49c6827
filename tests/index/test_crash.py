"""What an index survives: `kill -9` at any moment, a full disk, a read-only folder.

A victim process changes an index as fast as it can and keeps a journal of what it begins and what was acknowledged. It
is killed, the index is opened and compared with the journal, and the next victim goes on from there.
"""

import functools
import io
import itertools
import json
import logging
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import lance
import pytest
from fakes import draw_image, tiny_model
from processes import PATIENCE, Talk, folder_in_memory, other

from genius.data.items import Item, Query
from genius.errors import BadIndex, GeniusError
from genius.index import commits
from genius.index.index import Index
from genius.model.genius import Genius

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="kills and mounts are those of Unix")

KINDS = ("add", "upsert", "delete", "compact", "reindex")
ONE = 40  # items that are surely written in one commit
MANY = 5000  # items that surely are not
ROOM = 1000  # items from which on deletions are large
FULL = "disk is full|No space left"


@dataclass(frozen=True)
class Operation:
    """Something a victim does. An id has one content per take; for a deletion the takes do not matter."""

    kind: str
    takes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Story:
    """What the journal tells: what must be in the index, and what the victim was at when it died."""

    takes: dict[str, int]
    pending: Operation | None
    operations: int


@functools.cache
def model() -> Genius:
    """The same for all that this process opens: it takes longer to get ready than an index does."""
    return tiny_model()


def make(id: str, take: int) -> Item:
    """Texts are unique; some items have an image as well, and later takes bring new metadata fields."""
    image = None
    if int(id[1:]) % 5 == 0:
        png = io.BytesIO()
        draw_image(("red", "green", "blue")[take % 3]).save(png, "PNG")
        image = png.getvalue()
    return Item(id, f"{id} {id}take{take}", image, {"take": take, f"take {take % 4}": True})


def victim(talk: Talk, path: Path, seed: int) -> None:
    """Hear what is there and what to do again, then change the index until killed."""
    commits.MAX_SMALL_FILES = 3  # so that nearly every change merges files as well
    generator, model = random.Random(seed), tiny_model()
    takes, again, journal = talk.hear()
    log = os.open(journal, os.O_WRONLY | os.O_APPEND)

    def write(*record: object) -> None:
        os.write(log, json.dumps(record).encode() + b"\n")

    index = Index.open(path, model)
    if generator.random() < 0.1:
        index.search(Query(text="anything"))  # from now on memory is kept in step
    for operation in itertools.chain(again, ideas(generator, takes)):
        write("begin", operation.kind, operation.takes)
        perform(index, operation, lambda ids: write("acknowledged", list(ids)))
        write("done")


def ideas(generator: random.Random, takes: dict[str, int]) -> Iterator[Operation]:
    """Operations without end. They keep the index at a few hundred items."""
    fresh = itertools.count(1 + max((int(id[1:]) for id in takes), default=0))
    while True:
        kind = generator.choices(KINDS, [8, 6, 6, 4, 3] if takes else [1, 0, 0, 0, 0])[0]
        some = generator.sample(sorted(takes), min(len(takes), generator.randint(1, ONE // 2)))
        if len(takes) > ROOM:
            kind, some = "delete", sorted(takes)[ONE:]
        if kind == "add":
            size = MANY if generator.random() < 0.03 else generator.randint(1, ONE)
            changed = {f"i{next(fresh)}": 0 for _ in range(size)}
        elif kind == "upsert":
            changed = {id: takes[id] + 1 for id in some} | {f"i{next(fresh)}": 0 for _ in range(len(some) // 2)}
        else:
            changed = dict.fromkeys(some, 0) if kind == "delete" else {}
        takes = apply(takes, Operation(kind, changed))
        yield Operation(kind, changed)


def apply(takes: dict[str, int], operation: Operation) -> dict[str, int]:
    if operation.kind == "delete":
        return {id: take for id, take in takes.items() if id not in operation.takes}
    return takes | operation.takes


def perform(index: Index, operation: Operation, on_commit: Callable[[list[str]], None]) -> None:
    items = [make(id, take) for id, take in operation.takes.items()]
    if operation.kind == "add":
        report = index.add(iter(items), on_commit=on_commit)
        assert report.added + report.unchanged == len(items), report.bad
    elif operation.kind == "upsert":
        report = index.upsert(iter(items), on_commit=on_commit)
        assert report.added + report.unchanged == len(items), report.bad
    elif operation.kind == "delete":
        index.delete(operation.takes)
    elif operation.kind == "compact":
        index.compact(keep=timedelta(0))
    else:
        index.reindex()


def read_journal(journal: Path, takes: dict[str, int]) -> Story:
    """The story of one victim that began with these items. A line that was cut off never happened."""
    pending, operations = None, 0
    for line in journal.read_bytes().split(b"\n")[:-1]:
        match json.loads(line):
            case ["begin", kind, changed]:
                pending = Operation(kind, changed)
            case ["acknowledged", ids]:
                assert pending is not None
                takes = takes | {id: pending.takes[id] for id in ids}
            case ["done"]:
                assert pending is not None
                takes, pending, operations = apply(takes, pending), None, operations + 1
    return Story(takes, pending, operations)


def read_index(index: Index) -> dict[str, int]:
    """The take of every item; each must be there once, with the content of its take."""
    items = index.filter("id IS NOT NULL")
    takes = {item.id: item.metadata["take"] for item in items}
    assert len(index) == len(items) == len(takes)
    assert all(item == make(item.id, takes[item.id]) for item in items)
    return takes


def check(path: Path, story: Story, generator: random.Random) -> dict[str, int]:
    """Whether the index is as the story says, answers, and finds nothing wrong with itself; what is in it."""
    index = Index.open(path, model())
    takes = read_index(index)
    changed = story.takes if story.pending is None else apply(story.takes, story.pending)
    unclear = [id for id in story.takes | changed if story.takes.get(id) != changed.get(id)]
    assert _without(takes, unclear) == _without(story.takes, unclear)
    happened = [takes.get(id) == changed.get(id) for id in unclear]
    assert all(it or takes.get(id) == story.takes.get(id) for id, it in zip(unclear, happened, strict=True))
    if story.pending is not None and story.pending.kind == "add" and len(unclear) > ONE:
        assert happened == sorted(happened, reverse=True), "later items are there, earlier ones are not"
    else:
        assert len(set(happened)) <= 1, f"half of a commit is there: {story.pending}, {happened}"
    assert index.verify() == []
    some = generator.sample(sorted(takes), min(len(takes), 20))
    for ids, expected in ((None, min(len(takes), 20)), (some, len(some))):
        hits = index.search(Query(text="anything"), k=20, ids=ids)
        assert len({hit.id for hit in hits}) == len(hits) == expected
        assert all(hit.item == make(hit.id, takes[hit.id]) for hit in hits)
    return takes


def _without(takes: dict[str, int], ids: list[str]) -> dict[str, int]:
    return {id: takes[id] for id in takes.keys() - set(ids)}


def unused_data(path: Path) -> set[str]:
    """Data files that no version knows: their writer died before they became part of the index."""
    dataset = lance.dataset(path / "items.lance")
    versions = (lance.dataset(path / "items.lance", version=one["version"]) for one in dataset.versions())
    used = {data.path for one in versions for fragment in one.get_fragments() for data in fragment.data_files()}
    return {file.name for file in (path / "items.lance" / "data").iterdir()} - used


def times(path: Path, folders: str = "*") -> list[int]:
    """When the folders of the dataset changed."""
    return [folder.stat().st_mtime_ns for folder in (path / "items.lance").glob(folders) if folder.is_dir()]


def has_lines(journal: Path, number: int) -> bool:
    return journal.read_bytes().count(b"\n") >= number


def has_changed(path: Path, before: list[int], folders: str = "*") -> bool:
    return times(path, folders) != before


def wait_for(condition: Callable[..., bool], *arguments: object) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition(*arguments):
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.0005)


@pytest.fixture
def path() -> Iterator[Path]:
    with folder_in_memory() as folder:
        Index.create(folder / "index", model()).add([make(f"i{n}", 0) for n in range(1, ONE)])
        yield folder / "index"


def test_a_hundred_kills_lose_nothing_that_was_acknowledged(path: Path, tmp_path: Path) -> None:
    kills = 100
    generator = random.Random(0)
    takes, again = read_index(Index.open(path)), list[Operation]()
    stages: Counter[str] = Counter()
    with ExitStack() as processes:
        victims = [processes.enter_context(other(victim, path, 0))]
        for kill in range(kills):
            victims.append(processes.enter_context(other(victim, path, kill + 1)))  # ready when its turn comes
            journal, orphans = tmp_path / f"journal-{kill}", unused_data(path)
            journal.touch()
            victims[kill].say((takes, again, journal))
            wait_for(has_lines, journal, generator.randint(1, 6))
            match kill % 3:
                case 0:  # at any moment: most are spent on encoding
                    time.sleep(generator.uniform(0, 0.05))
                case 1:  # while files come and go
                    wait_for(has_changed, path, times(path))
                    time.sleep(generator.uniform(0, 0.01))
                case 2:  # just before or after it is acknowledged
                    wait_for(has_changed, path, times(path, "_versions"), "_versions")
                    time.sleep(generator.uniform(0, 0.002))
            victims[kill].kill()
            story = read_journal(journal, takes)
            takes = check(path, story, generator)
            again = [story.pending] if story.pending is not None and generator.random() < 0.5 else []
            stages["operations that were completed"] += story.operations
            if story.pending is not None:
                stages["kills during an operation"] += 1
                stages[f"kills during {story.pending.kind}"] += 1
                stages["data written, not yet part of the index"] += not unused_data(path) <= orphans
                stages["part of the index, not yet acknowledged"] += takes != story.takes
    logging.getLogger(__name__).info("%d kills: %s", kills, dict(stages))  # shown by --log-cli-level=info
    assert stages["kills during an operation"] > kills // 2, stages
    assert all(stages[f"kills during {kind}"] for kind in KINDS), stages
    assert stages["data written, not yet part of the index"] > 0, stages
    assert stages["part of the index, not yet acknowledged"] > 0, stages

    index = Index.open(path, model())
    fresh = Index.create(tmp_path / "fresh", model())
    fresh.add([make(id, take) for id, take in takes.items()])
    assert answers(index) == answers(fresh)
    index.compact(keep=timedelta(0))
    assert unused_data(path) == set()
    assert answers(index) == answers(Index.open(path, model())) == answers(fresh)


def create(talk: Talk, path: Path) -> None:
    model = tiny_model()
    talk.say("ready")
    Index.create(path, model)


def test_a_creation_that_was_killed_can_be_repeated_unless_it_succeeded(tmp_path: Path) -> None:
    generator, states = random.Random(0), set()
    for kill in range(8):
        path = tmp_path / str(kill)
        with other(create, path) as process:
            process.hear()
            time.sleep(generator.uniform(0, 0.02))
        try:
            index = Index.open(path, model())
            states.add("there")
        except BadIndex:
            states.add("half" if path.exists() else "not there")
            index = Index.create(path, model())
        assert index.add([make("i1", 0)]).added == 1
        assert index.verify() == []
    assert states


def answers(index: Index) -> list[tuple[str, float]]:
    """Ids and scores; those of equal score in the order of their ids."""
    hits = index.search([Query(text=f"i{n} i{n}take0") for n in range(5)], k=50)
    return [
        pair for one in hits for pair in sorted(((hit.id, hit.score) for hit in one), key=lambda it: (-it[1], it[0]))
    ]


# Disks


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of four megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True, text=True)
    if mount.returncode:
        pytest.skip(f"a small disk cannot be mounted here ({mount.stderr.strip()})")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(disk: Path, room: int) -> Path:
    """A file that leaves so many bytes."""
    filler = disk / "filler"
    usage = os.statvfs(disk)
    filler.write_bytes(bytes(usage.f_bavail * usage.f_frsize - room))
    return filler


def writes(index: Index) -> dict[str, Callable[[], object]]:
    """Everything that changes an index with the items i1 to i30."""
    return {
        "add": lambda: index.add([make(f"i{n}", 0) for n in range(100, 130)]),
        "upsert": lambda: index.upsert([make(f"i{n}", 1) for n in range(1, 20)]),
        "delete": lambda: index.delete([f"i{n}" for n in range(1, 10)]),
        "compact": lambda: index.compact(keep=timedelta(0)),
        "reindex": lambda: index.reindex(),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_is_said_and_leaves_the_index_intact(disk: Path, kind: str) -> None:
    path, before = disk / "index", {f"i{n}": 0 for n in range(1, 31)}
    index = Index.create(path, model())
    for start in range(1, 31, 10):  # several files, so that there is something to merge
        index.add([make(f"i{n}", 0) for n in range(start, start + 10)])
    index.search(Query(text="anything"))
    said = []
    for room in range(0, 1 << 20, 4096):  # for nothing; for the data, but not for what makes them part of the index
        filler = fill(disk, room)
        try:
            writes(index)[kind]()
            break
        except GeniusError as error:
            said.append(str(error))
        finally:
            filler.unlink()
        for one in (index, Index.open(path, model())):
            assert read_index(one) == before
            assert len(one.search(Query(text="anything"), k=100)) == len(before)
    assert said
    assert all(re.search(FULL, sentence) for sentence in said)
    after = read_index(Index.open(path, model()))
    assert read_index(index) == after
    assert (after == before) == (kind in ("compact", "reindex"))
    assert index.verify() == []
    assert {hit.id for hit in index.search(Query(text="anything"), k=100)} == after.keys()


def test_a_full_disk_stops_a_long_addition_at_the_last_acknowledged_item(disk: Path) -> None:
    path, acknowledged = disk / "index", list[str]()
    index, items = Index.create(path, model()), [make(f"i{n}", 0) for n in range(MANY)]
    fill(disk, room=300_000)
    with pytest.raises(GeniusError, match=FULL):
        index.add(items, on_commit=acknowledged.extend)
    assert acknowledged
    assert list(read_index(index)) == list(read_index(Index.open(path, model()))) == acknowledged
    assert acknowledged == [item.id for item in items[: len(acknowledged)]]


def test_a_read_only_folder_is_read_and_its_refusal_to_be_written_is_said(disk: Path) -> None:
    path = disk / "index"
    Index.create(path, model()).add([make(f"i{n}", 0) for n in range(1, 31)])
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    index = Index.open(path, model())
    before = read_index(index)
    assert len(before) == 30
    assert index.get("i1") == make("i1", 0)
    assert len(index.search(Query(text="anything"), k=100)) == 30
    assert index.verify() == []
    assert index.info().items == 30
    assert not index.refresh()
    for write in writes(index).values():
        with pytest.raises(GeniusError, match=r"[Rr]ead-only"):
            write()
    assert read_index(index) == read_index(Index.open(path, model())) == before
    with pytest.raises(GeniusError, match=r"[Rr]ead-only"):
        Index.create(disk / "another", model())
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    for write in writes(index).values():
        write()
    assert index.verify() == []
