"""`diffsound generate`: a sentence in, a sound file out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from diffsound.cli import options
from diffsound.cli.output import check_target, target_names, write_sounds
from diffsound.cli.progress import progress_bar
from diffsound.errors import InputError


def command(
    text: Annotated[
        str | None, typer.Argument(help="What to hear; read from a pipe if missing.")
    ] = None,
    output: options.Output = None,
    output_dir: options.OutputDir = Path(),
    file_format: Annotated[str, typer.Option("--format", help="wav, flac, ogg or mp3.")] = "wav",
    duration: Annotated[
        float | None, typer.Option("--duration", "-d", help="Seconds, 0.5 to 30.")
    ] = None,
    seed: options.Seed = None,
    candidates: options.Candidates = 1,
    negative: options.Negative = None,
    steps: options.Steps = None,
    guidance: options.Guidance = None,
    sampler: options.Sampler = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    truncation: options.Truncation = None,
    loudness: options.Loudness = None,
    spectrogram: options.Spectrogram = False,
    overwrite: options.Overwrite = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    bundle: options.Bundle = None,
) -> None:
    """Make a sound from a sentence.

    \b
    Examples:
      diffsound "a dog barks"
      diffsound "footsteps on gravel" -o steps.ogg --duration 6 --candidates 4
      echo "church bells" | diffsound --json
    """
    check_target(output, output_dir, file_format, overwrite)
    prompt = _prompt(text)
    from diffsound.pipeline import TextToSound

    pipeline = TextToSound.from_pretrained(bundle)
    with progress_bar(prompt[:40], quiet or as_json) as show:
        sounds = pipeline(
            prompt,
            duration=duration,
            negative_prompt=negative,
            num_candidates=candidates,
            seed=seed,
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
    write_sounds(
        sounds,
        target_names(sounds, output, output_dir, file_format),
        loudness=loudness,
        spectrogram=spectrogram,
        overwrite=overwrite,
        as_json=as_json,
        quiet=quiet,
    )


def _prompt(text: str | None) -> str:
    if text is not None:
        return text
    if sys.stdin.isatty():
        raise InputError('say what to hear: diffsound "a dog barks"')
    return sys.stdin.read()
