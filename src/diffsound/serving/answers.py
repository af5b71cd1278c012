"""Answers: in which form a sound is returned, and how much is being made and sent at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import Scope

from diffsound.errors import InputError
from diffsound.generation.settings import GivenOutput
from diffsound.generation.sound import Sound
from diffsound.serving.errors import TooManyError
from diffsound.serving.schemas import MEDIA_TYPES, AudioFormat, Delivery, FileRequest, SoundsAnswer
from diffsound.serving.sounds import SoundStore, describe

Given = ParamSpec("Given")
Made = TypeVar("Made")

ENCODES_AT_ONCE = 2  # encoding takes memory, and others wait
_HEAD_BYTES = 64 * 1024  # a file besides its samples
_JSON_COPIES = 4  # a file in JSON: its bytes, their base64, that in a text, the text's bytes
_MEDIA_ALIASES = {
    "audio/x-wav": "wav",
    "audio/wave": "wav",
    "audio/vnd.wave": "wav",
    "audio/mp3": "mp3",
}


class AnswerSpace:
    """Counts the bytes of the answers that are being made and sent. Used by the loop only.

    An answer counts from `reserve` until its request ends, however slowly the client reads. One
    caller gets half of the space at most.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: Counter[str] = Counter()  # bytes by caller
        self._encodes = asyncio.Semaphore(ENCODES_AT_ONCE)

    @property
    def bytes(self) -> int:
        """The size of all answers that are being made and sent."""
        return self._held.total()

    def reserve(self, scope: Scope, size: int) -> None:
        """Count an answer of up to `size` bytes, or refuse the request."""
        caller, most = scope.get("caller", ""), self._limit // 2
        if size > most:
            raise InputError(
                f"the answer may have {size >> 20} MiB; this server sends up to {most >> 20} MiB: "
                "ask for fewer or shorter sounds, or for links"
            )
        if self.bytes + size > self._limit or self._held[caller] + size > most:
            raise TooManyError("too many answers are being sent", 1)
        self._held[caller] += size
        scope["answer_bytes"] = size

    def release(self, scope: Scope) -> None:
        """The request has ended, and its answer with it."""
        if size := scope.pop("answer_bytes", 0):
            caller = scope.get("caller", "")
            self._held[caller] -= size
            if not self._held[caller]:
                del self._held[caller]

    async def encode(
        self, call: Callable[Given, Made], *arguments: Given.args, **options: Given.kwargs
    ) -> Made:
        """What a function makes of sounds, in a thread; few run at a time."""
        async with self._encodes:
            return await run_in_threadpool(call, *arguments, **options)


def file_bytes(file: FileRequest, seconds: float, sample_rate: int) -> int:
    """The size that a file of a sound has at most, more or less."""
    samples = seconds * (file.rate or sample_rate) * file.channels
    return _HEAD_BYTES + round(samples * file.bits / 8)


def answer_bytes(
    format: AudioFormat | None, delivery: Delivery, sounds: int, seconds: float, sample_rate: int
) -> int:
    """The memory that an answer takes at most; format: None for JSON."""
    if format is not None:
        return file_bytes(delivery, seconds, sample_rate)
    if delivery.deliver == "url":
        return 0
    return _JSON_COPIES * sounds * file_bytes(delivery, seconds, sample_rate)


def as_json(
    store: SoundStore, sounds: list[Sound], delivery: Delivery, output: GivenOutput
) -> Response:
    """Sounds as JSON, with links or with the files in it."""
    if delivery.deliver == "url":
        answers = [describe(sound, store.add(sound)) for sound in sounds]
    else:
        answers = [describe(sound, format=delivery.format, output=output) for sound in sounds]
    return JSONResponse(SoundsAnswer(sounds=answers).model_dump(mode="json"))


def as_audio(sound: Sound, format: AudioFormat, output: GivenOutput) -> Response:
    """A sound as a file."""
    headers = private() | {
        "Content-Disposition": f'inline; filename="diffsound-{sound.seed}.{format}"',
        "X-Diffsound-Seed": str(sound.seed),
    }
    return Response(sound.encode(format, **output), 200, headers, MEDIA_TYPES[format])


def private() -> dict[str, str]:
    """Headers that let the caller's own cache keep a sound, but no shared one."""
    return {"Cache-Control": "private, max-age=3600"}


def accepted(accept: str | None, delivery: Delivery) -> AudioFormat | None:
    """The audio format to answer with, or None for JSON; 406 if neither is acceptable.

    An audio type in the header chooses the format unless the request names one itself.
    """
    formats = {media: name for name, media in MEDIA_TYPES.items()} | _MEDIA_ALIASES
    chosen = "format" in delivery.model_fields_set
    for media in _by_preference(accept or "*/*"):
        if media in ("*/*", "audio/*"):
            return delivery.format
        if media in formats:
            return delivery.format if chosen else formats[media]  # type: ignore[return-value]
        if media in ("application/json", "application/*"):
            return None
    raise HTTPException(406, f"available: {', '.join(MEDIA_TYPES.values())}, application/json")


def _by_preference(accept: str) -> list[str]:
    """The header's media ranges, best first, without those of weight 0."""
    weighted = []
    for part in accept.split(","):
        media, *parameters = (piece.strip().lower() for piece in part.split(";"))
        weight = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name == "q":
                try:
                    weight = float(value)
                except ValueError:
                    weight = 0.0
        if media and weight > 0:
            weighted.append((weight, media))
    return [media for _, media in sorted(weighted, key=lambda pair: -pair[0])]
