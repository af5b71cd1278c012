"""The application: endpoints, pages, middleware, start and stop."""

from __future__ import annotations

import asyncio
import copy
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import FileResponse, HTMLResponse
from fastapi.staticfiles import StaticFiles
from starlette.concurrency import run_in_threadpool
from starlette.middleware.cors import CORSMiddleware

from diffsound import __version__
from diffsound.serving.api import job_router, sound_router
from diffsound.serving.errors import add_error_handlers
from diffsound.serving.middleware import SECURITY_HEADERS, BodyLimit, Gate, RequestLog
from diffsound.serving.schemas import StatusAnswer, narrow_document
from diffsound.serving.service import Load, Service
from diffsound.serving.settings import ServerSettings
from diffsound.serving.sound_generation import sound_generation_router
from diffsound.serving.telemetry import METRICS_TYPE

WEB = Path(__file__).parent / "web"
# So that an upgraded server is never driven by yesterday's page.
_ALWAYS_ASK = {"Cache-Control": "no-cache"}
_NOT_READY: dict[int | str, dict[str, Any]] = {
    503: {"model": StatusAnswer, "description": "Loading, shutting down, or failed to load."}
}


def create_app(settings: ServerSettings | None = None, load: Load | None = None) -> FastAPI:
    """An ASGI application; `load` replaces reading the settings' bundles.

    Its `state.service` is the service. Loading starts with the application, in the background.
    """
    settings = settings or ServerSettings()
    service = Service(settings, load)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.engine.start()
        sweeping = asyncio.create_task(service.sweep())
        try:
            yield
        finally:
            sweeping.cancel()
            with suppress(asyncio.CancelledError):
                await sweeping
            await run_in_threadpool(service.engine.close)

    app = FastAPI(
        title="diffsound",
        version=__version__,
        description="Type a sentence, get the sound.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's page loads scripts from elsewhere; ours is served here
        redoc_url=None,
    )
    app.state.service = service
    add_error_handlers(app)
    app.include_router(sound_router(service))
    app.include_router(job_router(service))
    app.include_router(sound_generation_router(service))
    _add_pages(app, service)
    _describe(app, service)
    # Added from the inside out.
    app.add_middleware(BodyLimit, settings=settings)
    app.add_middleware(Gate, settings=settings, keys=service.keys, allowances=service.allowances)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=[
                "Authorization", "Content-Type", "Last-Event-ID", "X-API-Key", "XI-API-Key"
            ],
            expose_headers=["Location", "Retry-After", "X-Diffsound-Seed", "X-Request-ID"],
        )  # fmt: skip
    app.add_middleware(RequestLog, metrics=service.metrics, answers=service.answers)
    return app


def _add_pages(app: FastAPI, service: Service) -> None:
    """Add the endpoints that are not part of the versioned API."""

    @app.get("/healthz", tags=["server"])
    async def health() -> StatusAnswer:
        """Whether the process responds at all."""
        return StatusAnswer(status="ok")

    @app.get("/readyz", tags=["server"], responses=_NOT_READY)
    async def ready(response: Response) -> StatusAnswer:
        """Whether the server accepts requests for sounds."""
        if service.engine.ready:
            return StatusAnswer(status="ready")
        response.status_code = 503
        if service.engine.failed is not None:
            return StatusAnswer(status="failed")
        loading = not service.engine.loaded.is_set()
        return StatusAnswer(status="loading" if loading else "shutting down")

    @app.get(
        "/metrics",
        tags=["server"],
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(service.metrics.render(), headers={"Content-Type": METRICS_TYPE})

    @app.get("/docs", include_in_schema=False)
    async def docs() -> FileResponse:
        return FileResponse(WEB / "docs.html", headers=_ALWAYS_ASK)

    app.mount("/static", StaticFiles(directory=WEB), name="static")
    if service.settings.web_page:
        text = (WEB / "index.html").read_text(encoding="utf-8")

        @app.get("/", include_in_schema=False)
        async def page() -> HTMLResponse:
            return _page(text)


def _describe(app: FastAPI, service: Service) -> None:
    """Make the OpenAPI document say what this server enforces: its limits and its keys."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        document = narrow_document(copy.deepcopy(plain()), service.limits)
        if service.keys:
            scheme = {"type": "http", "scheme": "bearer", "description": "An API key."}
            document["components"]["securitySchemes"] = {"key": scheme}
            document["security"] = [{"key": []}]
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _page(text: str) -> HTMLResponse:
    """The page, with a fresh nonce for the style sheet wavesurfer.js adds."""
    nonce = secrets.token_urlsafe(16)
    policy = SECURITY_HEADERS["Content-Security-Policy"]
    headers = {"Content-Security-Policy": f"{policy}; style-src 'self' 'nonce-{nonce}'"}
    return HTMLResponse(text.replace("{{ nonce }}", nonce), headers=headers | _ALWAYS_ASK)
