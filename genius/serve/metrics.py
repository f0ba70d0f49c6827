"""Metrics: what the service tells Prometheus. Counts what it is told, and asks each index when it is asked itself.

Knows nothing of HTTP but the names of routes and the numbers of answers.
"""

from collections import Counter as Tally
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, get_args

from prometheus_client import CollectorRegistry, Counter, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from genius.errors import GeniusError
from genius.serve.jobs import State

if TYPE_CHECKING:
    from genius.serve.batching import Reply
    from genius.serve.served import Served

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
QUERIES = (1, 2, 4, 8, 16, 32, 64, 128)
OF_A_QUERY = ("queue", "prepare", "total")  # other stages are gone through by a whole batch at once


class Metrics:
    """One for each app. Watches the indexes by itself; requests and refusals it is told."""

    def __init__(self, served: Mapping[str, "Served"]) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "genius_requests", "Requests that were answered.", ("route", "method", "status"), registry=registry
        )
        self._request_seconds = Histogram(
            "genius_request_seconds", "From a request to its answer.", ("route",), buckets=SECONDS, registry=registry
        )
        self._refused = Counter(
            "genius_refused", "Requests that were refused, by reason.", ("reason",), registry=registry
        )
        self._stages = Histogram(
            "genius_stage_seconds",
            "Stages of a search: queue, prepare and total of each query, the others of each batch.",
            ("index", "stage"),
            buckets=SECONDS,
            registry=registry,
        )
        self._batches = Histogram(
            "genius_batch_queries",
            "Queries that were encoded together.",
            ("index",),
            buckets=QUERIES,
            registry=registry,
        )
        self._writes = Counter("genius_writes", "Items written, by outcome.", ("index", "outcome"), registry=registry)
        self._registry.register(_Indexes(served))
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self._registry)
        for one in served.values():
            one.watch(self)

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        """route: the template, such as "/v1/items/{id}"; "unmatched" if there is none."""
        self._requests.labels(route, method, str(status)).inc()
        self._request_seconds.labels(route).observe(seconds)

    def refused(self, reason: str) -> None:
        """reason: one of a few words, such as "busy", "late", "rate", "key" and "size"."""
        self._refused.labels(reason).inc()

    def answered(self, index: str, replies: "list[Reply]") -> None:
        """The answers of one batch."""
        if not replies:
            return
        self._batches.labels(index).observe(replies[0].batch)
        for stage, seconds in replies[0].seconds.items():
            if stage not in OF_A_QUERY:
                self._stages.labels(index, stage).observe(seconds)
        for stage in OF_A_QUERY:
            histogram = self._stages.labels(index, stage)
            for reply in replies:
                histogram.observe(reply.seconds[stage])

    def wrote(self, index: str, outcome: str, count: int) -> None:
        """outcome: "created", "replaced", "unchanged", "deleted", "bad" or "failed"."""
        self._writes.labels(index, outcome).inc(count)

    def text(self) -> tuple[bytes, str]:
        """What Prometheus reads, and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


class _Indexes(Collector):
    """How each index stands at the moment."""

    def __init__(self, served: Mapping[str, "Served"]) -> None:
        self._served = served

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        items = GaugeMetricFamily("genius_items", "Items of an index.", labels=["index"])
        version = GaugeMetricFamily("genius_version", "The version of an index that is read.", labels=["index"])
        ready = GaugeMetricFamily("genius_ready", "Whether an index answers.", labels=["index"])
        queries = GaugeMetricFamily("genius_waiting_queries", "Queries that wait.", labels=["index"])
        writes = GaugeMetricFamily("genius_waiting_writes", "Single writes that wait.", labels=["index"])
        jobs = GaugeMetricFamily("genius_jobs", "Bulk additions that are remembered.", labels=["index", "state"])
        for name, one in self._served.items():
            states = Tally(job.state for job in one.jobs.list())
            for state in get_args(State):
                jobs.add_metric([name, state], states[state])
            ready.add_metric([name], one.ready)
            queries.add_metric([name], one.waiting_queries)
            writes.add_metric([name], one.waiting_writes)
            try:
                items.add_metric([name], len(one.index))
                version.add_metric([name], one.index.version)
            except GeniusError:  # it cannot be read just now; all else can
                continue
        return items, version, ready, queries, writes, jobs
