"""The endpoints: generate and edit sounds at once or as jobs; kept sounds, clips, bundles."""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any

from fastapi import APIRouter, Form, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.exceptions import HTTPException

from diffsound import __version__
from diffsound.errors import InputError
from diffsound.serving.answers import accepted, answer_bytes, as_audio, as_json, private
from diffsound.serving.errors import ERRORS, NotFoundError
from diffsound.serving.jobs import JobListener, JobRecord
from diffsound.serving.schemas import (
    MEDIA_TYPES,
    BundleAnswer,
    BundlesAnswer,
    ClipSource,
    ClipUpload,
    Delivery,
    Drawing,
    Extend,
    ExtendNow,
    FileRequest,
    GenerateNow,
    GenerateRequest,
    Inpaint,
    InpaintNow,
    JobAnswer,
    Operation,
    SoundAnswer,
    SoundsAnswer,
    Vary,
    VaryNow,
)
from diffsound.serving.service import Service, example_prompts
from diffsound.serving.sounds import describe, spectrogram_bytes

# The limits that /v1/bundles reports, so that a page offers no more than them.
_TOLD_LIMITS = {"prompt_chars", "duration", "candidates", "steps", "work", "upload_bytes"}

MULTIPART = "multipart/form-data"
_AUDIO = {
    media: {"schema": {"type": "string", "format": "binary"}} for media in MEDIA_TYPES.values()
}
_SOUNDS = ERRORS | {
    200: {
        "model": SoundsAnswer,
        "description": "The sound as a file, or JSON if it is accepted instead.",
        "content": _AUDIO,
    }
}
_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": (
            "Server-sent events: `progress` (item, share, progress), `preview` (item, image), "
            "`sound` (item, sound), and last one of `done`, `failed`, `cancelled`."
        ),
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


