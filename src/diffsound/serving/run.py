"""Run a server until it is told to stop."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
from collections.abc import Callable
from types import FrameType

from diffsound.errors import ConfigError, DiffsoundError, MissingExtraError
from diffsound.serving.settings import ServerSettings

ANSWER_SECONDS = 3  # for the last answers to be sent


def run(
    settings: ServerSettings,
    *,
    extra: str = "serve",
    log_level: int = logging.INFO,
    capture_stderr: bool = False,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; finish what runs, then return.

    capture_stderr: make what libraries print part of the JSON log. on_ready: called with the
    server's address once it takes requests. A bundle that cannot be loaded raises its own error.
    """
    try:
        import fastapi  # noqa: F401
        import multipart  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise MissingExtraError(error.name or "fastapi", extra) from error
    # Refused before anything is loaded: a wrong bundle, a taken port.
    from diffsound.model.bundle import read_config, resolve

    for source in settings.bundles or (None,):
        read_config(resolve(source))
    listener = bind(settings.host, settings.port)

    from diffsound.serving.app import create_app
    from diffsound.serving.connections import server_options
    from diffsound.serving.telemetry import audit, log, logging_to_stderr

    app = create_app(settings)
    service = app.state.service
    engine = service.engine

    class Server(uvicorn.Server):
        """Stops when the work is done; sooner at a second signal, immediately at a third."""

        signals = 0

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            # uvicorn's own would raise the signal again at the end, and that ends the process.
            self.signals += 1
            self.should_exit = True
            self.force_exit = self.signals > 2
            # In a thread: a signal may arrive while this very thread holds the engine's lock.
            end = engine.drain if self.signals == 1 else engine.stop
            threading.Thread(target=end, daemon=True).start()

    server = Server(
        uvicorn.Config(
            app,
            # The engine ends what runs when the time is up; its answers get a moment more.
            timeout_graceful_shutdown=round(settings.shutdown_timeout) + ANSWER_SECONDS,
            **server_options(settings.limits, service.metrics),
        )
    )

    def watch() -> None:
        engine.settled.wait()
        if engine.failed is not None:
            server.should_exit = True
            return
        url = address(listener)
        log("serving", url=url)
        audit("serving", url=url)
        if on_ready is not None:
            on_ready(url)

    # A computing thread may keep the interpreter for 5 ms at a time, and a request needs it again
    # after each of its system calls. Shorter turns should help /healthz, whose p99 under load was a
    # tenth of a second; benchmarks/server_soak.py has yet to show by how much.
    sys.setswitchinterval(0.001)
    with logging_to_stderr(log_level, settings.audit_log, capture=capture_stderr):
        threading.Thread(target=watch, daemon=True).start()
        try:
            server.run(sockets=[listener])
        finally:
            listener.close()
        audit("stopped")
        if not engine.close():
            # A step cannot be interrupted, and Python must not end under a thread that computes.
            log("stopped inside a step", logging.WARNING)
            os._exit(0)
    if isinstance(engine.failed, DiffsoundError):
        raise engine.failed
    if engine.failed is not None:
        raise DiffsoundError(f"the bundle cannot be used: {engine.failed}")


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; a taken port or an unknown host is a ConfigError."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        if os.name == "posix" and sys.platform != "cygwin":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(target)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port"
        ) from error
    listener.set_inheritable(True)
    return listener


def address(listener: socket.socket) -> str:
    """The address to open in a browser."""
    host, port = listener.getsockname()[:2]
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}"
