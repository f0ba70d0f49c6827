"""Batcher: waiting queries are answered together, with the same results as one by one."""

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_index import FakeIndex, until
from fakes import draw_image, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from genius.data.items import Item, Query
from genius.errors import BadItem, GeniusError
from genius.index.index import Index
from genius.search.options import SearchOptions
from genius.serve.batching import Batcher, ServedResult
from genius.serve.limits import QueryExpired, ServiceUnavailable
from genius.serve.settings import Settings
from genius.serve.threads import NICENESS, Decoders


@asynccontextmanager
async def batcher(
    index: Any, seen: Callable[[list[ServedResult]], None] = lambda _: None, **limits: Any
) -> AsyncIterator[Batcher]:
    one = Batcher(index, Settings(**limits), seen)
    one.start()
    try:
        yield one
    finally:
        if isinstance(index, FakeIndex):
            index.gate.open()
            index.search_gate.open()
        await one.stop(10)


def text_of(reply: ServedResult) -> str:
    return reply.hits[0].id


def ask(batches: Batcher, text: str, **how: Any) -> "asyncio.Task[ServedResult]":
    return asyncio.create_task(batches.search(Query(text=text), SearchOptions(**how)))


async def held_up(batches: Batcher, index: FakeIndex) -> "asyncio.Task[ServedResult]":
    """A query that the thread is busy with until the gate is opened."""
    index.gate.shut()
    before = index.gate.reached
    first = ask(batches, "first")
    await until(lambda: index.gate.reached == before + 1)
    return first


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_what_waits_is_encoded_together_and_everyone_gets_the_own_answer() -> None:
    async def test() -> None:
        index = FakeIndex()
        async with batcher(index) as batches:
            first = await held_up(batches, index)
            others = [ask(batches, f"q{i}") for i in range(5)]
            await until(lambda: batches.waiting == 5)
            index.gate.open()
            replies = await asyncio.gather(first, *others)
        assert [text_of(reply) for reply in replies] == ["A first", *(f"A q{i}" for i in range(5))]
        assert [len(batch) for batch in index.batches] == [1, 5]
        assert [reply.batch for reply in replies] == [1, 5, 5, 5, 5, 5]

    run(test)


def test_a_batch_has_a_greatest_size() -> None:
    async def test() -> None:
        index = FakeIndex()
        async with batcher(index, max_batch=2) as batches:
            first = await held_up(batches, index)
            others = [ask(batches, f"q{i}") for i in range(5)]
            await until(lambda: batches.waiting == 5)
            index.gate.open()
            await asyncio.gather(first, *others)
        assert [len(batch) for batch in index.batches] == [1, 2, 2, 1]

    run(test)


def test_queries_are_encoded_in_one_go_and_answered_in_groups_of_the_same_settings() -> None:
    async def test() -> None:
        index = FakeIndex()
        async with batcher(index) as batches:
            first = await held_up(batches, index)
            others = [ask(batches, f"q{i}", k=1 + i % 2) for i in range(4)]
            await until(lambda: batches.waiting == 4)
            index.gate.open()
            replies = await asyncio.gather(first, *others)
        assert [len(batch) for batch in index.batches] == [1, 4]
        assert [(texts, how["k"]) for texts, how in index.groups[1:]] == [(["A q0", "A q2"], 1), (["A q1", "A q3"], 2)]
        assert [text_of(reply) for reply in replies[1:]] == [f"A q{i}" for i in range(4)]

    run(test)


def test_what_is_wrong_with_one_query_fails_that_one_alone() -> None:
    async def test() -> None:
        index = FakeIndex()
        async with batcher(index) as batches:
            first = await held_up(batches, index)
            others = [
                ask(batches, "good"),
                ask(batches, "broken"),
                ask(batches, "nan"),
                ask(batches, "unreadable"),
                ask(batches, "fine", where="wrong"),
                ask(batches, "also good", k=3),
            ]
            await until(lambda: batches.waiting == 6)
            index.gate.open()
            await first
            good, broken, nan, unreadable, wrong, also = await asyncio.gather(*others, return_exceptions=True)
        assert isinstance(good, ServedResult)
        assert isinstance(also, ServedResult)
        assert (text_of(good), text_of(also)) == ("A good", "A also good")
        assert [str(error) for error in (broken, nan, wrong)] == [
            "It is broken.",
            "A vector holds values that are not numbers.",
            "The condition is wrong.",
        ]
        assert isinstance(unreadable, BadItem)

    run(test)


