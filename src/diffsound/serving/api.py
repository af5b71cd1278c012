"""The endpoints that answer with sounds: generate, edit, clips, kept sounds, bundles."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Form, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from diffsound import __version__
from diffsound.serving.errors import ERRORS
from diffsound.serving.examples import example_prompts
from diffsound.serving.negotiation import choose
from diffsound.serving.previews import spectrogram_bytes
from diffsound.serving.schemas import (
    MEDIA_TYPES,
    AudioFormat,
    BundleAnswer,
    BundlesAnswer,
    ClipSource,
    ClipUpload,
    Delivery,
    Drawing,
    ExtendNow,
    GenerateNow,
    InpaintNow,
    Loudness,
    SoundAnswer,
    SoundsAnswer,
    VaryNow,
)
from diffsound.serving.service import Service
from diffsound.serving.sounds import describe, encode, encode_layer
from diffsound.serving.tasks import NotFoundError
from diffsound.sound import Sound

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


def build_router(service: Service) -> APIRouter:
    """The endpoints over one service."""
    router = APIRouter(prefix="/v1")

    async def make(drawing: Drawing, delivery: Delivery, request: Request) -> Response:
        format = choose(request.headers.get("accept"), delivery)
        if format is not None and drawing.num_sounds > 1:
            raise HTTPException(406, "several sounds come as JSON: send 'Accept: application/json'")
        service.note(request, drawing)
        task = await service.task(drawing)
        service.submit(task)
        sounds = await service.wait(task, request)
        if format is None:
            return await run_in_threadpool(_as_json, service, sounds, delivery)
        return await run_in_threadpool(_as_audio, sounds[0], format, delivery.loudness)

    @router.post("/generate", tags=["sounds"], responses=_SOUNDS)
    async def generate(body: GenerateNow, request: Request) -> Response:
        """Make a sound from a sentence."""
        return await make(body, body, request)

    @router.post("/edit/inpaint", tags=["sounds"], responses=_SOUNDS)
    async def inpaint(
        form: Annotated[InpaintNow, Form(media_type=MULTIPART)], request: Request
    ) -> Response:
        """Make a region of a clip anew; the rest stays the original recording."""
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
    async def sound(
        name: str,
        format: Annotated[AudioFormat, Query()] = "wav",
        loudness: Annotated[Loudness | None, Query()] = None,
    ) -> Response:
        """A kept sound as a file."""
        return await run_in_threadpool(_as_audio, service.sound(name), format, loudness)

    @router.get(
        "/sounds/{name}/spectrogram.png",
        tags=["kept sounds"],
        response_class=Response,
        responses=ERRORS
        | {200: {"content": {"image/png": {}}, "description": "The mel-spectrogram."}},
    )
    async def spectrogram(name: str) -> Response:
        """A kept sound's spectrogram."""
        picture = await run_in_threadpool(spectrogram_bytes, service.sound(name).mel)
        return Response(picture, media_type="image/png", headers=_private())

    @router.get(
        "/sounds/{name}/layers/{number}",
        tags=["kept sounds"],
        response_class=Response,
        responses=ERRORS | {200: {"content": _AUDIO, "description": "The file."}},
    )
    async def layer(
        name: str,
        number: Annotated[int, Path(ge=1)],
        format: Annotated[AudioFormat, Query()] = "wav",
    ) -> Response:
        """A layer of a kept scene as a file, as long and as loud as in the scene."""
        scene = service.sound(name)
        if number > len(scene.layers):
            raise NotFoundError(f"this sound has {len(scene.layers)} layers, counted from 1")
        data = await run_in_threadpool(encode_layer, scene, number, format)
        return Response(data, 200, _private(), MEDIA_TYPES[format])

    @router.get("/bundles", tags=["server"], responses=ERRORS)
    async def bundles() -> BundlesAnswer:
        """The models that are loaded, and what one request may ask for."""
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
                    ranks=pipeline.ranker is not None,
                    defaults=pipeline.bundle.config.defaults.model_dump(mode="json"),
                    examples=example_prompts(pipeline.bundle.card),
                )
            )
        limits = service.settings.limits.model_dump(exclude={"queue", "timeout", "body_timeout"})
        return BundlesAnswer(version=__version__, bundles=answers, limits=limits)

    return router


def _as_json(service: Service, sounds: list[Sound], delivery: Delivery) -> Response:
    if delivery.deliver == "url":
        answers = [describe(sound, service.store.add(sound)) for sound in sounds]
    else:
        answers = [
            describe(sound, format=delivery.format, loudness=delivery.loudness) for sound in sounds
        ]
    return JSONResponse(SoundsAnswer(sounds=answers).model_dump(mode="json"))


def _as_audio(sound: Sound, format: AudioFormat, loudness: float | None) -> Response:
    headers = _private() | {
        "Content-Disposition": f'inline; filename="diffsound-{sound.seed}.{format}"',
        "X-Diffsound-Seed": str(sound.seed),
    }
    return Response(encode(sound, format, loudness), 200, headers, MEDIA_TYPES[format])


def _private() -> dict[str, str]:
    return {"Cache-Control": "private, max-age=3600"}
