"""`diffsound edit`: inpaint a region, extend a clip, vary it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffsound.cli import options
from diffsound.cli.output import Target, choose_seeds, write_sounds
from diffsound.cli.play import find_player, play
from diffsound.cli.progress import progress_bar

if TYPE_CHECKING:
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
    negative: options.Negative = None,
    steps: options.Steps = None,
    guidance: options.Guidance = None,
    loudness: options.Loudness = None,
    spectrogram: options.Spectrogram = False,
    play_it: options.Play = False,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    bundle: options.Bundle = None,
    device: options.Device = "cpu",
    backend: options.Backend = None,
) -> None:
    """Make a region anew; the rest stays the original recording.

    \b
    Example:
      diffsound edit inpaint rain.flac "a thunder clap" --start 2 --end 4 -o storm.flac
    """
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
    negative: options.Negative = None,
    steps: options.Steps = None,
    guidance: options.Guidance = None,
    loudness: options.Loudness = None,
    spectrogram: options.Spectrogram = False,
    play_it: options.Play = False,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    bundle: options.Bundle = None,
    device: options.Device = "cpu",
    backend: options.Backend = None,
) -> None:
    """Continue a clip.

    \b
    Example:
      diffsound edit extend rain.flac "rain on a tin roof" --seconds 4 -o longer.flac
    """
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
    negative: options.Negative = None,
    steps: options.Steps = None,
    guidance: options.Guidance = None,
    loudness: options.Loudness = None,
    spectrogram: options.Spectrogram = False,
    play_it: options.Play = False,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    bundle: options.Bundle = None,
    device: options.Device = "cpu",
    backend: options.Backend = None,
) -> None:
    """Make another take of a clip.

    \b
    Example:
      diffsound edit vary rain.flac "heavy rain" --strength 0.4 --candidates 3
    """
    _edit(lambda pipeline, **rest: pipeline.vary(clip, text, strength, **rest), **_shared(locals()))


_SHARED = (
    "text", "output", "seed", "candidates", "negative", "steps", "guidance", "loudness",
    "spectrogram", "play_it", "overwrite", "as_json", "quiet", "bundle", "device", "backend",
)  # fmt: skip


def _shared(values: dict[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in _SHARED}


def _edit(
    make: Callable[..., list[Sound]],
    *,
    text: str,
    output: Path | None,
    seed: int | None,
    candidates: int,
    negative: str | None,
    steps: int | None,
    guidance: float | None,
    loudness: float | None,
    spectrogram: bool,
    play_it: bool,
    overwrite: bool,
    as_json: bool,
    quiet: bool,
    bundle: str | None,
    device: str,
    backend: str | None,
) -> None:
    target = Target(output, spectrogram=spectrogram, overwrite=overwrite)
    target.check()
    player = find_player(output.suffix[1:] if output else target.file_format) if play_it else None
    seeds = choose_seeds(seed, candidates)
    target.check_free(text, seeds, candidates)
    pipeline = options.load_pipeline(bundle, device, backend)
    with progress_bar("editing", quiet or as_json) as show:
        sounds = make(
            pipeline,
            seed=seeds[0],
            num_candidates=candidates,
            negative_prompt=negative,
            callback=lambda share, tokens: show(share),
            **options.given(num_inference_steps=steps, guidance_scale=guidance),
        )
    for path in write_sounds(sounds, target, loudness=loudness, as_json=as_json, quiet=quiet):
        if player is not None:
            play(player, path)
