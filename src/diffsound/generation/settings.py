"""Every setting of a generation, with its meaning, range and default.

A bundle's defaults, the command line's options, the rows of a batch, the server's schemas and the
keywords of `TextToSound` all come from here, and every value is checked here.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from copy import copy
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, Union, get_args, get_origin

from pydantic import BeforeValidator, Field, ValidationError, create_model, model_validator
from pydantic.fields import FieldInfo

from diffsound.config import Config
from diffsound.decoder import SamplerName, SamplingSettings
from diffsound.errors import InputError
from diffsound.text import MAX_PROMPT_CHARS

MAX_CANDIDATES = 100
MAX_SEED = 2**63 - 1
SHORT_SEEDS = 2**32  # seeds that we draw ourselves stay short enough to be read aloud


FAST_STEPS = 10  # a row of tokens of the bundled model has at least one

AUTO = "auto"  # a duration, in words: as long as such a sound is
# None says the same, and is what settings hold.
Duration = Annotated[float | None, BeforeValidator(lambda value: None if value == AUTO else value)]


def _add_auto(kinds: Any) -> None:
    """Name it in the list of what a JSON schema allows."""
    kinds.append({"type": "string", "const": AUTO})


class GenerationSettings(SamplingSettings):
    """The settings of one sound. `SamplingSettings` says how tokens are drawn; the rest is what the
    pipeline does with them."""

    duration: Duration = Field(
        default=None,
        ge=0.5,
        le=30.0,
        description="Seconds of sound; auto or missing: as long as such a sound is.",
        json_schema_extra=lambda schema: _add_auto(schema["anyOf"]),
    )
    negative_prompt: str | None = Field(
        default=None, max_length=MAX_PROMPT_CHARS, description="What the sound should not be."
    )
    best_of: int = Field(
        default=1,
        ge=1,
        le=MAX_CANDIDATES,
        description="Number of takes per sound; the best match is kept. Needs a matcher.",
    )
    chosen_after: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Share of the steps after which the best take is chosen and continues alone; "
        "1 compares finished takes.",
    )
    fast: bool = Field(
        default=False,
        description="Fewer steps and a single take, unless their numbers are given: a draft in "
        "about half the time.",
    )
    layered: bool = Field(
        default=False,
        description="Make the sounds of a sentence separately and mix them, or all in one piece.",
    )
    loop: bool = Field(
        default=False, description="Make the end join the beginning, so that the sound repeats."
    )
    level: float | None = Field(
        default=None,
        ge=-60,
        le=0,
        description="Bring every sound within 6 dB of this RMS level in dB, as far as its peaks "
        "allow.",
    )


class GenerationDefaults(GenerationSettings):
    """A bundle's values for the settings that a caller leaves out."""

    duration: float = Field(
        default=5.0,
        ge=0.5,
        le=30.0,
        description="Seconds of what goes on, such as rain, and of what has an unknown length.",
    )
    num_inference_steps: int | None = Field(default=25, ge=1, le=10_000)
    backend: Literal["torch", "int8"] = Field(
        default="torch", description="Runtime of the networks on a CPU."
    )


class TakeSettings(Config):
    """Which sounds a call makes."""

    num_candidates: int = Field(
        default=1,
        ge=1,
        le=MAX_CANDIDATES,
        description="Number of sounds per prompt; candidate i has the seed + i.",
    )
    seed: int | None = Field(
        default=None, ge=0, le=MAX_SEED, description="The same seed makes the same sound."
    )


class KeepSettings(TakeSettings):
    """Which sounds a call makes, and which of them it returns."""

    keep: int | None = Field(
        default=None,
        ge=1,
        le=MAX_CANDIDATES,
        description="Number of candidates to return: those that fit the prompt best.",
    )
    variations: int | None = Field(
        default=None,
        ge=2,
        le=MAX_CANDIDATES,
        description="Number of takes of one sound, alike and equally loud, instead of candidates.",
    )

    @model_validator(mode="after")
    def _agrees(self) -> KeepSettings:
        check_takes(self.num_candidates, self.keep, self.variations)
        return self


