"""Options that several verbs share: declared once, and grouped by what they are about.

A command takes a whole group as one argument, after the star:

    @spread
    def command(text: str, *, making: MakingOptions) -> None: ...

and the command line shows each field of the group as an option.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from diffsound.generation.settings import (
    AUTO,
    OUTPUT,
    SETTINGS,
    GenerationSettings,
    GivenOutput,
    GivenSettings,
    OutputSettings,
    check,
    complete,
    described,
    option_type,
    renamed,
    short_name,
)

if TYPE_CHECKING:
    from diffsound.generation.pipeline import TextToSound
    from diffsound.judges.ranking import Ranker


def _seconds(text: str) -> float | str:
    """A duration: a number, or "auto"."""
    try:
        return text if text == AUTO else float(text)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is neither a number of seconds nor {AUTO}") from None


Bundle = Annotated[
    str | None,
    typer.Option("--bundle", "-b", help="Bundle folder or hub id; the bundled model by default."),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", help="File to write: .wav, .flac, .ogg or .mp3; - for standard output."
    ),
]
OutputDir = Annotated[
    Path | None, typer.Option("--output-dir", help="Folder for files named after prompt and seed.")
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format", help="wav (the default), flac, ogg or mp3, unless --output names a file."
    ),
]
Duration = Annotated[
    Any,
    typer.Option(
        "--duration", "-d", metavar="SECONDS", help=described("duration"), parser=_seconds
    ),
]
Seed = Annotated[int | None, typer.Option(help=described("seed"))]
Candidates = Annotated[int, typer.Option("--candidates", "-n", help=described("num_candidates"))]
Keep = Annotated[int | None, typer.Option(help=described("keep"))]
Captioner = Annotated[
    Path | None,
    typer.Option(help="Captioner that ranks for --keep, instead of the bundle's ranker."),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, …")]
Backend = Annotated[
    str | None,
    typer.Option(help="torch, int8 (faster) or onnx (exported bundles); default: the bundle's."),
]
Play = Annotated[bool, typer.Option("--play", help="Play the result.")]
Variations = Annotated[int | None, typer.Option(help=described("variations"))]
Spectrogram = Annotated[bool, typer.Option("--spectrogram", help="Also write a PNG picture.")]
Stems = Annotated[
    bool,
    typer.Option("--stems", help="Also write each layer of a scene: NAME-layer1, NAME-layer2, …"),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", "-f", help="Replace existing files.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per sound.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no messages.")]


def option_name(setting: str) -> str:
    """A setting's option: `num_inference_steps` is --steps."""
    return "--" + short_name(setting).replace("_", "-")


def in_options(message: str) -> str:
    """A message that calls settings by their options."""
    return renamed(message, option_name)


@dataclass(frozen=True)
class TakeOptions:
    """Which takes are made."""

    seed: Seed = None
    candidates: Candidates = 1


class _Given:
    """Settings that were given on the command line."""

    @property
    def settings(self) -> GivenSettings:
        """By Python's names, checked before anything is loaded."""
        names = [name for name in SETTINGS if name != "duration"]
        values = given(**{name: getattr(self, short_name(name)) for name in names})
        complete(GenerationSettings(), values)
        return values


class _GivenOutput:
    """Settings of the files that were given on the command line."""

    @property
    def delivery(self) -> GivenOutput:
        """Checked before anything is loaded."""
        values = given(**{name: getattr(self, name) for name in OUTPUT})
        check(OutputSettings, dict(values))
        return values


if TYPE_CHECKING:

    @dataclass(frozen=True)
    class SettingOptions(_Given):
        """Every setting but the duration, which an edit does not have."""

    @dataclass(frozen=True)
    class OutputOptions(_GivenOutput):
        """Every setting of the files."""

else:
    _FLAGS = {"layered": "--layered/--one-piece"}

    def _group(title: str, names: Iterable[str], base: type) -> type:
        """A group with an option for each of these settings, none of them given by default."""
        return make_dataclass(
            title,
            [
                (
                    short_name(name),
                    Annotated[
                        option_type(name) | None,
                        typer.Option(_FLAGS.get(name, option_name(name)), help=described(name)),
                    ],
                    None,
                )
                for name in names
            ],
            bases=(base,),
            frozen=True,
        )

    SettingOptions = _group(
        "SettingOptions", [name for name in SETTINGS if name != "duration"], _Given
    )
    OutputOptions = _group("OutputOptions", OUTPUT, _GivenOutput)


@dataclass(frozen=True)
class WritingOptions(OutputOptions):
    """How finished sounds are written."""

    output: Output = None
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
        """The requested pipeline."""
        from diffsound.generation.pipeline import TextToSound

        return TextToSound.from_pretrained(
            self.bundle, device=self.device, **given(backend=self.backend, ranker=ranker)
        )


@dataclass(frozen=True)
class MakingOptions(ModelOptions, WritingOptions, SettingOptions, TakeOptions):
    """Options of every command that makes sounds; help shows the last base's fields first."""


def given(**options: Any) -> Any:
    """The options that the user set, by name."""
    return {name: value for name, value in options.items() if value is not None}


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """Show the fields of a command's groups as separate options, and gather them again."""
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
