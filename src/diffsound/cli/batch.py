"""`diffsound batch`: a file of prompts in, a folder of sounds out."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from diffsound.cli import options
from diffsound.cli.main import INTERRUPTED
from diffsound.cli.progress import progress_bar

SOME_FAILED = 1


@options.spread
def command(
    prompts: Annotated[
        Path, typer.Argument(help="JSONL, CSV, or a text file with a prompt on each line.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for sounds and manifest.")],
    file_format: Annotated[str, typer.Option("--format", help="wav, flac, ogg or mp3.")] = "wav",
    duration: options.Duration = None,
    candidates: Annotated[int | None, typer.Option(help="How many takes of each row.")] = None,
    keep: options.Keep = None,
    loudness: options.Loudness = None,
    engine: Annotated[str, typer.Option(help="local, or ray for a cluster.")] = "local",
    workers: Annotated[
        int | None, typer.Option(help="Sounds made at once (a core each by default).")
    ] = None,
    address: Annotated[str | None, typer.Option(help="Of a running Ray cluster.")] = None,
    overwrite: options.Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    quiet: options.Quiet = False,
    *,
    sampling: options.SamplingOptions,
    model: options.ModelOptions,
) -> None:
    """Make many sounds from a file of prompts; run it again to go on where it stopped.

    Rows may have: prompt, name, seed, duration, candidates, keep, negative, steps, guidance,
    sampler, temperature, top_k, truncation. Options are for the rows that leave them out.

    \b
    Examples:
      diffsound batch prompts.jsonl --out sounds
      diffsound batch prompts.csv --out sounds --format flac --duration 4
      diffsound batch prompts.jsonl --out /shared/sounds --engine ray --address auto
    """
    from diffsound.batch.run import generate_batch

    try:
        with progress_bar(prompts.name, quiet or as_json) as show:
            report = generate_batch(
                prompts,
                out,
                bundle=model.bundle,
                device=model.device,
                file_format=file_format,
                loudness=loudness,
                engine=engine,
                workers=workers,
                address=address,
                overwrite=overwrite,
                progress=show,
                duration=duration,
                candidates=candidates,
                keep=keep,
                **asdict(sampling),
                **options.given(backend=model.backend),
            )
    except KeyboardInterrupt:
        typer.echo("interrupted; what is made is listed, run it again to go on", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        failures = [vars(failure) for failure in report.failures]
        shown = {"made": report.made, "kept": report.kept, "failures": failures}
        typer.echo(json.dumps(shown, ensure_ascii=False))
    elif not quiet:
        already = f", {report.kept} were there already" if report.kept else ""
        typer.echo(f"{out}: {report.made} sounds made{already}")
    for failure in report.failures:
        typer.echo(f"failed: line {failure.line}: {failure.error}", err=True)
    if report.failures:
        raise typer.Exit(SOME_FAILED)
