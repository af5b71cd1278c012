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


def run(
    settings: ServerSettings,
    *,
    extra: str = "serve",
    log_level: int = logging.INFO,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; finish what runs, then return.

    on_ready: called with the server's address once it takes requests. A bundle that cannot be
    loaded raises its own error.
    """
    try:
        import fastapi  # noqa: F401
        import multipart  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise MissingExtraError(error.name or "fastapi", extra) from error
    # Refused before anything is loaded: a wrong bundle, a taken port.
    from diffsound.bundle import read_config, resolve

    for source in settings.bundles or (None,):
        read_config(resolve(source))
    listener = bind(settings.host, settings.port)

    from diffsound.serving.app import create_app
    from diffsound.serving.logs import configure_logs

    configure_logs(level=log_level)
    app = create_app(settings)
    engine = app.state.service.engine

    class Server(uvicorn.Server):
        """Tells the engine at the first signal, so that streams of waiting jobs end."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            # In a thread: a signal may arrive while this very thread holds the engine's lock.
            threading.Thread(target=engine.drain, daemon=True).start()
            super().handle_exit(sig, frame)

    server = Server(
        uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=round(settings.shutdown_timeout) or None,
        )
    )

    def watch() -> None:
        engine.settled.wait()
        if engine.failed is not None:
            server.should_exit = True
        elif on_ready is not None:
            on_ready(address(listener))

    threading.Thread(target=watch, daemon=True).start()
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
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
