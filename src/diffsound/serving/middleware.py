"""What every request passes through: log line, host and origin, API key, size of head and body."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diffsound.serving.access import Allowances, KeyRing, caller_address
from diffsound.serving.answers import AnswerSpace
from diffsound.serving.errors import TooManyError, error_response
from diffsound.serving.settings import ServerSettings
from diffsound.serving.telemetry import Metrics, audit, log

_SAFE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_METHODS = (*_SAFE_METHODS, "POST", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT")
_QUIET_PATHS = ("/healthz", "/readyz", "/metrics")
MAX_PATH = 2048
MAX_HEAD_BYTES = 16 * 1024
MAX_JSON_BYTES = 64 * 1024
FORM_OVERHEAD = 64 * 1024
PIECE_BYTES = 2**20  # of an answer
_LOGGED_PATH = 200  # characters

# The page uses nothing but this server, and the browser holds it to that.
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; "
        "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

Refusal = tuple[int, str]  # status and detail


class RequestLog:
    """Outermost: the request's id, its log line, its metrics, and a safety net for bugs.

    An answer goes out in pieces, the next when the client has taken the last, so that a request
    ends, and is counted, when its answer is with the client.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, answers: AnswerSpace) -> None:
        self.app = app
        self.metrics = metrics
        self.answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        name = given if _SAFE_ID.fullmatch(given) else secrets.token_hex(8)
        scope["request_id"] = name
        start = time.monotonic()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = name
                for header, value in SECURITY_HEADERS.items():
                    headers.setdefault(header, value)
            for piece in _pieces(message):
                await send(piece)

        try:
            await self.app(scope, receive, send_with_id)
        except Exception as error:
            log("unexpected error", logging.ERROR, error, request_id=name)
            if status == 0:
                answer = error_response(
                    500, "something went wrong inside the server; its log has the details", name
                )
                await answer(scope, receive, send_with_id)
        finally:
            self.answers.release(scope)
            self._count(scope, status or 499, time.monotonic() - start)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        # Known methods and routes' patterns, never what the caller sent: series must not grow.
        method = scope["method"] if scope["method"] in _METHODS else "other"
        route = getattr(scope.get("route"), "path", "other")
        self.metrics.requests.labels(method, route, str(status)).inc()
        self.metrics.request_seconds.labels(route).observe(seconds)
        fields = {
            "request_id": scope["request_id"],
            "method": method,
            "path": scope["path"][:_LOGGED_PATH],
            "status": status,
            "ms": round(seconds * 1000, 1),
            "caller": scope.get("caller"),
            **scope.get("log_fields", {}),
        }
        quiet = scope["path"] in _QUIET_PATHS and status < 400
        log("request", logging.DEBUG if quiet else logging.INFO, **fields)
        if _is_guarded(scope["path"]):
            audit("request", address=caller_address(scope.get("client")), **fields)


class Gate:
    """Admits requests for known hosts, not from other web sites, with a key, at a limited rate."""

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, keys: KeyRing, allowances: Allowances
    ) -> None:
        self.app = app
        self.hosts = settings.allowed_hosts
        self.origins = settings.cors_origins
        self.keys = keys
        self.allowances = allowances

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        more: dict[str, str] = {}
        try:
            refusal = self._refusal(scope)
        except TooManyError as error:
            refusal = error.status, str(error)
            more = {"Retry-After": str(error.retry_after)}
        if refusal is None:
            await self.app(scope, receive, send)
            return
        if refusal[0] == 401:
            more = {"WWW-Authenticate": "Bearer"}
        await error_response(*refusal, scope["request_id"], more)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Refusal | None:
        """Why a request is refused; None if it is admitted."""
        headers, method = Headers(scope=scope), scope["method"]
        if method not in _METHODS:
            return 405, "this is not an HTTP method"
        if len(scope.get("raw_path") or scope["path"]) + len(scope["query_string"]) > MAX_PATH:
            return 414, f"the address is longer than {MAX_PATH} characters"
        if sum(len(name) + len(value) + 4 for name, value in scope["headers"]) > MAX_HEAD_BYTES:
            return 431, f"the headers are larger than {MAX_HEAD_BYTES} bytes"
        host = headers.get("host", "")
        if self.hosts is not None and _host_name(host) not in self.hosts:
            return 403, "this server does not answer to that host name"
        if method not in _SAFE_METHODS and (refusal := self._check_origin(headers, host)):
            return refusal
        if not _is_guarded(scope["path"]):
            return None
        scope["caller"] = caller_address(scope.get("client"))
        if self.keys:
            holder = self.keys.holder(_given_key(headers))
            if holder is None:
                return 401, "an API key is needed: send it as 'Authorization: Bearer KEY'"
            scope["caller"] = holder
        if method == "POST":
            self.allowances.take_request(scope["caller"])
        return None

    def _check_origin(self, headers: Headers, host: str) -> Refusal | None:
        """Refuse a request from a page that is neither ours nor allowed."""
        origin = headers.get("origin")
        if origin is None or origin in self.origins:
            return None
        try:
            place = urlsplit(origin).netloc.lower()
        except ValueError:
            return 400, "the Origin header is not an origin"
        return None if place == host.lower() != "" else (403, "another web site may not use this")


class BodyLimit:
    """A body that is too large or too slow is cut off, whatever its headers promised.

    An upload is a temporary file until its request ends; a limited number of requests may have one.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.app = app
        self.limits = settings.limits
        self.uploads = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_upload = headers.get("content-type", "").lower().startswith("multipart/")
        limit = self.limits.upload_bytes + FORM_OVERHEAD if is_upload else MAX_JSON_BYTES
        promised = headers.get("content-length", "")
        refusal: Refusal | None = None
        too_large = 413, f"the body is larger than the {limit} bytes this server takes"
        if promised.isdigit() and int(promised[:19]) > limit:
            refusal = too_large
        elif is_upload and self.uploads >= self.limits.uploads:
            refusal = 429, "too many uploads at once; try again in 1 s"
        seen, complete = 0, False
        deadline = time.monotonic() + self.limits.timeout

        async def receive_limited() -> Message:
            nonlocal seen, complete, refusal
            if complete:
                return await receive()
            patience = min(self.limits.body_timeout, deadline - time.monotonic())
            try:
                message = await asyncio.wait_for(receive(), max(0.0, patience))
            except TimeoutError:
                refusal = 408, "the body did not arrive in time"
                raise
            seen += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if seen > limit:
                refusal = too_large
                raise ValueError("body too large")
            return message

        async def send_unless_refused(message: Message) -> None:
            if refusal is None:
                await send(message)

        if refusal is None:
            self.uploads += is_upload
            try:
                await self.app(scope, receive_limited, send_unless_refused)
            except Exception:
                if refusal is None:
                    raise
            finally:
                self.uploads -= is_upload
        if refusal is not None:
            more = {"Connection": "close"} | ({"Retry-After": "1"} if refusal[0] == 429 else {})
            await error_response(*refusal, scope["request_id"], more)(scope, receive, send)


def _pieces(message: Message) -> Iterator[Message]:
    """The message, or several if its body is large."""
    body, start = message.get("body", b""), 0
    while len(body) - start > PIECE_BYTES:
        yield {**message, "body": body[start : start + PIECE_BYTES], "more_body": True}
        start += PIECE_BYTES
    yield {**message, "body": body[start:]} if start else message


def _is_guarded(path: str) -> bool:
    return path.startswith("/v1/") or path == "/metrics"


def _given_key(headers: Headers) -> str:
    """The key of a request, from any of the three headers that clients use."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    return headers.get("x-api-key") or headers.get("xi-api-key", "")


def _host_name(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
