"""What every request passes: an id and a log line, host and origin, API key, the body's size."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import secrets
import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diffsound.serving.errors import error_response
from diffsound.serving.logs import log
from diffsound.serving.metrics import Metrics
from diffsound.serving.settings import ServerSettings

_SAFE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_QUIET_PATHS = ("/healthz", "/readyz", "/metrics")
FORM_OVERHEAD = 64 * 1024
MAX_JSON_BYTES = 64 * 1024

# The page uses nothing but this server, and the browser holds it to that.
SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; "
        "object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class RequestLog:
    """Outermost: the request's id, its log line, its metrics, and a last net for bugs."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

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
            await send(message)

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
            self._count(scope, status or 499, time.monotonic() - start)

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        # The route's pattern, never the path itself: ids would make endless series.
        route = getattr(scope.get("route"), "path", "other")
        self.metrics.requests.labels(scope["method"], route, str(status)).inc()
        self.metrics.request_seconds.labels(route).observe(seconds)
        quiet = scope["path"] in _QUIET_PATHS and status < 400
        log(
            "request",
            logging.DEBUG if quiet else logging.INFO,
            request_id=scope["request_id"],
            method=scope["method"],
            path=scope["path"],
            status=status,
            ms=round(seconds * 1000, 1),
            **scope.get("log_fields", {}),
        )


class Gate:
    """Who may come in: known host names, no other web sites, and holders of a key."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.app = app
        self.hosts = settings.allowed_hosts
        self.origins = settings.cors_origins
        # Hashes, so that comparing takes the same time for every key.
        self.keys = [_digest(key) for key in settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal: tuple[int, str] | None = None
        if not self._knows_host(headers.get("host", "")):
            refusal = 403, "this server does not answer to that host name"
        elif scope["method"] not in _SAFE_METHODS and not self._knows_origin(headers):
            refusal = 403, "another web site may not use this server"
        elif _is_guarded(scope["path"]) and not self._has_key(headers):
            refusal = 401, "an API key is needed: send it as 'Authorization: Bearer KEY'"
        if refusal is None:
            await self.app(scope, receive, send)
            return
        more = {"WWW-Authenticate": "Bearer"} if refusal[0] == 401 else None
        await error_response(*refusal, scope["request_id"], more)(scope, receive, send)

    def _knows_host(self, host: str) -> bool:
        return self.hosts is None or _host_name(host) in self.hosts

    def _knows_origin(self, headers: Headers) -> bool:
        """Whether the request comes from our own page, an allowed one, or no page at all."""
        origin = headers.get("origin")
        if origin is None or origin in self.origins:
            return True
        return urlsplit(origin).netloc.lower() == headers.get("host", "").lower() != ""

    def _has_key(self, headers: Headers) -> bool:
        if not self.keys:
            return True
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        digest = _digest(given)
        return sum(hmac.compare_digest(digest, key) for key in self.keys) > 0


class BodyLimit:
    """A body that is too large or too slow is cut off, whatever its headers promised."""

    def __init__(self, app: ASGIApp, settings: ServerSettings) -> None:
        self.app = app
        self.limits = settings.limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_form = headers.get("content-type", "").startswith("multipart/")
        limit = self.limits.upload_bytes + FORM_OVERHEAD if is_form else MAX_JSON_BYTES
        promised = headers.get("content-length", "")
        refusal: tuple[int, str] | None = None
        too_large = 413, f"the body is larger than the {limit} bytes this server takes"
        if promised.isdigit() and int(promised[:19]) > limit:
            refusal = too_large
        seen, complete = 0, False

        async def receive_limited() -> Message:
            nonlocal seen, complete, refusal
            if complete:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), self.limits.body_timeout)
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
            try:
                await self.app(scope, receive_limited, send_unless_refused)
            except Exception:
                if refusal is None:
                    raise
        if refusal is not None:
            close = {"Connection": "close"}
            await error_response(*refusal, scope["request_id"], close)(scope, receive, send)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _is_guarded(path: str) -> bool:
    return path.startswith("/v1/") or path == "/metrics"


def _host_name(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()
