"""Options that several verbs share: declared once, and grouped by what they are about.

A command takes a whole group as one argument, after the star:

    @spread
    def command(text: str, *, making: MakingOptions) -> None: ...

and the command line shows the group's fields as options of their own.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from diffsound.pipeline import Ranker, TextToSound

Bundle = Annotated[
    str | None,
    typer.Option("--bundle", "-b", help="Bundle folder or hub id; the bundled model by default."),
]
Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="File to write: .wav, .flac, .ogg or .mp3."),
]
OutputDir = Annotated[
    Path, typer.Option("--output-dir", help="Folder for files named from prompt and seed.")
]
Format = Annotated[str, typer.Option("--format", help="Of such files: wav, flac, ogg or mp3.")]
Duration = Annotated[float | None, typer.Option("--duration", "-d", help="Seconds, 0.5 to 30.")]
Seed = Annotated[int | None, typer.Option(help="Same seed, same sound.")]
Candidates = Annotated[int, typer.Option(help="How many takes to make.")]
Keep = Annotated[
    int | None, typer.Option(help="Write only so many of them, those that fit the text best.")
]
Captioner = Annotated[
    Path | None, typer.Option(help="Captioner that judges for --keep, instead of the bundle's.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, …")]
Backend = Annotated[
    str | None,
    typer.Option(help="torch; int8, faster; onnx, for an exported bundle. Missing: the bundle's."),
]
Play = Annotated[bool, typer.Option("--play", help="Play the result.")]
Negative = Annotated[str | None, typer.Option(help="What the sound should not be.")]
Steps = Annotated[int | None, typer.Option(help="Sampling steps: fewer is faster.")]
Guidance = Annotated[
    float | None, typer.Option(help="How closely to follow the text; 1 switches guidance off.")
]
Sampler = Annotated[str | None, typer.Option(help="ancestral, confidence or official.")]
Temperature = Annotated[float | None, typer.Option(help="Below 1 safer, above 1 wilder.")]
TopK = Annotated[int | None, typer.Option(help="Draw from the k likeliest tokens only.")]
Truncation = Annotated[
    float | None, typer.Option(help="Draw from the likeliest tokens of this total mass, 0 to 1.")
]
BestOf = Annotated[
    int | None, typer.Option(help="Draw so many for each sound, and keep what fits the text best.")
]
Layered = Annotated[
    bool | None,
    typer.Option(
        "--layered/--one-piece",
        help="Make the sounds of a sentence one by one and mix them, or all at once.",
    ),
]
Loudness = Annotated[
    float | None, typer.Option(help="Normalise to this loudness in LUFS, such as -23.")
]
Spectrogram = Annotated[bool, typer.Option("--spectrogram", help="Also write a PNG picture.")]
Stems = Annotated[
    bool,
    typer.Option("--stems", help="Also write each layer of a scene: NAME-layer1, NAME-layer2, …"),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", "-f", help="Replace existing files.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per sound.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no messages.")]


@dataclass(frozen=True)
class TakeOptions:
    """Which takes are made."""

    seed: Seed = None
    candidates: Candidates = 1


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are drawn."""

    negative: Negative = None
    steps: Steps = None
    guidance: Guidance = None
    sampler: Sampler = None
    temperature: Temperature = None
    top_k: TopK = None
    truncation: Truncation = None
    best_of: BestOf = None
    layered: Layered = None

    @property
    def settings(self) -> dict[str, Any]:
        """Those that were given, by the pipeline's names."""
        return given(
            negative_prompt=self.negative,
            num_inference_steps=self.steps,
            guidance_scale=self.guidance,
            sampler=self.sampler,
            temperature=self.temperature,
            top_k=self.top_k,
            truncation=self.truncation,
            best_of=self.best_of,
            layered=self.layered,
        )


@dataclass(frozen=True)
class WritingOptions:
    """What becomes of finished sounds."""

    output: Output = None
    loudness: Loudness = None
    spectrogram: Spectrogram = False
    play_it: Play = False
    overwrite: Overwrite = False
    as_json: Json = False
    quiet: Quiet = False


@dataclass(frozen=True)
class ModelOptions:
    """Which model, and what runs it."""

    bundle: Bundle = None
    device: Device = "cpu"
    backend: Backend = None

    def load(self, ranker: Ranker | None = None) -> TextToSound:
        """The pipeline that is asked for."""
        from diffsound.pipeline import TextToSound

        return TextToSound.from_pretrained(
            self.bundle, device=self.device, **given(backend=self.backend, ranker=ranker)
        )


@dataclass(frozen=True)
class MakingOptions(ModelOptions, WritingOptions, SamplingOptions, TakeOptions):
    """All that every way of making a sound can be told; help shows the last base's fields first."""


def given(**options: Any) -> dict[Any, Any]:
    """The options the user actually set, by name; a name may be a literal type where it goes."""
    return {name: value for name, value in options.items() if value is not None}


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Show the fields of a command's groups as options of its own, and gather them again."""
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    groups: dict[str, Any] = {
        p.name: p.annotation for p in parameters if is_dataclass(p.annotation)
    }

    @functools.wraps(command)
    def gathered(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        command(**values)

    shown = [
        option
        for parameter in parameters
        for option in (_options(parameter.annotation) if parameter.name in groups else [parameter])
    ]
    gathered.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    return gathered


def _options(group: Any) -> list[inspect.Parameter]:
    """A group's fields as parameters of a command."""
    types = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=types[field.name],
        )
        for field in fields(group)
    ]