def test_an_error_that_nobody_foresaw_fails_its_batch_and_not_the_next() -> None:
    async def test() -> None:
        def seen(_: list[ServedResult]) -> None:
            if not index.groups[1:]:
                raise ZeroDivisionError

        index = FakeIndex()
        async with batcher(index, seen) as batches:
            with pytest.raises(ZeroDivisionError):
                await ask(batches, "one")
            assert text_of(await ask(batches, "two")) == "A two"

    run(test)


def test_more_queries_than_may_wait_are_refused() -> None:
    async def test() -> None:
        index = FakeIndex()
        async with batcher(index, max_waiting=2) as batches:
            first = await held_up(batches, index)
            others = [ask(batches, "a"), ask(batches, "b")]
            await until(lambda: batches.waiting == 2)
            with pytest.raises(ServiceUnavailable, match="More than 2 queries"):
                await batches.search(Query(text="c"), SearchOptions())
            index.gate.open()
            await asyncio.gather(first, *others)
            assert text_of(await ask(batches, "d")) == "A d"
            with pytest.raises(ServiceUnavailable):
                await batches.search_many([(Query(text=f"q{i}"), SearchOptions(), 0) for i in range(3)])

    run(test)


def test_a_query_that_has_waited_too_long_is_not_computed() -> None:
    async def test() -> None:
        index = FakeIndex()
        async with batcher(index, deadline=0.0) as batches:
            with pytest.raises(QueryExpired, match="expired"):
                await batches.search(Query(text="late"), SearchOptions())
        assert index.batches == []

    run(test)


def test_a_query_that_nobody_waits_for_any_more_is_not_computed() -> None:
    async def test() -> None:
        index = FakeIndex()
        async with batcher(index) as batches:
            first = await held_up(batches, index)
            gone, stays = ask(batches, "gone"), ask(batches, "stays")
            await until(lambda: batches.waiting == 2)
            gone.cancel()
            await until(gone.done)
            index.gate.open()
            await asyncio.gather(first, stays)
        assert index.batches == [["A first"], ["A stays"]]

    run(test)


def test_many_queries_of_one_request_come_back_in_order_with_what_was_wrong_in_its_place() -> None:
    async def test() -> None:
        async with batcher(FakeIndex()) as batches:
            texts = ["one", "broken", "three"]
            found = await batches.search_many([(Query(text=text), SearchOptions(), 0) for text in texts])
        assert [text_of(one) if isinstance(one, ServedResult) else str(one) for one in found] == [
            "A one",
            "It is broken.",
            "A three",
        ]

    run(test)


def test_a_image_is_prepared_beside_the_thread_and_its_error_is_told_at_once() -> None:
    async def test() -> None:
        index = FakeIndex()
        async with batcher(index) as batches:
            first = await held_up(batches, index)
            with pytest.raises(BadItem, match="cannot be read"):
                await batches.search(Query(text="unreadable", image=draw_image("red")), SearchOptions())
            index.gate.open()
            await first
        assert index.batches == [["A first"]]

    run(test)


def test_a_query_prepared_for_a_model_that_has_been_replaced_is_prepared_anew() -> None:
    async def test() -> None:
        index = FakeIndex()
        async with batcher(index) as batches:
            first = await held_up(batches, index)
            second = asyncio.create_task(batches.search(Query(text="second", image=draw_image("red")), SearchOptions()))
            await until(lambda: batches.waiting == 1 and batches._queue.qsize() == 1)
            index.model = index.new_model("B")
            index.gate.open()
            replies = await asyncio.gather(first, second)
        assert [text_of(reply) for reply in replies] == ["B first", "B second"]  # the first was being encoded by A

    run(test)