def check_takes(
    num_candidates: int, keep: int | None, variations: int | None, *, loop: bool | None = None
) -> None:
    """Refuse takes that contradict each other."""
    if keep is not None and keep > num_candidates:
        raise InputError(f"keep must be at most num_candidates, {num_candidates}, not {keep}")
    if variations is None:
        return
    others = {"num_candidates": num_candidates > 1, "keep": keep is not None, "loop": loop}
    for name in (name for name, given in others.items() if given):
        raise InputError(f"variations must be given without {name}")


class OutputSettings(Config):
    """How a finished sound becomes a file. None of it changes the sound that a seed means."""

    loudness: float | None = Field(
        default=None,
        ge=-70,
        le=0,
        description="Normalise to this loudness in LUFS, such as -23.",
    )
    rate: int | None = Field(
        default=None,
        ge=8000,
        le=192_000,
        description="Sample rate in Hz, such as 44100 or 48000; the model's own if missing.",
    )
    channels: int = Field(
        default=1,
        ge=1,
        le=2,
        description="2 makes a wide stereo whose sum is the mono sound.",
    )
    bit_depth: Literal["16", "24", "32f"] = Field(
        default="16", description="16, 24 (WAV, FLAC) or 32f, floating point (WAV)."
    )
    trim: bool = Field(default=False, description="Cut the silence at both ends.")

    @property
    def bits(self) -> Literal[16, 24, 32]:
        return {"16": 16, "24": 24, "32f": 32}[self.bit_depth]  # type: ignore[return-value]


class GivenOutput(TypedDict, total=False):
    """The keywords of `Sound.save` and `Sound.encode`: any of `OutputSettings`."""

    loudness: float | None
    rate: int | None
    channels: int
    bit_depth: Literal["16", "24", "32f"]
    trim: bool


class GivenSettings(TypedDict, total=False):
    """The keywords of a call: any of `GenerationSettings`; the bundle's defaults fill the rest."""

    sampler: SamplerName
    num_inference_steps: int | None
    stride: int | None
    guidance_scale: float
    guided_share: float
    temperature: float
    truncation: float
    top_k: int | None
    remask: float
    duration: float | Literal["auto"] | None
    negative_prompt: str | None
    best_of: int
    chosen_after: float
    fast: bool
    layered: bool
    loop: bool
    level: float | None


SETTINGS: dict[str, FieldInfo] = dict(GenerationSettings.model_fields)
TAKES: dict[str, FieldInfo] = dict(KeepSettings.model_fields)
OUTPUT: dict[str, FieldInfo] = dict(OutputSettings.model_fields)
_ALL = SETTINGS | TAKES | OUTPUT

# Short names in command-line options and batch rows, where Python's name is long.
SHORT_NAMES = {
    "num_inference_steps": "steps",
    "guidance_scale": "guidance",
    "negative_prompt": "negative",
    "num_candidates": "candidates",
}


def short_name(name: str) -> str:
    """The name of a setting as an option and in a row."""
    return SHORT_NAMES.get(name, name)


def renamed(message: str, name_of: Callable[[str], str]) -> str:
    """A message with other names for settings than Python's.

    A name that is a plain word (`duration`) counts as a setting only in "duration must", "without
    duration" and "or duration, not both".
    """
    long = "|".join(name for name in _ALL if "_" in name)
    message = re.sub(rf"\b({long})\b", lambda found: name_of(found[0]), message)
    name = f"({'|'.join(_ALL)})"
    places = rf"^{name}(?= must )|(?<= without ){name}$|(?<= or ){name}(?=, not both)"
    return re.sub(places, lambda found: name_of(found[0]), message)


def optional(field: FieldInfo) -> tuple[Any, FieldInfo]:
    """A field of a request, for which the bundle's default is used if it is missing."""
    given = copy(field)
    given.default = None
    return field.annotation | None, given  # type: ignore[operator]


if TYPE_CHECKING:

    class PartialSettings(Config):
        """All settings but the duration, each of which a request may leave out (None)."""

        def __getattr__(self, name: str) -> Any: ...

    class PartialDuration(Config):
        """The duration, which a request may leave out."""

        duration: float | None

else:
    PartialSettings, PartialDuration = (
        create_model(
            name,
            __base__=Config,
            **{name: optional(SETTINGS[name]) for name in names},
        )
        for name, names in (
            ("PartialSettings", [name for name in SETTINGS if name != "duration"]),
            ("PartialDuration", ["duration"]),
        )
    )


