"""`diffsound edit`: inpaint a region, extend a clip, vary it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffsound.cli import options
from diffsound.cli.making import make_sounds
from diffsound.cli.output import Target

if TYPE_CHECKING:
    from diffsound.sound import Sound

HELP = """Change a clip: inpaint, extend or vary it.

\b
Examples:
  diffsound edit inpaint rain.flac "a thunder clap" --start 2 --end 4 -o storm.flac
  diffsound edit extend rain.flac "rain on a tin roof" --seconds 4
  diffsound edit vary rain.flac "heavy rain" --strength 0.4 --candidates 3
"""

app = typer.Typer(help=HELP, no_args_is_help=True)

Clip = Annotated[Path, typer.Argument(help="The audio file to edit.")]
Text = Annotated[str, typer.Argument(help="What to hear in the new part.")]


@app.command()
@options.spread
def inpaint(
    clip: Clip,
    text: Text,
    start: Annotated[float, typer.Option(help="Where the new part begins, in seconds.")],
    end: Annotated[float, typer.Option(help="Where it ends, in seconds.")],
    low: Annotated[
        float | None, typer.Option(help="Change only frequencies from here, Hz.")
    ] = None,
    high: Annotated[float | None, typer.Option(help="… up to here, Hz.")] = None,
    *,
    making: options.MakingOptions,
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
        text,
        making,
    )


@app.command()
@options.spread
def extend(
    clip: Clip,
    text: Text,
    seconds: Annotated[float, typer.Option(help="How much longer it gets.")],
    *,
    making: options.MakingOptions,
) -> None:
    """Continue a clip.

    \b
    Example:
      diffsound edit extend rain.flac "rain on a tin roof" --seconds 4 -o longer.flac
    """
    _edit(lambda pipeline, **rest: pipeline.extend(clip, text, seconds, **rest), text, making)


@app.command()
@options.spread
def vary(
    clip: Clip,
    text: Text,
    strength: Annotated[float, typer.Option(help="0 keeps the clip, 1 makes a new one.")] = 0.5,
    *,
    making: options.MakingOptions,
) -> None:
    """Make another take of a clip.

    \b
    Example:
      diffsound edit vary rain.flac "heavy rain" --strength 0.4 --candidates 3
    """
    _edit(lambda pipeline, **rest: pipeline.vary(clip, text, strength, **rest), text, making)


def _edit(draw: Callable[..., list[Sound]], text: str, making: options.MakingOptions) -> None:
    target = Target(making.output, spectrogram=making.spectrogram, overwrite=making.overwrite)
    make_sounds(draw, text, target, making)
