"""The API's requests and answers, as the OpenAPI document shows them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import UploadFile
from pydantic import BaseModel, ConfigDict, Field

from diffsound.decoder.contract import SamplerName
from diffsound.editing import MAX_SECONDS
from diffsound.jobs import MAX_CANDIDATES, MAX_SEED
from diffsound.pipeline import MAX_DURATION, MIN_DURATION
from diffsound.text.clean import MAX_PROMPT_CHARS

AudioFormat = Literal["wav", "flac", "ogg", "mp3"]
Operation = Literal["generate", "inpaint", "extend", "vary"]

MEDIA_TYPES: dict[str, str] = {
    "wav": "audio/wav",
    "flac": "audio/flac",
    "ogg": "audio/ogg",
    "mp3": "audio/mpeg",
}

Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS)]
Hertz = Annotated[float, Field(ge=0, le=100_000)]
Loudness = Annotated[float, Field(ge=-70, le=0)]


class Request(BaseModel):
    """Base of every request: closed to unknown fields, and to NaN and infinity."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class Drawing(Request):
    """What every way of making a sound can be told; what is missing, the bundle decides."""

    prompt: str = Field(
        min_length=1,
        max_length=MAX_PROMPT_CHARS,
        description="What to hear.",
        examples=["a dog barks in the distance"],
    )
    negative_prompt: str | None = Field(
        default=None, max_length=MAX_PROMPT_CHARS, description="What it should not be."
    )
    num_candidates: int = Field(default=1, ge=1, le=MAX_CANDIDATES, description="Takes to make.")
    seed: int | None = Field(
        default=None,
        ge=0,
        le=MAX_SEED,
        description="Makes the same sound again; candidate i has seed + i.",
    )
    num_inference_steps: int | None = Field(
        default=None, ge=1, le=10_000, description="Sampling steps: fewer is faster."
    )
    guidance_scale: float | None = Field(
        default=None, ge=0, le=100, description="How closely to follow the text; 1 is off."
    )
    sampler: SamplerName | None = None
    temperature: float | None = Field(
        default=None, ge=0.01, le=100, description="Below 1 safer, above 1 wilder."
    )
    top_k: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Draw from the k likeliest tokens only."
    )
    truncation: float | None = Field(
        default=None, ge=0.001, le=1, description="Draw from the likeliest of this total mass."
    )
    best_of: int | None = Field(
        default=None,
        ge=1,
        le=MAX_CANDIDATES,
        description="Draw so many for each sound, and keep what fits the text best.",
    )
    layered: bool | None = Field(
        default=None, description="Make a sentence of several sounds one by one, and mix them."
    )
    bundle: str | None = Field(
        default=None, max_length=200, description="One of /v1/bundles; the first when missing."
    )

    @property
    def num_sounds(self) -> int:
        """How many sounds come back."""
        return self.num_candidates

    def sampling(self) -> dict[str, Any]:
        """The sampling settings that were given, by the pipeline's names."""
        names = (
            "num_inference_steps",
            "guidance_scale",
            "sampler",
            "temperature",
            "top_k",
            "truncation",
            "best_of",
            "layered",
        )
        given = {name: getattr(self, name) for name in names}
        return {name: value for name, value in given.items() if value is not None}


class GenerateRequest(Drawing):
    """A sound from a sentence."""

    duration: float | None = Field(
        default=None, ge=MIN_DURATION, le=MAX_DURATION, description="Seconds."
    )
    keep: int | None = Field(
        default=None,
        ge=1,
        le=MAX_CANDIDATES,
        description="Only so many of the candidates, those that fit the prompt best; best first.",
    )

    @property
    def num_sounds(self) -> int:
        return self.num_candidates if self.keep is None else self.keep


class Delivery(Request):
    """How sounds come back from a call that waits for them."""

    format: AudioFormat = "wav"
    loudness: Loudness | None = Field(default=None, description="Normalise to this many LUFS.")
    deliver: Literal["base64", "url"] = Field(
        default="base64",
        description="In JSON answers: the audio itself, or links that last about an hour.",
    )


class GenerateNow(GenerateRequest, Delivery):
    """A sound from a sentence, now."""


class ClipSource(Request):
    """The clip to edit: an upload, or a sound this server made or was given before."""

    clip: UploadFile | None = Field(default=None, description="A WAV, FLAC, OGG or MP3 file.")
    sound: str | None = Field(default=None, max_length=64, description="Or the id of a sound.")


class Inpaint(Drawing, ClipSource):
    """Make a region anew; the rest stays the original recording."""

    start: Seconds = Field(description="Where the new part begins, in seconds.")
    end: Seconds = Field(description="Where it ends.")
    low: Hertz | None = Field(default=None, description="Change only frequencies from here, Hz,")
    high: Hertz | None = Field(default=None, description="up to here.")


class Extend(Drawing, ClipSource):
    """Continue a clip."""

    seconds: float = Field(gt=0, le=MAX_SECONDS, description="How much longer it gets.")


class Vary(Drawing, ClipSource):
    """Make another take of a clip."""

    strength: float = Field(
        default=0.5, gt=0, le=1, description="Near 0 it stays close, at 1 it is new."
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
    `coverage` says what the model knows of such prompts, where the bundle can tell.
    `layers` says what a scene is mixed of, and when each of it sounds.
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
    """A job and how far it is."""

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
