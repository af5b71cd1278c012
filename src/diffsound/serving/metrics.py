"""Prometheus metrics of one server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from diffsound.errors import MissingExtraError

if TYPE_CHECKING:
    from collections.abc import Callable

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Seconds; a sound takes from a fraction of a second to minutes.
_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)


class Metrics:
    """Counters and histograms; a registry of its own, so that two servers never share one."""

    def __init__(self) -> None:
        try:
            from prometheus_client import (
                CollectorRegistry,
                Counter,
                Gauge,
                Histogram,
                ProcessCollector,
            )
        except ImportError as error:
            raise MissingExtraError("prometheus-client", "serve") from error
        self.registry = CollectorRegistry()
        shared: dict[str, Any] = {"namespace": "diffsound", "registry": self.registry}
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "requests", "Answered requests.", ("method", "route", "status"), **shared
        )
        self.request_seconds = Histogram(
            "request_seconds", "Time to the last byte.", ("route",), buckets=_BUCKETS, **shared
        )
        self.refused = Counter("refused", "Requests refused since the queue was full.", **shared)
        self.stopped = Counter("stopped", "Requests cancelled or out of time.", **shared)
        self.batch_size = Histogram(
            "batch_size", "Sounds made in one call.", buckets=(1, 2, 4, 8, 16, 32, 64), **shared
        )
        self.batch_seconds = Histogram(
            "batch_seconds", "Time of one call of the model.", buckets=_BUCKETS, **shared
        )
        self.sounds = Counter("sounds", "Sounds made.", **shared)
        self.sound_seconds = Counter("sound_seconds", "Seconds of sound made.", **shared)
        self._waiting = Gauge("queue_length", "Requests that wait.", **shared)
        self._running = Gauge("running", "Sounds being made.", **shared)

    def watch_queue(self, waiting: Callable[[], float], running: Callable[[], float]) -> None:
        """Read these whenever the metrics are asked for."""
        self._waiting.set_function(waiting)
        self._running.set_function(running)

    def render(self) -> bytes:
        """The text format Prometheus scrapes."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)
