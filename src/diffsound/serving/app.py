"""The application: endpoints, middleware, start and stop."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.middleware.cors import CORSMiddleware

from diffsound import __version__
from diffsound.serving import api, jobs_api
from diffsound.serving.errors import add_error_handlers
from diffsound.serving.middleware import BodyLimit, Gate, RequestLog
from diffsound.serving.pages import add_pages
from diffsound.serving.service import Load, Service
from diffsound.serving.settings import ServerSettings


def create_app(settings: ServerSettings | None = None, load: Load | None = None) -> FastAPI:
    """An ASGI application; `load` replaces reading the settings' bundles.

    Its `state.service` is the service. Loading starts with the application, in the background.
    """
    settings = settings or ServerSettings()
    service = Service(settings, load)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.engine.start()
        try:
            yield
        finally:
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
    app.include_router(api.build_router(service))
    app.include_router(jobs_api.build_router(service))
    add_pages(app, service)
    # Added from the inside out.
    app.add_middleware(BodyLimit, settings=settings)
    app.add_middleware(Gate, settings=settings)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Last-Event-ID", "X-API-Key"],
            expose_headers=["Location", "Retry-After", "X-Diffsound-Seed", "X-Request-ID"],
        )
    app.add_middleware(RequestLog, metrics=service.metrics)
    return app
