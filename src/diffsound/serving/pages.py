"""Health, readiness, metrics, the web page and the API's own documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from diffsound.serving.metrics import CONTENT_TYPE
from diffsound.serving.schemas import StatusAnswer
from diffsound.serving.service import Service

WEB = Path(__file__).parent / "web"
_NOT_READY: dict[int | str, dict[str, Any]] = {
    503: {"model": StatusAnswer, "description": "Loading, shutting down, or failed to load."}
}


def add_pages(app: FastAPI, service: Service) -> None:
    """Add the endpoints that are not part of the versioned API."""

    @app.get("/healthz", tags=["server"])
    async def health() -> StatusAnswer:
        """Whether the process answers at all."""
        return StatusAnswer(status="ok")

    @app.get("/readyz", tags=["server"], responses=_NOT_READY)
    async def ready(response: Response) -> StatusAnswer:
        """Whether it takes requests for sounds."""
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
        return Response(service.metrics.render(), headers={"Content-Type": CONTENT_TYPE})

    @app.get("/docs", include_in_schema=False)
    async def docs() -> FileResponse:
        return _page("docs.html")

    app.mount("/static", StaticFiles(directory=WEB), name="static")
    if service.settings.web_page:

        @app.get("/", include_in_schema=False)
        async def page() -> FileResponse:
            return _page("index.html")


def _page(name: str) -> FileResponse:
    # Asked again every time, so that an upgraded server is never driven by yesterday's page.
    return FileResponse(WEB / name, headers={"Cache-Control": "no-cache"})
