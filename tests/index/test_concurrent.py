"""Several processes at one index: many that read, one at a time that writes."""

import functools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from fakes import TinyEncoder, tiny_model
from processes import Talk, folder_in_memory, other

from genius.data.items import Item, Query
from genius.encoders.base import Prepared, Vectors
from genius.errors import BadIndex, GeniusError
from genius.index.index import Index
from genius.model.genius import Genius

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the processes are forked")

ROUNDS = 12
SIDES = ("left", "right")


@functools.cache
def model() -> Genius:
    """The same for all that this process opens: it takes longer to get ready than an index does."""
    return tiny_model()


def make(id: str, take: int = 0) -> Item:
    return Item(id, f"{id} take{take}", metadata={"take": take})


def pair(number: int, take: int = 0) -> list[Item]:
    """Two items that are always written together."""
    return [make(f"{side} {number}", take) for side in SIDES]


def everything(index: Index) -> dict[str, int]:
    """The take of every item, each of which is there once."""
    items = index.filter("id IS NOT NULL")
    takes = {item.id: item.metadata["take"] for item in items}
    assert len(items) == len(takes) == len(index) == index.count()
    assert all(item == make(item.id, takes[item.id]) for item in items)
    return takes


def everything_in_pairs(index: Index) -> dict[str, int]:
    takes = everything(index)
    twins = Counter((id.split()[1], take) for id, take in takes.items())
    assert set(twins.values()) == {2}, f"half of a pair is there: {takes}"
    assert "left 0" in takes, "an item that is only ever changed is gone"
    return takes


def found(index: Index, text: str = "anything") -> set[str]:
    return {hit.id for hit in index.search(Query(text), k=1000)}


def writes(index: Index) -> list[Callable[[], object]]:
    """Everything that changes an index."""
    return [
        lambda: index.add(pair(7)),
        lambda: index.upsert(pair(7)),
        lambda: index.delete("left 0"),
        lambda: index.compact(),
        lambda: index.reindex(),
    ]


@pytest.fixture
def path() -> Iterator[Path]:
    with folder_in_memory() as folder:
        Index.create(folder / "index", model()).add(pair(0))
        yield folder / "index"


# What the other processes do


def write_pairs(talk: Talk, path: Path) -> None:
    """Pairs come, change and go. In the middle, wait until told to go on."""
    index = Index.open(path, tiny_model())
    for number in range(1, ROUNDS):
        if number == ROUNDS // 2:
            talk.say("half")
            talk.hear()
        index.add(pair(number))
        if number % 3 == 2:
            index.upsert(pair(0, take=number) + pair(number - 1, take=number))
        if number % 4 == 3:
            index.delete([item.id for item in pair(number - 2)])
        if number % 5 == 4:
            index.compact()
    index.add(pair(ROUNDS))


def read_pairs(talk: Talk, path: Path) -> int:
    """Look at one version after the other until the last; how many there were."""
    index = Index.open(path, tiny_model())
    seen = set[int]()
    while True:
        takes = everything_in_pairs(index)
        assert found(index) == set(takes)
        if not seen:
            talk.say("began")
        seen.add(index.version)
        if f"left {ROUNDS}" in takes:
            return len(seen)
        index.refresh()


def add(talk: Talk, path: Path, items: list[Item]) -> tuple[int, int, set[str]]:
    """Added, unchanged, and the ids of what was refused."""
    index = Index.open(path, tiny_model())
    talk.say("ready")
    talk.hear()
    report = index.add(items)
    return report.added, report.unchanged, {bad.id for bad in report.bad}


def add_patiently(talk: Talk, path: Path, items: list[Item]) -> int:
    index = Index.open(path, tiny_model(), wait=60.0)
    talk.say("ready")
    return index.add(items).added


def reindex_slowly(talk: Talk, path: Path) -> None:
    """Begin to encode, and go on when told to."""

    class SlowEncoder(TinyEncoder):
        def encode(self, inputs: Sequence[Prepared], progress: bool = False) -> Vectors:
            talk.say("encoding")
            talk.hear()
            return super().encode(inputs, progress)

    model = tiny_model()
    model.encoder = SlowEncoder()
    Index.open(path, model).reindex()


def search_until_told(talk: Talk, path: Path) -> int:
    """Search without ever asking for news; how often."""
    index = Index.open(path, tiny_model())
    searches = 0
    while not talk.told():
        hits = index.search(Query("anything"), k=1000)
        assert hits
        assert all(hit.item == make(hit.id, hit.item.metadata["take"]) for hit in hits)
        searches += 1
        if searches == 1:
            talk.say("began")
    return searches


# Readers


def test_readers_never_see_half_of_a_write(path: Path) -> None:
    first = Index.open(path, model()).version
    with other(read_pairs, path) as one, other(read_pairs, path) as two, other(write_pairs, path) as writer:
        assert writer.hear() == "half"
        assert one.hear() == two.hear() == "began"
        writer.say("go on")
        assert writer.hear() is None
        assert one.hear() >= 2
        assert two.hear() >= 2
    versions = [version.number for version in Index.open(path, model()).versions() if version.number >= first]
    assert len(versions) > ROUNDS
    for version in versions:  # also those that no reader has met
        everything_in_pairs(Index.open(path, model(), version=version))