def test_stopping_answers_what_waits_and_takes_nothing_more() -> None:
    async def test() -> None:
        index = FakeIndex()
        batches = Batcher(index, Settings())  # type: ignore[arg-type]
        batches.start()
        first = await held_up(batches, index)
        second = ask(batches, "second")
        await until(lambda: batches.waiting == 1)
        stopping = asyncio.create_task(batches.stop(30))
        await until(lambda: batches._closed)
        with pytest.raises(ServiceUnavailable, match="stopping"):
            await batches.search(Query(text="third"), SearchOptions())
        index.gate.open()
        await stopping
        assert [text_of(await first), text_of(await second)] == ["A first", "A second"]
        assert not any(thread.is_alive() for thread in batches._threads)

    run(test)


def test_what_is_not_answered_when_the_time_is_up_is_refused_with_a_sentence() -> None:
    async def test() -> None:
        index = FakeIndex()
        batches = Batcher(index, Settings())  # type: ignore[arg-type]
        batches.start()
        first, second = await searched_and_encoded(batches, index)
        third = ask(batches, "third")
        await until(lambda: batches.waiting == 1)
        stopping = asyncio.create_task(batches.stop(0))
        await until(lambda: batches._given_up)
        index.search_gate.open()
        await stopping
        assert text_of(await first) == "A first"  # it was being searched
        for late in (second, third):
            with pytest.raises(ServiceUnavailable, match="stopped before"):
                await late
        assert not any(thread.is_alive() for thread in batches._threads)

    run(test)


# Two stages


async def searched_and_encoded(
    batches: Batcher, index: FakeIndex
) -> "tuple[asyncio.Task[ServedResult], asyncio.Task[ServedResult]]":
    """A query that is searched until the gate is opened, and one that has been encoded and waits for its search."""
    index.search_gate.shut()
    first = ask(batches, "first")
    await until(lambda: index.search_gate.reached == 1)
    second = ask(batches, "second")
    await until(lambda: batches._encoded.qsize() == 1)
    return first, second


def test_a_batch_is_encoded_while_the_last_one_is_searched() -> None:
    async def test() -> None:
        index = FakeIndex()
        async with batcher(index) as batches:
            first, second = await searched_and_encoded(batches, index)
            assert index.batches == [["A first"], ["A second"]]
            assert len(index.groups) == 1
            later = [ask(batches, "third"), ask(batches, "fourth")]
            await until(lambda: batches.waiting == 2)  # they wait together, and are not taken one by one
            index.search_gate.open()
            replies = await asyncio.gather(first, second, *later)
        assert [text_of(reply) for reply in replies] == ["A first", "A second", "A third", "A fourth"]
        assert index.batches == [["A first"], ["A second"], ["A third", "A fourth"]]
        assert [texts for texts, _ in index.groups] == index.batches

    run(test)


def test_a_query_that_cannot_be_encoded_does_not_wait_for_a_search() -> None:
    async def test() -> None:
        index = FakeIndex()
        async with batcher(index) as batches:
            index.search_gate.shut()
            first = ask(batches, "first")
            await until(lambda: index.search_gate.reached == 1)
            for _ in range(3):  # each of them leaves its place to the next
                with pytest.raises(GeniusError, match="It is broken"):
                    await ask(batches, "broken")
            assert not first.done()
            index.search_gate.open()
            assert text_of(await first) == "A first"

    run(test)


def test_a_model_replaced_between_the_stages_encodes_again() -> None:
    async def test() -> None:
        index = FakeIndex()
        async with batcher(index) as batches:
            first, second = await searched_and_encoded(batches, index)
            index.model = index.new_model("B")
            index.search_gate.open()
            replies = await asyncio.gather(first, second)
        assert [text_of(reply) for reply in replies] == ["B first", "B second"]
        assert [texts for texts, _ in index.groups] == [["A first"], ["B first"], ["B second"]]

    run(test)


def test_a_query_that_the_new_model_cannot_encode_is_told_so() -> None:
    async def test() -> None:
        index = FakeIndex()
        async with batcher(index) as batches:
            first, second = await searched_and_encoded(batches, index)
            index.model = index.new_model("broken")
            index.search_gate.open()
            for one in (first, second):
                with pytest.raises(GeniusError, match="It is broken"):
                    await one
            index.model = index.new_model("C")
            assert text_of(await ask(batches, "third")) == "C third"

    run(test)


