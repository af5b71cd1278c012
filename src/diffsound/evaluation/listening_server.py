"""The server of a listening test: one page out, ratings in. Nothing else is served."""

from __future__ import annotations

import ipaddress
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from diffsound.errors import DiffsoundError, InputError
from diffsound.evaluation.listening import keep_ratings, parse_ratings, read_key

_LARGEST = 1 << 20


class ListeningServer(ThreadingHTTPServer):
    """Serves the test in a folder; `url` says where. Port 0 picks a free one."""

    daemon_threads = True

    def __init__(self, folder: str | Path, host: str = "127.0.0.1", port: int = 8770) -> None:
        self.folder = Path(folder)
        self.key = read_key(folder)
        try:
            self.page = (self.folder / "index.html").read_bytes()
        except OSError as error:
            raise InputError(f"{folder} has no page: {error.strerror}") from error
        # Two tabs of one listener may send at once; a file is read, joined and written as one.
        self.writing = threading.Lock()
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise InputError(f"cannot listen on {host}:{port}: {error.strerror}") from error

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return f"http://{host!s}:{port}/"


class _Handler(BaseHTTPRequestHandler):
    server: ListeningServer
    timeout = 30
    server_version = "diffsound"
    sys_version = ""

    def do_GET(self) -> None:
        if not self._is_for_us():
            return
        if self.path.split("?")[0] in ("/", "/index.html"):
            self._answer(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
        else:
            self._say(HTTPStatus.NOT_FOUND, "there is only the test, at /")

    def do_PUT(self) -> None:
        if not self._is_for_us():
            return
        try:
            length = int(self.headers.get("Content-Length") or -1)
        except ValueError:
            length = -1
        if not 0 <= length <= _LARGEST:
            self.close_connection = True
            self._say(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"send at most {_LARGEST} bytes")
            return
        try:
            ratings = parse_ratings(self.rfile.read(length), self.server.key)
            if self.path != f"/ratings/{ratings.listener}":
                raise InputError("the address and the listener differ")
            with self.server.writing:
                kept = keep_ratings(self.server.folder, ratings)
        except DiffsoundError as error:
            self._say(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
        except (OSError, ValueError) as error:
            # A full disk or a file somebody edited: the page keeps its copy and tries again.
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, f"the ratings could not be kept: {error}")
        else:
            self._say(HTTPStatus.OK, f"{len(kept.ratings)} sounds graded")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the ratings' files are the log."""

    def _is_for_us(self) -> bool:
        """Whether the browser meant this server; a page elsewhere may point its name here."""
        name = (self.headers.get("Host") or "").rpartition(":")[0].strip("[]")
        bound = str(self.server.server_address[0])
        if not ipaddress.ip_address(bound).is_loopback or name in (bound, "localhost"):
            return True
        self._say(HTTPStatus.FORBIDDEN, "this server answers to its own address only")
        return False

    def _say(self, status: HTTPStatus, text: str) -> None:
        self._answer(status, text.encode(), "text/plain; charset=utf-8")

    def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)
