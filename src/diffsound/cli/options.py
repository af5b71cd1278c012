"""Options that several verbs share, declared once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from diffsound.pipeline import TextToSound

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
    Path | None, typer.Option(help="Captioner that judges for --keep; the bundle's own if missing.")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, …")]
Backend = Annotated[
    str | None, typer.Option(help="torch, or onnx for a bundle with exported networks.")
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
Loudness = Annotated[
    float | None, typer.Option(help="Normalise to this loudness in LUFS, such as -23.")
]
Spectrogram = Annotated[bool, typer.Option("--spectrogram", help="Also write a PNG picture.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", "-f", help="Replace existing files.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per sound.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar, no messages.")]


def given(**options: Any) -> dict[str, Any]:
    """The options the user actually set."""
    return {name: value for name, value in options.items() if value is not None}


def load_pipeline(bundle: str | None, device: str, backend: str | None) -> TextToSound:
    """The pipeline the options ask for."""
    from diffsound.pipeline import TextToSound

    return TextToSound.from_pretrained(bundle, device=device, **given(backend=backend))
