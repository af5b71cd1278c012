"""`diffsound generate`: a sentence in, sounds out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffsound.cli import options
from diffsound.cli.making import make_sounds
from diffsound.cli.output import Target
from diffsound.errors import InputError

if TYPE_CHECKING:
    from diffsound.pipeline import Ranker


@options.spread
def command(
    text: Annotated[
        str | None, typer.Argument(help="What to hear; read from a pipe if missing.")
    ] = None,
    duration: options.Duration = None,
    keep: options.Keep = None,
    captioner: options.Captioner = None,
    output_dir: options.OutputDir = Path(),
    file_format: options.Format = "wav",
    stems: options.Stems = False,
    *,
    making: options.MakingOptions,
) -> None:
    """Make a sound from a sentence.

    \b
    Examples:
      diffsound "a dog barks"
      diffsound "footsteps on gravel" -o steps.ogg --duration 6 --candidates 4
      diffsound "a cat meows" --candidates 8 --keep 2
      diffsound "rain, then a dog barks in the distance" --stems
      diffsound "rain" --negative "wind, thunder" --guidance 4 --play
      echo "church bells" | diffsound --json
    """
    if keep is not None and not 1 <= keep <= making.candidates:
        raise InputError(
            f"--keep must be from 1 to the {making.candidates} of --candidates, not {keep}"
        )
    if captioner is not None and keep is None:
        raise InputError("--captioner belongs to --keep")
    if keep is not None and captioner is None:
        from diffsound.choosing import check_ranks

        check_ranks(making.bundle)  # refused before anything is loaded
    prompt = _prompt(text)
    make_sounds(
        lambda pipeline, **rest: pipeline(prompt, duration=duration, keep=keep, **rest),
        prompt,
        Target(making.output, output_dir, file_format, making.spectrogram, making.overwrite, stems),
        making,
        keep=keep,
        ranker=None if captioner is None else _ranker(captioner),
    )


def _prompt(text: str | None) -> str:
    if text is not None:
        return text
    if sys.stdin.isatty():
        raise InputError('say what to hear: diffsound "a dog barks"')
    return sys.stdin.read()


def _ranker(captioner: Path) -> Ranker:
    from diffsound.choosing import CaptionerRanker

    return CaptionerRanker(captioner)