def test_a_reader_keeps_its_snapshot_until_it_asks_for_news(path: Path) -> None:
    reader = Index.open(path, model())
    before = everything(reader)
    with other(write_pairs, path) as writer:
        writer.hear()
        assert everything(reader) == before
        assert found(reader) == set(before)
        assert reader.get("left 2") is None
        assert reader.refresh()
        half = everything(reader)
        assert f"left {ROUNDS // 2 - 1}" in half
        assert found(reader) == set(half)
        assert not reader.refresh()
        writer.say("go on")
        writer.hear()
    assert everything(reader) == half
    assert reader.refresh()
    assert everything(reader) == everything(Index.open(path, model()))
    assert found(reader) == set(everything(reader))


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_a_reader_with_a_timer_asks_for_news_by_itself(path: Path, seconds: float) -> None:
    reader, late = (Index.open(path, model(), refresh=one) for one in (seconds, 3600.0))
    assert found(reader) == found(late) == {"left 0", "right 0"}
    with other(add_patiently, path, pair(1)) as writer:
        assert writer.hear() == "ready"
        assert writer.hear() == 2
    deadline = time.monotonic() + 10
    while seconds and len(reader) == 2 and time.monotonic() < deadline:
        time.sleep(seconds)
    assert found(reader) == {"left 0", "right 0", "left 1", "right 1"}
    assert found(late) == {"left 0", "right 0"}


def test_a_reader_survives_the_removal_of_what_it_reads(path: Path) -> None:
    index = Index.open(path, model())
    with other(search_until_told, path) as reader:
        reader.hear()
        for number in range(1, 6):
            index.upsert(pair(0, number) + pair(number))
            index.delete([item.id for item in pair(number - 1) if number > 1])
            index.compact(keep=timedelta(0))
        reader.say("enough")
        assert reader.hear() > 1


def test_the_same_reader_goes_on_after_the_removal_of_what_it_reads(path: Path) -> None:
    searching, fetching, idle = (Index.open(path, model()) for _ in range(3))
    assert found(searching) == {"left 0", "right 0"}
    writer = Index.open(path, model())
    writer.upsert(pair(0, take=1))
    writer.compact(keep=timedelta(0))
    assert found(searching) == {"left 0", "right 0"}
    assert everything(fetching).keys() == {"left 0", "right 0"}
    assert idle.get("left 0") is not None
    for reader in (searching, fetching, idle):
        reader.refresh()
        assert everything(reader) == {"left 0": 1, "right 0": 1}
        assert found(reader) == {"left 0", "right 0"}


def test_a_reader_keeps_its_snapshot_when_the_index_gets_a_model_it_cannot_load(path: Path) -> None:
    reader, searched = Index.open(path, model()), Index.open(path, model())
    assert found(searched) == {"left 0", "right 0"}
    Index.open(path, model()).reindex(tiny_model(1))
    for one in (reader, searched):
        assert found(one) == everything(one).keys() == {"left 0", "right 0"}
        with pytest.raises(GeniusError, match="model"):
            one.refresh()
        assert found(one) == everything(one).keys() == {"left 0", "right 0"}
    fresh = Index.open(path, tiny_model(1))
    assert found(fresh) == everything(fresh).keys() == {"left 0", "right 0"}
    assert fresh.verify() == []


# Writers


def test_a_second_writer_waits_or_is_told(path: Path) -> None:
    with other(reindex_slowly, path) as first:
        assert first.hear() == "encoding"
        for write in writes(Index.open(path, model(), wait=0.0)):
            with pytest.raises(BadIndex, match="nother process is writing"):
                write()
        assert everything(Index.open(path, model())) == {"left 0": 0, "right 0": 0}
        with other(add_patiently, path, pair(2)) as second:
            assert second.hear() == "ready"
            assert second.silent(0.3)
            first.say("go on")
            assert first.hear() is None
            assert second.hear() == 2
    assert everything(Index.open(path, model())).keys() == {"left 0", "right 0", "left 2", "right 2"}


def test_the_lock_of_a_writer_that_was_killed_is_free(path: Path) -> None:
    with other(reindex_slowly, path) as writer:
        writer.hear()
    index = Index.open(path, model(), wait=0.0)
    assert index.add(pair(1)).added == 2
    assert everything(index).keys() == {"left 0", "right 0", "left 1", "right 1"}
    assert index.verify() == []


