"""Structured logs: one JSON object a line, no prompt text unless it is asked for."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, TextIO

LOGGER = logging.getLogger("diffsound.serving")


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON; `extra={"fields": {...}}` adds keys."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure_logs(stream: TextIO | None = None, level: int = logging.INFO) -> None:
    """Send our log and uvicorn's through the JSON formatter, to stderr unless told otherwise."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name in (LOGGER.name, "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers = [handler] if name != "uvicorn.error" else []
        logger.propagate = name == "uvicorn.error"
        logger.setLevel(level if name == LOGGER.name else logging.WARNING)


def log(event: str, level: int = logging.INFO, exc_info: Any = None, **fields: Any) -> None:
    """Log an event with its fields; fields that are None are left out."""
    known = {name: value for name, value in fields.items() if value is not None}
    LOGGER.log(level, event, extra={"fields": known}, exc_info=exc_info)