def sound_router(service: Service) -> APIRouter:
    """The endpoints that answer with sounds."""
    router = APIRouter(prefix="/v1")

    async def make(drawing: Drawing, delivery: Delivery, request: Request) -> Response:
        format = accepted(request.headers.get("accept"), delivery)
        delivery = delivery.model_copy(update={"format": format or delivery.format})
        output = delivery.output()
        if drawing.loop and delivery.trim:
            raise InputError("trim would open the loop; leave it out")
        if format is not None and drawing.num_sounds > 1:
            raise HTTPException(406, "several sounds come as JSON: send 'Accept: application/json'")
        seconds = getattr(drawing, "duration", None) or service.limits.duration
        rate = service.pipeline(drawing.bundle)[1].sample_rate
        size = answer_bytes(format, delivery, drawing.num_sounds, seconds, rate)
        service.answers.reserve(request.scope, size)
        sounds = await service.make(drawing, request)
        if format is None:
            return await service.answers.encode(as_json, service.store, sounds, delivery, output)
        return await service.answers.encode(as_audio, sounds[0], format, output)

    @router.post("/generate", tags=["sounds"], responses=_SOUNDS)
    async def generate(body: GenerateNow, request: Request) -> Response:
        """Make a sound from a sentence."""
        return await make(body, body, request)

    @router.post("/edit/inpaint", tags=["sounds"], responses=_SOUNDS)
    async def inpaint(
        form: Annotated[InpaintNow, Form(media_type=MULTIPART)], request: Request
    ) -> Response:
        """Regenerate a region of a clip; the rest stays the original recording."""
        return await make(form, form, request)

    @router.post("/edit/extend", tags=["sounds"], responses=_SOUNDS)
    async def extend(
        form: Annotated[ExtendNow, Form(media_type=MULTIPART)], request: Request
    ) -> Response:
        """Continue a clip."""
        return await make(form, form, request)

    @router.post("/edit/vary", tags=["sounds"], responses=_SOUNDS)
    async def vary(
        form: Annotated[VaryNow, Form(media_type=MULTIPART)], request: Request
    ) -> Response:
        """Make another take of a clip."""
        return await make(form, form, request)

    @router.post("/clips", tags=["kept sounds"], status_code=201, responses=ERRORS)
    async def keep_clip(form: Annotated[ClipUpload, Form(media_type=MULTIPART)]) -> SoundAnswer:
        """Keep an uploaded clip for a while, to look at and to edit."""
        _, pipeline = service.pipeline(form.bundle)
        clip = await service.clip(ClipSource(clip=form.clip), pipeline)
        return describe(clip, service.store.add(clip))

    @router.get(
        "/sounds/{name}",
        tags=["kept sounds"],
        response_class=Response,
        responses=ERRORS | {200: {"content": _AUDIO, "description": "The file."}},
    )
    async def sound(name: str, file: Annotated[FileRequest, Query()], request: Request) -> Response:
        """A kept sound as a file."""
        kept, output = service.sound(name), file.output()
        service.reserve_file(request, file, kept)
        return await service.answers.encode(as_audio, kept, file.format, output)

    @router.get(
        "/sounds/{name}/spectrogram.png",
        tags=["kept sounds"],
        response_class=Response,
        responses=ERRORS
        | {200: {"content": {"image/png": {}}, "description": "The mel-spectrogram."}},
    )
    async def spectrogram(name: str) -> Response:
        """A kept sound's spectrogram."""
        picture = await service.answers.encode(spectrogram_bytes, service.sound(name).mel)
        return Response(picture, media_type="image/png", headers=private())

    @router.get(
        "/sounds/{name}/layers/{number}",
        tags=["kept sounds"],
        response_class=Response,
        responses=ERRORS | {200: {"content": _AUDIO, "description": "The file."}},
    )
    async def layer(
        name: str,
        number: Annotated[int, Path(ge=1)],
        file: Annotated[FileRequest, Query()],
        request: Request,
    ) -> Response:
        """A layer of a kept scene as a file, as long and as loud as in the scene."""
        scene = service.sound(name)
        if number > len(scene.layers):
            raise NotFoundError(f"this sound has {len(scene.layers)} layers, counted from 1")
        layer, output = scene.layers[number - 1], file.output()
        service.reserve_file(request, file, scene)
        data = await service.answers.encode(scene.encode_layer, layer, file.format, **output)
        return Response(data, 200, private(), MEDIA_TYPES[file.format])

    @router.get("/bundles", tags=["server"], responses=ERRORS)
    async def bundles() -> BundlesAnswer:
        """The loaded models and the limits of a request."""
        service.pipeline(None)
        answers = []
        for place, (name, pipeline) in enumerate(service.engine.pipelines.items()):
            decoder = pipeline.bundle.config.decoder.model
            answers.append(
                BundleAnswer(
                    name=name,
                    default=place == 0,
                    sample_rate=pipeline.sample_rate,
                    decoder=decoder.kind,
                    timesteps=getattr(decoder, "timesteps", None),
                    parameters=pipeline.bundle.parameters(),
                    ranks=pipeline.ranks,
                    defaults=pipeline.bundle.config.defaults.model_dump(mode="json"),
                    examples=example_prompts(pipeline.bundle.card),
                )
            )
        limits = service.limits.model_dump(include=_TOLD_LIMITS)
        return BundlesAnswer(version=__version__, bundles=answers, limits=limits)

    return router


def job_router(service: Service) -> APIRouter:
    """The endpoints of jobs: start one, watch it, cancel it."""
    router = APIRouter(prefix="/v1/jobs", tags=["jobs"], responses=ERRORS)

    async def start(
        operation: Operation, drawing: Drawing, request: Request, response: Response
    ) -> JobAnswer:
        record = JobRecord(operation, drawing.num_made)
        listener = JobListener(record, service.store, asyncio.get_running_loop())
        task = await service.start(drawing, request, listener)
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
        """Start regenerating a region of a clip."""
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
        number = re.fullmatch("[0-9]{1,9}", last_event_id or "")
        after = int(number[0]) if number else 0
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        stream = find(name).stream(after)
        return StreamingResponse(stream, media_type="text/event-stream", headers=headers)

    @router.delete("/{name}")
    async def cancel(name: str) -> JobAnswer:
        """Cancel a job; one that has ended stays as it is."""
        record = find(name)
        if record.task is not None:
            service.engine.forget(record.task)
            await asyncio.sleep(0)  # the record is updated on the loop's next turn
        return record.answer()

    def find(name: str) -> JobRecord:
        record = service.jobs.get(name)
        if record is None:
            raise NotFoundError("there is no such job, or it has expired")
        return record

    return router