@pytest.mark.parametrize("takes", [(0, 0), (0, 1)], ids=["same content", "other content"])
def test_ids_that_two_processes_add_at_once_are_there_once(path: Path, takes: tuple[int, int]) -> None:
    ids = [f"id{number}" for number in range(2500)]
    orders = ids, ids[::-1]
    jobs = [[make(id, take) for id in order] for order, take in zip(orders, takes, strict=True)]
    with other(add, path, jobs[0]) as one, other(add, path, jobs[1]) as two:
        for writer in (one, two):
            writer.hear()
        for writer in (one, two):
            writer.say("go")
        reports = [one.hear(), two.hear()]
    index = Index.open(path, model())
    there = everything(index)
    assert there.keys() == {"left 0", "right 0", *ids}
    assert sum(added for added, _, _ in reports) == len(ids)
    for (added, unchanged, refused), take in zip(reports, takes, strict=True):
        assert added + unchanged + len(refused) == len(ids)
        assert all((there[id] == take) != (id in refused) for id in ids)
    assert index.verify() == []


def test_writers_of_different_items_do_not_disturb_each_other(path: Path) -> None:
    jobs = [[make(f"{name}{number}") for number in range(2500)] for name in ("a", "b", "c")]
    with other(add, path, jobs[0]) as one, other(add, path, jobs[1]) as two, other(add, path, jobs[2]) as three:
        for writer in (one, two, three):
            writer.hear()
        for writer in (one, two, three):
            writer.say("go")
        assert [writer.hear() for writer in (one, two, three)] == [(2500, 0, set())] * 3
    index = Index.open(path, model())
    assert everything(index).keys() == {"left 0", "right 0"} | {item.id for job in jobs for item in job}
    assert index.verify() == []


def test_a_writer_sees_what_others_have_written(path: Path) -> None:
    """Whoever writes stands on the latest version, so that nothing is written twice or brought back."""
    one, two = Index.open(path, model()), Index.open(path, model())
    assert found(one) == found(two) == {"left 0", "right 0"}
    one.add(pair(1))
    report = two.add(pair(1) + pair(2))
    assert (report.added, report.unchanged) == (2, 2)
    two.delete(["left 0", "right 0"])
    one.upsert(pair(1, take=5))
    for index in (one, two, Index.open(path, model())):
        index.refresh()
        assert everything(index) == {"left 1": 5, "right 1": 5, "left 2": 0, "right 2": 0}
        assert found(index) == {"left 1", "right 1", "left 2", "right 2"}


# Older versions


def test_older_versions_can_be_opened_until_they_are_removed(path: Path) -> None:
    index = Index.open(path, model())
    states = {index.version: everything(index)}
    for change in (
        lambda: index.add(pair(1)),
        lambda: index.upsert(pair(1, take=1)),
        lambda: index.delete(["left 0", "right 0"]),
    ):
        change()
        states[index.version] = everything(index)
    assert len(states) == 4
    assert {version.number: version.items for version in index.versions()}.items() >= {
        (number, len(state)) for number, state in states.items()
    }
    for number, state in states.items():
        old = Index.open(path, model(), version=number)
        assert old.version == number
        assert everything(old) == state
        assert found(old) == set(state)
    old = Index.open(path, model(), version=min(states))
    for write in writes(old):
        with pytest.raises(GeniusError, match="version"):
            write()
    assert everything(Index.open(path, model())) == states[max(states)]

    index.compact(keep=timedelta(0))
    assert everything(index) == everything(Index.open(path, model())) == states[max(states)]
    with pytest.raises(BadIndex, match="version"):
        Index.open(path, model(), version=min(states))
    with pytest.raises(BadIndex, match="version"):
        Index.open(path, model(), version=max(states) + 1000)
    assert min(states) not in [version.number for version in index.versions()]


def _create(talk: Talk, path: Path) -> bool:
    talk.say("ready")
    talk.hear()
    try:
        Index.create(path, tiny_model()).add([Item("a", text="one")])
    except BadIndex:
        return False
    return True


def test_of_two_processes_that_create_an_index_one_is_refused(path: Path) -> None:
    for turn in range(5):
        folder = path.parent / f"created-{turn}"
        with other(_create, folder) as one, other(_create, folder) as two:
            assert (one.hear(), two.hear()) == ("ready", "ready")
            one.say("go")
            two.say("go")
            assert sorted([one.hear(), two.hear()]) == [False, True]
        assert [item.id for item in Index.open(folder, tiny_model()).items()] == ["a"]


def test_a_timer_that_cannot_read_says_so_once_and_the_reader_goes_on(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reader = Index.open(path, model(), refresh=0.02)
    assert found(reader) == {"left 0", "right 0"}
    versions = path / "items.lance" / "_versions"
    versions.rename(path / "hidden")
    deadline = time.monotonic() + 10
    while not caplog.records and time.monotonic() < deadline:
        time.sleep(0.02)
    time.sleep(0.2)  # time for more of the same, if there were any
    assert [record.getMessage().endswith("The version seen before is still used.") for record in caplog.records] == [
        True
    ]
    assert len(reader) == 2
    (path / "hidden").rename(versions)
    Index.open(path, model()).add(pair(1))
    while len(reader) == 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert found(reader) == {"left 0", "right 0", "left 1", "right 1"}
