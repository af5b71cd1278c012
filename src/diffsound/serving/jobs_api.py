"""The endpoints of jobs: start one, watch it, take it back."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Form, Header, Request, Response
from fastapi.responses import StreamingResponse

from diffsound.serving.api import MULTIPART
from diffsound.serving.errors import ERRORS
from diffsound.serving.jobs import JobListener, JobRecord
from diffsound.serving.schemas import (
    Drawing,
    Extend,
    GenerateRequest,
    Inpaint,
    JobAnswer,
    Operation,
    Vary,
)
from diffsound.serving.service import Service
from diffsound.serving.tasks import NotFoundError

_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": (
            "Server-sent events: `progress` (item, share, progress), `preview` (item, image), "
            "`sound` (item, sound), and last one of `done`, `failed`, `cancelled`."
        ),
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


def build_router(service: Service) -> APIRouter:
    """The endpoints over one service."""
    router = APIRouter(prefix="/v1/jobs", tags=["jobs"], responses=ERRORS)

    async def start(
        operation: Operation, drawing: Drawing, request: Request, response: Response
    ) -> JobAnswer:
        service.note(request, drawing)
        record = JobRecord(operation, drawing.num_candidates)
        listener = JobListener(record, service.store, asyncio.get_running_loop())
        task = await service.task(drawing, listener)
        service.submit(task)
        service.jobs.open(record, task)
        response.headers["Location"] = f"/v1/jobs/{record.id}"
        return record.answer()

    @router.post("", status_code=202)
    async def generate(body: GenerateRequest, request: Request, response: Response) -> JobAnswer:
        """Start making a sound from a sentence."""
        return await start("generate", body, request, response)

    @router.post("/inpaint", status_code=202)
    async def inpaint(
        form: Annotated[Inpaint, Form(media_type=MULTIPART)], request: Request, response: Response
    ) -> JobAnswer:
        """Start making a region of a clip anew."""
        return await start("inpaint", form, request, response)

    @router.post("/extend", status_code=202)
    async def extend(
        form: Annotated[Extend, Form(media_type=MULTIPART)], request: Request, response: Response
    ) -> JobAnswer:
        """Start continuing a clip."""
        return await start("extend", form, request, response)

    @router.post("/vary", status_code=202)
    async def vary(
        form: Annotated[Vary, Form(media_type=MULTIPART)], request: Request, response: Response
    ) -> JobAnswer:
        """Start another take of a clip."""
        return await start("vary", form, request, response)

    @router.get("/{name}")
    async def show(name: str) -> JobAnswer:
        """A job and the sounds it has so far."""
        return find(name).answer()

    @router.get("/{name}/events", response_class=StreamingResponse, responses=_EVENTS)
    async def events(
        name: str, last_event_id: Annotated[str | None, Header()] = None
    ) -> StreamingResponse:
        """A job's events as they happen; earlier ones come first, so none is missed."""
        after = int(last_event_id[:9]) if (last_event_id or "").isdecimal() else 0  # type: ignore[index]
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        stream = find(name).stream(after)
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    @router.delete("/{name}")
    async def cancel(name: str) -> JobAnswer:
        """Take a job back; one that has ended stays as it is."""
        record = find(name)
        if record.task is not None:
            service.engine.forget(record.task)
            await asyncio.sleep(0)  # the record hears of it on the loop's next turn
        return record.answer()

    def find(name: str) -> JobRecord:
        record = service.jobs.get(name)
        if record is None:
            raise NotFoundError("there is no such job, or it is gone by now")
        return record

    return router