def test_an_encoded_query_that_has_expired_or_nobody_waits_for_is_not_searched() -> None:
    async def test() -> None:
        index = FakeIndex()
        async with batcher(index) as batches:
            first, gone = await searched_and_encoded(batches, index)
            gone.cancel()
            await until(gone.done)
            index.search_gate.open()
            await first
            index.search_gate.reached = 0
            first, late = await searched_and_encoded(batches, index)
            batches._settings = Settings(deadline=0.0)
            index.search_gate.open()
            await first
            with pytest.raises(QueryExpired, match="expired"):
                await late
        assert [texts for texts, _ in index.groups] == [["A first"], ["A first"]]

    run(test)


@settings(max_examples=40, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(["good", "good", "broken", "nan", "wrong", "gone"]), min_size=1, max_size=60),
    max_batch=st.integers(1, 8),
)
def test_every_query_is_answered_once(kinds: list[str], max_batch: int) -> None:
    async def test() -> None:
        index, answered = FakeIndex(), list[str]()
        async with batcher(index, lambda results: answered.extend(map(text_of, results)), max_batch=max_batch) as one:
            asked = []
            for number, kind in enumerate(kinds):
                where = "wrong" if kind == "wrong" else None
                asked.append(ask(one, f"{kind} {number}", k=1 + number % 2, where=where))
                if number % 5 == 0:
                    await asyncio.sleep(0)
            for task, kind in zip(asked, kinds, strict=True):
                if kind == "gone":
                    task.cancel()
            replies = await asyncio.gather(*asked, return_exceptions=True)
        errors = {"broken": "It is broken.", "nan": "A vector holds", "wrong": "The condition is wrong."}
        for number, (kind, reply) in enumerate(zip(kinds, replies, strict=True)):
            if kind == "good":
                assert isinstance(reply, ServedResult)
                assert text_of(reply) == f"A good {number}"
            elif kind != "gone":
                assert str(reply).startswith(errors[kind])
        good = [f"A good {number}" for number, kind in enumerate(kinds) if kind == "good"]
        assert sorted(text for text in answered if "gone" not in text) == sorted(good)

    run(test)


# As with the real index

WORDS = ["cat", "dog", "red", "blue", "house", "sleeps", "runs", "old", "young", "tree"]
TEXTS = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join)
QUERIES = st.builds(
    Query,
    text=TEXTS,
    image=st.sampled_from([None, None, draw_image("red"), draw_image("blue")]),
    target=st.sampled_from([None, "text", "image"]),
)
HOWS = st.builds(
    SearchOptions,
    k=st.sampled_from([1, 5]),
    mode=st.sampled_from(["fast", "rerank", "generate"]),
    where=st.sampled_from([None, "number < 10", "no such field = 3"]),
    ids=st.sampled_from([None, frozenset(["t3", "t17", "p2", "none"])]),
)


@pytest.fixture(scope="module")
def tiny_index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    index = Index.create(tmp_path_factory.mktemp("batching") / "index", tiny_model())
    texts = [Item(f"t{i}", text=f"{WORDS[i % 10]} {WORDS[i // 4]}", metadata={"number": i}) for i in range(40)]
    colours = ("red", "blue", "green", "white", "black")
    index.add([*texts, *(Item(f"p{i}", image=draw_image(colour)) for i, colour in enumerate(colours))])
    return index


def one_by_one(index: Index, query: Query, how: SearchOptions) -> Any:
    try:
        return index.search(query, **vars(how))
    except GeniusError as error:
        return str(error)


@settings(max_examples=40, deadline=None)
@given(asked=st.lists(st.tuples(QUERIES, HOWS), min_size=1, max_size=12))
def test_answers_are_those_of_one_search_after_the_other(
    tiny_index: Index, asked: list[tuple[Query, SearchOptions]]
) -> None:
    async def ask_all() -> list[ServedResult | GeniusError]:
        async with batcher(tiny_index, deadline=120) as batches:
            return await batches.search_many([(*one, 0) for one in asked])

    for (query, how), reply in zip(asked, asyncio.run(ask_all()), strict=True):
        expected = one_by_one(tiny_index, query, how)
        if isinstance(reply, GeniusError):
            assert str(reply) == expected
            continue
        assert [hit.id for hit in reply.hits] == [hit.id for hit in expected]
        assert [hit.codes for hit in reply.hits] == [hit.codes for hit in expected]
        assert [hit.score for hit in reply.hits] == pytest.approx([hit.score for hit in expected], abs=1e-5)
        assert {"queue", "prepare", "encode", "generate", "read", "total"} <= set(reply.seconds)
        assert (reply.version, reply.items) == (tiny_index.version, len(tiny_index))


