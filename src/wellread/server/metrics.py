"""Prometheus metrics: requests, times, batches, queue length. No metric contains text of a request."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from wellread.server.batching import BatchStats

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """Counters, gauges and histograms of one server."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "wellread_requests", "Requests answered.", ("method", "route", "status"), registry=registry
        )
        self.seconds = Histogram(
            "wellread_request_seconds", "Seconds from a request's head to the end of its response.", ("route",),
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self.refused = Counter("wellread_refused", "Requests refused because the queue was full.", registry=registry)
        self.texts = Counter("wellread_texts", "Texts processed.", registry=registry)
        self.batches = Histogram("wellread_batch_texts", "Texts per batch.", buckets=_TEXTS, registry=registry)
        self.batch_seconds = Histogram(
            "wellread_batch_seconds", "Seconds the model took for a batch.", buckets=_SECONDS, registry=registry
        )
        self.waited = Histogram(
            "wellread_wait_seconds", "Seconds the first job of a batch waited.", buckets=_SECONDS, registry=registry
        )
        self._waiting = Gauge("wellread_waiting_texts", "Texts in the queue.", registry=registry)
        self._revisions = Gauge("wellread_kb_revision", "Changes that a KB has batch.", ("kb",), registry=registry)

        self._replaced = Counter(
            "wellread_workers_replaced",
            "Worker processes that died or hung and were replaced.",
            ("reason",),
            registry=registry,
        )
        self._ready = Gauge("wellread_ready", "1 if the server is ready.", registry=registry)
        self._workers = Gauge("wellread_workers", "Worker processes or threads.", registry=registry)

    def count_replaced(self, reason: str) -> None:
        """Count a replaced worker; `reason` is "died" or "hung"."""
        self._replaced.labels(reason).inc()

    def track_workers(self, ready: Callable[[], bool], workers: int) -> None:
        """Set the callable that reports readiness, and the number of workers."""
        self._ready.set_function(lambda: float(ready()))
        self._workers.set(workers)

    def observe_batch(self, batch: BatchStats) -> None:
        """Record a batch."""
        self.texts.inc(batch.texts)
        self.batches.observe(batch.texts)
        self.batch_seconds.observe(batch.seconds)
        self.waited.observe(batch.waited)

    def track_queue(self, count: Callable[[], int]) -> None:
        """Set the callable that returns the queue length."""
        self._waiting.set_function(count)

    def render(self, revisions: dict[str, int]) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        for kb, revision in revisions.items():
            self._revisions.labels(kb).set(revision)
        return generate_latest(self.registry)
