"""HostedIndex: a real index behind its queues, and its metrics."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from fake_index import until
from fakes import draw_image, tiny_model

from genius.data.items import Item, Query
from genius.encoders.precomputed import PrecomputedEncoder
from genius.errors import BadIndex, GeniusError
from genius.index.index import Index
from genius.search.options import SearchOptions
from genius.serve.batching import ServedResult
from genius.serve.hosted import HostedIndex
from genius.serve.limits import ServiceUnavailable
from genius.serve.metrics import Metrics
from genius.serve.settings import Settings


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def small_index(path: Path) -> Index:
    index = Index.create(path, tiny_model())
    index.add([Item("cat", "a cat"), Item("dog", "a dog"), Item("red", image=draw_image("red"))])
    return index


def value(metrics: Metrics, name: str) -> float | None:
    """Of a line such as genius_items{index="x"} 3.0"""
    lines = [line for line in metrics.exposition()[0].decode().splitlines() if line.startswith(name + " ")]
    return float(lines[0].split()[-1]) if lines else None


def test_it_is_ready_after_it_was_started_and_until_it_is_stopped(tmp_path: Path) -> None:
    async def test() -> None:
        served = HostedIndex("small", small_index(tmp_path / "index"), Settings())
        assert not served.ready
        with pytest.raises(ServiceUnavailable, match="loading"):
            await served.batcher.search(Query(text="cat"), SearchOptions())
        with pytest.raises(ServiceUnavailable):
            served.writer.add([])
        await asyncio.to_thread(served.start)
        assert served.ready
        assert (await served.batcher.search(Query(text="a cat"), SearchOptions(k=1))).hits[0].id == "cat"
        await served.stop(10)
        assert not served.ready
        for late in (
            served.batcher.search(Query(text="cat"), SearchOptions()),
            served.writer.put(Item("x", "x")),
            served.writer.delete("x"),
        ):
            with pytest.raises(ServiceUnavailable):
                await late

    run(test)


def test_what_was_put_is_found_and_what_was_deleted_is_not(tmp_path: Path) -> None:
    async def test() -> None:
        served = HostedIndex("small", small_index(tmp_path / "index"), Settings())
        served.start()
        try:
            status, version = await served.writer.put(Item("bird", "a blue bird"))
            reply = await served.batcher.search(Query(text="a blue bird"), SearchOptions(k=1))
            assert (status, reply.hits[0].id, reply.version, reply.items) == ("created", "bird", version, 4)
            assert await served.writer.delete("bird")
            reply = await served.batcher.search(Query(text="a blue bird"), SearchOptions(k=10))
            assert "bird" not in [hit.id for hit in reply.hits]
            job = served.writer.add([Item(f"i{i}", f"house {i}") for i in range(300)])
            await until(lambda: served.writer.jobs.get(job.id).state == "done")  # type: ignore[union-attr]
            one, wrong = await served.batcher.search_many(
                [
                    (Query(text="house 17"), SearchOptions(k=1), 0),
                    (Query(text="house"), SearchOptions(where="no field = 1"), 0),
                ]
            )
            assert isinstance(one, ServedResult)
            assert one.items == 303
            assert isinstance(wrong, GeniusError)
        finally:
            await served.stop(10)

    run(test)


def test_an_index_that_is_encoded_anew_with_another_model_is_searched_with_that(tmp_path: Path) -> None:
    async def test() -> None:
        index, query = small_index(tmp_path / "index"), Query(text="cat", image=draw_image("red"))
        served = HostedIndex("small", index, Settings())
        served.start()
        try:
            before = await served.batcher.search(query, SearchOptions())
            await asyncio.to_thread(index.reindex, tiny_model(seed=1))
            after = await served.batcher.search(query, SearchOptions())
            assert after.hits == index.search(query)
            assert [hit.codes for hit in after.hits] != [hit.codes for hit in before.hits]
        finally:
            await served.stop(10)

    run(test)


def test_an_index_without_items_and_one_without_an_encoder_are_served(tmp_path: Path) -> None:
    async def test() -> None:
        empty = HostedIndex("empty", Index.create(tmp_path / "empty", tiny_model()), Settings())
        empty.start()
        assert (await empty.batcher.search(Query(text="cat"), SearchOptions())).hits == []
        await empty.stop(10)
        model = tiny_model()
        model.encoder = PrecomputedEncoder(model.dim)
        vectors = HostedIndex("vectors", Index.create(tmp_path / "vectors", model), Settings())
        vectors.start()
        with pytest.raises(GeniusError, match="no encoder"):
            await vectors.batcher.search(Query(text="cat"), SearchOptions())
        await vectors.stop(10)

    run(test)


def test_an_index_that_cannot_be_read_does_not_start(tmp_path: Path) -> None:
    small_index(tmp_path / "index")
    index = Index.open(tmp_path / "index", tiny_model())
    for file in (tmp_path / "index").rglob("*.lance"):
        if file.is_file():
            file.write_bytes(b"damaged")
    served = HostedIndex("small", index, Settings())
    with pytest.raises(BadIndex):
        served.start()
    assert not served.ready


def test_metrics_count_requests_batches_stages_and_writes(tmp_path: Path) -> None:
    async def test() -> None:
        served = HostedIndex("small", small_index(tmp_path / "index"), Settings())
        metrics = Metrics({"small": served})
        assert value(metrics, 'genius_ready{index="small"}') == 0
        served.start()
        try:
            await served.batcher.search_many(
                [(Query(text="cat"), SearchOptions(), 0), (Query(text="dog"), SearchOptions(k=1), 0)]
            )
            await served.writer.put(Item("bird", "a bird"))
            await served.writer.delete("cat")
            job = served.writer.add([Item("i", "text"), Item("i2", "text"), Item("empty")])
            await until(lambda: served.writer.jobs.get(job.id).state == "done")  # type: ignore[union-attr]
            metrics.observe_request("/v1/search", "POST", 200, 0.01)
            metrics.count_refusal("busy")
            index = 'index="small"'
            assert value(metrics, f"genius_ready{{{index}}}") == 1
            assert value(metrics, f"genius_items{{{index}}}") == 5
            assert value(metrics, f"genius_version{{{index}}}") == served.index.version
            assert value(metrics, f"genius_waiting_queries{{{index}}}") == 0
            assert value(metrics, f'genius_stage_seconds_count{{{index},stage="queue"}}') == 2
            assert value(metrics, f'genius_stage_seconds_count{{{index},stage="total"}}') == 2
            assert value(metrics, f"genius_batch_queries_sum{{{index}}}") == 2
            assert value(metrics, f'genius_writes_total{{{index},outcome="created"}}') == 3
            assert value(metrics, f'genius_writes_total{{{index},outcome="deleted"}}') == 1
            assert value(metrics, f'genius_writes_total{{{index},outcome="bad"}}') == 1
            assert value(metrics, f'genius_jobs{{{index},state="done"}}') == 1
            assert value(metrics, 'genius_requests_total{method="POST",route="/v1/search",status="200"}') == 1
            assert value(metrics, 'genius_refused_total{reason="busy"}') == 1
            assert value(metrics, "process_resident_memory_bytes") > 0  # type: ignore[operator]
        finally:
            await served.stop(10)

    run(test)
