"""The API's requests and answers, as the OpenAPI document shows them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import UploadFile
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from diffsound.audio.io import check_encoding
from diffsound.errors import InputError
from diffsound.generation.edits import MAX_SECONDS
from diffsound.generation.settings import (
    OUTPUT,
    SETTINGS,
    GivenOutput,
    KeepSettings,
    OutputSettings,
    PartialDuration,
    PartialSettings,
    TakeSettings,
)
from diffsound.serving.settings import Limits
from diffsound.text import MAX_PROMPT_CHARS

AudioFormat = Literal["wav", "flac", "ogg", "mp3"]
Operation = Literal["generate", "inpaint", "extend", "vary"]

MEDIA_TYPES: dict[str, str] = {
    "wav": "audio/wav",
    "flac": "audio/flac",
    "ogg": "audio/ogg",
    "mp3": "audio/mpeg",
}

# Fields that a server's limits narrow: the keyword of their JSON schema, and the limit.
LIMITED_FIELDS = {
    "prompt": ("maxLength", "prompt_chars"),
    "negative_prompt": ("maxLength", "prompt_chars"),
    "text": ("maxLength", "prompt_chars"),
    "duration": ("maximum", "duration"),
    "duration_seconds": ("maximum", "duration"),
    "num_candidates": ("maximum", "candidates"),
    "keep": ("maximum", "candidates"),
    "variations": ("maximum", "candidates"),
    "num_inference_steps": ("maximum", "steps"),
}

Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
Hertz = Annotated[float, Field(ge=0, le=100_000)]


class Request(BaseModel):
    """Base of every request: closed to unknown fields, and to NaN and infinity."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class Drawing(Request, PartialSettings, TakeSettings):
    """The settings of every way to make a sound; the bundle has defaults for what is missing."""

    prompt: str = Field(
        min_length=1,
        max_length=MAX_PROMPT_CHARS,
        description="What to hear.",
        examples=["a dog barks in the distance"],
    )
    bundle: str | None = Field(
        default=None, max_length=200, description="One of /v1/bundles; the first when missing."
    )

    @property
    def num_made(self) -> int:
        """How many sounds are made."""
        return self.num_candidates

    @property
    def num_sounds(self) -> int:
        """How many of them come back."""
        return self.num_made

    def sampling(self) -> dict[str, Any]:
        """The sampling settings that were given, by the pipeline's names."""
        names = SETTINGS.keys() - {"duration", "negative_prompt"}
        given = {name: getattr(self, name) for name in sorted(names)}
        return {name: value for name, value in given.items() if value is not None}


EXAMPLE: dict[str, JsonValue] = {"prompt": "a dog barks in the distance", "duration": 2, "seed": 7}


