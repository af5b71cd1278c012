"""Guarded connections: how many there may be, and how slowly they may send and read.

uvicorn limits the size of a request's head, and the time between requests. It waits forever for the
rest of a head, for the rest of a body that has been answered already, and for a client that does
not read its answer, and it counts connections only once they have sent a request. This protocol
closes those gaps.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from diffsound.serving.access import caller_address
from diffsound.serving.middleware import MAX_HEAD_BYTES
from diffsound.serving.settings import Limits
from diffsound.serving.telemetry import Metrics

_ANSWER = (
    "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    "Content-Length: {length}\r\n\r\n{body}"
)


def server_options(limits: Limits, metrics: Metrics) -> dict[str, Any]:
    """The options of uvicorn.Config that guard its connections."""
    return {
        "http": guarded_protocol(limits, metrics),
        "ws": "none",
        "h11_max_incomplete_event_size": MAX_HEAD_BYTES,
        "timeout_keep_alive": 5,
        "log_config": None,
        "access_log": False,
        "server_header": False,
    }


def guarded_protocol(limits: Limits, metrics: Metrics) -> type[H11Protocol]:
    """A protocol whose connections share the limits' counts."""
    open_connections: Counter[str] = Counter()

    class GuardedProtocol(H11Protocol):
        """One connection."""

        def __init__(
            self, config: uvicorn.Config, server_state: Any, app_state: dict[str, Any], **more: Any
        ) -> None:
            super().__init__(config, server_state, app_state, **more)
            self._address: str | None = None  # counted under it, once let in
            self._head_timer: asyncio.TimerHandle | None = None
            self._write_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            address = caller_address(self.client)
            if open_connections.total() >= limits.connections:
                self._refuse("503 Service Unavailable", "too many connections", "total")
            elif open_connections[address] >= limits.connections_per_address:
                self._refuse("503 Service Unavailable", "too many connections", "address")
            else:
                self._address = address
                open_connections[address] += 1
                self._watch_head()

        def connection_lost(self, exc: Exception | None) -> None:
            if self._address is not None:
                open_connections[self._address] -= 1
                if not open_connections[self._address]:
                    del open_connections[self._address]
                self._address = None
            for timer in (self._head_timer, self._write_timer):
                if timer is not None:
                    timer.cancel()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._address is None:
                return  # refused, and being closed
            super().data_received(data)
            self._watch_head()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch_head()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._write_timer = self.loop.call_later(limits.write_timeout, self._is_unread)

        def resume_writing(self) -> None:
            super().resume_writing()
            if self._write_timer is not None:
                self._write_timer.cancel()
                self._write_timer = None

        def _watch_head(self) -> None:
            """Start the clock when a request's head is awaited, stop it when it is there.

            Between requests uvicorn's own keep-alive timer runs, until the first byte of the next.
            A body that goes on after its answer counts as part of the wait.
            """
            state = self.conn.their_state
            answered = state is h11.SEND_BODY and self.conn.our_state is h11.DONE
            between = state is h11.IDLE and self.timeout_keep_alive_task is None
            if (answered or between) and self._head_timer is None:
                self._head_timer = self.loop.call_later(limits.head_timeout, self._head_is_late)
            elif not (answered or between) and self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _head_is_late(self) -> None:
            if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
                self._refuse("408 Request Timeout", "the headers did not arrive in time", "head")
            else:
                # A browser that connected in advance, or a body that nobody waits for.
                self.transport.close()

        def _is_unread(self) -> None:
            metrics.connections_refused.labels("unread").inc()
            self.transport.abort()

        def _refuse(self, status: str, detail: str, reason: str) -> None:
            metrics.connections_refused.labels(reason).inc()
            body = f'{{"detail":"{detail}","request_id":""}}'
            self.transport.write(
                _ANSWER.format(status=status, length=len(body), body=body).encode("ascii")
            )
            self.transport.close()

    return GuardedProtocol
