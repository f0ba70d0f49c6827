"""Metrics for Prometheus: requests, refusals, search stages, writes, and the state of each index."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from genius.errors import GeniusError
from genius.serve.batching import QUERY_STAGES, ServedResult
from genius.serve.hosted import HostedIndex
from genius.serve.jobs import JobState

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The metrics of an app. Subscribes to the batches and writes of every index."""

    def __init__(self, served: Mapping[str, HostedIndex]) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "genius_requests", "Answered requests.", ("route", "method", "status"), registry=registry
        )
        self._request_seconds = Histogram(
            "genius_request_seconds", "Duration of requests.", ("route",), buckets=SECONDS, registry=registry
        )
        self._refused = Counter("genius_refused", "Refused requests.", ("reason",), registry=registry)
        self._stages = Histogram(
            "genius_stage_seconds",
            "Duration of search stages: queue, prepare and total per query, the others per batch.",
            ("index", "stage"),
            buckets=SECONDS,
            registry=registry,
        )
        self._batches = Histogram(
            "genius_batch_queries", "Queries encoded together.", ("index",), buckets=BATCH_SIZES, registry=registry
        )
        self._writes = Counter("genius_writes", "Written items.", ("index", "outcome"), registry=registry)
        self._gauges = [Gauge(*names, ("index",), registry=registry) for names in _READERS]
        self._jobs = Gauge("genius_jobs", "Bulk additions by state.", ("index", "state"), registry=registry)
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=registry)
        for one in served.values():
            self._watch(one)

    def observe_request(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request. `route` is a template such as "/v1/items/{id}", or "unmatched"."""
        self._requests.labels(route, method, str(status)).inc()
        self._request_seconds.labels(route).observe(seconds)

    def count_refusal(self, reason: str) -> None:
        """Count a refused request. `reason` is one of a few words, such as "busy", "late", "rate" or "key"."""
        self._refused.labels(reason).inc()

    def observe_batch(self, index: str, results: list[ServedResult]) -> None:
        """Observe the results of a batch."""
        if not results:
            return
        self._batches.labels(index).observe(results[0].batch)
        for stage, seconds in results[0].seconds.items():
            if stage not in QUERY_STAGES:
                self._stages.labels(index, stage).observe(seconds)
        for stage in QUERY_STAGES:
            histogram = self._stages.labels(index, stage)
            for result in results:
                histogram.observe(result.seconds[stage])

    def count_write(self, index: str, outcome: str, count: int) -> None:
        """Count written items by outcome (see `HostedIndex.on_write`)."""
        if count:
            self._writes.labels(index, outcome).inc(count)

    def exposition(self) -> tuple[bytes, str]:
        """The metrics in Prometheus' text format, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def _watch(self, one: HostedIndex) -> None:
        """Read the gauges of an index whenever the metrics are read."""
        one.on_batch, one.on_write = self.observe_batch, self.count_write
        for gauge, read in zip(self._gauges, _READERS.values(), strict=True):
            gauge.labels(one.name).set_function(partial(_read_gauge, read, one))
        for state in get_args(JobState):
            self._jobs.labels(one.name, state).set_function(partial(_count_jobs, one, state))


_READERS: dict[tuple[str, str], Callable[[HostedIndex], float]] = {
    ("genius_items", "Items in an index."): lambda one: len(one.index),
    ("genius_version", "Version of an index that is served."): lambda one: one.index.version,
    ("genius_ready", "Whether an index is ready."): lambda one: one.ready,
    ("genius_waiting_queries", "Queries in the queue."): lambda one: one.batcher.waiting,
    ("genius_waiting_writes", "Single writes in the queue."): lambda one: one.writer.waiting,
}


def _read_gauge(read: Callable[[HostedIndex], float], one: HostedIndex) -> float:
    try:
        return read(one)
    except GeniusError:  # the index cannot be read at the moment
        return math.nan


def _count_jobs(one: HostedIndex, state: JobState) -> float:
    return sum(job.state == state for job in one.writer.jobs.list())
