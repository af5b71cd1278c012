"""`diffsound edit`: inpaint a region, extend a clip, vary it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffsound.cli import options
from diffsound.cli.output import check_target, target_names, write_sounds
from diffsound.cli.progress import progress_bar

if TYPE_CHECKING:
    from diffsound.pipeline import TextToSound
    from diffsound.sound import Sound

app = typer.Typer(help="Change a clip: inpaint, extend or vary it.", no_args_is_help=True)

Clip = Annotated[Path, typer.Argument(help="The audio file to edit.")]
Text = Annotated[str, typer.Argument(help="What to hear in the new part.")]


@app.command()
def inpaint(
    clip: Clip,
    text: Text,
    start: Annotated[float, typer.Option(help="Where the new part begins, in seconds.")],
    end: Annotated[float, typer.Option(help="Where it ends, in seconds.")],
    low: Annotated[
        float | None, typer.Option(help="Change only frequencies from here, Hz.")
    ] = None,
    high: Annotated[float | None, typer.Option(help="… up to here, Hz.")] = None,
    output: options.Output = None,
    seed: options.Seed = None,
    candidates: options.Candidates = 1,
    steps: options.Steps = None,
    guidance: options.Guidance = None,
    spectrogram: options.Spectrogram = False,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    bundle: options.Bundle = None,
) -> None:
    """Make a region anew; the rest stays the original recording."""
    _edit(
        lambda pipeline, **rest: pipeline.inpaint(
            clip, text, start, end, low=low, high=high, **rest
        ),
        **_shared(locals()),
    )


@app.command()
def extend(
    clip: Clip,
    text: Text,
    seconds: Annotated[float, typer.Option(help="How much longer it gets.")],
    output: options.Output = None,
    seed: options.Seed = None,
    candidates: options.Candidates = 1,
    steps: options.Steps = None,
    guidance: options.Guidance = None,
    spectrogram: options.Spectrogram = False,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    bundle: options.Bundle = None,
) -> None:
    """Continue a clip."""
    _edit(
        lambda pipeline, **rest: pipeline.extend(clip, text, seconds, **rest), **_shared(locals())
    )


@app.command()
def vary(
    clip: Clip,
    text: Text,
    strength: Annotated[float, typer.Option(help="0 keeps the clip, 1 makes a new one.")] = 0.5,
    output: options.Output = None,
    seed: options.Seed = None,
    candidates: options.Candidates = 1,
    steps: options.Steps = None,
    guidance: options.Guidance = None,
    spectrogram: options.Spectrogram = False,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    bundle: options.Bundle = None,
) -> None:
    """Make another take of a clip."""
    _edit(lambda pipeline, **rest: pipeline.vary(clip, text, strength, **rest), **_shared(locals()))


_SHARED = (
    "output", "seed", "candidates", "steps", "guidance", "spectrogram", "overwrite", "as_json",
    "quiet", "bundle",
)  # fmt: skip


def _shared(values: dict[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in _SHARED}


def _edit(
    make: Callable[..., list[Sound]],
    *,
    output: Path | None,
    seed: int | None,
    candidates: int,
    steps: int | None,
    guidance: float | None,
    spectrogram: bool,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
    bundle: str | None,
) -> None:
    check_target(output, Path(), "wav", overwrite)
    from diffsound.pipeline import TextToSound

    pipeline: TextToSound = TextToSound.from_pretrained(bundle)
    with progress_bar("editing", quiet or as_json) as show:
        sounds = make(
            pipeline,
            seed=seed,
            num_candidates=candidates,
            callback=lambda share, tokens: show(share),
            **options.given(num_inference_steps=steps, guidance_scale=guidance),
        )
    write_sounds(
        sounds,
        target_names(sounds, output, Path(), "wav"),
        loudness=None,
        spectrogram=spectrogram,
        overwrite=overwrite,
        as_json=as_json,
        quiet=quiet,
    )
