"""What Prometheus is told: requests, times, batches, and what waits. Nothing of what texts say."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from wellread.server.batching import Seen

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128)


class Metrics:
    """The figures of one server."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "wellread_requests", "Requests that were answered.", ("method", "route", "status"), registry=registry
        )
        self.seconds = Histogram(
            "wellread_request_seconds", "From a request's head to its answer's end.", ("route",),
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self.refused = Counter("wellread_refused", "Requests that found the queue full.", registry=registry)
        self.texts = Counter("wellread_texts", "Texts that were read.", registry=registry)
        self.batches = Histogram(
            "wellread_batch_texts", "Texts that were read together.", buckets=_TEXTS, registry=registry
        )
        self.reading = Histogram(
            "wellread_batch_seconds", "How long the model took for a batch.", buckets=_SECONDS, registry=registry
        )
        self.waited = Histogram(
            "wellread_wait_seconds", "How long the first of a batch waited.", buckets=_SECONDS, registry=registry
        )
        self._waiting = Gauge("wellread_waiting_texts", "Texts in the queue.", registry=registry)
        self._revisions = Gauge("wellread_kb_revision", "Changes that a KB has seen.", ("kb",), registry=registry)

        self._replaced = Counter(
            "wellread_workers_replaced",
            "Processes that died or hung and were replaced.",
            ("reason",),
            registry=registry,
        )
        self._ready = Gauge("wellread_ready", "1 if requests can be expected to be answered.", registry=registry)
        self._workers = Gauge("wellread_workers", "Processes or threads that read.", registry=registry)

    def replace(self, reason: str) -> None:
        """Count a process that "died" or "hung"."""
        self._replaced.labels(reason).inc()

    def follow(self, ready: Callable[[], bool], workers: int) -> None:
        """Where it is asked whether the server is ready, and how many read."""
        self._ready.set_function(lambda: float(ready()))
        self._workers.set(workers)

    def watch(self, seen: Seen) -> None:
        """Count a batch."""
        self.texts.inc(seen.texts)
        self.batches.observe(seen.texts)
        self.reading.observe(seen.seconds)
        self.waited.observe(seen.waited)

    def waiting(self, count: Callable[[], int]) -> None:
        """Where the length of the queue is asked for."""
        self._waiting.set_function(count)

    def tell(self, revisions: dict[str, int]) -> bytes:
        """All figures as text."""
        for kb, revision in revisions.items():
            self._revisions.labels(kb).set(revision)
        return generate_latest(self.registry)
