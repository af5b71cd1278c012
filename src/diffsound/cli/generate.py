"""`diffsound generate`: a sentence in, sounds out."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffsound.cli import options
from diffsound.cli.output import Target, make_sounds
from diffsound.errors import InputError
from diffsound.generation.settings import KeepSettings, check, check_takes

if TYPE_CHECKING:
    from diffsound.generation.pipeline import TextToSound
    from diffsound.generation.sound import Sound
    from diffsound.judges.ranking import Ranker


@options.spread
def command(
    text: Annotated[
        list[str] | None, typer.Argument(help="What to hear; read from standard input if missing.")
    ] = None,
    duration: options.Duration = None,
    keep: options.Keep = None,
    variations: options.Variations = None,
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
      diffsound "a sword hits metal" -o hit.wav --variations 8 --trim --rate 48000
      diffsound "rain, then a dog barks in the distance" --negative wind --stems --play
      echo "waves break on a beach" | diffsound --json
    """
    candidates = making.candidates
    takes = {"num_candidates": candidates, "keep": keep, "variations": variations}
    check(KeepSettings, takes)
    check_takes(candidates, keep, variations, loop=making.settings.get("loop"))
    if captioner is not None and keep is None:
        raise InputError("--captioner works only with --keep")
    if keep is not None and captioner is None:
        from diffsound.model.checks import check_ranks

        check_ranks(making.bundle)  # refused before anything is loaded
    prompt = _prompt(text)

    def draw(pipeline: TextToSound, **rest: Any) -> list[Sound]:
        if variations is None:
            return pipeline(prompt, duration=duration, keep=keep, **rest)
        rest["count"] = rest.pop("num_candidates")
        return pipeline.variations(prompt, duration=duration, **rest)

    if variations is not None:
        making = replace(making, candidates=variations)
    make_sounds(
        draw,
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