class GenerateRequest(Drawing, PartialDuration, KeepSettings):
    """A sound from a sentence."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})

    @property
    def num_made(self) -> int:
        return self.variations or self.num_candidates

    @property
    def num_sounds(self) -> int:
        return self.keep or self.num_made


class FileRequest(Request, OutputSettings):
    """The file format of a sound."""

    format: AudioFormat = "wav"

    def output(self) -> GivenOutput:
        """By the names of `Sound.encode`; what the format cannot hold is refused."""
        check_encoding(self.format, self.bits, self.rate or 22050)
        return {name: getattr(self, name) for name in OUTPUT}  # type: ignore[return-value]


class Delivery(FileRequest):
    """How a call that waits for its sounds returns them."""

    deliver: Literal["base64", "url"] = Field(
        default="base64",
        description="In JSON answers: the audio itself, or links that last about an hour.",
    )


class GenerateNow(GenerateRequest, Delivery):
    """A sound from a sentence, in the response."""


class ClipSource(Request):
    """The clip to edit: an upload, or a sound this server made or was given before."""

    clip: UploadFile | None = Field(default=None, description="A WAV, FLAC, OGG or MP3 file.")
    sound: str | None = Field(default=None, max_length=64, description="Or the id of a sound.")


class Inpaint(Drawing, ClipSource):
    """Regenerate a region; the rest stays the original recording."""

    start: Seconds = Field(description="Where the new part begins, in seconds.")
    end: Seconds = Field(description="Where it ends.")
    low: Hertz | None = Field(default=None, description="Change only frequencies from here, Hz,")
    high: Hertz | None = Field(default=None, description="up to here.")


class Extend(Drawing, ClipSource):
    """Continue a clip."""

    seconds: float = Field(gt=0, le=MAX_SECONDS, description="Seconds to add.")


class Vary(Drawing, ClipSource):
    """Make another take of a clip."""

    strength: float = Field(
        default=0.5, gt=0, le=1, description="From 0, close to the clip, to 1, a new sound."
    )


class InpaintNow(Inpaint, Delivery):
    pass


class ExtendNow(Extend, Delivery):
    pass


class VaryNow(Vary, Delivery):
    pass


class ClipUpload(Request):
    """A clip to keep for editing."""

    clip: UploadFile = Field(description="A WAV, FLAC, OGG or MP3 file.")
    bundle: str | None = Field(default=None, max_length=200)


class SoundAnswer(BaseModel):
    """A sound and how to make it again.

    `waveform` has the lowest and highest sample of equal stretches, for drawing.
    `coverage` says what the model knows of such prompts, if the bundle can tell.
    `layers` says what a scene is mixed of, and when each part sounds.
    """

    id: str | None
    url: str | None
    spectrogram_url: str | None
    prompt: str
    seed: int
    seconds: float
    sample_rate: int
    settings: dict[str, Any]
    waveform: list[tuple[float, float]]
    score: float | None = None
    coverage: dict[str, Any] | None = None
    layers: list[dict[str, Any]] = []
    format: AudioFormat | None = None
    audio: str | None = Field(default=None, description="The file as base64, if asked for.")


class SoundsAnswer(BaseModel):
    sounds: list[SoundAnswer]


class JobAnswer(BaseModel):
    """A job and its progress."""

    id: str
    operation: Operation
    status: Literal["queued", "running", "done", "failed", "cancelled"]
    progress: float = Field(ge=0, le=1)
    url: str
    events_url: str
    sounds: list[SoundAnswer]
    error: str | None = None


class BundleAnswer(BaseModel):
    """A loaded model."""

    name: str
    default: bool
    sample_rate: int
    decoder: str
    timesteps: int | None
    parameters: dict[str, int]
    ranks: bool = Field(description="Whether it can choose among candidates (`keep`).")
    defaults: dict[str, Any]
    examples: list[str]


class BundlesAnswer(BaseModel):
    version: str
    bundles: list[BundleAnswer]
    limits: dict[str, float]


class StatusAnswer(BaseModel):
    status: str


class ErrorAnswer(BaseModel):
    """What was wrong, in one line."""

    detail: str
    request_id: str


def check_fields(request: BaseModel, limits: Limits) -> None:
    """Refuse a request with a field beyond the server's limits, as the document says it does."""
    for name, (keyword, limit) in LIMITED_FIELDS.items():
        value, most = getattr(request, name, None), getattr(limits, limit)
        if value is None:
            continue
        if keyword == "maxLength" and len(value) > most:
            raise InputError(
                f"the {name} has {len(value)} characters; this server takes up to {most}"
            )
        if keyword == "maximum" and value > most:
            raise InputError(f"{name} is {value:g}; this server takes up to {most:g}")


def narrow_document(document: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """Write the server's limits into its OpenAPI document; `check_fields` enforces the same."""
    for schema in document["components"]["schemas"].values():
        if not schema.get("title", "").endswith("Answer"):
            for name, field in schema.get("properties", {}).items():
                keyword, limit = LIMITED_FIELDS.get(name, (None, ""))
                for option in field.get("anyOf", [field]):
                    if keyword in option:
                        option[keyword] = min(option[keyword], getattr(limits, limit))
    return document
