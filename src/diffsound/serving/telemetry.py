"""Telemetry of a server: a JSON log, an audit log, Prometheus metrics."""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TextIO

from diffsound.errors import ConfigError, MissingExtraError

LOGGER = logging.getLogger("diffsound.serving")
AUDIT = logging.getLogger("diffsound.audit")
AUDIT.propagate = False  # a log of its own, and none unless a file is named
AUDIT.addHandler(logging.NullHandler())

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Seconds; a sound takes from a fraction of a second to minutes.
_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
_MAX_MESSAGE = 4000  # characters of a library's message


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON in ASCII; `extra={"fields": {...}}` adds keys."""

    def format(self, record: logging.LogRecord) -> str:
        try:
            event = record.getMessage()
        except Exception:  # a library that logs arguments its own message has no place for
            event = str(record.msg)
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": event[:_MAX_MESSAGE],
        }
        if record.name not in (LOGGER.name, AUDIT.name):
            line["logger"] = record.name
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log(event: str, level: int = logging.INFO, exc_info: Any = None, **fields: Any) -> None:
    """Log an event with its fields; fields that are None are left out."""
    LOGGER.log(level, event, extra={"fields": _known(fields)}, exc_info=exc_info)


def audit(event: str, **fields: Any) -> None:
    """Add a line to the audit log, if there is one."""
    AUDIT.info(event, extra={"fields": _known(fields)})


def _known(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


class _AuditFile(logging.handlers.WatchedFileHandler):
    """Reopens its file after log rotation; a full disk must not stop the server."""

    def handleError(self, record: logging.LogRecord) -> None:
        log("audit log failed", logging.ERROR, reason=str(sys.exc_info()[1]))


@contextmanager
def logging_to_stderr(
    level: int = logging.INFO, audit_file: Path | None = None, *, capture: bool = False
) -> Iterator[None]:
    """Send every log to stderr as JSON, ours from `level` on and others' from warnings on.

    capture: also turn what libraries print to stderr themselves (mpg123 does, about every damaged
    MP3 file) and uncaught exceptions of threads into log lines.
    """
    if audit_file is not None:
        try:
            keeper = _AuditFile(audit_file, encoding="utf-8")
        except OSError as error:
            reason = error.strerror or error
            raise ConfigError(f"cannot write the audit log {audit_file}: {reason}") from error
        keeper.setFormatter(JsonFormatter())
        AUDIT.handlers = [keeper]
        AUDIT.setLevel(logging.INFO)
    with _captured_stderr() if capture else nullcontext(sys.stderr) as stream:
        handler = logging.StreamHandler(stream)
        handler.setFormatter(JsonFormatter())
        root = logging.getLogger()
        root.handlers = [handler]
        root.setLevel(logging.WARNING)
        LOGGER.setLevel(level)
        logging.captureWarnings(True)
        yield


@contextmanager
def _captured_stderr() -> Iterator[TextIO]:
    """Read file descriptor 2 through a pipe, line by line, into the log; gives the real stderr."""
    sys.stderr.flush()
    real = os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8")
    reading, writing = os.pipe()
    if os.name == "posix":
        # A library that prints while it holds the interpreter must not wait for the reader.
        os.set_blocking(writing, False)
    os.dup2(writing, 2)
    os.close(writing)

    def read() -> None:
        with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.strip():
                    log("message on stderr", logging.WARNING, text=line.rstrip()[:_MAX_MESSAGE])

    def on_thread_error(found: threading.ExceptHookArgs) -> None:
        log("thread failed", logging.ERROR, (found.exc_type, found.exc_value, found.exc_traceback))

    reader = threading.Thread(target=read, name="diffsound-stderr", daemon=True)
    reader.start()
    usual_hook, threading.excepthook = threading.excepthook, on_thread_error
    try:
        yield real
    finally:
        threading.excepthook = usual_hook
        sys.stderr.flush()
        os.dup2(real.fileno(), 2)  # the pipe's last writer is gone, and the reader ends
        reader.join(5)


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
        self.refused = Counter("refused", "Requests refused: the queue was full.", **shared)
        self.stopped = Counter("stopped", "Requests cancelled or out of time.", **shared)
        self.connections_refused = Counter(
            "connections_refused", "Connections refused or cut off.", ("reason",), **shared
        )
        self.batch_size = Histogram(
            "batch_size", "Sounds made in one call.", buckets=(1, 2, 4, 8, 16, 32, 64), **shared
        )
        self.batch_seconds = Histogram(
            "batch_seconds", "Time of one call of the model.", buckets=_BUCKETS, **shared
        )
        self.sounds = Counter("sounds", "Sounds made.", **shared)
        self.sound_seconds = Counter("sound_seconds", "Seconds of sound made.", **shared)
        self._gauges = {
            "queue_length": Gauge("queue_length", "Requests waiting.", **shared),
            "running": Gauge("running", "Sounds being made.", **shared),
            "kept_bytes": Gauge("kept_bytes", "Bytes kept for callers.", ("kind",), **shared),
        }

    def watch(self, name: str, read: Callable[[], float], **labels: str) -> None:
        """Call `read` for a gauge's value whenever the metrics are asked for."""
        gauge = self._gauges[name]
        (gauge.labels(**labels) if labels else gauge).set_function(read)

    def render(self) -> bytes:
        """The text format Prometheus scrapes."""
        from prometheus_client import generate_latest

        return generate_latest(self.registry)
