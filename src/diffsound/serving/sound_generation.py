"""`POST /v1/sound-generation`, in the shape that clients of ElevenLabs' sound effects send.

Such a client changes its base URL and nothing else:

    client = ElevenLabs(base_url="http://127.0.0.1:8765", api_key="…")
    audio = b"".join(client.text_to_sound_effects.convert(text="a dog barks"))
"""

from __future__ import annotations

import io
from typing import Annotated, Literal

import soundfile
from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from diffsound.audio.io import resample
from diffsound.audio.mixing import LOUDNESS_CEILING, keep_peak
from diffsound.generation.pipeline import TextToSound
from diffsound.generation.settings import SETTINGS, limits
from diffsound.generation.sound import Sound
from diffsound.serving.answers import private
from diffsound.serving.errors import ERRORS
from diffsound.serving.schemas import GenerateRequest, check_fields
from diffsound.serving.service import Service
from diffsound.text import MAX_PROMPT_CHARS

# Codec, sample rate and, where it has one, bit rate in kb/s.
OutputFormat = Literal[
    "mp3_22050_32", "mp3_24000_48", "mp3_44100_32", "mp3_44100_64", "mp3_44100_96",
    "mp3_44100_128", "mp3_44100_192",
    "opus_48000_32", "opus_48000_64", "opus_48000_96", "opus_48000_128", "opus_48000_192",
    "pcm_8000", "pcm_16000", "pcm_22050", "pcm_24000", "pcm_32000", "pcm_44100", "pcm_48000",
    "wav_8000", "wav_16000", "wav_22050", "wav_24000", "wav_32000", "wav_44100", "wav_48000",
    "ulaw_8000", "alaw_8000",
]  # fmt: skip

# The codec's container and sample format in libsndfile, and its media type. PCM, μ-law and A-law
# come without a header.
_CODECS = {
    "mp3": ("MP3", "MPEG_LAYER_III", "audio/mpeg"),
    "opus": ("OGG", "OPUS", "audio/ogg"),
    "wav": ("WAV", "PCM_16", "audio/wav"),
    "pcm": ("RAW", "PCM_16", "audio/pcm"),
    "ulaw": ("RAW", "ULAW", "audio/basic"),
    "alaw": ("RAW", "ALAW", "audio/x-alaw-basic"),
}
_BLOCK = 65536  # samples encoded at a time
_MAX_BYTES_PER_SECOND = 48_000 * 2  # of any of the formats

_DURATION = limits(SETTINGS["duration"])
DEFAULT_INFLUENCE = 0.3


class SoundGeneration(BaseModel):
    """A sound effect from a text."""

    # A client may send fields that came after this was written.
    model_config = ConfigDict(
        extra="ignore",
        allow_inf_nan=False,
        frozen=True,
        json_schema_extra={"examples": [{"text": "a dog barks", "duration_seconds": 2}]},
    )

    text: str = Field(min_length=1, max_length=MAX_PROMPT_CHARS, description="What to hear.")
    loop: bool | None = Field(default=None, description="Make a sound that loops seamlessly.")
    duration_seconds: float | None = Field(
        default=None,
        ge=_DURATION["ge"],
        le=_DURATION["le"],
        description="If missing, as long as such a sound is.",
    )
    prompt_influence: float | None = Field(
        default=None, ge=0, le=1, description="How closely to follow the text; 0.3 if missing."
    )
    model_id: str | None = Field(default=None, max_length=200, description="Ignored.")


def sound_generation_router(service: Service) -> APIRouter:
    """The one endpoint."""
    router = APIRouter(prefix="/v1")
    content = {media: {"schema": {"type": "string", "format": "binary"}} for media in MEDIA_TYPES}

    @router.post(
        "/sound-generation",
        tags=["compatible"],
        response_class=Response,
        responses=ERRORS | {200: {"content": content, "description": "The sound."}},
    )
    async def generate(
        body: SoundGeneration,
        request: Request,
        output_format: Annotated[OutputFormat, Query()] = "mp3_44100_128",
        enable_logging: Annotated[bool | None, Query(description="Ignored.")] = None,
    ) -> Response:
        """Make a sound effect, as a client of ElevenLabs asks for one."""
        check_fields(body, service.limits)
        _, pipeline = service.pipeline(None)
        seconds = body.duration_seconds or service.limits.duration
        service.answers.reserve(request.scope, round(seconds * _MAX_BYTES_PER_SECOND))
        (sound,) = await service.make(translate(body, pipeline), request)
        data = await service.answers.encode(encode_as, sound, output_format)
        media = _CODECS[output_format.partition("_")[0]][2]
        headers = private() | {"X-Diffsound-Seed": str(sound.seed)}
        return Response(data, 200, headers, media)

    return router


MEDIA_TYPES = tuple(dict.fromkeys(media for _, _, media in _CODECS.values()))


def translate(body: SoundGeneration, pipeline: TextToSound) -> GenerateRequest:
    """The request in our own words; what this version cannot make is refused."""
    fields: dict[str, object] = {"prompt": body.text, "duration": body.duration_seconds}
    if body.prompt_influence is not None:
        usual = pipeline.bundle.config.defaults.guidance_scale
        fields["guidance_scale"] = guidance_scale(body.prompt_influence, usual)
    if body.loop:
        fields["loop"] = True
    return GenerateRequest.model_validate(fields)


def guidance_scale(influence: float, usual: float) -> float:
    """The guidance scale of a prompt influence: none at 0, the bundle's own at 0.3, twice at 1.

    >>> [round(guidance_scale(influence, 3.0), 2) for influence in (0.0, 0.15, 0.3, 1.0)]
    [1.0, 2.0, 3.0, 6.0]
    """
    if influence <= DEFAULT_INFLUENCE:
        return 1 + (usual - 1) * influence / DEFAULT_INFLUENCE
    return usual * (1 + (influence - DEFAULT_INFLUENCE) / (1 - DEFAULT_INFLUENCE))


def encode_as(sound: Sound, output_format: str) -> bytes:
    """A sound in one of the formats named by codec, sample rate and bit rate."""
    codec, rate, *bit_rate = output_format.split("_")
    container, subtype, _ = _CODECS[codec]
    wave = resample(sound.wave, sound.sample_rate, int(rate))
    wave = keep_peak(wave, LOUDNESS_CEILING)  # resampling and lossy codecs overshoot
    options: dict[str, object] = {}
    if bit_rate:
        low, high = _bit_rates(codec, int(rate))
        # libsndfile wants the place between the highest bit rate, 0, and the lowest, just below 1.
        options["compression_level"] = min((high - int(bit_rate[0])) / (high - low), 0.9999)
        if codec == "mp3":
            options["bitrate_mode"] = "CONSTANT"
    buffer = io.BytesIO()
    with soundfile.SoundFile(
        buffer, "w", int(rate), channels=1, format=container, subtype=subtype, **options
    ) as file:
        for start in range(0, len(wave), _BLOCK):
            file.write(wave[start : start + _BLOCK])
    return buffer.getvalue()


def _bit_rates(codec: str, rate: int) -> tuple[int, int]:
    """The lowest and highest bit rate of a codec for one channel, kb/s."""
    if codec == "opus":
        return 6, 256
    return (32, 320) if rate >= 32000 else (8, 160)  # MPEG-1 and MPEG-2
