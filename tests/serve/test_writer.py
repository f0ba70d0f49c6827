"""Writer: each write is acknowledged with its outcome, after it is on the disk."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_index import LOCKED, FakeIndex, until
from fakes import draw_image, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from genius.data.items import Item
from genius.errors import BadIndex, BadItem
from genius.index.index import Index
from genius.serve import writer
from genius.serve.limits import ServiceUnavailable
from genius.serve.settings import Settings
from genius.serve.writer import Writer


@asynccontextmanager
async def writing(index: Any, **limits: Any) -> AsyncIterator[Writer]:
    one = Writer(index, Settings(**limits))
    one.start()
    try:
        yield one
    finally:
        if isinstance(index, FakeIndex):
            index.gate.open()
        await one.stop(20)


async def held_up(writer: Writer, index: FakeIndex) -> "asyncio.Task[Any]":
    """A put that the thread is busy with until the gate is opened."""
    index.gate.shut()
    before = index.gate.reached
    first = put(writer, "first")
    await until(lambda: index.gate.reached == before + 1)
    return first


def put(writer: Writer, id: str, text: str = "text") -> "asyncio.Task[Any]":
    return asyncio.create_task(writer.put(Item(id, text)))


def delete(writer: Writer, id: str) -> "asyncio.Task[Any]":
    return asyncio.create_task(writer.delete(id))


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_puts_and_deletes_say_what_became_of_the_item_and_in_which_version() -> None:
    async def test() -> None:
        index = FakeIndex()
        async with writing(index) as one:
            assert await put(one, "a", "old") == ("created", 2)
            assert await put(one, "a", "new") == ("replaced", 3)
            assert await put(one, "a", "new") == ("unchanged", 3)
            with pytest.raises(BadItem, match="it is bad"):
                await put(one, "b", "bad")
            assert await delete(one, "a") is True
            assert await delete(one, "a") is False
        assert index.items == {}

    run(test)


def test_what_waits_goes_into_one_commit_with_an_outcome_for_each() -> None:
    async def test() -> None:
        index = FakeIndex()
        index.items = {"old": Item("old", "old"), "same": Item("same", "text"), "going": Item("going", "text")}
        async with writing(index) as one:
            first = await held_up(one, index)
            others = [put(one, "new"), put(one, "old"), delete(one, "going"), put(one, "same"), put(one, "b", "bad")]
            await until(lambda: one.waiting == 5)
            index.gate.open()
            await first
            new, old, going, same, bad = await asyncio.gather(*others, return_exceptions=True)
        assert index.commits == [["first"], ["new", "old"], ["going"]]
        assert (new, old, going, same) == (("created", 3), ("replaced", 3), True, ("unchanged", 3))
        assert isinstance(bad, BadItem)

    run(test)


def test_nothing_is_acknowledged_before_it_is_committed() -> None:
    async def test() -> None:
        index = FakeIndex()
        async with writing(index) as one:
            first = await held_up(one, index)
            for _ in range(20):
                await asyncio.sleep(0)
            assert not first.done()
            index.gate.open()
            await first
            assert "first" in index.items

    run(test)


def test_writes_to_one_item_happen_in_the_order_in_which_they_came() -> None:
    async def test() -> None:
        index = FakeIndex()
        async with writing(index) as one:
            first = await held_up(one, index)
            others = [put(one, "a", "1"), delete(one, "a"), put(one, "a", "2"), put(one, "a", "2"), put(one, "b", "1")]
            await until(lambda: one.waiting == 5)
            index.gate.open()
            await first
            outcomes = await asyncio.gather(*others)
        assert [outcome if isinstance(outcome, bool) else outcome[0] for outcome in outcomes] == [
            "created",
            True,
            "created",
            "unchanged",
            "created",
        ]
        assert index.commits[1] == ["a", "b"]

    run(test)


def test_a_deletion_by_filter_sees_what_came_before_it_and_nothing_after() -> None:
    async def test() -> None:
        index = FakeIndex()
        async with writing(index) as one:
            first = await held_up(one, index)
            before = [put(one, "a", "old"), put(one, "b", "old"), put(one, "c", "new")]
            await until(lambda: one.waiting == 3)
            deletion = asyncio.create_task(one.delete_where("old"))
            await until(lambda: one.waiting == 4)
            after = put(one, "d", "old")
            await until(lambda: one.waiting == 5)
            index.gate.open()
            await asyncio.gather(first, *before, after)
            assert await deletion == (2, 4)
            assert set(index.items) == {"first", "c", "d"}
            assert await one.delete_where("nothing") == (0, 5)
            index.failure = LOCKED
            with pytest.raises(BadIndex):
                await one.delete_where("old")
            assert (await put(one, "e", "new"))[0] == "created"

    run(test)


@pytest.mark.parametrize("failure", [LOCKED, OSError("no space left")])
def test_a_failure_is_told_to_those_it_concerns_and_the_service_goes_on(failure: Exception) -> None:
    async def test() -> None:
        index = FakeIndex()
        async with writing(index) as one:
            index.failure = failure
            with pytest.raises(type(failure), match=str(failure)):
                await put(one, "a")
            index.failure = failure
            with pytest.raises(type(failure)):
                await delete(one, "a")
            assert (await put(one, "a"))[0] == "created"

    run(test)


def test_a_failure_after_the_commit_does_not_make_it_undone() -> None:
    class Shaky(FakeIndex):
        def upsert(self, items: Any, on_commit: Any) -> Any:
            super().upsert(items, on_commit)
            raise LOCKED

    async def test() -> None:
        async with writing(Shaky()) as one:
            assert (await put(one, "a"))[0] == "created"

    run(test)


def test_too_many_writes_or_bytes_are_refused_and_fit_again_later() -> None:
    async def test() -> None:
        index = FakeIndex()
        async with writing(index, max_waiting=2, max_waiting_bytes=10_000) as one:
            first = await held_up(one, index)
            with pytest.raises(ServiceUnavailable, match="MB"):
                await one.put(Item("large", "x" * 10_000))
            others = [put(one, "a"), put(one, "b")]
            await until(lambda: one.waiting == 2)
            with pytest.raises(ServiceUnavailable, match="More than 2 changes"):
                await one.put(Item("c", "text"))
            index.gate.open()
            await asyncio.gather(first, *others)
            assert (await one.put(Item("large", "x" * 10_000)))[0] == "created"
        assert one._budget.used == 0

    run(test)


def test_a_write_that_nobody_waits_for_any_more_is_left_out() -> None:
    async def test() -> None:
        index = FakeIndex()
        async with writing(index) as one:
            first = await held_up(one, index)
            gone, stays = put(one, "gone"), put(one, "stays")
            await until(lambda: one.waiting == 2)
            gone.cancel()
            await until(gone.done)
            index.gate.open()
            await asyncio.gather(first, stays)
        assert list(index.items) == ["first", "stays"]
        assert one._budget.used == 0

    run(test)


def test_a_bulk_addition_lets_single_writes_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        index = FakeIndex()
        async with writing(index) as one:
            one._chunk_size = 2
            first = await held_up(one, index)
            one.add([Item(f"i{i}", "text") for i in range(4)])
            index.gate.shut()
            index.gate.open()
            await first
            await until(lambda: not one.jobs.waiting)
        assert index.commits == [["first"], ["i0", "i1"], ["i2", "i3"]]

        index = FakeIndex()
        async with writing(index) as one:
            one._chunk_size = 2
            index.gate.shut()
            one.add([Item(f"i{i}", "text") for i in range(4)])
            await until(lambda: index.gate.reached == 1)
            single = put(one, "single")
            await until(lambda: one.waiting == 1)
            index.gate.open()
            await single
            await until(lambda: not one.jobs.waiting)
        assert index.commits == [["i0", "i1"], ["single"], ["i2", "i3"]]

    monkeypatch.setattr(writer, "MAX_CHUNK", 2)
    run(test)


def test_bulk_additions_are_done_in_pieces_that_take_about_as_long_as_one_may_wait() -> None:
    one = Writer(FakeIndex(), Settings())  # type: ignore[arg-type]
    sizes = []
    for seconds in (0.1, 0.1, 0.1, 0.1, 4.0, 1.0):
        one._adapt_chunk_size(one._chunk_size, seconds)
        sizes.append(one._chunk_size)
    assert sizes == [64, 128, 256, 256, 64, 64]


def test_the_index_is_compacted_after_many_commits_in_a_quiet_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "COMPACT_AFTER", 3)

    async def test() -> None:
        index = FakeIndex()
        async with writing(index) as one:
            for times in (1, 2):
                for i in range(3):
                    await put(one, f"{times} {i}")
                    await delete(one, "nothing")
                await until(lambda: index.compacted == times)  # noqa: B023
            assert one._commits == 0

    run(test)


def test_stopping_writes_what_waits_and_takes_nothing_more() -> None:
    async def test() -> None:
        index = FakeIndex()
        one = Writer(index, Settings())  # type: ignore[arg-type]
        one.start()
        first = await held_up(one, index)
        second, job = put(one, "second"), one.add([Item("third", "text")])
        await until(lambda: one.waiting == 1)
        stopping = asyncio.create_task(one.stop(30))
        await until(lambda: one._closed)
        for late in (one.put(Item("late", "text")), one.delete("late")):
            with pytest.raises(ServiceUnavailable, match="stopping"):
                await late
        with pytest.raises(ServiceUnavailable, match="stopping"):
            one.add([Item("late", "text")])
        index.gate.open()
        await stopping
        assert [(await first)[0], (await second)[0]] == ["created", "created"]
        assert one.jobs.get(job.id).state == "done"  # type: ignore[union-attr]
        assert set(index.items) == {"first", "second", "third"}
        assert not one._thread.is_alive()

    run(test)


def test_what_is_not_written_when_the_time_is_up_is_refused_with_a_sentence() -> None:
    async def test() -> None:
        index = FakeIndex()
        one = Writer(index, Settings())  # type: ignore[arg-type]
        one.start()
        first = await held_up(one, index)
        second, job = put(one, "second"), one.add([Item("third", "text")])
        await until(lambda: one.waiting == 1)
        stopping = asyncio.create_task(one.stop(0))
        await until(lambda: one._given_up)
        index.gate.open()
        await stopping
        assert (await first)[0] == "created"
        with pytest.raises(ServiceUnavailable, match="stopped before"):
            await second
        ended = one.jobs.get(job.id)
        assert ended is not None
        assert (ended.state, ended.done) == ("failed", 0)
        assert "stopped before" in str(ended.error)
        assert list(index.items) == ["first"]
        assert one._budget.used == 0

    run(test)


# As with the real index

IDS = st.sampled_from(["a", "b", "c"])
WRITES = st.one_of(
    st.tuples(st.just("put"), IDS, st.sampled_from(["cat", "dog", "red house"])),
    st.tuples(st.just("delete"), IDS, st.just("")),
)


def expected(there: dict[str, str], write: tuple[str, str, str]) -> Any:
    """What a dict says to a write."""
    what, id, text = write
    if what == "delete":
        return there.pop(id, None) is not None
    status = "unchanged" if there.get(id) == text else "replaced" if id in there else "created"
    there[id] = text
    return status


@settings(max_examples=12, deadline=None)
@given(bursts=st.lists(st.lists(WRITES, max_size=8), max_size=4))
def test_outcomes_are_those_of_a_dict(
    tmp_path_factory: pytest.TempPathFactory, bursts: list[list[tuple[str, str, str]]]
) -> None:
    path = tmp_path_factory.mktemp("writer") / "index"
    index = Index.create(path, tiny_model())
    there: dict[str, str] = {}

    async def test() -> None:
        async with writing(index) as one:
            for burst in bursts:
                tasks = [put(one, id, text) if what == "put" else delete(one, id) for what, id, text in burst]
                outcomes = await asyncio.gather(*tasks)
                shown = [outcome if isinstance(outcome, bool) else outcome[0] for outcome in outcomes]
                assert shown == [expected(there, write) for write in burst]
                on_disk = Index.open(path, index.model)
                assert {item.id: item.text for item in on_disk.items()} == there

    run(test)


def test_bad_images_are_refused_and_their_neighbours_written(tmp_path: Path) -> None:
    index = Index.create(tmp_path / "index", tiny_model())

    async def test() -> None:
        async with writing(index) as one:
            items = [Item("bad", image=b"no image"), Item("good", image=draw_image("red")), Item("empty")]
            bad, good, empty = await asyncio.gather(*map(one.put, items), return_exceptions=True)
            assert good == ("created", index.version)
            assert isinstance(bad, BadItem)
            assert isinstance(empty, BadItem)
            job = one.add([*items, Item("good too", "text"), BadItem("worse", "it is no item.")])
            await until(lambda: not one.jobs.waiting)
            ended = one.jobs.get(job.id)
            assert ended is not None
            assert (ended.state, ended.added, ended.unchanged, ended.bad_count, ended.done) == ("done", 1, 1, 3, 5)
            assert [one.id for one in ended.bad] == ["bad", "empty", "worse"]

    run(test)


def test_while_another_process_writes_a_put_fails_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "index"
    Index.create(path, tiny_model())
    index, other = Index.open(path, tiny_model(), wait=0.1), Index.open(path, tiny_model())

    async def test() -> None:
        async with writing(index) as one:
            with other._session.writing():
                with pytest.raises(BadIndex, match="Another process is writing"):
                    await put(one, "a")
                job = one.add([Item("b", "text")])
                await until(lambda: not one.jobs.waiting)
                ended = one.jobs.get(job.id)
                assert ended is not None
                assert ended.state == "failed"
                assert "Another process is writing" in str(ended.error)
            assert (await put(one, "a"))[0] == "created"

    run(test)