def complete(defaults: GenerationSettings, given: GivenSettings) -> GenerationSettings:
    """A bundle's defaults, replaced by the values a caller gave, checked.

    None leaves a setting at its default, unless None is one of its values.
    """
    for name in given:
        if name not in SETTINGS:
            raise InputError(f"unknown setting '{name}'; there are: {', '.join(SETTINGS)}")
    values: dict[str, Any] = {name: getattr(defaults, name) for name in SETTINGS}
    if given.get("fast"):
        steps = min(FAST_STEPS, values["num_inference_steps"] or FAST_STEPS)
        values |= {"best_of": 1, "num_inference_steps": steps, "stride": None}
    # A number of steps and a stride express the same thing: the one given replaces the other.
    for name, other in (("stride", "num_inference_steps"), ("num_inference_steps", "stride")):
        if given.get(name) is not None:
            values[other] = None
    values |= {
        name: value
        for name, value in given.items()
        if value is not None or type(None) in _parts(SETTINGS[name].annotation)
    }
    settings: GenerationSettings = check(GenerationSettings, values)
    return settings


def check(model: type[Any], values: dict[str, Any]) -> Any:
    """The model of these values; the first wrong one is a one-line InputError."""
    try:
        return model.model_validate(values, strict=True)
    except ValidationError as error:
        problem = error.errors()[0]
        if not problem["loc"]:
            raise InputError(problem["msg"].removeprefix("Value error, ")) from None
        name = str(problem["loc"][0])
        wanted = expected(model.model_fields[name])
        raise InputError(f"{name} must be {wanted}, not {problem['input']!r}") from None


def limits(field: FieldInfo) -> dict[str, float]:
    """The field's bounds: ge, gt, le, lt, those that it has."""
    bounds = ("ge", "gt", "le", "lt")
    return {
        bound: getattr(mark, bound)
        for mark in field.metadata
        for bound in bounds
        if hasattr(mark, bound)
    }


def expected(field: FieldInfo) -> str:
    """The values a field accepts: "a whole number from 1 to 100"."""
    (kind, *_) = [part for part in _parts(field.annotation) if part is not type(None)]
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(str, get_args(kind)))}"
    if kind is bool:
        return "true or false"
    if kind is str:
        return f"a text of at most {MAX_PROMPT_CHARS} characters"
    bounds = limits(field)
    low = f"above {bounds['gt']:g}" if "gt" in bounds else f"from {_plain(bounds['ge'])}"
    if "lt" in bounds:
        high = f" to below {_plain(bounds['lt'])}"
    else:
        high = f" {'and at most' if 'gt' in bounds else 'to'} {_plain(bounds['le'])}"
    return f"a {'whole number' if kind is int else 'number'} {low}{high}"


def described(name: str) -> str:
    """The meaning of a setting, with its range if that is informative."""
    field = _ALL[name]
    text, bounds = field.description or "", limits(field)
    low, high = bounds.get("ge", bounds.get("gt")), bounds.get("le", bounds.get("lt"))
    if low is None or high is None or high > MAX_CANDIDATES:
        return text
    return f"{text.removesuffix('.')} ({low:g} to {high:g})."


def option_type(name: str) -> type:
    """The plain type of a setting: float, int, bool or str."""
    (kind, *_) = [p for p in _parts(_ALL[name].annotation) if p is not type(None)]
    return kind if kind in (float, int, bool) else str


def _plain(number: float) -> str:
    return f"{number:g}" if abs(number) < 1e6 or number != int(number) else str(int(number))


def _parts(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


FORMATS = ("wav", "flac", "ogg", "mp3")


def layer_paths(path: Path, count: int) -> list[Path]:
    """Where the layers of the scene at `path` go: x.wav has x-layer1.wav, x-layer2.wav, …"""
    return [path.with_stem(f"{path.stem}-layer{number}") for number in range(1, count + 1)]


def slug(prompt: str, limit: int = 48) -> str:
    """A file name's stem: ASCII letters, digits and dashes, cut at a word."""
    plain = unicodedata.normalize("NFKD", prompt).encode("ascii", "ignore").decode()
    words = re.findall(r"[a-z0-9]+", plain.lower())
    name = ""
    for word in words:
        longer = f"{name}-{word}" if name else word[:limit]
        if len(longer) > limit:
            break
        name = longer
    return name or "sound"
