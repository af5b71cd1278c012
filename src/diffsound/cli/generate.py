"""`diffsound generate`: a sentence in, sounds out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffsound.cli import options
from diffsound.cli.output import Target, make_sounds
from diffsound.errors import InputError

if TYPE_CHECKING:
    from diffsound.judges.ranking import Ranker


@options.spread
def command(
    text: Annotated[
        list[str] | None, typer.Argument(help="What to hear; read from standard input if missing.")
    ] = None,
    duration: options.Duration = None,
    keep: options.Keep = None,
    captioner: options.Captioner = None,
    output_dir: options.OutputDir = None,
    file_format: options.Format = None,
    stems: options.Stems = False,
    *,
    making: options.MakingOptions,
) -> None:
    """Make a sound from a sentence.

    \b
    Examples:
      diffsound a dog barks
      diffsound "footsteps on gravel" -o steps.ogg --duration 6 -n 8 --keep 2
      diffsound "rain, then a dog barks in the distance" --negative wind --stems --play
      echo "waves break on a beach" | diffsound --json
    """
    if keep is not None and not 1 <= keep <= making.candidates:
        raise InputError(
            f"--keep must be from 1 to the {making.candidates} of --candidates, not {keep}"
        )
    if captioner is not None and keep is None:
        raise InputError("--captioner works only with --keep")
    if keep is not None and captioner is None:
        from diffsound.model.bundle import check_ranks

        check_ranks(making.bundle)  # refused before anything is loaded
    prompt = _prompt(text)
    make_sounds(
        lambda pipeline, **rest: pipeline(prompt, duration=duration, keep=keep, **rest),
        prompt,
        Target.asked(making, folder=output_dir, file_format=file_format, stems=stems),
        making,
        keep=keep,
        ranker=None if captioner is None else _ranker(captioner),
    )


def _prompt(words: list[str] | None) -> str:
    """The prompt, with or without quotes around it on the command line."""
    if words:
        return " ".join(words)
    if sys.stdin.isatty():
        raise InputError('no prompt was given; try: diffsound "a dog barks"')
    return sys.stdin.read()


def _ranker(captioner: Path) -> Ranker:
    from diffsound.judges.captioner import load_captioner
    from diffsound.judges.ranking import LikelihoodRanker

    return LikelihoodRanker(load_captioner(captioner))