def test_one_loop_after_the_other_can_ask(tiny_index: Index, tmp_path: Path) -> None:
    batches = Batcher(tiny_index, Settings())
    batches.start()
    for _ in range(2):
        assert asyncio.run(batches.search(Query(text="cat"), SearchOptions(k=3))).hits == tiny_index.search(
            Query(text="cat"), k=3
        )
    asyncio.run(batches.stop(5))


def image_query() -> Query:
    return Query(image=draw_image("red"))


def ask_image(batches: Batcher, query: Query, pixels: int = 0) -> "asyncio.Task[ServedResult]":
    return asyncio.create_task(batches.search(query, SearchOptions(), pixels))


class Busy:
    """Holds up the only decoder, and records what is decoded afterwards."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.free, self.begun = threading.Event(), threading.Event()
        self.decoded: list[str] = []
        self.decoders = Decoders(1)
        monkeypatch.setattr("genius.serve.batching.decoders", self.decoders)

    async def hold(self) -> "asyncio.Task[bool]":
        def wait() -> bool:
            self.begun.set()
            return self.free.wait(10)

        held = asyncio.create_task(self.decoders.run(wait, 0, 10))
        await until(self.begun.is_set)
        return held


def test_smaller_images_are_decoded_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        busy = Busy(monkeypatch)
        held = await busy.hold()
        sizes = (40_000_000, 300, 2_000_000, 300)
        asked = [
            asyncio.create_task(busy.decoders.run(lambda n=n: busy.decoded.append(n), size, 10))
            for n, size in enumerate(sizes)
        ]
        await asyncio.sleep(0)
        busy.free.set()
        await asyncio.gather(held, *asked)
        assert busy.decoded == [1, 3, 2, 0]

    run(test)


def test_nothing_is_decoded_for_a_client_that_was_answered_or_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        busy, index = Busy(monkeypatch), FakeIndex()
        monkeypatch.setattr(index.model, "prepare_query", lambda query: busy.decoded.append(query), raising=False)
        async with batcher(index, deadline=0.05) as batches:
            held = await busy.hold()
            expired, gone = ask_image(batches, image_query()), ask_image(batches, image_query())
            await until(lambda: batches.waiting == 2)
            gone.cancel()
            with pytest.raises(QueryExpired, match="not decoded within"):
                await expired
            assert batches.waiting == 0
            busy.free.set()
            await held
            assert await busy.decoders.run(lambda: "next", 1 << 40, 10) == "next"  # the last of the queue
        assert not busy.decoded

    run(test)


def test_images_that_wait_leave_room_for_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        busy, index = Busy(monkeypatch), FakeIndex()
        async with batcher(index, max_waiting=4) as batches:
            held = await busy.hold()
            images = [ask_image(batches, image_query()) for _ in range(2)]
            await until(lambda: batches.waiting == 2)
            with pytest.raises(ServiceUnavailable, match="More than 2 images"):
                await batches.search(image_query(), SearchOptions())
            assert text_of(await batches.search(Query(text="words"), SearchOptions())) == "A words"
            for one in images:
                one.cancel()
            busy.free.set()
            await held

    run(test)


def test_images_that_wait_are_refused_when_the_service_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        busy, index = Busy(monkeypatch), FakeIndex()
        batches = Batcher(index, Settings())  # type: ignore[arg-type]
        batches.start()
        held = await busy.hold()
        waiting = ask_image(batches, image_query())
        await until(lambda: batches.waiting == 1)
        await batches.stop(0.05)
        with pytest.raises(ServiceUnavailable, match="stopped before"):
            await waiting
        busy.free.set()
        await held

    run(test)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has priorities of threads")
def test_decoders_give_way_to_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        lowered: list[tuple[int, int, int]] = []
        monkeypatch.setattr("os.setpriority", lambda *given: lowered.append(given))
        thread = await Decoders(1).run(threading.get_native_id, 0, 10)
        assert lowered == [(os.PRIO_PROCESS, thread, NICENESS)]

    run(test)
