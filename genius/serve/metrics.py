"""Metrics for Prometheus: requests, refusals, search stages, writes, and the state of each index."""

from collections import Counter as Tally
from collections.abc import Iterable, Mapping
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from genius.errors import GeniusError
from genius.serve.batching import ServedResult
from genius.serve.jobs import JobState
from genius.serve.served import ServedIndex

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
QUERY_STAGES = ("queue", "prepare", "total")  # measured per query, all other stages per batch


class Metrics:
    """The metrics of an app. Subscribes to the batches and writes of every index."""

    def __init__(self, served: Mapping[str, ServedIndex]) -> None:
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
        registry.register(_IndexCollector(served))
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=registry)
        for one in served.values():
            one.on_batch, one.on_write = self.observe_batch, self.count_write

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
        """Count written items by outcome (see `ServedIndex.on_write`)."""
        if count:
            self._writes.labels(index, outcome).inc(count)

    def exposition(self) -> tuple[bytes, str]:
        """The metrics in Prometheus' text format, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


class _IndexCollector(Collector):
    """The current state of each index."""

    def __init__(self, served: Mapping[str, ServedIndex]) -> None:
        self._served = served

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        items = GaugeMetricFamily("genius_items", "Items in an index.", labels=["index"])
        version = GaugeMetricFamily("genius_version", "Version of an index that is served.", labels=["index"])
        ready = GaugeMetricFamily("genius_ready", "Whether an index is ready.", labels=["index"])
        queries = GaugeMetricFamily("genius_waiting_queries", "Queries in the queue.", labels=["index"])
        writes = GaugeMetricFamily("genius_waiting_writes", "Single writes in the queue.", labels=["index"])
        jobs = GaugeMetricFamily("genius_jobs", "Bulk additions by state.", labels=["index", "state"])
        for name, one in self._served.items():
            states = Tally(job.state for job in one.writer.jobs.list())
            for state in get_args(JobState):
                jobs.add_metric([name, state], states[state])
            ready.add_metric([name], one.ready)
            queries.add_metric([name], one.batcher.waiting)
            writes.add_metric([name], one.writer.waiting)
            try:
                items.add_metric([name], len(one.index))
                version.add_metric([name], one.index.version)
            except GeniusError:  # the index cannot be read at the moment
                continue
        return items, version, ready, queries, writes, jobs
