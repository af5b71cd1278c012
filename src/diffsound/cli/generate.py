"""`diffsound generate`: a sentence in, sounds out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from diffsound.cli import options
from diffsound.cli.output import Target, choose_seeds, write_sounds
from diffsound.cli.play import find_player, play
from diffsound.cli.progress import progress_bar
from diffsound.errors import InputError


def command(
    text: Annotated[
        str | None, typer.Argument(help="What to hear; read from a pipe if missing.")
    ] = None,
    output: options.Output = None,
    output_dir: options.OutputDir = Path(),
    file_format: options.Format = "wav",
    duration: options.Duration = None,
    seed: options.Seed = None,
    candidates: options.Candidates = 1,
    keep: options.Keep = None,
    captioner: options.Captioner = None,
    negative: options.Negative = None,
    steps: options.Steps = None,
    guidance: options.Guidance = None,
    sampler: options.Sampler = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    truncation: options.Truncation = None,
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
    """Make a sound from a sentence.

    \b
    Examples:
      diffsound "a dog barks"
      diffsound "footsteps on gravel" -o steps.ogg --duration 6 --candidates 4
      diffsound "a cat meows" --candidates 8 --keep 2
      diffsound "rain" --negative "wind, thunder" --guidance 4 --play
      echo "church bells" | diffsound --json
    """
    target = Target(output, output_dir, file_format, spectrogram, overwrite)
    target.check()
    player = find_player(output.suffix[1:] if output else file_format) if play_it else None
    prompt = _prompt(text)
    seeds = choose_seeds(seed, candidates)
    target.check_free(prompt, seeds, candidates if keep is None else keep)
    judge = None if keep is None else _judge(keep, candidates, captioner, bundle)
    pipeline = options.load_pipeline(bundle, device, backend)
    with progress_bar(prompt[:40], quiet or as_json) as show:
        sounds = pipeline(
            prompt,
            duration=duration,
            negative_prompt=negative,
            num_candidates=candidates,
            seed=seeds[0],
            callback=lambda share, tokens: show(share),
            **options.given(
                num_inference_steps=steps,
                guidance_scale=guidance,
                sampler=sampler,
                temperature=temperature,
                top_k=top_k,
                truncation=truncation,
            ),
        )
    if keep is not None and judge is not None:
        from diffsound.choosing import keep_best

        sounds = keep_best(sounds, keep, judge)
    for path in write_sounds(sounds, target, loudness=loudness, as_json=as_json, quiet=quiet):
        if player is not None:
            play(player, path)


def _prompt(text: str | None) -> str:
    if text is not None:
        return text
    if sys.stdin.isatty():
        raise InputError('say what to hear: diffsound "a dog barks"')
    return sys.stdin.read()


def _judge(keep: int, candidates: int, captioner: Path | None, bundle: str | None) -> Path:
    from diffsound.choosing import find_captioner

    if not 1 <= keep <= candidates:
        raise InputError(f"--keep must be from 1 to the {candidates} of --candidates, not {keep}")
    return find_captioner(captioner, bundle)
