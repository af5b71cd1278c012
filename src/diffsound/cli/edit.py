"""`diffsound edit`: inpaint a region, extend a clip, vary it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffsound.cli import options
from diffsound.cli.output import Target, make_sounds
from diffsound.errors import InputError

if TYPE_CHECKING:
    from diffsound.generation.sound import Sound

HELP = """Change a clip: inpaint, extend or vary it.

\b
Examples:
  diffsound edit inpaint rain.flac "a dog barks" --start 2 --end 4 -o dog.flac
  diffsound edit extend rain.flac --seconds 4
  diffsound edit vary rain.flac "heavy rain" --strength 0.4 --candidates 3
"""

app = typer.Typer(help=HELP, no_args_is_help=True)

Clip = Annotated[Path, typer.Argument(help="The audio file to edit.")]
Text = Annotated[str, typer.Argument(help="What to hear in the new part.")]
OwnText = Annotated[
    str | None, typer.Argument(help="What to hear; by default the prompt in the file.")
]


@app.command()
@options.spread
def inpaint(
    clip: Clip,
    text: Text,
    start: Annotated[float, typer.Option(help="Where the new part begins, in seconds.")],
    end: Annotated[float, typer.Option(help="Where the new part ends, in seconds.")],
    low: Annotated[
        float | None, typer.Option(help="Change only frequencies above this, in Hz.")
    ] = None,
    high: Annotated[float | None, typer.Option(help="… below this, in Hz.")] = None,
    *,
    making: options.MakingOptions,
) -> None:
    """Regenerate a region; the rest stays the original recording.

    \b
    Example:
      diffsound edit inpaint rain.flac "a dog barks" --start 2 --end 4 -o dog.flac
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
    text: OwnText = None,
    *,
    seconds: Annotated[float, typer.Option(help="Seconds to add.")],
    making: options.MakingOptions,
) -> None:
    """Continue a clip.

    \b
    Example:
      diffsound edit extend rain.flac --seconds 4 -o longer.flac
    """
    prompt = _prompt(clip, text)
    _edit(lambda pipeline, **rest: pipeline.extend(clip, prompt, seconds, **rest), prompt, making)


@app.command()
@options.spread
def vary(
    clip: Clip,
    text: OwnText = None,
    strength: Annotated[float, typer.Option(help="0 keeps the clip, 1 makes a new one.")] = 0.5,
    *,
    making: options.MakingOptions,
) -> None:
    """Make another take of a clip.

    \b
    Example:
      diffsound edit vary rain.flac "heavy rain" --strength 0.4 --candidates 3
    """
    prompt = _prompt(clip, text)
    _edit(lambda pipeline, **rest: pipeline.vary(clip, prompt, strength, **rest), prompt, making)


def _prompt(clip: Path, text: str | None) -> str:
    from diffsound.generation.sound import read_prompt

    return read_prompt(clip) if text is None else text


def _edit(draw: Callable[..., list[Sound]], text: str, making: options.MakingOptions) -> None:
    for name in ("best_of", "chosen_after", "layered", "loop", "level"):
        if getattr(making, name) is not None:
            raise InputError(f"{options.option_name(name)} does not apply to an edit; leave it out")
    make_sounds(draw, text, Target.asked(making), making)
