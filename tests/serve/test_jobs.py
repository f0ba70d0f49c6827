"""JobQueue: chunks, counts and the states of jobs."""

from typing import Any

import pytest

from genius.data.items import Item
from genius.errors import BadItem
from genius.serve import jobs as module
from genius.serve.jobs import JobQueue, WriteJob, size_of
from genius.serve.limits import ByteBudget, ServiceUnavailable
from genius.serve.settings import Settings


def some_jobs(**limits: Any) -> JobQueue:
    settings = Settings(**limits)
    return JobQueue(settings, ByteBudget(settings.max_waiting_bytes))


def items(count: int) -> list[Item | BadItem]:
    return [Item(f"i{i}", f"text {i}") for i in range(count)]


def now(jobs: JobQueue, job: WriteJob) -> WriteJob:
    found = jobs.get(job.id)
    assert found is not None
    return found


def test_a_job_is_taken_in_pieces_and_counts_what_is_settled() -> None:
    jobs = some_jobs()
    job = jobs.add(items(5))
    assert (job.state, job.items, job.done, job.started, job.finished) == ("waiting", 5, 0, None, None)
    first = jobs.take(3)
    assert first is not None
    assert [item.id for item in first.items] == ["i0", "i1", "i2"]
    assert now(jobs, job).state == "running"
    jobs.finish(first, 1, 1, 0, [BadItem("i2", "it is bad.")])
    assert (now(jobs, job).state, now(jobs, job).done) == ("running", 3)
    second = jobs.take(3)
    assert second is not None
    jobs.finish(second, unchanged=2)
    ended = now(jobs, job)
    assert (ended.state, ended.done, ended.added, ended.replaced, ended.unchanged) == ("done", 5, 1, 1, 2)
    assert (ended.bad_count, [one.id for one in ended.bad], ended.error) == (1, ["i2"], None)
    assert ended.created <= ended.started <= ended.finished  # type: ignore[operator]
    assert jobs.take(3) is None


def test_jobs_are_done_one_after_the_other() -> None:
    jobs = some_jobs()
    one, two = jobs.add(items(2)), jobs.add(items(1), replace=False)
    order = []
    while chunk := jobs.take(1):
        order.append((chunk.job, chunk.replace))
        jobs.finish(chunk)
    assert order == [(one.id, True), (one.id, True), (two.id, False)]
    assert [job.id for job in jobs.list()] == [two.id, one.id]


def test_a_job_without_items_is_done_at_once() -> None:
    jobs = some_jobs()
    job = jobs.add([])
    assert jobs.take(1) is None
    assert now(jobs, job).state == "done"


def test_a_cancelled_job_gives_its_room_back_and_counts_what_was_being_written() -> None:
    jobs = some_jobs()
    job = jobs.add(items(5))
    chunk = jobs.take(2)
    assert chunk is not None
    assert jobs.cancel(job.id)
    assert not jobs.cancel(job.id)
    assert not jobs.cancel("unknown")
    assert jobs.take(2) is None
    jobs.finish(chunk, added=2)
    ended = now(jobs, job)
    assert (ended.state, ended.done, ended.added) == ("cancelled", 2, 2)
    assert jobs._budget.used == 0


def test_a_failed_job_says_why_and_the_next_goes_on() -> None:
    jobs = some_jobs()
    one, two = jobs.add(items(5)), jobs.add(items(1))
    chunk = jobs.take(2)
    assert chunk is not None
    jobs.finish(chunk, error="The disk is full.")
    assert (now(jobs, one).state, now(jobs, one).error) == ("failed", "The disk is full.")
    chunk = jobs.take(2)
    assert chunk is not None
    assert chunk.job == two.id
    jobs.fail_all("The service was stopped.")
    jobs.finish(chunk)
    assert (now(jobs, two).state, now(jobs, two).error) == ("failed", "The service was stopped.")
    assert jobs._budget.used == 0


def test_so_many_jobs_may_wait_and_so_many_bytes() -> None:
    jobs = some_jobs(max_jobs=2, max_waiting_bytes=100_000)
    first = jobs.add(items(1))
    with pytest.raises(ServiceUnavailable, match="MB"):
        jobs.add([Item("large", image=b"x" * 100_000)])
    jobs.add(items(1))
    with pytest.raises(ServiceUnavailable, match="More than 2 bulk additions"):
        jobs.add(items(1))
    jobs.cancel(first.id)
    jobs.add(items(1))


def test_ended_jobs_are_forgotten_when_there_are_many_and_others_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ENDED", 3)
    jobs = some_jobs()
    waiting = jobs.add(items(1))
    ended = [jobs.add(items(1)) for _ in range(5)]
    for job in ended:
        jobs.cancel(job.id)
    assert [job.id for job in jobs.list()] == [*(job.id for job in reversed(ended[2:])), waiting.id]
    assert jobs.get(ended[0].id) is None


def test_only_the_first_refused_items_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LISTED", 2)
    jobs = some_jobs()
    job = jobs.add(items(5))
    while chunk := jobs.take(1):
        jobs.finish(chunk, bad=[BadItem(item.id, "it is bad.") for item in chunk.items])
    assert ([one.id for one in now(jobs, job).bad], now(jobs, job).bad_count) == (["i0", "i1"], 5)


def test_the_size_of_an_item_is_at_least_that_of_what_it_holds() -> None:
    assert size_of(Item("a", "x" * 1000, b"y" * 2000, {"key": "z" * 3000})) > 6000
    assert size_of(BadItem("a", "x" * 1000)) > 1000
